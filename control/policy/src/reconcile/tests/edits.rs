//! Edits that can happen to a gateway between two reconciles, and a strategy that generates them.

use tidegate_model::objects::{
    AddressPool, AddressPoolStatus, EndpointAddress, Endpoints, FINALIZER, Labels, Namespace, Routed,
    RoutedBackend, Subset,
};

use super::order::{arbitrary_endpoint, arbitrary_service};
use super::*;
use crate::pools::Authority;
use proptest::option::{of, weighted};
use proptest::prelude::*;

/// An event at a gateway.
#[derive(Debug, Clone)]
pub(super) enum Edit {
    Put(Box<Service>),
    Remove(ObjectKey),
    Slice {
        name: usize,
        of: ObjectKey,
        endpoints: Vec<Endpoint>,
    },
    NoSlice(usize),
    /// An object of the legacy kind.
    Endpoints(ObjectKey, Option<u8>),
    /// Makes some of the current targets fail.
    Fail(u64),
    Drain(Option<DrainTarget>),
    Pass(u64),
    Node(Box<Node>),
    NoNode(u8),
    Pod(Box<Pod>),
    NoPod(ObjectKey),
    Namespace(Box<Namespace>),
    NoNamespace(&'static str),
    AddressPool(Option<bool>),
    /// Changes the address at which the gateway reaches an API server.
    ApiServer(Option<u8>),
    Authority(Authority),
    Pools {
        disabled: bool,
        quota: Option<u32>,
    },
    Settings {
        drain_timeout: u64,
        zone: Option<u8>,
    },
    /// Changes the limits of the tables of all Services together.
    Limits(Option<(usize, usize)>),
    /// The source sends the same state again in new objects.
    Relist,
}

fn namespace() -> impl Strategy<Value = &'static str> {
    prop_oneof![3 => Just("default"), 1 => Just("other")]
}

fn service_key() -> impl Strategy<Value = ObjectKey> {
    (namespace(), 0_usize..5).prop_map(|(namespace, n)| ObjectKey::new(namespace, format!("s{n}")))
}

fn gateway_key() -> impl Strategy<Value = ObjectKey> {
    (namespace(), 0_usize..2).prop_map(|(namespace, n)| ObjectKey::of_gateway(namespace, &format!("g{n}")))
}

fn pod_key() -> impl Strategy<Value = ObjectKey> {
    (namespace(), 0_u8..4).prop_map(|(namespace, n)| ObjectKey::new(namespace, format!("p{n}")))
}

pub(super) fn app(n: u8) -> Labels {
    Labels::from([("app".into(), n.to_string())])
}

/// As in `order`, with references to nodes, Pods and namespaces, and with the state of other gateways and of the API
/// server.
fn arbitrary_put() -> impl Strategy<Value = Edit> {
    let service = (0_usize..5).prop_flat_map(|n| arbitrary_service(format!("s{n}")));
    (
        service,
        namespace(),
        of(0_u8..2),
        weighted(0.2, any::<bool>()),
        weighted(0.2, 1_u8..9),
        weighted(0.1, any::<bool>()),
    )
        .prop_map(|(mut service, namespace, selector, nodes, ingress, finalized)| {
            namespace.clone_into(&mut service.meta.key.namespace);
            service.meta.uid = service.meta.key.to_string();
            service.selector = selector.map(app).unwrap_or_default();
            if let Some(odd) = nodes {
                let value = if odd { "tier=odd" } else { "tier" };
                service = annotated(service, "tidegate.dev/backend-node-selector", value);
            }
            service.ingress_ips = ingress.iter().map(|n| ip(&format!("203.0.113.{n}"))).collect();
            if let Some(leaves) = finalized {
                service.stored.finalizers = vec![FINALIZER.to_owned()];
                if leaves {
                    service.load_balancer_class = Some("another".into());
                }
            }
            Edit::Put(Box::new(service))
        })
}

