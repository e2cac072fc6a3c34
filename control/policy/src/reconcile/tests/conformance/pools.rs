//! Section 6: pools of addresses. Each sentence is tested with pools as AddressPool objects and with pools in the
//! configuration, and with both sources.

use super::*;

/// One gateway whose pools are AddressPool objects, and one with the same pools in its configuration.
struct Pooled {
    by_objects: Both,
    by_config: Both,
    /// AddressPools as YAML documents.
    pools: String,
    services: String,
}

impl Pooled {
    /// Each pool is given by its name, its labels and its keys, the latter two as YAML flow mappings. The pools are
    /// sorted by name.
    fn new(pools: &[(&str, &str, &str)], services: &str) -> Self {
        let (by_objects, by_config) = (Both::new(""), Both::new(""));
        let mut pooled = Self { by_objects, by_config, pools: String::new(), services: services.to_owned() };
        pooled.set_pools(pools);
        pooled
    }

    fn of(keys: &str, services: &str) -> Self {
        Self::new(&[("public", "", keys)], services)
    }

    fn set_services(&mut self, services: &str) {
        self.services = services.to_owned();
        self.by_objects.set(&(self.pools.clone() + services));
        self.by_config.set(services);
    }

    fn set_pools(&mut self, pools: &[(&str, &str, &str)]) {
        let object = |(name, labels, keys): &(&str, &str, &str)| {
            format!(
                "apiVersion: tidegate.dev/v1alpha1\nkind: AddressPool\nmetadata: {{name: {name}, labels: \
                 {{{labels}}}}}\nspec: {{{keys}}}\n---\n"
            )
        };
        let in_config = |(name, labels, keys): &(&str, &str, &str)| {
            format!("- {{name: {name}, labels: {{{labels}}}, {keys}}}\n")
        };
        let config = format!(
            "apiVersion: tidegate.dev/v1alpha1\nkind: GatewayConfig\ndataplane: {{interfaces: [{{name: up, device: \
             net_null0, addresses: [10.0.0.1/16]}}]}}\npools:\n{}",
            pools.iter().map(in_config).collect::<String>()
        );
        let loaded = tidegate_model::config::parse(&config, "gateway.yaml", std::path::Path::new("."), 4);
        let configured = loaded.config.unwrap_or_else(|| panic!("{}", loaded.report)).pools;
        self.by_config.both(|world| world.settings.pools.clone_from(&configured));
        self.by_objects.both(|world| world.settings.pools.clear());
        self.pools = pools.iter().map(object).collect();
        let services = self.services.clone();
        self.set_services(&services);
    }

    /// Reconciles and keeps the memory. Returns the common outcome.
    fn step(&mut self) -> Outcome {
        let (objects, config) = (self.by_objects.step(), self.by_config.step());
        assert_eq!(objects.spec, config.spec);
        assert_eq!(objects.services, config.services);
        assert_eq!(objects.pools, config.pools);
        objects
    }
}

fn named(name: &str, spec: &str) -> String {
    service_with(&format!("name: {name}"), spec)
}

/// Services `s0`, `s1` ... in the order of their creation, a second apart.
fn many(count: usize) -> String {
    let one = |i: usize| {
        let created = format!("2026-01-01T{:02}:{:02}:{:02}Z", i / 3600, i / 60 % 60, i % 60);
        service_with(&format!("name: s{i}, creationTimestamp: '{created}'"), "")
    };
    (0..count).map(one).collect()
}

/// The address of the Service of this name, if it has one.
fn address(outcome: &Outcome, name: &str) -> Option<IpAddr> {
    let service =
        outcome.services.iter().find(|s| s.name == name).unwrap_or_else(|| panic!("{name} is shown"));
    service.vips.first().map(|vip| vip.address)
}

#[test]
fn a_pool_is_a_list_of_cidrs_and_ranges() {
    let addresses = "addresses: [203.0.113.0/31, 203.0.113.8-203.0.113.9, 198.51.100.7, '2001:db8:1::/127']";
    let outcome = Pooled::of(addresses, &many(6)).step();
    assert_eq!((outcome.pools[0].pool.as_str(), outcome.pools[0].total), ("public", 7));
    let given: BTreeSet<IpAddr> = outcome.spec.services.iter().map(|s| s.key.vip).collect();
    let all = ["198.51.100.7", "203.0.113.0", "203.0.113.1", "203.0.113.8", "203.0.113.9"].map(ip);
    assert_eq!(given, BTreeSet::from(all));
    assert!(pending(&outcome, "s5").is_some_and(|p| p.contains("pool public is full")));
}

