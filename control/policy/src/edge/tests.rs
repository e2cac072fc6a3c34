//! Tests of what an edge serves, with objects read from manifests.

use tidegate_source::directory::DirectorySource;

use super::*;

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
  annotations: {ANNOTATIONS}
spec:
  type: LoadBalancer
  loadBalancerIP: 203.0.113.1
  ports: [{name: http, port: 80, targetPort: 8080}, {name: https, port: 443, targetPort: 8080}, {name: dns, port: 53, protocol: UDP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: https, port: 8080}, {name: dns, protocol: UDP, port: 53}]
endpoints: [{addresses: [10.0.0.1]}, {addresses: [10.0.0.2]}, {addresses: [10.0.0.3], conditions: {ready: false}}]
";

fn web(annotations: &str) -> String {
    SERVICE.replace("{ANNOTATIONS}", annotations)
}

/// Computes the result for these manifests, with a usable Secret `shop/a` and an unusable Secret `shop/b`.
fn result(manifests: &str) -> Desired {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("all.yaml"), manifests).expect("written");
    let (objects, report) = DirectorySource::load(dir.path());
    assert!(!report.has_errors(), "{report}");
    let pairs = BTreeMap::from([
        (ObjectKey::new("shop", "a"), Pair::Usable),
        (ObjectKey::new("shop", "b"), Pair::Refused("it is broken".to_owned())),
    ]);
    let networks = ["203.0.113.0/24".parse().expect("a network")];
    desired(&Input { objects: &objects, networks: &networks, pairs: &pairs })
}

fn reasons(result: &Desired) -> Vec<Reason> {
    result.findings.iter().map(|finding| finding.reason).collect()
}

fn ports(result: &Desired) -> Vec<u16> {
    result.listeners.keys().map(|id| id.port.get()).collect()
}

fn listener(result: &Desired, port: u16) -> &Listener {
    let id = ListenerId { service: ObjectKey::new("shop", "web"), port: Port::new(port).expect("not 0") };
    result.listeners.get(&id).unwrap_or_else(|| panic!("no port {port}: {result:?}"))
}

#[test]
fn a_service_without_annotations_of_an_edge_is_not_served() {
    assert_eq!(result(&web("{tidegate.dev/forwarding: nat}")), Desired::default());
}

#[test]
fn a_certificate_serves_all_tcp_ports_but_port_80_with_tls() {
    let served = result(&web("{tidegate.dev/tls-secret: a}"));
    assert_eq!((ports(&served), reasons(&served)), (vec![443], vec![]));
    let https = listener(&served, 443);
    let tls = Tls { policy: TlsPolicy::Intermediate, secrets: vec![ObjectKey::new("shop", "a")] };
    assert_eq!(https.tls.as_ref(), Some(&tls));
    assert_eq!((https.protocol, https.is_http()), (BackendProtocol::Tcp, false));
    let ready = ["10.0.0.1:8080", "10.0.0.2:8080"].map(|at| at.parse().expect("an address"));
    assert_eq!(https.servers, BTreeSet::from(ready));
    assert_eq!(https.addresses, BTreeSet::from(["203.0.113.1".parse().expect("an address")]));
}

#[test]
fn annotations_choose_ports_policy_and_protocol() {
    let served = result(&web(
        "{tidegate.dev/tls-secret: 'b, a, a', tidegate.dev/tls-ports: 'http,443', tidegate.dev/tls-policy: modern, \
         tidegate.dev/backend-protocol: grpc, tidegate.dev/forwarded-headers: append, tidegate.dev/idle-timeout-tcp: 5m}",
    ));
    assert_eq!((ports(&served), reasons(&served)), (vec![80, 443], vec![Reason::CertificateRefused]));
    let port = listener(&served, 80);
    let tls = Tls { policy: TlsPolicy::Modern, secrets: vec![ObjectKey::new("shop", "a")] };
    assert_eq!(port.tls.as_ref(), Some(&tls));
    assert_eq!((port.protocol, port.forwarded), (BackendProtocol::Grpc, ForwardedHeaders::Append));
    assert_eq!(port.idle, Some(Duration::from_secs(300)));
}

#[test]
fn an_app_protocol_applies_unless_an_annotation_names_one() {
    let with = |annotations: &str, app: &str| {
        let port = format!("port: 443, appProtocol: {app},");
        result(&web(annotations).replace("port: 443,", &port))
    };
    let cases = [
        ("http", BackendProtocol::Http),
        ("kubernetes.io/ws", BackendProtocol::Http),
        ("HTTPS", BackendProtocol::Https),
        ("kubernetes.io/h2c", BackendProtocol::H2c),
        ("grpc", BackendProtocol::Grpc),
        ("example.com/own", BackendProtocol::Tcp),
    ];
    for (app, protocol) in cases {
        let served = with("{tidegate.dev/tls-secret: a}", app);
        assert_eq!(listener(&served, 443).protocol, protocol, "{app}");
        let served = with("{tidegate.dev/tls-secret: a, tidegate.dev/backend-protocol: tls}", app);
        assert_eq!(listener(&served, 443).protocol, BackendProtocol::Tls, "{app}");
    }
}