/// A Gateway as it is served: up to three listeners, with a route to up to two backends.
fn arbitrary_gateway() -> impl Strategy<Value = Edit> {
    let target = weighted(0.9, (service_key(), (80_u16..83).prop_map(port)));
    let backend = (target, 0_u32..3).prop_map(|(service, weight)| RoutedBackend { service, weight });
    let backends = proptest::collection::vec(backend, 0..3);
    let listeners = proptest::collection::btree_set(80_u16..84, 0..4);
    (gateway_key(), listeners, backends).prop_map(|(key, listeners, backends)| {
        let routed = Arc::new(Routed { route: None, backends });
        let mut gateway = Service { meta: Metadata::new(key), ..service("") };
        gateway.meta.uid = gateway.meta.key.to_string();
        gateway.meta.annotations.insert("tidegate.dev/allow-shared-ip".into(), "k".into());
        let listener = |number: u16| {
            let listener = service_port(&format!("l{number}"), Protocol::Tcp, number, number);
            ServicePort { routed: Some(Arc::clone(&routed)), ..listener }
        };
        gateway.ports = listeners.into_iter().map(listener).collect();
        gateway.added_ports = gateway.ports.len() / 2;
        Edit::Put(Box::new(gateway))
    })
}

/// Some endpoints are on nodes, belong to Pods and have hints. The VIPs of the pools are among the addresses.
fn arbitrary_slice() -> impl Strategy<Value = Edit> {
    let dressed = (arbitrary_endpoint(), of(pod_key()), weighted(0.3, 0_u8..2), weighted(0.3, 0_u8..2));
    let dressed = dressed.prop_map(|(mut endpoint, pod, zone, hint)| {
        endpoint.target_ref = pod.map(|key| ObjectRef { kind: "Pod".into(), key });
        endpoint.zone = zone.map(|n| format!("z{n}"));
        endpoint.hint_zones = hint.iter().map(|n| format!("z{n}")).collect();
        endpoint
    });
    let odd = prop_oneof![Just("203.0.113.4"), Just("198.51.100.2"), Just("127.0.0.1"), Just("10.0.0.3")];
    (0_usize..6, service_key(), proptest::collection::vec(dressed, 0..5), weighted(0.2, odd)).prop_map(
        |(name, of, mut endpoints, odd)| {
            endpoints.extend(odd.map(endpoint));
            Edit::Slice { name, of, endpoints }
        },
    )
}

fn arbitrary_node() -> impl Strategy<Value = Edit> {
    let labels = (of(0_u8..2), of(any::<bool>()), weighted(0.2, Just(())), of(any::<u8>()));
    let addresses = (any::<bool>(), any::<bool>(), of(0_u8..4));
    (0_u8..3, labels, weighted(0.4, 0_u16..4), addresses).prop_map(
        |(n, (zone, tier, excluded, other), weight, (in_pool, v6, cidr))| {
            let mut node = node(&format!("n{n}"), &[&format!("10.0.2.{n}")]);
            // The address of a node may be in a pool, and there are Pods behind it.
            node.external_ips = in_pool.then(|| ip(&format!("203.0.113.{n}"))).into_iter().collect();
            node.internal_ips.extend(v6.then(|| ip(&format!("2001:db8::2:{n}"))));
            node.pod_cidrs = cidr.iter().map(|n| format!("10.1.{n}.0/24").parse().expect("a net")).collect();
            let reported = [
                ("topology.kubernetes.io/zone", zone.map(|n| format!("z{n}"))),
                ("tier", tier.map(|odd| if odd { "odd" } else { "even" }.to_owned())),
                ("node.kubernetes.io/exclude-from-external-load-balancers", excluded.map(|()| String::new())),
                ("other", other.map(|n| n.to_string())),
            ];
            node.meta.labels = reported.into_iter().filter_map(|(k, v)| Some((k.to_owned(), v?))).collect();
            // 3 stands for an invalid number.
            let weight = weight.map(|w| if w == 3 { "many".to_owned() } else { w.to_string() });
            node.meta.annotations.extend(weight.map(|w| ("tidegate.dev/weight".to_owned(), w)));
            Edit::Node(Box::new(node))
        },
    )
}

fn arbitrary_pod() -> impl Strategy<Value = Edit> {
    let on = of(0_u8..3);
    (pod_key(), of(0_u16..3), 0_u8..2, 1_u8..12, on, any::<bool>()).prop_map(
        |(key, weight, of_app, host, node, ready)| {
            let mut meta = Metadata::new(key);
            meta.labels = app(of_app);
            meta.annotations.extend(weight.map(|w| ("tidegate.dev/weight".to_owned(), w.to_string())));
            Edit::Pod(Box::new(Pod {
                meta,
                node_name: node.map(|n| format!("n{n}")),
                ips: vec![ip(&format!("10.0.1.{host}"))],
                ready,
                finished: false,
                container_ports: vec![],
            }))
        },
    )
}

