//! Routes: to which listeners they attach, and which backends they may name.

use tidegate_model::objects::gateway_api::Route;

use super::*;

const TCP: &str = "{name: tcp, port: 80, protocol: TCP}, {name: more, port: 81, protocol: TCP}";
const PARENT: &str = "{name: edge}";
const WEB: &str = "{name: web, port: 80}";
const OK: [&str; 2] = ["Accepted: True Accepted", "ResolvedRefs: True ResolvedRefs"];

#[test]
fn a_route_attaches_to_every_listener_that_its_reference_names() {
    let attached = |parent: &str| {
        let world =
            world(&(gateway(TCP, "") + &service("shop/web") + &route("TCPRoute", "shop/r", parent, WEB)));
        let counts: Vec<usize> = world.listeners().into_iter().map(|(_, attached, _)| attached).collect();
        (counts, world.tcp_route("shop/r").concat())
    };
    assert_eq!(attached(PARENT), (vec![1, 1], OK.map(str::to_owned).to_vec()));
    assert_eq!(attached("{name: edge, sectionName: more}").0, [0, 1]);
    assert_eq!(attached("{name: edge, port: 80}").0, [1, 0]);
    let (counts, conditions) = attached("{name: edge, port: 80, sectionName: more}");
    assert_eq!((counts, conditions[0].as_str()), (vec![0, 0], "Accepted: False NoMatchingParent"));
    let (counts, conditions) = attached("{name: edge, sectionName: none}");
    assert_eq!((counts, conditions[0].as_str()), (vec![0, 0], "Accepted: False NoMatchingParent"));
}

#[test]
fn the_weights_of_the_backends_reach_the_listener() {
    let backends = "{name: web, port: 80, weight: 70}, {name: other, port: 80, weight: 30}, {name: web, port: 80, weight: 0}";
    let all = gateway("{name: tcp, port: 80, protocol: TCP}", "")
        + &service("shop/web")
        + &service("shop/other")
        + &route("TCPRoute", "shop/r", PARENT, backends);
    let routed = vec![("shop/web:80".into(), 70), ("shop/other:80".into(), 30), ("shop/web:80".into(), 0)];
    assert_eq!(world(&all).served(), [("tcp".into(), 80, routed)]);
}

#[test]
fn the_oldest_route_of_a_listener_has_its_flows_and_all_are_accepted() {
    let dated = |name: &str, backend: &str, created: &str| {
        let route = route("TCPRoute", name, "{name: edge, sectionName: tcp}", backend);
        route.replace("namespace: shop}", &format!("namespace: shop, creationTimestamp: '{created}'}}"))
    };
    let all = gateway(TCP, "")
        + &service("shop/web")
        + &dated("shop/a", "{name: web, port: 80, weight: 1}", "2026-01-02T00:00:00Z")
        + &dated("shop/b", "{name: web, port: 80, weight: 2}", "2026-01-01T00:00:00Z")
        + &dated("shop/c", "{name: web, port: 80, weight: 3}", "2026-01-01T00:00:00Z");
    let world = world(&all);
    assert_eq!(world.listeners()[0].1, 3);
    let older = "no flows from listener tcp: an older route has them";
    for (name, message) in [("shop/a", older), ("shop/b", ""), ("shop/c", older)] {
        assert_eq!(world.tcp_route(name).concat(), OK, "{name}");
        assert_eq!(world.states.tcp_routes[&key(name)][0].conditions[0].message, message, "{name}");
    }
    assert_eq!(world.served()[0].2, [("shop/web:80".into(), 2)]);
}

