//! The life cycle of a LoadBalancer Service: what the gateway writes to the API, and when it does not write.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::api::Needs;
use crate::needs;
use crate::world::{SEEN, Setting, World, service, slice, text};

/// Gateways whose addresses come only from AddressPools.
fn no_pools() -> Setting {
    Setting { document: "pools: []".into(), ..Setting::default() }
}

fn pool(addresses: &str) -> String {
    format!(
        "{{apiVersion: tidegate.dev/v1alpha1, kind: AddressPool, metadata: {{name: public}}, \
         spec: {{addresses: [{addresses}]}}}}\n---\n"
    )
}

/// The addresses in the status of a Service, as every client of the cluster sees them.
fn ingress(world: &World, name: &str) -> Vec<String> {
    let service = world.api.get("v1", "Service", "shop", name).unwrap_or_default();
    let list = service["status"]["loadBalancer"]["ingress"].as_array().cloned().unwrap_or_default();
    list.iter().map(|one| text(&one["ip"])).collect()
}

/// The reasons of the events about a Service.
fn events(world: &World, name: &str) -> Vec<String> {
    let events = world.api.list("v1", "Event", "shop");
    events
        .iter()
        .filter(|one| one["involvedObject"]["name"] == name)
        .map(|one| text(&one["reason"]))
        .collect()
}

