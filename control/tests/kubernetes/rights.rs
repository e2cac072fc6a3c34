//! The rights of the gateway in a cluster: those of `deploy/kubernetes` are necessary and sufficient.

use std::collections::BTreeSet;

use rustix::process::Signal;
use serde_json::Value;
use test_apiserver::Logged;

use crate::api::Needs;
use crate::gateway_api::{CLASS, define, gateway, route};
use crate::needs;
use crate::world::{SEEN, Setting, World, service, slice, text};

/// Verb, group and resource.
type Right = (String, String, String);

/// The rights that the stored roles of Tidegate grant.
fn granted(world: &World) -> BTreeSet<Right> {
    let rbac = "rbac.authorization.k8s.io/v1";
    let roles = [("ClusterRole", "", "tidegate"), ("Role", "tidegate-system", "tidegate-leader")];
    let mut rights = BTreeSet::new();
    for (kind, namespace, name) in roles {
        let role = world.api.get(rbac, kind, namespace, name).expect("installed");
        let words = |value: &Value| -> Vec<String> {
            value.as_array().into_iter().flatten().map(|one| one.as_str().expect("text").into()).collect()
        };
        for rule in role["rules"].as_array().expect("rules") {
            for verb in words(&rule["verbs"]) {
                for group in words(&rule["apiGroups"]) {
                    let of = |resource| (verb.clone(), group.clone(), resource);
                    rights.extend(words(&rule["resources"]).into_iter().map(of));
                }
            }
        }
    }
    rights
}

