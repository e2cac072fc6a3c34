//! One model for two sources: objects have the same result through the API server and through a directory.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use tidegate_model::objects::EndpointSlice;

use super::super::object::Received;
use super::*;
use crate::directory::DirectorySource;

/// Whether the label selectors of `KINDS` include the object.
fn is_watched(object: &Value) -> bool {
    let label = |key: &str| object["metadata"]["labels"].get(key).is_some();
    match object["kind"].as_str() {
        Some("EndpointSlice") => {
            !label("service.kubernetes.io/service-proxy-name") && label("kubernetes.io/service-name")
        }
        _ => true,
    }
}

fn through_the_api(objects: &[Value]) -> (Objects, Report) {
    let (mut all, mut report) = (Objects::default(), Report::new());
    for object in objects.iter().filter(|o| is_watched(o)) {
        let kind =
            KINDS.iter().find(|k| Some(k.name) == object["kind"].as_str()).expect("a kind that is watched");
        let mut stored = object.clone();
        // Make the object like a stored one: an API server sets the namespace, and records its own field managers.
        if matches!(kind.name, "Service" | "EndpointSlice" | "Pod")
            && stored["metadata"]["namespace"].is_null()
        {
            stored["metadata"]["namespace"] = "default".into();
        }
        stored["metadata"]["resourceVersion"] = "17".into();
        stored["metadata"]["managedFields"] = json!([{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]);
        let node = serde_json::from_value(stored).expect("a tree");
        let received = Received::new(kind, node).expect("it has a name");
        report.merge(&received.report);
        if let Some(object) = received.content.object() {
            object.meta().faults.iter().for_each(|fault| report.push(fault.clone()));
            (kind.put)(&mut all, &received.key, object);
        }
    }
    (all, report)
}

/// The objects that the directory has, too. It refuses the others because of their faults.
fn accepted_by(directory: &Objects, api: &Objects) -> Objects {
    let mut accepted = api.clone();
    for (key, _) in api.services.iter().filter(|(key, _)| !directory.services.contains_key(*key)) {
        accepted.services.remove(key);
    }
    for (key, _) in
        api.endpoint_slices.iter().filter(|(key, _)| !directory.endpoint_slices.contains_key(*key))
    {
        accepted.endpoint_slices.remove(key);
    }
    without_locations(&accepted)
}

/// The objects, with the faults of EndpointSlices sorted by their text and without locations: one source names a line,
/// the other an object.
fn without_locations(objects: &Objects) -> Objects {
    let mut changed = objects.clone();
    for (key, slice) in objects.endpoint_slices.iter().filter(|(_, slice)| !slice.meta.faults.is_empty()) {
        let mut slice = EndpointSlice::clone(slice);
        slice.meta.faults.iter_mut().for_each(|fault| fault.location = None);
        slice.meta.faults.sort_by(|a, b| a.what.cmp(&b.what));
        changed.endpoint_slices.insert(key.clone(), Arc::new(slice));
    }
    changed
}

fn through_a_directory(objects: &[Value], files: usize) -> (Objects, Report) {
    let directory = tempfile::tempdir().expect("a directory");
    for (n, part) in objects.chunks(objects.len().div_ceil(files).max(1)).enumerate() {
        let text: Vec<String> = part.iter().map(Value::to_string).collect();
        std::fs::write(directory.path().join(format!("{n}.yaml")), text.join("\n---\n")).expect("ours");
    }
    DirectorySource::load(directory.path())
}

fn some<T: std::fmt::Debug + Clone + 'static>(
    strategy: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = Option<T>> {
    proptest::option::of(strategy)
}

fn metadata(name: String) -> impl Strategy<Value = Value> {
    let annotation = prop_oneof![
        4 => Just(json!({})),
        1 => Just(json!({"tidegate.dev/forwarding": "nat"})),
        1 => Just(json!({"tidegate.dev/forwarding": "sideways"})),
        1 => Just(json!({"tidegate.dev/load-balancer-ips": "203.0.113.5"})),
        1 => Just(json!({"service.beta.kubernetes.io/load-balancer-source-ranges": "192.0.2.0/24"})),
        1 => Just(json!({"a b": "not a key"})),
    ];
    let label = prop_oneof![
        6 => Just(json!({"app": "web"})),
        1 => Just(json!({"service.kubernetes.io/service-proxy-name": "other"})),
        1 => Just(json!({"bad": "not a value!"})),
    ];
    let time = prop_oneof![Just(Value::Null), Just(json!("2026-01-01T00:00:00Z"))];
    (annotation, label, time, any::<bool>()).prop_map(move |(annotations, labels, created, known)| {
        let mut metadata =
            json!({"name": name, "annotations": annotations, "labels": labels, "creationTimestamp": created});
        if known {
            metadata["uid"] = format!("uid-of-{name}").into();
            metadata["namespace"] = "shop".into();
        }
        metadata
    })
}

fn ports(node_ports: Option<u16>) -> impl Strategy<Value = Value> {
    let protocol = prop_oneof![3 => Just("TCP"), 2 => Just("UDP"), 1 => Just("SCTP"), 1 => Just("ICMP")];
    let port = prop_oneof![8 => 80_u32..84, 1 => Just(0), 1 => Just(70_000)];
    let target = prop_oneof![
        Just(Value::Null),
        Just(json!(8080)),
        Just(json!("http")),
        Just(json!("not a port name"))
    ];
    let one = (some(protocol), port, target);
    proptest::collection::vec(one, 0..3).prop_map(move |all| {
        let ports = all.into_iter().enumerate().map(|(n, (protocol, port, target))| {
            let mut one = json!({"name": format!("p{n}"), "port": port});
            if let Some(protocol) = protocol {
                one["protocol"] = protocol.into();
            }
            if !target.is_null() {
                one["targetPort"] = target;
            }
            if let Some(first) = node_ports {
                one["nodePort"] = (first + u16::try_from(n).expect("few")).into();
            }
            one
        });
        ports.collect()
    })
}

fn service(n: u16) -> impl Strategy<Value = Value> {
    let kinds = prop_oneof![
        5 => Just("LoadBalancer"), 2 => Just("ClusterIP"), 1 => Just("NodePort"), 1 => Just("ExternalName"), 1 => Just("Balancer"),
    ];
    kinds.prop_flat_map(move |kind| {
        let numbered = matches!(kind, "LoadBalancer" | "NodePort").then_some(30_000 + 10 * n);
        let class = prop_oneof![Just(Value::Null), Just(json!("tidegate.dev/gateway")), Just(json!("example.com/other"))];
        let families = prop_oneof![
            Just(Value::Null), Just(json!(["IPv4"])), Just(json!(["IPv6", "IPv4"])), Just(json!(["IPv4", "IPv4"])),
        ];
        let ranges = prop_oneof![
            4 => Just(Value::Null), 1 => Just(json!([" 192.0.2.0/24 ", "2001:db8::/32"])), 1 => Just(json!(["192.0.2.0/33"])),
        ];
        let external = prop_oneof![4 => Just(Value::Null), 1 => Just(json!(["198.51.100.7"])), 1 => Just(json!(["127.0.0.1"]))];
        let affinity = prop_oneof![
            Just(Value::Null), Just(json!("ClientIP")), Just(json!("None")),
        ];
        let ingress = prop_oneof![Just(Value::Null), Just(json!([{"ip": "203.0.113.9", "ipMode": "VIP"}]))];
        let rest = (class, families, ranges, external, affinity, any::<bool>(), any::<bool>(), ingress);
        (metadata(format!("s{n}")), ports(numbered), rest).prop_map(
            move |(metadata, ports, (class, families, ranges, external, affinity, local, headless, ingress))| {
                let is_load_balancer = kind == "LoadBalancer";
                let mut spec = json!({"type": kind, "ports": ports, "selector": {"app": "web"}});
                let mut set = |key: &str, value: Value| {
                    if !value.is_null() {
                        spec[key] = value;
                    }
                };
                if is_load_balancer {
                    set("loadBalancerClass", class);
                    set("loadBalancerSourceRanges", ranges);
                }
                set("ipFamilies", families);
                set("externalIPs", external);
                set("sessionAffinity", affinity);
                if local && numbered.is_some() {
                    set("externalTrafficPolicy", "Local".into());
                    if is_load_balancer {
                        set("healthCheckNodePort", (32_000 + n).into());
                    }
                }
                if kind == "ExternalName" {
                    set("externalName", "db.example.com".into());
                }
                if headless && kind == "ClusterIP" {
                    set("clusterIP", "None".into());
                }
                json!({
                    "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec,
                    "status": {"loadBalancer": {"ingress": ingress}},
                })
            },
        )
    })
}

fn slice(n: usize, services: u16) -> impl Strategy<Value = Value> {
    let address = prop_oneof![6 => (1_u8..9).prop_map(|h| format!("10.0.1.{h}")), 1 => Just("127.0.0.1".to_owned()), 1 => Just("nowhere".to_owned())];
    let condition = || some(any::<bool>());
    let endpoint =
        (address, condition(), condition(), condition(), some(0_u8..3), some("[ab]"), some("z[12]"));
    let endpoint = endpoint.prop_map(|(address, ready, serving, terminating, node, zone, hint)| {
        let mut one = json!({"addresses": [address], "conditions": {"ready": ready, "serving": serving, "terminating": terminating}});
        if let Some(node) = node {
            one["nodeName"] = format!("n{node}").into();
            one["targetRef"] = json!({"kind": "Pod", "name": format!("pod-{address}"), "uid": "u"});
        }
        if let Some(zone) = zone {
            one["zone"] = zone.into();
        }
        if let Some(hint) = hint {
            one["hints"] = json!({"forZones": [{"name": hint}]});
        }
        one
    });
    let ports = proptest::collection::vec((0_u8..3, some(8080_u16..8083), some(Just("UDP"))), 0..3);
    let endpoints = proptest::collection::vec(endpoint, 0..6);
    (0..services + 1, any::<bool>(), prop_oneof![8 => Just(Value::Null), 1 => Just(json!(""))], ports, endpoints).prop_map(
        move |(service, known, headless, ports, endpoints)| {
            let ports: Vec<Value> = ports
                .into_iter()
                .map(|(name, port, protocol)| json!({"name": format!("p{name}"), "port": port, "protocol": protocol}))
                .collect();
            let mut labels = json!({"kubernetes.io/service-name": format!("s{service}")});
            if !headless.is_null() {
                labels["service.kubernetes.io/headless"] = headless;
            }
            let mut metadata = json!({"name": format!("e{n}"), "labels": labels});
            if known {
                metadata["namespace"] = "shop".into();
            }
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata,
                "addressType": "IPv4", "ports": ports, "endpoints": endpoints,
            })
        },
    )
}