#[test]
fn a_listener_admits_routes_by_protocol_kind_and_namespace() {
    let refused = |listener: &str, kind: &str, name: &str| {
        let parent = "{name: edge, namespace: shop}";
        let all = gateway(listener, "") + &service("shop/web") + &route(kind, name, parent, WEB);
        let world = world(&all);
        assert_eq!(world.listeners()[0].1, 0);
        let routes = if kind == "UDPRoute" { &world.states.udp_routes } else { &world.states.tcp_routes };
        World::shown(&routes[&key(name)][0].conditions)[0].clone()
    };
    const NOT_ALLOWED: &str = "Accepted: False NotAllowedByListeners";
    assert_eq!(refused("{name: tcp, port: 80, protocol: TCP}", "UDPRoute", "shop/r"), NOT_ALLOWED);
    assert_eq!(refused("{name: web, port: 80, protocol: HTTP}", "TCPRoute", "shop/r"), NOT_ALLOWED);
    assert_eq!(refused("{name: tcp, port: 80, protocol: TCP}", "TCPRoute", "team/r"), NOT_ALLOWED);
    let none = "{name: tcp, port: 80, protocol: TCP, allowedRoutes: {kinds: [{kind: TLSRoute}]}}";
    assert_eq!(refused(none, "TCPRoute", "shop/r"), NOT_ALLOWED);
}

#[test]
fn routes_of_other_namespaces_attach_where_the_listener_allows_them() {
    let attached = |from: &str| {
        let listener =
            format!("{{name: tcp, port: 80, protocol: TCP, allowedRoutes: {{namespaces: {from}}}}}");
        let namespace =
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: team, labels: {edge: 'yes'}}\n---\n";
        let route = route("TCPRoute", "team/r", "{name: edge, namespace: shop}", WEB);
        world(&(gateway(&listener, "") + namespace + &service("team/web") + &route)).listeners()[0].1
    };
    assert_eq!(attached("{from: All}"), 1);
    assert_eq!(attached("{from: Same}"), 0);
    assert_eq!(attached("{from: Selector, selector: {matchLabels: {edge: 'yes'}}}"), 1);
    assert_eq!(attached("{from: Selector, selector: {matchLabels: {edge: 'no'}}}"), 0);
}

#[test]
fn an_invalid_backend_keeps_its_weight_and_the_route_stays_accepted() {
    let result = |backend: &str| {
        let backends = format!("{{name: web, port: 80}}, {backend}");
        let all = gateway(TCP, "") + &service("shop/web") + &route("TCPRoute", "shop/r", PARENT, &backends);
        let world = world(&all);
        let [accepted, resolved] = world.tcp_route("shop/r").concat().try_into().expect("two conditions");
        assert_eq!(accepted, OK[0]);
        assert_eq!(world.served()[0].2[1], ("-".to_owned(), 4), "{backend}");
        resolved
    };
    assert_eq!(result("{name: none, port: 80, weight: 4}"), "ResolvedRefs: False BackendNotFound");
    assert_eq!(result("{name: web, port: 8080, weight: 4}"), "ResolvedRefs: False BackendNotFound");
    assert_eq!(result("{name: web, port: 53, weight: 4}"), "ResolvedRefs: False BackendNotFound");
    assert_eq!(
        result("{name: a, kind: Volume, group: example.com, weight: 4}"),
        "ResolvedRefs: False InvalidKind"
    );
    assert_eq!(
        result("{name: web, namespace: team, port: 80, weight: 4}"),
        "ResolvedRefs: False RefNotPermitted"
    );
}

