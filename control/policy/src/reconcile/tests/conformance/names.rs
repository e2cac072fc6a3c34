//! Section 1: names and ports as an API server accepts them, its defaults, `appProtocol`, and the errors for other
//! values.

use tidegate_spec::Protocol as CoreProtocol;

use super::*;

/// A Service with this name and these ports, given as YAML flow sequences.
fn named(name: &str, ports: &str) -> String {
    format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{ports: [{ports}]}}\n")
}

#[test]
fn service_names_are_dns_labels_that_may_begin_with_a_digit() {
    for name in ["a", "web", "web-2", "1st", "8th", &"a".repeat(63)] {
        assert_eq!(refused(&named(name, "{port: 80}")), [] as [String; 0], "{name}");
    }
    for name in ["Web", "web_1", "-web", "web-", "web.shop", &"a".repeat(64)] {
        let wording = refused(&named(name, "{port: 80}"));
        assert!(wording[0].starts_with(&format!("error: metadata.name: the text {name:?} is not accepted")));
        assert!(
            wording[0].ends_with("63 characters of a-z, 0-9 and -, alphanumeric at both ends (RFC 1123)"),
            "{wording:?}"
        );
    }
}

#[test]
fn port_names_are_of_a_to_z_0_to_9_and_hyphen_alphanumeric_at_both_ends() {
    for name in ["a", "http", "1st", "h-2", &"a".repeat(63)] {
        assert_eq!(refused(&named("web", &format!("{{name: {name}, port: 80}}"))), [] as [String; 0]);
    }
    for name in ["HTTP", "-a", "a-", "a_b", "a.b", &"a".repeat(64)] {
        let wording = refused(&named("web", &format!("{{name: {name}, port: 80}}")));
        assert_eq!(
            wording,
            [format!(
                "error: spec.ports[0].name: the text {name:?} is not accepted; accepted: a name of at most 63 \
                 characters of a-z, 0-9 and -, alphanumeric at both ends"
            )]
        );
    }
}

#[test]
fn a_service_with_several_ports_names_all_of_them() {
    assert_eq!(refused(&named("web", "{port: 80}")), [] as [String; 0], "one port needs no name");
    let missing =
        "error: spec.ports[1]: name is missing; accepted: a name for each port if there are several";
    assert_eq!(refused(&named("web", "{name: a, port: 80}, {port: 81}")), [missing]);
    let twice = refused(&named("web", "{name: a, port: 80}, {name: a, port: 81}"));
    assert!(
        twice[0].starts_with("error: spec.ports[1].name: the name a is already used by spec.ports[0]"),
        "{twice:?}"
    );
}

#[test]
fn the_directory_source_validates_like_an_api_server_with_positions() {
    let faults = "apiVersion: v1\nkind: Service\nmetadata: {name: faulty}\nspec:\n  type: Loadbalancer\n  \
                  sessionAffinity: clientip\n  ports: [{port: 0}, {name: b, port: 80, protocol: tcp}]\n---\n";
    let slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s, labels: \
                 {kubernetes.io/service-name: web}}\naddressType: IPv4\nendpoints: [{addresses: ['::1']}]\n---\n";
    // `refused` asserts that every message of the directory has its location, and that the valid objects are kept.
    let wording = refused(&(web("") + faults + slice));
    let about: Vec<&str> = wording.iter().filter_map(|message| message.split(": ").nth(1)).collect();
    assert_eq!(
        about,
        [
            "endpoints[0].addresses[0]",
            "spec.ports[0].port",
            "spec.ports[0]",
            "spec.ports[1].protocol",
            "spec.sessionAffinity",
            "spec.type"
        ]
    );
    assert!(
        wording.iter().all(|message| message.contains("; accepted: ") || message.contains(" is missing"))
    );
    let (left, _) = load(&(web("") + faults + slice));
    assert_eq!(left.services.len(), 1);
    let (_, report) = load(&(web("") + faults));
    let first = report.errors().next().expect("there are errors").to_string();
    let expected = "objects.yaml:13:9: error: spec.type: the text \"Loadbalancer\" is not accepted";
    assert!(first.contains(expected), "{first}");
}

#[test]
fn the_key_of_a_service_port_is_port_and_protocol() {
    let wording = refused(&named("web", "{name: a, port: 80}, {name: b, port: 80}"));
    assert_eq!(
        wording,
        [
            "error: spec.ports[1].port: 80/TCP is already used by spec.ports[0]; accepted: each port and protocol once"
        ]
    );
    let mixed = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {type: LoadBalancer, \
                 allocateLoadBalancerNodePorts: false, loadBalancerIP: 203.0.113.5, ports: [{name: t, port: 53}, \
                 {name: u, port: 53, protocol: UDP}]}\n---\napiVersion: discovery.k8s.io/v1\nkind: \
                 EndpointSlice\nmetadata: {name: a, labels: {kubernetes.io/service-name: web}}\naddressType: \
                 IPv4\nports: [{name: t, port: 5301}, {name: u, port: 5302, protocol: UDP}]\nendpoints: [{addresses: \
                 [10.1.0.1]}]\n";
    let outcome = Both::new(mixed).look();
    let served: Vec<(CoreProtocol, Vec<String>)> =
        outcome.spec.services.iter().map(|s| (s.key.protocol, states(s))).collect();
    let (tcp, udp) = (vec!["10.1.0.1:5301 active".to_owned()], vec!["10.1.0.1:5302 active".to_owned()]);
    assert_eq!(served, [(CoreProtocol::Tcp, tcp), (CoreProtocol::Udp, udp)]);
}