#[test]
fn auto_assign_decides_whether_services_that_name_no_pool_get_addresses() {
    let keys = "addresses: [203.0.113.0/28], autoAssign: false";
    let names_it = "name: requests, annotations: {tidegate.dev/address-pool: public}";
    let outcome = Pooled::of(keys, &(named("web", "") + &service_with(names_it, ""))).step();
    assert!(address(&outcome, "requests").is_some());
    assert!(pending(&outcome, "web").is_some_and(|p| p.contains("on request only (autoAssign: false)")));
    let requests_address = named("web", "  loadBalancerIP: 203.0.113.9\n");
    assert_eq!(address(&Pooled::of(keys, &requests_address).step(), "web"), Some(ip("203.0.113.9")));
    assert!(address(&Pooled::of("addresses: [203.0.113.0/28]", &named("web", "")).step(), "web").is_some());
}

#[test]
fn no_service_gets_the_address_of_a_peer() {
    let services = named("web", "  loadBalancerIP: 203.0.113.5\n") + &named("other", "");
    let mut pooled = Pooled::of("addresses: [203.0.113.5-203.0.113.6]", &services);
    for both in [&mut pooled.by_objects, &mut pooled.by_config] {
        both.both(|world| world.settings.peers = [ip("203.0.113.5")].into());
    }
    let outcome = pooled.step();
    assert_eq!((address(&outcome, "web"), address(&outcome, "other")), (None, Some(ip("203.0.113.6"))));
    let (reason, text, _) = finding(&outcome);
    assert_eq!(reason, Reason::AllocationFailed);
    assert!(text.contains("203.0.113.5") && text.contains("an address of a peer"), "{text}");
}

#[test]
fn a_change_of_only_the_route_attributes_of_a_pool_takes_effect() {
    let mut pooled = Pooled::of("addresses: [203.0.113.0/28]", &named("web", ""));
    assert!(pooled.step().pools[0].routes.attributes.is_empty());
    let keys = "addresses: [203.0.113.0/28], bgp: {communities: ['64512:1', no-export], med: 5, aggregationLength: 28}";
    pooled.set_pools(&[("public", "", keys)]);
    let routes = pooled.step().pools[0].routes.clone();
    let communities: Vec<String> = routes.attributes.communities.iter().map(ToString::to_string).collect();
    assert_eq!(communities, ["64512:1", "65535:65281"]);
    assert_eq!(
        (routes.attributes.med, routes.aggregation_v4, routes.aggregation_v6),
        (Some(5), Some(28), None)
    );
}

#[test]
fn selected_gateways_announce_a_pool_and_every_gateway_forwards() {
    use tidegate_spec::ownership::Layer2;
    let mut pooled = Pooled::of("addresses: [203.0.113.0/28]", &named("web", ""));
    let rack = |name: &str| [("rack".to_owned(), name.to_owned())].into();
    for both in [&mut pooled.by_objects, &mut pooled.by_config] {
        both.both(|world| world.settings.labels = rack("r1"));
    }
    for (keys, outside, layer2, bgp) in [
        ("", false, Layer2::Always, true),
        ("gatewaySelector: {matchLabels: {rack: r1}}", false, Layer2::Always, true),
        ("gatewaySelector: {matchLabels: {rack: r2}}", true, Layer2::Silent, false),
        (
            "gatewaySelector: {matchExpressions: [{key: rack, operator: In, values: [r1, r2]}]}, announce: [bgp]",
            false,
            Layer2::Silent,
            true,
        ),
        ("announce: [l2]", false, Layer2::Always, false),
        ("announce: []", false, Layer2::Silent, false),
    ] {
        // A change of the pool alone reaches its Services.
        pooled.set_pools(&[("public", "", &format!("addresses: [203.0.113.0/28], {keys}"))]);
        let outcome = pooled.step();
        let [spec] = &outcome.spec.services[..] else { panic!("it is served whoever announces it: {keys}") };
        assert_eq!(spec.layer2, layer2, "{keys}");
        let edge = &outcome.services[0].vips[0].edge;
        assert_eq!((edge.outside_group, edge.bgp), (outside, bgp), "{keys}");
    }
}

