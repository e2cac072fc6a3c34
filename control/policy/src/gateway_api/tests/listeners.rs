//! Gateways, their listeners, and ListenerSets.

use tidegate_model::objects::{IpFamilyPolicy, ServiceType};

use super::*;

const TCP: &str = "{name: tcp, port: 80, protocol: TCP}";

#[test]
fn tcp_and_udp_listeners_are_ports_of_one_service() {
    let world = world(&gateway(&format!("{TCP}, {{name: dns, port: 53, protocol: UDP}}"), ""));
    assert_eq!(world.accepted(), "Accepted: True Accepted");
    assert_eq!(world.listeners(), [("tcp".into(), 0, vec![]), ("dns".into(), 0, vec![])]);
    assert_eq!(world.served(), [("tcp".into(), 80, vec![]), ("dns".into(), 53, vec![])]);
    let kinds = |at: usize| world.states.gateways[&key("shop/edge")].listeners[at].supported_kinds.clone();
    assert_eq!((kinds(0)[0].kind.as_str(), kinds(1)[0].kind.as_str()), ("TCPRoute", "UDPRoute"));
    assert!(world.findings.is_empty(), "{:?}", world.found());
}

#[test]
fn other_protocols_are_refused_and_the_other_listeners_served() {
    let http = "{name: web, port: 8080, protocol: HTTP}";
    let mixed = world(&gateway(&format!("{TCP}, {http}"), ""));
    assert_eq!(mixed.accepted(), "Accepted: True ListenersNotValid");
    assert_eq!(mixed.listeners()[1].2, ["Accepted: False UnsupportedProtocol"]);
    assert_eq!(mixed.served(), [("tcp".into(), 80, vec![])]);
    let none = world(&gateway(http, ""));
    assert_eq!(none.accepted(), "Accepted: False ListenersNotValid");
    assert_eq!(none.served(), []);
    let found = none.found();
    assert!(
        found.iter().any(|text| text.contains("protocol HTTP is not supported; supported: TCP, UDP")),
        "{found:?}"
    );
}

#[test]
fn kinds_that_cannot_attach_are_refused_and_the_others_stay() {
    let with = |kinds: &str| {
        world(&gateway(
            &format!("{{name: tcp, port: 80, protocol: TCP, allowedRoutes: {{kinds: [{kinds}]}}}}"),
            "",
        ))
    };
    let both = with("{kind: UDPRoute}, {kind: TCPRoute}");
    assert_eq!(both.listeners()[0].2, ["ResolvedRefs: False InvalidRouteKinds"]);
    assert_eq!(both.states.gateways[&key("shop/edge")].listeners[0].supported_kinds.len(), 1);
    let none = with("{kind: HTTPRoute}");
    assert_eq!(none.states.gateways[&key("shop/edge")].listeners[0].supported_kinds, []);
    let other_group = with("{kind: TCPRoute, group: example.com}");
    assert_eq!(other_group.listeners()[0].2, ["ResolvedRefs: False InvalidRouteKinds"]);
}

#[test]
fn addresses_of_other_types_and_parameters_are_refused() {
    let hostname = world(&gateway(TCP, ", addresses: [{type: Hostname, value: a.example}]"));
    assert_eq!(
        (hostname.accepted(), hostname.served()),
        ("Accepted: False UnsupportedAddress".into(), vec![])
    );
    let parameters = ", infrastructure: {parametersRef: {group: example.com, kind: Config, name: a}}";
    assert_eq!(world(&gateway(TCP, parameters)).accepted(), "Accepted: False InvalidParameters");
}

#[test]
fn static_addresses_and_infrastructure_reach_the_service() {
    let more = ", addresses: [{value: 203.0.113.9}], infrastructure: {labels: {tier: web}, annotations: {tidegate.dev/forwarding: nat, service.beta.kubernetes.io/load-balancer-source-ranges: 198.51.100.0/24}}";
    let world = world(&gateway(TCP, more));
    let service = &world.objects.services[&ObjectKey::of_gateway("shop", "edge")];
    let annotation = |name: &str| service.meta.annotations.get(name).map(String::as_str);
    assert_eq!(annotation("tidegate.dev/load-balancer-ips"), Some("203.0.113.9"));
    assert_eq!(annotation("tidegate.dev/forwarding"), Some("nat"));
    assert_eq!(service.source_ranges, ["198.51.100.0/24".parse().expect("a network")]);
    assert_eq!(service.meta.labels.get("tier").map(String::as_str), Some("web"));
    // An empty value requests any address.
    let any = super::world(&gateway(TCP, ", addresses: [{type: IPAddress}]"));
    let service = &any.objects.services[&ObjectKey::of_gateway("shop", "edge")];
    assert!(!service.meta.annotations.contains_key("tidegate.dev/load-balancer-ips"));
}

