//! Objects of the Gateway API, in files and stored ones.

use serde_json::{Value, json};
use tidegate_model::objects::gateway_api::{
    BackendRef, FromNamespaces, Gateway, GatewayAddress, GrantTo, Listener, ParentRef, Route, RouteKind,
};
use tidegate_model::objects::{FINALIZER, Port};
use tidegate_model::yaml::Node;

use super::*;

/// 4 lines; keys of `spec` can follow.
fn head(kind: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: a, namespace: shop}}\nspec:\n"
    )
}

fn gateway(rest: &str) -> Arc<Gateway> {
    match one(&format!("{}{rest}", head("Gateway"))) {
        Object::Gateway(gateway) => gateway,
        other => panic!("{other:?}"),
    }
}

fn route(kind: &str, rest: &str) -> Arc<Route> {
    match one(&format!("{}{rest}", head(kind))) {
        Object::TCPRoute(route) | Object::UDPRoute(route) => route,
        other => panic!("{other:?}"),
    }
}

/// The object, and its faults as text.
fn stored(kind: &str, object: &Value) -> (Object, Vec<String>) {
    let node: Node = serde_json::from_value(object.clone()).expect("a tree");
    let (read, report) = decode_stored(&node, kind, format!("{kind} shop/a"));
    assert!(report.is_empty(), "its faults are in its metadata: {report}");
    let read = read.unwrap_or_else(|| panic!("it is never refused: {object}"));
    let faults = read.meta().faults.iter().map(|fault| fault.what.clone()).collect();
    (read, faults)
}

fn stored_listeners(kind: &str, listeners: &Value) -> (Vec<Listener>, Vec<String>) {
    let spec = json!({"gatewayClassName": "t", "parentRef": {"name": "g"}, "listeners": listeners});
    match stored(kind, &json!({"metadata": {"name": "a", "namespace": "shop"}, "spec": spec})) {
        (Object::Gateway(gateway), faults) => (gateway.listeners.clone(), faults),
        (Object::ListenerSet(set), faults) => (set.listeners.clone(), faults),
        (other, _) => panic!("{other:?}"),
    }
}

fn port(number: u16) -> Port {
    Port::new(number).expect("not zero")
}

#[test]
fn a_minimal_gateway_gets_the_defaults_of_the_definition() {
    let gateway = gateway("  gatewayClassName: t\n  listeners: [{name: a, port: 53, protocol: UDP}]\n");
    assert_eq!((gateway.meta.key.to_string().as_str(), gateway.class.as_str()), ("shop/a", "t"));
    let listener = Listener {
        name: "a".into(),
        hostname: None,
        port: port(53),
        protocol: "UDP".into(),
        allowed_kinds: vec![],
        allowed_namespaces: FromNamespaces::Same,
    };
    assert_eq!(gateway.listeners, [listener]);
    let expected = Gateway {
        meta: gateway.meta.clone(),
        class: "t".into(),
        listeners: gateway.listeners.clone(),
        ..Gateway::default()
    };
    assert_eq!(*gateway, expected);
}

