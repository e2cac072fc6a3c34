//! Rolling updates: all backends are replaced, several at a time.
//!
//! Connections to draining backends continue, in every mode, whether the gateway tracks all flows or only those in
//! flux. The history of a gateway does not affect its choices: after a kill and a restart, it selects the same backend
//! for every connection as before, and so does a gateway that has never seen the update.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use tidegate_netlab::GatewayOptions;
use tidegate_netlab::addresses::{self as plan, CLIENT_ADDRESSES, Family, TCP_ECHO_PORT, client};
use tidegate_netlab::client::EchoConnection;
use tidegate_netlab::manifests::{EndpointSpec, EndpointState, Manifest};
use tidegate_netlab::modes::{ModePath, all_paths, manifests, manifests_of, tunnel_paths};

use crate::choice::replayed;
use crate::floods::setup::long;
use crate::world::{World, alone, assert_alive, broken, lab_with};

/// Servers 1 to 10 are the backends before the update, servers 11 to 20 after it.
const BACKENDS: u8 = 10;
/// Connections that are open when the gateway is killed.
const CONNECTIONS: u16 = 300;
/// The number of 5-tuples that are compared between two gateways.
const TUPLES: u16 = 2_000;

#[test]
fn kill_9_after_a_rolling_update_breaks_no_dsr_connection() {
    let _machine = alone();
    let mut world = rolled();
    let paths = dsr_paths();
    let mut open: Vec<(ModePath, _)> = (0..CONNECTIONS)
        .map(|n| {
            let path = paths[usize::from(n) % paths.len()];
            // The client's number is below 16, so it fits in a byte.
            let number = (n / 8 % u16::from(CLIENT_ADDRESSES)) as u8;
            (path, world.connect(path, number).expect("a new connection"))
        })
        .collect();
    assert_alive("before the gateway was killed", &mut open);
    world.take_gateway().kill();
    world.launch_gateway();
    world.gateway_mut().wait_until_ready().unwrap();
    let broken = broken(&mut open);
    let first: Vec<_> = broken.iter().take(5).collect();
    assert!(broken.is_empty(), "{} of {CONNECTIONS} connections broke, such as {first:#?}", broken.len());
}

#[test]
fn a_rolling_update_does_not_change_later_choices() {
    let _machine = alone();
    let world = rolled();
    let path = dsr_paths()[0];
    let source = client(path.family, 8);
    let fresh = replayed(&world, source, path.tcp_echo(), TUPLES);
    // Each query is one process, which takes some milliseconds.
    let rolled: Vec<String> = (0..TUPLES).map(|n| explained(&world, source_of(source, n), path)).collect();
    let differing: Vec<_> = (0..).zip(fresh.iter().zip(&rolled)).filter(|(_, (a, b))| a != b).collect();
    let first: Vec<_> = differing.iter().take(5).collect();
    assert!(differing.is_empty(), "{} of {TUPLES} 5-tuples, such as {first:?}", differing.len());
}

/// The number of backends that one step of [`no_connection_breaks_while_all_backends_are_replaced`] replaces.
const AT_ONCE: usize = 7;

