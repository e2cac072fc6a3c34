//! Stored objects with an unusable field: no version of the API server validates `loadBalancerIP`, and older versions
//! did not validate other fields.

use rustix::process::Signal;
use serde_json::Value;

use crate::api::Needs;
use crate::needs;
use crate::world::{SEEN, Setting, World, service, slice, text};

/// Gateways with only one address to assign.
fn one_address() -> Setting {
    Setting {
        document: "pools: [{name: public, addresses: [\"203.0.113.5\"]}]".into(),
        drain: "1s".into(),
        ..Setting::default()
    }
}

fn with_bad_address(service: &str) -> String {
    let bad = service.replace("type: LoadBalancer,", "type: LoadBalancer, loadBalancerIP: x,");
    assert_ne!(bad, service);
    bad
}

fn ingress(world: &World, name: &str) -> Vec<String> {
    let service = world.api.get("v1", "Service", "shop", name).unwrap_or_default();
    let list = service["status"]["loadBalancer"]["ingress"].as_array().cloned().unwrap_or_default();
    list.iter().map(|one| text(&one["ip"])).collect()
}

/// The notes of the events with this reason about an object.
fn notes(world: &World, kind: &str, name: &str, reason: &str) -> Vec<String> {
    let events = world.api.list("events.k8s.io/v1", "Event", "");
    let about = |event: &&Value| {
        event["regarding"]["kind"] == kind && event["regarding"]["name"] == name && event["reason"] == reason
    };
    events.iter().filter(about).map(|event| text(&event["note"])).collect()
}

#[test]
fn a_service_with_an_unreadable_field_is_served_reported_and_deletable() {
    let mut world = World::new();
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    world.start_with("edge-1", &one_address());
    let gateway = world.gateway("edge-1");
    world.until("an address", || (ingress(&world, "web") == ["203.0.113.5"]).then_some(()));
    world
        .api
        .edit("v1", "Service", "shop", "web", |service| service["spec"]["loadBalancerIP"] = "x".into())
        .expect("every API server accepts it");
    world.until("the event", || {
        let notes = notes(&world, "Service", "web", "InvalidValue");
        notes.iter().any(|note| note.starts_with("spec.loadBalancerIP: the text \"x\"")).then_some(())
    });
    let shown = gateway.service("web")["warnings"].to_string();
    assert!(shown.contains("spec.loadBalancerIP"), "{shown}");
    assert_eq!(gateway.vips("web"), ["203.0.113.5"]);
    assert!(world.api.delete("v1", "Service", "shop", "web"));
    world
        .until("the Service to go", || world.api.get("v1", "Service", "shop", "web").is_none().then_some(()));
    world.apply(&(with_bad_address(&service("odd")) + &slice("odd", &["10.244.0.3"])));
    world.until("the reason why it gets no address", || {
        let pending = gateway.service("odd")["pending"].to_string();
        pending.contains("spec.loadBalancerIP is invalid").then_some(())
    });
    world.apply(&(service("next") + &slice("next", &["10.244.0.2"])));
    world.until("the address for the next Service", || {
        (ingress(&world, "next") == ["203.0.113.5"]).then_some(())
    });
}

#[test]
fn its_address_goes_to_no_other_service_after_a_restart() {
    let mut world = World::new();
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    world.start_with("edge-1", &one_address());
    world.until("an address", || (ingress(&world, "web") == ["203.0.113.5"]).then_some(()));
    world.until("objects on disk", || world.has_state("edge-1").then_some(()));
    world.end("edge-1", Signal::TERM, SEEN).expect("an orderly end");
    world
        .api
        .edit("v1", "Service", "shop", "web", |service| service["spec"]["loadBalancerIP"] = "x".into())
        .expect("every API server accepts it");
    world.apply(&(service("other") + &slice("other", &["10.244.0.2"])));
    world.start_again("edge-1");
    let gateway = world.gateway("edge-1");
    world.until("both Services", || (!gateway.service("other").is_null()).then_some(()));
    world.until("why the other one waits", || (!gateway.service("other")["pending"].is_null()).then_some(()));
    assert_eq!((gateway.vips("web"), gateway.vips("other")), (vec!["203.0.113.5".to_owned()], vec![]));
    assert_eq!((ingress(&world, "web"), ingress(&world, "other")), (vec!["203.0.113.5".to_owned()], vec![]));
    assert!(world.api.delete("v1", "Service", "shop", "web"));
    world
        .until("the Service to go", || world.api.get("v1", "Service", "shop", "web").is_none().then_some(()));
    world.until("the address for the other Service", || {
        (ingress(&world, "other") == ["203.0.113.5"]).then_some(())
    });
}

#[test]
fn a_slice_fault_skips_one_port_or_endpoint_and_is_an_event_of_the_slice() {
    needs!(Needs::PastValidation);
    let mut world = World::new();
    let odd = slice("web", &["010.244.0.01", "x"])
        .replace("ports: [", "ports: [{name: none, port: 0, protocol: TCP}, ");
    world.api.apply_past_validation(&(service("web") + &odd)).expect("stored");
    world.start("edge-1");
    let gateway = world.gateway("edge-1");
    world.until("the backend", || (gateway.backends("web") == ["10.244.0.1:8080 active"]).then_some(()));
    world.until("the events", || {
        let notes = notes(&world, "EndpointSlice", "web-1", "InvalidValue");
        let reports = |text: &str| notes.iter().any(|note| note.contains(text));
        (reports("endpoints[1].addresses[0]") && reports("ports[0].port: port 0 is ignored")).then_some(())
    });
    let shown = gateway.service("web")["warnings"].to_string();
    assert!(shown.contains("EndpointSlice shop/web-1: endpoints[1].addresses[0]"), "{shown}");
}
