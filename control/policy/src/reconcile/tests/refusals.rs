//! Requests that are not granted: each refusal has its location, its cause and the accepted values.

use tidegate_model::objects::NotKept;

use super::*;

#[test]
fn endpoints_that_a_mode_cannot_reach_are_refused_and_the_others_stay() {
    let mut web = annotated(service("web"), "tidegate.dev/forwarding", "dsr-l2");
    web.ports = vec![service_port("http", Protocol::Tcp, 8080, 8080)];
    let slices = vec![http("web", vec![endpoint("10.0.1.1"), endpoint("172.16.0.9")])];
    let outcome = World::new(vec![web], slices).look();
    assert_eq!(states(only(&outcome)), ["10.0.1.1:8080 active"]);
    assert!(
        messages(&outcome)[0]
            .starts_with("warning: endpoint 172.16.0.9 of Service default/web is refused: dsr-l2")
    );
}

#[test]
fn a_mode_without_its_source_address_is_refused_by_name() {
    for (mode, key) in [("fullnat", "dataplane.snatAddresses"), ("dsr-ipip", "dataplane.tunnelSource")] {
        let mut web = annotated(service("web"), "tidegate.dev/forwarding", mode);
        web.ports = vec![service_port("http", Protocol::Tcp, 8080, 8080)];
        let mut world = World::new(vec![web], vec![http("web", vec![endpoint("10.0.1.1")])]);
        world.settings.network.snat_addresses.retain(IpAddr::is_ipv6);
        world.settings.network.tunnel_source_v4 = None;
        let outcome = world.look();
        assert!(outcome.spec.services.is_empty());
        let message = &messages(&outcome)[0];
        assert!(message.contains(&format!("{mode} needs an IPv4 address in {key}")), "{message}");
        assert!(message.contains(&format!("accepted: an IPv4 entry in {key}")), "{message}");
    }
}

#[test]
fn endpoints_that_are_vips_or_the_gateway_itself_are_refused() {
    let slices =
        vec![http("web", vec![endpoint("198.51.100.1"), endpoint("10.0.0.3"), endpoint("10.0.1.1")])];
    let outcome = World::new(vec![external("web", "198.51.100.1")], slices).look();
    assert_eq!(states(only(&outcome)), ["10.0.1.1:8080 active"]);
    assert_eq!(outcome.findings.iter().filter(|f| f.reason == Reason::EndpointRefused).count(), 2);
}

/// `count` endpoints in slices of 1,000, as the controller of EndpointSlices makes them.
fn many_endpoints(of: &str, ports: &[(&str, Protocol, u16)], count: u32) -> Vec<EndpointSlice> {
    let all: Vec<Endpoint> = (0..count)
        .map(|n| {
            let [_, b, c, d] = n.to_be_bytes();
            endpoint(&format!("10.{}.{c}.{d}", 1 + b))
        })
        .collect();
    all.chunks(1000)
        .enumerate()
        .map(|(i, some)| slice(&format!("{of}-{i}"), of, ports, some.to_vec()))
        .collect()
}

/// Asserts that the whole Service is refused with this reason, and that `other` is served as usual.
fn refused_alone(outcome: &Outcome, why: &str) {
    let view = |name: &str| outcome.services.iter().find(|view| view.name == name).expect("a view of each");
    assert_eq!(view("huge").refused.as_deref(), Some(why));
    assert!(view("huge").ports.is_empty());
    assert_eq!(view("other").refused, None);
    let finding = outcome.findings.iter().find(|f| f.object.name == "huge").expect("a finding");
    assert_eq!(finding.reason, Reason::LimitExceeded);
    assert!(finding.diagnostic.what.contains(why), "{}", finding.diagnostic.what);
    assert_eq!((only(outcome).name.as_str(), states(only(outcome)).len()), ("other", 1));
}

#[test]
fn a_port_with_too_many_endpoints_refuses_only_its_service() {
    let mut slices = many_endpoints("huge", &[("http", Protocol::Tcp, 8080)], 66_000);
    slices.push(http("other", vec![endpoint("10.200.0.1")]));
    let outcome = World::new(vec![service("huge"), service("other")], slices).look();
    refused_alone(&outcome, "port 80/TCP has 66000 backends");
}

