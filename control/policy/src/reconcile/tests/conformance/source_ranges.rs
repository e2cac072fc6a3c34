//! Section 3, `loadBalancerSourceRanges`: which clients they allow, on which addresses, and which ICMP errors pass.

use ipnet::IpNet;
use tidegate_model::config::OtherFamily;
use tidegate_pipeline::pipeline::FlowNote;
use tidegate_pipeline::testing::builder::Builder;
use tidegate_pipeline::testing::lab::FrameResult;
use tidegate_spec::verdict::{Refusal, TransmitReason};
use tidegate_wire::tcp::flags;

use super::packets::Gateways;
use super::*;

fn net(text: &str) -> IpNet {
    text.parse().expect("a network")
}

/// A dual-stack `web` with VIPs 203.0.113.5 and 2001:db8:1::5, external IP 198.51.100.1, node port 30080, cluster IP
/// 10.96.0.10, and endpoints of both families.
fn everywhere(ranges: &[&str]) -> Both {
    let yaml = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web, annotations: {{tidegate.dev/load-balancer-ips: \
         '203.0.113.5,2001:db8:1::5'}}}}\nspec:\n  type: LoadBalancer\n  ipFamilyPolicy: RequireDualStack\n  \
         loadBalancerSourceRanges: [{}]\n  externalIPs: [198.51.100.1]\n  clusterIP: 10.96.0.10\n  ports: [{{name: \
         http, port: 80, targetPort: 8080, nodePort: 30080}}]\n---\n",
        ranges.iter().map(|range| format!("'{range}'")).collect::<Vec<_>>().join(", ")
    ) + &slice_of_web("v4", "IPv4", &["addresses: [10.1.0.1]"])
        + &slice_of_web("v6", "IPv6", &["addresses: ['2001:db8:9::1']"]);
    Both::new(&yaml).with(|world| {
        world.settings.services.node_port_addresses = vec![net("10.0.0.0/8")];
        world.settings.services.own_cluster_ips = true;
    })
}

fn syn(gateways: &mut Gateways, from: &str, to: &str) -> FrameResult {
    let port = if from.contains(':') { format!("[{from}]:40000") } else { format!("{from}:40000") };
    gateways.send(Builder::tcp(port.as_str(), to).flags(flags::SYN))
}

fn comes_in(gateways: &mut Gateways, from: &str, to: &str) -> bool {
    let result = syn(gateways, from, to);
    if result.note.backend.is_some() {
        result.sent(TransmitReason::Forward);
        return true;
    }
    assert_eq!(result.refused(), Refusal::SourceRange);
    false
}

const VIP: &str = "203.0.113.5:80";
const VIP6: &str = "[2001:db8:1::5]:80";

/// The source ranges of the port on an address: `None` if every client is allowed.
fn ranges_on(outcome: &Outcome, vip: &str) -> Option<Vec<IpNet>> {
    let spec = outcome.spec.services.iter().find(|spec| spec.key.vip == ip(vip)).expect("it is served");
    spec.source_ranges.as_ref().map(|ranges| ranges.to_vec())
}

#[test]
fn load_balancer_source_ranges_filter_load_balancer_vips_only() {
    let both = everywhere(&["192.0.2.0/24", "2001:db8:5::/48"]);
    let outcome = both.look();
    assert_eq!(outcome.spec.services.len(), 5);
    for spec in &outcome.spec.services {
        let is_load_balancer = [ip("203.0.113.5"), ip("2001:db8:1::5")].contains(&spec.key.vip);
        assert_eq!(spec.source_ranges.is_some(), is_load_balancer, "{}", spec.key);
    }
    let mut gateways = Gateways::new(both);
    assert!(comes_in(&mut gateways, "192.0.2.7", VIP));
    assert!(comes_in(&mut gateways, "2001:db8:5::7", VIP6));
    assert!(!comes_in(&mut gateways, "198.18.0.7", VIP));
    assert!(!comes_in(&mut gateways, "2001:db8:6::7", VIP6));
    for open in ["198.51.100.1:80", "10.0.0.1:30080", "10.96.0.10:80"] {
        assert!(comes_in(&mut gateways, "198.18.0.7", open), "{open}");
    }
}

#[test]
fn entries_may_carry_white_space() {
    let outcome = everywhere(&[" 10.0.0.7/8 ", "\t192.168.1.7/32", "2001:db8:5::/48 "]).look();
    let all = vec![net("10.0.0.0/8"), net("192.168.1.7/32"), net("2001:db8:5::/48")];
    assert_eq!(ranges_on(&outcome, "203.0.113.5"), Some(all.clone()));
    assert_eq!(ranges_on(&outcome, "2001:db8:1::5"), Some(all));
}

