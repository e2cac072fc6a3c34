//! Tests of manifests: the defaults and refusals of an API server, each fault with its location.

mod gateway_api;
mod stored;

use std::time::Duration;

use tidegate_model::diagnostic::Report;
use tidegate_model::objects::{
    AddressType, IpFamily, IpFamilyPolicy, Protocol, Service, ServiceType, TargetPort, TrafficPolicy,
};

use super::*;

fn read(text: &str) -> (Vec<Object>, Report) {
    let sheet = Sheet::new("f.yaml");
    let mut objects = Vec::new();
    for document in sheet.documents(text) {
        objects.extend(decode(&sheet, &document, Kinds::default()).objects);
    }
    (objects, sheet.into_report())
}

fn one(text: &str) -> Object {
    let (mut objects, report) = read(text);
    assert!(report.is_empty(), "{report}");
    assert_eq!(objects.len(), 1, "{text}");
    objects.remove(0)
}

fn service(text: &str) -> Arc<Service> {
    match one(text) {
        Object::Service(service) => service,
        other => panic!("{other:?}"),
    }
}

/// 4 lines; keys of `spec` can follow.
const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n";

#[test]
fn a_minimal_service_gets_the_defaults_of_an_api_server() {
    let service = service(&format!("{SERVICE}  ports: [{{port: 80}}]\n"));
    assert_eq!(service.meta.key.to_string(), "default/web");
    assert_eq!(service.meta.uid, "service/default/web");
    assert_eq!(service.service_type, ServiceType::ClusterIp);
    let port = &service.ports[0];
    assert_eq!((port.name.as_str(), port.protocol, port.port.get()), ("", Protocol::Tcp, 80));
    assert_eq!(port.target_port, TargetPort::Number(port.port));
    assert_eq!(service.session_affinity, None);
    assert_eq!(service.external_traffic_policy, TrafficPolicy::Cluster);
    assert_eq!(service.internal_traffic_policy, TrafficPolicy::Cluster);
    assert!(service.allocate_node_ports && !service.publish_not_ready_addresses && !service.headless);
    assert_eq!(service.ip_family_policy, IpFamilyPolicy::SingleStack);
}

#[test]
fn an_empty_type_protocol_or_affinity_is_the_default_as_for_an_api_server() {
    let service = service(&format!(
        "{SERVICE}  type: ''\n  sessionAffinity: ''\n  ports: [{{port: 80, protocol: ''}}]\n"
    ));
    assert_eq!((service.service_type, service.session_affinity), (ServiceType::ClusterIp, None));
    assert_eq!(service.ports[0].protocol, Protocol::Tcp);
    let Object::Pod(pod) = one(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{ports: [{containerPort: 1, protocol: ''}]}]}\n",
    ) else {
        panic!("not a Pod")
    };
    assert_eq!(pod.container_ports[0].protocol, Protocol::Tcp);
    let Object::Endpoints(endpoints) = one(
        "apiVersion: v1\nkind: Endpoints\nmetadata: {name: a}\nsubsets: [{ports: [{port: 1, protocol: ''}]}]\n",
    ) else {
        panic!("not Endpoints")
    };
    assert_eq!(endpoints.subsets[0].ports[0].protocol, Protocol::Tcp);
}

#[test]
fn every_field_of_a_service_arrives() {
    let text = r#"
apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
  uid: 0c6b9c9e
  creationTimestamp: 2026-01-01T00:00:00Z
  labels: {app.kubernetes.io/name: web, empty: ""}
  annotations: {tidegate.dev/forwarding: nat}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, "fd00::10"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
  externalIPs: [203.0.113.5]
  loadBalancerIP: 203.0.113.6
  loadBalancerClass: tidegate.dev/gateway
  allocateLoadBalancerNodePorts: false
  loadBalancerSourceRanges: [" 198.51.100.7/24 ", "2001:db8::/32"]
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}
  externalTrafficPolicy: Local
  internalTrafficPolicy: Local
  healthCheckNodePort: 30100
  publishNotReadyAddresses: yes
  selector: {app: web}
  ports:
  - {name: http, port: 80, targetPort: http, nodePort: 30080, appProtocol: kubernetes.io/h2c}
  - {name: dns, port: 53, protocol: UDP}
  - {name: dns-tcp, port: 53, protocol: TCP, targetPort: 5353}
  - {name: sctp, port: 53, protocol: SCTP}
status: {loadBalancer: {ingress: [{ip: 203.0.113.6, ipMode: VIP}]}, conditions: []}
"#;
    let service = service(text);
    assert_eq!(service.meta.key.to_string(), "shop/web");
    assert_eq!(service.meta.uid, "0c6b9c9e");
    assert_eq!(service.meta.creation_time.map(jiff::Timestamp::as_second), Some(1_767_225_600));
    assert_eq!(service.meta.labels.len(), 2);
    assert_eq!(service.service_type, ServiceType::LoadBalancer);
    assert_eq!(service.cluster_ips.len(), 2);
    assert_eq!(service.ip_families, [IpFamily::V4, IpFamily::V6]);
    assert_eq!(service.ip_family_policy, IpFamilyPolicy::RequireDualStack);
    assert_eq!(service.external_ips[0].to_string(), "203.0.113.5");
    assert_eq!(service.load_balancer_ip.map(|ip| ip.to_string()).as_deref(), Some("203.0.113.6"));
    assert_eq!(service.load_balancer_class.as_deref(), Some("tidegate.dev/gateway"));
    assert!(!service.allocate_node_ports && service.publish_not_ready_addresses);
    let ranges: Vec<String> = service.source_ranges.iter().map(ToString::to_string).collect();
    assert_eq!(ranges, ["198.51.100.0/24", "2001:db8::/32"]);
    assert_eq!(service.session_affinity, Some(Duration::from_secs(60)));
    assert_eq!(service.external_traffic_policy, TrafficPolicy::Local);
    assert_eq!(service.internal_traffic_policy, TrafficPolicy::Local);
    assert_eq!(service.health_check_node_port.map(u16::from), Some(30100));
    assert_eq!(service.ports[0].target_port, TargetPort::Name("http".into()));
    assert_eq!(service.ports[0].node_port.map(u16::from), Some(30080));
    assert_eq!(service.ports[0].app_protocol.as_deref(), Some("kubernetes.io/h2c"));
    assert_eq!(service.ports[3].protocol, Protocol::Sctp);
    assert_eq!(service.ingress_ips.len(), 1);
    let place = service.meta.origin.field("spec.ports[2].protocol").expect("read from a file");
    assert_eq!(place.to_string(), "f.yaml:32:41");
}