#[test]
fn ports_times_endpoints_are_counted_before_they_are_built() {
    let mut huge = service("huge");
    huge.ports = (1..=4_100).map(|n| service_port(&format!("p{n}"), Protocol::Tcp, n, n)).collect();
    let names: Vec<String> = (1..=4_100).map(|n| format!("p{n}")).collect();
    let ports: Vec<(&str, Protocol, u16)> =
        names.iter().zip(1..).map(|(name, n)| (name.as_str(), Protocol::Tcp, n)).collect();
    // These would be 270 million backends.
    let mut slices = many_endpoints("huge", &ports, 66_000);
    slices.push(http("other", vec![endpoint("10.200.0.1")]));
    let outcome = World::new(vec![huge, service("other")], slices).look();
    refused_alone(&outcome, "its endpoints result in 270600000 backends over all of its ports and addresses");
}

#[test]
fn ports_times_addresses_are_counted_before_they_are_built() {
    let mut huge = external("huge", "198.51.100.1");
    huge.external_ips = (0..=255).map(|n| ip(&format!("198.51.100.{n}"))).collect();
    huge.ports = (1..=4_100).map(|n| service_port(&format!("p{n}"), Protocol::Tcp, n, n)).collect();
    let slices = vec![http("other", vec![endpoint("10.200.0.1")])];
    let mut world = World::new(vec![huge, service("other")], slices);
    world.settings.pools[1].ranges =
        vec!["198.51.100.0/24".parse::<ipnet::IpNet>().expect("a network").into()];
    let outcome = world.look();
    refused_alone(&outcome, "its ports and addresses result in up to 1057800 service ports");
}

#[test]
fn external_ips_are_counted_before_they_are_compared() {
    let mut huge = external("huge", "198.51.100.1");
    huge.external_ips = (0..1_025_u32).map(|n| std::net::Ipv4Addr::from(0x0a80_0000 + n).into()).collect();
    let slices = vec![http("other", vec![endpoint("10.200.0.1")])];
    let outcome = World::new(vec![huge, service("other")], slices).look();
    refused_alone(&outcome, "it has 1025 external IPs");
}

/// A Service with this many ports, each of which requests a Maglev table of the maximum size.
fn with_large_tables(name: &str, ports: u16) -> Service {
    let requesting = annotated(service(name), "tidegate.dev/scheduler", "maglev");
    let mut requesting = annotated(requesting, "tidegate.dev/table-size", "655373");
    requesting.ports = (1..=ports).map(|n| service_port(&format!("p{n}"), Protocol::Tcp, n, n)).collect();
    requesting
}

/// Three endpoints for each of its ports.
fn behind_large_tables(name: &str, ports: u16) -> Vec<EndpointSlice> {
    let names: Vec<String> = (1..=ports).map(|n| format!("p{n}")).collect();
    let ports: Vec<(&str, Protocol, u16)> =
        (1..=ports).zip(&names).map(|(n, name)| (name.as_str(), Protocol::Tcp, n)).collect();
    many_endpoints(name, &ports, 3)
}

#[test]
fn requested_maglev_tables_are_counted_before_they_are_built() {
    let mut slices = behind_large_tables("huge", 300);
    slices.push(http("other", vec![endpoint("10.200.0.1")]));
    let mut world = World::new(vec![with_large_tables("huge", 300), service("other")], slices);
    let outcome = world.look();
    refused_alone(
        &outcome,
        "its annotations request 196611900 slots of Maglev tables more than the default, summed over its ports",
    );
    // The operator is responsible for the settings of the configuration, which apply to all Services.
    world.settings.services.defaults.scheduler = tidegate_model::config::Scheduler::Maglev;
    world.settings.services.defaults.table_size = 655_373;
    assert_eq!(left_out(&world.look()), [] as [&str; 0]);
}

