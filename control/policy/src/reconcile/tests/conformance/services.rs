//! Section 1: Services, their ports and their addresses.

use tidegate_spec::{ForwardingMode, Protocol as CoreProtocol};

use super::*;

#[test]
fn protocol_defaults_to_tcp_and_target_port_to_port() {
    let both = Both::new(
        "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {type: LoadBalancer, ports: [{port: 80}], \
         allocateLoadBalancerNodePorts: false}\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: \
         {name: a, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\nports: [{port: 80}]\nendpoints: \
         [{addresses: [10.1.0.1]}]\n",
    )
    .with(|world| world.settings.services.defaults.forwarding = ForwardingMode::DsrIpip);
    let outcome = both.look();
    assert_eq!(only(&outcome).key.protocol, CoreProtocol::Tcp);
    assert_eq!(states(only(&outcome)), ["10.1.0.1:80 active"]);
}

#[test]
fn the_same_port_with_tcp_udp_and_sctp_is_legal() {
    let both = Both::new(
        "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  type: LoadBalancer\n  \
         allocateLoadBalancerNodePorts: false\n  ports:\n  - {name: t, port: 53}\n  - {name: u, port: 53, protocol: \
         UDP}\n  - {name: s, port: 53, protocol: SCTP}\n",
    );
    let outcome = both.look();
    let served: Vec<(CoreProtocol, u16)> =
        outcome.spec.services.iter().map(|s| (s.key.protocol, s.key.port)).collect();
    assert_eq!(served, [(CoreProtocol::Tcp, 53), (CoreProtocol::Udp, 53), (CoreProtocol::Sctp, 53)]);
    assert!(outcome.services[0].ports.iter().all(|port| port.refused.is_none()));
    assert_eq!(messages(&outcome), [] as [String; 0]);
}

#[test]
fn pods_of_one_service_may_give_a_target_port_name_different_numbers() {
    let slice = |name: &str, number: u16, address: &str| {
        slice_of_web(name, "IPv4", &[&format!("addresses: [{address}]")]).replace("8080", &number.to_string())
    };
    let service = web("").replace("targetPort: 8080", "targetPort: web");
    let both = Both::new(&(service + &slice("a", 8080, "10.1.0.1") + &slice("b", 9090, "10.1.0.2")));
    assert_eq!(both.backends(), ["10.1.0.1:8080 active", "10.1.0.2:9090 active"]);
}

#[test]
fn external_name_headless_and_services_of_another_proxy_are_skipped() {
    for spec in [
        "metadata: {name: web}\nspec: {type: ExternalName, externalName: example.com, externalIPs: [198.51.100.1]}",
        "metadata: {name: web}\nspec: {clusterIP: None, ports: [{port: 80}], externalIPs: [198.51.100.1]}",
        "metadata: {name: web, labels: {service.kubernetes.io/service-proxy-name: other}}\nspec: {type: \
         LoadBalancer, ports: [{port: 80}], allocateLoadBalancerNodePorts: false}",
    ] {
        let outcome = Both::new(&format!("apiVersion: v1\nkind: Service\n{spec}\n")).look();
        assert!(outcome.services.is_empty() && outcome.spec.services.is_empty(), "{spec}");
    }
}

#[test]
fn slices_with_the_label_headless_are_skipped_at_the_watch() {
    for label in ["service.kubernetes.io/headless", "service.kubernetes.io/service-proxy-name"] {
        let skipped = slice_of_web("a", "IPv4", &["addresses: [10.1.0.1]"]).replace(
            "kubernetes.io/service-name: web",
            &format!("kubernetes.io/service-name: web, {label}: ''"),
        );
        let kept = slice_of_web("b", "IPv4", &["addresses: [10.1.0.2]"]);
        let both = Both::new(&(web("") + &skipped + &kept));
        assert!([&both.directory, &both.api].iter().all(|world| world.objects.endpoint_slices.len() == 1));
        assert_eq!(both.backends(), ["10.1.0.2:8080 active"], "{label}");
    }
}