#[test]
fn affinity_without_a_timeout_lasts_three_hours() {
    let service = service(&format!("{SERVICE}  ports: [{{port: 80}}]\n  sessionAffinity: ClientIP\n"));
    assert_eq!(service.session_affinity, Some(Duration::from_secs(10_800)));
}

#[test]
fn the_configuration_of_a_disabled_affinity_is_ignored_with_a_warning() {
    for affinity in ["", "  sessionAffinity: None\n"] {
        let config = "  sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}\n";
        let (objects, report) = read(&format!("{SERVICE}  ports: [{{port: 80}}]\n{affinity}{config}"));
        let [Object::Service(service)] = &*objects else { panic!("{report}") };
        assert_eq!((service.session_affinity, report.has_errors(), report.len()), (None, false, 1));
        let text = "warning: spec.sessionAffinityConfig: has no effect without sessionAffinity: ClientIP";
        assert!(report.to_string().contains(text), "{report}");
    }
}

#[test]
fn the_legacy_source_range_annotation_is_used_if_the_field_is_empty() {
    let head = "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n  annotations: {service.beta.kubernetes.io/load-balancer-source-ranges: '10.0.0.0/8, 192.0.2.0/24'}\nspec:\n  type: LoadBalancer\n  ports: [{port: 80}]\n";
    assert_eq!(service(head).source_ranges.len(), 2);
    let both = format!("{head}  loadBalancerSourceRanges: [198.51.100.0/24]\n");
    assert_eq!(service(&both).source_ranges, ["198.51.100.0/24".parse().unwrap()]);
    let (objects, report) = read(&head.replace("192.0.2.0/24", "192.0.2.0/33"));
    assert!(objects.is_empty(), "an invalid range must not admit all clients");
    let report = report.to_string();
    assert!(report.starts_with("f.yaml:5:73: error: metadata.annotations[service.beta.kubernetes.io/load-balancer-source-ranges]: \" 192.0.2.0/33\" is not accepted; accepted: a CIDR"), "{report}");
}

#[test]
fn headless_and_external_name_services_need_no_port() {
    assert!(service(&format!("{SERVICE}  clusterIP: None\n")).headless);
    let external = service(&format!("{SERVICE}  type: ExternalName\n  externalName: example.com\n"));
    assert_eq!(external.service_type, ServiceType::ExternalName);
}

#[test]
fn two_families_without_a_policy_mean_require_dual_stack() {
    let service = service(&format!("{SERVICE}  ports: [{{port: 80}}]\n  ipFamilies: [IPv6, IPv4]\n"));
    assert_eq!(service.ip_family_policy, IpFamilyPolicy::RequireDualStack);
}

