//! Datagrams larger than a frame arrive complete at the server and back at the client, in every mode and for any order
//! of their fragments.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tidegate_netlab::addresses::{Family, client};
use tidegate_netlab::client::{SILENCE, TIMEOUT};
use tidegate_netlab::modes::{ModePath, all_paths, manifests};
use tidegate_netlab::{GatewayOptions, checksum};

use crate::world::{World, beside_others};

/// Sizes of UDP data: slightly more than a frame of 1,500 bytes, a common larger size, jumbo frames, and nearly the
/// maximum.
const SIZES: [usize; 4] = [1473, 1500, 9000, 60_000];
/// The data of each fragment that the test creates itself. It fits every tunnel.
const STEP: usize = 1352;

#[test]
fn datagrams_larger_than_a_frame_arrive_whole_in_every_mode_and_order() {
    let _machine = beside_others();
    let world = World::start(2, GatewayOptions::default(), &manifests(&[1, 2]));
    through_every_mode(&world);
}

#[test]
fn datagrams_larger_than_a_frame_arrive_whole_over_two_workers() {
    let _machine = beside_others();
    let options = GatewayOptions { cores: vec![0, 1], ..GatewayOptions::default() };
    let world = World::start(2, options, &manifests(&[1, 2]));
    through_every_mode(&world);
}

fn through_every_mode(world: &World) {
    let mut failed = Vec::new();
    for (port, path) in (42_000..).zip(all_paths()) {
        world.wait_until_served(path);
        let source = SocketAddr::new(client(path.family, 8), port);
        let faults = world.lab.client().enter(|| try_sizes(path, source));
        failed.extend(faults.into_iter().map(|fault| format!("{} {}: {fault}", path.label(), path.family)));
    }
    let drops = world.gateway().metrics().expect("the gateway answers");
    let drops: Vec<&str> = drops
        .lines()
        .filter(|line| line.starts_with("tidegate_drops_total") && !line.ends_with(" 0"))
        .collect();
    assert!(failed.is_empty(), "{failed:#?}\n{drops:#?}");
}

/// Sends datagrams over one path. Returns the failures.
fn try_sizes(path: ModePath, source: SocketAddr) -> Vec<String> {
    let socket = UdpSocket::bind(source).expect("an address of the client");
    // The socket is connected, so it accepts answers only from the VIP.
    socket.connect(path.udp_echo()).expect("a route to the VIP");
    let mut faults = Vec::new();
    for size in SIZES {
        let mut first = None;
        // The first exchange resolves neighbors, and notifies the client of the size that fits a tunnel (IPv6: packet
        // too big).
        let begin = Instant::now();
        while first.is_none() && begin.elapsed() < TIMEOUT {
            first = exchange(&socket, &text(size, 0), Duration::from_millis(500), |data| {
                // This send may return an ICMP error about an earlier one.
                let _ = socket.send(data);
            });
        }
        if first.is_none() {
            faults.push(format!("{size} bytes: nothing"));
            continue;
        }
        for n in 1..=5 {
            let sent = exchange(&socket, &text(size, n), SILENCE, |data| drop(socket.send(data)));
            let mut exchanges = vec![("in order", sent)];
            for order in [Order::Reversed, Order::FirstLast, Order::Halves] {
                let id = u32::from(source.port()) << 8 | n << 4 | order as u32;
                let sent = exchange(&socket, &text(size, 10 * n + order as u32), SILENCE, |data| {
                    send_fragments(source, path.udp_echo(), data, id, order);
                });
                exchanges.push((order.name(), sent));
            }
            for (how, answer) in exchanges {
                match answer {
                    None => faults.push(format!("{size} bytes {how}, try {n}: no answer")),
                    Some(seen) if Some(seen) != first => {
                        faults.push(format!("{size} bytes {how}, try {n}: {seen:?}, was {first:?}"));
                    }
                    Some(_) => {}
                }
            }
        }
    }
    faults
}