#[test]
fn a_reference_grant_permits_backends_of_its_namespace() {
    let resolved = |grant: &str| {
        let grant = format!(
            "
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {{name: grant, namespace: team}}
spec: {grant}
---
"
        );
        let backend = "{name: web, namespace: team, port: 80}";
        let all =
            gateway(TCP, "") + &service("team/web") + &grant + &route("TCPRoute", "shop/r", PARENT, backend);
        world(&all).tcp_route("shop/r").concat()[1].clone()
    };
    const FROM: &str = "from: [{group: gateway.networking.k8s.io, kind: TCPRoute, namespace: shop}]";
    const PERMITTED: &str = "ResolvedRefs: True ResolvedRefs";
    const REFUSED: &str = "ResolvedRefs: False RefNotPermitted";
    assert_eq!(resolved(&format!("{{{FROM}, to: [{{group: '', kind: Service}}]}}")), PERMITTED);
    assert_eq!(resolved(&format!("{{{FROM}, to: [{{group: '', kind: Service, name: web}}]}}")), PERMITTED);
    assert_eq!(resolved(&format!("{{{FROM}, to: [{{group: '', kind: Service, name: other}}]}}")), REFUSED);
    assert_eq!(resolved(&format!("{{{FROM}, to: [{{group: '', kind: Secret}}]}}")), REFUSED);
    let udp = FROM.replace("TCPRoute", "UDPRoute");
    assert_eq!(resolved(&format!("{{{udp}, to: [{{group: '', kind: Service}}]}}")), REFUSED);
    let other = FROM.replace("namespace: shop", "namespace: other");
    assert_eq!(resolved(&format!("{{{other}, to: [{{group: '', kind: Service}}]}}")), REFUSED);
}

#[test]
fn a_route_attaches_to_a_listener_set_only_by_name() {
    let set = listener_set("more", 82);
    let gateway =
        gateway("{name: tcp, port: 80, protocol: TCP}", ", allowedListeners: {namespaces: {from: Same}}");
    let with = |parents: &str| {
        world(&(gateway.clone() + &set + &service("shop/web") + &route("TCPRoute", "shop/r", parents, WEB)))
    };
    let counts = |world: &World| {
        (world.listeners()[0].1, world.states.listener_sets[&key("shop/more")].listeners[0].attached_routes)
    };
    assert_eq!(counts(&with(PARENT)), (1, 0));
    assert_eq!(counts(&with("{kind: ListenerSet, name: more}")), (0, 1));
    let both = with("{name: edge}, {kind: ListenerSet, name: more}");
    assert_eq!((counts(&both), both.tcp_route("shop/r").len()), ((1, 1), 2));
}

#[test]
fn a_route_without_its_parent_is_reported() {
    let world = world(&(service("shop/web") + &route("TCPRoute", "shop/r", "{name: edgy}", WEB)));
    assert_eq!(world.tcp_route("shop/r"), Vec::<Vec<String>>::new());
    assert_eq!(world.found(), ["TCPRoute shop/r: Gateway shop/edgy does not exist"]);
}

#[test]
fn every_backend_that_cannot_be_used_is_reported() {
    let backends = "{name: none, port: 80}, {name: web, port: 81}, {name: web, port: 80}";
    let all = gateway(TCP, "") + &service("shop/web") + &route("TCPRoute", "shop/r", PARENT, backends);
    let world = world(&all);
    let faults = ["Service shop/none does not exist", "Service shop/web has no TCP port 81"];
    let faults = faults.map(|fault| format!("TCPRoute shop/r: {fault}: its share of new flows is rejected"));
    assert_eq!(world.found(), faults);
}

/// A ListenerSet `shop/NAME` with a listener on this port.
fn listener_set(name: &str, port: u16) -> String {
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {{name: {name}, namespace: shop}}
spec: {{parentRef: {{name: edge}}, listeners: [{{name: tcp, port: {port}, protocol: TCP}}]}}
---
"
    )
}

#[test]
fn a_conflict_of_a_listener_has_no_effect_on_the_attachment_of_routes() {
    let all = gateway(TCP, ", allowedListeners: {namespaces: {from: Same}}")
        + &listener_set("more", 80)
        + &service("shop/web")
        + &route("TCPRoute", "shop/r", "{kind: ListenerSet, name: more}", WEB);
    let world = world(&all);
    let listener = World::listener(&world.states.listener_sets[&key("shop/more")].listeners[0]);
    let conflict = ["Accepted: False HostnameConflict", "Conflicted: True HostnameConflict"];
    assert_eq!(listener, ("tcp".into(), 1, conflict.map(str::to_owned).to_vec()));
    assert_eq!(world.tcp_route("shop/r").concat(), OK);
    let message = &world.states.tcp_routes[&key("shop/r")][0].conditions[0].message;
    assert_eq!(message, "no flows from listener tcp: it is not accepted");
    assert!(world.served().iter().all(|(.., backends)| backends.is_empty()), "{:?}", world.served());
}

