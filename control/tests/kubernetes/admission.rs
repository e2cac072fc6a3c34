//! The admission policies on a real API server: their types are valid, they refuse what the gateway would refuse, and
//! accounts of gateways can write only their own fields.
//!
//! Every write is a dry run, so no case depends on another one. A write is repeated until it has the expected answer,
//! because a server applies a new policy or a new parameter after a while.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_netlab::wait_for;

use crate::api::{Admin, Needs, ObjectPath};
use crate::needs;
use crate::tool::kubectl;
use crate::world::{World, deploy, text};

const API: &str = "tidegate.dev/v1alpha1";
/// The maximum time until a server uses a new policy or parameter.
const APPLIED: Duration = Duration::from_secs(30);
const ADMISSION: &str = "admissionregistration.k8s.io/v1";

/// A cluster with the policies, and with the namespaces `shop`, which belongs to a team, and `aaa`, which belongs to
/// none.
fn cluster() -> World {
    let world = World::new();
    for name in ["base", "admission"] {
        let path = deploy().join("kubernetes").join(name).display().to_string();
        kubectl(&world, &["apply", "--server-side", "--force-conflicts", "-k", &path]).expect("legal");
    }
    world.apply(
        "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: shop}}}\n---\n\
         {apiVersion: v1, kind: Namespace, metadata: {name: aaa}}",
    );
    world
}

#[test]
fn the_api_server_finds_no_fault_in_the_types_of_the_policies() {
    needs!(Needs::RealServer, Needs::Version(31), Needs::NamespaceController);
    let world = cluster();
    // A policy with wrong types, to prove that the server checks them.
    world.apply(
        "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: \
         tidegate-wrong}, spec: {matchConstraints: {resourceRules: [{apiGroups: [tidegate.dev], apiVersions: \
         [v1alpha1], operations: [CREATE], resources: [addresspools]}]}, validations: [{expression: \
         object.spec.adresses == 1}]}}",
    );
    let checked = || {
        let mut policies = world.api.list(ADMISSION, "ValidatingAdmissionPolicy", "");
        policies.retain(|policy| text(&policy["metadata"]["name"]).starts_with("tidegate-"));
        let is_checked = |policy: &Value| {
            policy["status"]["observedGeneration"] == policy["metadata"]["generation"]
                && policy["status"]["typeChecking"].is_object()
        };
        policies.iter().all(is_checked).then_some(policies)
    };
    let policies = world.until("every policy to be checked", checked);
    for policy in &policies {
        let warnings = &policy["status"]["typeChecking"]["expressionWarnings"];
        let name = text(&policy["metadata"]["name"]);
        assert_eq!(warnings.is_null(), name != "tidegate-wrong", "{name}: {warnings:#}");
    }
    assert!(policies.len() >= 7, "{}", policies.len());
}

/// Sets the ranges of external IPs that any Service may use.
fn allow_ranges(world: &World, text: &str) {
    let data = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"ranges": text},
        "metadata": {"name": "tidegate-external-ips", "namespace": "tidegate-system"}});
    world.apply(&data.to_string());
}

/// Repeats a write until it is refused with the expected text, or accepted.
fn expect(world: &World, what: &str, expected: Option<&str>, write: impl Fn(&Admin) -> Result<(), String>) {
    let mut last = None;
    let met = wait_for("the answer", APPLIED, || {
        let answer = write(world.api.admin()).err();
        let is_met = match (expected, &answer) {
            (None, None) => true,
            (Some(expected), Some(message)) => message.contains(expected),
            _ => false,
        };
        last = answer;
        is_met.then_some(())
    });
    assert!(met.is_ok(), "{what}: expected {expected:?}, the answer is {last:?}");
}

