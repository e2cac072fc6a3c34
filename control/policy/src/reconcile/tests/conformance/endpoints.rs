//! Section 2: endpoints, their conditions, the choice among them.

use tidegate_snapshot::Snapshot;
use tidegate_snapshot::neighbors::NeighborTable;
use tidegate_spec::NoEndpoints;

use super::*;

#[test]
fn endpoint_slices_are_merged_over_all_slices_with_the_label_service_name() {
    let slices = slice_of_web("a", "IPv4", &["addresses: [10.1.0.1]"])
        + &slice_of_web("b", "IPv4", &["addresses: [10.1.0.2]"])
        + &slice_of_web("c", "IPv4", &["addresses: [10.1.0.3]"])
            .replace("service-name: web", "service-name: other");
    let both = Both::new(&(web("") + &slices));
    assert_eq!(both.backends(), ["10.1.0.1:8080 active", "10.1.0.2:8080 active"]);
}

#[test]
fn missing_conditions_mean_ready_serving_and_not_terminating() {
    let both = web_with(
        "",
        &[
            "addresses: [10.1.0.1]",
            "addresses: [10.1.0.2], conditions: {}",
            "addresses: [10.1.0.3], conditions: {ready: false}",
        ],
    );
    assert_eq!(both.backends(), ["10.1.0.1:8080 active", "10.1.0.2:8080 active", "10.1.0.3:8080 down"]);
}

#[test]
fn address_types_are_ipv4_and_ipv6_only() {
    let outcome = Both::new(&(web("") + &slice_of_web("a", "FQDN", &["addresses: [example.com]"]))).look();
    assert_eq!(states(only(&outcome)), [] as [String; 0]);
    assert!(
        outcome.findings[0].diagnostic.what.contains("is ignored: addressType FQDN"),
        "{:?}",
        messages(&outcome)
    );
}

#[test]
fn only_the_first_address_counts() {
    assert_eq!(web_with("", &["addresses: [10.1.0.1, 10.1.0.2]"]).backends(), ["10.1.0.1:8080 active"]);
}

#[test]
fn a_port_with_no_number_is_ignored_and_ports_match_by_name_and_protocol() {
    let slice = |ports: &str| {
        slice_of_web("a", "IPv4", &["addresses: [10.1.0.1]"])
            .replace("[{name: http, protocol: TCP, port: 8080}]", ports)
    };
    let backends = |ports: &str| Both::new(&(web("") + &slice(ports))).backends();
    assert_eq!(backends("[{name: http}]"), [] as [String; 0]);
    assert_eq!(backends("[{name: http, protocol: UDP, port: 8080}]"), [] as [String; 0]);
    assert_eq!(backends("[{name: https, port: 8080}]"), [] as [String; 0]);
    assert_eq!(backends("[{port: 8080}]"), [] as [String; 0]);
    assert_eq!(backends("[{name: http, port: 8080}]"), ["10.1.0.1:8080 active"]);
    let unnamed = web("").replace("name: http, ", "") + &slice("[{name: '', port: 8080}]");
    assert_eq!(Both::new(&unnamed).backends(), ["10.1.0.1:8080 active"], "the unnamed port is \"\"");
}

#[test]
fn one_ip_and_port_in_two_slices_is_one_backend() {
    let terminating = "addresses: [10.1.0.1], conditions: {ready: false, serving: true, terminating: true}";
    let alive = "addresses: [10.1.0.1]";
    for (first, second) in [(terminating, alive), (alive, terminating)] {
        let slices = slice_of_web("a", "IPv4", &[first]) + &slice_of_web("b", "IPv4", &[second]);
        assert_eq!(Both::new(&(web("") + &slices)).backends(), ["10.1.0.1:8080 active"]);
    }
}

