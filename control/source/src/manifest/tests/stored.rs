//! Objects of an API server: none is refused, whatever it contains, and each fault affects only its own part.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};
use tidegate_model::yaml::Node;

use super::*;

fn read(kind: &str, object: &Value) -> (Object, Vec<String>) {
    let node: Node = serde_json::from_value(object.clone()).expect("a tree");
    let (read, report) = decode_stored(&node, kind, format!("{kind} shop/web"));
    let read = read.unwrap_or_else(|| panic!("it is never refused: {object}: {report}"));
    let faults = match &read {
        Object::AddressPool(pool) => pool.faults.clone(),
        other => other.meta().faults.clone(),
    };
    let text = faults.iter().chain(report.iter()).map(|fault| fault.what.clone()).collect();
    (read, text)
}

/// A Service with a finalizer, a deletion time and a status, and a spec with two ports.
fn service_json() -> Value {
    json!({
        "metadata": {
            "name": "web", "namespace": "shop", "uid": "u", "generation": 3, "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-02-01T00:00:00Z",
            "labels": {"app": "web"}, "annotations": {"tidegate.dev/forwarding": "nat"},
            "finalizers": ["tidegate.dev/cleanup"],
            "managedFields": [{"manager": "tidegate", "fieldsV1": {"f:status": {"f:loadBalancer": {"f:ingress": {}}}}}],
        },
        "spec": {
            "type": "LoadBalancer", "loadBalancerClass": "tidegate.dev/gateway",
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}, {"name": "dns", "port": 53, "protocol": "UDP"}],
        },
        "status": {
            "loadBalancer": {"ingress": [{"ip": "203.0.113.5", "ipMode": "Proxy"}]},
            "conditions": [{"type": "tidegate.dev/Allocated", "status": "True"}],
        },
    })
}

fn service_of(object: &Value) -> (Arc<Service>, Vec<String>) {
    match read("Service", object) {
        (Object::Service(service), text) => (service, text),
        (other, _) => panic!("{other:?}"),
    }
}

/// Sets a value at a path of keys and indexes.
fn with(mut object: Value, path: &str, value: Value) -> Value {
    let mut at = &mut object;
    for step in path.split('.') {
        at = match step.parse::<usize>() {
            Ok(index) => &mut at[index],
            Err(_) => &mut at[step],
        };
    }
    *at = value;
    object
}

#[test]
fn metadata_finalizers_deletion_and_status_survive_every_fault() {
    let nonsense = [json!("x y"), json!(-1), json!(true), json!([1]), json!({"a": 1}), json!(["", null])];
    let fields = [
        "spec",
        "spec.type",
        "spec.ports",
        "spec.ports.0",
        "spec.ports.0.name",
        "spec.ports.0.port",
        "spec.ports.0.protocol",
        "spec.ports.0.targetPort",
        "spec.ports.0.nodePort",
        "spec.ports.0.appProtocol",
        "spec.selector",
        "spec.clusterIP",
        "spec.clusterIPs",
        "spec.ipFamilies",
        "spec.ipFamilyPolicy",
        "spec.externalIPs",
        "spec.loadBalancerIP",
        "spec.loadBalancerClass",
        "spec.allocateLoadBalancerNodePorts",
        "spec.loadBalancerSourceRanges",
        "spec.sessionAffinity",
        "spec.sessionAffinityConfig",
        "spec.externalTrafficPolicy",
        "spec.internalTrafficPolicy",
        "spec.healthCheckNodePort",
        "spec.publishNotReadyAddresses",
        "spec.trafficDistribution",
        "metadata.creationTimestamp",
        "metadata.labels",
        "metadata.annotations",
        "metadata.generation",
        "metadata.ownerReferences",
        "metadata.managedFields",
        "status.conditions",
        "status.other",
    ];
    let (valid, none) = service_of(&service_json());
    assert_eq!(none, [] as [String; 0]);
    for field in fields {
        for value in &nonsense {
            let (read, _) = service_of(&with(service_json(), field, value.clone()));
            let context = format!("{field}: {value}");
            assert_eq!((&read.meta.key, &read.meta.uid), (&valid.meta.key, &valid.meta.uid), "{context}");
            assert_eq!(read.meta.deletion_time, valid.meta.deletion_time, "{context}");
            assert_eq!(read.stored.finalizers, valid.stored.finalizers, "{context}");
            assert_eq!(read.ingress_ips, valid.ingress_ips, "{context}");
            assert_eq!(read.stored.ingress, valid.stored.ingress, "{context}");
        }
    }
    for value in nonsense {
        let (read, text) = service_of(&with(service_json(), "metadata.deletionTimestamp", value));
        assert!(read.meta.deletion_time.is_some(), "a deletion is seen whatever its time");
        assert_eq!(text.len(), 1, "{text:?}");
    }
}