#[test]
fn namespace_and_service_selectors_decide_who_may_get_addresses() {
    let namespaces = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {team: net}}\n---\napiVersion: \
                      v1\nkind: Namespace\nmetadata: {name: lab, labels: {team: web}}\n---\n";
    let service = |name: &str, namespace: &str, tier: &str| {
        service_with(&format!("name: {name}, namespace: {namespace}, labels: {{tier: {tier}}}"), "")
    };
    let services =
        service("a", "shop", "edge") + &service("b", "shop", "inner") + &service("c", "lab", "edge");
    for (selectors, expected) in [
        ("", ["a", "b", "c"].as_slice()),
        ("namespaceSelector: {matchLabels: {team: net}}", &["a", "b"]),
        ("namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: lab}}", &["c"]),
        (
            "serviceSelector: {matchExpressions: [{key: tier, operator: In, values: [edge, rim]}]}",
            &["a", "c"],
        ),
        (
            "serviceSelector: {matchLabels: {tier: edge}}, namespaceSelector: {matchLabels: {team: net}}",
            &["a"],
        ),
        ("serviceSelector: {matchExpressions: [{key: tier, operator: DoesNotExist}]}", &[]),
    ] {
        let keys = format!("addresses: [203.0.113.0/28], {selectors}");
        let outcome = Pooled::of(&keys, &(namespaces.to_owned() + &services)).step();
        let served = outcome.services.iter().filter(|s| !s.vips.is_empty());
        let served: BTreeSet<&str> = served.map(|s| s.name.as_str()).collect();
        assert_eq!(served, expected.iter().copied().collect(), "{selectors}");
        for waiting in outcome.services.iter().filter(|s| s.vips.is_empty()) {
            let why = waiting.pending.as_deref().expect("it waits");
            assert!(why.contains("the selectors of pool public do not match"), "{why}");
        }
    }
}

#[test]
fn a_quota_per_namespace_counts_the_addresses_that_it_uses() {
    let service =
        |name: &str, namespace: &str| service_with(&format!("name: {name}, namespace: {namespace}"), "");
    let services = service("in-x", "a") + &service("in-y", "a") + &service("in-z", "b");
    let mut pooled = Pooled::of("addresses: [203.0.113.0/28], quotaPerNamespace: 1", &services);
    let outcome = pooled.step();
    assert!(address(&outcome, "in-x").is_some() && address(&outcome, "in-z").is_some());
    let waits = "namespace a has reached its quota of 1 in pool public";
    assert!(pending(&outcome, "in-y").is_some_and(|p| p.contains(waits)));
    // A shared address counts once.
    let keyed = |name: &str, port: u16| {
        let metadata =
            format!("name: {name}, namespace: a, annotations: {{tidegate.dev/allow-shared-ip: k}}");
        service_with(&metadata, "").replace("port: 80,", &format!("port: {port},"))
    };
    let shared = Pooled::of(
        "addresses: [203.0.113.0/28], quotaPerNamespace: 1",
        &(keyed("in-x", 80) + &keyed("in-y", 81)),
    )
    .step();
    assert_eq!(address(&shared, "in-x"), address(&shared, "in-y"));
    pooled.set_services(&(service("in-y", "a") + &service("in-z", "b")));
    assert!(address(&pooled.step(), "in-y").is_some(), "released addresses no longer count");
}

#[test]
fn a_disabled_pool_assigns_nothing_new_and_keeps_its_assignments() {
    let mut pooled = Pooled::of("addresses: [203.0.113.0/28]", &named("web", ""));
    let had = address(&pooled.step(), "web");
    pooled.set_pools(&[("public", "", "addresses: [203.0.113.0/28], disabled: true")]);
    pooled.set_services(
        &(named("web", "") + &named("new", "") + &named("requests", "  loadBalancerIP: 203.0.113.1\n")),
    );
    let outcome = pooled.step();
    assert_eq!((address(&outcome, "web"), had.is_some()), (had, true));
    for name in ["new", "requests"] {
        assert!(pending(&outcome, name).is_some_and(|p| p.contains("pool public is disabled")), "{name}");
    }
}