#[test]
fn every_field_of_a_gateway_arrives() {
    let text = "\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: a, generation: 7, finalizers: [tidegate.dev/cleanup]}
spec:
  gatewayClassName: t
  addresses: [{value: '2001:DB8::1'}, {type: IPAddress}, {type: Hostname, value: '*.example.com'}, {type: x.io/y, value: z}]
  infrastructure:
    labels: {a: b}
    annotations: {tidegate.dev/forwarding: nat, service.beta.kubernetes.io/load-balancer-source-ranges: 198.51.100.0/24}
    parametersRef: {group: '', kind: ConfigMap, name: p}
  allowedListeners: {namespaces: {from: Selector, selector: {matchLabels: {team: a}}}}
  tls: {backend: {clientCertificateRef: {name: c}}}
  listeners:
  - {name: a, port: 80, protocol: TCP, allowedRoutes: {kinds: [{kind: TCPRoute}, {group: x.io, kind: Yy}], namespaces: {from: All}}}
  - {name: b, port: 443, protocol: HTTPS, hostname: '*.example.com', tls: {certificateRefs: [{name: c}]}}
  - {name: c, port: 443, protocol: HTTPS, hostname: example.com}
  - {name: d, port: 443, protocol: example.com/proto}
status:
  addresses: [{type: IPAddress, value: 203.0.113.5}, {value: 203.0.113.6}]
  attachedListenerSets: 2
  conditions: [{type: Programmed, status: 'True', reason: R, message: m, observedGeneration: 7, lastTransitionTime: 2026-01-01T00:00:00Z}]
  listeners: [{name: a, attachedRoutes: 3, supportedKinds: [{kind: TCPRoute}], conditions: [{type: Accepted, status: 'True'}]}]
";
    let Object::Gateway(gateway) = one(text) else { panic!("not a Gateway") };
    let address = |kind: &str, value: &str| GatewayAddress { kind: kind.into(), value: value.into() };
    assert_eq!((gateway.generation, &*gateway.finalizers), (7, &[FINALIZER.to_owned()][..]));
    assert_eq!(
        gateway.addresses,
        [
            address("IPAddress", "2001:db8::1"),
            address("IPAddress", ""),
            address("Hostname", "*.example.com"),
            address("x.io/y", "z"),
        ]
    );
    assert_eq!(gateway.infrastructure_labels["a"], "b");
    assert_eq!(gateway.infrastructure_annotations["tidegate.dev/forwarding"], "nat");
    assert_eq!(gateway.source_ranges, ["198.51.100.0/24".parse().expect("a network")]);
    assert!(gateway.has_parameters);
    let FromNamespaces::Selector(selector) = &gateway.allowed_listeners else { panic!("{gateway:?}") };
    assert_eq!(selector.to_string(), "team=a");
    let kind = |group: &str, kind: &str| RouteKind { group: group.into(), kind: kind.into() };
    let kinds = [kind("gateway.networking.k8s.io", "TCPRoute"), kind("x.io", "Yy")];
    assert_eq!(gateway.listeners[0].allowed_kinds, kinds);
    assert_eq!(gateway.listeners[0].allowed_namespaces, FromNamespaces::All);
    let hostnames: Vec<_> = gateway.listeners.iter().map(|l| l.hostname.as_deref()).collect();
    assert_eq!(hostnames, [None, Some("*.example.com"), Some("example.com"), None]);
    let status = &gateway.status;
    assert_eq!(status.addresses, [address("IPAddress", "203.0.113.5"), address("IPAddress", "203.0.113.6")]);
    assert_eq!((status.attached_listener_sets, status.conditions[0].observed_generation), (Some(2), 7));
    let listener = &status.listeners[0];
    assert_eq!((listener.name.as_str(), listener.attached_routes, listener.conditions.len()), ("a", 3, 1));
    assert_eq!(listener.supported_kinds, kinds[..1]);
}

#[test]
fn invalid_source_ranges_of_a_gateway_admit_no_client() {
    let key = "service.beta.kubernetes.io/load-balancer-source-ranges";
    let spec = json!({
        "gatewayClassName": "t", "listeners": [{"name": "a", "port": 80, "protocol": "TCP"}],
        "infrastructure": {"annotations": {key: "198.51.100.0/24, x"}},
    });
    let object = json!({"metadata": {"name": "a", "namespace": "shop"}, "spec": spec});
    let (Object::Gateway(gateway), faults) = stored("Gateway", &object) else { panic!("not a Gateway") };
    let ranges: Vec<String> = gateway.source_ranges.iter().map(ToString::to_string).collect();
    assert_eq!(ranges, ["198.51.100.0/24", "::/128"], "no client has this IPv6 address");
    let fault = format!("spec.infrastructure.annotations[{key}]: \" x\" is not accepted");
    assert_eq!(faults, [fault]);
}