#[test]
fn app_protocol_is_shown_in_status_and_unknown_values_are_legal() {
    for app_protocol in ["kubernetes.io/h2c", "example.com/unheard-of"] {
        let yaml = web("").replace("name: http,", &format!("name: http, appProtocol: {app_protocol},"));
        let outcome = Both::new(&yaml).look();
        assert_eq!(outcome.services[0].ports[0].app_protocol.as_deref(), Some(app_protocol));
        assert_eq!(messages(&outcome), [] as [String; 0]);
    }
}

#[test]
fn app_protocol_is_only_a_hint() {
    let endpoints = slice_of_web("a", "IPv4", &["addresses: [10.1.0.1]"]);
    let plain = Both::new(&(web("") + &endpoints)).look();
    let hinted = web("").replace("name: http,", "name: http, appProtocol: https,");
    let hinted = Both::new(&(hinted + &endpoints)).look();
    assert_eq!((&hinted.spec, &hinted.targets), (&plain.spec, &plain.targets));
}

#[test]
fn a_bad_field_of_a_stored_object_is_an_event_and_refuses_no_object() {
    let yaml = "apiVersion: v1\nkind: Service\nmetadata: {name: 1st, namespace: default, finalizers: [tidegate.dev/cleanup], managedFields: [{manager: \
                tidegate, fieldsV1: {'f:status': {'f:loadBalancer': {'f:ingress': {}}}}}]}\nspec:\n  \
                type: LoadBalancer\n  loadBalancerIP: x\n  allocateLoadBalancerNodePorts: false\n  ports: [{name: http, port: 80}, \
                {name: bad, port: 0}]\nstatus: {loadBalancer: {ingress: [{ip: 203.0.113.9}]}}\n---\napiVersion: \
                discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s, namespace: default, labels: \
                {kubernetes.io/service-name: 1st}}\naddressType: IPv4\nports: [{name: http, port: 8080}, {name: none, port: \
                0}]\nendpoints: [{addresses: [010.1.0.01]}, {addresses: [nonsense]}]\n---\napiVersion: v1\nkind: Node\nmetadata: \
                {name: n1}\nspec: {podCIDRs: [nonsense]}\n";
    let mut world = World::new(vec![], vec![]);
    (world.objects, _) = tidegate_source::kubernetes::testing::received(yaml);
    let outcome = world.look();
    let spec = only(&outcome);
    assert_eq!((spec.key.vip, states(spec)), (ip("203.0.113.9"), vec!["10.1.0.1:8080 active".to_owned()]));
    let reported: Vec<(ObjectKind, String, &str)> = outcome
        .findings
        .iter()
        .filter(|f| f.reason == Reason::InvalidValue)
        .map(|f| (f.kind, f.object.to_string(), f.diagnostic.what.split(": ").next().unwrap_or_default()))
        .collect();
    let on = |kind, object: &str, field| (kind, object.to_owned(), field);
    for one in [
        on(ObjectKind::Service, "default/1st", "spec.loadBalancerIP"),
        on(ObjectKind::Service, "default/1st", "spec.ports[1].port"),
        on(ObjectKind::EndpointSlice, "default/s", "endpoints[1].addresses[0]"),
        on(ObjectKind::EndpointSlice, "default/s", "ports[1].port"),
        on(ObjectKind::Node, "n1", "spec.podCIDRs[0]"),
    ] {
        assert!(reported.contains(&one), "{one:?} in {reported:?}");
    }
    assert_eq!(reported.len(), 5, "{reported:?}");
    let warnings = outcome.services[0].warnings.join("\n");
    assert!(warnings.contains("Service default/1st: spec.loadBalancerIP: "), "{warnings}");
    assert!(warnings.contains("EndpointSlice default/s: endpoints[1].addresses[0]: "), "{warnings}");
}

#[test]
fn an_unreadable_stored_load_balancer_ip_assigns_no_other_address() {
    let world = |yaml: &str| {
        let mut world = World::new(vec![], vec![]);
        (world.objects, _) = tidegate_source::kubernetes::testing::received(yaml);
        world
    };
    let mut new = world(&web("  loadBalancerIP: x\n"));
    let outcome = new.step();
    assert_eq!(keys(&outcome), [] as [String; 0]);
    let why = "spec.loadBalancerIP is invalid: no new address is assigned";
    assert_eq!(pending(&outcome, "web"), Some(why));
    assert_eq!(finding(&outcome).0, Reason::InvalidValue);
    new.objects = world(&web("  loadBalancerIP: 203.0.113.5\n")).objects;
    assert_eq!(keys(&new.step()), ["TCP 203.0.113.5:80"]);
    new.objects = world(&web("  loadBalancerIP: x\n")).objects;
    assert_eq!(keys(&new.step()), ["TCP 203.0.113.5:80"], "the Service keeps the address that it has");
    let annotated =
        with_annotations(&web("  loadBalancerIP: x\n"), "tidegate.dev/load-balancer-ips: 203.0.113.6");
    assert_eq!(keys(&world(&annotated).look()), ["TCP 203.0.113.6:80"], "an annotation names the address");
}

#[test]
fn an_unserved_second_address_in_the_status_is_reported() {
    let status = "status: {loadBalancer: {ingress: [{ip: 203.0.113.5}, {ip: 203.0.113.6}]}}\n---\n";
    let both = Both::new(&web("").replace("---\n", status));
    let outcome = both.look();
    let (reason, what, _) = finding(&outcome);
    assert_eq!(reason, Reason::StatusAddressNotServed);
    assert_eq!(
        what,
        "address 203.0.113.6 in the status of Service default/web is not served: a Service has only one IPv4 \
         address, and 203.0.113.5 is served"
    );
}