#[test]
fn an_endpoint_that_moves_between_slices_is_never_dropped() {
    let in_slice = |name: &str| web("") + &slice_of_web(name, "IPv4", &["addresses: [10.1.0.1]"]);
    let mut both = Both::new(&in_slice("a"));
    let before = both.step();
    both.set(&web(""));
    assert_eq!(states(only(&both.step())), ["10.1.0.1:8080 down"], "in neither for a moment: its flows stay");
    both.set(&in_slice("b"));
    assert_eq!(both.step().spec, before.spec);
}

#[test]
fn a_directory_may_have_legacy_endpoints_and_truncation_is_a_warning() {
    let legacy = web("")
        + "apiVersion: v1\nkind: Endpoints\nmetadata: {name: web, annotations: \
           {endpoints.kubernetes.io/over-capacity: truncated}}\nsubsets: [{addresses: [{ip: 10.1.0.1}], \
           notReadyAddresses: [{ip: 10.1.0.2}], ports: [{name: http, port: 8080}]}]\n";
    let mut world = World::new(vec![], vec![]);
    world.objects = read(&legacy);
    let outcome = world.look();
    assert_eq!(states(only(&outcome)), ["10.1.0.1:8080 active", "10.1.0.2:8080 down"]);
    let message = &messages(&outcome)[0];
    assert!(message.contains("warning: Endpoints default/web is truncated at 1000 addresses"), "{message}");
    let at_the_server = tidegate_source::kubernetes::testing::objects_of(&legacy);
    assert!(
        at_the_server.endpoints.is_empty(),
        "they are never requested from an API server, which has slices"
    );
}

#[test]
fn a_service_takes_10000_backends() {
    let slices: String = (0..100_u8)
        .map(|i| {
            let endpoints: Vec<String> = (0..100).map(|j| format!("addresses: [10.1.{i}.{j}]")).collect();
            let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
            slice_of_web(&format!("s{i}"), "IPv4", &endpoints)
        })
        .collect();
    let both = Both::new(&(web("") + &slices)).with(|world| {
        let to = "10.0.0.0/8".parse().expect("a network");
        world.settings.network.routes = vec![tidegate_spec::RouteSpec { to, via: ip("10.0.0.9") }];
    });
    let outcome = both.look();
    assert_eq!(only(&outcome).backends.len(), 10_000);
    let compiled = Snapshot::compile(&outcome.spec, None, &NeighborTable::new());
    let (snapshot, problems) = compiled.expect("it fits");
    assert!(problems.is_empty(), "{:?}", problems.first());
    let (service, _) = snapshot.services().next().expect("there is one");
    assert!(snapshot.shares(service).iter().all(|seats| *seats > 0), "each takes flows");
}

#[test]
fn without_slices_a_directory_makes_endpoints_from_pods() {
    let pod = |name: &str, address: &str, ready: &str, deleted: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: web}}{deleted}}}\nstatus: {{podIP: \
             {address}, conditions: [{{type: Ready, status: '{ready}'}}]}}\n---\n"
        )
    };
    let deleted = ", deletionTimestamp: '2026-01-01T00:00:00Z'";
    let pods = pod("ready", "10.1.0.1", "True", "")
        + &pod("unready", "10.1.0.2", "False", "")
        + &pod("leaving", "10.1.0.3", "True", deleted)
        + &pod("gone", "10.1.0.4", "False", deleted);
    let look = |spec: &str| {
        let mut world = World::new(vec![], vec![]);
        world.objects = read(&(web(&format!("  selector: {{app: web}}\n{spec}")) + &pods));
        states(only(&world.look()))
    };
    assert_eq!(
        look(""),
        ["10.1.0.1:8080 active", "10.1.0.2:8080 down", "10.1.0.3:8080 draining", "10.1.0.4:8080 down"]
    );
    let published = look("  publishNotReadyAddresses: true\n");
    assert!(published.iter().all(|state| state.ends_with(" active")), "{published:?}");
}

