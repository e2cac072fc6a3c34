//! `loadBalancerSourceRanges` in traffic: packets of other clients are dropped and counted, and a change of the ranges
//! affects known flows.

use std::net::SocketAddr;

use tidegate_netlab::GatewayOptions;
use tidegate_netlab::addresses::{self as plan, Family};
use tidegate_netlab::client::{EchoConnection, SILENCE, udp_request_within};
use tidegate_netlab::manifests::Manifest;
use tidegate_netlab::modes::{ModePath, all_paths, manifests};

use crate::world::{World, assert_alive, beside_others};

/// The numbers of clients in the first ranges, in the second, in both, in none.
const FIRST: u8 = 1;
const SECOND: u8 = 2;
const BOTH: u8 = 3;
const NONE: u8 = 4;

#[test]
fn clients_outside_the_source_ranges_get_nothing_and_are_counted() {
    let _machine = beside_others();
    let world = World::start(2, GatewayOptions::default(), &ranged(&[FIRST, BOTH]));
    for path in all_paths() {
        let name = format!("{} {}", path.label(), path.family);
        world.wait_until(&format!("the first client of {name}"), || world.connect(path, FIRST).ok());
        request(&world, path, FIRST)
            .unwrap_or_else(|error| panic!("{name}: UDP of the first client: {error:#}"));
    }
    let before = dropped(&world);
    at_once(all_paths(), |path| {
        let name = format!("{} {}", path.label(), path.family);
        let error = connect(&world, path, NONE).expect_err("left out");
        // There is no answer, neither a SYN+ACK nor a reset.
        let timed_out = error.downcast_ref::<std::io::Error>().is_some_and(is_timeout);
        assert!(timed_out, "{name}: {error:#}");
        assert!(request(&world, path, NONE).is_err(), "{name}: UDP of an excluded client was answered");
    });
    // At least a SYN and a datagram of each path.
    let counted = dropped(&world) - before;
    assert!(counted >= 2.0 * all_paths().len() as f64, "{counted} frames were counted");
}

#[test]
fn a_change_of_the_source_ranges_ends_only_the_flows_of_excluded_clients() {
    let _machine = beside_others();
    let world = World::start(2, GatewayOptions::default(), &ranged(&[FIRST, BOTH]));
    let (mut left_out, mut stay) = (Vec::new(), Vec::new());
    for path in all_paths() {
        let what = format!("{} {}", path.label(), path.family);
        left_out.push((path, world.wait_until(&what, || world.connect(path, FIRST).ok())));
        stay.push((path, world.connect(path, BOTH).unwrap()));
    }
    assert_alive("before the change", left_out.iter_mut().chain(&mut stay));

    world.write(&ranged(&[SECOND, BOTH]));
    for path in all_paths() {
        let what = format!("the second client of {} {}", path.label(), path.family);
        stay.push((path, world.wait_until(&what, || world.connect(path, SECOND).ok())));
    }
    at_once(left_out, |(path, mut connection)| {
        let name = format!("{} {}", path.label(), path.family);
        world.wait_until(&format!("the known flow of {name} to die"), || connection.ping().err());
        assert!(connect(&world, path, FIRST).is_err(), "{name}: a new connection of an excluded client");
    });
    assert_alive("after the ranges changed", &mut stay);

    // Without ranges, every client is allowed.
    world.write(&manifests(&[1, 2]));
    for path in all_paths() {
        let what = format!("anyone over {} {}", path.label(), path.family);
        world.wait_until(&what, || world.connect(path, NONE).ok());
    }
    assert_alive("after the ranges were removed", &mut stay);
}

/// All Services, limited to these clients. Both families are listed, so that no family is excluded as a whole.
fn ranged(clients: &[u8]) -> Vec<Manifest> {
    let ranges = clients.iter().flat_map(|n| {
        Family::BOTH.map(|family| {
            let length = if family == Family::V4 { 32 } else { 128 };
            format!("{}/{length}", plan::client(family, *n))
        })
    });
    let ranges: Vec<String> = ranges.collect();
    let mut services = manifests(&[1, 2]);
    services.iter_mut().for_each(|service| service.source_ranges.clone_from(&ranges));
    services
}

/// Opens a connection. Fails if there is no answer within [`SILENCE`].
fn connect(world: &World, path: ModePath, n: u8) -> anyhow::Result<EchoConnection> {
    let source = SocketAddr::new(plan::client(path.family, n), 0);
    world.lab.client().enter(|| EchoConnection::connect_within(SILENCE, source, path.tcp_echo()))
}

/// Sends a datagram, with the same time limit.
fn request(world: &World, path: ModePath, n: u8) -> anyhow::Result<()> {
    let source = SocketAddr::new(plan::client(path.family, n), 0);
    world.lab.client().enter(|| udp_request_within(SILENCE, source, path.udp_echo(), "let in?")).map(drop)
}

/// Runs a function for all items in parallel, so that timeouts do not add up.
fn at_once<T: Send>(all: Vec<T>, each: impl Fn(T) + Sync) {
    std::thread::scope(|scope| {
        for one in all {
            let each = &each;
            scope.spawn(move || each(one));
        }
    });
}

fn dropped(world: &World) -> f64 {
    world.gateway().metric("tidegate_drops_total", &["reason=\"source_range\""]).expect("metrics answer")
}

fn is_timeout(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::TimedOut
}
