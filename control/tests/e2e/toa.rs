//! The option TOA over a wire that loses and reorders frames: the first segment that can complete the handshake of a
//! connection has the client's address and port, no other segment has a different one, and every byte arrives.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tidegate_netlab::addresses::{self as plan, Family, UPSTREAM_PORT};
use tidegate_netlab::manifests::{EndpointSpec, Manifest, PortSpec};
use tidegate_netlab::wire::{Faults, Wire};
use tidegate_netlab::{GatewayOptions, Lab};

use crate::proxy_protocol::{is_gateway, open_many, start_upstream, wait_until_served};
use crate::world::{World, beside_others, lab_with};

const SYN: u8 = 2;
const RST: u8 = 4;
const TOA: u8 = 254;
const CONNECTIONS: usize = 240;

/// What the server's link received of one connection.
#[derive(Debug, Default)]
struct Observed {
    /// The first segment that could complete the handshake had the option.
    first_had_one: bool,
    /// The contents of the options.
    options: BTreeSet<SocketAddr>,
}

#[test]
fn toa_is_in_the_first_segment_that_can_end_the_handshake() {
    let _machine = beside_others();
    let lab = lab_with(1, Vec::new());
    let _upstream = start_upstream(&lab, 1);
    let vips = Family::BOTH.map(|family| plan::routed_vip(family, 45));
    let mut service =
        Manifest::new("toa", "fullnat", &vips, vec![PortSpec::tcp("web", 80).to(UPSTREAM_PORT)]);
    service.annotations.push(("tidegate.dev/proxy-protocol", "toa".to_owned()));
    let endpoints = Family::BOTH.map(|family| EndpointSpec::ready(plan::server(family, 1)));
    let options = GatewayOptions {
        health_interval: Duration::from_secs(4),
        unhealthy_threshold: 5,
        ..GatewayOptions::default()
    };
    let world = World::over(lab, options, &[service.with_endpoints(endpoints)], "");
    let targets = vips.map(|vip| SocketAddr::new(vip, 80));
    wait_until_served(&world, &targets);

    let faults = Faults { lost_permille: 20, delayed_permille: 20, delay: Duration::from_millis(2), seed: 5 };
    let wire = Wire::install(&world.lab, faults).expect("the wire is there");
    let stop = AtomicBool::new(false);
    let (expected, observed) = thread::scope(|scope| {
        let (world, stop) = (&world, &stop);
        let threads = Family::BOTH.map(|family| scope.spawn(move || listen(&world.lab, family, stop)));
        let expected = open_many(&world.lab, &targets, CONNECTIONS);
        stop.store(true, Ordering::Relaxed);
        let observed = threads.map(|thread| thread.join().expect("it listens"));
        (expected, observed.into_iter().flatten().collect::<BTreeMap<_, _>>())
    });
    let (lost, delayed) = wire.lost_and_delayed();
    println!("{} connections, {} frames, {lost} lost, {delayed} delayed", observed.len(), wire.frames());
    assert!(lost > 0 && delayed > 0, "the wire was bad: {lost} lost, {delayed} delayed");

    let wrong: Vec<_> =
        observed.iter().filter(|(_, one)| !one.first_had_one || one.options.len() != 1).collect();
    assert!(wrong.is_empty(), "without the option, or with several addresses: {wrong:?}");
    let reported: BTreeSet<SocketAddr> =
        observed.values().flat_map(|one| one.options.iter().copied()).collect();
    let clients: BTreeSet<SocketAddr> = expected.keys().map(|(client, _)| *client).collect();
    assert_eq!(reported, clients);
}

/// Reads the segments that arrive at the server, until `stop`.
fn listen(lab: &Lab, family: Family, stop: &AtomicBool) -> BTreeMap<SocketAddr, Observed> {
    lab.server(1).namespace().move_this_thread().expect("the namespace lives as long as its lab");
    let domain = if family == Family::V4 { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::TCP)).expect("a raw socket, as root");
    socket.set_recv_buffer_size(8 << 20).expect("a receive buffer");
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    let mut observed: BTreeMap<SocketAddr, Observed> = BTreeMap::new();
    let mut segment = vec![0; 65_536];
    while !stop.load(Ordering::Relaxed) {
        let (len, peer) = match socket.recv_from(&mut segment) {
            Ok(read) => read,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(error) => panic!("reading segments: {error}"),
        };
        // With IPv4, the header comes before the segment (raw(7)).
        let header = if family == Family::V4 { usize::from(segment[0] & 15) * 4 } else { 0 };
        note(&mut observed, peer.ip(), &segment[header..len]);
    }
    observed
}

fn note(observed: &mut BTreeMap<SocketAddr, Observed>, from: IpAddr, tcp: &[u8]) {
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    if port(2) != UPSTREAM_PORT || from.is_loopback() || is_gateway(from) || tcp[13] & (SYN | RST) != 0 {
        return;
    }
    let found = option(&tcp[20..usize::from(tcp[12] >> 4) * 4]);
    let from = SocketAddr::new(from, port(0));
    let entry = observed
        .entry(from)
        .or_insert_with(|| Observed { first_had_one: found.is_some(), ..Observed::default() });
    entry.options.extend(found);
}

/// The address and port of the first option TOA.
fn option(mut options: &[u8]) -> Option<SocketAddr> {
    loop {
        let (port, address) = match *options {
            [1, ..] => {
                options = &options[1..];
                continue;
            }
            [TOA, 8, high, low, ref rest @ ..] => (u16::from_be_bytes([high, low]), {
                let bytes: [u8; 4] = rest.get(..4)?.try_into().ok()?;
                IpAddr::from(Ipv4Addr::from(bytes))
            }),
            [TOA, 20, high, low, ref rest @ ..] => (u16::from_be_bytes([high, low]), {
                let bytes: [u8; 16] = rest.get(..16)?.try_into().ok()?;
                IpAddr::from(Ipv6Addr::from(bytes))
            }),
            [kind, len, ..] if kind != 0 && len >= 2 => {
                options = options.get(usize::from(len)..)?;
                continue;
            }
            _ => return None,
        };
        return Some(SocketAddr::new(address, port));
    }
}
