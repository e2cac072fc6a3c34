//! Gateways and routes at an API server: what the gateway writes, when it releases an address, and what a new leader
//! continues.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::world::{Setting, World, slice, text};

const API_VERSION: &str = "gateway.networking.k8s.io/v1";

/// Kind, plural, and scope. The schemas accept everything: `make conformance` uses the real definitions.
const KINDS: [(&str, &str, &str); 6] = [
    ("GatewayClass", "gatewayclasses", "Cluster"),
    ("Gateway", "gateways", "Namespaced"),
    ("ListenerSet", "listenersets", "Namespaced"),
    ("TCPRoute", "tcproutes", "Namespaced"),
    ("UDPRoute", "udproutes", "Namespaced"),
    ("ReferenceGrant", "referencegrants", "Namespaced"),
];

/// Installs the definitions.
pub(crate) fn define(world: &World) {
    let mut definitions = String::new();
    for (kind, plural, scope) in KINDS {
        let lower = kind.to_lowercase();
        write!(
            definitions,
            "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: {plural}.gateway.networking.k8s.io
  annotations: {{api-approved.kubernetes.io: 'https://github.com/kubernetes-sigs/gateway-api'}}
spec:
  group: gateway.networking.k8s.io
  scope: {scope}
  names: {{kind: {kind}, plural: {plural}, singular: {lower}, listKind: {kind}List}}
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {{status: {{}}}}
      schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}
---
"
        )
        .expect("text");
    }
    world.apply(&definitions);
}

/// The duration of a Lease, 15 s without a heartbeat, and the time for two writes to each of 400 objects on a busy
/// machine.
const TAKEOVER: Duration = Duration::from_secs(240);

pub(crate) const CLASS: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: tidegate}
spec: {controllerName: tidegate.dev/gateway}
---
";

pub(crate) fn gateway(name: &str) -> String {
    format!(
        "
apiVersion: {API_VERSION}
kind: Gateway
metadata: {{name: {name}, namespace: shop}}
spec: {{gatewayClassName: tidegate, listeners: [{{name: tcp, port: 80, protocol: TCP, allowedRoutes: {{namespaces: {{from: Same}}}}}}]}}
---
"
    )
}

pub(crate) fn route(name: &str, of: &str, backend: &str) -> String {
    format!(
        "
apiVersion: {API_VERSION}
kind: TCPRoute
metadata: {{name: {name}, namespace: shop}}
spec:
  parentRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: {of}}}]
  rules: [{{backendRefs: [{{group: '', kind: Service, name: {backend}, port: 80, weight: 1}}]}}]
---
"
    )
}

const BACKEND: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{port: 80, protocol: TCP}]}
---
";

fn get(world: &World, kind: &str, name: &str) -> Option<Value> {
    world.api.get(API_VERSION, kind, if kind == "GatewayClass" { "" } else { "shop" }, name)
}

/// The addresses in the status of a Gateway.
fn addresses(gateway: &Value) -> Vec<String> {
    let addresses = gateway["status"]["addresses"].as_array().into_iter().flatten();
    addresses.map(|one| text(&one["value"])).collect()
}

/// `status reason` of a condition, if it is about the latest generation.
fn condition(of: &Value, generation: &Value, kind: &str) -> String {
    let all = of["conditions"].as_array().into_iter().flatten();
    let current = all.filter(|one| one["observedGeneration"] == *generation);
    current
        .filter(|one| one["type"] == kind)
        .map(|one| format!("{} {}", text(&one["status"]), text(&one["reason"])))
        .collect()
}

/// A condition of an object itself.
fn own(object: &Value, kind: &str) -> String {
    condition(&object["status"], &object["metadata"]["generation"], kind)
}

/// Whether a Gateway has an address, and every gateway serves it.
fn is_programmed(world: &World, name: &str) -> bool {
    let Some(gateway) = get(world, "Gateway", name) else { return false };
    !addresses(&gateway).is_empty() && own(&gateway, "Programmed") == "True Programmed"
}