/// Whether a Service is as expected.
type Check = fn(&Service) -> bool;

/// Fields with a value, the expected Service, and a part of the report; empty if nothing is to be reported.
fn stored_fields() -> [(&'static str, Value, Check, &'static str); 20] {
    [
        (
            "spec.loadBalancerIP",
            json!("x"),
            |s| s.load_balancer_ip.is_none() && s.unreadable_load_balancer_ip,
            "spec.loadBalancerIP: the text \"x\"",
        ),
        (
            "spec.loadBalancerIP",
            json!("203.000.113.05"),
            |s| s.load_balancer_ip == ip("203.0.113.5") && !s.unreadable_load_balancer_ip,
            "",
        ),
        (
            "spec.externalIPs",
            json!(["x", "203.0.113.9"]),
            |s| s.external_ips.len() == 1,
            "spec.externalIPs[0]: ",
        ),
        (
            "spec.externalIPs",
            json!(["::ffff:203.0.113.9"]),
            |s| s.external_ips.first().copied() == ip("203.0.113.9"),
            "",
        ),
        ("spec.externalIPs", json!(["127.0.0.1"]), |s| s.external_ips.is_empty(), "127.0.0.1 is loopback"),
        ("spec.ports.0.port", json!(0), |s| names(s) == ["dns"], "spec.ports[0].port: the number 0"),
        ("spec.ports.0.protocol", json!("QUIC"), |s| names(s) == ["dns"], "spec.ports[0].protocol: "),
        (
            "spec.ports.0.targetPort",
            json!(70_000),
            |s| names(s) == ["http", "dns"],
            "spec.ports[0].targetPort: ",
        ),
        ("spec.ports.0.nodePort", json!("x"), |s| names(s) == ["http", "dns"], "spec.ports[0].nodePort: "),
        (
            "spec.ports.1.name",
            json!("http"),
            |s| names(s) == ["http"],
            "the name http is already used by spec.ports[0]",
        ),
        ("spec.ports.0.name", json!("An odd name"), |s| names(s) == ["An odd name", "dns"], ""),
        (
            "spec.type",
            json!("Magic"),
            |s| s.service_type == ServiceType::ClusterIp,
            "spec.type: the text \"Magic\"",
        ),
        ("spec.sessionAffinity", json!("Cookie"), |s| s.session_affinity.is_none(), "spec.sessionAffinity: "),
        (
            "spec.externalTrafficPolicy",
            json!("Near"),
            |s| s.external_traffic_policy == TrafficPolicy::Cluster,
            "Near",
        ),
        ("spec.ipFamilyPolicy", json!("Both"), |s| s.ip_family_policy == IpFamilyPolicy::SingleStack, "Both"),
        ("spec.trafficDistribution", json!("PreferNear"), |s| s.ports.len() == 2, ""),
        (
            "metadata.labels",
            json!({"a": 1, "b": "not a value!"}),
            |s| s.meta.labels.len() == 1,
            "metadata.labels[a]: ",
        ),
        ("metadata.annotations", json!({"UPPER/x": "1", "a b": "2"}), |s| s.meta.annotations.len() == 2, ""),
        (
            "metadata.finalizers",
            json!([1, "tidegate.dev/cleanup"]),
            |s| s.stored.is_finalized_by_us(),
            "metadata.finalizers[0]: ",
        ),
        (
            "status.loadBalancer.ingress",
            json!([{"ip": "x"}, {"ip": "203.0.113.006"}]),
            |s| Some(s.ingress_ips.clone()) == ip("203.0.113.6").map(|ip| vec![ip]),
            "status.loadBalancer.ingress[0].ip: ",
        ),
    ]
}