/// (the text after the 4 lines of the head, the one expected error without its file)
const SERVICE_FAULTS: &[(&str, &str)] = &[
    (
        "  type: Loadbalancer\n  ports: [{port: 80}]",
        "5:9: error: spec.type: the text \"Loadbalancer\" is not accepted; accepted: ClusterIP, NodePort, LoadBalancer, ExternalName",
    ),
    ("  type: ClusterIP", "5:3: error: spec.ports: the list is empty; accepted: at least one port"),
    ("  ports: 80", "5:10: error: spec.ports: the number 80 is not accepted; accepted: a list"),
    (
        "  ports: [{name: a}]",
        "5:11: error: spec.ports[0].port is missing; accepted: a port number from 1 to 65535",
    ),
    (
        "  ports: [{port: 0}]",
        "5:18: error: spec.ports[0].port: the number 0 is not accepted; accepted: a whole number from 1 to 65535",
    ),
    (
        "  ports: [{port: 65536}]",
        "5:18: error: spec.ports[0].port: the number 65536 is not accepted; accepted: a whole number from 1 to 65535",
    ),
    (
        "  ports: [{port: '80'}]",
        "5:18: error: spec.ports[0].port: the text \"80\" is not accepted; accepted: a whole number from 1 to 65535",
    ),
    (
        "  ports: [{port: 80, protocol: tcp}]",
        "5:32: error: spec.ports[0].protocol: the text \"tcp\" is not accepted; accepted: TCP, UDP, SCTP",
    ),
    (
        "  ports: [{port: 80, name: HTTP}]",
        "5:28: error: spec.ports[0].name: the text \"HTTP\" is not accepted; accepted: a name of at most 63 characters \
         of a-z, 0-9 and -, alphanumeric at both ends",
    ),
    (
        "  ports: [{port: 80, name: a}, {port: 81}]",
        "5:32: error: spec.ports[1]: name is missing; accepted: a name for each port if there are several",
    ),
    (
        "  ports: [{port: 80, name: a}, {port: 81, name: a}]",
        "5:49: error: spec.ports[1].name: the name a is already used by spec.ports[0]; accepted: a different name for each port",
    ),
    (
        "  ports: [{port: 80, name: a}, {port: 80, name: b}]",
        "5:39: error: spec.ports[1].port: 80/TCP is already used by spec.ports[0]; accepted: each port and protocol once",
    ),
    (
        "  ports: [{port: 80, targetPort: 65536}]",
        "5:34: error: spec.ports[0].targetPort: the number 65536 is not accepted; accepted: a whole number from 0 to 65535",
    ),
    (
        "  ports: [{port: 80, targetPort: a-name-much-too-long}]",
        "5:34: error: spec.ports[0].targetPort: the text \"a-name-much-too-long\" is not accepted; accepted: a port \
         number, or a name of at most 15 characters of a-z, 0-9 and -, with at least one letter",
    ),
    (
        "  ports: [{port: 80, targetPort: '8080'}]",
        "5:34: error: spec.ports[0].targetPort: the text \"8080\" is not accepted; accepted: a port number, or a name \
         of at most 15 characters of a-z, 0-9 and -, with at least one letter",
    ),
    (
        "  ports: [{port: 80, nodePort: 30000}]",
        "5:32: error: spec.ports[0].nodePort: not allowed with type ClusterIP; accepted: no nodePort",
    ),
    (
        "  type: NodePort\n  ports: [{port: 80, name: a, nodePort: 30000}, {port: 81, name: b, nodePort: 30000}]",
        "6:79: error: spec.ports[1].nodePort: 30000 is already used at spec.ports[0]; accepted: each nodePort and protocol once",
    ),
    (
        "  ports: [{port: 80, appProtocol: a b}]",
        "5:35: error: spec.ports[0].appProtocol: the text \"a b\" is not accepted; accepted: a name such as http or example.com/proto",
    ),
    (
        "  ports: [{port: 80}]\n  selector: {app: 1}",
        "6:19: error: spec.selector[app]: the number 1 is not accepted; accepted: text in quotes: \"1\"",
    ),
    (
        "  ports: [{port: 80}]\n  selector: {app: -a}",
        "6:14: error: spec.selector[app]: \"-a\" is not a valid label value; accepted: at most 63 letters, digits, -, _ and ., alphanumeric at both ends",
    ),
    (
        "  ports: [{port: 80}]\n  externalIPs: [127.0.0.1]",
        "6:17: error: spec.externalIPs[0]: 127.0.0.1 is loopback; accepted: a unicast address of a pool",
    ),
    (
        "  ports: [{port: 80}]\n  externalIPs: ['fe80::1']",
        "6:17: error: spec.externalIPs[0]: fe80::1 is link-local; accepted: a unicast address of a pool",
    ),
    (
        "  ports: [{port: 80}]\n  externalIPs: [224.0.0.5]",
        "6:17: error: spec.externalIPs[0]: 224.0.0.5 is multicast; accepted: a unicast address of a pool",
    ),
    (
        "  ports: [{port: 80}]\n  externalIPs: [0.0.0.0]",
        "6:17: error: spec.externalIPs[0]: 0.0.0.0 is unspecified; accepted: a unicast address of a pool",
    ),
    (
        "  ports: [{port: 80}]\n  externalIPs: [255.255.255.255]",
        "6:17: error: spec.externalIPs[0]: 255.255.255.255 is the broadcast address; accepted: a unicast address of a pool",
    ),
    (
        "  ports: [{port: 80}]\n  externalIPs: ['::ffff:203.0.113.5']",
        "6:17: error: spec.externalIPs[0]: ::ffff:203.0.113.5 is an IPv4-mapped IPv6 address; accepted: 203.0.113.5",
    ),
    (
        "  ports: [{port: 80}]\n  externalIPs: [203.0.113.005]",
        "6:17: error: spec.externalIPs[0]: the text \"203.0.113.005\" is not accepted; accepted: an IPv4 or IPv6 address",
    ),
    (
        "  ports: [{port: 80}]\n  trafficDistribution: PreferNear",
        "6:24: error: spec.trafficDistribution: the text \"PreferNear\" is not accepted; accepted: PreferClose, PreferSameZone, PreferSameNode",
    ),
    (
        "  type: LoadBalancer\n  externalTrafficPolicy: Local\n  ports: [{port: 80, nodePort: 30080}]\n  healthCheckNodePort: 30080",
        "8:24: error: spec.healthCheckNodePort: 30080 is already spec.ports[0].nodePort; accepted: a port that is not a nodePort; or omit the field",
    ),
    (
        "  ports: [{port: 80}]\n  externalIPs: [web.example]",
        "6:17: error: spec.externalIPs[0]: the text \"web.example\" is not accepted; accepted: an IPv4 or IPv6 address",
    ),
    (
        "  ports: [{port: 80}]\n  clusterIP: nope",
        "6:14: error: spec.clusterIP: the text \"nope\" is not accepted; accepted: an IPv4 or IPv6 address, or None",
    ),
    (
        "  ports: [{port: 80}]\n  clusterIP: 10.0.0.1\n  clusterIPs: [10.0.0.2]",
        "7:16: error: spec.clusterIPs[0]: differs from spec.clusterIP; accepted: the same address in clusterIP and clusterIPs[0]",
    ),
    (
        "  ports: [{port: 80}]\n  clusterIP: 10.0.0.1\n  clusterIPs: [10.0.0.1, 10.0.0.2]",
        "7:26: error: spec.clusterIPs[1]: a second cluster IP of the same family; accepted: one address of each family",
    ),
    (
        "  ports: [{port: 80}]\n  clusterIPs: [10.0.0.1]",
        "6:16: error: spec.clusterIPs[0]: spec.clusterIP is missing; accepted: the same address in clusterIP and clusterIPs[0]; or omit clusterIPs",
    ),
    (
        "  type: ExternalName",
        "5:3: error: spec.externalName is missing; accepted: a DNS name such as db.example.com",
    ),
    (
        "  type: ExternalName\n  externalName: ''",
        "6:17: error: spec.externalName: the text \"\" is not accepted; accepted: a DNS name such as db.example.com",
    ),
    (
        "  type: ExternalName\n  externalName: db.example.com.\n  clusterIP: 10.0.0.1",
        "7:14: error: spec.clusterIP: not allowed with type ExternalName; accepted: no cluster IP",
    ),
    (
        "  ports: [{port: 80}]\n  type: LoadBalancer\n  clusterIP: None",
        "7:14: error: spec.clusterIP: None is not allowed with type LoadBalancer; accepted: an address; or omit the field",
    ),
    (
        "  ports: [{port: 80}]\n  ipFamilies: [IPv5]",
        "6:16: error: spec.ipFamilies[0]: the text \"IPv5\" is not accepted; accepted: IPv4, IPv6",
    ),
    (
        "  ports: [{port: 80}]\n  ipFamilies: [IPv4, IPv4]",
        "6:22: error: spec.ipFamilies[1]: IPv4 is listed twice; accepted: each family once",
    ),
    (
        "  ports: [{port: 80}]\n  clusterIP: 10.0.0.1\n  ipFamilies: [IPv6]",
        "7:16: error: spec.ipFamilies[0]: IPv6 is not the family of the cluster IP 10.0.0.1; accepted: families in the same order as clusterIPs",
    ),
    (
        "  ports: [{port: 80}]\n  ipFamilies: [IPv4, IPv6]\n  ipFamilyPolicy: SingleStack",
        "7:19: error: spec.ipFamilyPolicy: SingleStack with two families; accepted: PreferDualStack or RequireDualStack, or one family",
    ),
    (
        "  ports: [{port: 80}]\n  ipFamilyPolicy: DualStack",
        "6:19: error: spec.ipFamilyPolicy: the text \"DualStack\" is not accepted; accepted: SingleStack, PreferDualStack, RequireDualStack",
    ),
    (
        "  ports: [{port: 80}]\n  loadBalancerIP: 1.2.3",
        "6:19: error: spec.loadBalancerIP: the text \"1.2.3\" is not accepted; accepted: an IPv4 or IPv6 address",
    ),
    (
        "  ports: [{port: 80}]\n  loadBalancerClass: tidegate.dev/gateway",
        "6:22: error: spec.loadBalancerClass: valid only with type LoadBalancer; accepted: type: LoadBalancer; or omit the field",
    ),
    (
        "  ports: [{port: 80}]\n  allocateLoadBalancerNodePorts: false",
        "6:34: error: spec.allocateLoadBalancerNodePorts: valid only with type LoadBalancer; accepted: type: LoadBalancer; or omit the field",
    ),
    (
        "  ports: [{port: 80}]\n  loadBalancerSourceRanges: [10.0.0.0/8]",
        "6:29: error: spec.loadBalancerSourceRanges: valid only with type LoadBalancer; accepted: type: LoadBalancer; or omit the field",
    ),
    (
        "  ports: [{port: 80}]\n  type: LoadBalancer\n  loadBalancerSourceRanges: [10.0.0.0]",
        "7:30: error: spec.loadBalancerSourceRanges[0]: the text \"10.0.0.0\" is not accepted; accepted: a CIDR such as 192.0.2.0/24 or 2001:db8::/64",
    ),
    (
        "  ports: [{port: 80}]\n  type: LoadBalancer\n  loadBalancerSourceRanges: ['::ffff:10.0.0.0/104']",
        "7:30: error: spec.loadBalancerSourceRanges[0]: the text \"::ffff:10.0.0.0/104\" is not accepted; accepted: a CIDR such as 192.0.2.0/24 or 2001:db8::/64",
    ),
    (
        "  ports: [{port: 80}]\n  sessionAffinity: clientip",
        "6:20: error: spec.sessionAffinity: the text \"clientip\" is not accepted; accepted: None, ClientIP",
    ),
    (
        "  ports: [{port: 80}]\n  sessionAffinity: ClientIP\n  sessionAffinityConfig: {clientIP: {timeoutSeconds: 86401}}",
        "7:54: error: spec.sessionAffinityConfig.clientIP.timeoutSeconds: the number 86401 is not accepted; accepted: a whole number from 1 to 86400",
    ),
    (
        "  ports: [{port: 80}]\n  externalTrafficPolicy: Local",
        "6:26: error: spec.externalTrafficPolicy: not allowed with type ClusterIP without externalIPs; accepted: type: LoadBalancer or NodePort, or externalIPs; or omit the field",
    ),
    (
        "  ports: [{port: 80}]\n  type: LoadBalancer\n  externalTrafficPolicy: local",
        "7:26: error: spec.externalTrafficPolicy: the text \"local\" is not accepted; accepted: Cluster, Local",
    ),
    (
        "  ports: [{port: 80}]\n  internalTrafficPolicy: Node",
        "6:26: error: spec.internalTrafficPolicy: the text \"Node\" is not accepted; accepted: Cluster, Local",
    ),
    (
        "  ports: [{port: 80}]\n  type: LoadBalancer\n  healthCheckNodePort: 30100",
        "7:24: error: spec.healthCheckNodePort: valid only with type LoadBalancer and externalTrafficPolicy Local; accepted: type: LoadBalancer with externalTrafficPolicy: Local; or omit the field",
    ),
    (
        "  ports: [{port: 80}]\n  publishNotReadyAddresses: 1",
        "6:29: error: spec.publishNotReadyAddresses: the number 1 is not accepted; accepted: true or false",
    ),
    (
        "  ports: [{port: 80}]\nstatus: {loadBalancer: {ingress: [{ip: x}]}}",
        "6:40: error: status.loadBalancer.ingress[0].ip: the text \"x\" is not accepted; accepted: an IPv4 or IPv6 address",
    ),
];