#[test]
fn a_service_with_too_many_source_ranges_is_refused_alone() {
    let ranges = |count: u32| (0..count).map(|n| IpAddr::from(n.to_be_bytes()).into()).collect();
    let huge = Service { source_ranges: ranges(131_073), ..service("huge") };
    let slices = ["huge", "other"].map(|name| http(name, vec![endpoint("10.200.0.1")]));
    let mut world = World::new(vec![huge, service("other")], slices.to_vec());
    refused_alone(&world.look(), "it has 131073 source ranges");
    // The ranges of all Services together are limited too.
    let mut newer = Service { source_ranges: ranges(60), ..service("newer") };
    newer.meta.creation_time = jiff::Timestamp::from_second(2_000).ok();
    let mut older = Service { source_ranges: ranges(60), ..service("older") };
    older.meta.creation_time = jiff::Timestamp::from_second(1_000).ok();
    world = World::new(vec![newer, older], Vec::new());
    world.settings.limits = Demand { ranges: 100, ..Demand::MAX };
    assert_eq!(left_out(&world.look()), ["newer"]);
}

#[test]
fn maglev_tables_of_one_namespace_leave_space_for_others() {
    let of = |namespace: &str, n: i64| {
        let mut one = with_large_tables(&format!("{namespace}-{n}"), 12);
        namespace.clone_into(&mut one.meta.key.namespace);
        one.meta.creation_time = jiff::Timestamp::from_second(n).ok();
        let mut slices = behind_large_tables(&one.meta.key.name, 12);
        slices.iter_mut().for_each(|slice| namespace.clone_into(&mut slice.meta.key.namespace));
        (one, slices)
    };
    let all: Vec<_> = (0..20).map(|n| of("greedy", n)).chain([of("victim", 1_000)]).collect();
    let slices = all.iter().flat_map(|(_, slices)| slices.clone()).collect();
    let mut world = World::new(all.into_iter().map(|(one, _)| one).collect(), slices);
    world.settings.pools[0].ranges =
        vec!["203.0.113.0/24".parse::<ipnet::IpNet>().expect("a network").into()];
    let left_out = left_out(&world.look());
    // 134,217,728 slots are 17 times the slots of such a Service.
    assert_eq!(left_out.len(), 4, "{left_out:?}");
    assert!(left_out.iter().all(|name| name.starts_with("greedy-1")), "{left_out:?}");
}

#[test]
fn a_service_that_shrinks_below_a_limit_is_programmed_again() {
    let mut world =
        World::new(vec![service("huge")], many_endpoints("huge", &[("http", Protocol::Tcp, 8080)], 66_000));
    let address = |outcome: &Outcome| outcome.services[0].vips[0].address;
    let refused = world.look();
    assert!(refused.spec.services.is_empty() && refused.services[0].refused.is_some());
    let had = address(&refused);
    let few = many_endpoints("huge", &[("http", Protocol::Tcp, 8080)], 10);
    world.objects.endpoint_slices =
        few.into_iter().map(|slice| (slice.meta.key.clone(), Arc::new(slice))).collect();
    let served = world.look();
    assert_eq!((states(only(&served)).len(), address(&served)), (10, had), "with its previous address");
}

/// Services of one namespace, each older than the next.
fn services_of(namespace: &str, count: usize, created: i64) -> Vec<Service> {
    (0..count)
        .map(|n| {
            let mut service = service(&format!("{namespace}-{n}"));
            namespace.clone_into(&mut service.meta.key.namespace);
            let second = created + i64::try_from(n).expect("a small number");
            service.meta.creation_time = jiff::Timestamp::from_second(second).ok();
            service
        })
        .collect()
}

fn left_out(outcome: &Outcome) -> Vec<String> {
    let refused = outcome.services.iter().filter(|view| view.refused.is_some());
    refused.map(|view| view.name.clone()).collect()
}

#[test]
fn beyond_the_limit_the_newest_services_of_the_largest_namespace_lose() {
    // The victim is created last.
    let mut services = services_of("greedy", 6, 0);
    services.extend(services_of("victim", 1, 1_000));
    let mut world = World::new(services, Vec::new());
    world.settings.limits = Demand { frontends: 5, ..Demand::MAX };
    let mut remembers = Reconciler::default();
    let outcome = remembers.reconcile(&world.input());
    assert_eq!(left_out(&outcome), ["greedy-4", "greedy-5"]);
    assert_eq!(outcome.spec.services.len(), 5);
    let findings: Vec<&Finding> =
        outcome.findings.iter().filter(|f| f.reason == Reason::LimitExceeded).collect();
    assert_eq!(findings.iter().map(|f| f.object.name.as_str()).collect::<Vec<_>>(), ["greedy-4", "greedy-5"]);
    assert!(findings[0].diagnostic.what.contains("namespace greedy needs the most"), "{findings:?}");
    // They fit again after another Service is deleted.
    world.memory = outcome.memory.clone();
    world.objects.services.remove(&ObjectKey::new("greedy", "greedy-0"));
    let outcome = remembers.reconcile(&world.input());
    assert_eq!(left_out(&outcome), ["greedy-5"]);
    assert_eq!(outcome, world.look(), "whatever the previous state was");
}

