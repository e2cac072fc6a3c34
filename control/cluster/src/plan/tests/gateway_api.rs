//! The status of objects of the Gateway API.

use tidegate_model::objects::gateway_api::{
    BackendRef, CONTROLLER, FromNamespaces, GROUP, Gateway, GatewayAddress, GatewayClass, Listener,
    ListenerSet, ListenerStatus, ParentRef, Route, RouteParentStatus, RouteRule,
};

use super::*;

fn meta(name: &str) -> Metadata {
    Metadata::new(key(name))
}

fn listener(name: &str, number: u16, protocol: &str) -> Listener {
    Listener {
        name: name.into(),
        hostname: None,
        port: Port::new(number).expect("not zero"),
        protocol: protocol.into(),
        allowed_kinds: Vec::new(),
        allowed_namespaces: FromNamespaces::Same,
    }
}

fn gateway(name: &str) -> Gateway {
    Gateway {
        meta: meta(name),
        generation: 1,
        class: "tidegate".into(),
        listeners: vec![listener("tcp", 80, "TCP")],
        allowed_listeners: FromNamespaces::Same,
        ..Gateway::default()
    }
}

fn parent(kind: &str, name: &str) -> ParentRef {
    ParentRef { group: GROUP.into(), kind: kind.into(), name: name.into(), ..ParentRef::default() }
}

fn listener_set(name: &str, of: &str, listeners: Vec<Listener>) -> ListenerSet {
    ListenerSet {
        meta: meta(name),
        generation: 1,
        parent: parent("Gateway", of),
        listeners,
        ..ListenerSet::default()
    }
}

/// A TCPRoute to port 8080 of Service `backend`.
fn route(name: &str, parent: ParentRef) -> Route {
    let backend = BackendRef {
        group: String::new(),
        kind: "Service".into(),
        namespace: None,
        name: "backend".into(),
        port: Port::new(8080),
        weight: 1,
    };
    Route {
        meta: meta(name),
        generation: 1,
        protocol: Protocol::Tcp,
        parents: vec![parent],
        rules: vec![RouteRule { name: None, backends: vec![backend] }],
        status: Vec::new(),
    }
}

/// The parent that another controller has written.
fn parent_of_another() -> RouteParentStatus {
    RouteParentStatus {
        parent: parent("Gateway", "theirs"),
        controller: "example.com/other".into(),
        conditions: vec![condition("Accepted", "True")],
    }
}

fn condition(kind: &str, status: &str) -> Condition {
    Condition {
        kind: kind.into(),
        status: status.into(),
        reason: "Theirs".into(),
        message: String::new(),
        observed_generation: 1,
        last_transition: Some(Timestamp::UNIX_EPOCH),
    }
}

/// `TYPE STATUS REASON` of each condition, except those of Tidegate alone.
fn shown(conditions: &[Condition]) -> Vec<String> {
    let of_specification = conditions.iter().filter(|c| !c.kind.starts_with("tidegate.dev/"));
    of_specification.map(|c| format!("{} {} {}", c.kind, c.status, c.reason)).collect()
}

/// Replaces the conditions of the same types, as an apply does.
fn merge(stored: &mut Vec<Condition>, written: &[Condition]) {
    stored.retain(|c| {
        let ours = ["Accepted", "Programmed", "Conflicted", "ResolvedRefs"].contains(&c.kind.as_str());
        !ours && !c.kind.starts_with("tidegate.dev/")
    });
    stored.extend(written.iter().cloned());
}

fn merge_listeners(stored: &mut Vec<ListenerStatus>, written: &[ListenerStatus]) {
    let before = std::mem::replace(stored, written.to_vec());
    for listener in stored {
        let old = before.iter().find(|old| old.name == listener.name);
        let mut conditions = old.map(|old| old.conditions.clone()).unwrap_or_default();
        merge(&mut conditions, &listener.conditions);
        listener.conditions = conditions;
    }
}

