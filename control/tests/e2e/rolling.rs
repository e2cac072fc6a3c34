//! The history of a gateway does not affect its choices. After a kill and a restart that follow a rolling update, it
//! sends every connection to the same backend as before, and so does a gateway that has never seen the update.

use crate::choice::replayed;
use crate::world::{World, alone, assert_alive};
use std::net::SocketAddr;
use tidegate::netlab::GatewayOptions;
use tidegate::netlab::addresses::{self as plan, CLIENT_ADDRESSES, Family, client};
use tidegate::netlab::manifests::{EndpointSpec, EndpointState};
use tidegate::netlab::modes::{ModePath, all_paths, manifests};

/// Servers 1 to 10 are the backends before the update, servers 11 to 20 after it.
const BACKENDS: u8 = 10;
/// Connections that are open when the gateway is killed.
const CONNECTIONS: u16 = 300;
/// The number of 5-tuples that are compared between two gateways.
const QUESTIONS: u16 = 2_000;

#[test]
fn kill_9_after_a_rolling_update_breaks_no_dsr_connection() {
    let _turn = alone();
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
    let broken: Vec<String> = open
        .iter_mut()
        .filter_map(|(path, tell)| {
            let error = tell.ping().err()?;
            Some(format!("{} {} to {}: {error:#}", path.label(), path.family, tell.told.backend))
        })
        .collect();
    let first: Vec<_> = broken.iter().take(5).collect();
    assert!(broken.is_empty(), "{} of {CONNECTIONS} connections broke, such as {first:#?}", broken.len());
}

#[test]
fn a_gateway_that_saw_a_rolling_update_chooses_as_one_that_did_not() {
    let _turn = alone();
    let world = rolled();
    let path = dsr_paths()[0];
    let source = client(path.family, 8);
    let fresh = replayed(&world, source, path.tell(), QUESTIONS);
    // Each question is one process, which takes some milliseconds.
    let rolled: Vec<String> = (0..QUESTIONS).map(|n| asked(&world, source_of(source, n), path)).collect();
    let differing: Vec<_> = (0..).zip(fresh.iter().zip(&rolled)).filter(|(_, (a, b))| a != b).collect();
    let first: Vec<_> = differing.iter().take(5).collect();
    assert!(differing.is_empty(), "{} of {QUESTIONS} 5-tuples, such as {first:?}", differing.len());
}

/// The backend that the running gateway names.
fn asked(world: &World, source: SocketAddr, path: ModePath) -> String {
    let (from, to) = (source.to_string(), path.tell().to_string());
    let said =
        world.gateway().ask(&["explain", "--proto", "tcp", "--src", &from, "--dst", &to, "-o", "json"]);
    let said: serde_json::Value = serde_json::from_str(&said.expect("the daemon answers")).expect("JSON");
    said["backend"].as_str().expect("a backend").to_owned()
}

fn source_of(source: std::net::IpAddr, n: u16) -> SocketAddr {
    SocketAddr::new(source, crate::choice::FIRST_PORT + n)
}

/// A gateway that has replaced every backend of its DSR Services, one by one. The old ones are still draining, so it
/// remembers state that a new gateway has never seen.
fn rolled() -> World {
    let all: Vec<u8> = (1..=2 * BACKENDS).collect();
    let (old, new) = all.split_at(usize::from(BACKENDS));
    let mut services = manifests(old);
    services.retain(|service| service.forwarding.starts_with("dsr"));
    let options = GatewayOptions { static_servers: 2 * BACKENDS, ..GatewayOptions::default() };
    let world = World::start(2 * BACKENDS, options, &services);
    for step in 0..old.len() {
        for service in &mut services {
            for family in Family::BOTH {
                let (leaves, comes) = (plan::server(family, old[step]), plan::server(family, new[step]));
                if let Some(endpoint) = service.endpoints.iter_mut().find(|e| e.address == leaves) {
                    endpoint.state = EndpointState::Terminating;
                    service.endpoints.push(EndpointSpec::ready(comes));
                }
            }
        }
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