/// Writes a Service as the administrator: a merge patch of a stored Service, or a new one.
fn write_service(admin: &Admin, namespace: &str, name: &str, service: &Value) -> Result<(), String> {
    let is_new = !matches!(name, "plain" | "named" | "cluster-ip");
    let path = ObjectPath::new("v1", "Service", namespace, if is_new { "" } else { name }).path();
    let mut object = service.clone();
    let (method, kind) = if is_new {
        object["apiVersion"] = "v1".into();
        object["kind"] = "Service".into();
        object["metadata"]["name"] = name.into();
        object["spec"]["ports"] = json!([{"port": 80}]);
        ("POST", "application/json")
    } else {
        ("PATCH", "application/merge-patch+json")
    };
    let answer = admin.request(method, &format!("{path}?dryRun=All"), Some((kind, &object)));
    answer.map(drop).map_err(|refusal| refusal.to_string())
}

const NOT_AUTHORISED: &str = "does not authorise externalIPs";
const NOT_MATCHED: &str = "do not match this Service and its namespace";
const NO_RANGE: &str = "in no range that is authorised";
const NEVER: &str = "none may be loopback, link-local, multicast or unspecified";
/// The API server itself refuses the address, before the policies.
const SPECIAL: &str = "may not be ";

#[test]
fn the_admission_policies_refuse_what_the_gateway_would() {
    needs!(Needs::RealServer, Needs::Version(31));
    let world = cluster();
    let ranges = |text: &str| allow_ranges(&world, text);
    ranges("0.0.0.0/0 ::/0");
    for (name, spec) in [
        ("open", json!({"addresses": ["203.0.113.0/24", "2001:db8::/64"], "externalIPs": true})),
        ("shut", json!({"addresses": ["198.51.100.0/24", "192.0.2.7"]})),
        (
            "team",
            json!({"addresses": ["192.0.2.0/29"], "externalIPs": true,
            "namespaceSelector": {"matchLabels": {"team": "shop"}}}),
        ),
        (
            "front",
            json!({"addresses": ["192.0.2.16/28"], "externalIPs": true, "serviceSelector": {"matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["front"]}, {"key": "old", "operator": "DoesNotExist"}]}}),
        ),
        (
            "range",
            json!({"addresses": ["192.0.2.100-192.0.2.109"],
            "namespaceSelector": {"matchLabels": {"team": "shop"}}}),
        ),
    ] {
        let pool =
            json!({"apiVersion": API, "kind": "AddressPool", "metadata": {"name": name}, "spec": spec});
        world.apply(&pool.to_string());
    }
    let stored = |name: &str, annotations: Value, spec: Value| {
        let mut object = json!({"apiVersion": "v1", "kind": "Service", "spec": spec,
            "metadata": {"name": name, "namespace": "aaa", "annotations": annotations}});
        object["spec"]["ports"] = json!([{"port": 80}]);
        world.apply(&object.to_string());
    };
    stored("plain", json!({}), json!({"externalIPs": ["203.0.113.1"]}));
    stored("named", json!({"tidegate.dev/address-pool": "open"}), json!({"type": "LoadBalancer"}));
    stored("cluster-ip", json!({"tidegate.dev/address-pool": "team"}), json!({"type": "ClusterIP"}));

    let external = |addresses: &[&str]| json!({"spec": {"externalIPs": addresses}});
    let labelled = |address: &str, labels: Value| json!({"metadata": {"labels": labels}, "spec": {"externalIPs": [address]}});
    let requesting = |key: &str, value: &str| json!({"metadata": {"annotations": {format!("tidegate.dev/{key}"): value}}, "spec": {"type": "LoadBalancer"}});
    let (pool, address) =
        (|name: &str| requesting("address-pool", name), |ip: &str| requesting("load-balancer-ips", ip));
    let mut front = pool("front");
    front["metadata"]["labels"] = json!({"tier": "front"});
    let mut of_cluster = pool("team");
    of_cluster["spec"]["type"] = "ClusterIP".into();
    let cases: Vec<(&str, &str, &str, Value, Option<&str>)> = vec![
        ("no externalIPs", "aaa", "new", json!({"spec": {}}), None),
        ("in an open pool", "aaa", "new", external(&["203.0.113.9", "2001:db8::9"]), None),
        (
            "in a pool that does not authorise",
            "aaa",
            "new",
            external(&["198.51.100.1"]),
            Some(NOT_AUTHORISED),
        ),
        ("a single address of such a pool", "shop", "new", external(&["192.0.2.7"]), Some(NOT_AUTHORISED)),
        (
            "one of two in such a pool",
            "aaa",
            "new",
            external(&["203.0.113.9", "198.51.100.1"]),
            Some(NOT_AUTHORISED),
        ),
        ("a namespace that matches", "shop", "new", external(&["192.0.2.3"]), None),
        ("a namespace that does not", "aaa", "new", external(&["192.0.2.3"]), Some(NOT_MATCHED)),
        ("a Service that matches", "aaa", "new", labelled("192.0.2.17", json!({"tier": "front"})), None),
        ("another tier", "aaa", "new", labelled("192.0.2.17", json!({"tier": "back"})), Some(NOT_MATCHED)),
        (
            "an old one",
            "aaa",
            "new",
            labelled("192.0.2.17", json!({"tier": "front", "old": "y"})),
            Some(NOT_MATCHED),
        ),
        ("loopback", "aaa", "new", external(&["127.0.0.1"]), Some(SPECIAL)),
        ("link-local", "aaa", "new", external(&["169.254.169.254"]), Some(SPECIAL)),
        ("link-local, IPv6", "aaa", "new", external(&["fe80::1"]), Some(SPECIAL)),
        ("unspecified", "aaa", "new", external(&["0.0.0.0"]), Some(SPECIAL)),
        ("multicast", "aaa", "new", external(&["239.1.1.1"]), Some(NEVER)),
        ("multicast, IPv6", "aaa", "new", external(&["ff05::2"]), Some(NEVER)),
        ("a label beside it", "aaa", "plain", json!({"metadata": {"labels": {"a": "b"}}}), None),
        ("a changed request", "aaa", "plain", external(&["198.51.100.1"]), Some(NOT_AUTHORISED)),
        ("a pool that is open to all", "aaa", "new", pool("open"), None),
        ("a pool of another team", "aaa", "new", pool("team"), Some(NOT_MATCHED)),
        ("a pool of its team", "shop", "new", pool("team"), None),
        ("a pool for other Services", "shop", "new", pool("front"), Some(NOT_MATCHED)),
        ("a pool for such Services", "shop", "new", front, None),
        ("a pool that is not there", "aaa", "new", pool("none"), None),
        ("an address of another team", "aaa", "new", address("192.0.2.3"), Some(NOT_MATCHED)),
        ("the second of two", "aaa", "new", address("2001:db8::9, 192.0.2.3"), Some(NOT_MATCHED)),
        ("an address of its team", "shop", "new", address("192.0.2.3"), None),
        (
            "loadBalancerIP",
            "aaa",
            "new",
            json!({"spec": {"type": "LoadBalancer", "loadBalancerIP": "192.0.2.3"}}),
            Some(NOT_MATCHED),
        ),
        ("no address at all", "aaa", "new", address("here"), None),
        ("a pool in ranges cannot be judged", "aaa", "new", address("192.0.2.103"), None),
        ("ClusterIP", "aaa", "new", of_cluster, None),
        ("a changed pool", "aaa", "named", pool("team"), Some(NOT_MATCHED)),
        (
            "it had no type of ours before",
            "aaa",
            "cluster-ip",
            json!({"spec": {"type": "LoadBalancer"}}),
            Some(NOT_MATCHED),
        ),
    ];
    let check = |cases: &[(&str, &str, &str, Value, Option<&str>)]| {
        for (what, namespace, name, object, expected) in cases {
            expect(&world, what, *expected, |admin| write_service(admin, namespace, name, object));
        }
    };
    check(&cases);
    // Addresses requested earlier stay valid, although the selectors of their pool no longer match.
    let closed = json!({"spec": {"namespaceSelector": {"matchLabels": {"team": "shop"}}}});
    let path = ObjectPath::new(API, "AddressPool", "", "open").path();
    world
        .api
        .admin()
        .request("PATCH", &path, Some(("application/merge-patch+json", &closed)))
        .expect("legal");
    check(&[
        ("a closed pool, by address", "aaa", "new", external(&["203.0.113.9"]), Some(NOT_MATCHED)),
        ("a closed pool, by name", "aaa", "new", pool("open"), Some(NOT_MATCHED)),
        (
            "an external IP from before",
            "aaa",
            "plain",
            json!({"spec": {"sessionAffinity": "ClientIP"}}),
            None,
        ),
        ("a request from before", "aaa", "named", json!({"spec": {"sessionAffinity": "ClientIP"}}), None),
    ]);
    ranges("203.0.113.0/24");
    let outside = ("outside every range", "shop", "new", external(&["192.0.2.200"]), Some(NO_RANGE));
    let inside = |what, ip| ("inside a range", what, "new", external(&[ip]), None);
    check(&[outside, inside("shop", "203.0.113.200")]);
    ranges("10.0.0.0/8\n203.0.113.0/24");
    check(&[inside("shop", "10.1.2.3"), inside("shop", "203.0.113.200")]);
    ranges("");
    check(&[("no ranges at all", "shop", "new", external(&["203.0.113.200"]), Some(NO_RANGE))]);
    assert!(world.api.delete("v1", "ConfigMap", "tidegate-system", "tidegate-external-ips"));
    check(&[("no ConfigMap", "shop", "new", external(&["203.0.113.200"]), None)]);
}

/// A user as impersonation headers. The group gives it every right, so only the policies refuse.
type User = Vec<(&'static str, &'static str)>;

fn user(name: &'static str, more: &[(&'static str, &'static str)]) -> User {
    let user = [("impersonate-user", name), ("impersonate-group", "system:masters")];
    user.into_iter().chain(more.iter().copied()).collect()
}

const FINALIZERS: &str = "may change only finalizers of tidegate.dev/";
const CONDITIONS: &str = "may write only conditions of tidegate.dev/";
const ADDRESSES: &str = "may write addresses only into the status of Services of its class";
const NOT_ITS_OWN: &str = "may write no GatewayStatus but its own";

/// The objects that the accounts change: Services of several classes with and without fields of a gateway, a pool, and
/// two gateways.
fn stored_objects(world: &World) {
    let theirs = json!({"type": "example.com/Ready", "status": "True", "reason": "Theirs", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    for (name, class, ingress) in [
        ("stored", Some("tidegate.dev/gateway"), json!([])),
        ("served", Some("tidegate.dev/gateway"), json!([{"ip": "203.0.113.1"}])),
        ("no-class", None, json!([])),
        ("other", Some("example.com/other"), json!([])),
        ("other-served", Some("example.com/other"), json!([{"ip": "203.0.113.2"}])),
    ] {
        let mut service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "shop", "labels": {"a": "b"}, "finalizers": ["example.com/theirs"]},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
            "status": {"loadBalancer": {"ingress": ingress}, "conditions": [theirs]},
        });
        if let Some(class) = class {
            service["spec"]["loadBalancerClass"] = class.into();
        }
        if name == "served" {
            service["metadata"]["finalizers"] = json!(["example.com/theirs", "tidegate.dev/cleanup"]);
        }
        world.apply(&service.to_string());
    }
    let metadata = json!({"name": "p", "finalizers": ["example.com/theirs"]});
    let pool = json!({"apiVersion": API, "kind": "AddressPool", "metadata": metadata, "spec": {"addresses": ["192.0.2.1"]}});
    world.apply(&pool.to_string());
    let gateway = json!({
        "apiVersion": API, "kind": "GatewayStatus", "metadata": {"name": "edge-2"}, "spec": {"gateway": "edge-2"},
        "status": {"leader": true, "stopped": false, "addresses": ["192.0.2.2"], "appliedResourceVersion": "7",
            "lastHeartbeat": "2026-01-01T00:00:00Z", "conditions": [condition("Ready", "True")]},
    });
    world.apply(&gateway.to_string());
    for name in ["edge-1", "node-a"] {
        let mut other = gateway.clone();
        (other["metadata"]["name"], other["spec"]["gateway"]) = (name.into(), name.into());
        world.apply(&other.to_string());
    }
}

fn condition(kind: &str, status: &str) -> Value {
    json!({"type": kind, "status": status, "reason": "Story", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

/// A write: what, by whom, to which object (API version, kind and name) and subresource, the change, and the policy
/// that refuses it.
type Write<'a> = (&'a str, &'a User, (&'a str, &'a str, String), &'a str, Value, Option<&'a str>);

#[test]
fn accounts_of_gateways_can_write_only_what_is_theirs() {
    needs!(Needs::RealServer, Needs::Version(31));
    let world = cluster();
    allow_ranges(&world, "0.0.0.0/0 ::/0");
    stored_objects(&world);
    let ours = &user("system:serviceaccount:tidegate-system:tidegate", &[]);
    let edge = &user("system:serviceaccount:tidegate-system:tidegate-edge-1", &[]);
    let certificate = &user("tidegate:gateway:edge-1", &[("impersonate-group", "tidegate:gateways")]);
    let node = ("impersonate-extra-authentication.kubernetes.io%2fnode-name", "node-a");
    let pod = &user("system:serviceaccount:tidegate-system:tidegate", &[node]);
    let admin = &user("admin", &[]);
    let theirs = json!({"type": "example.com/Ready", "status": "True", "reason": "Theirs", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let finalizers = |all: &[&str]| json!({"metadata": {"finalizers": all}});
    let both = finalizers(&["example.com/theirs", "tidegate.dev/cleanup"]);
    let status = |ingress: Value| json!({"status": {"loadBalancer": {"ingress": ingress}, "conditions": [theirs, condition("tidegate.dev/Allocated", "True")]}});
    let vip = || status(json!([{"ip": "203.0.113.1", "ipMode": "VIP"}]));
    let ports = json!({"spec": {"ports": [{"port": 81, "protocol": "TCP"}]}});
    let silent = || json!({"status": {"leader": false, "conditions": [condition("Ready", "Unknown")]}});
    let mut moved = silent();
    moved["status"]["addresses"] = json!([]);
    let heartbeat = json!({"status": {"lastHeartbeat": "2026-01-01T00:00:10Z"}});
    let service = |name: &str| ("v1", "Service", name.to_owned());
    let (pool, gateway) = (("AddressPool", "p"), |name: &str| (API, "GatewayStatus", name.to_owned()));
    let pool = || (API, pool.0, pool.1.to_owned());
    let cases: Vec<Write<'_>> = vec![
        ("the finalizer", ours, service("stored"), "", both.clone(), None),
        ("the finalizer off", ours, service("served"), "", finalizers(&["example.com/theirs"]), None),
        ("the finalizer of others off", ours, service("stored"), "", finalizers(&[]), Some(FINALIZERS)),
        (
            "one more of others",
            ours,
            service("stored"),
            "",
            finalizers(&["example.com/theirs", "x.y/z"]),
            Some(FINALIZERS),
        ),
        ("the ports", ours, service("stored"), "", ports.clone(), Some(FINALIZERS)),
        (
            "a selector",
            ours,
            service("stored"),
            "",
            json!({"spec": {"selector": {"app": "x"}}}),
            Some(FINALIZERS),
        ),
        (
            "externalIPs",
            ours,
            service("stored"),
            "",
            json!({"spec": {"externalIPs": ["192.0.2.200"]}}),
            Some(FINALIZERS),
        ),
        ("labels", ours, service("stored"), "", json!({"metadata": {"labels": null}}), Some(FINALIZERS)),
        (
            "annotations",
            edge,
            service("stored"),
            "",
            json!({"metadata": {"annotations": {"a": "b"}}}),
            Some(FINALIZERS),
        ),
        (
            "owners",
            certificate,
            service("stored"),
            "",
            json!({"metadata": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]}}),
            Some(FINALIZERS),
        ),
        ("an admin changes ports", admin, service("stored"), "", ports, None),
        ("the status", ours, service("stored"), "/status", vip(), None),
        ("the status, by certificate", certificate, service("stored"), "/status", vip(), None),
        ("no class", ours, service("no-class"), "/status", vip(), None),
        ("another class", ours, service("other"), "/status", vip(), Some(ADDRESSES)),
        ("another class, taken out", ours, service("other-served"), "/status", status(json!([])), None),
        (
            "conditions of others",
            ours,
            service("stored"),
            "/status",
            json!({"status": {"conditions": []}}),
            Some(CONDITIONS),
        ),
        (
            "link-local",
            ours,
            service("stored"),
            "/status",
            status(json!([{"ip": "169.254.169.254"}])),
            Some(ADDRESSES),
        ),
        (
            "a host name",
            ours,
            service("stored"),
            "/status",
            status(json!([{"hostname": "example.org"}])),
            Some(ADDRESSES),
        ),
        ("everything taken out", ours, service("served"), "/status", status(json!(null)), None),
        ("a pool's finalizer", ours, pool(), "", both, None),
        (
            "a pool's addresses",
            ours,
            pool(),
            "",
            json!({"spec": {"addresses": ["192.0.2.9"]}}),
            Some(FINALIZERS),
        ),
        ("a pool's status", ours, pool(), "/status", json!({"status": {"total": 1}}), None),
        ("its own GatewayStatus", edge, gateway("edge-1"), "/status", heartbeat.clone(), None),
        ("that of another", edge, gateway("edge-2"), "/status", heartbeat.clone(), Some(NOT_ITS_OWN)),
        ("that of another, silent", edge, gateway("edge-2"), "/status", silent(), None),
        ("the addresses of a silent one", edge, gateway("edge-2"), "/status", moved, Some(NOT_ITS_OWN)),
        (
            "that of another, by certificate",
            certificate,
            gateway("edge-2"),
            "/status",
            heartbeat.clone(),
            Some(NOT_ITS_OWN),
        ),
        ("that of its node", pod, gateway("node-a"), "/status", heartbeat.clone(), None),
        ("that of another node", pod, gateway("edge-2"), "/status", heartbeat.clone(), Some(NOT_ITS_OWN)),
        ("an account without a gateway", ours, gateway("edge-2"), "/status", heartbeat, None),
    ];
    for (what, user, (version, kind, name), part, patch, expected) in &cases {
        let path = ObjectPath::new(version, kind, "shop", name).path();
        expect(&world, what, *expected, |admin| {
            let body = Some(("application/merge-patch+json", patch));
            let answer = admin.request_with(user, "PATCH", &format!("{path}{part}?dryRun=All"), body);
            answer.map(drop).map_err(|refusal| refusal.to_string())
        });
    }
    let spec = json!({"type": "LoadBalancer", "ports": [{"port": 80}]});
    let new_service =
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "new"}, "spec": spec});
    let new = |kind: &str, spec: Value| json!({"apiVersion": API, "kind": kind, "metadata": {"name": "edge-3"}, "spec": spec});
    let new_pool = new("AddressPool", json!({"addresses": ["192.0.2.1"]}));
    let new_gateway = new("GatewayStatus", json!({"gateway": "edge-3"}));
    let edge_3 = &user("system:serviceaccount:tidegate-system:tidegate-edge-3", &[]);
    let created: [(&str, &User, &Value, Option<&str>); 6] = [
        ("a new Service", ours, &new_service, Some(FINALIZERS)),
        ("an admin makes a Service", admin, &new_service, None),
        ("a new pool", ours, &new_pool, Some(FINALIZERS)),
        ("an admin makes a pool", admin, &new_pool, None),
        ("its own new GatewayStatus", edge_3, &new_gateway, None),
        ("a new one of another", edge, &new_gateway, Some(NOT_ITS_OWN)),
    ];
    for (what, user, object, expected) in created {
        let path = ObjectPath::new(&text(&object["apiVersion"]), &text(&object["kind"]), "shop", "").path();
        expect(&world, what, expected, |admin| {
            let body = Some(("application/json", object));
            let answer = admin.request_with(user, "POST", &format!("{path}?dryRun=All"), body);
            answer.map(drop).map_err(|refusal| refusal.to_string())
        });
    }
    // No controller removes the finalizers of these objects.
    let release = json!({"metadata": {"finalizers": null}});
    let services = ["stored", "served", "no-class", "other", "other-served"].map(service);
    for (version, kind, name) in services.into_iter().chain([pool()]) {
        let path = ObjectPath::new(version, kind, "shop", &name).path();
        let body = Some(("application/merge-patch+json", &release));
        world.api.admin().request("PATCH", &path, body).expect("legal");
    }
}