impl Cluster {
    /// A cluster with a class, a Gateway, and a Service for its routes.
    fn with_gateway(gateway: Gateway) -> Self {
        let mut backend = service("backend");
        backend.service_type = ServiceType::ClusterIp;
        backend.ports = vec![port("http", 8080, 8080, Protocol::Tcp)];
        let mut cluster = Self::new([backend]);
        cluster.endpoint("backend", "10.0.1.1");
        cluster.put_class(true);
        cluster.put_gateway(gateway);
        cluster
    }

    fn put_class(&mut self, ours: bool) {
        let controller = if ours { CONTROLLER } else { "example.com/other" }.to_owned();
        let meta = Metadata::new(ObjectKey::new("", "tidegate"));
        let known = self.objects.gateway_classes.get("tidegate").map(|class| class.status.clone());
        let status = known.unwrap_or_default();
        let class = GatewayClass { meta, generation: 1, controller, has_parameters: false, status };
        self.objects.gateway_classes.insert("tidegate".into(), Arc::new(class));
    }

    fn put_gateway(&mut self, gateway: Gateway) {
        self.objects.gateways.insert(gateway.meta.key.clone(), Arc::new(gateway));
    }

    fn put_route(&mut self, route: Route) {
        self.objects.tcp_routes.insert(route.meta.key.clone(), Arc::new(route));
    }

    fn put_set(&mut self, set: ListenerSet) {
        self.objects.listener_sets.insert(set.meta.key.clone(), Arc::new(set));
    }

    fn edit_gateway(&mut self, name: &str, edit: impl FnOnce(&mut Gateway)) {
        let mut gateway = Gateway::clone(&self.objects.gateways[&key(name)]);
        edit(&mut gateway);
        self.put_gateway(gateway);
    }

    fn edit_route(&mut self, name: &str, edit: impl FnOnce(&mut Route)) {
        let mut route = Route::clone(&self.objects.tcp_routes[&key(name)]);
        edit(&mut route);
        self.put_route(route);
    }

    fn gateway(&self, name: &str) -> &Gateway {
        &self.objects.gateways[&key(name)]
    }

    pub(super) fn take_gateway_finalizer(&mut self, served: &ObjectKey, present: bool) {
        let key = ObjectKey::new(served.namespace.as_str(), served.gateway_name().expect("a Gateway"));
        let mut gateway = Gateway::clone(&self.objects.gateways[&key]);
        gateway.finalizers.retain(|finalizer| finalizer != FINALIZER);
        if present {
            gateway.finalizers.push(FINALIZER.into());
        } else if gateway.meta.deletion_time.is_some() && gateway.finalizers.is_empty() {
            self.objects.gateways.remove(&key);
            return;
        }
        self.put_gateway(gateway);
    }

    pub(super) fn take_status(&mut self, object: &ObjectKey, status: &WrittenStatus) {
        match status {
            WrittenStatus::GatewayClass(status) => {
                let mut class = GatewayClass::clone(&self.objects.gateway_classes[&object.name]);
                merge(&mut class.status.conditions, &status.conditions);
                class.status.supported_features.clone_from(&status.supported_features);
                self.objects.gateway_classes.insert(object.name.clone(), Arc::new(class));
            }
            WrittenStatus::Gateway(status) => {
                let mut gateway = Gateway::clone(&self.objects.gateways[object]);
                let status = status.clone().unwrap_or_default();
                merge(&mut gateway.status.conditions, &status.conditions);
                merge_listeners(&mut gateway.status.listeners, &status.listeners);
                gateway.address_managers = match status.addresses.is_empty() {
                    true => Vec::new(),
                    false => vec![FIELD_MANAGER.to_owned()],
                };
                gateway.status.addresses = status.addresses;
                gateway.status.attached_listener_sets = status.attached_listener_sets;
                let is_finalized = gateway.is_finalized_by_us();
                assert!(gateway.status.addresses.is_empty() || is_finalized, "{gateway:?}");
                self.put_gateway(gateway);
            }
            WrittenStatus::ListenerSet(status) => {
                let mut set = ListenerSet::clone(&self.objects.listener_sets[object]);
                set.status_managers = status.iter().map(|_| FIELD_MANAGER.to_owned()).collect();
                let status = status.clone().unwrap_or_default();
                merge(&mut set.status.conditions, &status.conditions);
                merge_listeners(&mut set.status.listeners, &status.listeners);
                self.put_set(set);
            }
            WrittenStatus::Route(_, ours) => {
                let mut route = Route::clone(&self.objects.tcp_routes[object]);
                route.status.retain(|parent| parent.controller != CONTROLLER);
                route.status.extend(ours.iter().cloned());
                assert!(route.status.iter().all(|parent| !parent.conditions.is_empty()), "{route:?}");
                self.put_route(route);
            }
        }
    }
}

