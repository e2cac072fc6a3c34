//! Section 3: the endpoints that traffic policies and topology select.

use tidegate_model::config::Layer2Mode;
use tidegate_spec::NoEndpoints;
use tidegate_spec::ownership::Layer2;

use super::*;

#[test]
fn policy_local_takes_ready_endpoints_on_the_node_else_terminating_ones() {
    let local = "  externalTrafficPolicy: Local\n  healthCheckNodePort: 30500\n";
    let backends = |endpoints: &[&str]| {
        web_with(local, endpoints).with(|world| world.settings.node = Some("a".into())).backends()
    };
    let terminating =
        "addresses: [10.1.0.2], nodeName: a, conditions: {ready: false, serving: true, terminating: true}";
    let gone =
        "addresses: [10.1.0.4], nodeName: a, conditions: {ready: false, serving: false, terminating: true}";
    let elsewhere = "addresses: [10.1.0.3], nodeName: b";
    assert_eq!(
        backends(&["addresses: [10.1.0.1], nodeName: a", terminating, elsewhere]),
        ["10.1.0.1:8080 active", "10.1.0.2:8080 draining"]
    );
    assert_eq!(backends(&[terminating, gone, elsewhere]), ["10.1.0.2:8080 active", "10.1.0.4:8080 down"]);
    assert_eq!(backends(&[gone, elsewhere]), ["10.1.0.4:8080 down"], "it no longer answers");
    assert_eq!(backends(&[elsewhere]), [] as [String; 0]);
}

#[test]
fn a_gateway_answers_on_layer_2_for_local_vips_that_it_can_serve() {
    let local = "  externalTrafficPolicy: Local\n  healthCheckNodePort: 30500\n";
    let of = |mode, endpoint: &str| {
        let both = web_with(local, &[endpoint]).with(|world| {
            world.settings.node = Some("a".into());
            world.settings.layer2.mode = mode;
        });
        let outcome = both.look();
        (only(&outcome).layer2, outcome.services[0].vips[0].edge.clone())
    };
    let (here, elsewhere) = ("addresses: [10.1.0.1], nodeName: a", "addresses: [10.1.0.1], nodeName: b");
    let (layer2, edge) = of(Layer2Mode::Always, elsewhere);
    let why = edge.unable.expect("it can serve no port");
    assert!(why.starts_with("externalTrafficPolicy Local: node a has no endpoint"), "{why}");
    assert_eq!((layer2, of(Layer2Mode::Always, here).0), (Layer2::Silent, Layer2::Always));
    let nowhere = "addresses: [10.1.0.1], nodeName: b, conditions: {ready: false}";
    assert_eq!(of(Layer2Mode::Always, nowhere).0, Layer2::Always, "it refuses connections");
    let (layer2, edge) = of(Layer2Mode::Lease, here);
    assert!(matches!(layer2, Layer2::Owned(_)) && edge.unable.is_none());
    assert_eq!(edge.owner.as_deref(), Some("tidegate-l2-all-203.0.113.12"), "a Lease of its own");
    assert_eq!(of(Layer2Mode::Lease, elsewhere).0, Layer2::Silent);
}

#[test]
fn services_that_share_a_vip_have_one_lease_whatever_their_policies() {
    let shared = |name: &str, port: u16, rest: &str| {
        let meta = format!("name: {name}, annotations: {{tidegate.dev/allow-shared-ip: k}}");
        let spec = format!("  loadBalancerIP: 203.0.113.5\n{rest}");
        service_with(&meta, &spec).replace("port: 80", &format!("port: {port}"))
    };
    let local = "  externalTrafficPolicy: Local\n  healthCheckNodePort: 30500\n";
    let both = Both::new(&(shared("a", 81, local) + &shared("b", 82, "")))
        .with(|world| world.settings.layer2.mode = Layer2Mode::Lease);
    let is_of_one_vip = |both: &Both| owner_groups(&both.look()).values().all(|of| of.is_of_one_vip);
    assert!(is_of_one_vip(&both));
    let outcome = both.look();
    let owners: BTreeSet<_> =
        outcome.services.iter().map(|service| service.vips[0].edge.owner.clone()).collect();
    assert_eq!(outcome.services.len(), 2, "{:?}", messages(&outcome));
    assert_eq!(owners, [Some("tidegate-l2-all-203.0.113.5".to_owned())].into());
    let alone = service_with("name: c", "  loadBalancerIP: 203.0.113.6\n");
    let both = Both::new(&alone).with(|world| world.settings.layer2.mode = Layer2Mode::Lease);
    assert!(!is_of_one_vip(&both), "other VIPs may join its Lease");
}

