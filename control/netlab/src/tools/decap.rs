//! The backend's end of the gateway's tunnels (IP-in-IP, GUE, GRE, Geneve), for kernels without tunnel devices: removes
//! the outer headers and passes the inner packet to the host through a TUN device.
//!
//! The kernel delivers packets to raw sockets that request their protocol, over IPv4 and over IPv6: 4 (IPv4 inside, RFC
//! 2003), 41 (IPv6 inside, RFC 2473, RFC 4213), 17 (UDP, for GUE and Geneve) and 47 (GRE). The host then receives the
//! inner packet on the TUN, finds the VIP on its loopback and answers the client itself (direct server return). Replies
//! are not sent through this tool.
//!
//! Packets with a wrong field are not delivered but counted ([`super::outer`]). Each connection to [`DECAP_PORT`] on
//! the loopback receives the counts as text, see [`Counts`].

use super::outer::{self, GRE, IPV4, IPV6, Outer, UDP};
use crate::addresses::{DECAP_PORT, Family};
use crate::envelope::Envelope;
use anyhow::{Context, Result};
use socket2::{Domain, Protocol, SockAddr, SockFilter, Socket, Type};
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::thread;
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

/// Lines in the log that show a refused packet.
const SHOWN_MAX: u64 = 20;

/// The counts of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Delivered packets by inner destination, envelope and family of the outer header: `accepted VIP ENVELOPE FAMILY
    /// COUNT`.
    pub accepted: BTreeMap<(IpAddr, String, String), u64>,
    /// Refused packets by the field that was wrong: `refused COUNT REASON`.
    pub refused: BTreeMap<String, u64>,
}

impl Counts {
    /// Reads the text of [`fmt::Display`].
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut counts = Self::default();
        for line in text.lines() {
            let (kind, rest) = line.split_once(' ')?;
            if kind == "refused" {
                let (count, reason) = rest.split_once(' ')?;
                counts.refused.insert(reason.to_owned(), count.parse().ok()?);
                continue;
            }
            let words: Vec<&str> = rest.split(' ').collect();
            let [vip, envelope, outer, count] = words[..] else { return None };
            let key = (vip.parse().ok()?, envelope.to_owned(), outer.to_owned());
            counts.accepted.insert(key, count.parse().ok()?);
        }
        Some(counts)
    }

    /// The envelopes in which packets for `vip` arrived, with the family of the outer header.
    #[must_use]
    pub fn envelopes_of(&self, vip: IpAddr) -> Vec<(&str, &str)> {
        let of_vip = self.accepted.keys().filter(|(to, _, _)| *to == vip);
        of_vip.map(|(_, envelope, outer)| (envelope.as_str(), outer.as_str())).collect()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((vip, envelope, outer), count) in &self.accepted {
            writeln!(f, "accepted {vip} {envelope} {outer} {count}")?;
        }
        for (reason, count) in &self.refused {
            writeln!(f, "refused {count} {reason}")?;
        }
        Ok(())
    }
}

/// A raw socket for one protocol.
struct Receiver {
    protocol: u8,
    /// The server's own address, which is the outer destination.
    own: IpAddr,
    socket: UdpSocket,
}

/// Creates the TUN device `interface` and moves packets to it until a socket fails. `own` are the server's addresses.
///
/// # Errors
/// Without root or `/dev/net/tun`, and when a socket fails.
pub fn serve(interface: &str, own: &[IpAddr]) -> Result<()> {
    // The sockets are created first, so that packets are received as soon as the device exists.
    let receivers = own
        .iter()
        .flat_map(|own| [IPV4, IPV6, UDP, GRE].map(|protocol| receiver(protocol, *own)))
        .collect::<Result<Vec<_>>>()
        .context("decap: cannot open raw sockets")?;
    // These sockets are never read. Without them the kernel would answer each tunnel packet over UDP with "port
    // unreachable".
    let _ports = own.iter().map(|own| bound_ports(*own)).collect::<Result<Vec<_>>>()?;
    let reporter = TcpListener::bind((Ipv4Addr::LOCALHOST, DECAP_PORT))
        .context("decap: cannot bind the port for the counts")?;
    let tun = DeviceBuilder::new()
        .name(interface)
        .layer(Layer::L3)
        .mtu(1500)
        .build_sync()
        .with_context(|| format!("decap: cannot create TUN device {interface}"))?;
    let counts = Mutex::new(Counts::default());
    thread::scope(|scope| {
        let (tun, counts) = (&tun, &counts);
        // Packets that the host sends through the device have no destination (router solicitations, for example).
        scope.spawn(move || drain(tun));
        scope.spawn(move || report(&reporter, counts));
        let threads: Vec<_> =
            receivers.iter().map(|receiver| scope.spawn(move || strip(receiver, tun, counts))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("strip does not panic"))
    })
}