/// Sends `data` and receives it back completely. Returns the backend's name and the client address that it saw.
pub(crate) fn exchange(
    socket: &UdpSocket,
    data: &[u8],
    timeout: Duration,
    send: impl FnOnce(&[u8]),
) -> Option<(u64, SocketAddr)> {
    send(data);
    let begin = Instant::now();
    let mut buffer = vec![0; 65_536];
    while begin.elapsed() < timeout {
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a time above zero");
        let answer = match socket.recv(&mut buffer) {
            Ok(length) => &buffer[..length],
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            // An ICMP error.
            Err(_) => continue,
        };
        // Skip a late answer to an earlier datagram.
        let Some(head) = answer.strip_suffix(data) else { continue };
        let head = String::from_utf8_lossy(head).into_owned();
        let answer = tidegate_netlab::client::BackendAnswer::parse(&head)?;
        let backend = answer.backend.rsplit('-').next()?.parse().ok()?;
        return Some((backend, answer.client));
    }
    None
}

/// Data whose parts all differ.
pub(crate) fn text(size: usize, n: u32) -> Vec<u8> {
    let mut text = Vec::with_capacity(size + 16);
    let mut at = 0;
    while text.len() < size {
        text.extend_from_slice(format!("{n}:{at} ").as_bytes());
        at += 1;
    }
    text.truncate(size);
    text
}

/// The order of the fragments of a datagram.
#[derive(Clone, Copy)]
enum Order {
    Reversed = 1,
    FirstLast,
    Halves,
}

impl Order {
    fn name(self) -> &'static str {
        match self {
            Self::Reversed => "reversed",
            Self::FirstLast => "with the first one last",
            Self::Halves => "second half before the first",
        }
    }

    fn of<T>(self, parts: &mut [T]) {
        match self {
            Self::Reversed => parts.reverse(),
            Self::FirstLast => parts.rotate_left(1),
            Self::Halves => parts.rotate_left(parts.len() / 2),
        }
    }
}

/// Sends a UDP datagram in fragments that the test creates itself.
fn send_fragments(source: SocketAddr, to: SocketAddr, data: &[u8], id: u32, order: Order) {
    let datagram = udp(source, to, data);
    let domain = if source.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    // With IPPROTO_RAW, the program writes the IP header itself (raw(7), RFC 3542 section 3).
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(255))).expect("a raw socket, as root");
    let count = datagram.len().div_ceil(STEP);
    let mut parts: Vec<Vec<u8>> = datagram
        .chunks(STEP)
        .enumerate()
        .map(|(n, part)| fragment(source.ip(), to.ip(), id, n * STEP, n + 1 < count, part))
        .collect();
    order.of(&mut parts);
    for part in parts {
        socket.send_to(&part, &SockAddr::from(SocketAddr::new(to.ip(), 0))).expect("a route to the VIP");
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn udp(source: SocketAddr, to: SocketAddr, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + data.len()).expect("a datagram");
    let mut udp = [source.port(), to.port(), length, 0].map(u16::to_be_bytes).concat();
    udp.extend_from_slice(data);
    let addresses = [octets(source.ip()), octets(to.ip())].concat();
    let pseudo = [&addresses[..], &length.to_be_bytes(), &[0, 17], &udp].concat();
    udp[6..8].copy_from_slice(&checksum(&pseudo).to_be_bytes());
    udp
}

fn fragment(source: IpAddr, to: IpAddr, id: u32, offset: usize, more: bool, part: &[u8]) -> Vec<u8> {
    let addresses = [octets(source), octets(to)].concat();
    let offset = u16::try_from(offset).expect("within a datagram");
    if Family::of(source) == Family::V4 {
        // The kernel writes length and checksum.
        let id = u16::try_from(id & 0xffff).expect("masked");
        let field = (offset / 8) | (u16::from(more) << 13);
        let head = [0x4500, u16::try_from(20 + part.len()).expect("small"), id, field].map(u16::to_be_bytes);
        return [&head.concat()[..], &[64, 17, 0, 0], &addresses, part].concat();
    }
    let length = u16::try_from(8 + part.len()).expect("small").to_be_bytes();
    let field = (offset | u16::from(more)).to_be_bytes();
    let header = [&[0x60, 0, 0, 0][..], &length, &[44, 64], &addresses].concat();
    [&header[..], &[17, 0], &field, &id.to_be_bytes(), part].concat()
}