#[test]
fn a_gateway_gets_its_finalizer_then_its_addresses_and_conditions() {
    let address = GatewayAddress { kind: "IPAddress".into(), value: "203.0.113.5".into() };
    let mut cluster = Cluster::with_gateway(Gateway { addresses: vec![address.clone()], ..gateway("edge") });
    cluster.put_route(route("web", parent("Gateway", "edge")));
    let first = cluster.round();
    assert!(first.writes.iter().any(|write| matches!(write, Write::Finalizer { present: true, .. })));
    assert_eq!(cluster.gateway("edge").status.addresses, []);
    let ensuring = first.events.iter().find(|event| event.reason == "EnsuringLoadBalancer");
    let about = &ensuring.expect("it is reported").regarding;
    assert_eq!((about.kind, &about.key), (ObjectKind::Gateway, &key("edge")));
    assert_eq!(about.api_version(), "gateway.networking.k8s.io/v1");
    cluster.run_until_stable();
    let status = &cluster.gateway("edge").status;
    assert_eq!(status.addresses, [address]);
    assert_eq!(shown(&status.conditions), ["Accepted True Accepted", "Programmed True Programmed"]);
    let [tcp] = &status.listeners[..] else { panic!("{status:?}") };
    assert_eq!((tcp.name.as_str(), tcp.attached_routes), ("tcp", 1));
    let programmed = tcp.conditions.iter().find(|c| c.kind == "Programmed").expect("it is there");
    assert_eq!((programmed.status.as_str(), programmed.reason.as_str()), ("True", "Programmed"));
    assert_eq!(status.attached_listener_sets, None, "definitions before 1.5 lack the field");
    let class = &cluster.objects.gateway_classes["tidegate"].status;
    assert_eq!(shown(&class.conditions), ["Accepted True Accepted"]);
    assert!(class.supported_features.contains(&"TCPRoute".to_owned()));
    let [parent] = &cluster.objects.tcp_routes[&key("web")].status[..] else { panic!("one parent") };
    assert_eq!(shown(&parent.conditions), ["Accepted True Accepted", "ResolvedRefs True ResolvedRefs"]);
    assert_eq!(cluster.plan(), Plan::default());
}

#[test]
fn a_write_in_progress_is_planned_without_changes() {
    let mut cluster = Cluster::with_gateway(gateway("edge"));
    cluster.put_route(route("web", parent("Gateway", "edge")));
    cluster.put_set(listener_set("more", "edge", vec![listener("other", 81, "TCP")]));
    cluster.round();
    let writes = cluster.plan().writes;
    cluster.now += SignedDuration::from_secs(5);
    assert_eq!(cluster.plan().writes, writes);
    assert!(writes.len() >= 2, "{writes:?}");
}