/// (a whole document, the one expected error without its file)
const OTHER_FAULTS: &[(&str, &str)] = &[
    (
        "apiVersion: v1\nmetadata: {name: a}",
        "1:1: error: kind is missing; accepted: Service, EndpointSlice, Endpoints, Pod, Namespace, Node, AddressPool, ServiceCIDR, GatewayClass, Gateway, ListenerSet, TCPRoute, UDPRoute, ReferenceGrant",
    ),
    (
        "kind: Service\nmetadata: {name: a}\nspec: {clusterIP: None}",
        "1:1: error: apiVersion is missing; accepted: v1",
    ),
    (
        "apiVersion: v2\nkind: Service\nmetadata: {name: a}\nspec: {clusterIP: None}",
        "1:13: error: apiVersion: the text \"v2\" is not accepted; accepted: v1",
    ),
    (
        "apiVersion: v1\nkind: EndpointSlice\nmetadata: {name: a, labels: {kubernetes.io/service-name: a}}\naddressType: IPv4",
        "1:13: error: apiVersion: the text \"v1\" is not accepted; accepted: discovery.k8s.io/v1",
    ),
    (
        "apiVersion: v1\nkind: Service\nspec: {clusterIP: None}",
        "1:1: error: metadata is missing; accepted: metadata with a name",
    ),
    (
        "apiVersion: v1\nkind: Service\nmetadata: {}\nspec: {clusterIP: None}",
        "3:11: error: metadata.name is missing; accepted: a name of at most 63 characters of a-z, 0-9 and -, \
         alphanumeric at both ends (RFC 1123)",
    ),
    (
        "apiVersion: v1\nkind: Service\nmetadata: {name: web-}\nspec: {clusterIP: None}",
        "3:18: error: metadata.name: the text \"web-\" is not accepted; accepted: a name of at most 63 characters of \
         a-z, 0-9 and -, alphanumeric at both ends (RFC 1123)",
    ),
    (
        "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: A}\nspec: {clusterIP: None}",
        "3:34: error: metadata.namespace: the text \"A\" is not accepted; accepted: a name of at most 63 characters of \
         a-z, 0-9 and -, alphanumeric at both ends (RFC 1123)",
    ),
    (
        "apiVersion: v1\nkind: Service\nmetadata: {name: web, labels: {a: yes}}\nspec: {clusterIP: None}",
        "3:35: error: metadata.labels[a]: the boolean true (written yes) is not accepted; accepted: text in quotes: \"yes\"",
    ),
    (
        "apiVersion: v1\nkind: Service\nmetadata: {name: web, annotations: {/a: b}}\nspec: {clusterIP: None}",
        "3:37: error: metadata.annotations[/a]: \"/a\" is not a valid key; accepted: a name of at most 63 letters, digits, -, _ and ., with an optional DNS prefix and /",
    ),
    (
        "apiVersion: v1\nkind: Service\nmetadata: {name: web, creationTimestamp: yesterday}\nspec: {clusterIP: None}",
        "3:42: error: metadata.creationTimestamp: the text \"yesterday\" is not accepted; accepted: a time such as 2026-01-31T12:00:00Z",
    ),
    (
        "apiVersion: v1\nkind: Service\nmetadata: {name: web}",
        "1:1: error: spec is missing; accepted: spec with ports",
    ),
    (
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n  annotations: {service.beta.kubernetes.io/load-balancer-source-ranges: 10.0.0.0/8}\nspec: {ports: [{port: 80}]}",
        "5:73: error: metadata.annotations[service.beta.kubernetes.io/load-balancer-source-ranges]: valid only with type LoadBalancer; accepted: type: LoadBalancer; or omit the annotation",
    ),
    (
        "apiVersion: v1\nkind: Node\nmetadata: {name: n1, namespace: x}",
        "3:33: error: metadata.namespace: Node is cluster-scoped; accepted: no namespace",
    ),
    (
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a, labels: {kubernetes.io/service-name: a}}",
        "1:1: error: addressType is missing; accepted: IPv4, IPv6, FQDN",
    ),
    (
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a, labels: {kubernetes.io/service-name: a}}\naddressType: IPv4\nendpoints: [{addresses: ['::1']}]",
        "5:26: error: endpoints[0].addresses[0]: ::1 is IPv6, but addressType is IPv4; accepted: an IPv4 address",
    ),
    (
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a, labels: {kubernetes.io/service-name: a}}\naddressType: IPv6\nendpoints: [{addresses: ['::ffff:10.0.0.1']}]",
        "5:26: error: endpoints[0].addresses[0]: ::ffff:10.0.0.1 is an IPv4-mapped IPv6 address; accepted: 10.0.0.1",
    ),
    (
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a, labels: {kubernetes.io/service-name: a}}\naddressType: IPv4\nports: [{port: 65536}]",
        "5:16: error: ports[0].port: the number 65536 is not accepted; accepted: a whole number from 0 to 65535",
    ),
    (
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a, labels: {kubernetes.io/service-name: a}}\naddressType: IPv6\nendpoints: [{addresses: []}]",
        "5:25: error: endpoints[0].addresses: 0 addresses; accepted: 1 to 100 addresses",
    ),
    (
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a, labels: {kubernetes.io/service-name: a}}\naddressType: IPv4\nendpoints: [{}]",
        "5:13: error: endpoints[0].addresses is missing; accepted: 1 to 100 addresses",
    ),
    (
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a, labels: {kubernetes.io/service-name: a}}\naddressType: IPv4\nendpoints: [{addresses: [10.0.0.1], conditions: {ready: \"true\"}}]",
        "5:57: error: endpoints[0].conditions.ready: the text \"true\" is not accepted; accepted: true or false",
    ),
    (
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a, labels: {kubernetes.io/service-name: a}}\naddressType: IPv4\nports: [{name: a, port: 1}, {name: a, port: 2}]",
        "5:29: error: ports[1]: the name \"a\" is already used by ports[0]; accepted: a different name for each port",
    ),
    (
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a, labels: {kubernetes.io/service-name: a}}\naddressType: IPv4\nports: [{protocol: ICMP}]",
        "5:20: error: ports[0].protocol: the text \"ICMP\" is not accepted; accepted: TCP, UDP, SCTP",
    ),
    (
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a, labels: {kubernetes.io/service-name: a}}\naddressType: IPv4\nports: [{protocol: ''}]",
        "5:20: error: ports[0].protocol: the text \"\" is not accepted; accepted: TCP, UDP, SCTP",
    ),
    (
        "apiVersion: v1\nkind: Endpoints\nmetadata: {name: a}\nsubsets: [{addresses: [{ip: a}]}]",
        "4:29: error: subsets[0].addresses[0].ip: the text \"a\" is not accepted; accepted: an IPv4 or IPv6 address",
    ),
    (
        "apiVersion: v1\nkind: Endpoints\nmetadata: {name: a}\nsubsets: [{notReadyAddresses: [{}]}]",
        "4:32: error: subsets[0].notReadyAddresses[0].ip is missing; accepted: an IPv4 or IPv6 address",
    ),
    (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nstatus: {podIP: a}",
        "4:17: error: status.podIP: the text \"a\" is not accepted; accepted: an IPv4 or IPv6 address",
    ),
    (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{ports: [{name: http}]}]}",
        "4:30: error: spec.containers[0].ports[0].containerPort is missing; accepted: a port number from 1 to 65535",
    ),
];