#[test]
fn every_field_of_a_route_arrives() {
    let text = "  parentRefs: [{name: g}, {namespace: ns, name: g, kind: ListenerSet, sectionName: s, port: 53}]\n  \
        rules:\n  - name: r\n    backendRefs: [{name: s, port: 80}, {name: s, namespace: ns, port: 81, weight: 0}, \
        {group: x.io, kind: Yy, name: z}]\nstatus: {parents: [{parentRef: {name: g}, controllerName: x.io/y, \
        conditions: [{type: Accepted, status: 'True'}]}]}\n";
    for (kind, protocol) in [("TCPRoute", Protocol::Tcp), ("UDPRoute", Protocol::Udp)] {
        let route = route(kind, text);
        assert_eq!((route.kind(), route.protocol), (kind, protocol));
        let first = ParentRef {
            group: "gateway.networking.k8s.io".into(),
            kind: "Gateway".into(),
            name: "g".into(),
            ..ParentRef::default()
        };
        let second = ParentRef {
            kind: "ListenerSet".into(),
            namespace: Some("ns".into()),
            section_name: Some("s".into()),
            port: Some(port(53)),
            ..first.clone()
        };
        assert_eq!(route.parents, [first.clone(), second]);
        assert_eq!(route.rules[0].name.as_deref(), Some("r"));
        let backend = BackendRef {
            group: String::new(),
            kind: "Service".into(),
            namespace: None,
            name: "s".into(),
            port: Some(port(80)),
            weight: 1,
        };
        let other =
            BackendRef { namespace: Some("ns".into()), port: Some(port(81)), weight: 0, ..backend.clone() };
        let third = BackendRef {
            group: "x.io".into(),
            kind: "Yy".into(),
            name: "z".into(),
            port: None,
            ..backend.clone()
        };
        assert_eq!(route.rules[0].backends, [backend, other, third]);
        let status = &route.status[0];
        assert_eq!(
            (&status.parent, status.controller.as_str(), status.conditions.len()),
            (&first, "x.io/y", 1)
        );
    }
}

#[test]
fn every_field_of_the_other_kinds_arrives() {
    let text = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: t, generation: 2}\n\
        spec: {controllerName: tidegate.dev/gateway, description: d, parametersRef: {group: '', kind: C, name: p}}\n\
        status: {conditions: [{type: Accepted, status: 'True'}], supportedFeatures: [{name: B}, {name: A}]}\n";
    let Object::GatewayClass(class) = one(text) else { panic!("not a GatewayClass") };
    assert_eq!((class.meta.key.to_string().as_str(), class.generation), ("t", 2));
    assert_eq!((class.controller.as_str(), class.has_parameters), ("tidegate.dev/gateway", true));
    assert_eq!(
        (class.status.conditions.len(), &*class.status.supported_features),
        (1, &["A".into(), "B".into()][..])
    );

    let text = "  parentRef: {name: g, namespace: ns}\n  listeners: [{name: a, port: 53, protocol: UDP}]\n\
        status: {conditions: [{type: Accepted, status: 'True'}], listeners: [{name: a, attachedRoutes: 1}]}\n";
    let Object::ListenerSet(set) = one(&format!("{}{text}", head("ListenerSet"))) else {
        panic!("not a ListenerSet")
    };
    assert_eq!((set.parent.key("shop").to_string().as_str(), set.parent.kind.as_str()), ("ns/g", "Gateway"));
    assert_eq!(
        (set.listeners.len(), set.status.conditions.len(), set.status.listeners[0].attached_routes),
        (1, 1, 1)
    );

    let text = "  from: [{group: gateway.networking.k8s.io, kind: TCPRoute, namespace: ns}]\n  \
        to: [{group: '', kind: Service}, {group: '', kind: Service, name: s}]\n";
    let Object::ReferenceGrant(grant) = one(&format!("{}{text}", head("ReferenceGrant"))) else {
        panic!("not a ReferenceGrant")
    };
    assert_eq!((grant.from[0].kind.as_str(), grant.from[0].namespace.as_str()), ("TCPRoute", "ns"));
    let to = |name: Option<&str>| GrantTo {
        group: String::new(),
        kind: "Service".into(),
        name: name.map(str::to_owned),
    };
    assert_eq!(grant.to, [to(None), to(Some("s"))]);
}

