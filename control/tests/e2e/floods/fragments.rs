//! A flood of incomplete fragments, together with fragmented datagrams of other clients.
//!
//! With `net_af_packet`, the kernel reassembles IPv4 before the gateway receives a packet (`docs/floods.md`).
//! Incomplete datagrams stay in the kernel, so the gateway cannot count them. The operator sets the memory that the
//! kernel uses for them.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use tidegate_netlab::Namespace;
use tidegate_netlab::addresses::{Family, client};
use tidegate_netlab::flood::{Kind, Limits, Target};
use tidegate_netlab::modes::{ModePath, all_paths};
use tidegate_netlab::namespace::output_of;
use tidegate_netlab::wait_for;

use super::setup::{SMALL_TABLE, Setup, attacked_paths, seconds, target};
use crate::fragments::{exchange, text};
use crate::world::alone;

/// Frames of the burst. Its IPv4 half needs more than the kernel's default memory for fragments.
const BURST: u64 = 40_000;
/// Datagrams of other clients on each path, and the attempts for each: the receive ring loses frames under a flood.
const DATAGRAMS: u32 = 20;
const TRIES: u8 = 10;

fn targets() -> Vec<Target> {
    attacked_paths().into_iter().map(target).collect()
}

/// A counter of IPv4 reassembly in the kernel of this namespace (`/proc/net/snmp`).
fn reassembly(namespace: &Namespace, name: &str) -> u64 {
    let text = output_of(namespace.command("cat").arg("/proc/net/snmp")).expect("the kernel's counters");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut pairs = names.split(' ').zip(values.split(' '));
    pairs.find(|(one, _)| *one == name).and_then(|(_, value)| value.parse().ok()).expect("a number")
}

#[test]
fn ipv4_fragments_without_the_rest_stay_in_the_kernel_before_the_gateway() {
    let _machine = alone();
    let setup = Setup::start(SMALL_TABLE);
    let gateway = setup.world.lab.gateway();
    let before = (reassembly(gateway, "ReasmReqds"), setup.counters());
    let sent = setup.attacker.burst(Kind::Fragments, &targets(), BURST).expect("the burst is sent");
    let waiting = reassembly(gateway, "ReasmReqds") - before.0;
    let taken = setup.counters().grown(&before.1, "tidegate_packets_total", "direction=\"rx\"");
    let refused = reassembly(gateway, "ReasmFails");
    println!(
        "{} frames: {waiting} fragments in the kernel, {refused} refused there, {taken} frames taken",
        sent.frames
    );
    // About half of the frames are IPv4. No other program sends fragments here.
    let half = sent.frames / 2;
    assert!((half * 9 / 10..=half * 11 / 10).contains(&waiting), "{waiting} of {half}");
    assert!(refused > 0, "the kernel's memory for fragments (4 MiB) is full");
}

#[test]
fn fragmented_datagrams_survive_a_fragment_flood_with_enough_memory() {
    let _machine = alone();
    let mut setup = Setup::start(SMALL_TABLE);
    // The settings that docs/floods.md recommends.
    let sysctls = [("ipv4/ipfrag_time", "1"), ("ipv4/ipfrag_high_thresh", "268435456")];
    setup.world.lab.gateway().sysctls(&sysctls).expect("sysctls of the gateway's namespace");
    let flood = setup.attacker.flood(Kind::Fragments, &targets(), Limits::full_rate(seconds(60, 120)));
    let gateway = setup.world.lab.gateway();
    wait_for("a flood", Duration::from_secs(60), || {
        (reassembly(gateway, "ReasmReqds") > BURST).then_some(())
    })
    .expect("fragments come");
    let is_tested =
        |path: &ModePath| path.family == Family::V4 && ["nat", "fullnat"].contains(&path.forwarding);
    let mut lost = Vec::new();
    for (port, path) in (43_000..).zip(all_paths().into_iter().filter(is_tested)) {
        let answered = setup
            .world
            .lab
            .client()
            .enter(|| count_answered(path, SocketAddr::new(client(path.family, 9), port)));
        if answered < DATAGRAMS {
            lost.push(format!("{} {}: {answered} of {DATAGRAMS}", path.label(), path.family));
        }
    }
    let ran = flood.runs();
    let sent = flood.stop().expect("the flood is sent");
    println!(
        "{} fragments at {:.0}/s, still sent at the end: {ran}; lost: {lost:?}",
        sent.frames,
        sent.rate()
    );
    assert!(lost.is_empty(), "{lost:?}");
    let (broken, _) = setup.ping(|_| true);
    assert!(broken.is_empty(), "established connections broke: {broken:?}");
}

/// The number of datagrams of 3,000 bytes that are answered.
fn count_answered(path: ModePath, source: SocketAddr) -> u32 {
    let socket = UdpSocket::bind(source).expect("an address of the client");
    socket.connect(path.udp_echo()).expect("a route to the VIP");
    let answered = |n: &u32| {
        let data = text(3_000, *n);
        (0..TRIES).any(|_| {
            let send = |data: &[u8]| drop(socket.send(data));
            exchange(&socket, &data, Duration::from_millis(500), send).is_some()
        })
    };
    (0..DATAGRAMS).filter(answered).count() as u32
}