#[test]
fn a_redirect_needs_plain_port_80_and_tls_on_port_443() {
    let served = result(&web("{tidegate.dev/tls-secret: a, tidegate.dev/redirect-https: 'true'}"));
    assert_eq!((ports(&served), reasons(&served)), (vec![80, 443], vec![]));
    let port = listener(&served, 80);
    assert!(port.redirects && port.tls.is_none() && port.servers.is_empty(), "{port:?}");
    assert!(!listener(&served, 443).redirects);
    for without in
        ["tidegate.dev/backend-protocol: http", "tidegate.dev/tls-secret: a, tidegate.dev/tls-ports: '*'"]
    {
        let served = result(&web(&format!("{{{without}, tidegate.dev/redirect-https: 'true'}}")));
        assert_eq!(reasons(&served), [Reason::InvalidValue], "{without}");
        assert!(served.listeners.values().all(|listener| !listener.redirects), "{without}");
    }
}

#[test]
fn an_invalid_value_that_could_expose_plain_text_refuses_all_ports() {
    for invalid in [
        "tidegate.dev/tls-secret: ''",
        "tidegate.dev/tls-secret: A_B",
        "tidegate.dev/tls-secret: a, tidegate.dev/tls-ports: '444'",
        "tidegate.dev/tls-secret: a, tidegate.dev/tls-ports: dns",
        "tidegate.dev/tls-secret: a, tidegate.dev/backend-protocol: HTTP",
    ] {
        let served = result(&web(&format!("{{{invalid}}}")));
        assert_eq!((ports(&served), reasons(&served)), (vec![], vec![Reason::InvalidValue]), "{invalid}");
        let text = served.findings[0].diagnostic.to_string();
        assert!(text.contains("all.yaml:7:") && text.contains("accepted: "), "{text}");
    }
    for with_default in ["tidegate.dev/tls-policy: old", "tidegate.dev/forwarded-headers: keep"] {
        let served = result(&web(&format!("{{tidegate.dev/tls-secret: a, {with_default}}}")));
        assert_eq!(
            (ports(&served), reasons(&served)),
            (vec![443], vec![Reason::InvalidValue]),
            "{with_default}"
        );
    }
}

#[test]
fn ports_with_tls_are_not_served_without_a_usable_certificate() {
    let served = result(&web("{tidegate.dev/tls-secret: 'b, c', tidegate.dev/backend-protocol: http}"));
    assert_eq!(ports(&served), [80]);
    assert_eq!(reasons(&served), [Reason::CertificateRefused; 3]);
}

#[test]
fn an_address_and_port_belongs_to_the_oldest_service() {
    let web = web("{tidegate.dev/tls-secret: a}");
    let later = web.replace("name: web", "name: aaa").replace("-name: web", "-name: aaa");
    let later =
        later.replace("namespace: shop\n", "namespace: shop\n  creationTimestamp: 2026-02-01T00:00:00Z\n");
    let first =
        web.replace("namespace: shop\n", "namespace: shop\n  creationTimestamp: 2026-01-01T00:00:00Z\n");
    let served = result(&format!("{later}\n---\n{first}"));
    assert_eq!(reasons(&served), [Reason::Conflict]);
    assert_eq!(served.findings[0].object, ObjectKey::new("shop", "aaa"));
    assert_eq!(served.listeners.len(), 1);
    listener(&served, 443);
}

#[test]
fn only_addresses_in_the_networks_are_served() {
    let annotated = web("{tidegate.dev/tls-secret: a}");
    for (address, reason) in [
        ("loadBalancerIP: 198.51.100.1", vec![Reason::AddressRefused]),
        ("selector: {a: b}", vec![Reason::AddressRefused]),
        ("externalIPs: [198.51.100.1, 203.0.113.7]", vec![Reason::AddressRefused]),
    ] {
        let served = result(&annotated.replace("loadBalancerIP: 203.0.113.1", address));
        assert_eq!(reasons(&served), reason, "{address}");
        assert_eq!(served.listeners.len(), usize::from(address.contains("203")), "{address}");
    }
    let status = "kind: Service\nstatus: {loadBalancer: {ingress: [{ip: 203.0.113.9}]}}";
    let served = result(&annotated.replace("kind: Service", status));
    assert_eq!(
        listener(&served, 443).addresses,
        BTreeSet::from(["203.0.113.9".parse().expect("an address")])
    );
}

#[test]
fn a_service_without_an_address_of_its_own_is_reported() {
    for change in ["type: ClusterIP", "type: NodePort"] {
        let served = result(&web("{tidegate.dev/tls-secret: a}").replace("type: LoadBalancer", change));
        assert_eq!((ports(&served), reasons(&served)), (vec![], vec![Reason::NotServed]), "{change}");
    }
    let served = result(&web("{tidegate.dev/backend-protocol: tcp}"));
    assert_eq!((ports(&served), reasons(&served)), (vec![], vec![Reason::NotServed]));
    let other = "type: LoadBalancer\n  loadBalancerClass: example.com/other";
    assert_eq!(
        result(&web("{tidegate.dev/tls-secret: a}").replace("type: LoadBalancer", other)),
        Desired::default()
    );
}
