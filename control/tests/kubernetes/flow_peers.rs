//! Gateways that share flows find each other by their GatewayStatus.

use rustix::process::Signal;
use serde_json::Value;

use crate::world::{SEEN, Setting, World, service, slice, text};

const KIND: (&str, &str) = ("tidegate.dev/v1alpha1", "GatewayStatus");

/// A gateway that shares flows at its own loopback address.
fn setting(gateway: u8) -> Setting {
    let (listen, key) = (socket(gateway), "5a".repeat(32));
    Setting {
        document: format!("flowSharing: {{mode: nat, listen: \"{listen}\", key: {{value: \"{key}\"}}}}"),
        ..Setting::default()
    }
}

fn socket(gateway: u8) -> String {
    format!("127.0.0.{gateway}:10358")
}

fn status(world: &World, gateway: &str) -> Value {
    world.gateway(gateway).query("status").unwrap_or_default()
}

/// The state of the peer at an address, as a gateway shows it; empty if there is no such peer.
fn peer(world: &World, gateway: &str, address: &str) -> String {
    let status = status(world, gateway);
    let peers = status["flowSharing"]["peers"].as_array().cloned().unwrap_or_default();
    let one = peers.into_iter().find(|peer| peer["address"] == address).unwrap_or_default();
    text(&one["state"])
}

fn until(world: &World, gateway: &str, address: &str, state: &str) {
    let what = format!("{gateway} to show the peer {address} as {state:?}");
    world.until(&what, || (peer(world, gateway, address) == state).then_some(()));
}

/// The lines of a gateway's status about flow sharing under DEGRADED.
fn degraded(world: &World, gateway: &str) -> Vec<String> {
    let degraded = status(world, gateway)["degraded"].as_array().cloned().unwrap_or_default();
    degraded.iter().map(text).filter(|line| line.starts_with("flow sharing")).collect()
}

#[test]
fn gateways_discover_flow_peers_and_keep_them_without_the_api_server() {
    let (first, second) = (&socket(1), &socket(2));
    let mut world = World::new();
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    world.start_with("edge-1", &setting(1));
    world.until("the address in the GatewayStatus", || {
        let gateway = world.api.get(KIND.0, KIND.1, "", "edge-1")?;
        (gateway["status"]["flowSharingAddress"] == *first).then_some(())
    });
    let alone = degraded(&world, "edge-1");
    assert!(alone.iter().any(|line| line.contains("no other gateway has a GatewayStatus")), "{alone:?}");

    world.start_with("edge-2", &setting(2));
    until(&world, "edge-1", second, "up");
    until(&world, "edge-2", first, "up");
    assert_eq!(status(&world, "edge-1")["flowSharing"]["findsPeers"], true);
    assert_eq!(degraded(&world, "edge-1"), [""; 0]);

    // Known peers are kept while the API server is away.
    world.api.refuse_connections(true);
    world.until("the loss of the API server", || {
        (world.gateway("edge-1").source()["connected"] == false).then_some(())
    });
    assert_eq!((peer(&world, "edge-1", second), peer(&world, "edge-2", first)), ("up".into(), "up".into()));
    world.api.refuse_connections(false);

    // The peer is discovered again before anybody has noticed that it was away.
    world.end("edge-2", Signal::KILL, SEEN).expect("it ends");
    until(&world, "edge-1", second, "connecting");
    world.start_again("edge-2");
    until(&world, "edge-1", second, "up");
    until(&world, "edge-2", first, "up");

    // A stopped peer need not answer, and is not forgotten.
    world.end("edge-2", Signal::TERM, SEEN).expect("it ends");
    until(&world, "edge-1", second, "absent");
    assert!(!degraded(&world, "edge-1").iter().any(|line| line.contains(second.as_str())));
    world.start_again("edge-2");
    until(&world, "edge-1", second, "up");

    world.end("edge-2", Signal::TERM, SEEN).expect("it ends");
    assert!(world.api.delete(KIND.0, KIND.1, "", "edge-2"));
    until(&world, "edge-1", second, "");
}

#[test]
fn a_gateway_with_an_invalid_address_is_reported_and_others_are_peers() {
    let mut world = World::new();
    for (name, address) in [("edge-8", "somewhere"), ("edge-9", "192.0.2.200:10358")] {
        world.apply(&format!(
            "{{apiVersion: {}, kind: {}, metadata: {{name: {name}}}, spec: {{gateway: {name}}}}}\n",
            KIND.0, KIND.1
        ));
        let edited = world.api.edit(KIND.0, KIND.1, "", name, |gateway| {
            gateway["status"] = serde_json::json!({
                "flowSharingAddress": address, "lastHeartbeat": "2026-01-01T00:00:00Z"
            });
        });
        edited.expect("written");
    }
    world.start_with("edge-1", &setting(1));
    until(&world, "edge-1", "192.0.2.200:10358", "connecting");
    let reported = degraded(&world, "edge-1");
    assert!(
        reported.iter().any(|line| line.contains("edge-8") && line.contains("somewhere")),
        "{reported:?}"
    );
}