const LISTENER: &str = "  listeners: [{name: a, port: 80, protocol: TCP}]";
const BACKEND: &str = "rules: [{backendRefs: [{name: s, port: 80}]}]";

/// (kind, the text after the 4 lines of the head, the one expected error without its file)
fn faults() -> Vec<(&'static str, String, &'static str)> {
    let gateway = |rest: &str| ("Gateway", format!("  gatewayClassName: t\n{LISTENER}\n{rest}"));
    let listeners = |items: &str| ("Gateway", format!("  gatewayClassName: t\n  listeners: [{items}]"));
    let set = |items: &str| ("ListenerSet", format!("  parentRef: {{name: g}}\n  listeners: [{items}]"));
    let backends = |items: &str| ("UDPRoute", format!("  rules: [{{backendRefs: [{items}]}}]"));
    let parents = |items: &str| ("TCPRoute", format!("  {BACKEND}\n  parentRefs: [{items}]"));
    let many = |item: &str, count: usize| vec![item; count].join(", ");
    let grant = |from: &str, to: &str| ("ReferenceGrant", format!("  from: [{from}]\n  to: [{to}]"));
    let from = "{group: '', kind: A, namespace: ns}";
    let numbered: Vec<String> =
        (1..=65).map(|n| format!("{{name: l{n}, port: {n}, protocol: TCP}}")).collect();
    let cases: Vec<((&'static str, String), &'static str)> = vec![
        (
            ("Gateway", LISTENER.into()),
            "5:3: error: spec.gatewayClassName is missing; accepted: the name of an object, at most 253 characters",
        ),
        (
            ("Gateway", "  gatewayClassName: t".into()),
            "5:3: error: spec.listeners is missing; accepted: 1 to 64 listeners",
        ),
        (listeners(""), "6:14: error: spec.listeners: the list is empty; accepted: 1 to 64 listeners"),
        (listeners(&numbered.join(", ")), "6:14: error: spec.listeners: 65 items; accepted: at most 64"),
        (
            listeners("{port: 80, protocol: TCP}"),
            "6:15: error: spec.listeners[0].name is missing; accepted: a name of at most 253 characters of a-z, 0-9, - and \
             ., alphanumeric at both ends (RFC 1123)",
        ),
        (
            listeners("{name: a, protocol: TCP}"),
            "6:15: error: spec.listeners[0].port is missing; accepted: a port number from 1 to 65535",
        ),
        (
            listeners("{name: a, port: 80, protocol: a_b}"),
            "6:45: error: spec.listeners[0].protocol: the text \"a_b\" is not accepted; accepted: TCP, UDP, TLS, HTTP, HTTPS, \
             or a name such as example.com/proto",
        ),
        (
            listeners("{name: a, port: 80, protocol: TCP}, {name: a, port: 81, protocol: TCP}"),
            "6:51: error: spec.listeners[1]: the name a is already used by spec.listeners[0]; accepted: a different name for \
             each listener",
        ),
        (
            set("{name: a, port: 80, protocol: TCP}, {name: b, port: 80, protocol: TCP}"),
            "6:51: error: spec.listeners[1]: port, protocol and hostname are those of spec.listeners[0]; accepted: each \
             combination of port, protocol and hostname once",
        ),
        (
            set("{name: a, port: 80, protocol: UDP, hostname: a.example}"),
            "6:60: error: spec.listeners[0].hostname: not allowed with protocol UDP; accepted: no hostname",
        ),
        (
            set("{name: a, port: 80, protocol: TLS, hostname: '*'}"),
            "6:60: error: spec.listeners[0].hostname: the text \"*\" is not accepted; accepted: a DNS name such as \
             example.com or *.example.com",
        ),
        (
            set("{name: a, port: 80, protocol: TCP, tls: {}}"),
            "6:55: error: spec.listeners[0].tls: not allowed with protocol TCP; accepted: no tls",
        ),
        (
            set("{name: a, port: 80, protocol: TCP, allowedRoutes: {namespaces: {from: None}}}"),
            "6:85: error: spec.listeners[0].allowedRoutes.namespaces.from: the text \"None\" is not accepted; accepted: All, \
             Selector, Same",
        ),
        (
            set("{name: a, port: 80, protocol: TCP, allowedRoutes: {kinds: [{group: x.io}]}}"),
            "6:74: error: spec.listeners[0].allowedRoutes.kinds[0].kind is missing; accepted: a kind such as Gateway or \
             Service",
        ),
        (
            ("ListenerSet", format!("{LISTENER}\n  parentRef: {{name: g, group: 'a b'}}")),
            "6:31: error: spec.parentRef.group: the text \"a b\" is not accepted; accepted: an API group such as \
             gateway.networking.k8s.io, or the empty text for the core group",
        ),
        (
            ("ListenerSet", LISTENER.into()),
            "5:3: error: spec.parentRef is missing; accepted: the Gateway of the listeners",
        ),
        (
            gateway("  allowedListeners: {namespaces: {from: all}}"),
            "7:41: error: spec.allowedListeners.namespaces.from: the text \"all\" is not accepted; accepted: All, Selector, \
             Same, None",
        ),
        (
            gateway("  addresses: [{value: a.example}]"),
            "7:23: error: spec.addresses[0].value: the text \"a.example\" is not accepted; accepted: an IPv4 or IPv6 address",
        ),
        (
            gateway("  addresses: [{type: Host, value: a}]"),
            "7:22: error: spec.addresses[0].type: the text \"Host\" is not accepted; accepted: IPAddress, Hostname, \
             NamedAddress, or a name with a domain",
        ),
        (
            gateway("  addresses: [{value: '2001:db8::1'}, {type: IPAddress, value: '2001:DB8::1'}]"),
            "7:39: error: spec.addresses[1]: the same address as spec.addresses[0]; accepted: each address once",
        ),
        (
            gateway(&format!("  addresses: [{}]", many("{}", 17))),
            "7:14: error: spec.addresses: 17 items; accepted: at most 16",
        ),
        (
            gateway("  infrastructure: {labels: {a: 1}}"),
            "7:32: error: spec.infrastructure.labels[a]: the number 1 is not accepted; accepted: text in quotes: \"1\"",
        ),
        (
            gateway("  infrastructure: {annotations: {/a: b}}"),
            "7:34: error: spec.infrastructure.annotations[/a]: \"/a\" is not a valid key; accepted: a name of at most 63 \
             letters, digits, -, _ and ., with an optional DNS prefix and /",
        ),
        (
            gateway(
                "  infrastructure: {labels: {a: '', b: '', c: '', d: '', e: '', f: '', g: '', h: '', i: ''}}",
            ),
            "7:28: error: spec.infrastructure.labels: 9 keys; accepted: at most 8",
        ),
        (
            gateway("  infrastructure: {parametersRef: {group: '', kind: C}}"),
            "7:35: error: spec.infrastructure.parametersRef.name is missing; accepted: the name of an object, at most 253 \
             characters",
        ),
        (("TCPRoute", "  parentRefs: []".into()), "5:3: error: spec.rules is missing; accepted: one rule"),
        (
            ("TCPRoute", "  rules: []".into()),
            "5:10: error: spec.rules: the list is empty; accepted: one rule",
        ),
        (
            ("TCPRoute", format!("  rules: [{}]", many("{backendRefs: [{name: s, port: 80}]}", 2))),
            "5:10: error: spec.rules: 2 items; accepted: at most 1",
        ),
        (
            ("TCPRoute", "  rules: [{name: r}]".into()),
            "5:11: error: spec.rules[0].backendRefs is missing; accepted: 1 to 16 backends",
        ),
        (
            backends(""),
            "5:25: error: spec.rules[0].backendRefs: the list is empty; accepted: 1 to 16 backends",
        ),
        (
            backends(&many("{name: s, port: 80}", 17)),
            "5:25: error: spec.rules[0].backendRefs: 17 items; accepted: at most 16",
        ),
        (
            backends("{name: s}"),
            "5:26: error: spec.rules[0].backendRefs[0]: port is missing; accepted: the port of the Service",
        ),
        (
            backends("{name: s, port: 0}"),
            "5:42: error: spec.rules[0].backendRefs[0].port: the number 0 is not accepted; accepted: a whole number from 1 to \
             65535",
        ),
        (
            backends("{name: s, port: 80, weight: 1000001}"),
            "5:54: error: spec.rules[0].backendRefs[0].weight: the number 1000001 is not accepted; accepted: a whole number \
             from 0 to 1000000",
        ),
        (
            backends("{name: s, port: 80, namespace: A}"),
            "5:57: error: spec.rules[0].backendRefs[0].namespace: the text \"A\" is not accepted; accepted: the name of a \
             namespace",
        ),
        (
            parents("{name: g}, {name: g, port: 80}"),
            "6:27: error: spec.parentRefs[1]: the same parent and sectionName as spec.parentRefs[0]; accepted: each section of \
             a parent once",
        ),
        (
            parents("{name: g, sectionName: s}, {name: g, sectionName: s}"),
            "6:43: error: spec.parentRefs[1]: the same parent and sectionName as spec.parentRefs[0]; accepted: each section of \
             a parent once",
        ),
        (
            parents("{name: g}, {name: g, sectionName: s}"),
            "6:27: error: spec.parentRefs[1]: the same parent as spec.parentRefs[0], and only one of them has a sectionName; \
             accepted: a sectionName in each of several references to one parent",
        ),
        (grant(from, ""), "6:7: error: spec.to: the list is empty; accepted: 1 to 16 kinds"),
        (
            grant("{group: '', kind: A}", "{group: '', kind: B}"),
            "5:10: error: spec.from[0].namespace is missing; accepted: the name of a namespace",
        ),
        (
            grant(from, "{kind: B}"),
            "6:8: error: spec.to[0].group is missing; accepted: an API group such as gateway.networking.k8s.io, or the empty \
             text for the core group",
        ),
    ];
    cases.into_iter().map(|((kind, text), expected)| (kind, text, expected)).collect()
}

#[test]
fn each_fault_in_a_file_has_a_location_and_what_is_accepted() {
    let mut wrong = String::new();
    let mut check = |text: String, expected: &str| {
        let (objects, report) = read(&text);
        let errors: Vec<String> = report.iter().map(ToString::to_string).collect();
        if errors != [format!("f.yaml:{expected}")] || !objects.is_empty() {
            wrong.push_str(&format!("{text}\n  want {expected}\n   got {errors:#?}\n"));
        }
    };
    for (kind, rest, expected) in faults() {
        check(format!("{}{rest}\n", head(kind)), expected);
    }
    let class = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: t}\n";
    check(
        format!("{class}spec: {{controllerName: tidegate}}\n"),
        "4:24: error: spec.controllerName: the text \"tidegate\" is not accepted; accepted: a name with a domain, such as \
         tidegate.dev/gateway, at most 253 characters",
    );
    check(
        format!("{}  {BACKEND}\n", head("TCPRoute")).replace("/v1", "/v1alpha2"),
        "1:13: error: apiVersion: the text \"gateway.networking.k8s.io/v1alpha2\" is not accepted; accepted: \
         gateway.networking.k8s.io/v1",
    );
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn unknown_fields_are_warnings_and_a_selector_without_labels_is_one() {
    let text = format!(
        "{}  gatewayClassName: t\n  listeners: [{{name: a, port: 80, protocol: TCP, ports: 1}}]\n  \
        allowedListeners: {{namespaces: {{from: Selector}}}}\n",
        head("Gateway")
    );
    let (objects, report) = read(&text);
    let [Object::Gateway(gateway)] = &*objects else { panic!("{report}") };
    let FromNamespaces::Selector(selector) = &gateway.allowed_listeners else { panic!("{gateway:?}") };
    assert!(!selector.matches(&Default::default()), "it matches no namespace");
    let lines: Vec<String> = report.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "f.yaml:6:50: warning: unknown key \"ports\" in spec.listeners[0]; accepted: port",
            "f.yaml:7:41: warning: spec.allowedListeners.namespaces.from: Selector without a selector matches no \
             namespace; accepted: selector, or from: All",
        ]
    );
}

