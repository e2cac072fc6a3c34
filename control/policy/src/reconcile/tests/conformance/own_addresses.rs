//! Section 1: the definition of a VIP. Node ports on the gateway's own addresses, its own cluster IPs, and statuses;
//! all are one table of service ports.

use tidegate_pipeline::testing::builder::Builder;
use tidegate_spec::ForwardingMode;
use tidegate_spec::ownership::Layer2;
use tidegate_spec::verdict::{PuntReason, Refusal, TransmitReason, Verdict};
use tidegate_wire::tcp::flags;

use super::packets::Gateways;
use super::*;

/// A Service of type NodePort with port 80 `http` to 8080 at this node port; `more` is more of its metadata.
fn node_port(name: &str, number: u16, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}{more}}}\nspec: {{type: NodePort, ports: [{{name: \
         http, port: 80, targetPort: 8080, nodePort: {number}}}]}}\n---\n"
    )
}

fn near() -> String {
    slice_of_web("s", "IPv4", &["addresses: [10.0.1.1]"])
}

fn serving_node_ports(yaml: &str, networks: &[&str]) -> Both {
    Both::new(yaml).with(|world| {
        world.settings.services.node_port_addresses =
            networks.iter().map(|n| n.parse().expect("a network")).collect();
    })
}

#[test]
fn node_ports_are_served_on_own_addresses_in_node_port_addresses() {
    let yaml = node_port("web", 30_080, "") + &near();
    assert!(serving_node_ports(&yaml, &[]).look().services.is_empty(), "off by default");
    let both = serving_node_ports(&yaml, &["0.0.0.0/0"]);
    let outcome = both.look();
    assert_eq!(keys(&outcome), ["TCP 10.0.0.1:30080"]);
    assert_eq!(states(only(&outcome)), ["10.0.1.1:8080 active"]);
    assert_eq!(only(&outcome).layer2, Layer2::Answered, "the kernel answers for the gateway's own addresses");
    let outcome = serving_node_ports(&yaml, &["10.0.0.0/8", "2001:db8::/64"]).look();
    assert_eq!(keys(&outcome), ["TCP 10.0.0.1:30080", "TCP [2001:db8::1]:30080"]);
    let kinds: Vec<&str> = outcome.services[0].vips.iter().map(|v| v.kind.as_str()).collect();
    assert_eq!(kinds, ["NodePort", "NodePort"]);

    let mut gateways = Gateways::new(both);
    let syn = |to: &str| Builder::tcp("198.51.100.7:40000", to).flags(flags::SYN);
    let result = gateways.send(syn("10.0.0.1:30080"));
    result.sent(TransmitReason::Forward);
    assert_eq!(gateways.backend_of(&result), ip("10.0.1.1"));
    assert_eq!(
        gateways.send(syn("10.0.0.1:22")).verdict,
        Verdict::Punt(PuntReason::Local),
        "everything else belongs to the kernel"
    );
}

#[test]
fn cluster_ips_are_vips_only_with_own_cluster_ips() {
    let yaml = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, \
                '2001:db8:96::10'], ports: [{name: http, port: 80, targetPort: 8080}]}\n---\n"
        .to_owned()
        + &near();
    let both = Both::new(&yaml);
    assert!(both.look().services.is_empty(), "off by default");
    let both = both.with(|world| world.settings.services.own_cluster_ips = true);
    let outcome = both.look();
    assert_eq!(keys(&outcome), ["TCP 10.96.0.10:80", "TCP [2001:db8:96::10]:80"]);
    assert!(
        outcome
            .spec
            .services
            .iter()
            .all(|s| s.layer2 == Layer2::Answered && s.mode == ForwardingMode::FullNat)
    );
    assert_eq!(states(&outcome.spec.services[0]), ["10.0.1.1:8080 active"]);
    assert_eq!(states(&outcome.spec.services[1]), [] as [String; 0], "nat does not cross families");

    let mut gateways = Gateways::new(both);
    let syn = |from| Builder::tcp(from, "10.96.0.10:80").flags(flags::SYN);
    gateways.send(syn("198.51.100.7:40000")).sent(TransmitReason::Forward);
    gateways.change(|world| world.settings.services.own_cluster_ips = false);
    assert_eq!(gateways.send(syn("198.51.100.7:40001")).verdict, Verdict::Punt(PuntReason::NotOurs));
}

