//! The backend's end of the gateway's IP-in-IP tunnels, for kernels without tunnel devices: removes the outer header
//! and passes the inner packet to the host through a TUN device.
//!
//! The kernel delivers packets of protocols 4 (IPv4 inside, RFC 2003) and 41 (IPv6 inside, RFC 2473, RFC 4213) to raw
//! sockets that request them, over IPv4 and over IPv6: four combinations, four sockets. The host then receives the
//! inner packet on the TUN, finds the VIP on its loopback and answers the client itself (direct server return). Replies
//! are not sent through this tool.

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::Read as _;
use std::thread;
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

/// The outer header's family, and the protocol number of its payload.
const COMBINATIONS: [(Domain, i32); 4] =
    [(Domain::IPV4, 4), (Domain::IPV4, 41), (Domain::IPV6, 4), (Domain::IPV6, 41)];

/// Creates the TUN device `interface` and moves packets to it until a socket fails.
///
/// # Errors
/// Without root or `/dev/net/tun`, and when a socket fails.
pub fn serve(interface: &str) -> Result<()> {
    // The sockets come first: if the device exists, packets are received.
    let sockets = COMBINATIONS
        .into_iter()
        .map(|(outer, inner)| {
            let socket = Socket::new(outer, Type::RAW, Some(Protocol::from(inner)))?;
            socket.set_recv_buffer_size(4 << 20)?;
            Ok((outer, socket))
        })
        .collect::<Result<Vec<_>>>()
        .context("decap: raw sockets")?;
    let tun = DeviceBuilder::new()
        .name(interface)
        .layer(Layer::L3)
        .mtu(1500)
        .build_sync()
        .with_context(|| format!("decap: TUN device {interface}"))?;
    thread::scope(|scope| {
        let tun = &tun;
        // Packets that the host sends through the device have no destination (router solicitations, for example).
        scope.spawn(move || drain(tun));
        let threads: Vec<_> =
            sockets.iter().map(|(outer, socket)| scope.spawn(move || strip(*outer, socket, tun))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("strip does not panic"))
    })
}

fn drain(tun: &SyncDevice) {
    let mut buffer = [0; 2048];
    while tun.recv(&mut buffer).is_ok() {}
}

fn strip(outer: Domain, mut socket: &Socket, tun: &SyncDevice) -> Result<()> {
    let mut buffer = vec![0; 65_536];
    loop {
        let length = socket.read(&mut buffer).context("decap: receiving")?;
        if let Some(inner) = inner_packet(outer, &buffer[..length]) {
            // The host refuses data that is not an IP packet (EINVAL), which is right for a broken packet.
            let _ = tun.send(inner);
        }
    }
}

/// The inner packet of the data from a raw socket: IPv4 sockets deliver the outer header, IPv6 sockets do not (raw(7),
/// RFC 3542 section 3).
fn inner_packet(outer: Domain, received: &[u8]) -> Option<&[u8]> {
    let header_bytes = if outer == Domain::IPV4 { usize::from(received.first()? & 0x0f) * 4 } else { 0 };
    received.get(header_bytes..).filter(|inner| !inner.is_empty())
}