#[test]
fn loopback_link_local_multicast_and_vip_endpoints_are_refused() {
    let both = web_with(
        "  externalIPs: [198.51.100.1]\n  loadBalancerIP: 203.0.113.5\n",
        &[
            "addresses: [127.0.0.1]",
            "addresses: [169.254.0.1]",
            "addresses: [224.0.0.1]",
            "addresses: [198.51.100.1]",
            "addresses: [203.0.113.5]",
            "addresses: [10.1.0.1]",
        ],
    );
    let outcome = both.look();
    for spec in &outcome.spec.services {
        assert_eq!(states(spec), ["10.1.0.1:8080 active"]);
    }
    assert_eq!(outcome.findings.iter().filter(|f| f.reason == Reason::EndpointRefused).count(), 5);
    for (endpoint, whose) in [("endpoints[3]", "198.51.100.1"), ("endpoints[4]", "203.0.113.5")] {
        let refused =
            outcome.findings.iter().find(|f| f.diagnostic.what.contains(whose)).expect("it is reported");
        let place = refused.diagnostic.location.as_ref().expect("it has a location");
        let slice = both.directory.objects.endpoint_slices.values().next().expect("there is one");
        let expected = slice.meta.origin.field(&format!("{endpoint}.addresses[0]"));
        assert_eq!(Some(place), expected.as_ref(), "it points at the endpoint");
    }
    let v6 = [
        "addresses: ['::1']",
        "addresses: ['fe80::1']",
        "addresses: ['ff02::1']",
        "addresses: ['2001:db8::a']",
    ];
    let both = Both::new(&(web("  ipFamilies: [IPv6]\n") + &slice_of_web("v6", "IPv6", &v6)));
    assert_eq!(both.backends(), ["[2001:db8::a]:8080 active"]);
}

#[test]
fn policy_cluster_takes_all_ready_endpoints_else_terminating_ones() {
    let terminating = "addresses: [10.1.0.3], conditions: {ready: false, serving: true, terminating: true}";
    let gone = "addresses: [10.1.0.4], conditions: {ready: false, serving: false, terminating: true}";
    let both = web_with("", &["addresses: [10.1.0.1]", "addresses: [10.1.0.2]", terminating, gone]);
    assert_eq!(
        both.backends(),
        ["10.1.0.1:8080 active", "10.1.0.2:8080 active", "10.1.0.3:8080 draining", "10.1.0.4:8080 down"]
    );
    assert_eq!(web_with("", &[terminating, gone]).backends(), ["10.1.0.3:8080 active", "10.1.0.4:8080 down"]);
}

#[test]
fn topology_hints_apply_only_if_every_ready_endpoint_has_them() {
    let hinted = |address: &str, zone: &str| {
        format!("addresses: [{address}], zone: {zone}, hints: {{forZones: [{{name: {zone}}}]}}")
    };
    let (a, b) = (hinted("10.1.0.1", "a"), hinted("10.1.0.2", "b"));
    let active = |endpoints: &[&str], zone: &str| {
        let zone = Some(zone.to_owned()).filter(|zone| !zone.is_empty());
        let both = web_with("", endpoints).with(|world| world.settings.zone.clone_from(&zone));
        weights(only(&both.look())).len()
    };
    assert_eq!(active(&[&a, &b], "a"), 1);
    assert_eq!(active(&[&a, &b], "c"), 2, "nobody names our zone");
    assert_eq!(active(&[&a, &b], ""), 2, "we are in none");
    assert_eq!(active(&[&a, &b, "addresses: [10.1.0.3]"], "a"), 3, "one carries none");
    let unready = "addresses: [10.1.0.3], conditions: {ready: false}";
    assert_eq!(active(&[&a, &b, unready], "a"), 1, "only ready ones count");
}