#[test]
fn unserved_ports_of_vips_and_own_cluster_ips_are_rejected_or_dropped() {
    let yaml =
        "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.10, externalIPs: \
                [198.51.100.1], ports: [{name: http, port: 80, targetPort: 8080}]}\n---\n"
            .to_owned()
            + &near();
    let mut gateways =
        Gateways::new(Both::new(&yaml).with(|world| world.settings.services.own_cluster_ips = true));
    for to in ["10.96.0.10:81", "198.51.100.1:81"] {
        gateways.send(Builder::tcp("192.0.2.7:40000", to).flags(flags::SYN)).sent(TransmitReason::NoService);
        gateways.send(Builder::udp("192.0.2.7:40000", to)).sent(TransmitReason::NoService);
    }
    gateways.change(|world| world.settings.network.policy.reject_unserved_ports = false);
    for to in ["10.96.0.10:81", "198.51.100.1:81"] {
        let result = gateways.send(Builder::tcp("192.0.2.7:40000", to).flags(flags::SYN));
        assert_eq!(result.refused(), Refusal::NoService);
    }
}

#[test]
fn a_service_that_conflicts_with_itself_does_not_name_another_service() {
    let both =
        web_with("  clusterIP: 203.0.113.5\n  loadBalancerIP: 203.0.113.5\n", &["addresses: [10.0.1.1]"])
            .with(|world| world.settings.services.own_cluster_ips = true);
    let outcome = both.look();
    assert_eq!(keys(&outcome), ["TCP 203.0.113.5:80"]);
    assert_eq!(messages(&outcome), [] as [String; 0], "it is served as the LoadBalancer address");
    assert!(outcome.services[0].ports.iter().all(|port| port.refused.is_none()));
}

#[test]
fn an_ingress_ip_of_the_status_is_a_vip_only_where_we_allocated_it() {
    let with_status = |ip: &str| {
        web("").replace("---\n", &format!("status: {{loadBalancer: {{ingress: [{{ip: {ip}}}]}}}}\n---\n"))
    };
    assert_eq!(keys(&Both::new(&with_status("203.0.113.9")).look()), ["TCP 203.0.113.9:80"], "adopted");
    let foreign = Both::new(&with_status("192.0.2.200")).look();
    assert_eq!(foreign.services[0].vips[0].pool, "public");
    assert!(!keys(&foreign).contains(&"TCP 192.0.2.200:80".to_owned()));
}

#[test]
fn a_load_balancer_of_any_class_has_its_node_ports_too() {
    let of_class = |class: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: web, annotations: \
             {{service.beta.kubernetes.io/aws-load-balancer-internal: 'true'}}}}\nspec: {{type: LoadBalancer, \
             loadBalancerClass: {class}, ports: [{{name: http, port: 80, targetPort: 8080, nodePort: 30080}}]}}\n---\n"
        ) + &near()
    };
    let outcome = serving_node_ports(&of_class("example.com/other"), &["0.0.0.0/0"]).look();
    assert_eq!(keys(&outcome), ["TCP 10.0.0.1:30080"], "another controller assigns its address");
    assert_eq!(messages(&outcome), [] as [String; 0], "and so are its annotations");
    let outcome = serving_node_ports(&of_class("tidegate.dev/gateway"), &["0.0.0.0/0"]).look();
    assert_eq!(outcome.spec.services.len(), 2);
}

#[test]
fn node_ports_need_nat() {
    let dsr = ", annotations: {tidegate.dev/forwarding: dsr-l2}";
    let yaml = node_port("web", 30_080, dsr) + &near();
    let outcome = serving_node_ports(&yaml, &["0.0.0.0/0"]).look();
    assert!(outcome.spec.services.is_empty());
    let text = outcome.findings[0].diagnostic.to_string();
    assert!(
        text.ends_with(
            "error: node port 30080 of port http of Service default/web is not programmed: dsr-l2 keeps the \
             destination address, and only the gateway has that address; accepted: forwarding nat or fullnat"
        ),
        "{text}"
    );
    let balanced = yaml.replace("NodePort,", "LoadBalancer,").replace("8080", "80");
    let outcome = serving_node_ports(&balanced, &["0.0.0.0/0"]).look();
    assert_eq!(only(&outcome).key.port, 80);
    assert!(outcome.findings[0].diagnostic.what.starts_with("node port 30080"));
    assert_eq!(outcome.findings[0].diagnostic.severity, Severity::Warning);
    assert_eq!(outcome.services[0].ports.len(), 1, "and it is not shown as a port that is missing");
}