#[test]
fn the_dynamic_band_is_used_first_and_its_offset_depends_on_the_pool() {
    // min(max(16, size/16), 256), or 0 if there are at most 16 addresses.
    for (range, size, offset) in [
        ("203.0.113.0/28", 16, 0),
        ("203.0.113.0-203.0.113.16", 17, 16),
        ("203.0.113.0/27", 32, 16),
        ("203.0.113.0/24", 256, 16),
        ("203.0.112.0/23", 512, 32),
    ] {
        let first = u32::from(
            range.split(['/', '-']).next().expect("an address").parse::<std::net::Ipv4Addr>().expect("one"),
        );
        let dynamic = size - offset;
        let outcome = Pooled::of(&format!("addresses: [{range}]"), &many(dynamic + 1)).step();
        let at = |i: usize| match address(&outcome, &format!("s{i}")) {
            Some(IpAddr::V4(ip)) => usize::try_from(u32::from(ip) - first).ok(),
            _ => None,
        };
        assert!((0..dynamic).all(|i| at(i).is_some_and(|at| at >= offset)), "{range}");
        assert_eq!(
            at(dynamic).is_some_and(|at| at < offset),
            offset > 0,
            "{range}: the last one in {offset}"
        );
    }
}

#[test]
fn the_static_band_has_256_addresses_at_most() {
    for range in ["198.18.0.0/20", "198.18.0.0/16", "2001:db8:1::/64"] {
        let outcome = Pooled::of(&format!("addresses: ['{range}']"), &many(200)).step();
        let net: ipnet::IpNet = range.parse().expect("a network");
        let number = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => u128::from(u32::from(ip)),
            IpAddr::V6(ip) => u128::from(ip),
        };
        let offsets = outcome.spec.services.iter().map(|s| number(s.key.vip) - number(net.addr()));
        let offsets: BTreeSet<u128> = offsets.collect();
        assert_eq!(offsets.len(), 200);
        assert!(offsets.first().is_some_and(|first| *first >= 256), "{range}: {offsets:?}");
    }
}

#[test]
fn explicit_requests_may_take_any_address_of_either_band() {
    let requests: String = [0, 3, 15, 16, 31]
        .map(|host| named(&format!("s{host}"), &format!("  loadBalancerIP: 203.0.113.{host}\n")))
        .concat();
    let outcome = Pooled::of("addresses: [203.0.113.0/27]", &requests).step();
    for host in [0, 3, 15, 16, 31] {
        assert_eq!(address(&outcome, &format!("s{host}")), Some(ip(&format!("203.0.113.{host}"))));
    }
}

/// Only for the directory source: an API server assigns node ports itself.
#[test]
fn node_ports_of_a_directory_come_from_the_dynamic_band_first() {
    // min(max(16, size/32), 128) of the 2768 from 30000 to 32767.
    let (first, dynamic) = (30_086, 32_767 - 30_086 + 1);
    let ports: Vec<String> = (1..=dynamic + 1).map(|n| format!("{{name: p{n}, port: {n}}}")).collect();
    let full = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web}}\nspec: {{type: NodePort, ports: [{}]}}\n",
        ports.join(", ")
    );
    let requests = "---\napiVersion: v1\nkind: Service\nmetadata: {name: requests}\nspec: {type: NodePort, ports: [{port: 80, nodePort: 30000}]}\n";
    let objects = read(&(full + requests));
    let of = |name: &str| -> Vec<u16> {
        let service = &objects.services[&ObjectKey::new("default", name)];
        service.ports.iter().map(|p| p.node_port.expect("each has one").get()).collect()
    };
    let (given, requested) = (of("web"), of("requests"));
    assert!(given[..dynamic].iter().all(|port| (first..=32_767).contains(port)));
    assert!((30_001..first).contains(&given[dynamic]), "{}: the band is used last", given[dynamic]);
    assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), given.len(), "none twice");
    assert_eq!(requested, [30_000], "explicit requests may take any");
}

/// `default/NAME` with a sharing key that requests 203.0.113.5 with one port.
fn sharing(name: &str, key: &str, port: &str) -> String {
    let metadata = format!("name: {name}, annotations: {{tidegate.dev/allow-shared-ip: {key}}}");
    let ports = format!("ports: [{{name: p, {port}}}]");
    service_with(&metadata, "  loadBalancerIP: 203.0.113.5\n")
        .replace("ports: [{name: http, port: 80, targetPort: 8080}]", &ports)
}