#[test]
fn a_service_whose_slices_are_not_kept_is_refused_alone() {
    let port = [("http", Protocol::Tcp, 8080)];
    let services = || vec![service("huge"), service("web")];
    let slices = |why: Option<NotKept>| {
        let huge = many_endpoints("huge", &port, 262_145);
        let huge = huge.into_iter().map(|slice| why.map_or_else(|| slice.clone(), |why| slice.left_out(why)));
        huge.chain([http("web", vec![endpoint("10.0.1.1")])]).collect::<Vec<_>>()
    };
    let whole = World::new(services(), slices(None)).look();
    let left_out = World::new(services(), slices(Some(NotKept::TooManyEndpoints))).look();
    assert_eq!(left_out, whole);
    assert_eq!(states(only(&left_out)), ["10.0.1.1:8080 active"]);
    for (why, words) in [
        (NotKept::NamespaceShare, "namespace default exceeds its share"),
        (NotKept::Awaited, "will be read within 60 s"),
    ] {
        let small = http("huge", vec![endpoint("10.0.2.1")]).left_out(why);
        let outcome = World::new(services(), vec![small, http("web", vec![endpoint("10.0.1.1")])]).look();
        assert_eq!(states(only(&outcome)), ["10.0.1.1:8080 active"]);
        let findings: Vec<&Finding> =
            outcome.findings.iter().filter(|f| f.reason == Reason::LimitExceeded).collect();
        let [finding] = findings[..] else { panic!("{findings:?}") };
        assert_eq!(finding.object, ObjectKey::new("default", "huge"));
        let text = finding.diagnostic.to_string();
        assert!(text.contains(words) && text.contains("accepted: at most 262144 endpoints"), "{text}");
        let huge = outcome.services.iter().find(|view| view.name == "huge").expect("it is shown");
        assert!(huge.refused.as_ref().is_some_and(|why| why.contains(words)), "{huge:?}");
    }
    // Slices without its ports add only their fixed cost.
    let other = [("other", Protocol::Tcp, 8080)];
    let unmatched = slice("s", "huge", &other, vec![endpoint("10.0.2.1")]);
    let whole = World::new(services(), vec![unmatched.clone()]).look();
    let left_out = World::new(services(), vec![unmatched.left_out(NotKept::TooManyEndpoints)]).look();
    assert_eq!(left_out, whole);
}

#[test]
fn backends_that_are_constantly_replaced_do_not_fill_the_tables() {
    let port = [("http", Protocol::Tcp, 8080)];
    let mut world = World::new(vec![service("web")], many_endpoints("web", &port, 40_000));
    world.step();
    let of = |n: u8, world: &mut World| {
        let mut slices = many_endpoints("web", &port, 40_000);
        for endpoint in slices.iter_mut().flat_map(|slice| &mut slice.endpoints) {
            let Some(IpAddr::V4(ip)) = endpoint.address else { panic!("IPv4") };
            let [_, b, c, d] = ip.octets();
            endpoint.address = Some(IpAddr::from([100 + n, b, c, d]));
        }
        world.set_slices(slices);
    };
    for n in 0..3 {
        of(n, &mut world);
        let outcome = world.step();
        let web = only(&outcome);
        assert!(
            web.backends.len() <= tidegate_spec::limits::BACKENDS_PER_SERVICE_MAX,
            "{}",
            web.backends.len()
        );
        let active = web.backends.iter().filter(|b| b.state == BackendState::Active).count();
        assert_eq!(active, 40_000);
    }
}