#[test]
fn a_route_of_a_listener_set_that_is_not_allowed_says_so() {
    let all = gateway(TCP, "")
        + &listener_set("more", 82)
        + &service("shop/web")
        + &route("TCPRoute", "shop/r", "{kind: ListenerSet, name: more, sectionName: tcp}", WEB);
    let world = world(&all);
    assert_eq!(world.tcp_route("shop/r").concat()[0], "Accepted: False NoMatchingParent");
    let message = "spec.allowedListeners of Gateway shop/edge does not allow ListenerSet shop/more";
    assert!(world.found().contains(&format!("TCPRoute shop/r: {message}")), "{:?}", world.found());
}

#[test]
fn of_routes_without_a_creation_time_the_first_to_appear_has_the_flows() {
    let all = gateway("{name: tcp, port: 80, protocol: TCP}", "")
        + &service("shop/web")
        + &route("TCPRoute", "shop/a", PARENT, "{name: web, port: 80, weight: 1}")
        + &route("TCPRoute", "shop/b", PARENT, "{name: web, port: 80, weight: 2}");
    let mut objects = Objects::clone(&world(&all).objects);
    let mut late = Route::clone(&objects.tcp_routes[&key("shop/a")]);
    late.meta.arrival = 1;
    objects.tcp_routes.insert(key("shop/a"), Arc::new(late));
    let derived = GatewayApi::default().derive(&Arc::new(objects));
    let port = &derived.services[&ObjectKey::of_gateway("shop", "edge")].ports[0];
    assert_eq!(port.routed.as_ref().expect("a listener").route.as_deref(), Some("TCPRoute shop/b"));
}

/// Other namespaces decide how many routes name how many ListenerSets. With each route compared with each listener, this
/// test took half a minute.
#[test]
fn many_routes_attach_to_many_listener_sets() {
    const ROUTES: usize = 5_000;
    let mut all =
        gateway("{name: tcp, port: 80, protocol: TCP}", ", allowedListeners: {namespaces: {from: Same}}");
    let mut parents = Vec::new();
    for set in 0..16 {
        let listeners =
            (0..63).map(|n| format!("{{name: l{n}, port: {}, protocol: TCP}}", 1_000 + 64 * set + n));
        let listeners: Vec<String> = listeners.collect();
        let spec = "{name: tcp, port: 81, protocol: TCP}";
        all += &listener_set(&format!("s{set}"), 81).replace(spec, &listeners.join(", "));
        for name in ["l1", "l2"] {
            parents.push(format!("{{kind: ListenerSet, name: s{set}, sectionName: {name}}}"));
        }
    }
    all += &route("TCPRoute", "shop/r", &parents.join(", "), WEB);
    let mut objects = Objects::clone(&world(&all).objects);
    let first = Route::clone(&objects.tcp_routes[&key("shop/r")]);
    for n in 1..ROUTES {
        let mut route = first.clone();
        route.meta.key = key(&format!("shop/r{n}"));
        objects.tcp_routes.insert(route.meta.key.clone(), Arc::new(route));
    }
    let mut gateway_api = GatewayApi::default();
    gateway_api.derive(&Arc::new(objects.clone()));
    objects.tcp_routes.remove(&key("shop/r"));
    gateway_api.derive(&Arc::new(objects));
    for set in 0..16 {
        let state = &gateway_api.states().listener_sets[&key(&format!("shop/s{set}"))];
        let counts: Vec<usize> = state.listeners.iter().map(|listener| listener.attached_routes).collect();
        assert_eq!(counts[..4], [0, ROUTES - 1, ROUTES - 1, 0]);
    }
}