#[test]
fn a_prefix_of_0_means_everyone_of_that_family() {
    let outcome = everywhere(&["10.0.0.0/8", "0.0.0.0/0", "2001:db8:5::/48"]).look();
    assert_eq!(ranges_on(&outcome, "203.0.113.5"), None);
    assert!(ranges_on(&outcome, "2001:db8:1::5").is_some());
    let outcome = everywhere(&["0.0.0.0/0", "::/0"]).look();
    assert_eq!((ranges_on(&outcome, "203.0.113.5"), ranges_on(&outcome, "2001:db8:1::5")), (None, None));
    assert_eq!(ranges_on(&everywhere(&[]).look(), "203.0.113.5"), None, "no ranges: everyone");
    let mut gateways = Gateways::new(everywhere(&["10.0.0.0/8", "0.0.0.0/0", "2001:db8:5::/48"]));
    assert!(comes_in(&mut gateways, "198.18.0.7", VIP) && !comes_in(&mut gateways, "2001:db8:6::7", VIP6));
}

#[test]
fn a_client_is_admitted_by_its_longest_prefix_among_thousands() {
    let many: Vec<String> = (0..4000_u32).map(|n| format!("172.{}.{}.0/28", 16 + n / 256, n % 256)).collect();
    let ranges: Vec<&str> =
        many.iter().map(String::as_str).chain(["172.20.0.0/16", "2001:db8:5::/48"]).collect();
    let mut gateways = Gateways::new(everywhere(&ranges));
    for (client, expected) in [
        ("172.16.0.15", true),
        ("172.16.0.16", false),
        ("172.20.9.200", true),
        ("172.31.159.3", true),
        ("172.31.160.3", false),
    ] {
        assert_eq!(comes_in(&mut gateways, client, VIP), expected, "{client}");
    }
}

#[test]
fn the_legacy_annotation_is_used_only_if_the_field_is_empty() {
    let legacy = "service.beta.kubernetes.io/load-balancer-source-ranges: '10.0.0.0/8, 172.16.0.0/12'";
    let with = |spec: &str| {
        let outcome = Both::new(&with_annotations(&web(spec), legacy)).look();
        only(&outcome).source_ranges.as_ref().map(|ranges| ranges.to_vec())
    };
    let of_annotation = Some(vec![net("10.0.0.0/8"), net("172.16.0.0/12")]);
    assert_eq!(with(""), of_annotation);
    assert_eq!(with("  loadBalancerSourceRanges: []\n"), of_annotation);
    assert_eq!(
        with("  loadBalancerSourceRanges: [192.0.2.0/24]\n"),
        Some(vec![net("192.0.2.0/24")]),
        "the field is written"
    );
}

#[test]
fn source_ranges_of_one_family_deny_or_allow_the_other_as_configured() {
    for (range, inside, closed_vip, outside, everyone) in [
        ("192.0.2.0/24", ("192.0.2.7", VIP), "2001:db8:1::5", ("2001:db8:6::7", VIP6), "::/0"),
        ("2001:db8:5::/48", ("2001:db8:5::7", VIP6), "203.0.113.5", ("198.18.0.7", VIP), "0.0.0.0/0"),
        ("::/0", ("2001:db8:6::7", VIP6), "203.0.113.5", ("198.18.0.7", VIP), "0.0.0.0/0"),
    ] {
        let both = everywhere(&[range]);
        let outcome = both.look();
        let kept = ranges_on(&outcome, closed_vip).expect("ranges without a client of the family");
        assert!(kept.iter().all(|range| range.addr().is_ipv4() != ip(closed_vip).is_ipv4()));
        let of_family = |outcome: &Outcome| -> Vec<Finding> {
            let findings = outcome.findings.iter();
            findings.filter(|finding| finding.reason == Reason::SourceRangesOtherFamily).cloned().collect()
        };
        let [finding] = &of_family(&outcome)[..] else { panic!("{:?}", messages(&outcome)) };
        assert_eq!(finding.diagnostic.severity, Severity::Warning);
        assert!(finding.diagnostic.accepted.as_deref().is_some_and(|a| a.contains(everyone)));
        let mut gateways = Gateways::new(both);
        assert!(comes_in(&mut gateways, inside.0, inside.1));
        assert!(!comes_in(&mut gateways, outside.0, outside.1));

        gateways.change(|world| world.settings.services.source_ranges_other_family = OtherFamily::Allow);
        assert!(comes_in(&mut gateways, outside.0, outside.1), "sourceRangesOtherFamily: allow");
        let allowing = everywhere(&[range])
            .with(|world| world.settings.services.source_ranges_other_family = OtherFamily::Allow);
        let outcome = allowing.look();
        assert_eq!((ranges_on(&outcome, closed_vip), of_family(&outcome).len()), (None, 0));
    }
}