#[test]
fn ownership_is_by_address_port_and_protocol() {
    let services = sharing("a", "k", "port: 80")
        + &sharing("b", "k", "port: 80, protocol: UDP")
        + &sharing("c", "k", "port: 81")
        + &sharing("d", "k", "port: 80");
    let mut pooled = Pooled::of("addresses: [203.0.113.0/28]", &services);
    let outcome = pooled.step();
    let owned: Vec<String> = outcome.spec.services.iter().map(|s| format!("{} {}", s.key, s.name)).collect();
    assert_eq!(owned, ["TCP 203.0.113.5:80 a", "TCP 203.0.113.5:81 c", "UDP 203.0.113.5:80 b"]);
    assert!(pending(&outcome, "d").is_some_and(|p| p.ends_with("TCP port 80 belongs to Service default/a")));
}

#[test]
fn sharing_an_address_needs_the_same_key_and_namespace_or_the_pool() {
    let first = sharing("a", "k", "port: 80");
    let second = |key: &str, namespace: &str| {
        sharing("b", key, "port: 81").replace("name: b,", &format!("name: b, namespace: {namespace},"))
    };
    let no_key = named("b", "  loadBalancerIP: 203.0.113.5\n").replace("port: 80,", "port: 81,");
    let apart = "addresses: [203.0.113.0/28]";
    let together = "addresses: [203.0.113.0/28], shareAcrossNamespaces: true";
    for (keys, second, refusal) in [
        (apart, second("k", "default"), None),
        (
            apart,
            second("other", "default"),
            Some(
                "the address belongs to Service default/a, and the tidegate.dev/allow-shared-ip keys differ",
            ),
        ),
        (
            apart,
            no_key,
            Some(
                "the address belongs to Service default/a, and only that Service has a tidegate.dev/allow-shared-ip key",
            ),
        ),
        (apart, second("k", "shop"), Some("the address belongs to Service default/a of another namespace")),
        (together, second("k", "shop"), None),
        (
            together,
            second("other", "shop"),
            Some(
                "the address belongs to Service default/a, and the tidegate.dev/allow-shared-ip keys differ",
            ),
        ),
    ] {
        let outcome = Pooled::of(keys, &(first.clone() + &second)).step();
        assert_eq!(address(&outcome, "a"), Some(ip("203.0.113.5")));
        match refusal {
            None => assert_eq!(address(&outcome, "b"), Some(ip("203.0.113.5")), "{second}"),
            Some(why) => assert!(pending(&outcome, "b").is_some_and(|p| p.ends_with(why)), "{second}"),
        }
    }
}

#[test]
fn services_with_one_sharing_key_get_one_address_unless_they_request_one() {
    let anywhere =
        |name: &str, port: &str| sharing(name, "k", port).replace("  loadBalancerIP: 203.0.113.5\n", "");
    let services = anywhere("a", "port: 80") + &anywhere("b", "port: 81") + &anywhere("c", "port: 80");
    let mut pooled = Pooled::of("addresses: [203.0.113.0/28]", &services);
    let outcome = pooled.step();
    assert_eq!(address(&outcome, "a"), address(&outcome, "b"));
    assert_ne!(address(&outcome, "a"), address(&outcome, "c"), "port 80 is taken there");
    assert!(address(&outcome, "c").is_some());
    let [finding] = &outcome.findings[..] else { panic!("{:?}", messages(&outcome)) };
    assert_eq!(finding.reason, Reason::AddressNotShared);
    assert!(
        finding.diagnostic.what.ends_with("TCP port 80 belongs to Service default/a"),
        "{:?}",
        finding.diagnostic
    );
    // Without locations, which are in files of different worlds.
    let message = |outcome: &Outcome| -> Vec<String> {
        outcome.findings.iter().map(|finding| finding.diagnostic.what.clone()).collect()
    };
    assert_eq!(message(&pooled.step()), message(&outcome), "the cause remains");
    pooled
        .set_services(&services.replace("name: c, ", "name: c, creationTimestamp: '2026-01-01T00:00:00Z', "));
    assert!(pooled.step().findings.is_empty(), "it is the older one now, and the others share its address");
    pooled.set_services(&services);
    assert_eq!(message(&pooled.step()), message(&outcome));
    let mended = anywhere("a", "port: 80") + &anywhere("b", "port: 81") + &anywhere("c", "port: 82");
    pooled.set_services(&mended);
    assert!(pooled.step().findings.is_empty(), "it could share, but keeps its address");
}