#[test]
fn routes_of_layer_7_are_not_misspelled_routes_of_layer_4() {
    for (kind, meant) in [
        ("HTTPRoute", None),
        ("GRPCRoute", None),
        ("TLSRoute", None),
        ("BackendTLSPolicy", None),
        ("TcpRoute", Some("TCPRoute")),
        ("Gatway", Some("Gateway")),
        ("ReferenceGrants", Some("ReferenceGrant")),
    ] {
        let (objects, report) = read(&head(kind).replace("spec:", "spec: {a: 1}"));
        assert!(objects.is_empty(), "{kind}");
        let expected = meant.map_or_else(
            || format!("warning: the gateway does not read kind {kind};"),
            |meant| format!("error: kind {kind} is not known; the nearest known kind is {meant};"),
        );
        assert!(report.to_string().contains(&expected), "{report}");
    }
}

#[test]
fn an_invalid_part_of_a_stored_object_is_ignored_and_never_grants_more() {
    let valid = json!({"name": "b", "port": 81, "protocol": "TCP"});
    for (listener, fault) in [
        (json!({"port": 80, "protocol": "TCP"}), "spec.listeners[0].name is missing"),
        (
            json!({"name": "a", "port": 0, "protocol": "TCP"}),
            "spec.listeners[0].port: the number 0 is not accepted",
        ),
        (json!({"name": "a", "port": 80}), "spec.listeners[0].protocol is missing"),
        (json!(1), "spec.listeners[0]: the number 1 is not accepted"),
    ] {
        for kind in ["Gateway", "ListenerSet"] {
            let (listeners, faults) = stored_listeners(kind, &json!([listener, valid]));
            let names: Vec<_> = listeners.iter().map(|l| l.name.as_str()).collect();
            assert_eq!((&*names, &*faults), (&["b"][..], &[fault.to_owned()][..]));
        }
    }
    for allowed in [json!(1), json!({"namespaces": 1}), json!({"namespaces": {"from": "Some"}})] {
        let listener = json!({"name": "a", "port": 80, "protocol": "TCP", "allowedRoutes": allowed});
        let (listeners, faults) = stored_listeners("Gateway", &json!([listener]));
        assert_eq!((&listeners[0].allowed_namespaces, faults.len()), (&FromNamespaces::None, 1), "{allowed}");
    }
    let kinds = json!({"kinds": [{"group": "x.io"}]});
    let listener = json!({"name": "a", "port": 80, "protocol": "TCP", "allowedRoutes": kinds});
    let (listeners, faults) = stored_listeners("Gateway", &json!([listener]));
    assert_eq!(
        (listeners[0].allowed_kinds.len(), faults.len()),
        (1, 1),
        "an empty list would allow all kinds"
    );

    let backends = json!([{"name": "s", "port": 80, "weight": 3}, {"port": 80, "weight": 2}, {"name": "s", "port": "a"}]);
    let parents = json!([{"name": "g"}, {"namespace": "n"}, {"name": "g", "sectionName": 1}]);
    let object = json!({
        "metadata": {"name": "a", "namespace": "shop"},
        "spec": {"parentRefs": parents, "rules": [{"backendRefs": backends}]},
    });
    let (Object::TCPRoute(route), faults) = stored("TCPRoute", &object) else { panic!("not a TCPRoute") };
    let backends: Vec<_> = route.rules[0].backends.iter().map(|b| (b.name.as_str(), b.weight)).collect();
    assert_eq!(backends, [("s", 3), ("", 2), ("", 1)], "an invalid backend keeps its share");
    assert_eq!((route.parents.len(), faults.len()), (1, 4), "{faults:?}");

    let object = json!({
        "metadata": {"name": "a", "namespace": "shop"},
        "spec": {
            "from": [{"group": "", "kind": "A", "namespace": "n"}, {"group": "", "kind": "A"}],
            "to": [{"group": "", "kind": "Service", "name": 1}],
        },
    });
    let (Object::ReferenceGrant(grant), faults) = stored("ReferenceGrant", &object) else {
        panic!("not a grant")
    };
    assert_eq!((grant.from.len(), grant.to.len(), faults.len()), (1, 0, 2), "{faults:?}");

    let spec = json!({"gatewayClassName": "t", "listeners": [valid], "addresses": [{"value": "x"}]});
    let object =
        json!({"metadata": {"name": "a", "finalizers": ["f"]}, "spec": spec, "status": {"addresses": 1}});
    let (Object::Gateway(gateway), faults) = stored("Gateway", &object) else { panic!("not a Gateway") };
    assert_eq!((gateway.addresses[0].value.as_str(), gateway.finalizers.len(), faults.len()), ("x", 1, 2));
}