#[test]
fn definitions_that_come_later_are_used_and_every_object_has_its_status() {
    let mut world = World::new();
    world.start("edge-1");
    define(&world);
    world.apply(&(BACKEND.to_owned() + &slice("web", &["10.244.0.1"])));
    world.apply(
        &(CLASS.to_owned() + &gateway("edge") + &route("web", "edge", "web") + &route("odd", "edge", "none")),
    );
    world.until("the Gateway to be served", || is_programmed(&world, "edge").then_some(()));
    let edge = get(&world, "Gateway", "edge").expect("there");
    assert_eq!(own(&edge, "Accepted"), "True Accepted");
    assert_eq!(edge["metadata"]["finalizers"], json!(["tidegate.dev/cleanup"]));
    assert_eq!(world.gateway("edge-1").vips("gateway/edge"), addresses(&edge));
    assert_eq!(edge["status"]["addresses"][0]["type"], "IPAddress");
    world.until("the status of the listener", || {
        let edge = get(&world, "Gateway", "edge")?;
        let listener = edge["status"]["listeners"].get(0)?;
        let is = |kind| condition(listener, &edge["metadata"]["generation"], kind);
        (listener["attachedRoutes"] == 2
            && listener["supportedKinds"][0]["kind"] == "TCPRoute"
            && is("Accepted") == "True Accepted"
            && is("Programmed") == "True Programmed"
            && is("ResolvedRefs") == "True ResolvedRefs"
            && is("Conflicted") == "False NoConflicts")
            .then_some(())
    });
    let class = world.until("the status of the class", || {
        get(&world, "GatewayClass", "tidegate").filter(|class| own(class, "Accepted") == "True Accepted")
    });
    let features = class["status"]["supportedFeatures"].as_array().cloned().unwrap_or_default();
    assert!(features.iter().any(|one| one["name"] == "TCPRoute"), "{features:?}");
    let of_route = |name: &str, kind: &str| {
        let route = get(&world, "TCPRoute", name)?;
        let parent = route["status"]["parents"]
            .as_array()?
            .iter()
            .find(|one| one["controllerName"] == "tidegate.dev/gateway")?;
        Some(condition(parent, &route["metadata"]["generation"], kind))
    };
    world.until("the status of the routes", || {
        let all = ["web", "odd"].map(|name| of_route(name, "Accepted"));
        (all.iter().all(|one| one.as_deref() == Some("True Accepted"))
            && of_route("web", "ResolvedRefs")? == "True ResolvedRefs"
            && of_route("odd", "ResolvedRefs")? == "False BackendNotFound")
            .then_some(())
    });
}