#[test]
fn each_cause_for_which_an_address_is_not_shared_has_its_own_remedy() {
    let first = sharing("a", "k", "port: 80");
    let second = |key: &str, port: &str, namespace: &str| {
        sharing("b", key, port).replace("name: b,", &format!("name: b, namespace: {namespace},"))
    };
    let keys = "a free address, or the same tidegate.dev/allow-shared-ip key on both Services";
    for (second, why, accepted) in [
        (second("other", "port: 81", "default"), "keys differ", keys),
        (
            second("k", "port: 80", "default"),
            "TCP port 80 belongs to Service default/a",
            "a free address, or ports that no",
        ),
        (second("k", "port: 81", "shop"), "another namespace", "shareAcrossNamespaces: true in pool public"),
    ] {
        let outcome = Pooled::of("addresses: [203.0.113.0/28]", &(first.clone() + &second)).step();
        let found = outcome.findings.iter().find(|finding| finding.reason == Reason::AllocationFailed);
        let message = &found.unwrap_or_else(|| panic!("{second}")).diagnostic;
        assert!(message.what.contains(why), "{message}");
        assert!(message.accepted.as_deref().is_some_and(|text| text.contains(accepted)), "{message}");
        // Without a requested address it gets one, and the key that is not honoured is reported.
        let anywhere = (first.clone() + &second).replace("  loadBalancerIP: 203.0.113.5\n", "");
        let outcome = Pooled::of("addresses: [203.0.113.0/28]", &anywhere).step();
        let is_reported = outcome.findings.iter().any(|finding| finding.reason == Reason::AddressNotShared);
        assert_eq!(is_reported, !why.contains("differ"), "{second}");
    }
}

#[test]
fn first_come_keeps_by_creation_time_then_uid() {
    let requests = |name: &str, more: &str| {
        service_with(&format!("name: {name}{more}"), "  loadBalancerIP: 203.0.113.5\n")
    };
    for (a, z, first) in [
        (", creationTimestamp: '2026-01-02T00:00:00Z'", ", creationTimestamp: '2026-01-01T00:00:00Z'", "z"),
        (", creationTimestamp: '2026-01-01T00:00:00Z'", ", creationTimestamp: '2026-01-02T00:00:00Z'", "a"),
        (", uid: '2'", ", uid: '1'", "z"),
        (", uid: '1'", ", uid: '2'", "a"),
        (", uid: '1'", ", uid: '2', creationTimestamp: '2026-01-01T00:00:00Z'", "z"),
    ] {
        let mut pooled = Pooled::of("addresses: [203.0.113.0/28]", &(requests("a", a) + &requests("z", z)));
        let outcome = pooled.step();
        assert_eq!(owners(&outcome), [format!("203.0.113.5 {first}")], "a{a}, z{z}");
    }
    // The owner keeps the address, although an older Service requests it now.
    let mut pooled = Pooled::of(
        "addresses: [203.0.113.0/28]",
        &requests("z", ", creationTimestamp: '2026-01-02T00:00:00Z'"),
    );
    pooled.step();
    let both = requests("z", ", creationTimestamp: '2026-01-02T00:00:00Z'")
        + &requests("a", ", creationTimestamp: '2026-01-01T00:00:00Z'");
    pooled.set_services(&both);
    assert_eq!(owners(&pooled.step()), ["203.0.113.5 z"]);
}

#[test]
fn a_restart_adopts_the_addresses_in_the_status() {
    let with_status = |address: &str| {
        named("web", &format!("status: {{loadBalancer: {{ingress: [{{ip: {address}}}]}}}}\n"))
    };
    for host in [0, 7, 15, 31] {
        let address = format!("203.0.113.{host}");
        let mut pooled = Pooled::of("addresses: [203.0.113.0/27]", &with_status(&address));
        assert_eq!(owners(&pooled.step()), [format!("{address} web")]);
    }
    let outcome = Pooled::of("addresses: [203.0.113.0/27]", &with_status("192.0.2.9")).step();
    assert!(
        address(&outcome, "web").is_some_and(|a| a.to_string().starts_with("203.0.113.")),
        "there is no such pool"
    );
}