#[test]
fn gateways_of_other_controllers_are_left_alone() {
    let other = gateway(TCP, "").replace("gatewayClassName: tidegate", "gatewayClassName: other");
    let world = world(&other);
    assert!(world.states.gateways.is_empty() && world.objects.services.is_empty());
    assert_eq!(world.found(), ["Gateway shop/edge: GatewayClass other does not exist"]);
}

#[test]
fn listener_sets_cannot_make_a_gateway_too_large() {
    let mut all = gateway(TCP, ", allowedListeners: {namespaces: {from: All}}");
    for set in 0..17 {
        let listeners: Vec<String> = (0..64)
            .map(|n| format!("{{name: l{n}, port: {}, protocol: TCP}}", 1000 + set * 64 + n))
            .collect();
        all += &listener_set(&format!("team/s{set:02}"), &listeners.join(", "));
    }
    // Another namespace gets its share.
    all += &listener_set("zeta/small", "{name: own, port: 9000, protocol: TCP}");
    let world = world(&all);
    assert_eq!((world.served().len(), world.accepted().as_str()), (1_024, "Accepted: True Accepted"));
    let small = &world.states.listener_sets[&key("zeta/small")];
    assert!(small.accepted.is_true, "{small:?}");
    let last = &world.states.listener_sets[&key("team/s16")];
    assert_eq!(World::shown(std::slice::from_ref(&last.accepted)), ["Accepted: False ListenersNotValid"]);
    assert_eq!(World::listener(&last.listeners[0]).2, ["Accepted: False PortUnavailable"]);
}

fn listener_set(name: &str, listeners: &str) -> String {
    let (namespace, name) = name.split_once('/').expect("namespace and name");
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{parentRef: {{name: edge, namespace: shop}}, listeners: [{listeners}]}}
---
"
    )
}

#[test]
fn listener_sets_add_listeners_where_the_gateway_allows_it() {
    let set = listener_set("team/more", "{name: tcp, port: 81, protocol: TCP}");
    let state = |world: &World| {
        World::shown(std::slice::from_ref(&world.states.listener_sets[&key("team/more")].accepted))
    };
    let none = world(&(gateway(TCP, "") + &set));
    assert_eq!(state(&none), ["Accepted: False NotAllowed"]);
    assert_eq!(none.states.gateways[&key("shop/edge")].attached_listener_sets, 0);
    let same = world(&(gateway(TCP, ", allowedListeners: {namespaces: {from: Same}}") + &set));
    assert_eq!(state(&same), ["Accepted: False NotAllowed"]);
    let all = world(&(gateway(TCP, ", allowedListeners: {namespaces: {from: All}}") + &set));
    assert_eq!(state(&all), ["Accepted: True Accepted"]);
    assert_eq!(all.states.gateways[&key("shop/edge")].attached_listener_sets, 1);
    assert_eq!(all.served(), [("tcp".into(), 80, vec![]), ("team/more/tcp".into(), 81, vec![])]);
    let selector =
        ", allowedListeners: {namespaces: {from: Selector, selector: {matchLabels: {edge: 'yes'}}}}";
    let labelled = |value: &str| {
        let namespace = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: team, labels: {{edge: '{value}'}}}}\n---\n"
        );
        state(&world(&(gateway(TCP, selector) + &namespace + &set)))
    };
    assert_eq!(labelled("yes"), ["Accepted: True Accepted"]);
    assert_eq!(labelled("no"), ["Accepted: False NotAllowed"]);
}

#[test]
fn a_contested_port_belongs_to_the_gateway_then_to_the_first_listener_set() {
    let allow = ", allowedListeners: {namespaces: {from: All}}";
    let a =
        listener_set("team/a", "{name: one, port: 80, protocol: TCP}, {name: two, port: 81, protocol: TCP}");
    let b =
        listener_set("team/b", "{name: two, port: 81, protocol: TCP}, {name: udp, port: 81, protocol: UDP}");
    let world = world(&(gateway(TCP, allow) + &b + &a));
    let of_set = |name: &str| {
        let set = &world.states.listener_sets[&key(name)];
        (
            World::shown(std::slice::from_ref(&set.accepted)),
            set.listeners.iter().map(World::listener).collect::<Vec<_>>(),
        )
    };
    let conflict =
        vec!["Accepted: False HostnameConflict".to_owned(), "Conflicted: True HostnameConflict".to_owned()];
    assert_eq!(
        of_set("team/a"),
        (
            vec!["Accepted: True ListenersNotValid".to_owned()],
            vec![("one".into(), 0, conflict.clone()), ("two".into(), 0, vec![])]
        )
    );
    assert_eq!(of_set("team/b").1, [("two".into(), 0, conflict), ("udp".into(), 0, vec![])]);
    let names: Vec<String> = world.served().into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, ["tcp", "team/a/two", "team/b/udp"]);
}

