//! Properties: the order in which objects were written has no effect.

use super::*;
use proptest::prelude::*;

/// Deterministic shuffle.
fn shuffled<T>(mut items: Vec<T>, mut seed: u64) -> Vec<T> {
    for i in (1..items.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        items.swap(i, usize::try_from(seed >> 33).expect("31 bits") % (i + 1));
    }
    items
}

pub(super) fn arbitrary_endpoint() -> impl Strategy<Value = Endpoint> {
    let conditions = (any::<Option<bool>>(), any::<Option<bool>>(), any::<Option<bool>>());
    (1_u8..12, conditions, proptest::option::of(0_u8..3)).prop_map(
        |(host, (ready, serving, terminating), node)| {
            let mut endpoint = endpoint(&format!("10.0.1.{host}"));
            endpoint.conditions = Conditions { ready, serving, terminating };
            endpoint.node_name = node.map(|n| format!("n{n}"));
            endpoint
        },
    )
}

pub(super) fn arbitrary_service(name: String) -> impl Strategy<Value = Service> {
    let annotation = prop_oneof![
        Just(("tidegate.dev/forwarding", "nat")),
        Just(("tidegate.dev/forwarding", "dsr-ipip")),
        Just(("tidegate.dev/forwarding", "bad")),
        Just(("tidegate.dev/allow-shared-ip", "k")),
        Just(("tidegate.dev/load-balancer-ips", "203.0.113.4")),
        Just(("tidegate.dev/target", "node")),
    ];
    let own = (proptest::option::of(30_080_u16..30_083), proptest::option::of(1_u8..4), any::<bool>());
    (annotation, any::<bool>(), 0_i64..3, 80_u16..83, any::<bool>(), any::<bool>(), own).prop_map(
        move |(
            (key, value),
            is_external,
            time,
            number,
            local,
            dual,
            (node_port, cluster_ip, internal_local),
        )| {
            let mut service = annotated(service(&name), key, value);
            service.ports[0].port = port(number);
            if is_external {
                service.external_ips = vec![ip("198.51.100.2")];
            }
            if time > 0 {
                service.meta.creation_time = Some(jiff::Timestamp::from_second(time).expect("a time"));
            }
            if local {
                service.external_traffic_policy = TrafficPolicy::Local;
                service.health_check_node_port = Some(port(30_500));
            }
            service.ports[0].node_port = node_port.map(port);
            service.cluster_ips = cluster_ip.map(|n| ip(&format!("10.96.0.{n}"))).into_iter().collect();
            if internal_local {
                service.internal_traffic_policy = TrafficPolicy::Local;
            }
            if dual {
                service.ip_family_policy = IpFamilyPolicy::PreferDualStack;
            }
            service
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn shuffled_objects_give_an_equal_outcome(
        services in (1_usize..8).prop_flat_map(|n| {
            (0..n).map(|i| arbitrary_service(format!("s{i}"))).collect::<Vec<_>>()
        }),
        endpoints in proptest::collection::vec(arbitrary_endpoint(), 0..24),
        seed in any::<u64>(),
    ) {
        let world = |services: Vec<Service>, endpoints: Vec<Endpoint>, parts: usize| {
            let slices = services.iter().enumerate().flat_map(|(i, s)| {
                let name = s.meta.key.name.clone();
                let chunks: Vec<_> = endpoints.chunks(endpoints.len().div_ceil(parts).max(1)).collect();
                chunks.into_iter().enumerate().map(move |(j, chunk)| {
                    slice(&format!("{i}-{j}"), &name, &[("http", Protocol::Tcp, 8080)], chunk.to_vec())
                }).collect::<Vec<_>>()
            }).collect();
            let mut world = World::new(services, slices);
            world.settings.node = Some("n1".into());
            world.settings.services.node_port_addresses = vec!["10.0.0.0/8".parse().expect("a network")];
            world.settings.services.own_cluster_ips = true;
            world.put_node(node("n2", &["10.0.2.2", "2001:db8::2:2"]));
            world
        };
        // Two entries for the same endpoint on different nodes would differ only in their order.
        let endpoints: Vec<Endpoint> = endpoints.into_iter()
            .map(|e| (e.address, e)).collect::<BTreeMap<_, _>>().into_values().collect();
        let one = world(services.clone(), endpoints.clone(), 1);
        let other = world(shuffled(services, seed), shuffled(endpoints, seed ^ 1), 3);
        let (a, b) = (one.look(), other.look());
        prop_assert_eq!(&a, &b);

        let keys: BTreeSet<_> = a.spec.services.iter().map(|s| s.key).collect();
        prop_assert_eq!(keys.len(), a.spec.services.len(), "each (VIP, protocol, port) once");
        for service in &a.spec.services {
            let backends: BTreeSet<_> = service.backends.iter().map(|b| (b.address, b.port)).collect();
            prop_assert_eq!(backends.len(), service.backends.len(), "each backend once");
        }
    }

    #[test]
    fn reconciling_again_with_nothing_changed_changes_nothing(
        services in (1_usize..6).prop_flat_map(|n| {
            (0..n).map(|i| arbitrary_service(format!("s{i}"))).collect::<Vec<_>>()
        }),
        endpoints in proptest::collection::vec(arbitrary_endpoint(), 0..12),
    ) {
        let slices = services.iter().map(|s| http(&s.meta.key.name, endpoints.clone())).collect();
        let mut world = World::new(services, slices);
        let first = world.step();
        world.now += Duration::from_secs(5);
        let second = world.step();
        prop_assert_eq!(first.spec, second.spec);
        prop_assert_eq!(first.findings, second.findings);
    }
}
