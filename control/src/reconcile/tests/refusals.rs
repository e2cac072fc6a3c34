//! What is asked for and not done: each refusal names what, where and what would be accepted.

use super::*;

#[test]
fn sctp_is_refused_and_the_other_ports_go_on() {
    let mut web = service("web");
    web.ports.push(service_port("sig", Protocol::Sctp, 2905, 2905));
    let ports = [("http", Protocol::Tcp, 8080), ("sig", Protocol::Sctp, 2905)];
    let outcome = World::new(vec![web], vec![slice("s", "web", &ports, vec![endpoint("10.0.1.1")])]).look();
    assert_eq!(only(&outcome).port_name, "http");
    assert_eq!(
        messages(&outcome),
        [
            "error: port sig of Service default/web is not programmed: SCTP is not supported yet; accepted: TCP, UDP"
        ]
    );
}

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
        world.settings.snat_addresses.retain(IpAddr::is_ipv6);
        world.settings.tunnel_source_v4 = None;
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