#[test]
fn a_deleted_gateway_and_one_of_another_class_release_their_addresses() {
    let one_address = Setting {
        document: "pools: [{name: public, addresses: [203.0.113.9]}]".into(),
        ..Setting::default()
    };
    let mut world = World::new();
    define(&world);
    world.start_with("edge-1", &one_address);
    world.apply(&(CLASS.to_owned() + &gateway("first")));
    world.until("the first Gateway", || is_programmed(&world, "first").then_some(()));
    world.apply(&gateway("second"));
    world.until("the second to wait", || {
        let second = get(&world, "Gateway", "second")?;
        own(&second, "Programmed").starts_with("False Address").then_some(())
    });
    assert!(world.api.delete(API_VERSION, "Gateway", "shop", "first"));
    world.until("the first to be gone", || get(&world, "Gateway", "first").is_none().then_some(()));
    world.until("its address at the second", || is_programmed(&world, "second").then_some(()));
    world.apply(
        &CLASS.replace("name: tidegate", "name: other").replace("tidegate.dev/gateway", "example.com/other"),
    );
    world
        .api
        .edit(API_VERSION, "Gateway", "shop", "second", |one| {
            one["spec"]["gatewayClassName"] = "other".into();
        })
        .expect("legal");
    world.until("nothing of ours to remain", || {
        let second = get(&world, "Gateway", "second")?;
        let finalized = second["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        (!finalized && addresses(&second).is_empty()).then_some(())
    });
    assert!(world.gateway("edge-1").vips("gateway/second").is_empty());
}

#[test]
fn the_parents_of_other_controllers_stay_in_the_status_of_a_route() {
    let mut world = World::new();
    define(&world);
    world.start("edge-1");
    world.apply(&(BACKEND.to_owned() + CLASS + &gateway("edge") + &route("web", "edge", "web")));
    let parents = |world: &World| -> BTreeSet<String> {
        let route = get(world, "TCPRoute", "web").unwrap_or_default();
        let parents = route["status"]["parents"].as_array().cloned().unwrap_or_default();
        parents.iter().map(|one| text(&one["controllerName"])).collect()
    };
    world.until("our entry", || parents(&world).contains("tidegate.dev/gateway").then_some(()));
    let other = json!({
        "parentRef": {"name": "theirs"}, "controllerName": "example.com/other",
        "conditions": [{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
                        "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    });
    world
        .api
        .edit(API_VERSION, "TCPRoute", "shop", "web", |route| {
            let parents = route["status"]["parents"].as_array_mut().expect("our entry");
            parents.push(other.clone());
        })
        .expect("legal");
    world
        .api
        .edit(API_VERSION, "TCPRoute", "shop", "web", |route| {
            route["spec"]["rules"][0]["backendRefs"][0]["name"] = "none".into();
        })
        .expect("legal");
    world.until("the new state beside the other entry", || {
        let route = get(&world, "TCPRoute", "web")?;
        let ours = route["status"]["parents"]
            .as_array()?
            .iter()
            .find(|one| one["controllerName"] == "tidegate.dev/gateway")?;
        let resolved = condition(ours, &route["metadata"]["generation"], "ResolvedRefs");
        (resolved == "False BackendNotFound" && parents(&world).contains("example.com/other")).then_some(())
    });
}

#[test]
fn a_new_leader_completes_two_hundred_gateways_and_gives_no_address_twice() {
    const COUNT: usize = 200;
    let pool = Setting {
        document: "pools: [{name: public, addresses: [203.0.112.0/22]}]".into(),
        ..Setting::default()
    };
    let mut world = World::new();
    define(&world);
    world.apply(&(CLASS.to_owned() + BACKEND + &slice("web", &["10.244.0.1"])));
    world.start_with("edge-1", &pool);
    world.start_with("edge-2", &pool);
    let all: String = (0..COUNT)
        .map(|n| gateway(&format!("g{n}")) + &route(&format!("r{n}"), &format!("g{n}"), "web"))
        .collect();
    let leader = world.until("a leader", || {
        let lease = world.api.get("coordination.k8s.io/v1", "Lease", "tidegate-system", "tidegate")?;
        let leading = text(&lease["spec"]["holderIdentity"]);
        ["edge-1", "edge-2"].into_iter().find(|name| leading.starts_with(name))
    });
    world.apply(&all);
    world.until("some addresses", || {
        let gateways = world.api.list(API_VERSION, "Gateway", "shop");
        (gateways.iter().filter(|one| !addresses(one).is_empty()).count() > COUNT / 10).then_some(())
    });
    world.signal(leader, Signal::KILL);
    let killed = Instant::now();
    world.within(TAKEOVER, "every Gateway to be served", || {
        let gateways = world.api.list(API_VERSION, "Gateway", "shop");
        let done = gateways
            .iter()
            .filter(|one| !addresses(one).is_empty() && own(one, "Programmed") == "True Programmed");
        (done.count() == COUNT).then_some(())
    });
    let gateways = world.api.list(API_VERSION, "Gateway", "shop");
    let given: Vec<String> = gateways.iter().flat_map(addresses).collect();
    assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), given.len(), "no address is given twice");
    world.within(TAKEOVER, "every route to be accepted", || {
        let routes = world.api.list(API_VERSION, "TCPRoute", "shop");
        let accepted = |route: &&Value| {
            let parents = route["status"]["parents"].as_array().into_iter().flatten();
            let mut parents = parents.map(|one| condition(one, &route["metadata"]["generation"], "Accepted"));
            parents.any(|accepted| accepted == "True Accepted")
        };
        (routes.iter().filter(accepted).count() == COUNT).then_some(())
    });
    println!("every status was right {:.1} s after the leader was killed", killed.elapsed().as_secs_f64());
}