#[test]
fn an_address_that_is_a_load_balancer_vip_and_an_external_ip_is_filtered() {
    let spec = "  loadBalancerIP: 203.0.113.5\n  externalIPs: [203.0.113.5]\n  loadBalancerSourceRanges: [192.0.2.0/24]\n";
    let both = Both::new(&web(spec)).with(|world| world.settings.pools[0].external_ips = true);
    let outcome = both.look();
    assert_eq!(only(&outcome).key.vip, ip("203.0.113.5"));
    assert_eq!(ranges_on(&outcome, "203.0.113.5"), Some(vec![net("192.0.2.0/24")]));
}

#[test]
fn external_ips_with_source_ranges_cause_a_warning() {
    let look = |spec: &str| {
        let both = Both::new(&web(spec)).with(|world| world.settings.pools[0].external_ips = true);
        let outcome = both.look();
        let warned = |finding: &&Finding| finding.reason == Reason::SourceRangesNotApplied;
        outcome.findings.iter().find(warned).map(|finding| finding.diagnostic.what.clone())
    };
    let vip = "  loadBalancerIP: 203.0.113.5\n";
    let ranges = "  loadBalancerSourceRanges: [192.0.2.0/24]\n";
    let reported = look(&format!("{vip}{ranges}  externalIPs: [203.0.113.6]\n")).expect("a warning");
    assert!(
        reported.starts_with("external IP 203.0.113.6 of Service default/web is open to all clients"),
        "{reported}"
    );
    for harmless in [
        format!("{vip}{ranges}  externalIPs: [203.0.113.5]\n"),
        format!("{vip}  externalIPs: [203.0.113.6]\n"),
        format!("{vip}{ranges}"),
        format!("{vip}{ranges}  externalIPs: [192.0.2.99]\n"),
    ] {
        assert_eq!(look(&harmless), None, "{harmless}");
    }
}

#[test]
fn if_ranges_change_every_known_flow_is_checked_again() {
    let (open, closed) = ("192.0.2.0/24", "192.0.2.128/25");
    let spec =
        |range: &str| format!("  loadBalancerIP: 203.0.113.5\n  loadBalancerSourceRanges: [{range}]\n");
    let yaml = |range: &str| web(&spec(range)) + &slice_of_web("s", "IPv4", &["addresses: [10.1.0.1]"]);
    let mut gateways = Gateways::new(Both::new(&yaml(open)));
    let ack = |client: &str| Builder::tcp(format!("{client}:40000").as_str(), VIP).flags(flags::ACK);
    for client in ["192.0.2.7", "192.0.2.200"] {
        syn(&mut gateways, client, VIP).sent(TransmitReason::Forward);
        gateways.send(ack(client)).sent(TransmitReason::Forward);
    }
    gateways.set(&yaml(closed));
    assert_eq!(gateways.send(ack("192.0.2.7")).refused(), Refusal::SourceRange);
    assert_eq!(gateways.send(ack("192.0.2.200")).note.flow, FlowNote::Known);
}

#[test]
fn icmp_errors_to_a_vip_are_checked_by_the_flow_that_they_quote() {
    // (client inside, client outside, a router outside of the ranges, VIP, type, code)
    for (inside, outside, router, vip, kind, code) in [
        ("192.0.2.7:40000", "198.18.0.7:40000", "198.18.0.1", VIP, 3, 4),
        ("[2001:db8:5::7]:40000", "[2001:db8:6::7]:40000", "2001:db8:6::1", VIP6, 2, 0),
    ] {
        let mut gateways = Gateways::new(everywhere(&["192.0.2.0/24", "2001:db8:5::/48"]));
        let result = gateways.send(Builder::tcp(inside, vip).flags(flags::SYN));
        let backend = gateways.backend_of(&result);
        let vip_ip = vip.parse::<SocketAddr>().expect("an address").ip();
        let too_big =
            |quoted: &[u8]| Builder::icmp(ip(router), vip_ip, kind, code, [0, 0, 5, 0]).payload(quoted);
        let answer = Builder::tcp(vip, inside).flags(flags::ACK).packet();
        let result = gateways.send(too_big(&answer));
        let error = super::packets::headers(result.sent(TransmitReason::IcmpError));
        assert_eq!((error.dst.ip(), error.icmp_type, error.icmp_code), (backend, kind, code));
        let stranger = Builder::tcp(vip, outside).flags(flags::ACK).packet();
        assert_eq!(gateways.send(too_big(&stranger)).refused(), Refusal::IcmpErrorUnknown);
    }
}