#[test]
fn an_invalid_field_affects_only_itself_and_is_reported() {
    for (field, value, check, expected) in stored_fields() {
        let (service, text) = service_of(&with(service_json(), field, value.clone()));
        assert!(check(&service), "{field}: {value}: {service:?}");
        match expected {
            "" => assert_eq!(text, [] as [String; 0], "{field}: {value}"),
            expected => assert!(text.iter().any(|one| one.contains(expected)), "{field}: {value}: {text:?}"),
        }
    }
}

fn ip(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}

fn names(service: &Service) -> Vec<&str> {
    service.ports.iter().map(|port| port.name.as_str()).collect()
}

#[test]
fn invalid_source_ranges_admit_no_client() {
    let admits = |ranges: &[IpNet], client: &str| {
        let client = ip(client).expect("an address");
        ranges.is_empty() || ranges.iter().any(|range| range.contains(&client))
    };
    let field = |ranges: Value| with(service_json(), "spec.loadBalancerSourceRanges", ranges);
    let annotation = |ranges: &str| {
        let annotations = json!({"service.beta.kubernetes.io/load-balancer-source-ranges": ranges});
        with(service_json(), "metadata.annotations", annotations)
    };
    for object in [field(json!(["x"])), field(json!([1])), annotation("x"), annotation("10.0.0.0/33,")] {
        let (service, text) = service_of(&object);
        assert!(!text.is_empty());
        for client in ["192.0.2.1", "2001:db8::1"] {
            assert!(!admits(&service.source_ranges, client), "{object}");
        }
    }
    let (service, _) = service_of(&field(json!(["x", " 010.0.0.0/8"])));
    assert!(admits(&service.source_ranges, "10.1.2.3"), "valid ranges are used");
    assert!(!admits(&service.source_ranges, "192.0.2.1") && !admits(&service.source_ranges, "2001:db8::1"));
}

#[test]
fn an_unreadable_class_does_not_count_as_absent() {
    let (service, text) = service_of(&with(service_json(), "spec.loadBalancerClass", json!(7)));
    assert_eq!(service.load_balancer_class.as_deref(), Some(""));
    assert_eq!(text.len(), 1);
}

#[test]
fn a_name_is_used_unchanged() {
    for name in ["1st", "UPPER_case", "a.b"] {
        let (service, text) = service_of(&with(service_json(), "metadata.name", json!(name)));
        assert_eq!((service.meta.key.name.as_str(), text.len()), (name, 0));
    }
}