#[test]
fn a_condition_keeps_its_time_and_has_the_generation_of_its_object() {
    let mut cluster = Cluster::with_gateway(gateway("edge"));
    cluster.run_until_stable();
    let times = |cluster: &Cluster| {
        let status = &cluster.gateway("edge").status;
        let of_listeners = status.listeners.iter().flat_map(|listener| &listener.conditions);
        let all = status.conditions.iter().chain(of_listeners);
        all.map(|c| (c.kind.clone(), c.last_transition, c.observed_generation)).collect::<Vec<_>>()
    };
    let before = times(&cluster);
    assert!(before.iter().all(|(_, at, generation)| at.is_some() && *generation == 1));
    cluster.edit_gateway("edge", |edge| {
        edge.generation = 2;
        edge.status.conditions.push(condition("example.com/Theirs", "True"));
    });
    cluster.run_until_stable();
    let theirs = ("example.com/Theirs".to_owned(), Some(Timestamp::UNIX_EPOCH), 1);
    assert!(times(&cluster).contains(&theirs), "conditions of others stay");
    let ours = times(&cluster).into_iter().filter(|one| *one != theirs);
    let newer = before.into_iter().map(|(kind, at, _)| (kind, at, 2));
    assert_eq!(ours.collect::<BTreeSet<_>>(), newer.collect::<BTreeSet<_>>());
}

#[test]
fn programmed_gives_the_reason_of_the_specification() {
    let programmed = |cluster: &Cluster| shown(&cluster.gateway("edge").status.conditions)[1].clone();
    let mut edge = gateway("edge");
    edge.addresses = vec![GatewayAddress { kind: "IPAddress".into(), value: "192.0.2.1".into() }];
    let mut cluster = Cluster::with_gateway(edge);
    cluster.run_until_stable();
    assert_eq!(programmed(&cluster), "Programmed False AddressNotUsable");
    cluster.edit_gateway("edge", |edge| edge.addresses.clear());
    cluster.run_until_stable();
    assert_eq!(programmed(&cluster), "Programmed True Programmed");
    cluster.unapplied = Arc::new(BTreeSet::from([ObjectKey::of_gateway("default", "edge")]));
    cluster.run_until_stable();
    assert_eq!(programmed(&cluster), "Programmed False Pending");
    let listener = &cluster.gateway("edge").status.listeners[0];
    assert!(shown(&listener.conditions).contains(&"Programmed False Pending".to_owned()));
    cluster.unapplied = Arc::default();
    cluster.edit_gateway("edge", |edge| edge.has_parameters = true);
    cluster.run_until_stable();
    assert_eq!(programmed(&cluster), "Programmed False Invalid");

    let mut cluster = Cluster::with_gateway(gateway("edge"));
    cluster.settings.pools.clear();
    cluster.run_until_stable();
    assert_eq!(programmed(&cluster), "Programmed False AddressNotAssigned");
    assert_eq!(cluster.gateway("edge").finalizers, [] as [&str; 0]);
}

#[test]
fn a_listener_whose_port_belongs_to_a_service_is_not_programmed() {
    let mut web = service("web");
    web.load_balancer_ip = Some(ip("203.0.113.5"));
    web.meta.annotations.insert("tidegate.dev/allow-shared-ip".into(), "shared".into());
    let mut edge = gateway("edge");
    edge.addresses = vec![GatewayAddress { kind: "IPAddress".into(), value: "203.0.113.5".into() }];
    edge.infrastructure_annotations.insert("tidegate.dev/allow-shared-ip".into(), "shared".into());
    edge.listeners.push(listener("free", 81, "TCP"));
    let mut cluster = Cluster::with_gateway(gateway("other"));
    cluster.put(web);
    cluster.run_until_stable();
    cluster.put_gateway(edge);
    cluster.run_until_stable();
    let status = &cluster.gateway("edge").status;
    let programmed = |name: &str| {
        let listener = status.listeners.iter().find(|listener| listener.name == name).expect("it is there");
        shown(&listener.conditions).pop().expect("it has conditions")
    };
    match status.addresses.is_empty() {
        true => assert_eq!(shown(&status.conditions)[1], "Programmed False AddressNotUsable"),
        false => {
            assert_eq!(programmed("tcp"), "Programmed False PortUnavailable");
            assert_eq!(programmed("free"), "Programmed True Programmed");
            assert_eq!(shown(&status.conditions)[1], "Programmed False NoResources");
        }
    }
}

