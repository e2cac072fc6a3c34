//! Property: cached results never change the outcome, and a change recomputes only the Services that it can affect.

use tidegate_model::config::PodRoutes;
use tidegate_model::objects::Namespace;

use super::edits::{app, arbitrary_edit, make};
use super::*;
use crate::pools::Authority;
use crate::reconcile::Compared;
use proptest::option::weighted;
use proptest::prelude::*;

/// A pool for the namespaces at the edge, with or without the settings that make Services depend on all others.
fn world(own: bool, pod_routes: bool, on_node: bool) -> World {
    let mut world = World::new(vec![], vec![]);
    let mut edge = pool("edge-lb", &["203.0.113.16/30"]);
    edge.namespace_selector.match_labels.insert("edge".into(), "true".into());
    world.settings.pools.insert(1, edge);
    if own {
        world.settings.services.node_port_addresses = vec!["10.0.0.0/8".parse().expect("a network")];
        world.settings.services.own_cluster_ips = true;
    }
    if pod_routes {
        world.settings.services.pod_routes = PodRoutes::Node;
    }
    world.settings.node = on_node.then(|| "n0".to_owned());
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_reconciler_equals_a_reconcile_from_scratch(
        own in any::<bool>(),
        pod_routes in any::<bool>(),
        on_node in weighted(0.3, Just(())),
        edits in proptest::collection::vec(proptest::collection::vec(arbitrary_edit(), 0..4), 1..16),
    ) {
        let mut world = world(own, pod_routes, on_node.is_some());
        let mut reconciler = Reconciler::default();
        let mut last = None;
        for (round, edits) in edits.iter().enumerate() {
            edits.iter().for_each(|edit| make(&mut world, edit, last.as_ref()));
            let outcome = reconciler.reconcile(&world.input());
            let scratch = reconcile(&world.input());
            // Compare byte for byte, and not only the fields that are part of equality.
            prop_assert_eq!(format!("{outcome:#?}"), format!("{scratch:#?}"), "in round {}", round);
            prop_assert_eq!(&outcome, &scratch);
            let compared = reconciler.round(&world.input(), &Arc::new(outcome.clone())).compare();
            prop_assert_eq!(compared, Compared::default());
            world.memory = outcome.memory.clone();
            last = Some(outcome);
        }
    }
}

/// Twelve Services. Of each four, one is on node `n0`, one is on `n1`, one sends to nodes, and one has endpoints from
/// Pods. One of the twelve has a node selector.
fn mixed() -> World {
    let (mut services, mut slices) = (Vec::new(), Vec::new());
    for n in 0..12 {
        let name = format!("s{n:02}");
        let mut service = service(&name);
        match n % 4 {
            at @ 0..2 => {
                let mut endpoint = super::on(endpoint(&format!("10.0.1.{}", n + 1)), &format!("n{at}"));
                let key = ObjectKey::new("default", format!("pod-{n}"));
                endpoint.target_ref = Some(ObjectRef { kind: "Pod".into(), key });
                slices.push(http(&name, vec![endpoint]));
                if n == 1 {
                    service = annotated(service, "tidegate.dev/backend-node-selector", "tier=odd");
                }
            }
            2 => {
                service = annotated(service, "tidegate.dev/target", "node");
                service = annotated(service, "tidegate.dev/forwarding", "dsr-ipip");
            }
            _ => service.selector = app(u8::try_from(n).expect("small")),
        }
        services.push(service);
    }
    let mut world = World::new(services, slices);
    world.put_node(node("n0", &["10.0.2.1"]));
    world.put_node(node("n1", &["10.0.2.2"]));
    world
}

