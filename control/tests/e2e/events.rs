//! A change of state is one line of the log and one event, which survives a restart. `deploy/prometheus` has an alert
//! for each of these changes, whose tests `promtool` runs.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use serde_json::Value;
use tidegate_netlab::addresses::client;
use tidegate_netlab::client::{EchoConnection, SILENCE};
use tidegate_netlab::gateway::manifests_of;
use tidegate_netlab::modes::{ModePath, all_paths, manifests};
use tidegate_netlab::namespace::output_of;
use tidegate_netlab::{Gateway, GatewayOptions, server};

use crate::world::{World, alone, beside_others};

/// The events with this reason, and how many lines of the log have it.
pub(crate) fn recorded(gateway: &Gateway, reason: &str) -> (Vec<Value>, usize) {
    let answer = gateway.query(&["events", "-o", "json"]).unwrap_or_else(|error| panic!("{error:#}"));
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    let events = answer["items"].as_array().expect("a list").iter();
    let events = events.filter(|event| event["reason"] == reason).cloned().collect();
    (events, lines(&gateway.log(), reason))
}

/// The number of lines of the log of an event with this reason.
pub(crate) fn lines(log: &str, reason: &str) -> usize {
    log.lines().filter(|line| line.contains(&format!("event=\"{reason}\""))).count()
}

/// How many events each pair of a Service and an object has.
fn by_object(events: &[Value]) -> BTreeMap<(String, String), usize> {
    let mut counts = BTreeMap::new();
    for event in events {
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        *counts.entry((text("service"), text("name"))).or_default() += 1;
    }
    counts
}

fn on_switch(world: &World, arguments: &str) {
    let namespace = format!("{}-switch", world.lab.id());
    let mut command = Command::new("ip");
    output_of(command.args(["-n", &namespace]).args(arguments.split(' '))).expect("the switch");
}

#[test]
fn a_killed_backend_a_moved_manifest_and_a_lost_link_are_one_event_each() {
    let _machine = alone();
    let services = manifests(&[1, 2]);
    let mut world = World::start(2, GatewayOptions::default(), &services);
    for path in all_paths() {
        world.wait_until_used(path, &server::name(2));
    }
    assert_eq!(recorded(world.gateway(), "GatewayStarted").0.len(), 1);

    world.lab.server_mut(2).kill();
    let is_down = |path: &ModePath| {
        world.wait_until_active(*path, &[1]);
    };
    all_paths().iter().for_each(is_down);
    let (down, logged) = recorded(world.gateway(), "BackendDown");
    assert!(!down.is_empty() && logged == down.len(), "{logged} lines: {down:?}");
    assert!(by_object(&down).values().all(|count| *count == 1), "{down:?}");
    for event in &down {
        let message = event["message"].as_str().unwrap_or_default();
        assert!(
            message.starts_with("backend down: health check: ") && message.ends_with(" left"),
            "{message}"
        );
    }
    let backends = world.gateway().query(&["backends"]).expect("backends");
    assert!(backends.lines().next().is_some_and(|head| head.contains("SINCE")), "{backends}");
    assert!(!backends.contains("<unknown>"), "{backends}");

    let moved = &services[0];
    let manifest = manifests_of(&world.lab).join(format!("{}.yaml", moved.name));
    fs::rename(&manifest, world.lab.directory().join("moved.yaml")).expect("the manifest is there");
    let withdrawn = world.wait_until("the Service to be withdrawn", || {
        Some(recorded(world.gateway(), "ServiceWithdrawn")).filter(|(events, _)| !events.is_empty())
    });
    let (events, logged) = &withdrawn;
    assert_eq!((events.len(), *logged), (1, 1), "{events:?}");
    assert_eq!(events[0]["service"], format!("lab/{}", moved.name), "{events:?}");

    on_switch(&world, "link set p-gateway down");
    world.wait_until("the event", || (!recorded(world.gateway(), "LinkDown").0.is_empty()).then_some(()));
    on_switch(&world, "link set p-gateway up");
    world.wait_until("the event", || (!recorded(world.gateway(), "LinkUp").0.is_empty()).then_some(()));
    for reason in ["LinkDown", "LinkUp"] {
        let (events, logged) = recorded(world.gateway(), reason);
        assert_eq!((events.len(), logged), (1, 1), "{events:?}");
        assert_eq!(events[0]["name"], "uplink");
    }
    let counted =
        world.gateway().metric("tidegate_recorded_events_total", &["reason=\"LinkDown\""]).expect("metrics");
    assert_eq!(counted, 1.0);

    // The next process has them too.
    world.take_gateway().stop().expect("the gateway stops");
    world.launch_gateway();
    world.gateway_mut().wait_until_ready().expect("the gateway is ready");
    let of_service = format!("lab/{}", moved.name);
    let query = ["events", "--service", &of_service, "--since", "1h"];
    let kept = world.gateway().query(&query).expect("events");
    assert!(kept.contains("ServiceWithdrawn") && !kept.contains("LinkDown"), "{kept}");
    assert_eq!(recorded(world.gateway(), "LinkDown").0.len(), 1);
    assert_eq!(recorded(world.gateway(), "GatewayStarted").0.len(), 2);
}

#[test]
fn a_full_flow_table_is_one_event_and_one_line() {
    let _machine = beside_others();
    let options = GatewayOptions { flow_entries: 1024, ..GatewayOptions::default() };
    let world = World::start(1, options, &manifests(&[1]));
    let is_nat = |path: &ModePath| path.forwarding == "nat";
    let path = all_paths().into_iter().find(is_nat).expect("nat");
    drop(world.wait_until_served(path));
    let source = SocketAddr::new(client(path.family, 9), 0);
    let mut open = Vec::new();
    world.lab.client().enter(|| {
        // The next connection gets no answer once the table is full.
        while let Ok(connection) = EchoConnection::connect_within(SILENCE, source, path.tcp_echo()) {
            open.push(connection);
            assert!(open.len() < 4096, "the table has 1024 entries");
        }
    });
    let (events, _) = world.wait_until("the event", || {
        Some(recorded(world.gateway(), "FlowTableFull")).filter(|(events, _)| !events.is_empty())
    });
    let reasons: Vec<&str> = events.iter().filter_map(|event| event["fields"]["reason"].as_str()).collect();
    assert_eq!(reasons.len(), events.len(), "{events:?}");
    for reason in &reasons {
        assert_eq!(reasons.iter().filter(|other| *other == reason).count(), 1, "{events:?}");
        let dropped = world.gateway().metric("tidegate_drops_total", &[&format!("reason=\"{reason}\"")]);
        assert!(dropped.expect("metrics") > 0.0, "{reason}");
    }
    let (events, logged) = recorded(world.gateway(), "FlowTableFull");
    assert_eq!(events.len(), logged, "{events:?}");
}