#[test]
fn each_fault_has_a_location_and_what_is_accepted() {
    let services = SERVICE_FAULTS.iter().map(|(rest, expected)| (format!("{SERVICE}{rest}\n"), expected));
    let others = OTHER_FAULTS.iter().map(|(text, expected)| (format!("{text}\n"), expected));
    let mut wrong = String::new();
    for (text, expected) in services.chain(others) {
        let (objects, report) = read(&text);
        let errors: Vec<String> = report.iter().map(ToString::to_string).collect();
        let is_left_out = match &*objects {
            [Object::EndpointSlice(slice)] => {
                let used = slice.endpoints.iter().any(|endpoint| endpoint.address.is_some());
                !used && slice.ports.len() < 2 && slice.meta.faults.len() == 1
            }
            [Object::Endpoints(endpoints)] => endpoints
                .subsets
                .iter()
                .all(|s| s.addresses.is_empty() && s.not_ready_addresses.is_empty() && s.ports.len() < 2),
            others => others.is_empty(),
        };
        if errors != [format!("f.yaml:{expected}")] || !is_left_out {
            wrong.push_str(&format!(
                "{text}  want {expected}\n   got {errors:#?} and {} objects\n",
                objects.len()
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn a_fault_in_metadata_or_type_does_not_hide_those_of_the_spec() {
    let (_, report) =
        read("apiVersion: v1\nkind: Service\nmetadata: {name: A}\nspec: {type: X, ports: [{port: 0}]}\n");
    let columns: Vec<_> =
        report.iter().filter_map(|d| d.location.as_ref()).map(|l| (l.line, l.column)).collect();
    assert_eq!(columns, [(3, 18), (4, 14), (4, 32)]);
}

#[test]
fn unknown_fields_are_warnings_and_the_object_stays() {
    let (objects, report) =
        read(&format!("{SERVICE}  ports: [{{port: 80, targetport: 8080}}]\n  typ: NodePort\n"));
    assert_eq!(objects.len(), 1);
    let lines: Vec<String> = report.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "f.yaml:5:22: warning: unknown key \"targetport\" in spec.ports[0]; accepted: targetPort",
            "f.yaml:6:3: warning: unknown key \"typ\" in spec; accepted: type",
        ]
    );
}

#[test]
fn a_misspelled_kind_of_ours_is_an_error_except_in_another_group() {
    for (kind, version, meant) in [
        ("Servce", "v1", Some("Service")),
        ("service", "v1", Some("Service")),
        ("Endpoint", "v1", Some("Endpoints")),
        ("EndpointSlices", "discovery.k8s.io/v1", Some("EndpointSlice")),
        ("AdressPool", "tidegate.dev/v1alpha1", Some("AddressPool")),
        ("Job", "batch/v1", None),
        ("Role", "rbac.authorization.k8s.io/v1", None),
        ("ServiceAccount", "v1", None),
        ("Secret", "v1", None),
        ("Service", "serving.knative.dev/v1", None),
    ] {
        let (objects, report) =
            read(&format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: d}}\nspec: {{x: [1]}}\n"));
        assert!(objects.is_empty(), "{kind}");
        assert_eq!(report.has_errors(), meant.is_some(), "{report}");
        assert_eq!(report.len(), 1, "{report}");
        if let Some(meant) = meant {
            assert!(
                report
                    .to_string()
                    .contains(&format!("kind {kind} is not known; the nearest known kind is {meant}")),
                "{report}"
            );
        }
    }
}

#[test]
fn other_kinds_are_warned_about_by_name() {
    let (objects, report) =
        read("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {anything: [1]}\n");
    assert!(objects.is_empty() && !report.has_errors());
    assert_eq!(
        report.to_string(),
        "f.yaml:1:1: warning: the gateway does not read kind Deployment; accepted: Service, EndpointSlice, Endpoints, Pod, Namespace, Node, AddressPool, ServiceCIDR, GatewayClass, Gateway, ListenerSet, TCPRoute, UDPRoute, ReferenceGrant\n"
    );
}

#[test]
fn lists_return_their_items_each_with_its_own_paths() {
    let text = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: {name: a}\n  spec: {ports: [{port: 80}]}\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: p}\n- apiVersion: v1\n  kind: Service\n  metadata: {name: b}\n  spec: {ports: [{port: 0}]}\n";
    let (objects, report) = read(text);
    let kinds: Vec<_> = objects.iter().map(Object::kind).collect();
    assert_eq!(kinds, ["Service", "Pod"]);
    assert!(report.to_string().starts_with("f.yaml:14:25: error: spec.ports[0].port:"), "{report}");
    let place = objects[0].meta().origin.field("spec.ports[0].port").expect("read from a file");
    assert_eq!((place.line, place.column), (7, 25));
    let typed =
        "apiVersion: v1\nkind: ServiceList\nitems: [{metadata: {name: a}, spec: {ports: [{port: 80}]}}]\n";
    assert_eq!(one(typed).kind(), "Service");
}

#[test]
fn slices_endpoints_and_pods_arrive() {
    let text = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\nports: [{name: http, port: 8080}, {name: none, protocol: UDP, port: null}]\nendpoints:\n- addresses: [10.0.0.1, 10.0.0.2]\n  conditions: {ready: false, serving: true, terminating: true}\n  nodeName: n1\n  zone: z1\n  hints: {forZones: [{name: z2}], forNodes: [{name: n2}]}\n  targetRef: {kind: Pod, name: p, uid: x}\n";
    let Object::EndpointSlice(slice) = one(text) else { panic!("not a slice") };
    assert_eq!(slice.service().map(|s| s.to_string()).as_deref(), Some("default/web"));
    assert_eq!(slice.address_type, AddressType::V4);
    assert_eq!(slice.ports.iter().map(|p| p.port.map(u16::from)).collect::<Vec<_>>(), [Some(8080), None]);
    let endpoint = &slice.endpoints[0];
    assert_eq!(
        endpoint.address.map(|a| a.to_string()).as_deref(),
        Some("10.0.0.1"),
        "only the first is used"
    );
    assert!(!endpoint.conditions.is_ready() && endpoint.conditions.is_terminating());
    assert_eq!((endpoint.node_name.as_deref(), endpoint.zone.as_deref()), (Some("n1"), Some("z1")));
    assert_eq!(
        (&*endpoint.hint_zones, &*endpoint.hint_nodes),
        (&["z2".to_owned()][..], &["n2".to_owned()][..])
    );
    assert_eq!(endpoint.target_ref.as_ref().map(|t| t.key.to_string()).as_deref(), Some("default/p"));

    let Object::Pod(pod) = one(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p, deletionTimestamp: 2026-01-01T00:00:00Z}\nspec:\n  nodeName: n1\n  containers: [{name: c, image: x, ports: [{name: http, containerPort: 8080}]}]\n  initContainers: [{name: i, ports: [{containerPort: 1}]}, {name: s, restartPolicy: Always, ports: [{containerPort: 2}]}]\nstatus:\n  phase: Running\n  podIP: 10.1.0.1\n  podIPs: [{ip: 10.1.0.1}, {ip: 'fd00::1'}]\n  conditions: [{type: Ready, status: 'True'}]\n",
    ) else {
        panic!("not a Pod")
    };
    assert!(pod.ready && !pod.finished && pod.meta.deletion_time.is_some());
    assert_eq!(pod.ips.len(), 2);
    let ports: Vec<u16> = pod.container_ports.iter().map(|p| p.port.get()).collect();
    assert_eq!(ports, [8080, 2], "an init container that exits serves nothing");

    let Object::Endpoints(endpoints) = one(
        "apiVersion: v1\nkind: Endpoints\nmetadata: {name: web}\nsubsets:\n- addresses: [{ip: 10.0.0.1, nodeName: n1}]\n  notReadyAddresses: [{ip: 10.0.0.2}]\n  ports: [{port: 80}]\n",
    ) else {
        panic!("not Endpoints")
    };
    assert_eq!(
        (endpoints.subsets[0].addresses.len(), endpoints.subsets[0].not_ready_addresses.len()),
        (1, 1)
    );

    let Object::Node(node) = one(
        "apiVersion: v1\nkind: Node\nmetadata: {name: n1, labels: {topology.kubernetes.io/zone: z}}\nstatus: {addresses: [{type: InternalIP, address: 10.9.0.1}, {type: Hostname, address: n1}]}\n",
    ) else {
        panic!("not a Node")
    };
    assert_eq!((node.zone(), node.internal_ips.len()), (Some("z"), 1));
    assert_eq!(
        one("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {a: b}}\n").kind(),
        "Namespace"
    );
}

