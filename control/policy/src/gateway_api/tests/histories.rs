//! Equal objects give an equal result, whatever the previous calls were.

use proptest::prelude::*;
use tidegate_model::objects::gateway_api::{
    BackendRef, FromNamespaces, GROUP, Gateway, GrantFrom, GrantTo, Listener, ListenerSet, ParentRef,
    ReferenceGrant, Route, RouteRule,
};
use tidegate_model::objects::{FINALIZER, Metadata, Namespace, Port, Selector, ServicePort, TargetPort};

use super::*;

/// A change of one object. Names are few, so that changes concern the same objects.
#[derive(Debug, Clone)]
enum Edit {
    Class(bool),
    Gateway { name: u8, present: bool, listeners: u8, sets: u8 },
    Set { name: u8, present: bool, gateway: u8, port: u8 },
    Route { name: u8, udp: bool, present: bool, parent: u8, in_set: bool, section: bool, backend: u8 },
    Service { name: u8, present: bool, port: u8 },
    Grant(bool),
    Namespace(bool),
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        1 => any::<bool>().prop_map(Edit::Class),
        3 => (0..2_u8, any::<bool>(), 0..4_u8, 0..3_u8).prop_map(|(name, present, listeners, sets)| {
            Edit::Gateway { name, present, listeners, sets }
        }),
        2 => (0..2_u8, any::<bool>(), 0..2_u8, 0..3_u8)
            .prop_map(|(name, present, gateway, port)| Edit::Set { name, present, gateway, port }),
        4 => (0..4_u8, any::<bool>(), any::<bool>(), 0..2_u8, any::<bool>(), any::<bool>(), 0..3_u8).prop_map(
            |(name, udp, present, parent, in_set, section, backend)| {
                Edit::Route { name, udp, present, parent, in_set, section, backend }
            }
        ),
        2 => (0..3_u8, any::<bool>(), 0..2_u8).prop_map(|(name, present, port)| Edit::Service { name, present, port }),
        1 => any::<bool>().prop_map(Edit::Grant),
        1 => any::<bool>().prop_map(Edit::Namespace),
    ]
}

fn port(n: u8) -> Port {
    Port::new(80 + u16::from(n)).expect("not zero")
}

fn selector() -> FromNamespaces {
    FromNamespaces::Selector(Selector::parse("edge=yes").expect("a selector"))
}

fn listener(name: &str, number: u8, protocol: &str) -> Listener {
    Listener {
        name: name.to_owned(),
        hostname: None,
        port: port(number),
        protocol: protocol.to_owned(),
        allowed_kinds: Vec::new(),
        allowed_namespaces: if number == 0 { selector() } else { FromNamespaces::All },
    }
}

fn put<V>(map: &mut SharedMap<ObjectKey, Arc<V>>, key: ObjectKey, value: V, present: bool) {
    match present {
        true => map.insert(key, Arc::new(value)),
        false => map.remove(&key),
    };
}