/// The outcome of a gateway that serves node ports, for objects of one source.
fn serving(objects: Objects) -> Outcome {
    let mut world = World::new(vec![], vec![]);
    world.settings.services.node_port_addresses = vec!["0.0.0.0/0".parse().expect("a network")];
    world.objects = objects;
    world.look()
}

/// An API server gives a node port to only one Service. The directory reports a second claim as a fault of the file;
/// for objects of an API server, this finding reports it. The served ports are the same.
#[test]
fn a_contested_node_port_belongs_to_the_service_created_first() {
    let late = ", creationTimestamp: '2026-01-02T00:00:00Z'";
    let early = ", creationTimestamp: '2026-01-01T00:00:00Z'";
    let yaml = node_port("a", 30_080, late) + &node_port("web", 30_080, early) + &near();
    let (objects, report) = load(&yaml);
    let directory = serving(objects);
    let fault = report.errors().next().expect("it is reported where the file is read");
    assert!(fault.what.contains("30080") && fault.location.is_some(), "{fault}");
    let api = serving(tidegate_source::kubernetes::testing::objects_of(&yaml));
    assert_eq!(directory.spec, api.spec);
    assert_eq!(only(&api).name, "web");
    let conflict = &api.findings[0];
    assert_eq!(conflict.reason, Reason::Conflict);
    assert_eq!(
        conflict.diagnostic.what,
        "node port 30080 of port http of Service default/a is not programmed: the port belongs to Service default/web"
    );
    let loser = api.services.iter().find(|s| s.name == "a").expect("it is shown");
    let refusal = loser.ports[0].refused.as_ref().expect("it is another's");
    assert_eq!(refusal.reason, view::RefusalReason::Conflict);
    assert_eq!(refusal.message, "another Service has this port on this address");
}

#[test]
fn a_health_check_node_port_comes_before_a_node_port_of_the_same_number() {
    let checked = "apiVersion: v1\nkind: Service\nmetadata: {name: checked, creationTimestamp: \
                   '2026-01-01T00:00:00Z'}\nspec: {type: LoadBalancer, allocateLoadBalancerNodePorts: false, \
                   externalTrafficPolicy: Local, healthCheckNodePort: 30080, ports: [{port: 80}]}\n---\n";
    let yaml = node_port("web", 30_080, "") + checked;
    let (objects, report) = load(&yaml);
    assert_eq!(report.errors().count(), 1, "{report}");
    let (directory, api) =
        (serving(objects), serving(tidegate_source::kubernetes::testing::objects_of(&yaml)));
    assert_eq!(
        (&directory.spec, &directory.health_check_node_ports),
        (&api.spec, &api.health_check_node_ports)
    );
    assert!(api.spec.services.iter().all(|s| s.name == "checked"));
    assert_eq!(api.health_check_node_ports.len(), 1);
    assert!(api.findings.iter().any(|f| f.reason == Reason::Conflict));
}

#[test]
fn a_contested_cluster_ip_belongs_to_a_pool_or_the_first_service() {
    let cluster = |name: &str, address: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{clusterIP: {address}, ports: [{{port: \
             80}}]}}\n---\n"
        )
    };
    let balanced = web("  loadBalancerIP: 203.0.113.5\n");
    let services =
        cluster("b", "10.96.0.10") + &cluster("a", "10.96.0.10") + &cluster("c", "203.0.113.5") + &balanced;
    let outcome = Both::new(&services).with(|world| world.settings.services.own_cluster_ips = true).look();
    let owners: Vec<String> =
        outcome.spec.services.iter().map(|s| format!("{} {}", s.key.vip, s.name)).collect();
    assert_eq!(owners, ["10.96.0.10 a", "203.0.113.5 web"]);
    let conflicts = outcome.findings.iter().filter(|f| f.reason == Reason::Conflict);
    assert_eq!(conflicts.map(|f| f.object.name.as_str()).collect::<Vec<_>>(), ["b", "c"]);
}