#[test]
fn an_invalid_endpoint_or_port_does_not_affect_the_rest_of_its_slice() {
    let text = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a, labels: {kubernetes.io/service-name: a}}\naddressType: IPv4\nports: [{name: a, port: 1}, {name: b, port: 65536}, {name: a, port: 2}]\nendpoints:\n- {addresses: [10.0.0.1]}\n- {addresses: [10.0.0.300]}\n- {addresses: [10.0.0.2], conditions: {ready: maybe}}\n- {addresses: [10.0.0.3], nodeName: [a]}\n- {addresses: [10.0.0.4]}\n";
    let (objects, report) = read(text);
    let [Object::EndpointSlice(slice)] = &*objects else { panic!("{report}") };
    let addresses: Vec<_> = slice.endpoints.iter().filter_map(|e| Some(e.address?.to_string())).collect();
    assert_eq!(addresses, ["10.0.0.1", "10.0.0.4"]);
    let ports: Vec<_> = slice.ports.iter().filter_map(|p| Some((p.name.as_str(), p.port?.get()))).collect();
    assert_eq!(ports, [("a", 1)]);
    assert_eq!((report.errors().count(), slice.meta.faults.len()), (5, 5), "{report}");
    assert!(
        report.to_string().contains("f.yaml:8:16: error: endpoints[1].addresses[0]: the text"),
        "{report}"
    );

    let text = "apiVersion: v1\nkind: Endpoints\nmetadata: {name: a}\nsubsets:\n- addresses: [{ip: 10.0.0.1}, {ip: x}]\n  ports: [{port: 80}]\n";
    let (objects, report) = read(text);
    let [Object::Endpoints(endpoints)] = &*objects else { panic!("{report}") };
    assert_eq!((endpoints.subsets[0].addresses.len(), report.errors().count()), (1, 1));
}