fn others() -> impl Strategy<Value = Vec<Value>> {
    let node = (0_u8..3, some("z[12]"), any::<bool>()).prop_map(|(n, zone, weighed)| {
        let mut labels = json!({"kubernetes.io/hostname": format!("n{n}")});
        if let Some(zone) = zone {
            labels["topology.kubernetes.io/zone"] = zone.into();
        }
        let annotations = if weighed { json!({"tidegate.dev/weight": "3"}) } else { json!({}) };
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": format!("n{n}"), "labels": labels, "annotations": annotations},
            "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"], "unschedulable": weighed},
            "status": {"addresses": [{"type": "InternalIP", "address": format!("10.0.9.{n}")}], "phase": "Running"},
        })
    });
    let namespace = Just(json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"team": "a"}},
        "status": {"phase": "Active"},
    }));
    let pool = Just(json!({
        "apiVersion": "tidegate.dev/v1alpha1", "kind": "AddressPool", "metadata": {"name": "more", "generation": 2},
        "spec": {"addresses": ["192.0.2.16/28"]},
    }));
    let others = (proptest::collection::vec(node, 0..3), some(namespace), some(pool));
    others.prop_map(|(nodes, namespace, pool)| {
        let mut seen = BTreeSet::new();
        let nodes = nodes.into_iter().filter(|n| seen.insert(n["metadata"]["name"].to_string()));
        nodes.chain(namespace).chain(pool).collect::<Vec<_>>()
    })
}