/// A raw socket for packets of a protocol to the server's own address.
fn receiver(protocol: u8, own: IpAddr) -> Result<Receiver> {
    let domain = Domain::for_address(SocketAddr::new(own, 0));
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(i32::from(protocol))))?;
    if protocol == UDP {
        socket.attach_filter(&tunnel_filter(Family::of(own)))?;
    }
    socket.bind(&SockAddr::from(SocketAddr::new(own, 0)))?;
    socket.set_recv_buffer_size(4 << 20)?;
    // Discard packets that arrived before the filter and the address were set.
    socket.set_nonblocking(true)?;
    while (&socket).read(&mut [0; 16]).is_ok() {}
    socket.set_nonblocking(false)?;
    // Converted for `recv_from`, which socket2 offers only for uninitialized memory.
    Ok(Receiver { protocol, own, socket: socket.into() })
}

/// The UDP ports of tunnels.
fn tunnel_ports() -> impl Iterator<Item = u16> {
    Envelope::ALL.into_iter().filter_map(|envelope| match envelope {
        Envelope::Gue { port, .. } | Envelope::Geneve { port, .. } => Some(port),
        Envelope::Ip | Envelope::Gre { .. } => None,
    })
}

fn bound_ports(own: IpAddr) -> Result<Vec<UdpSocket>> {
    let bind = |port| {
        UdpSocket::bind((own, port)).with_context(|| format!("decap: cannot bind UDP port {port} of {own}"))
    };
    tunnel_ports().map(bind).collect()
}

/// A classic BPF program that passes only UDP packets to the ports of tunnels, so that the server's other UDP traffic
/// costs nothing here.
fn tunnel_filter(family: Family) -> Vec<SockFilter> {
    const LOAD_IHL_TO_X: u16 = 0xb1;
    const LOAD_HALF_AT_X: u16 = 0x48;
    const LOAD_HALF: u16 = 0x28;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let mut program = match family {
        Family::V4 => vec![SockFilter::new(LOAD_IHL_TO_X, 0, 0, 0), SockFilter::new(LOAD_HALF_AT_X, 0, 0, 2)],
        Family::V6 => vec![SockFilter::new(LOAD_HALF, 0, 0, 2)],
    };
    for port in tunnel_ports() {
        // If equal, the next instruction returns the whole packet; otherwise it is skipped.
        program.push(SockFilter::new(JUMP_IF_EQUAL, 0, 1, u32::from(port)));
        program.push(SockFilter::new(RETURN, 0, 0, u32::MAX));
    }
    program.push(SockFilter::new(RETURN, 0, 0, 0));
    program
}

fn drain(tun: &SyncDevice) {
    let mut buffer = [0; 2048];
    while tun.recv(&mut buffer).is_ok() {}
}

fn report(listener: &TcpListener, counts: &Mutex<Counts>) {
    while let Ok((mut stream, _)) = listener.accept() {
        let text = counts.lock().unwrap_or_else(PoisonError::into_inner).to_string();
        // A reader that has disconnected misses the counts.
        let _ = stream.write_all(text.as_bytes());
    }
}

fn strip(receiver: &Receiver, tun: &SyncDevice, counts: &Mutex<Counts>) -> Result<()> {
    let mut buffer = vec![0; 65_536];
    loop {
        let (length, from) = receiver.socket.recv_from(&mut buffer).context("decap: cannot receive")?;
        let received = &buffer[..length];
        let opened = outer_of(receiver, from.ip(), received).and_then(|outer| outer::open(&outer));
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        match opened {
            Ok(opened) => {
                let outer = Family::of(receiver.own).to_string();
                *counts.accepted.entry((opened.vip, opened.envelope.to_string(), outer)).or_default() += 1;
                drop(counts);
                // The host refuses data that is not an IP packet (EINVAL), which is right for a broken packet.
                let _ = tun.send(opened.inner);
            }
            Err(reason) => {
                *counts.refused.entry(reason.to_owned()).or_default() += 1;
                if counts.refused.values().sum::<u64>() <= SHOWN_MAX {
                    println!(
                        "refused ({reason}), protocol {}, from {from}: {}",
                        receiver.protocol,
                        hex(received)
                    );
                }
            }
        }
    }
}

/// The packet with its outer header: IPv4 sockets deliver the header, IPv6 sockets do not (raw(7), RFC 3542 section 3).
fn outer_of<'a>(receiver: &Receiver, from: IpAddr, received: &'a [u8]) -> Result<Outer<'a>, &'static str> {
    let protocol = receiver.protocol;
    if receiver.own.is_ipv6() {
        let destination = receiver.own;
        return Ok(Outer { protocol, source: from, destination, header: None, payload: received });
    }
    let (header, source, destination, payload) = outer::split_v4(received).ok_or("outer header cut off")?;
    Ok(Outer { protocol, source, destination, header: Some(header), payload })
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes.iter().take(96) {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
    }
    text
}