#[test]
fn ports_of_legacy_endpoints_may_share_a_name_across_protocols() {
    let ports = "[{name: dns, port: 53, protocol: UDP}, {name: dns, port: 5353}]";
    let head = "apiVersion: v1\nkind: Endpoints\nmetadata: {name: a}\n";
    let subset = format!("subsets:\n- addresses: [{{ip: 10.0.0.1}}]\n  ports: {ports}\n");
    let Object::Endpoints(endpoints) = one(&(head.to_owned() + &subset)) else { panic!("not Endpoints") };
    let ports: Vec<_> = endpoints.subsets[0].ports.iter().map(|p| (p.name.as_str(), p.protocol)).collect();
    assert_eq!(ports, [("dns", Protocol::Udp), ("dns", Protocol::Tcp)]);
    let twice = subset.replace("protocol: UDP", "protocol: TCP");
    let (_, report) = read(&(head.to_owned() + &twice));
    assert!(report.to_string().contains("ports[1]: the name \"dns\" is already used by"), "{report}");
}

#[test]
fn a_slice_without_a_service_is_warned_about() {
    let (objects, report) = read(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a}\naddressType: IPv4\n",
    );
    assert_eq!((objects.len(), report.has_errors(), report.len()), (1, false, 1));
    let missing = "f.yaml:1:1: warning: EndpointSlice default/a belongs to no Service: the label kubernetes.io/service-name is missing; accepted: the label kubernetes.io/service-name with the name of a Service of the same namespace\n";
    assert_eq!(report.to_string(), missing);
    let (_, report) = read(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: a\n  labels: {kubernetes.io/service-name: ''}\naddressType: IPv4\n",
    );
    let empty = "f.yaml:5:40: warning: EndpointSlice default/a belongs to no Service: the label kubernetes.io/service-name is empty; ";
    assert!(report.to_string().starts_with(empty), "{report}");
    let (_, report) = read(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: A}\naddressType: IPv4\n",
    );
    assert!(report.to_string().contains("warning: the EndpointSlice belongs to no Service"), "{report}");
    let (_, report) = read(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: A, labels: {kubernetes.io/service-name: a}}\naddressType: IPv4\n",
    );
    assert!(report.len() == 1 && report.to_string().contains("metadata.name: the text \"A\""), "{report}");
}

#[test]
fn a_slice_has_the_limits_of_an_api_server() {
    let slice = |more: &str| {
        format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: a, labels: {{kubernetes.io/service-name: a}}}}\naddressType: IPv4\n{more}\n"
        )
    };
    let many = |n: usize, item: &dyn Fn(usize) -> String| (0..n).map(item).collect::<Vec<_>>().join(", ");
    let endpoints = |n| format!("endpoints: [{}]", many(n, &|_| "{addresses: [10.0.0.1]}".to_owned()));
    let ports = |n| format!("ports: [{}]", many(n, &|i| format!("{{name: p{i}, port: 1}}")));
    let addresses = |n| format!("endpoints: [{{addresses: [{}]}}]", many(n, &|_| "10.0.0.1".to_owned()));
    let hints = |key: &str, n| {
        let names = many(n, &|i| format!("{{name: n{i}}}"));
        format!("endpoints: [{{addresses: [10.0.0.1], hints: {{{key}: [{names}]}}}}]")
    };
    for (fits, exceeds, text) in [
        (endpoints(1_000), endpoints(1_001), "endpoints: 1001 items; accepted: at most 1000"),
        (ports(20_000), ports(20_001), "ports: 20001 items; accepted: at most 20000"),
        (
            addresses(100),
            addresses(101),
            "endpoints[0].addresses: 101 addresses; accepted: 1 to 100 addresses",
        ),
        (hints("forZones", 8), hints("forZones", 9), "hints.forZones: 9 items; accepted: at most 8"),
        (hints("forNodes", 8), hints("forNodes", 9), "hints.forNodes: 9 items; accepted: at most 8"),
    ] {
        assert_eq!(one(&slice(&fits)).kind(), "EndpointSlice");
        let (objects, report) = read(&slice(&exceeds));
        let used = objects.iter().any(|object| match object {
            Object::EndpointSlice(slice) => slice.endpoints.iter().any(|endpoint| endpoint.address.is_some()),
            _ => true,
        });
        assert!(!used && report.to_string().contains(text), "{report}");
    }
}