#[test]
fn services_that_a_change_cannot_affect_are_not_recomputed() {
    let mut world = mixed();
    let mut reconciler = Reconciler::default();
    let mut recomputed = |world: &mut World, change: &dyn Fn(&mut World)| {
        change(world);
        let outcome = reconciler.reconcile(&world.input());
        world.memory = outcome.memory;
        reconciler.recomputed()
    };
    let node = |world: &mut World, change: &dyn Fn(&mut Node)| {
        let mut node = Node::clone(&world.objects.nodes["n0"]);
        change(&mut node);
        world.put_node(node);
    };
    assert_eq!(recomputed(&mut world, &|_| ()), 12);
    assert_eq!(recomputed(&mut world, &|_| ()), 0);
    let (of_n0, of_n1, to_nodes) = (3, 3, 3);
    let heartbeat = |w: &mut World| node(w, &|_| ());
    assert_eq!(recomputed(&mut world, &heartbeat), 0, "an equal object is not a change");
    let annotated = |w: &mut World| node(w, &|n| drop(n.meta.annotations.insert("other".into(), "1".into())));
    assert_eq!(recomputed(&mut world, &annotated), 0);
    let labelled = |w: &mut World| node(w, &|n| drop(n.meta.labels.insert("other".into(), "1".into())));
    assert_eq!(recomputed(&mut world, &labelled), 0, "no selector there depends on labels");
    let zone = |w: &mut World| {
        node(w, &|n| drop(n.meta.labels.insert("topology.kubernetes.io/zone".into(), "z1".into())));
    };
    assert_eq!(recomputed(&mut world, &zone), of_n0 + to_nodes);
    let moved = |w: &mut World| node(w, &|n| n.internal_ips = vec![ip("10.0.2.9")]);
    assert_eq!(recomputed(&mut world, &moved), to_nodes);
    let cidr = |w: &mut World| node(w, &|n| n.pod_cidrs = vec!["10.1.0.0/24".parse().expect("a net")]);
    assert_eq!(recomputed(&mut world, &cidr), 0);
    let tier = |w: &mut World| {
        let mut n1 = Node::clone(&w.objects.nodes["n1"]);
        n1.meta.labels.insert("tier".into(), "odd".into());
        w.put_node(n1);
    };
    assert_eq!(recomputed(&mut world, &tier), 1, "it has a node selector");
    let drained = |w: &mut World| w.drained = BTreeSet::from([DrainTarget::Node("n1".into())]);
    assert_eq!(recomputed(&mut world, &drained), of_n1 + to_nodes);

    let pod = |world: &mut World, name: &str, of_app: u8, weight: Option<&str>| {
        let mut meta = Metadata::new(ObjectKey::new("default", name));
        meta.labels = app(of_app);
        meta.annotations.extend(weight.map(|w| ("tidegate.dev/weight".to_owned(), w.to_owned())));
        let ips = vec![ip("10.0.1.99")];
        let pod = Pod { meta, node_name: None, ips, ready: true, finished: false, container_ports: vec![] };
        world.objects.pods.insert(pod.meta.key.clone(), Arc::new(pod));
    };
    assert_eq!(recomputed(&mut world, &|w| pod(w, "pod-4", 99, Some("2"))), 1);
    assert_eq!(recomputed(&mut world, &|w| pod(w, "stranger", 99, Some("2"))), 0);
    assert_eq!(
        recomputed(&mut world, &|w| pod(w, "pod-4", 98, Some("2"))),
        0,
        "no Service selects its labels"
    );
    assert_eq!(recomputed(&mut world, &|w| pod(w, "new", 3, None)), 1, "it is selected");

    let namespace = |world: &mut World, edge: &str| {
        let mut meta = Metadata::new(ObjectKey::new("", "default"));
        meta.labels.insert("edge".into(), edge.into());
        world.objects.namespaces.insert("default".into(), Arc::new(Namespace { meta }));
    };
    assert_eq!(recomputed(&mut world, &|w| namespace(w, "true")), 0, "no pool selects by labels");

    let withheld = |w: &mut World| {
        w.settings.authority = Authority::Decides { withheld: BTreeSet::from([ip("203.0.113.1")]) };
    };
    assert_eq!(recomputed(&mut world, &withheld), 0);
    assert_eq!(recomputed(&mut world, &|w| w.put(service("new"))), 1);
    let gone = |w: &mut World| drop(w.objects.services.remove(&ObjectKey::new("default", "new")));
    assert_eq!(recomputed(&mut world, &gone), 1);
}

#[test]
fn a_service_with_zone_hints_follows_the_zone_of_the_gateways_node() {
    let hinted =
        |address: &str, zone: &str| Endpoint { hint_zones: vec![zone.to_owned()], ..endpoint(address) };
    let slice = http("web", vec![hinted("10.0.1.1", "z1"), hinted("10.0.1.2", "z2")]);
    let mut world = World::new(vec![service("web")], vec![slice]);
    world.settings.node = Some("n0".to_owned());
    let mut reconciler = Reconciler::default();
    let mut states_in = |zone: &str| {
        let mut node = node("n0", &["10.0.2.1"]);
        node.meta.labels.insert("topology.kubernetes.io/zone".into(), zone.into());
        world.put_node(node);
        let outcome = reconciler.reconcile(&world.input());
        let backends = states(only(&outcome));
        world.memory = outcome.memory;
        backends
    };
    assert_eq!(states_in("z1"), ["10.0.1.1:8080 active", "10.0.1.2:8080 draining"]);
    assert_eq!(states_in("z2"), ["10.0.1.1:8080 draining", "10.0.1.2:8080 active"]);
    assert_eq!(states_in("z3"), ["10.0.1.1:8080 active", "10.0.1.2:8080 active"]);
}

#[test]
fn recomputed_services_with_equal_results_keep_their_values() {
    let mut world = mixed();
    let mut reconciler = Reconciler::default();
    let before = reconciler.reconcile(&world.input());
    world.memory = before.memory.clone();
    let mut node = Node::clone(&world.objects.nodes["n0"]);
    // The weight 1 is the default.
    node.meta.annotations.insert("tidegate.dev/weight".into(), "1".into());
    world.put_node(node);
    let after = reconciler.reconcile(&world.input());
    assert_eq!(reconciler.recomputed(), 6);
    assert!(before.services.iter().zip(&after.services).all(|(a, b)| Arc::ptr_eq(a, b)));
    assert!(before.spec.services.iter().zip(&after.spec.services).all(|(a, b)| a.is_same(b)));
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