#[test]
fn nodes_count_as_backends_with_target_node() {
    let mut huge = annotated(service("huge"), "tidegate.dev/target", "node");
    huge = annotated(huge, "tidegate.dev/forwarding", "dsr-l2");
    huge.ports = (1..=3_000).map(|n| service_port(&format!("p{n}"), Protocol::Tcp, n, n)).collect();
    let mut world = World::new(vec![huge], Vec::new());
    for n in 0..100 {
        world.put_node(node(&format!("n{n}"), &[&format!("10.0.3.{n}")]));
    }
    let outcome = world.look();
    let why = outcome.services[0].refused.as_deref();
    assert_eq!(why, Some("its endpoints result in 300000 backends over all of its ports and addresses"));
}

/// The number of findings, and the texts of those that say how many there are.
fn reported(outcome: &Outcome) -> (usize, Vec<&str>) {
    let texts = outcome.findings.iter().map(|finding| finding.diagnostic.what.as_str());
    (outcome.findings.len(), texts.filter(|what| what.contains(" findings with the reason ")).collect())
}

#[test]
fn only_the_first_of_many_faults_and_their_number_are_reported() {
    let mut web = annotated(service("web"), "tidegate.dev/forwarding", "dsr-l2");
    web.ports = vec![service_port("http", Protocol::Tcp, 8080, 8080)];
    // None of these is on a link.
    let port = [("http", Protocol::Tcp, 8080)];
    let mut slices = many_endpoints("web", &port, 3_000);
    slices.push(slice("near", "web", &port, vec![endpoint("10.0.1.1")]));
    let outcome = World::new(vec![web], slices).look();
    assert_eq!(states(only(&outcome)), ["10.0.1.1:8080 active"]);
    let endpoints = "Service default/web has 3000 findings with the reason EndpointRefused; only the first 32 are \
                     reported";
    assert_eq!(reported(&outcome), (33, vec![endpoints]));

    let mut web = service("web");
    web.meta.annotations.extend((0..1_000).map(|n| (format!("tidegate.dev/x{n}"), "x".to_owned())));
    let annotations =
        "Service default/web has 1000 findings with the reason InvalidValue; only the first 32 are reported";
    assert_eq!(reported(&World::new(vec![web], vec![]).look()), (33, vec![annotations]));

    let mut denied = external("web", "192.0.2.1");
    denied.external_ips = (0..1_000_u32).map(|n| std::net::Ipv4Addr::from(0x0a80_0000 + n).into()).collect();
    let addresses = "Service default/web has 1000 findings with the reason ExternalIPDenied; only the first 32 are \
                     reported";
    assert_eq!(reported(&World::new(vec![denied], vec![]).look()), (33, vec![addresses]));
}

#[test]
fn a_service_with_many_faulty_slices_has_a_limited_number_of_warnings() {
    let faulty = |n: u8| {
        let port = [("http", Protocol::Tcp, 8080)];
        let mut slice = slice(&format!("s{n}"), "web", &port, vec![endpoint(&format!("10.0.1.{n}"))]);
        slice.meta.faults = vec![Diagnostic::error(format!("fault {n:03}"))];
        slice
    };
    let outcome = World::new(vec![service("web")], (0..100).map(faulty).collect()).look();
    assert_eq!(states(only(&outcome)).len(), 100);
    let warnings = &outcome.services[0].warnings;
    assert_eq!((warnings.len(), warnings[32].as_str()), (33, "and 68 more"));
    assert_eq!(reported(&outcome).0, 33);
}

#[test]
fn a_long_value_is_not_repeated_at_each_port() {
    let mut web = annotated(service("web"), "tidegate.dev/hash", &"x".repeat(200_000));
    web.ports = (1..=100).map(|n| service_port(&format!("p{n}"), Protocol::Tcp, n, n)).collect();
    let outcome = World::new(vec![web], vec![]).look();
    let ports = &outcome.services[0].ports;
    let refused = |port: &view::PortView| port.refused.as_ref().map(|refusal| refusal.message.len());
    assert_eq!(ports.len(), 100);
    assert!(ports.iter().all(|port| refused(port).is_some_and(|length| length < 300)), "{:?}", ports[0]);
    assert!(messages(&outcome).iter().all(|message| message.len() < 1_000));
}