#[test]
fn a_deleted_gateway_is_released_when_every_gateway_has_withdrawn() {
    let mut cluster = Cluster::with_gateway(gateway("edge"));
    cluster.run_until_stable();
    cluster.edit_gateway("edge", |edge| {
        edge.meta.deletion_time = Some(Timestamp::UNIX_EPOCH);
        // The Services are of version 7: the deletion is newer.
        edge.version = ObjectVersion(9);
    });
    let plan = cluster.round();
    assert_eq!((plan.writes.as_slice(), plan.waits_for_peers), ([].as_slice(), true));
    (cluster.version, cluster.withdrawn) = (9, 8);
    assert_eq!(cluster.round().writes, [], "a gateway may not have seen the deletion");
    cluster.withdrawn = 9;
    cluster.run_until_stable();
    assert!(!cluster.objects.gateways.contains_key(&key("edge")));
}

#[test]
fn a_gateway_of_another_controller_keeps_nothing_of_ours() {
    let mut cluster = Cluster::with_gateway(gateway("edge"));
    cluster.put_route(route("web", parent("Gateway", "edge")));
    cluster.run_until_stable();
    cluster.put_class(false);
    cluster.run_until_stable();
    let edge = cluster.gateway("edge");
    assert_eq!((&edge.finalizers, &edge.status.addresses), (&Vec::new(), &Vec::new()));
    assert!(edge.status.conditions.is_empty() && edge.status.listeners.is_empty(), "{edge:?}");
    assert_eq!(cluster.objects.tcp_routes[&key("web")].status, []);

    // The other controller has written its addresses before ours were removed.
    let mut cluster = Cluster::with_gateway(gateway("edge"));
    cluster.put_class(false);
    let theirs = vec![GatewayAddress { kind: "IPAddress".into(), value: "198.51.100.1".into() }];
    cluster.edit_gateway("edge", |edge| {
        edge.finalizers.push(FINALIZER.into());
        edge.status.addresses.clone_from(&theirs);
    });
    cluster.run_until_stable();
    let edge = cluster.gateway("edge");
    assert_eq!((&edge.finalizers, &edge.status.addresses), (&Vec::new(), &theirs));
}

#[test]
fn parents_of_other_controllers_stay_as_they_are() {
    let mut cluster = Cluster::with_gateway(gateway("edge"));
    let mut web = route("web", parent("Gateway", "edge"));
    web.status.push(parent_of_another());
    cluster.put_route(web);
    cluster.run_until_stable();
    let status = |cluster: &Cluster| cluster.objects.tcp_routes[&key("web")].status.clone();
    assert_eq!((status(&cluster).len(), &status(&cluster)[0]), (2, &parent_of_another()));
    let up_to_date = &cluster.memory.up_to_date_statuses;
    assert_eq!(up_to_date.routes().len(), 1, "it is skipped until it changes");
    cluster.edit_route("web", |web| web.parents[0].name = "another".into());
    cluster.run_until_stable();
    assert_eq!(status(&cluster), [parent_of_another()], "no parent of ours is left");
    assert!(cluster.memory.since.keys().all(|(key, _)| !key.name.contains("Route")), "no times are kept");
}