#[test]
fn names_and_keys_are_those_of_kubernetes_1_36() {
    let long = "a".repeat(100);
    for metadata in [
        "name: 1st".to_owned(),
        format!("name: web, annotations: {{Example.COM/Key: a, {long}.{long}/b: c}}"),
        format!("name: web, labels: {{{long}/b: c}}"),
    ] {
        let text = format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{{metadata}}}\nspec: {{ports: [{{port: 80}}]}}\n"
        );
        assert_eq!(one(&text).kind(), "Service", "{metadata}");
    }
    let capital = "apiVersion: v1\nkind: Service\nmetadata: {name: web, labels: {Example.COM/a: b}}\nspec: {ports: [{port: 80}]}\n";
    assert!(
        read(capital).1.to_string().contains("\"Example.COM/a\" is not a valid key"),
        "not valid in labels"
    );
    for (kind, version, rest) in [
        ("EndpointSlice", "discovery.k8s.io/v1", "addressType: IPv4"),
        ("Pod", "v1", "spec: {}"),
        ("Node", "v1", "spec: {}"),
    ] {
        for (name, is_accepted) in
            [(format!("{long}.{long}"), true), ("a".repeat(253), true), ("a".repeat(254), false)]
        {
            let text = format!(
                "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: {name}, labels: {{kubernetes.io/service-name: a}}}}\n{rest}\n"
            );
            assert_eq!(!read(&text).1.has_errors(), is_accepted, "{kind} {name}");
        }
    }
}

#[test]
fn a_target_port_of_0_or_nothing_is_the_port() {
    for target in ["0", "''", "null"] {
        let read = service(&format!("{SERVICE}  ports: [{{port: 80, targetPort: {target}}}]\n"));
        assert_eq!(read.ports[0].target_port, TargetPort::Number(read.ports[0].port), "{target}");
    }
}

#[test]
fn a_slice_port_of_0_is_ignored_with_a_warning() {
    let (objects, report) = read(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a, labels: {kubernetes.io/service-name: a}}\naddressType: IPv4\nports: [{name: a, port: 0}, {name: b, port: 1}]\n",
    );
    let [Object::EndpointSlice(slice)] = &*objects else { panic!("{report}") };
    assert_eq!(slice.ports.iter().map(|p| p.port.map(u16::from)).collect::<Vec<_>>(), [None, Some(1)]);
    let text =
        "f.yaml:5:25: warning: ports[0].port: port 0 is ignored; accepted: a port number from 1 to 65535\n";
    assert_eq!(report.to_string(), text);
}

#[test]
fn an_address_pool_is_a_configured_pool_as_an_object() {
    let Object::AddressPool(read_pool) = one(
        "apiVersion: tidegate.dev/v1alpha1\nkind: AddressPool\nmetadata: {name: public, generation: 3}\nspec:\n  addresses: [203.0.113.0/28, 2001:db8::1-2001:db8::9]\n  autoAssign: false\n  externalIPs: true\n  quotaPerNamespace: 4\n  namespaceSelector: {matchLabels: {team: a}}\nstatus: {total: 25, used: 1, available: 24, conditions: [{type: Accepted, status: 'True', reason: Accepted}]}\n",
    ) else {
        panic!("not an AddressPool")
    };
    let pool = &read_pool.pool;
    assert_eq!((pool.name.as_str(), pool.ranges.len(), pool.quota_per_namespace), ("public", 2, Some(4)));
    assert!(!pool.auto_assign && pool.external_ips && !pool.disabled);
    assert_eq!((read_pool.generation, read_pool.status.available), (3, 24));
    assert_eq!(read_pool.status.conditions[0].kind, "Accepted");

    let (objects, report) = read(
        "apiVersion: tidegate.dev/v1alpha1\nkind: AddressPool\nmetadata: {name: public}\nspec: {addresses: [203.0.113.0/33]}\n",
    );
    assert_eq!(objects, []);
    assert!(report.to_string().starts_with("f.yaml:4:20: error: spec.addresses[0]: "), "{report}");
}

#[test]
fn fields_written_by_controllers_arrive() {
    let service = service(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n  generation: 2\n  resourceVersion: '77'\n  finalizers: [tidegate.dev/cleanup]\n  managedFields:\n  - {manager: kubectl, fieldsV1: {'f:spec': {}}}\n  - {manager: tidegate, subresource: status, fieldsV1: {'f:status': {'f:loadBalancer': {'f:ingress': {}}}}}\nspec: {type: LoadBalancer, ports: [{port: 80}]}\nstatus:\n  loadBalancer: {ingress: [{ip: 203.0.113.5, ipMode: Proxy, ports: [{port: 80, protocol: TCP, error: PortNotProgrammed}]}]}\n  conditions: [{type: tidegate.dev/Allocated, status: 'True', reason: Allocated, observedGeneration: 2, lastTransitionTime: '2026-01-01T00:00:00Z'}]\n",
    );
    let stored = &service.stored;
    assert!(stored.is_finalized_by_us());
    assert_eq!(stored.generation, 2);
    assert_eq!(stored.ingress_managers, ["tidegate"]);
    assert_eq!(service.ingress_ips.len(), 1);
    assert_eq!(stored.ingress[0].ports[0].error.as_deref(), Some("PortNotProgrammed"));
    let condition = stored.condition("tidegate.dev/Allocated").expect("the condition exists");
    assert_eq!((condition.status.as_str(), condition.observed_generation), ("True", 2));
    assert!(condition.last_transition.is_some());
}