#[test]
fn a_stored_object_may_follow_the_rules_of_other_definitions() {
    let listeners: Vec<Value> = (1..=70)
        .map(|n| json!({"name": format!("L_{n}"), "port": n, "protocol": "TCP", "hostname": "a"}))
        .collect();
    let (listeners, faults) = stored_listeners("ListenerSet", &json!(listeners));
    assert_eq!((listeners.len(), faults.len()), (70, 0), "{faults:?}");
    assert!(listeners.iter().all(|listener| listener.hostname.is_none()), "TCP has no host names");
    let object = json!({
        "metadata": {"name": "a"},
        "spec": {
            "parentRefs": [{"name": "g", "port": 80}, {"name": "g", "port": 81}],
            "rules": [{"backendRefs": [{"name": "s"}], "new": 1}, {"backendRefs": [{"name": "s"}]}],
        },
    });
    let (Object::UDPRoute(route), faults) = stored("UDPRoute", &object) else { panic!("not a UDPRoute") };
    assert_eq!((route.parents.len(), route.rules.len(), faults.len()), (2, 2, 0), "{faults:?}");
}

#[test]
fn no_value_of_a_stored_object_hides_its_identity() {
    let specs = json!({
        "gatewayClassName": "t", "controllerName": "tidegate.dev/gateway", "parentRef": {"name": "g"},
        "listeners": [{"name": "a", "port": 80, "protocol": "TCP"}], "addresses": [{"value": "203.0.113.5"}],
        "infrastructure": {"labels": {"a": "b"}}, "allowedListeners": {"namespaces": {"from": "All"}},
        "parentRefs": [{"name": "g"}], "rules": [{"backendRefs": [{"name": "s", "port": 80}]}],
        "from": [{"group": "", "kind": "A", "namespace": "n"}], "to": [{"group": "", "kind": "Service"}],
    });
    let keys: Vec<String> = specs.as_object().expect("a mapping").keys().cloned().collect();
    for kind in ["GatewayClass", "Gateway", "ListenerSet", "TCPRoute", "UDPRoute", "ReferenceGrant"] {
        for key in &keys {
            for value in
                [json!("x y"), json!(-1), json!([1]), json!([[]]), json!({"a": 1}), json!([{"a": [1]}])]
            {
                let mut spec = specs.clone();
                spec[key] = value;
                let object =
                    json!({"metadata": {"name": "a", "namespace": "shop", "uid": "u"}, "spec": spec});
                let (read, _) = stored(kind, &object);
                assert_eq!((read.kind(), read.meta().uid.as_str()), (kind, "u"), "{object}");
            }
        }
        for spec in [json!(null), json!(1), json!([])] {
            let (read, faults) = stored(kind, &json!({"metadata": {"name": "a"}, "spec": spec}));
            assert_eq!((read.meta().key.name.as_str(), faults.len()), ("a", 1));
        }
    }
}