fn arbitrary_namespace() -> impl Strategy<Value = Edit> {
    (namespace(), of(any::<bool>()), weighted(0.2, Just(jiff::Timestamp::UNIX_EPOCH))).prop_map(
        |(name, edge, deletion_time)| {
            let mut meta = Metadata::new(ObjectKey::new("", name));
            meta.labels.extend(edge.map(|edge| ("edge".to_owned(), edge.to_string())));
            meta.deletion_time = deletion_time;
            Edit::Namespace(Box::new(Namespace { meta }))
        },
    )
}

pub(super) fn arbitrary_edit() -> impl Strategy<Value = Edit> {
    let drain = prop_oneof![
        (1_u8..12).prop_map(|host| DrainTarget::Backend(ip(&format!("10.0.1.{host}")), None)),
        (0_u8..3).prop_map(|n| DrainTarget::Node(format!("n{n}"))),
    ];
    let withheld =
        proptest::collection::btree_set((0_u8..16).prop_map(|n| ip(&format!("203.0.113.{n}"))), 0..3);
    let authority = prop_oneof![
        1 => Just(Authority::Follows),
        3 => withheld.prop_map(|withheld| Authority::Decides { withheld }),
    ];
    let pools = (any::<bool>(), of(1_u32..3)).prop_map(|(disabled, quota)| Edit::Pools { disabled, quota });
    let settings =
        (1_u64..300, of(0_u8..2)).prop_map(|(drain_timeout, zone)| Edit::Settings { drain_timeout, zone });
    prop_oneof![
        1 => weighted(0.7, (1_usize..8, 1_usize..12)).prop_map(Edit::Limits),
        6 => arbitrary_put(),
        3 => arbitrary_gateway(),
        1 => prop_oneof![4 => service_key(), 1 => gateway_key()].prop_map(Edit::Remove),
        6 => arbitrary_slice(),
        1 => (0_usize..6).prop_map(Edit::NoSlice),
        1 => (service_key(), of(1_u8..12)).prop_map(|(key, host)| Edit::Endpoints(key, host)),
        2 => any::<u64>().prop_map(Edit::Fail),
        1 => of(drain).prop_map(Edit::Drain),
        2 => (0_u64..200).prop_map(Edit::Pass),
        5 => arbitrary_node(),
        1 => (0_u8..3).prop_map(Edit::NoNode),
        3 => arbitrary_pod(),
        1 => pod_key().prop_map(Edit::NoPod),
        2 => arbitrary_namespace(),
        1 => namespace().prop_map(Edit::NoNamespace),
        1 => of(any::<bool>()).prop_map(Edit::AddressPool),
        1 => of(0_u8..16).prop_map(Edit::ApiServer),
        2 => authority.prop_map(Edit::Authority),
        1 => pools,
        1 => settings,
        1 => Just(Edit::Relist),
    ]
}

/// Makes an edit. `last` is the outcome before it: its checks can fail.
pub(super) fn make(world: &mut World, edit: &Edit, last: Option<&Outcome>) {
    match edit {
        Edit::Put(service) => world.put(Service::clone(service)),
        Edit::Fail(bits) => {
            let targets = last.into_iter().flat_map(|outcome| outcome.targets.iter());
            let failing = targets.enumerate().filter(|(n, _)| bits >> (n % 64) & 1 == 1);
            world.verdicts = failing.map(|(_, target)| target.clone()).collect();
        }
        Edit::Drain(target) => world.drained = target.iter().cloned().collect(),
        Edit::Pass(seconds) => world.now += Duration::from_secs(*seconds),
        Edit::Node(node) => world.put_node(Node::clone(node)),
        Edit::Authority(_) | Edit::Pools { .. } | Edit::Settings { .. } | Edit::Limits(_) => {
            configure(&mut world.settings, edit);
        }
        _ => change(&mut world.objects, edit),
    }
}