fn apply(objects: &mut Objects, edit: &Edit) {
    match edit.clone() {
        Edit::Class(ours) => {
            let class = GatewayClass {
                controller: if ours { CONTROLLER } else { "example.com/other" }.to_owned(),
                ..GatewayClass::default()
            };
            objects.gateway_classes.insert("tidegate".to_owned(), Arc::new(class));
        }
        Edit::Gateway { name, present, listeners, sets } => {
            let key = ObjectKey::new("shop", format!("g{name}"));
            let protocols = ["TCP", "UDP", "HTTP", "TCP"];
            let gateway = Gateway {
                meta: Metadata::new(key.clone()),
                class: "tidegate".to_owned(),
                listeners: (0..=listeners)
                    .map(|n| listener(&format!("l{n}"), n, protocols[usize::from(n)]))
                    .collect(),
                allowed_listeners: [FromNamespaces::None, FromNamespaces::All, selector()][usize::from(sets)]
                    .clone(),
                finalizers: vec![FINALIZER.to_owned(); usize::from(listeners % 2)],
                ..Gateway::default()
            };
            put(&mut objects.gateways, key, gateway, present);
        }
        Edit::Set { name, present, gateway, port } => {
            let key = ObjectKey::new("team", format!("s{name}"));
            let set = ListenerSet {
                meta: Metadata::new(key.clone()),
                parent: ParentRef {
                    namespace: Some("shop".to_owned()),
                    name: format!("g{gateway}"),
                    ..ParentRef::default()
                },
                listeners: vec![listener("l0", port, "TCP"), listener("l1", port + 1, "UDP")],
                ..ListenerSet::default()
            };
            put(&mut objects.listener_sets, key, set, present);
        }
        Edit::Route { name, udp, present, parent, in_set, section, backend } => {
            let key = ObjectKey::new("team", format!("r{name}"));
            let (namespace, kind, of) =
                if in_set { ("team", "ListenerSet", "s") } else { ("shop", "Gateway", "g") };
            let parents = (0..=parent).map(|n| ParentRef {
                group: GROUP.to_owned(),
                kind: kind.to_owned(),
                namespace: Some(namespace.to_owned()),
                name: format!("{of}{n}"),
                section_name: section.then(|| "l1".to_owned()),
                port: None,
            });
            let backend = BackendRef {
                group: String::new(),
                kind: "Service".to_owned(),
                namespace: Some(["team", "shop", "shop"][usize::from(backend)].to_owned()),
                name: format!("web{backend}"),
                port: Some(port(0)),
                weight: 1,
            };
            let route = Route {
                meta: Metadata::new(key.clone()),
                generation: 0,
                protocol: if udp { Protocol::Udp } else { Protocol::Tcp },
                parents: parents.collect(),
                rules: vec![RouteRule { name: None, backends: vec![backend] }],
                status: Vec::new(),
            };
            let map = if udp { &mut objects.udp_routes } else { &mut objects.tcp_routes };
            put(map, key, route, present);
        }
        Edit::Service { name, present, port: number } => {
            let namespace = ["team", "shop", "shop"][usize::from(name)];
            let key = ObjectKey::new(namespace, format!("web{name}"));
            let mut service = Service::new(Metadata::new(key.clone()));
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                service.ports.push(ServicePort {
                    name: protocol.to_string(),
                    protocol,
                    app_protocol: None,
                    port: port(number),
                    target_port: TargetPort::Number(port(number)),
                    node_port: None,
                    routed: None,
                });
            }
            put(&mut objects.services, key, service, present);
        }
        Edit::Grant(present) => {
            let key = ObjectKey::new("shop", "grant");
            let from = |kind: &str| GrantFrom {
                group: GROUP.to_owned(),
                kind: kind.to_owned(),
                namespace: "team".to_owned(),
            };
            let grant = ReferenceGrant {
                meta: Metadata::new(key.clone()),
                from: vec![from("TCPRoute")],
                to: vec![GrantTo { group: String::new(), kind: "Service".to_owned(), name: None }],
            };
            put(&mut objects.reference_grants, key, grant, present);
        }
        Edit::Namespace(labelled) => {
            let mut namespace = Namespace { meta: Metadata::new(ObjectKey::new("", "team")) };
            if labelled {
                namespace.meta.labels.insert("edge".to_owned(), "yes".to_owned());
            }
            objects.namespaces.insert("team".to_owned(), Arc::new(namespace));
        }
    }
}

proptest! {
    #[test]
    fn the_result_does_not_depend_on_the_history(edits in proptest::collection::vec(edit(), 1..60)) {
        let mut objects = Objects::default();
        apply(&mut objects, &Edit::Class(true));
        let mut incremental = GatewayApi::default();
        for edit in &edits {
            apply(&mut objects, edit);
            let derived = incremental.derive(&Arc::new(objects.clone()));
            let mut fresh = GatewayApi::default();
            let expected = fresh.derive(&Arc::new(objects.clone()));
            prop_assert_eq!(&derived, &expected, "after {:?}", edit);
            prop_assert_eq!(incremental.states(), fresh.states(), "after {:?}", edit);
            prop_assert_eq!(incremental.findings(), fresh.findings(), "after {:?}", edit);
        }
    }
}