/// A set of valid and invalid objects with unique names.
fn objects() -> impl Strategy<Value = Vec<Value>> {
    (1_u16..6).prop_flat_map(|count| {
        let services: Vec<_> = (0..count).map(service).collect();
        let slices: Vec<_> = (0..8).map(|n| slice(n, count)).collect();
        (services, slices, others())
            .prop_map(|(services, slices, others)| services.into_iter().chain(slices).chain(others).collect())
    })
}

/// The faults without their locations: field and reason.
fn faults(report: &Report) -> BTreeSet<String> {
    report.errors().map(|d| d.what.clone()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn both_sources_give_the_same_result_for_the_same_objects(objects in objects(), files in 1_usize..4) {
        let (mut all, refused) = through_the_api(&objects);
        let (directory, report) = through_a_directory(&objects, files);
        let of_kind = |kind: &str| objects.iter().filter(|o| o["kind"] == kind && is_watched(o)).count();
        prop_assert_eq!(all.services.len(), of_kind("Service"), "none is refused");
        prop_assert_eq!(all.endpoint_slices.len(), of_kind("EndpointSlice"), "none is refused");
        crate::slices::remove_unused(&mut all);
        let api = accepted_by(&directory, &all);
        prop_assert_eq!(&api, &without_locations(&directory));
        let (named, placed) = (faults(&refused), faults(&report));
        prop_assert!(named.is_subset(&placed), "{:?}", named.difference(&placed));
        for fault in refused.iter() {
            let text = fault.to_string();
            let place = ["Service ", "EndpointSlice ", "Node ", "Namespace "].iter().any(|kind| text.starts_with(kind));
            prop_assert!(place, "an object is named instead of a line: {}", text);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn what_an_api_server_stored_is_the_same_from_a_directory(objects in objects()) {
        let world = World::new();
        let taken = objects.into_iter().filter(|o| world.server.put(o.clone()).is_ok()).count();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let update = runtime.block_on(async {
            let source = world.start();
            until(&source, "objects", |_| true).await
        });
        let kinds = [("v1", "Service"), ("discovery.k8s.io/v1", "EndpointSlice"), ("v1", "Node"), ("v1", "Namespace")];
        let stored: Vec<Value> = kinds.iter().flat_map(|(version, kind)| world.server.list(version, kind, "")).collect();
        prop_assert!(taken == 0 || !stored.is_empty());
        let (directory, _) = through_a_directory(&stored, 1);
        let accepted = accepted_by(&directory, &update.objects);
        prop_assert_eq!(&accepted, &without_locations(&directory));
    }
}

#[test]
fn an_unusable_field_is_reported_with_its_object_and_affects_nothing_else() {
    let object = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"ports": [{"name": "a", "port": 0}, {"name": "b", "port": 80}], "newField": 1},
    });
    let (objects, report) = through_the_api(&[object]);
    let ports: Vec<&str> =
        objects.services[&key("web")].ports.iter().map(|port| port.name.as_str()).collect();
    assert_eq!(ports, ["b"]);
    assert_eq!(
        report.to_string(),
        "Service shop/web: error: spec.ports[0].port: the number 0 is not accepted; accepted: a whole number from 1 to 65535\n"
    );
}