#[test]
fn a_listener_set_is_programmed_with_its_gateway() {
    let mut cluster = Cluster::with_gateway(gateway("edge"));
    let conflicting = vec![listener("taken", 80, "TCP"), listener("free", 81, "TCP")];
    cluster.put_set(listener_set("more", "edge", conflicting));
    cluster.put_set(listener_set("none", "edge", vec![listener("taken", 80, "TCP")]));
    cluster.run_until_stable();
    let status = |cluster: &Cluster, name: &str| cluster.objects.listener_sets[&key(name)].status.clone();
    let more = status(&cluster, "more");
    assert!(shown(&more.conditions)[0].starts_with("Accepted True"), "{more:?}");
    assert_eq!(shown(&more.conditions)[1], "Programmed True Programmed");
    let of = |name: &str| {
        let listener = more.listeners.iter().find(|listener| listener.name == name).expect("it is there");
        shown(&listener.conditions).pop().expect("it has conditions")
    };
    assert_eq!(of("taken"), "Programmed False HostnameConflict");
    assert_eq!(of("free"), "Programmed True Programmed");
    let none = status(&cluster, "none");
    assert_eq!(
        shown(&none.conditions),
        ["Accepted False ListenersNotValid", "Programmed False ListenersNotValid"]
    );
    assert_eq!(cluster.gateway("edge").status.attached_listener_sets, Some(1));
    cluster.objects.listener_sets.remove(&key("more"));
    cluster.run_until_stable();
    assert_eq!(cluster.gateway("edge").status.attached_listener_sets, None);
    cluster.put_set(listener_set("more", "edge", vec![listener("free", 81, "TCP")]));
    cluster.unapplied = Arc::new(BTreeSet::from([ObjectKey::of_gateway("default", "edge")]));
    cluster.run_until_stable();
    assert_eq!(shown(&status(&cluster, "more").conditions)[1], "Programmed False ParentNotProgrammed");
}

#[test]
fn a_gateway_that_does_not_lead_plans_no_status() {
    let mut cluster = Cluster::with_gateway(gateway("edge"));
    cluster.put_route(route("web", parent("Gateway", "edge")));
    cluster.leads = false;
    assert_eq!(cluster.round().writes, []);
}