/// An edit of the settings.
fn configure(settings: &mut Settings, edit: &Edit) {
    match edit {
        Edit::Authority(authority) => settings.authority = authority.clone(),
        Edit::Pools { disabled, quota } => {
            let public = &mut settings.pools[0];
            (public.disabled, public.quota_per_namespace) = (*disabled, *quota);
        }
        Edit::Settings { drain_timeout, zone } => {
            settings.services.defaults.drain_timeout = Duration::from_secs(*drain_timeout);
            settings.zone = zone.map(|n| format!("z{n}"));
        }
        Edit::Limits(limits) => {
            settings.limits = limits.map_or(Demand::MAX, |(frontends, backends)| Demand {
                frontends,
                backends,
                ..Demand::MAX
            });
        }
        _ => unreachable!("{edit:?} is not about the settings"),
    }
}

/// An edit of the objects.
fn change(objects: &mut Objects, edit: &Edit) {
    match edit {
        Edit::Remove(key) => drop(objects.services.remove(key)),
        Edit::Slice { name, of, endpoints } => {
            change(objects, &Edit::NoSlice(*name));
            let ports = [("http", Protocol::Tcp, 8080)];
            let mut slice = slice(&format!("slice-{name}"), &of.name, &ports, endpoints.clone());
            slice.meta.key.namespace.clone_from(&of.namespace);
            objects.endpoint_slices.insert(slice.meta.key.clone(), Arc::new(slice));
        }
        Edit::NoSlice(n) => {
            for namespace in ["default", "other"] {
                objects.endpoint_slices.remove(&ObjectKey::new(namespace, format!("slice-{n}")));
            }
        }
        Edit::Endpoints(key, None) => drop(objects.endpoints.remove(key)),
        Edit::Endpoints(key, Some(host)) => {
            objects.endpoints.insert(key.clone(), Arc::new(endpoints_at(key, *host)));
        }
        Edit::NoNode(n) => drop(objects.nodes.remove(&format!("n{n}"))),
        Edit::Pod(pod) => drop(objects.pods.insert(pod.meta.key.clone(), Arc::new(Pod::clone(pod)))),
        Edit::NoPod(key) => drop(objects.pods.remove(key)),
        Edit::Namespace(namespace) => {
            let name = namespace.meta.key.name.clone();
            objects.namespaces.insert(name, Arc::new(Namespace::clone(namespace)));
        }
        Edit::NoNamespace(name) => drop(objects.namespaces.remove(*name)),
        Edit::AddressPool(None) => objects.address_pools.clear(),
        Edit::AddressPool(Some(overlaps)) => {
            objects.address_pools.insert("object".into(), Arc::new(address_pool(*overlaps)));
        }
        Edit::ApiServer(n) => {
            objects.api_servers = n.iter().map(|n| ip(&format!("203.0.113.{n}"))).collect();
        }
        Edit::Relist => relist(objects),
        _ => unreachable!("{edit:?} is not about the objects"),
    }
}

/// Endpoints with one address.
fn endpoints_at(key: &ObjectKey, host: u8) -> Endpoints {
    let address = EndpointAddress {
        ip: ip(&format!("10.0.1.{host}")),
        node_name: Some(format!("n{}", host % 3)),
        target_ref: None,
    };
    let ports = slice("", "", &[("http", Protocol::Tcp, 8080)], vec![]).ports;
    let subsets = vec![Subset { addresses: vec![address], not_ready_addresses: vec![], ports }];
    Endpoints { meta: Metadata::new(key.clone()), subsets }
}

/// The AddressPool `object`; whether it overlaps a pool of the configuration.
fn address_pool(overlaps: bool) -> AddressPool {
    let pool = pool("object", &[if overlaps { "203.0.113.12/30" } else { "203.0.113.32/31" }]);
    let meta = Metadata::new(ObjectKey::new("", "object"));
    let status = AddressPoolStatus::default();
    AddressPool { meta, pool, faults: vec![], generation: 1, is_finalized_by_us: false, status }
}

/// Replaces objects by equal ones.
fn relist(objects: &mut Objects) {
    let again = objects.services.iter().map(|(k, s)| (k.clone(), Arc::new(Service::clone(s))));
    objects.services = again.collect();
    let again = objects.endpoint_slices.iter();
    let again = again.map(|(k, s)| (k.clone(), Arc::new(EndpointSlice::clone(s))));
    objects.endpoint_slices = again.collect();
    let again = objects.nodes.iter().map(|(k, n)| (k.clone(), Arc::new(Node::clone(n))));
    objects.nodes = again.collect();
}