/// The short form has 14 backends and 480 connections, the long form 100 and 10,000.
#[test]
fn no_connection_breaks_while_all_backends_are_replaced() {
    let _machine = alone();
    let (backends, connections) = if long() { (100, 10_000) } else { (14, 480) };
    let all: Vec<u8> = (1..=2 * backends).collect();
    let (old, new) = all.split_at(usize::from(backends));
    let paths = live_paths();
    let served = [&paths[..], &choosers()].concat();
    let mut services = manifests_of(&served, old);
    for service in &mut services {
        service.ports.retain(|port| port.port == TCP_ECHO_PORT);
    }
    for service in services.iter_mut().filter(|service| service.name == MAGLEV) {
        service.annotations.push(("tidegate.dev/scheduler", "maglev".to_owned()));
    }
    for service in services.iter_mut().filter(|service| service.name.ends_with(ON_CHANGE)) {
        service.annotations.push(("tidegate.dev/flow-tracking", "on-change".to_owned()));
    }
    let options = GatewayOptions {
        static_servers: 2 * backends,
        drain_timeout: Duration::from_secs(3_600),
        // The programs of 200 servers share two cores.
        health_interval: Duration::from_millis(if long() { 20_000 } else { 500 }),
        ..GatewayOptions::default()
    };
    let vips = served.iter().filter(|path| path.forwarding.starts_with("dsr")).map(|path| path.vip).collect();
    let world = World::over(lab_with(2 * backends, vips), options, &services, "");
    let mut open = opened(&world, &paths, connections);
    assert_alive("before the update", &mut open);
    let mut choices = choosers().map(|path| vec![chosen(&world, path)]);
    for (step, leaving) in old.chunks(AT_ONCE).enumerate() {
        let coming = &new[step * AT_ONCE..][..leaving.len()];
        replace(&mut services, leaving, coming);
        world.write(&services);
        let serving: Vec<u8> = old[step * AT_ONCE + leaving.len()..]
            .iter()
            .chain(&new[..step * AT_ONCE + leaving.len()])
            .copied()
            .collect();
        for &path in &paths {
            world.wait_until_active(path, &serving);
        }
        assert_alive("while backends terminate", &mut open);
        for service in &mut services {
            service.endpoints.retain(|endpoint| endpoint.state == EndpointState::Ready);
        }
        world.write(&services);
        for (choices, path) in choices.iter_mut().zip(choosers()) {
            choices.push(chosen(&world, path));
        }
        // Connections that start during the change must survive too.
        open.extend(opened(&world, &paths, connections.min(2_500) / 10));
        assert_alive("after a step of the update", &mut open);
        println!("step {step}: {} connections live", open.len());
    }
    for (path, choices) in choosers().iter().zip(&choices) {
        println!("{} alone, without tracking: {}", path.service, moves(choices));
    }
    let left: Vec<String> = old.iter().map(|n| format!("backend-{n}")).collect();
    let at_old = open.iter().filter(|(_, connection)| left.contains(&connection.answer.backend)).count();
    println!("{} connections live, {at_old} of them at backends that new flows no longer reach", open.len());
    assert!(at_old >= connections, "the first ones all began at the old backends");
}

const MAGLEV: &str = "dsr-l2-maglev";

/// Services that show the effect of hash-only selection on flows: the default scheduler, and Maglev.
fn choosers() -> [ModePath; 2] {
    let path = dsr_paths()[0];
    let family = path.family;
    let of = |service, vip| ModePath { service, vip: plan::on_link_vip(family, vip), ..path };
    [of("dsr-l2-rendezvous", 3), of(MAGLEV, 4)]
}

/// The backends of many 5-tuples at a gateway without any history.
fn chosen(world: &World, path: ModePath) -> Vec<String> {
    replayed(world, client(path.family, 8), path.tcp_echo(), TUPLES)
}

/// How many flows changed their backend, and how many of them were at a backend that remains: each of these would
/// break.
fn moves(choices: &[Vec<String>]) -> String {
    let (mut moved, mut left_one_that_stays) = (0, 0);
    for step in choices.windows(2) {
        let serving: BTreeSet<&String> = step[1].iter().collect();
        for (before, _) in step[0].iter().zip(&step[1]).filter(|(before, after)| before != after) {
            moved += 1;
            left_one_that_stays += usize::from(serving.contains(before));
        }
    }
    let steps = choices.len() - 1;
    let share = |flows: usize| flows as f64 * 100.0 / (steps * usize::from(TUPLES)) as f64;
    format!(
        "each of {steps} steps would break {:.1} % of the connections, {:.1} % of them at backends that stay",
        share(moved),
        share(left_one_that_stays)
    )
}