#[test]
fn a_listener_set_of_another_kind_of_parent_is_left_alone() {
    let all = gateway(TCP, ", allowedListeners: {namespaces: {from: Same}}");
    let other = listener_set("shop/other", "{name: other, port: 81, protocol: TCP}")
        .replace("parentRef: {name: edge", "parentRef: {group: example.com, kind: Foo, name: edge");
    let world = world(&(all + &other));
    assert!(world.states.listener_sets.is_empty());
    assert_eq!((world.served().len(), world.found()), (1, vec![]));
}

#[test]
fn a_listener_set_without_its_gateway_is_reported() {
    let set = listener_set("shop/set", "{name: own, port: 81, protocol: TCP}");
    assert_eq!(world(&set).found(), ["ListenerSet shop/set: Gateway shop/edge does not exist"]);
}

#[test]
fn a_gateway_without_a_valid_listener_serves_its_listener_sets() {
    let http = "{name: http, port: 80, protocol: HTTP}";
    let all = gateway(http, ", allowedListeners: {namespaces: {from: Same}}");
    let world = world(&(all + &listener_set("shop/set", "{name: own, port: 81, protocol: TCP}")));
    assert_eq!(world.accepted(), "Accepted: True ListenersNotValid");
    assert_eq!(world.served()[0].0, "shop/set/own");
    assert!(world.states.listener_sets[&key("shop/set")].accepted.is_true);
}

#[test]
fn a_gateway_that_is_not_accepted_serves_nothing_and_keeps_its_address() {
    let world = world(&gateway("{name: http, port: 80, protocol: HTTP}", ""));
    let service = &world.objects.services[&ObjectKey::of_gateway("shop", "edge")];
    assert_eq!((service.service_type, service.ports.len()), (ServiceType::LoadBalancer, 0));
    assert!(service.gets_no_address);
}

#[test]
fn a_deleted_class_ends_no_gateway_that_has_an_address() {
    let finalized = gateway(TCP, "")
        .replace("{name: edge", "{finalizers: [tidegate.dev/cleanup], name: edge")
        .replace("gatewayClassName: tidegate", "gatewayClassName: gone");
    assert_eq!(world(&finalized).served().len(), 1);
    let new = finalized.replace("finalizers: [tidegate.dev/cleanup], ", "");
    assert!(world(&new).states.gateways.is_empty());
}

#[test]
fn two_addresses_are_one_of_each_family() {
    let policy = |more: &str| {
        let world = world(&gateway(TCP, more));
        world.objects.services[&ObjectKey::of_gateway("shop", "edge")].ip_family_policy
    };
    for both in [
        "addresses: [{value: 203.0.113.9}, {value: '2001:db8::9'}]",
        "addresses: [{value: 203.0.113.9}, {type: IPAddress}]",
        "infrastructure: {annotations: {tidegate.dev/load-balancer-ips: '203.0.113.9,2001:db8::9'}}",
    ] {
        assert_eq!(policy(&format!(", {both}")), IpFamilyPolicy::PreferDualStack, "{both}");
    }
    assert_eq!(policy(", addresses: [{value: 203.0.113.9}]"), IpFamilyPolicy::SingleStack);
}

#[test]
fn addresses_in_a_status_of_another_controller_are_not_ours() {
    let status = "status: {addresses: [{type: IPAddress, value: 198.51.100.9}]}\n---\n";
    let of = |managed: &str| {
        let text = gateway(TCP, "")
            .replace("---\n", status)
            .replace("{name: edge", &format!("{{{managed}name: edge"));
        let objects = tidegate_source::kubernetes::testing::objects_of(&(CLASS.to_owned() + &text));
        let objects = GatewayApi::default().derive(&Arc::new(objects));
        objects.services[&ObjectKey::of_gateway("shop", "edge")].stored.ingress_managers.clone()
    };
    let owner = |name: &str| {
        format!("managedFields: [{{manager: {name}, fieldsV1: {{'f:status': {{'f:addresses': {{}}}}}}}}], ")
    };
    assert_eq!(of(""), [] as [&str; 0]);
    assert_eq!(of(&owner("other")), ["other"]);
    assert_eq!(of(&owner("tidegate")), ["tidegate"]);
}

#[test]
fn our_annotations_outside_of_infrastructure_are_reported() {
    let text =
        gateway(TCP, "").replace("{name: edge", "{annotations: {tidegate.dev/forwarding: nat}, name: edge");
    let field = "metadata.annotations[tidegate.dev/forwarding]";
    assert_eq!(world(&text).found(), [format!("Gateway shop/edge: {field} has no effect")]);
}