/// The right that a request needs.
fn needed(request: &Logged) -> Option<Right> {
    let steps: Vec<&str> = request.path.split('/').filter(|step| !step.is_empty()).collect();
    let (group, rest) = match steps.as_slice() {
        ["api", "v1", rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => return None,
    };
    let rest = match rest {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        rest => rest,
    };
    let (resource, named) = match rest {
        [resource] => ((*resource).to_owned(), false),
        [resource, _] => ((*resource).to_owned(), true),
        [resource, _, subresource] => (format!("{resource}/{subresource}"), true),
        _ => return None,
    };
    let verb = match (request.method.as_str(), named) {
        ("GET", _) if request.query.contains("watch=") => "watch",
        ("GET", false) => "list",
        ("GET", true) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        (_, _) => "delete",
    };
    Some((verb.into(), group.into(), resource))
}

/// The gateway uses the weights of Pods, but lacks the right to read Pods.
#[test]
fn a_gateway_that_may_not_read_pods_still_serves_and_reports_it() {
    let mut world = World::new();
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    let setting = Setting { source: "    podWeights: true".into(), ..Setting::default() };
    world.start_with("edge-1", &setting);
    let gateway = world.gateway("edge-1");
    world.until("a backend", || (gateway.backends("web") == ["10.244.0.1:8080 active"]).then_some(()));
    world.until("the others to be watched", || (gateway.source()["connected"] == true).then_some(()));
    let error = text(&gateway.source()["lastError"]);
    assert!(error.starts_with("Pod objects cannot be read") && error.contains("403"), "{error}");
}

/// The roles are those of a version without the Gateway API.
#[test]
fn gateways_that_may_not_be_read_keep_new_services_waiting() {
    const RBAC: &str = "rbac.authorization.k8s.io/v1";
    let pools = Setting {
        document: "pools: [{name: public, addresses: [203.0.113.0/28]}]".into(),
        ..Setting::default()
    };
    let world_without_rights = || {
        let world = World::new();
        let role = world.api.get(RBAC, "ClusterRole", "", "tidegate").expect("installed");
        let is_of_gateways = |rule: &Value| rule["apiGroups"][0] == "gateway.networking.k8s.io";
        let edit = |role: &mut Value| {
            role["rules"].as_array_mut().expect("rules").retain(|rule| !is_of_gateways(rule));
        };
        world.api.edit(RBAC, "ClusterRole", "", "tidegate", edit).expect("legal");
        world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
        (world, role)
    };
    let (mut world, _) = world_without_rights();
    world.start_with("edge-1", &pools);
    world.until("an address, because there are no Gateways", || {
        (world.gateway("edge-1").vips("web").len() == 1).then_some(())
    });
    drop(world);

    let (mut world, role) = world_without_rights();
    define(&world);
    world.start_with("edge-1", &pools);
    world.until("the reason", || {
        let service = world.api.get("v1", "Service", "shop", "web")?;
        let conditions = service["status"]["conditions"].as_array()?.clone();
        let allocated = conditions.into_iter().find(|one| one["type"] == "tidegate.dev/Allocated")?;
        let waits = text(&allocated["message"]).contains("permission to read Gateways");
        (waits && allocated["status"] == "False").then_some(())
    });
    assert!(world.gateway("edge-1").vips("web").is_empty());
    let rules = role["rules"].clone();
    world.api.edit(RBAC, "ClusterRole", "", "tidegate", |role| role["rules"] = rules.clone()).expect("legal");
    world.until("an address", || (world.gateway("edge-1").vips("web").len() == 1).then_some(()));
}

#[test]
fn rbac_is_the_least_that_works() {
    needs!(Needs::Requests);
    let mut world = World::new();
    world.apply(
        "{apiVersion: tidegate.dev/v1alpha1, kind: AddressPool, metadata: {name: public}, \
         spec: {addresses: [203.0.113.0/28]}}",
    );
    // A gateway that is gone for good, and a fault that every gateway reports again when it starts.
    world.apply(
        "{apiVersion: tidegate.dev/v1alpha1, kind: GatewayStatus, metadata: {name: gone}, spec: {gateway: gone}, \
         status: {stopped: true, lastHeartbeat: \"2026-01-01T00:00:00Z\"}}",
    );
    let faulty =
        service("web").replace("metadata: {", "metadata: {annotations: {tidegate.dev/table-size: many}, ");
    world.apply(&(faulty + &slice("web", &["10.244.0.1"])));
    define(&world);
    let listener_set = "
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: more, namespace: shop}
spec: {parentRef: {name: edge}, listeners: [{name: udp, port: 53, protocol: UDP}]}
---
";
    let tcp = route("web", "edge", "web");
    let udp = tcp.replace("TCPRoute", "UDPRoute");
    world.apply(&(CLASS.to_owned() + &gateway("edge") + listener_set + &tcp + &udp));
    let setting = Setting { document: "pools: []".into(), drain: "1s".into(), ..Setting::default() };
    world.start_with("edge-1", &setting);
    world.until("the fault to be reported", || {
        let events = world.api.list("v1", "Event", "shop");
        events.iter().any(|event| event["reason"] == "InvalidValue").then_some(())
    });
    world.end("edge-1", Signal::TERM, SEEN).expect("it ends");
    world.start_again("edge-1");
    let edge = world.gateway("edge-1");
    world.until("a backend", || (edge.backends("web").len() == 1).then_some(()));
    // The life cycle of one Service uses every right except one: a GatewayStatus is created by an apply, which needs
    // the right `create` although the request is a patch.
    let seldom = [("create", "tidegate.dev", "gatewaystatuses")]
        .map(|(verb, group, resource)| (verb.to_owned(), group.to_owned(), resource.to_owned()));
    let granted: BTreeSet<Right> = granted(&world);
    let mut deleted = false;
    let mut unused = granted.clone();
    seldom.iter().for_each(|right| assert!(unused.remove(right), "{right:?} is granted"));
    world.eventually(|| {
        for right in world.api.requests().iter().filter_map(needed) {
            unused.remove(&right);
        }
        let service = world.api.get("v1", "Service", "shop", "web").unwrap_or_default();
        let written = service["status"]["loadBalancer"]["ingress"].is_array();
        if written && !deleted {
            deleted = world.api.delete("v1", "Service", "shop", "web");
        }
        unused.is_empty().then_some(())
    });
    assert!(unused.is_empty(), "granted and never used: {unused:#?}");
    let refused: BTreeSet<String> = world
        .api
        .requests()
        .into_iter()
        .filter(|request| request.code == 403)
        .map(|request| format!("{} {}", request.method, request.path))
        .collect();
    assert!(refused.is_empty(), "enough: {refused:#?}");
}