#[test]
fn a_gateway_without_a_configured_zone_is_in_the_zone_of_its_node() {
    let hinted = |address: &str, zone: &str| {
        format!("addresses: [{address}], zone: {zone}, hints: {{forZones: [{{name: {zone}}}]}}")
    };
    let (a, b) = (hinted("10.1.0.1", "a"), hinted("10.1.0.2", "b"));
    let slice = slice_of_web("web-1", "IPv4", &[a.as_str(), b.as_str()]);
    let node = node_yaml("edge", &["10.0.2.1"], ", labels: {topology.kubernetes.io/zone: b}");
    let yaml = web("") + &slice + &node;
    let backends = |node: Option<&str>, zone: Option<&str>| {
        let both = Both::new(&yaml).with(|world| {
            (world.settings.node, world.settings.zone) = (node.map(str::to_owned), zone.map(str::to_owned));
        });
        both.backends()
    };
    let in_zone_b = ["10.1.0.1:8080 draining", "10.1.0.2:8080 active"];
    assert_eq!(backends(Some("edge"), None), in_zone_b);
    assert_eq!(
        backends(Some("edge"), Some("a")),
        ["10.1.0.1:8080 active", "10.1.0.2:8080 draining"],
        "the configuration decides"
    );
    let everywhere = ["10.1.0.1:8080 active", "10.1.0.2:8080 active"];
    assert_eq!(backends(Some("unknown"), None), everywhere);
    assert_eq!(backends(None, None), everywhere);
}

#[test]
fn node_hints_take_precedence_if_every_ready_endpoint_has_them() {
    let hinted = |address: &str, zone: &str, node: &str| {
        format!(
            "addresses: [{address}], nodeName: {node}, hints: {{forZones: [{{name: {zone}}}], forNodes: [{{name: {node}}}]}}"
        )
    };
    let (a, b) = (hinted("10.1.0.1", "z", "a"), hinted("10.1.0.2", "z", "b"));
    let look = |endpoints: &[&str], node: &str| {
        let both = web_with("  trafficDistribution: PreferSameNode\n", endpoints).with(|world| {
            (world.settings.node, world.settings.zone) = (Some(node.to_owned()), Some("z".to_owned()));
        });
        both.look()
    };
    let states_at = |endpoints: &[&str], node: &str| states(only(&look(endpoints, node)));
    assert_eq!(states_at(&[&a, &b], "a"), ["10.1.0.1:8080 active", "10.1.0.2:8080 draining"]);
    assert_eq!(
        states_at(&[&a, &b], "c"),
        ["10.1.0.1:8080 active", "10.1.0.2:8080 active"],
        "the zones decide"
    );
    let unhinted = "addresses: [10.1.0.3], nodeName: a, hints: {forZones: [{name: z}]}";
    assert!(states_at(&[&a, &b, unhinted], "a").iter().all(|state| state.ends_with(" active")));
    let outcome = look(&[&a, &b], "a");
    assert_eq!(outcome.services[0].ports[0].backends[1].why, view::BackendWhy::OtherNode);
}

#[test]
fn a_port_that_no_slice_has_is_reported_with_the_ports_of_both() {
    for (ports, has, wants) in [
        ("[{name: web, port: 8080}]", "web/8080", "http"),
        ("[{port: 8080}]", "(no name)/8080", "http"),
        ("[{name: http, port: 8080, protocol: UDP}]", "http/8080/UDP", "http"),
        ("[]", "none", "http"),
        ("[{name: http}]", "http/(no number)", "http"),
    ] {
        let slice = slice_of_web("s-1", "IPv4", &["addresses: [10.1.0.1]"]);
        let slice = slice.replace("[{name: http, protocol: TCP, port: 8080}]", ports);
        let outcome = Both::new(&(web("") + &slice)).look();
        let (reason, what, accepted) = finding(&outcome);
        assert_eq!(reason, Reason::NoMatchingPort);
        let text = format!(
            "EndpointSlice default/s-1 has ports [{has}], but Service default/web needs a port named {wants}"
        );
        assert!(what.starts_with(&text) && what.ends_with(": port 80 gets no endpoint"), "{what}");
        assert_eq!(accepted, "a port named http, protocol TCP");
        assert_eq!(outcome.services[0].warnings, [what]);
    }
    let none = slice_of_web("s-1", "IPv4", &[]).replace("[{name: http, protocol: TCP, port: 8080}]", "[]");
    assert_eq!(messages(&Both::new(&(web("") + &none)).look()), [] as [String; 0], "nobody is ready yet");
    let two = slice_of_web("s-1", "IPv4", &["addresses: [10.1.0.1]"]).replace("name: http", "name: old")
        + &slice_of_web("s-2", "IPv4", &["addresses: [10.1.0.1]"]);
    assert_eq!(messages(&Both::new(&(web("") + &two)).look()), [] as [String; 0], "one slice is enough");
}