/// The `status` of a condition of a Service.
fn condition(world: &World, name: &str, kind: &str) -> String {
    let service = world.api.get("v1", "Service", "shop", name).unwrap_or_default();
    let conditions = service["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().find(|one| one["type"] == kind).map(|one| text(&one["status"])).unwrap_or_default()
}

fn lease(world: &World) -> Value {
    world.api.get("coordination.k8s.io/v1", "Lease", "tidegate-system", "tidegate").unwrap_or_default()
}

/// A cluster with one leading gateway, and a Service that has its address.
fn shop() -> World {
    let mut world = World::new();
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    world.start("edge-1");
    world.until("the address in the status", || (!ingress(&world, "web").is_empty()).then_some(()));
    world
}

#[test]
fn an_address_is_assigned_written_and_reported() {
    let world = shop();
    let gateway = world.gateway("edge-1");
    assert_eq!(ingress(&world, "web"), gateway.vips("web"));
    world.until("the conditions", || {
        (condition(&world, "web", "tidegate.dev/Programmed") == "True").then_some(())
    });
    assert_eq!(condition(&world, "web", "tidegate.dev/Allocated"), "True");
    let service = world.api.get("v1", "Service", "shop", "web").expect("there");
    // fullnat: the packet does not arrive at the node with the VIP as its destination.
    assert_eq!(service["status"]["loadBalancer"]["ingress"][0]["ipMode"], "Proxy");
    assert_eq!(service["metadata"]["finalizers"], json!(["tidegate.dev/cleanup"]));
    world.until("the events", || {
        let reasons = events(&world, "web");
        ["IPAllocated", "EnsuredLoadBalancer"]
            .iter()
            .all(|one| reasons.iter().any(|reason| reason == one))
            .then_some(())
    });
}

#[test]
fn service_deleted_while_draining() {
    let setting = Setting { drain: "2s".into(), ..Setting::default() };
    let mut world = World::new();
    world.apply(&(service("web") + &slice("web", &["10.244.0.1", "10.244.0.2"])));
    world.start_with("edge-1", &setting);
    let vips = world
        .until("the address in the status", || Some(ingress(&world, "web")).filter(|ips| !ips.is_empty()));
    let gateway = world.gateway("edge-1");
    world.apply(&slice("web", &["10.244.0.1"]));
    world.until("a backend that drains", || {
        gateway
            .backends("web")
            .iter()
            .any(|row| row.starts_with("10.244.0.2") && !row.ends_with("active"))
            .then_some(())
    });
    assert!(world.api.delete("v1", "Service", "shop", "web"));
    let deleting = world.api.get("v1", "Service", "shop", "web").expect("its finalizer keeps it");
    assert!(deleting["metadata"]["deletionTimestamp"].is_string());
    world.until("the VIP to be withdrawn", || gateway.vips("web").is_empty().then_some(()));
    world.until("the finalizer to go, and the Service with it", || {
        world.api.get("v1", "Service", "shop", "web").is_none().then_some(())
    });
    // The address is free again.
    world.apply(&(service("next") + &slice("next", &["10.244.0.3"])));
    world.until("an address for the next", || (!ingress(&world, "next").is_empty()).then_some(()));
    assert_eq!(vips.len(), 1);
}

#[test]
fn class_removed_clears_the_status_and_the_finalizer() {
    let world = shop();
    world
        .api
        .edit("v1", "Service", "shop", "web", |service| service["spec"]["type"] = "ClusterIP".into())
        .expect("legal");
    world.until("nothing of ours to remain", || {
        let service = world.api.get("v1", "Service", "shop", "web")?;
        let finalized = service["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        (!finalized && ingress(&world, "web").is_empty()).then_some(())
    });
    assert!(world.gateway("edge-1").vips("web").is_empty());
}

/// What we wrote to a Service: finalizers, conditions, addresses.
fn traces(world: &World, name: &str) -> String {
    let service = world.api.get("v1", "Service", "shop", name).unwrap_or_default();
    let of = |value: &Value| if value.is_null() { "[]".to_owned() } else { value.to_string() };
    let (metadata, status) = (&service["metadata"], &service["status"]);
    let load_balancer = &status["loadBalancer"]["ingress"];
    format!("{} {} {}", of(&metadata["finalizers"]), of(&status["conditions"]), of(load_balancer))
}

const OTHER_PROXY: &str = "service.kubernetes.io/service-proxy-name";

#[test]
fn a_service_labeled_for_another_proxy_is_released_with_its_address() {
    let mut world = World::new();
    let one_address = Setting {
        document: "pools: [{name: public, addresses: [203.0.113.9]}]".into(),
        ..Setting::default()
    };
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    world.start_with("edge-1", &one_address);
    world.until("the address in the status", || (!ingress(&world, "web").is_empty()).then_some(()));
    let label = |world: &World, value: Value| {
        let edit = |service: &mut Value| service["metadata"]["labels"] = json!({ OTHER_PROXY: value });
        world.api.edit("v1", "Service", "shop", "web", edit).expect("legal");
    };
    label(&world, "other".into());
    world.until("nothing of ours to remain", || (traces(&world, "web") == "[] [] []").then_some(()));
    assert!(world.gateway("edge-1").vips("web").is_empty());
    world.apply(&(service("next") + &slice("next", &["10.244.0.2"])));
    world.until("its address for the next", || (ingress(&world, "next") == ["203.0.113.9"]).then_some(()));
    // Again, while no gateway is running.
    world.end("edge-1", Signal::TERM, SEEN).expect("it ends");
    let edit = |service: &mut Value| service["metadata"]["labels"] = json!({ OTHER_PROXY: "other" });
    world.api.edit("v1", "Service", "shop", "next", edit).expect("legal");
    world
        .api
        .edit("v1", "Service", "shop", "web", |web| web["metadata"]["labels"] = json!({}))
        .expect("legal");
    world.start_again("edge-1");
    world.until("the one to be released", || (traces(&world, "next") == "[] [] []").then_some(()));
    world.until("the address to be back", || (ingress(&world, "web") == ["203.0.113.9"]).then_some(()));
    assert!(world.api.delete("v1", "Service", "shop", "next"));
    assert!(world.api.get("v1", "Service", "shop", "next").is_none(), "it has no finalizer");
}

#[test]
fn namespace_terminating() {
    needs!(Needs::NamespaceController, Needs::Requests);
    let world = shop();
    assert!(world.api.delete("v1", "Namespace", "", "shop"));
    let namespace = world.api.get("v1", "Namespace", "", "shop").expect("its Service keeps it");
    assert_eq!(namespace["status"]["phase"], "Terminating");
    world.until("the namespace to be gone", || {
        world.api.get("v1", "Namespace", "", "shop").is_none().then_some(())
    });
    world.until("the VIP to be gone", || world.gateway("edge-1").vips("web").is_empty().then_some(()));
    // Events can no longer be created there. The gateway retries, but not forever.
    let refused = world.api.requests().iter().filter(|request| request.code == 403).count();
    assert!(refused <= 20, "{refused} requests were refused");
}

#[test]
fn pool_exhausted_then_grown() {
    let mut world = World::new();
    world.apply(&pool("203.0.113.1"));
    world.apply(&(service("first") + &slice("first", &["10.244.0.1"])));
    world.start_with("edge-1", &no_pools());
    world.until("the only address", || (ingress(&world, "first") == ["203.0.113.1"]).then_some(()));
    world.apply(&(service("second") + &slice("second", &["10.244.0.2"])));
    world.until("the shortage to be reported", || {
        events(&world, "second").contains(&"AllocationFailed".to_string()).then_some(())
    });
    assert!(ingress(&world, "second").is_empty());
    assert!(world.gateway("edge-1").vips("second").is_empty());
    assert_eq!(condition(&world, "second", "tidegate.dev/Allocated"), "False");
    world.apply(&pool("203.0.113.1, 203.0.113.2"));
    world.until("the new address", || (ingress(&world, "second") == ["203.0.113.2"]).then_some(()));
    assert_eq!(world.gateway("edge-1").vips("second"), ["203.0.113.2"]);
    assert_eq!(ingress(&world, "first"), ["203.0.113.1"]);
    world.until("the pool's figures", || {
        let pool = world.api.get("tidegate.dev/v1alpha1", "AddressPool", "", "public")?;
        (pool["status"]["used"] == 2 && pool["status"]["total"] == 2).then_some(())
    });
}

#[test]
fn after_a_restart_a_gateway_continues_to_count_its_events() {
    let mut world = World::new();
    let faulty =
        service("web").replace("metadata: {", "metadata: {annotations: {tidegate.dev/table-size: many}, ");
    world.apply(&(faulty + &slice("web", &["10.244.0.1"])));
    world.start("edge-1");
    let counts = |world: &World| {
        let events = world.api.list("v1", "Event", "shop");
        let invalid = events.into_iter().filter(|event| event["reason"] == "InvalidValue");
        invalid.map(|event| event["series"]["count"].as_i64().unwrap_or(1)).collect::<Vec<_>>()
    };
    world.until("the fault to be reported", || (counts(&world) == [1]).then_some(()));
    world.end("edge-1", Signal::TERM, SEEN).expect("it ends");
    world.start_again("edge-1");
    world.until("the same event to be counted again", || (counts(&world) == [2]).then_some(()));
}

#[test]
fn two_gateways_one_status() {
    let mut world = World::new();
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    world.start("edge-1");
    world.start("edge-2");
    world.until("the address in the status", || (!ingress(&world, "web").is_empty()).then_some(()));
    world.until("both to forward it", || {
        let same =
            ["edge-1", "edge-2"].iter().all(|name| world.gateway(name).vips("web") == ingress(&world, "web"));
        same.then_some(())
    });
    let leader = text(&lease(&world)["spec"]["holderIdentity"]);
    let (first, second) = if leader.contains("edge-1") { ("edge-1", "edge-2") } else { ("edge-2", "edge-1") };
    assert!(leader.contains(first), "{leader}");
    for name in [first, second] {
        world.until("each to write its own status", || {
            world.api.get("tidegate.dev/v1alpha1", "GatewayStatus", "", name).map(|_| ())
        });
    }
    let before = ingress(&world, "web");
    world.end(first, Signal::TERM, SEEN).expect("it ends");
    world.apply(&(service("next") + &slice("next", &["10.244.0.2"])));
    world.until("the other to lead and write", || (!ingress(&world, "next").is_empty()).then_some(()));
    assert_eq!(ingress(&world, "web"), before, "the new leader keeps the assigned addresses");
    assert!(text(&lease(&world)["spec"]["holderIdentity"]).contains(second));
}

#[test]
fn leader_loses_lease() {
    needs!(Needs::Requests);
    let world = shop();
    let gateway = world.gateway("edge-1");
    let take = |owner: &str| {
        let edited =
            world.api.edit("coordination.k8s.io/v1", "Lease", "tidegate-system", "tidegate", |lease| {
                lease["spec"]["holderIdentity"] = owner.into();
                lease["spec"]["renewTime"] = "2100-01-01T00:00:00.000000Z".into();
            });
        edited.expect("there is a lease");
    };
    world.api.forget_requests();
    take("somebody-else");
    // The gateway notices the loss at its next renewal. From then on, it only reads the lease.
    world.until("the loss to be noticed", || {
        let requests = world.api.requests();
        let last = requests.iter().rev().find(|one| one.path.ends_with("/leases/tidegate"))?;
        (last.method == "GET").then_some(())
    });
    world.apply(&(service("next") + &slice("next", &["10.244.0.2"])));
    world.api.forget_requests();
    // Two more reads of the lease leave enough time for a wrong write.
    world.until("two more reads of the lease", || {
        let reads = world.api.requests().iter().filter(|one| one.path.ends_with("/leases/tidegate")).count();
        (reads >= 2).then_some(())
    });
    assert!(ingress(&world, "next").is_empty());
    let written = world.api.requests().into_iter().filter(|one| one.path.ends_with("/services/next/status"));
    assert_eq!(written.count(), 0, "only the leader writes the status");
    assert_eq!(gateway.backends("web"), ["10.244.0.1:8080 active"], "forwarding continues");
    take("");
    world.until("the lease and the status", || (!ingress(&world, "next").is_empty()).then_some(()));
}

#[test]
fn a_deleted_lease_is_created_again_and_a_gateway_leads() {
    let world = shop();
    assert!(world.api.delete("coordination.k8s.io/v1", "Lease", "tidegate-system", "tidegate"));
    world.until("the lease", || {
        text(&lease(&world)["spec"]["holderIdentity"]).starts_with("edge-1_").then_some(())
    });
    world.apply(&(service("next") + &slice("next", &["10.244.0.2"])));
    world.until("an address", || (!ingress(&world, "next").is_empty()).then_some(()));
}

#[test]
fn another_writer_changes_the_same_status() {
    let world = shop();
    let before = ingress(&world, "web");
    world
        .api
        .edit("v1", "Service", "shop", "web", |service| {
            service["status"]["loadBalancer"]["ingress"] = json!([{"ip": "198.51.100.9"}]);
            service["metadata"]["managedFields"] = json!([{
                "manager": "other-controller", "operation": "Update", "apiVersion": "v1", "subresource": "status",
                "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:status": {"f:loadBalancer": {"f:ingress": {}}}},
            }]);
        })
        .expect("legal");
    world.until("the conflict to be reported", || {
        events(&world, "web").contains(&"ConflictingController".to_string()).then_some(())
    });
    assert_eq!(world.gateway("edge-1").vips("web"), before, "what is forwarded stays");
}