#[derive(Debug, Clone)]
enum Change {
    Gateway(u8),
    Delete(u8),
    Class(bool),
    Address(u8, u8),
    Listener(u8, u16),
    Set(u8, u16),
    Route(u8, u8),
    RemoveRoute(u8),
    Another(u8),
    Pools(bool),
    Restart,
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let n = || 0..3_u8;
    let change = prop_oneof![
        3 => n().prop_map(Change::Gateway),
        2 => n().prop_map(Change::Delete),
        1 => any::<bool>().prop_map(Change::Class),
        1 => (n(), 0..20_u8).prop_map(|(n, host)| Change::Address(n, host)),
        1 => (n(), 80..83_u16).prop_map(|(n, port)| Change::Listener(n, port)),
        2 => (n(), 80..83_u16).prop_map(|(n, port)| Change::Set(n, port)),
        3 => (n(), n()).prop_map(|(n, of)| Change::Route(n, of)),
        1 => n().prop_map(Change::RemoveRoute),
        1 => n().prop_map(Change::Another),
        1 => any::<bool>().prop_map(Change::Pools),
        1 => Just(Change::Restart),
    ];
    proptest::collection::vec(change, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// After any changes, the writes end, planning again plans nothing, and no address is in two statuses.
    #[test]
    fn planning_the_gateway_api_again_gives_nothing(changes in changes()) {
        let mut cluster = Cluster::with_gateway(gateway("s0"));
        let name = |n: u8| format!("s{n}");
        for change in changes {
            let known = |cluster: &Cluster, n: u8| cluster.objects.gateways.contains_key(&key(&name(n)));
            match change {
                Change::Gateway(n) if !known(&cluster, n) => cluster.put_gateway(gateway(&name(n))),
                Change::Delete(n) if known(&cluster, n) => {
                    if cluster.gateway(&name(n)).finalizers.is_empty() {
                        cluster.objects.gateways.remove(&key(&name(n)));
                    } else {
                        let now = Some(Timestamp::UNIX_EPOCH);
                        cluster.edit_gateway(&name(n), |gateway| gateway.meta.deletion_time = now);
                    }
                }
                Change::Class(ours) => cluster.put_class(ours),
                Change::Address(n, host) if known(&cluster, n) => cluster.edit_gateway(&name(n), |gateway| {
                    let value = format!("203.0.113.{host}");
                    gateway.addresses = vec![GatewayAddress { kind: "IPAddress".into(), value }];
                    gateway.generation += 1;
                }),
                Change::Listener(n, port) if known(&cluster, n) => cluster.edit_gateway(&name(n), |gateway| {
                    gateway.listeners = vec![listener(&format!("l{port}"), port, "TCP")];
                    gateway.generation += 1;
                }),
                Change::Set(n, port) => {
                    cluster.put_set(listener_set(&name(n), &name(n), vec![listener("set", port, "TCP")]));
                }
                Change::Route(n, of) => cluster.put_route(route(&name(n), parent("Gateway", &name(of)))),
                Change::RemoveRoute(n) => drop(cluster.objects.tcp_routes.remove(&key(&name(n)))),
                Change::Another(n) if cluster.objects.tcp_routes.contains_key(&key(&name(n))) => {
                    cluster.edit_route(&name(n), |route| route.status.insert(0, parent_of_another()));
                }
                Change::Pools(some) => {
                    cluster.settings.pools = if some { vec![pool("public", "203.0.113.0/28")] } else { vec![] };
                }
                Change::Restart => {
                    (cluster.memory, cluster.reconciled, cluster.gateway_api) = Default::default();
                }
                _ => continue,
            }
            cluster.run_until_stable();
            let again = cluster.plan();
            prop_assert_eq!(&again.writes, &[] as &[Write]);
            prop_assert_eq!(&again.events, &[] as &[Event]);
            let mut seen = BTreeSet::new();
            for gateway in cluster.objects.gateways.values() {
                for address in &gateway.status.addresses {
                    prop_assert!(seen.insert(address.clone()), "{address:?} is in two statuses");
                }
            }
        }
    }
}

#[test]
fn a_listener_set_that_lost_its_gateway_keeps_nothing_of_ours() {
    let mut edge = gateway("edge");
    edge.allowed_listeners = FromNamespaces::All;
    let mut cluster = Cluster::with_gateway(edge);
    cluster.put_set(listener_set("more", "edge", vec![listener("other", 81, "TCP")]));
    cluster.run_until_stable();
    let status = |cluster: &Cluster| cluster.objects.listener_sets[&key("more")].status.clone();
    assert_eq!(status(&cluster).listeners.len(), 1);
    cluster.put_class(false);
    cluster.run_until_stable();
    assert!(status(&cluster).conditions.is_empty() && status(&cluster).listeners.is_empty());
}

#[test]
fn a_gateway_that_is_no_longer_accepted_keeps_its_address() {
    let mut cluster = Cluster::with_gateway(gateway("edge"));
    cluster.run_until_stable();
    let addresses = cluster.gateway("edge").status.addresses.clone();
    assert_eq!(addresses.len(), 1);
    cluster.edit_gateway("edge", |edge| edge.has_parameters = true);
    cluster.run_until_stable();
    let edge = cluster.gateway("edge");
    assert_eq!((&edge.status.addresses, edge.is_finalized_by_us()), (&addresses, true));
    let [tcp] = &edge.status.listeners[..] else { panic!("{edge:?}") };
    assert!(shown(&tcp.conditions).contains(&"Programmed False Invalid".to_owned()), "{tcp:?}");

    // One without an address gets none.
    let mut cluster = Cluster::with_gateway(Gateway { has_parameters: true, ..gateway("edge") });
    cluster.run_until_stable();
    let edge = cluster.gateway("edge");
    assert_eq!((edge.status.addresses.len(), edge.is_finalized_by_us()), (0, false));
}