#[test]
fn overlapping_pools_are_reported_and_cause_no_crash() {
    let pools = [("a", "", "addresses: [203.0.113.0/28]"), ("b", "", "addresses: [203.0.113.8/29]")];
    let mut pooled = Pooled::new(&pools, &many(17));
    let outcome = pooled.step();
    let given: BTreeSet<IpAddr> = outcome.spec.services.iter().map(|s| s.key.vip).collect();
    assert_eq!(given.len(), 16, "each address is assigned once");
    let reported: Vec<(&str, ObjectKind)> = outcome
        .findings
        .iter()
        .filter(|f| f.reason == Reason::PoolsOverlap)
        .map(|f| (f.object.name.as_str(), f.kind))
        .collect();
    assert_eq!(reported, [("a", ObjectKind::AddressPool), ("b", ObjectKind::AddressPool)]);
    // An object with the name of a pool of the configuration is not used, and its status reports that.
    let taken = "apiVersion: tidegate.dev/v1alpha1\nkind: AddressPool\nmetadata: {name: public}\nspec: {addresses: \
                 [192.0.2.0/28]}\n";
    let outcome = Both::new(taken).look();
    assert_eq!(finding(&outcome).0, Reason::PoolNotAccepted);
    assert!(outcome.pools.iter().all(|p| p.total != 16 || p.pool != "public"), "{:?}", outcome.pools);
}

#[test]
fn a_full_pool_leaves_the_service_pending_until_an_address_is_free() {
    let mut pooled = Pooled::of("addresses: [203.0.113.4/31]", &many(3));
    let outcome = pooled.step();
    let why = "Service default/s2 waits for an address: no IPv4 address: pool public is full";
    assert_eq!(pending(&outcome, "s2"), Some(why));
    assert_eq!(outcome.pools[0].free(), 0);
    let (reason, what, accepted) = finding(&outcome);
    assert_eq!((reason, what), (Reason::AllocationFailed, why));
    assert_eq!(accepted, "a pool with a free address that this Service may use");
    let free = address(&outcome, "s0");
    let without_s0 = many(3).split_inclusive("---\n").skip(1).collect::<String>();
    pooled.set_services(&without_s0);
    let outcome = pooled.step();
    assert_eq!((address(&outcome, "s2"), outcome.findings.len()), (free, 0));
    // A larger pool has the same effect.
    let mut grown = Pooled::of("addresses: [203.0.113.4/31]", &many(3));
    grown.step();
    grown.set_pools(&[("public", "", "addresses: [203.0.113.4/30]")]);
    assert!(address(&grown.step(), "s2").is_some());
}

#[test]
fn a_pool_address_that_belongs_to_a_node_is_not_assigned() {
    let node = node_yaml("n7", &["203.0.113.4"], "");
    let outcome = Pooled::of("addresses: [203.0.113.0/28]", &(many(16) + &node)).step();
    let given: BTreeSet<IpAddr> = outcome.spec.services.iter().map(|s| s.key.vip).collect();
    assert_eq!((given.len(), given.contains(&ip("203.0.113.4"))), (15, false));
    let requests = named("requests", "  loadBalancerIP: 203.0.113.4\n");
    let outcome = Pooled::of("addresses: [203.0.113.0/28]", &(requests + &node)).step();
    assert!(pending(&outcome, "requests").is_some_and(|p| p.ends_with("an address of node n7")));
}

#[test]
fn an_address_pool_with_a_fault_is_refused_with_its_location() {
    let pool = |spec: &str| {
        format!(
            "apiVersion: tidegate.dev/v1alpha1\nkind: AddressPool\nmetadata: {{name: p}}\nspec: {{{spec}}}\n"
        )
    };
    for (spec, what) in [
        ("addresses: [203.0.113.0/33]", "spec.addresses[0]: "),
        ("addresses: [203.0.113.9-203.0.113.1]", "\"203.0.113.9-203.0.113.1\" is not a range"),
        ("addresses: [127.0.0.0/28]", "contains loopback addresses"),
        ("addresses: []", "the list is empty"),
        ("addresses: [203.0.113.0/28], quotaPerNamespace: 0", "spec.quotaPerNamespace: "),
        ("autoAssign: true", "addresses is missing"),
    ] {
        let message = refused(&pool(spec));
        assert!(message.len() == 1 && message[0].contains(what), "{spec}: {message:?}");
        assert!(message[0].contains("; accepted: "), "{message:?}");
    }
}
