//! An annotation of its GatewayStatus drains a gateway, and the status shows the progress.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::world::{SEEN, World, service, slice, text};

const KIND: (&str, &str) = ("tidegate.dev/v1alpha1", "GatewayStatus");
const KEY: &str = "tidegate.dev/drain";

/// Status, reason and message of the condition `Drained`.
fn drained(world: &World) -> (String, String, String) {
    let gateway = world.api.get(KIND.0, KIND.1, "", "edge-1").unwrap_or_default();
    let conditions = gateway["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let one = conditions.into_iter().find(|one| one["type"] == "Drained").unwrap_or_default();
    (text(&one["status"]), text(&one["reason"]), text(&one["message"]))
}

fn annotate(world: &World, value: Option<&str>) {
    let edited = world.api.edit(KIND.0, KIND.1, "", "edge-1", |gateway| match value {
        Some(value) => gateway["metadata"]["annotations"] = json!({ KEY: value }),
        None => gateway["metadata"]["annotations"] = Value::Null,
    });
    edited.expect("annotated");
}

fn until_drained_is(world: &World, what: &str, status: &str, reason: &str) -> String {
    world.until(what, || {
        let (now, why, message) = drained(world);
        ((now.as_str(), why.as_str()) == (status, reason)).then_some(message)
    })
}

fn readyz(world: &World) -> Option<u16> {
    world.http(10_001, "/readyz").map(|(code, _)| code)
}

#[test]
fn an_annotation_drains_a_gateway_over_a_restart_until_it_is_removed() {
    let mut world = World::new();
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    world.start("edge-1");
    until_drained_is(&world, "a condition of the gateway", "False", "Serving");
    world.until("it to be ready", || (readyz(&world) == Some(200)).then_some(()));

    annotate(&world, Some("yes"));
    world.until("the value to be refused", || {
        let message = drained(&world).2;
        (message.contains("\"yes\"") && message.contains("accepted: \"true\"")).then_some(())
    });
    assert_eq!(readyz(&world), Some(200));

    annotate(&world, Some("true"));
    let message = until_drained_is(&world, "packets to stop", "True", "Drained");
    assert_eq!(message, "requested by: annotation");
    assert_eq!(readyz(&world), Some(503));
    assert_eq!(world.http(10_001, "/livez").map(|(code, _)| code), Some(200));
    let drain = world.gateway("edge-1").query("status").expect("a status")["drain"].clone();
    assert_eq!((&drain["state"], &drain["by"]), (&json!("drained"), &json!(["annotation"])));

    // The gateway knows of the drain before it has reached the API server.
    world.end("edge-1", Signal::KILL, SEEN).expect("it ends");
    world.start_again("edge-1");
    let by = world.until("the drain after a restart", || {
        let drain = world.gateway("edge-1").query("status")?["drain"].clone();
        (drain["state"] == "drained").then_some(drain["by"].clone())
    });
    assert_eq!(by, json!(["annotation"]));
    assert_eq!(readyz(&world), Some(503));

    annotate(&world, None);
    world.until("it to serve again", || (readyz(&world) == Some(200)).then_some(()));
    until_drained_is(&world, "the condition to report it", "False", "Serving");

    world.end("edge-1", Signal::TERM, SEEN).expect("it ends");
    until_drained_is(&world, "the last status", "True", "Stopped");
}
