//! A failed backend is removed as fast as its health checks allow, and other connections are not affected.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tidegate_netlab::addresses::client;
use tidegate_netlab::client::{Load, spread, udp_request};
use tidegate_netlab::modes::{all_paths, manifests};
use tidegate_netlab::{Gateway, GatewayOptions, server, wait_for};

use crate::world::{World, assert_alive, beside_others};

/// The time that a machine with two busy cores may add to the duration of the checks.
const SLACK: Duration = Duration::from_secs(5);

#[test]
fn a_killed_backend_is_removed_in_time_and_other_connections_survive() {
    let _machine = beside_others();
    let mut world = World::start(3, GatewayOptions::default(), &manifests(&[1, 2, 3]));
    let paths = all_paths();
    for path in &paths {
        world.wait_until_used(*path, &server::name(3));
    }
    let mut open: Vec<_> =
        paths.iter().flat_map(|path| (0..6).map(|n| (*path, world.connect(*path, n).unwrap()))).collect();
    let loads: Vec<_> = paths
        .iter()
        .map(|path| (*path, Load::start(world.lab.client(), client(path.family, 7), path.tcp_echo())))
        .collect();

    let killed_at = Instant::now();
    world.lab.server_mut(3).kill();
    let bound = world.options.detection_bound() + SLACK;
    let quiet = Duration::from_secs(1);
    for (path, load) in &loads {
        let out_after = load.until_quiet(killed_at, quiet, bound + quiet * 2).unwrap();
        assert!(out_after <= bound, "{} {}: out after {out_after:?}", path.label(), path.family);
        // All failed attempts went to the dead backend: none failed before it died.
        let early: Vec<_> =
            load.attempts().into_iter().filter(|a| a.at < killed_at && a.outcome.is_err()).collect();
        let in_flight = early.iter().filter(|a| killed_at.duration_since(a.at) < SLACK).count();
        assert_eq!(early.len(), in_flight, "{} {}: {early:?}", path.label(), path.family);
    }
    drop(loads);
    open.retain(|(_, connection)| connection.answer.backend != server::name(3));
    assert!(open.len() > paths.len(), "most connections are to others");
    assert_alive("after a backend was killed", &mut open);

    world.lab.server_mut(3).start().unwrap();
    world.lab.server_mut(3).wait_until_up().unwrap();
    for path in paths {
        world.wait_until_used(path, &server::name(3));
    }
    assert_alive("after it came back", &mut open);
}

#[test]
fn a_udp_flow_of_a_dead_backend_moves_to_a_live_one() {
    let _machine = beside_others();
    let mut world = World::start(2, GatewayOptions::default(), &manifests(&[1, 2]));
    let paths = all_paths();
    let mut flows = Vec::new();
    for (n, path) in (0..).zip(&paths) {
        // Find a source port whose flow goes to backend 2.
        let found =
            (0..64).map(|m| SocketAddr::new(client(path.family, 9), 42_000 + n * 64 + m)).find(|source| {
                let answer = udp_request(world.lab.client(), *source, path.udp_echo(), "who?").unwrap();
                spread(&[answer]).contains_key(&server::name(2))
            });
        flows.push((*path, found.expect("backend 2 gets a fair share of 64 flows")));
    }
    world.lab.server_mut(2).kill();
    for (path, source) in flows {
        let moved = wait_for("the flow to move", world.options.detection_bound() + SLACK * 5, || {
            let answer = udp_request(world.lab.client(), source, path.udp_echo(), "and now?").ok()?;
            (answer.backend == server::name(1)).then_some(())
        });
        moved.unwrap_or_else(|error| panic!("{} {}: {error:#}", path.label(), path.family));
    }
}

#[test]
fn a_reload_changes_the_check_and_if_all_fail_none_is_removed() {
    let _machine = beside_others();
    let mut world = World::start(2, GatewayOptions::default(), &manifests(&[1, 2]));
    let paths = all_paths();
    let mut open: Vec<_> = paths.iter().map(|path| (*path, world.wait_until_served(*path))).collect();
    let fails_open = |world: &World, port: &str| {
        world.gateway().metric("tidegate_health_fail_open", &[&format!("port=\"{port}\"")]).unwrap()
    };
    assert_eq!((fails_open(&world, "http"), fails_open(&world, "tcp-echo")), (0.0, 0.0));

    // Ports 80 and 8080 speak HTTP. The other TCP port does not, on any backend.
    let by_http = GatewayOptions { health_protocol: "http", ..GatewayOptions::default() };
    Gateway::configure(&world.lab, &by_http).unwrap();
    world.gateway_mut().reload();
    let services = manifests(&[1]).len() as f64;
    let bound = world.options.detection_bound() + SLACK * 5;
    wait_for("every tcp-echo port to fail open", bound, || {
        (fails_open(&world, "tcp-echo") == services).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(fails_open(&world, "http"), 0.0);
    let backends = world.gateway().query(&["backends", "-o", "wide"]).unwrap();
    assert!(
        backends.contains("FailOpen") && backends.contains("Failing: the answer is not HTTP"),
        "{backends}"
    );
    for path in paths {
        for n in 1..=2 {
            world.wait_until_used(path, &server::name(n));
        }
    }
    assert_alive("while their port fails open", &mut open);
}
