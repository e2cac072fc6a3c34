//! A drained gateway is not ready, still forwards packets, and reports when no packet arrives any more. An operator's
//! drain survives a restart; that of SIGTERM does not.

use std::time::Duration;

use tidegate_netlab::addresses::{Family, client};
use tidegate_netlab::gateway::config_of;
use tidegate_netlab::modes::{ModePath, all_paths, manifests};
use tidegate_netlab::{GatewayOptions, wait_for};

use crate::restart::{Ports, Stream};
use crate::world::{World, beside_others};

/// A gateway with these keys in `drain`.
fn world(drain: &str) -> (World, ModePath) {
    let mut world = World::start(2, GatewayOptions::default(), &manifests(&[1, 2]));
    world.take_gateway().stop().expect("the gateway stops");
    let configured = config_of(&world.lab);
    let text = std::fs::read_to_string(&configured).expect("it was written");
    std::fs::write(&configured, format!("{text}drain: {{{drain}}}\n")).expect("written");
    world.launch_gateway();
    world.gateway_mut().wait_until_ready().expect("ready");
    let path = all_paths().into_iter().find(|path| path.forwarding == "nat" && path.family == Family::V4);
    let path = path.expect("there is a path in mode nat");
    world.wait_until_served(path);
    (world, path)
}

fn state(world: &World) -> serde_json::Value {
    let status = world.gateway().query(&["status", "-o", "json"]).expect("a status");
    serde_json::from_str::<serde_json::Value>(&status).expect("JSON")["drain"].clone()
}

fn stream(world: &World, path: ModePath) -> Stream {
    Stream::start(world.lab.client(), client(Family::V4, 4), path.udp_echo(), Ports::One)
}

#[test]
fn a_drained_gateway_still_forwards_and_reports_when_traffic_stops() {
    let _machine = beside_others();
    let (mut world, path) = world("quiet: 1s");
    let packets = stream(&world, path);
    let error = world.gateway().query(&["drain", "--gateway", "--timeout", "2s"]).expect_err("packets come");
    let error = format!("{error:#}");
    assert!(error.contains("exit status: 3") && error.contains("gateway/lab still draining: "), "{error}");
    assert_eq!(
        ["/readyz", "/healthz", "/livez"].map(|path| world.gateway().probe(path)),
        [Some(503), Some(503), Some(200)]
    );
    let drained = std::time::Instant::now();
    packets.answered_after(&world, drained);
    let drain = state(&world);
    assert_eq!(
        (drain["state"].as_str(), drain["by"][0].as_str()),
        (Some("draining"), Some("command")),
        "{drain}"
    );
    assert!(drain["flows"].as_u64() > Some(0) && drain["packetsPerSecond"].as_f64() > Some(0.0), "{drain}");
    assert!(world.connect(path, 5).is_ok(), "new flows are forwarded too");
    let metric =
        |state: &str| world.gateway().metric("tidegate_gateway_state", &[&format!("state=\"{state}\"")]);
    assert_eq!([metric("draining").unwrap(), metric("serving").unwrap()], [1.0, 0.0]);

    drop(packets);
    let done = world
        .gateway()
        .query(&["drain", "--gateway", "--timeout", "60s"])
        .expect("no packet arrives any more");
    assert_eq!(done, "gateway/lab drained\n");

    // An operator's drain survives the process, however it ends.
    world.take_gateway().kill();
    world.launch_gateway();
    let again = wait_for("the gateway to be drained again", Duration::from_secs(60), || {
        (world.gateway().probe("/livez") == Some(200) && state(&world)["state"] == "drained").then_some(())
    });
    again.unwrap_or_else(|error| panic!("{error:#}\n{}", world.gateway().log_tail(30)));
    world.wait_until_served(path);
    assert_eq!(world.gateway().probe("/readyz"), Some(503), "it still forwards");

    // There is nothing to wait for, so a stop is immediate, and the operator's drain remains.
    world.wait_until("the drain to be over again", || (state(&world)["state"] == "drained").then_some(()));
    assert!(world.take_gateway().stop().expect("it ends").success());
    world.launch_gateway();
    world.wait_until("the socket", || world.gateway().query(&["status"]).ok());
    assert_eq!(
        world.gateway().query(&["undrain", "--gateway"]).expect("it serves"),
        "gateway/lab undrained\n"
    );
    world.gateway_mut().wait_until_ready().expect("ready");
    assert_eq!(state(&world)["state"], "serving");
    let error = world.gateway().query(&["undrain", "--gateway"]).expect_err("it is not drained");
    assert!(format!("{error:#}").contains("gateway lab is not drained"), "{error:#}");
}

#[test]
fn sigterm_waits_for_traffic_to_stop_or_the_timeout_and_is_not_persisted() {
    let _machine = beside_others();
    let (mut world, path) = world("quiet: 1s, stopTimeout: 10s");
    let packets = stream(&world, path);
    let gateway = world.take_gateway();
    let stopping = std::thread::spawn(move || {
        let ended = gateway.stop();
        (ended, std::time::Instant::now())
    });
    let signalled = std::time::Instant::now();
    // Packets are still forwarded two seconds after the signal: the quiet period has passed, but packets still arrive.
    let after = packets.answered_after(&world, signalled + Duration::from_secs(2));
    assert!(!stopping.is_finished(), "it waits");
    drop(packets);
    let (ended, at) = stopping.join().expect("no panic");
    assert!(ended.expect("it ends").success());
    assert!(at > after);
    world.launch_gateway();
    world.gateway_mut().wait_until_ready().expect("the drain of a signal is not kept");

    // A second signal ends the wait.
    let packets = stream(&world, path);
    let since = std::time::Instant::now();
    packets.answered_after(&world, since);
    let mut gateway = world.take_gateway();
    gateway.terminate();
    world.wait_until("the drain of the signal", || (gateway.probe("/readyz") == Some(503)).then_some(()));
    assert!(gateway.runs());
    assert!(gateway.stop().expect("it ends").success());
    drop(packets);
}