#[test]
fn a_fault_in_a_slice_costs_only_its_port_or_endpoint() {
    let slice = |ports: Value, endpoints: Value| {
        let object = json!({
            "metadata": {"name": "web-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4", "ports": ports, "endpoints": endpoints,
        });
        match read("EndpointSlice", &object) {
            (Object::EndpointSlice(slice), text) => (slice, text),
            (other, _) => panic!("{other:?}"),
        }
    };
    let ports = json!([
        {"name": "a", "port": 0}, {"name": "b", "port": 8080}, {"name": "c", "port": 70_000},
        {"name": "d", "port": 1, "protocol": "QUIC"}, {"name": "b", "port": 9}, "x", {"name": "Odd One", "port": 5},
    ]);
    let (read, text) = slice(ports, json!([]));
    let usable: Vec<(&str, u16)> =
        read.ports.iter().filter_map(|port| Some((port.name.as_str(), port.port?.get()))).collect();
    assert_eq!(usable, [("b", 8080), ("Odd One", 5)]);
    assert_eq!(text.len(), 5, "{text:?}");
    let endpoints = json!([
        {"addresses": ["010.0.0.01"]}, {"addresses": ["x"]}, {"addresses": ["::1"]}, {"addresses": []}, {}, "x",
        {"addresses": ["::ffff:10.0.0.2", "x"], "conditions": {"ready": "yes"}, "hints": {"forZones": "z", "forNodes": [{"name": "n1"}]}},
    ]);
    let (read, text) = slice(json!([]), endpoints);
    let addresses: Vec<String> =
        read.endpoints.iter().filter_map(|endpoint| endpoint.address).map(|ip| ip.to_string()).collect();
    assert_eq!(addresses, ["10.0.0.1", "10.0.0.2"]);
    assert_eq!(read.endpoints.last().expect("the last").hint_nodes, ["n1"]);
    assert!(text.len() >= 6, "{text:?}");
    let many: Vec<Value> =
        (0..1_500).map(|i| json!({"addresses": [format!("10.1.{}.{}", i / 250, i % 250)]})).collect();
    let (read, text) = slice(json!([]), json!(many));
    assert_eq!((read.endpoints.len(), text.len()), (1_500, 0), "the limits are those of the writer");
}

#[test]
fn faults_of_one_object_are_reported_up_to_a_limit() {
    let endpoints: Vec<Value> = (0..1_000).map(|i| json!({"addresses": [format!("bad-{i}")]})).collect();
    let object = json!({
        "metadata": {"name": "web-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "endpoints": endpoints,
    });
    let (_, text) = read("EndpointSlice", &object);
    assert_eq!(text.len(), 9);
    assert_eq!(text[8], "EndpointSlice has 1000 errors; the first 8 are reported");
}

#[test]
fn an_unknown_address_type_costs_the_endpoints_not_the_slice() {
    let object = json!({
        "metadata": {"name": "web-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv9", "endpoints": [{"addresses": ["10.0.0.1"]}],
    });
    let (read, text) = read("EndpointSlice", &object);
    let Object::EndpointSlice(slice) = read else { panic!("a slice") };
    assert_eq!((slice.address_type, slice.endpoints[0].address), (AddressType::Unknown, None));
    assert_eq!(text, ["addressType: the text \"IPv9\" is not accepted"]);
}

#[test]
fn nodes_pods_namespaces_and_pools_keep_their_valid_parts() {
    let node = json!({
        "metadata": {"name": "n1"}, "spec": {"podCIDRs": ["x", "010.0.0.0/24"]},
        "status": {"addresses": ["x", {"type": "InternalIP", "address": "y"}, {"type": "InternalIP", "address": "10.9.0.1"}]},
    });
    let (Object::Node(node), text) = read("Node", &node) else { panic!("a Node") };
    assert_eq!((node.pod_cidrs.len(), node.internal_ips.len(), text.len()), (1, 1, 3), "{text:?}");
    let pod = json!({"metadata": {"name": "p", "namespace": "shop", "annotations": {"tidegate.dev/weight": "3", "a": 1}}});
    let (Object::Pod(pod), text) = read("Pod", &pod) else { panic!("a Pod") };
    assert_eq!((pod.meta.annotations.len(), text.len()), (1, 1));
    let (Object::Namespace(namespace), _) =
        read("Namespace", &json!({"metadata": {"name": "shop", "labels": "x"}}))
    else {
        panic!("a Namespace")
    };
    assert_eq!(namespace.meta.key.name, "shop");
    let pool = json!({"metadata": {"name": "p"}, "spec": {"addresses": ["203.0.113.0/28", "x"]}});
    let (Object::AddressPool(pool), text) = read("AddressPool", &pool) else { panic!("an AddressPool") };
    assert_eq!((pool.pool.ranges.len(), pool.faults.len(), text.len()), (1, 1, 1));
}

#[test]
fn a_pool_with_unreadable_limits_assigns_no_address() {
    let labels: tidegate_model::objects::Labels = [("team".to_owned(), "a".to_owned())].into();
    let whole = json!({
        "metadata": {"name": "p"},
        "spec": {
            "addresses": ["203.0.113.0/28"], "disabled": false, "quotaPerNamespace": 3,
            "namespaceSelector": {
                "matchLabels": {"team": "a"}, "matchExpressions": [{"key": "team", "operator": "Exists"}]
            },
            "serviceSelector": {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["b"]}]},
        },
    });
    let gives = |object: &Value| {
        let (Object::AddressPool(read), text) = read("AddressPool", object) else { panic!("an AddressPool") };
        let pool = &read.pool;
        let gives = pool.admits(&labels, &labels) && !pool.disabled && pool.quota_per_namespace != Some(0);
        (gives, text.len())
    };
    assert_eq!(gives(&whole), (true, 0));
    let faults = [
        ("spec.namespaceSelector", json!("team=a")),
        ("spec.namespaceSelector.matchLabels", json!(["team"])),
        ("spec.namespaceSelector.matchLabels.team", json!(5)),
        ("spec.namespaceSelector.matchExpressions", json!("team")),
        ("spec.namespaceSelector.matchExpressions.0.operator", json!("Is")),
        ("spec.namespaceSelector.matchExpressions.0.key", json!("a b")),
        ("spec.namespaceSelector.matchEverything", json!(true)),
        ("spec.serviceSelector.matchExpressions.0.values", json!([])),
        ("spec.serviceSelector.matchExpressions.0.values", json!(["b", 5])),
        ("spec.serviceSelector.matchExpressions.0", json!(null)),
        ("spec.quotaPerNamespace", json!("three")),
        ("spec.disabled", json!("no")),
    ];
    for (path, fault) in faults {
        let (gives, text) = gives(&with(whole.clone(), path, fault.clone()));
        assert!(!gives && text > 0, "{path}: {fault}: {text} faults");
    }
}

/// The paths of all fields of an object, for [`with`].
fn paths(object: &Value, at: &str, found: &mut Vec<String>) {
    // The keys of these are data, not fields.
    let is_data =
        ["labels", "annotations", "selector", "matchLabels", "fieldsV1"].iter().any(|end| at.ends_with(end));
    let below: Vec<(String, &Value)> = match object {
        Value::Object(fields) if !is_data => fields.iter().map(|(key, value)| (key.clone(), value)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(i, value)| (i.to_string(), value)).collect(),
        _ => Vec::new(),
    };
    for (step, value) in below {
        let path = if at.is_empty() { step } else { format!("{at}.{step}") };
        paths(value, &path, found);
        if object.is_object() {
            found.push(path);
        }
    }
}

fn without(mut object: Value, path: &str) -> Value {
    let pointer = format!("/{}", path.replace('.', "/"));
    let (parent, key) = pointer.rsplit_once('/').expect("it begins with one");
    let parent = object.pointer_mut(parent).and_then(Value::as_object_mut);
    parent.and_then(|fields| fields.remove(key)).expect("the path is one of the object");
    object
}

#[test]
fn a_null_in_any_field_counts_as_absent() {
    let metadata = json!({"name": "a", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}});
    let slice = json!({
        "metadata": metadata, "addressType": "IPv4", "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
        "endpoints": [{
            "addresses": ["10.0.0.1"], "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": "n1", "zone": "z", "hints": {"forZones": [{"name": "z"}], "forNodes": [{"name": "n1"}]},
            "targetRef": {"kind": "Pod", "namespace": "shop", "name": "p"},
        }],
    });
    let node = json!({
        "metadata": {"name": "n1", "annotations": {"a": "b"}},
        "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"], "taints": [{"key": "a", "effect": "NoSchedule"}]},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.9.0.1"}]},
    });
    let pool = json!({
        "metadata": {"name": "p", "finalizers": ["tidegate.dev/cleanup"]},
        "spec": {
            "addresses": ["203.0.113.0/28"], "autoAssign": true, "quotaPerNamespace": 3,
            "namespaceSelector": {"matchLabels": {"team": "a"}, "matchExpressions": [{"key": "a", "operator": "Exists"}]},
        },
        "status": {"total": 16, "conditions": [{"type": "InUse", "status": "True"}]},
    });
    let objects = [
        ("Service", service_json()),
        ("EndpointSlice", slice),
        ("Node", node),
        ("Pod", json!({"metadata": metadata})),
        ("Namespace", json!({"metadata": {"name": "shop", "labels": {"a": "b"}}})),
        ("AddressPool", pool),
    ];
    for (kind, object) in objects {
        let mut all = Vec::new();
        paths(&object, "", &mut all);
        for path in all {
            let is_null = read(kind, &with(object.clone(), &path, Value::Null));
            assert_eq!(is_null, read(kind, &without(object.clone(), &path)), "{kind}: {path}");
        }
    }
}