#[test]
fn policy_local_with_endpoints_only_elsewhere_names_the_node() {
    let local = "  externalTrafficPolicy: Local\n  healthCheckNodePort: 30500\n";
    let both = web_with(local, &["addresses: [10.1.0.1], nodeName: b", "addresses: [10.1.0.2], nodeName: c"])
        .with(|world| world.settings.node = Some("a".into()));
    let outcome = both.look();
    let note = outcome.services[0].ports[0].note.as_deref();
    let text = "externalTrafficPolicy Local: node a has no endpoint (there are endpoints on b, c), so packets are \
        dropped";
    assert_eq!(note, Some(text));
    let here = web_with(local, &["addresses: [10.1.0.1], nodeName: a"])
        .with(|world| world.settings.node = Some("a".into()));
    assert_eq!(here.look().services[0].ports[0].note, None);
}

#[test]
fn no_endpoints_means_reject_or_drop_and_local_elsewhere_means_drop() {
    let both = web_with("", &[]);
    assert_eq!(only(&both.look()).no_endpoints, NoEndpoints::Reject);
    let both = both.with(|world| world.settings.services.defaults.no_endpoints = NoEndpoints::Drop);
    assert_eq!(only(&both.look()).no_endpoints, NoEndpoints::Drop);
    let local = "  externalTrafficPolicy: Local\n  healthCheckNodePort: 30500\n";
    let elsewhere = web_with(local, &["addresses: [10.1.0.1], nodeName: b"])
        .with(|world| world.settings.node = Some("a".into()));
    assert_eq!(only(&elsewhere.look()).no_endpoints, NoEndpoints::Drop);
    let nowhere = web_with(local, &[]).with(|world| world.settings.node = Some("a".into()));
    assert_eq!(only(&nowhere.look()).no_endpoints, NoEndpoints::Reject);
}

#[test]
fn terminating_or_removed_backends_keep_only_existing_flows() {
    let drain = "{name: web, annotations: {tidegate.dev/drain-timeout: 60s}}";
    let objects = |endpoints: &[&str]| {
        web("").replace("{name: web}", drain) + &slice_of_web("web-1", "IPv4", endpoints)
    };
    let mut both = Both::new(&objects(&["addresses: [10.1.0.1]", "addresses: [10.1.0.2]"]));
    both.step();
    both.set(&objects(&[
        "addresses: [10.1.0.1]",
        "addresses: [10.1.0.2], conditions: {ready: false, terminating: true}",
    ]));
    assert_eq!(states(only(&both.step())), ["10.1.0.1:8080 active", "10.1.0.2:8080 draining"]);
    both.set(&objects(&["addresses: [10.1.0.1]"]));
    assert_eq!(states(only(&both.step())), ["10.1.0.1:8080 active", "10.1.0.2:8080 down"]);
    both.both(|world| world.now += Duration::from_secs(59));
    assert_eq!(states(only(&both.step())).len(), 2);
    both.both(|world| world.now += Duration::from_secs(1));
    assert_eq!(states(only(&both.step())), ["10.1.0.1:8080 active"]);
}