#[test]
fn vips_are_ingress_addresses_external_ips_node_ports_and_cluster_ips() {
    let both = Both::new(
        "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  type: LoadBalancer\n  clusterIP: \
         10.96.0.10\n  externalIPs: [198.51.100.1]\n  loadBalancerIP: 203.0.113.5\n  ports: [{port: 80, nodePort: \
         30080}]\n",
    );
    assert_eq!(keys(&both.look()), ["TCP 198.51.100.1:80", "TCP 203.0.113.5:80"]);
    let both = both.with(|world| {
        world.settings.services.node_port_addresses = vec!["10.0.0.0/8".parse().expect("a network")];
        world.settings.services.own_cluster_ips = true;
    });
    assert_eq!(
        keys(&both.look()),
        ["TCP 10.0.0.1:30080", "TCP 10.96.0.10:80", "TCP 198.51.100.1:80", "TCP 203.0.113.5:80"]
    );
}

#[test]
fn only_tunnel_modes_use_endpoints_of_the_other_family() {
    let v4 = || slice_of_web("v4", "IPv4", &["addresses: [10.0.1.1]"]);
    let v6 = || slice_of_web("v6", "IPv6", &["addresses: ['2001:db8::a']"]);
    for (mode, crosses) in [("dsr-ipip", true), ("nat", false), ("fullnat", false), ("dsr-l2", false)] {
        for (family, own, other, backend) in
            [("IPv4", v4(), v6(), "10.0.1.1:8080 active"), ("IPv6", v6(), v4(), "[2001:db8::a]:8080 active")]
        {
            let service = web(&format!("  ipFamilies: [{family}]\n")).replace("port: 80,", "port: 8080,");
            let service = with_annotations(&service, &format!("tidegate.dev/forwarding: {mode}"));
            assert_eq!(Both::new(&(service.clone() + &own + &other)).backends(), [backend], "{mode}");
            let outcome = Both::new(&(service + &other)).look();
            assert_eq!(states(only(&outcome)).len(), usize::from(crosses), "{mode} {family}");
            let text = outcome
                .findings
                .iter()
                .any(|f| f.diagnostic.what.contains("cannot convert between IPv4 and IPv6"));
            assert_eq!(text, !crosses, "{:?}", messages(&outcome));
        }
    }
}

#[test]
fn with_dsr_a_port_that_differs_from_its_target_port_is_not_programmed() {
    for mode in ["dsr-ipip", "dsr-l2"] {
        let service = format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: web, annotations: {{tidegate.dev/forwarding: \
             {mode}}}}}\nspec:\n  type: LoadBalancer\n  allocateLoadBalancerNodePorts: false\n  ports: [{{name: http, \
             port: 80, targetPort: 8080}}, {{name: same, port: 443}}]\n---\n"
        );
        let slice = slice_of_web("s", "IPv4", &["addresses: [10.0.1.1]"])
            .replace("port: 8080}]", "port: 8080}, {name: same, protocol: TCP, port: 443}]");
        let outcome = Both::new(&(service.clone() + &slice)).look();
        assert_eq!(only(&outcome).port_name, "same");
        assert_eq!(states(only(&outcome)), ["10.0.1.1:443 active"]);
        let finding = &outcome.findings[0];
        assert_eq!((finding.reason, finding.object.name.as_str()), (Reason::PortNotProgrammed, "web"));
        assert_eq!(
            finding.diagnostic.what,
            format!(
                "port http of Service default/web is not programmed: {mode} keeps the destination port 80, but the \
                 target port is 8080"
            )
        );
        let accepted = "targetPort 80, or forwarding nat or fullnat";
        assert_eq!(finding.diagnostic.accepted.as_deref(), Some(accepted));
        assert!(outcome.services[0].ports[0].refused.is_some(), "it is shown as well");
        let before = Both::new(&service).look();
        assert_eq!(messages(&before).len(), 1, "it is reported before there is an endpoint");
    }
}

#[test]
fn services_without_a_selector_get_their_endpoints_from_the_user() {
    assert_eq!(web_with("", &["addresses: [192.168.77.1]"]).backends(), ["192.168.77.1:8080 active"]);
}