#[test]
fn off_the_cluster_policy_local_takes_the_endpoints_of_all_nodes() {
    let local = "  externalTrafficPolicy: Local\n  healthCheckNodePort: 30500\n";
    let both = web_with(local, &["addresses: [10.1.0.1], nodeName: a", "addresses: [10.1.0.2], nodeName: b"]);
    assert_eq!(both.backends(), ["10.1.0.1:8080 active", "10.1.0.2:8080 active"]);
}

#[test]
fn the_internal_traffic_policy_applies_to_cluster_ips_only() {
    let spec = "  clusterIP: 10.96.0.10\n  internalTrafficPolicy: Local\n";
    let both = web_with(spec, &["addresses: [10.1.0.1], nodeName: a", "addresses: [10.1.0.2], nodeName: b"])
        .with(|world| world.settings.services.own_cluster_ips = true);
    let look = |both: &Both| {
        let outcome = both.look();
        let spec = |cluster: bool| {
            let found = outcome.spec.services.iter().find(|s| (s.key.vip == ip("10.96.0.10")) == cluster);
            found.expect("both are served").clone()
        };
        (spec(true), spec(false))
    };
    let (cluster, balanced) = look(&both);
    assert_eq!((states(&cluster).len(), cluster.no_endpoints), (0, NoEndpoints::Drop), "no node is ours");
    assert_eq!(states(&balanced).len(), 2);
    let (cluster, balanced) = look(&both.with(|world| world.settings.node = Some("a".into())));
    assert_eq!(states(&cluster), ["10.1.0.1:8080 active"]);
    assert_eq!(states(&balanced).len(), 2, "its policy is the external one, Cluster");
}

/// Specific to this gateway: kube-proxy has no health checks of its own.
#[test]
fn if_the_hinted_zone_fails_passing_endpoints_of_other_zones_take_over() {
    let hinted = |address: &str, zone: &str| {
        format!("addresses: [{address}], zone: {zone}, hints: {{forZones: [{{name: {zone}}}]}}")
    };
    let endpoints =
        [hinted("10.1.0.1", "a"), hinted("10.1.0.2", "a"), hinted("10.1.0.3", "b"), hinted("10.1.0.4", "b")];
    let with = |failing: &'static [&'static str], fail_open: bool| {
        let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
        web_with("", &endpoints).with(|world| {
            world.settings.zone = Some("a".into());
            world.settings.health.fail_open = fail_open;
            let targets = reconcile(&world.input()).targets;
            let fails = |target: &tidegate_model::health::Target| {
                failing.iter().any(|f| ip(f) == target.address.ip())
            };
            world.verdicts = targets.into_iter().filter(fails).collect();
        })
    };
    let shown = |both: &Both| {
        let outcome = both.look();
        let states: Vec<String> =
            states(only(&outcome)).iter().map(|s| s.split(' ').nth(1).expect("a state").to_owned()).collect();
        (states.join(" "), outcome.findings.len())
    };
    for fail_open in [true, false] {
        assert_eq!(shown(&with(&[], fail_open)), ("active active draining draining".into(), 0));
        assert_eq!(shown(&with(&["10.1.0.1"], fail_open)), ("down active draining draining".into(), 0));
        let zone = &["10.1.0.1", "10.1.0.2"];
        assert_eq!(shown(&with(zone, fail_open)), ("down down active active".into(), 0), "{fail_open}");
        let most = &["10.1.0.1", "10.1.0.2", "10.1.0.3"];
        assert_eq!(shown(&with(most, fail_open)), ("down down down active".into(), 0), "{fail_open}");
    }
    let all = &["10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4"];
    assert_eq!(
        shown(&with(all, true)),
        ("active active draining draining".into(), 1),
        "all fail everywhere: the zone fails open, and this is reported"
    );
    assert_eq!(shown(&with(all, false)), ("down down down down".into(), 0));
}
