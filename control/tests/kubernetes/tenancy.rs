//! Two tenants of one API server. One causes very many writes, the other few.

use std::time::Duration;

use serde_json::{Value, json};
use test_apiserver::Fault;

use crate::api::Needs;
use crate::needs;
use crate::world::{Setting, World, service, slice, text};

/// The number of Services of the busy tenant. Their status and finalizers take more than a minute at 50 writes a
/// second, and their events several minutes at 20.
const MANY: usize = 2_500;
/// This namespace sorts first.
const HOSTILE: &str = "aaa";

#[test]
fn thousands_of_services_do_not_delay_those_of_another_namespace() {
    needs!(Needs::Faults);
    let mut world = World::alone();
    let document = "pools: [{name: public, addresses: [\"198.18.0.0/16\"]}]".into();
    world.start_with("edge-1", &Setting { document, ..Setting::default() });
    // Simulates a busy API server, so that the gateway keeps to its lowest rate.
    world.api.faults().on("/services/", Fault::Slow(Duration::from_millis(150)));
    world.api.load((0..MANY).map(hostile).collect()).expect("legal Services");
    world.until("the first of the many", || (!ingress(&world, HOSTILE, "s0").is_empty()).then_some(()));
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    world.until("the address", || (!ingress(&world, "shop", "web").is_empty()).then_some(()));
    world.until("the event", || {
        let events = world.api.list("events.k8s.io/v1", "Event", "shop");
        events.iter().any(|event| event["reason"] == "IPAllocated").then_some(())
    });
    let waits = (0..MANY).any(|n| ingress(&world, HOSTILE, &format!("s{n}")).is_empty());
    assert!(waits, "the many were still being written");
}

fn ingress(world: &World, namespace: &str, name: &str) -> Vec<String> {
    let service = world.api.get("v1", "Service", namespace, name).unwrap_or_default();
    let list = service["status"]["loadBalancer"]["ingress"].as_array().cloned().unwrap_or_default();
    list.iter().map(|one| text(&one["ip"])).collect()
}

fn hostile(n: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": format!("s{n}"), "namespace": HOSTILE},
        "spec": {
            "type": "LoadBalancer", "loadBalancerClass": "tidegate.dev/gateway",
            "allocateLoadBalancerNodePorts": false,
            "ports": [{"name": "http", "port": 80}],
        },
    })
}