#[test]
fn an_endpoint_must_not_be_any_of_our_vips_cluster_ips_of_ours_included() {
    let yaml =
        "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.10, externalIPs: \
                [198.51.100.1], ports: [{name: http, port: 80}]}\n---\n"
            .to_owned()
            + &slice_of_web("s", "IPv4", &["addresses: [10.96.0.10]", "addresses: [10.0.1.1]"]);
    let outcome = Both::new(&yaml).with(|world| world.settings.services.own_cluster_ips = true).look();
    assert_eq!(outcome.spec.services.len(), 2);
    assert!(outcome.spec.services.iter().all(|s| states(s) == ["10.0.1.1:8080 active"]));
    assert!(outcome.findings.iter().any(|f| f.reason == Reason::EndpointRefused));
}

#[test]
fn an_endpoint_must_not_be_an_end_of_an_ipv4_network_of_the_gateway() {
    let endpoints =
        ["10.0.0.0", "10.0.255.255", "10.0.0.255", "10.0.1.0"].map(|ip| format!("addresses: [{ip}]"));
    let both = web_with("  loadBalancerIP: 203.0.113.5\n", &endpoints.each_ref().map(String::as_str));
    let outcome = both.look();
    assert_eq!(states(only(&outcome)), ["10.0.0.255:8080 active", "10.0.1.0:8080 active"]);
    let refused = |ip: &str, why: &str| {
        format!("endpoint {ip} of Service default/web is refused: {why} address of 10.0.0.0/16")
    };
    let refusals: Vec<_> = outcome.findings.iter().filter(|f| f.reason == Reason::EndpointRefused).collect();
    assert_eq!(
        refusals.iter().map(|f| f.diagnostic.what.clone()).collect::<Vec<_>>(),
        [refused("10.0.0.0", "it is the network"), refused("10.0.255.255", "it is the broadcast")]
    );
    assert!(refusals.iter().all(|f| f.diagnostic.location.is_some()), "{refusals:?}");
}

#[test]
fn the_first_address_of_an_ipv6_network_may_be_an_endpoint() {
    let yaml = web("  loadBalancerIP: '2001:db8:1::5'\n  ipFamilies: [IPv6]\n")
        + &slice_of_web("s", "IPv6", &["addresses: ['2001:db8::']"]);
    let outcome = Both::new(&yaml).look();
    assert!(
        !outcome.findings.iter().any(|f| f.reason == Reason::EndpointRefused),
        "{:?}",
        messages(&outcome)
    );
    let served = outcome.spec.services.iter().map(|s| states(s)).collect::<Vec<_>>();
    assert_eq!(served, [["[2001:db8::]:8080 active"]]);
}

#[test]
fn all_kinds_of_addresses_share_one_table_of_service_ports() {
    // An address is one VIP, however it was requested, and each of its ports belongs to one Service.
    let web = web("  loadBalancerIP: 203.0.113.5\n  externalIPs: [203.0.113.5]\n")
        .replace("  allocateLoadBalancerNodePorts: false\n", "")
        .replace("targetPort: 8080}]", "targetPort: 8080, nodePort: 30080}]");
    let other = node_port("other", 30_443, "")
        .replace("{type: NodePort,", "{type: NodePort, externalIPs: [203.0.113.5],");
    let created = |n: u8| format!(", creationTimestamp: '2026-01-0{n}T00:00:00Z'}}");
    for (first, second, owner) in [(1, 2, "web"), (2, 1, "other")] {
        let yaml = web.replace("{name: web}", &format!("{{name: web{}", created(first)))
            + &other.replace("{name: other}", &format!("{{name: other{}", created(second)));
        let both = serving_node_ports(&yaml, &["10.0.0.0/8"])
            .with(|world| world.settings.pools[0].external_ips = true);
        let outcome = both.look();
        let owners: Vec<String> =
            outcome.spec.services.iter().map(|s| format!("{} {}", s.key, s.name)).collect();
        let node_ports = ["TCP 10.0.0.1:30080 web", "TCP 10.0.0.1:30443 other"];
        assert_eq!(owners[..2], node_ports, "each has its own node port");
        assert_eq!(
            owners[2..],
            [format!("TCP 203.0.113.5:80 {owner}")],
            "the first owner keeps it, whatever kind of claim it has"
        );
        assert!(!outcome.findings.is_empty(), "and the other is reported");
    }
}