/// The suffix of Services that track only flows in flux.
const ON_CHANGE: &str = "-on-change";

/// `dsr-l2` and `dsr-gue` with both kinds of tracking, `nat` and `fullnat`.
fn live_paths() -> Vec<ModePath> {
    let dual = |path: &ModePath| ["dsr-l2", "gue-1", "nat", "fullnat"].contains(&path.service);
    let always: Vec<ModePath> = [all_paths(), tunnel_paths()].concat().into_iter().filter(dual).collect();
    let on_change = always.iter().filter_map(|path| match path.service {
        "dsr-l2" => {
            Some(ModePath { service: "dsr-l2-on-change", vip: plan::on_link_vip(path.family, 2), ..*path })
        }
        "gue-1" => {
            Some(ModePath { service: "gue-on-change", vip: plan::routed_vip(path.family, 40), ..*path })
        }
        _ => None,
    });
    on_change.chain(always.iter().copied()).collect()
}

/// This number of connections, spread over the paths and the client's addresses.
fn opened(world: &World, paths: &[ModePath], connections: usize) -> Vec<(ModePath, EchoConnection)> {
    let connect = |n: usize| {
        let path = paths[n % paths.len()];
        let number = u8::try_from(n / paths.len() % usize::from(CLIENT_ADDRESSES)).expect("below 16");
        (path, world.connect(path, number).unwrap_or_else(|error| panic!("{}: {error:#}", path.label())))
    };
    (0..connections).map(connect).collect()
}

/// Lets the endpoints of `leaving` terminate, and adds those of `coming`.
fn replace(services: &mut [Manifest], leaving: &[u8], coming: &[u8]) {
    for service in services {
        for family in Family::BOTH {
            for (old, new) in leaving.iter().zip(coming) {
                let address = plan::server(family, *old);
                if let Some(endpoint) = service.endpoints.iter_mut().find(|e| e.address == address) {
                    endpoint.state = EndpointState::Terminating;
                    service.endpoints.push(EndpointSpec::ready(plan::server(family, *new)));
                }
            }
        }
    }
}

/// The backend that the running gateway selects.
fn explained(world: &World, source: SocketAddr, path: ModePath) -> String {
    let (from, to) = (source.to_string(), path.tcp_echo().to_string());
    let answer =
        world.gateway().query(&["explain", "--proto", "tcp", "--src", &from, "--dst", &to, "-o", "json"]);
    let answer: serde_json::Value = serde_json::from_str(&answer.expect("the daemon answers")).expect("JSON");
    answer["backend"].as_str().expect("a backend").to_owned()
}

fn source_of(source: std::net::IpAddr, n: u16) -> SocketAddr {
    SocketAddr::new(source, crate::choice::FIRST_PORT + n)
}

/// A gateway that has replaced every backend of its DSR Services, one by one. The old ones are still draining, so it
/// has state that a new gateway has never seen.
fn rolled() -> World {
    let all: Vec<u8> = (1..=2 * BACKENDS).collect();
    let (old, new) = all.split_at(usize::from(BACKENDS));
    let mut services = manifests(old);
    services.retain(|service| service.forwarding.starts_with("dsr"));
    let options = GatewayOptions { static_servers: 2 * BACKENDS, ..GatewayOptions::default() };
    let world = World::start(2 * BACKENDS, options, &services);
    for step in 0..old.len() {
        replace(&mut services, &old[step..=step], &new[step..=step]);
        world.write(&services);
        let serving: Vec<u8> = old[step + 1..].iter().chain(&new[..=step]).copied().collect();
        for path in dsr_paths() {
            world.wait_until_active(path, &serving);
        }
        for service in &mut services {
            service.endpoints.retain(|endpoint| endpoint.state == EndpointState::Ready);
        }
        world.write(&services);
    }
    world
}

fn dsr_paths() -> Vec<ModePath> {
    all_paths().into_iter().filter(|path| path.forwarding.starts_with("dsr")).collect()
}
