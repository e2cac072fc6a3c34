//! Property: what is remembered never shows.

use super::order::{arbitrary_endpoint, arbitrary_service};
use super::*;
use proptest::prelude::*;

/// One thing that happens to a gateway.
#[derive(Debug, Clone)]
enum Edit {
    Put(Box<Service>),
    Remove(usize),
    Slice {
        name: usize,
        of: usize,
        endpoints: Vec<Endpoint>,
    },
    NoSlice(usize),
    /// These of the targets checked now fail.
    Fail(u64),
    Drain(Option<u8>),
    Pass(u64),
    Weigh {
        node: u8,
        weight: Option<u16>,
    },
    Pools(bool),
    Timeout(u64),
    /// The source says the same again, in new objects.
    Relist,
}

fn arbitrary_edit() -> impl Strategy<Value = Edit> {
    let endpoints = || proptest::collection::vec(arbitrary_endpoint(), 0..5);
    // The VIPs of the pools are among the addresses: an endpoint may become one.
    let odd = prop_oneof![Just("203.0.113.4"), Just("198.51.100.2"), Just("127.0.0.1"), Just("10.0.0.3")];
    let slice = (0_usize..6, 0_usize..5, endpoints(), proptest::option::weighted(0.2, odd)).prop_map(
        |(name, of, mut endpoints, odd)| {
            endpoints.extend(odd.map(endpoint));
            Edit::Slice { name, of, endpoints }
        },
    );
    prop_oneof![
        4 => (0_usize..5).prop_flat_map(|n| arbitrary_service(format!("s{n}"))).prop_map(|service| Edit::Put(Box::new(service))),
        1 => (0_usize..5).prop_map(Edit::Remove),
        6 => slice,
        1 => (0_usize..6).prop_map(Edit::NoSlice),
        2 => any::<u64>().prop_map(Edit::Fail),
        1 => proptest::option::of(1_u8..12).prop_map(Edit::Drain),
        2 => (0_u64..200).prop_map(Edit::Pass),
        1 => (0_u8..3, proptest::option::of(0_u16..4)).prop_map(|(node, weight)| Edit::Weigh { node, weight }),
        1 => any::<bool>().prop_map(Edit::Pools),
        1 => (1_u64..300).prop_map(Edit::Timeout),
        1 => Just(Edit::Relist),
    ]
}

fn make(world: &mut World, edit: &Edit, last: Option<&Outcome>) {
    let objects = &mut world.objects;
    let key = |n: &usize| ObjectKey::new("default", format!("slice-{n}"));
    match edit {
        Edit::Put(service) => world.put(Service::clone(service)),
        Edit::Remove(n) => drop(objects.services.remove(&ObjectKey::new("default", format!("s{n}")))),
        Edit::Slice { name, of, endpoints } => {
            let ports = [("http", Protocol::Tcp, 8080)];
            let slice = slice(&format!("slice-{name}"), &format!("s{of}"), &ports, endpoints.clone());
            objects.endpoint_slices.insert(key(name), Arc::new(slice));
        }
        Edit::NoSlice(n) => drop(objects.endpoint_slices.remove(&key(n))),
        Edit::Fail(bits) => {
            let targets = last.into_iter().flat_map(|outcome| outcome.targets.iter());
            let failing = targets.enumerate().filter(|(n, _)| bits >> (n % 64) & 1 == 1);
            world.verdicts = failing.map(|(_, target)| target.clone()).collect();
        }
        Edit::Drain(host) => {
            let target = |host: &u8| DrainTarget::Backend(ip(&format!("10.0.1.{host}")), None);
            world.drained = host.iter().map(target).collect();
        }
        Edit::Pass(seconds) => world.now += Duration::from_secs(*seconds),
        Edit::Weigh { node, weight } => {
            let mut meta = Metadata::new(ObjectKey::new("", format!("n{node}")));
            meta.annotations.extend(weight.map(|w| ("tidegate.dev/weight".to_owned(), w.to_string())));
            // A node whose address may be in a pool, with Pods behind it.
            let internal_ips = vec![ip(&format!("10.0.2.{node}")), ip(&format!("203.0.113.{node}"))];
            let pod_cidrs = vec![format!("10.1.{node}.0/24").parse().expect("a network")];
            let node = Node { internal_ips, pod_cidrs, ..Node::new(meta) };
            objects.nodes.insert(node.meta.key.name.clone(), Arc::new(node));
        }
        Edit::Pools(disabled) => world.settings.pools[0].disabled = *disabled,
        Edit::Timeout(seconds) => world.settings.drain_timeout = Duration::from_secs(*seconds),
        Edit::Relist => {
            let again = objects.services.iter().map(|(k, s)| (k.clone(), Arc::new(Service::clone(s))));
            objects.services = again.collect();
            let again = objects.endpoint_slices.iter();
            let again = again.map(|(k, s)| (k.clone(), Arc::new(EndpointSlice::clone(s))));
            objects.endpoint_slices = again.collect();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_reconciler_gives_what_a_reconcile_from_scratch_gives(
        edits in proptest::collection::vec(proptest::collection::vec(arbitrary_edit(), 0..4), 1..14),
    ) {
        let mut world = World::new(vec![], vec![]);
        world.settings.node_port_addresses = vec!["10.0.0.0/8".parse().expect("a network")];
        world.settings.own_cluster_ips = true;
        world.settings.pod_routes = crate::config::PodRoutes::Node;
        let mut reconciler = Reconciler::default();
        let mut last = None;
        for (round, edits) in edits.iter().enumerate() {
            edits.iter().for_each(|edit| make(&mut world, edit, last.as_ref()));
            let outcome = reconciler.reconcile(&world.input());
            let scratch = reconcile(&world.input());
            // Byte for byte, not only by what takes part in equality.
            prop_assert_eq!(format!("{outcome:#?}"), format!("{scratch:#?}"), "in round {}", round);
            prop_assert_eq!(&outcome, &scratch);
            world.memory = outcome.memory.clone();
            last = Some(outcome);
        }
    }
}

#[test]
fn what_did_not_change_is_shared_with_the_last_outcome() {
    let services: Vec<Service> = ["a", "b"].map(service).into();
    let slices = vec![http("a", vec![endpoint("10.0.1.1")]), http("b", vec![endpoint("10.0.1.2")])];
    let mut world = World::new(services, slices);
    let mut reconciler = Reconciler::default();
    let mut step = |world: &mut World| {
        let outcome = reconciler.reconcile(&world.input());
        world.memory = outcome.memory.clone();
        outcome
    };
    step(&mut world);
    let before = step(&mut world);
    let slice = http("b", vec![with(endpoint("10.0.1.2"), false, false, false)]);
    world.objects.endpoint_slices.insert(slice.meta.key.clone(), Arc::new(slice));
    let after = step(&mut world);
    let same: Vec<bool> =
        before.services.iter().zip(&after.services).map(|(a, b)| Arc::ptr_eq(a, b)).collect();
    assert_eq!(same, [true, false]);
    let of = |outcome: &Outcome, name: &str| {
        outcome.spec.services.iter().find(|s| s.name == name).expect("it is programmed").clone()
    };
    assert!(of(&before, "a").is_same(&of(&after, "a")) && !of(&before, "b").is_same(&of(&after, "b")));
    assert!(Arc::ptr_eq(&before.findings, &after.findings));
    assert!(Arc::ptr_eq(&before.memory.allocations, &after.memory.allocations));
}
