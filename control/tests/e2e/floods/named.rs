//! Floods that each target one limit, at the rate with which an external review exhausted that limit.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use tidegate_netlab::addresses::{Family, UDP_ECHO_PORT, client};
use tidegate_netlab::flood::{Kind, Limits, Target};
use tidegate_netlab::modes::{ModePath, all_paths};
use tidegate_netlab::namespace::output_of;
use tidegate_netlab::wait_for;

use super::setup::{Others, SMALL_TABLE, Setup, attacked_paths, seconds, target};
use crate::world::alone;

/// More flows than FullNAT has ports for one backend, so that the ports are exhausted before the flow table.
const MORE_FLOWS_THAN_PORTS: u32 = 524_288;
/// The ports of one SNAT address for one backend.
const SNAT_PORTS: f64 = 64_512.0;

/// Packets that expire at once. There are more of them than one limit for all kinds of answers would allow at once, and
/// fewer than the receive ring has entries.
const EXPIRING: u64 = 300;
/// Attempts to send a datagram that is too large, because one may be lost.
const TRIES: u8 = 3;

/// The targets of the Services with these modes.
fn targets(modes: &[&str]) -> Vec<Target> {
    attacked_paths().into_iter().filter(|path| modes.contains(&path.forwarding)).map(target).collect()
}

#[test]
fn spoofed_syns_do_not_use_up_the_snat_ports() {
    let _machine = alone();
    let mut setup = Setup::start(MORE_FLOWS_THAN_PORTS);
    let before = setup.counters();
    let spent = |setup: &Setup| {
        let now = setup.counters();
        // Each forwarded SYN is counted; its reply is in another series.
        let requests =
            "service=\"attacked-fullnat\",port=\"tcp-echo\",protocol=\"TCP\",direction=\"request\"";
        let forwarded = now.grown(&before, "tidegate_service_packets_total", requests);
        forwarded + now.grown(&before, "tidegate_drops_total", "")
    };
    let flood = |rate| {
        let limits = Limits::full_rate(Duration::from_secs(150)).at(rate);
        setup.attacker.flood(Kind::Syn, &targets(&["fullnat"]), limits)
    };
    let filling = flood(30_000);
    let ports = 2.0 * SNAT_PORTS;
    wait_for("more SYNs than there are ports", Duration::from_secs(120), || {
        (spent(&setup) > ports * 1.1).then_some(())
    })
    .unwrap();
    filling.stop().unwrap();
    // The rate per family is half of this.
    let flood = flood(3_400);
    // The attacked Service must also serve its own clients. The ports are those of its only backend.
    let attacked = attacked_paths().into_iter().filter(|path| path.forwarding == "fullnat");
    let (own, others) = (Others::start(&setup.world, attacked), setup.others());
    std::thread::sleep(seconds(5, 50));
    let (own, others) = (own.finish(), others.finish());
    let sent = flood.stop().unwrap();
    println!(
        "{} spoofed SYNs at {:.0}/s to fullnat: new connections {} of {} to the same Service, {} of {} to others",
        sent.frames,
        sent.rate(),
        own.succeeded(),
        own.count(),
        others.succeeded(),
        others.count(),
    );
    let growth = setup.counters().growth(&before, 1.0);
    assert!(own.are_served(), "new connections to the same Service failed:{}{growth}", own.failures());
    assert!(others.are_served(), "new connections to others failed:{}{growth}", others.failures());
    let (broken, _) = setup.ping(|_| true);
    assert!(broken.is_empty(), "established connections broke: {broken:?}{growth}");
}

#[test]
fn unanswered_udp_flows_do_not_stop_new_connections() {
    let _machine = alone();
    let mut setup = Setup::start(SMALL_TABLE);
    let before = setup.counters();
    let during = setup.others();
    let limits = Limits::full_rate(seconds(5, 12)).at(120_000);
    let sent = setup.attacker.flood(Kind::UdpTwo, &targets(&["nat", "fullnat"]), limits).finish().unwrap();
    let during = during.finish();
    // Immediately after the flood, the tables are still full of its flows.
    let right_after = setup.others();
    let (broken, _) = setup.ping(|_| true);
    std::thread::sleep(Duration::from_secs(2));
    let right_after = right_after.finish();
    println!(
        "{} UDP datagrams at {:.0}/s, two a flow: new connections {} of {} during it, {} of {} right after it",
        sent.frames,
        sent.rate(),
        during.succeeded(),
        during.count(),
        right_after.succeeded(),
        right_after.count(),
    );
    let growth = setup.counters().growth(&before, 1.0);
    assert!(during.are_served(), "during it, new connections failed:{}{growth}", during.failures());
    assert!(right_after.are_served(), "after it, new connections failed:{}{growth}", right_after.failures());
    assert!(broken.is_empty(), "established connections broke: {broken:?}{growth}");
}

#[test]
fn path_mtu_is_reported_while_packets_expire() {
    let _machine = alone();
    let setup = Setup::start(65_536);
    let expiring = targets(&["dsr-ipip"]);
    let tunnels = all_paths().into_iter().filter(|path| path.forwarding == "dsr-ipip");
    let unknown: Vec<String> = tunnels
        .filter(|path| !(0..TRIES).any(|_| is_known_after_a_burst(&setup, &expiring, *path)))
        .map(|path| format!("{} {}", path.label(), path.family))
        .collect();
    assert!(unknown.is_empty(), "no client has the path MTU of {unknown:?}");
}

/// Lets packets expire at the gateway, and then immediately sends one datagram that does not fit the tunnel of `path`.
/// Returns whether the client's kernel then has the path MTU.
fn is_known_after_a_burst(setup: &Setup, expiring: &[Target], path: ModePath) -> bool {
    let client_host = setup.world.lab.client();
    // A full frame of 1,500 bytes.
    let length = if path.family == Family::V4 { 1_472 } else { 1_452 };
    // Keep the socket open until the answer arrives: the kernel ignores ICMP errors without a matching socket.
    let _socket = client_host.enter(|| {
        let socket = UdpSocket::bind(SocketAddr::new(client(path.family, 0), 0)).expect("a socket");
        let datagram = vec![b'm'; length];
        setup.attacker.burst(Kind::TtlOne, expiring, EXPIRING).expect("frames are sent");
        // The send fails if an earlier answer arrived late; the kernel then already has the path MTU.
        let _ = socket.send_to(&datagram, SocketAddr::new(path.vip, UDP_ECHO_PORT));
        socket
    });
    let known = || {
        let vip = path.vip.to_string();
        let route = output_of(client_host.command("ip").args(["route", "get", &vip])).ok()?;
        route.contains(" mtu ").then_some(())
    };
    wait_for("the path MTU", Duration::from_secs(1), known).is_ok()
}
