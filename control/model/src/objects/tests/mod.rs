//! Tests of merging endpoints and choosing among them (`docs/kubernetes.md`, section 2).

use std::net::IpAddr;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

mod choice;

fn port(n: u16) -> Port {
    Port::new(n).expect("tests use ports above zero")
}

fn ip(s: &str) -> IpAddr {
    s.parse().expect("tests use valid addresses")
}

fn service_port(name: &str, protocol: Protocol, number: u16, target: TargetPort) -> ServicePort {
    ServicePort {
        name: name.into(),
        protocol,
        app_protocol: None,
        port: port(number),
        target_port: target,
        node_port: None,
        routed: None,
    }
}

/// A Service `default/web` with the port `http` 80/TCP and the selector app=web.
fn web() -> Service {
    let mut service = Service::new(Metadata::new(ObjectKey::new("default", "web")));
    service.ports = vec![service_port("http", Protocol::Tcp, 80, TargetPort::Name("http".into()))];
    service.selector = Labels::from([("app".into(), "web".into())]);
    service
}

fn endpoint(
    address: &str,
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
) -> Endpoint {
    Endpoint {
        address: Some(ip(address)),
        conditions: Conditions { ready, serving, terminating },
        node_name: None,
        zone: None,
        hint_zones: vec![],
        hint_nodes: vec![],
        target_ref: None,
    }
}

fn slice(name: &str, ports: &[(&str, Protocol, Option<u16>)], endpoints: Vec<Endpoint>) -> EndpointSlice {
    let mut meta = Metadata::new(ObjectKey::new("default", name));
    meta.labels.insert("kubernetes.io/service-name".into(), "web".into());
    let port = |(name, protocol, number): &(&str, Protocol, Option<u16>)| EndpointPort {
        name: (*name).into(),
        protocol: *protocol,
        port: number.map(port),
        app_protocol: None,
    };
    EndpointSlice {
        meta,
        address_type: AddressType::V4,
        ports: ports.iter().map(port).collect(),
        endpoints,
        left_out: None,
    }
}

fn pod(name: &str, address: &str, ready: bool) -> Pod {
    let mut meta = Metadata::new(ObjectKey::new("default", name));
    meta.labels.insert("app".into(), "web".into());
    let http = ContainerPort { name: "http".into(), protocol: Protocol::Tcp, port: port(8080) };
    Pod { meta, node_name: None, ips: vec![ip(address)], ready, finished: false, container_ports: vec![http] }
}

fn with_slices(slices: impl IntoIterator<Item = EndpointSlice>) -> Objects {
    let slices = slices.into_iter().map(|s| (s.meta.key.clone(), Arc::new(s))).collect();
    Objects { endpoint_slices: slices, ..Objects::default() }
}

fn with_pods(pods: impl IntoIterator<Item = Pod>) -> Objects {
    let pods = pods.into_iter().map(|p| (p.meta.key.clone(), Arc::new(p))).collect();
    Objects { pods, ..Objects::default() }
}

fn shown(endpoints: &[ResolvedEndpoint]) -> Vec<String> {
    let flag = |on, letter| if on { letter } else { '-' };
    let show = |e: &ResolvedEndpoint| {
        let (r, s, t) = (flag(e.ready, 'r'), flag(e.serving, 's'), flag(e.terminating, 't'));
        format!("{}:{} {r}{s}{t}", e.ip, e.port)
    };
    endpoints.iter().map(show).collect()
}

fn resolve(objects: &Objects, service: &Service) -> ServiceEndpoints {
    EndpointIndex::new(objects).resolve(service)
}

const HTTP: (&str, Protocol, Option<u16>) = ("http", Protocol::Tcp, Some(8080));

#[test]
fn absent_conditions_mean_ready_serving_and_not_terminating() {
    let objects = with_slices([slice(
        "a",
        &[HTTP],
        vec![
            endpoint("10.0.0.1", None, None, None),
            endpoint("10.0.0.2", Some(false), None, None),
            endpoint("10.0.0.3", Some(false), Some(true), Some(true)),
            endpoint("10.0.0.4", Some(false), Some(false), Some(true)),
        ],
    )]);
    assert_eq!(
        shown(&resolve(&objects, &web()).ports[0].endpoints),
        ["10.0.0.1:8080 rs-", "10.0.0.2:8080 -s-", "10.0.0.3:8080 -st", "10.0.0.4:8080 --t"]
    );
}

#[test]
fn slices_of_one_service_are_merged_and_those_of_others_left_out() {
    let mut other = slice("c", &[HTTP], vec![endpoint("10.0.0.9", None, None, None)]);
    other.meta.labels.insert("kubernetes.io/service-name".into(), "api".into());
    let objects = with_slices([
        slice("b", &[HTTP], vec![endpoint("10.0.0.2", None, None, None)]),
        slice("a", &[HTTP], vec![endpoint("10.0.0.1", None, None, None)]),
        other,
    ]);
    assert_eq!(
        shown(&resolve(&objects, &web()).ports[0].endpoints),
        ["10.0.0.1:8080 rs-", "10.0.0.2:8080 rs-"]
    );
}

#[test]
fn if_an_address_is_in_two_slices_the_one_not_terminating_wins() {
    let old = || endpoint("10.0.0.1", Some(false), Some(true), Some(true));
    let new = || endpoint("10.0.0.1", Some(true), Some(true), Some(false));
    for (first, second) in [(old(), new()), (new(), old())] {
        let objects = with_slices([slice("a", &[HTTP], vec![first]), slice("b", &[HTTP], vec![second])]);
        assert_eq!(shown(&resolve(&objects, &web()).ports[0].endpoints), ["10.0.0.1:8080 rs-"]);
    }
}

#[test]
fn ports_match_by_name_and_protocol_and_need_a_number() {
    let mut service = web();
    service.ports = vec![
        service_port("dns", Protocol::Tcp, 53, TargetPort::Number(port(53))),
        service_port("dns-udp", Protocol::Udp, 53, TargetPort::Number(port(53))),
        service_port("none", Protocol::Tcp, 54, TargetPort::Number(port(54))),
    ];
    let ports = [
        ("dns", Protocol::Tcp, Some(5300)),
        ("dns", Protocol::Udp, Some(5301)),
        ("dns-udp", Protocol::Udp, Some(5302)),
        ("none", Protocol::Tcp, None),
    ];
    let objects = with_slices([slice("a", &ports, vec![endpoint("10.0.0.1", None, None, None)])]);
    let resolved = resolve(&objects, &service);
    let ports: Vec<_> = resolved.ports.iter().map(|p| shown(&p.endpoints)).collect();
    assert_eq!(ports, [vec!["10.0.0.1:5300 rs-".to_owned()], vec!["10.0.0.1:5302 rs-".to_owned()], vec![]]);
}

#[test]
fn pods_are_used_only_without_slices_and_endpoints() {
    let pods = [pod("p1", "10.1.0.1", true)];
    let objects = with_pods(pods.clone());
    assert_eq!(shown(&resolve(&objects, &web()).ports[0].endpoints), ["10.1.0.1:8080 rs-"]);

    let mut sliced = with_pods(pods);
    sliced.endpoint_slices = with_slices([slice("a", &[HTTP], vec![])]).endpoint_slices;
    assert!(resolve(&sliced, &web()).ports[0].endpoints.is_empty(), "an empty slice means no endpoints");

    let mut unselecting = web();
    unselecting.selector.clear();
    assert!(resolve(&objects, &unselecting).ports[0].endpoints.is_empty());
}

#[test]
fn a_pod_is_ready_if_it_serves_and_is_not_terminating_or_is_published() {
    let mut leaving = pod("p2", "10.1.0.2", true);
    leaving.meta.deletion_time = Some("2026-01-01T00:00:00Z".parse().unwrap());
    let mut done = pod("p4", "10.1.0.4", true);
    done.finished = true;
    let objects = with_pods([pod("p1", "10.1.0.1", true), leaving, pod("p3", "10.1.0.3", false), done]);
    assert_eq!(
        shown(&resolve(&objects, &web()).ports[0].endpoints),
        ["10.1.0.1:8080 rs-", "10.1.0.2:8080 -st", "10.1.0.3:8080 ---"]
    );
    let published = Service { publish_not_ready_addresses: true, ..web() };
    assert_eq!(
        shown(&resolve(&objects, &published).ports[0].endpoints),
        ["10.1.0.1:8080 rs-", "10.1.0.2:8080 rst", "10.1.0.3:8080 r--"]
    );
}

#[test]
fn a_named_target_port_is_resolved_by_each_pod() {
    let mut second = pod("p2", "10.1.0.2", true);
    second.container_ports[0].port = port(9090);
    let mut nameless = pod("p3", "10.1.0.3", true);
    nameless.container_ports.clear();
    let objects = with_pods([pod("p1", "10.1.0.1", true), second, nameless]);
    assert_eq!(
        shown(&resolve(&objects, &web()).ports[0].endpoints),
        ["10.1.0.1:8080 rs-", "10.1.0.2:9090 rs-"]
    );
}

#[test]
fn legacy_endpoints_are_used_without_slices_and_truncation_is_reported() {
    let address = |a: &str| EndpointAddress { ip: ip(a), node_name: None, target_ref: None };
    let mut meta = Metadata::new(ObjectKey::new("default", "web"));
    meta.annotations.insert("endpoints.kubernetes.io/over-capacity".into(), "truncated".into());
    let subset = Subset {
        addresses: vec![address("10.2.0.1")],
        not_ready_addresses: vec![address("10.2.0.2")],
        ports: slice("x", &[HTTP], vec![]).ports,
    };
    let endpoints = Endpoints { meta, subsets: vec![subset] };
    let mut objects = with_pods([pod("p1", "10.1.0.1", true)]);
    objects.endpoints.insert(endpoints.meta.key.clone(), Arc::new(endpoints));
    let resolved = resolve(&objects, &web());
    assert_eq!(shown(&resolved.ports[0].endpoints), ["10.2.0.1:8080 rs-", "10.2.0.2:8080 ---"]);
    assert_eq!(resolved.findings.len(), 1);
    assert!(resolved.findings[0].what.contains("truncated at 1000"), "{}", resolved.findings[0]);
}

#[test]
fn addresses_that_cannot_be_endpoints_are_refused_and_the_others_stay() {
    for (address, why) in [
        ("127.0.0.1", "loopback"),
        ("169.254.1.1", "link-local"),
        ("224.0.0.1", "multicast"),
        ("0.0.0.0", "unspecified"),
        ("::1", "loopback"),
        ("fe80::1", "link-local"),
        ("ff02::1", "multicast"),
        ("255.255.255.255", "the broadcast address"),
        ("::ffff:127.0.0.1", "loopback"),
    ] {
        let both = vec![endpoint(address, None, None, None), endpoint("10.0.0.1", None, None, None)];
        let resolved = resolve(&with_slices([slice("a", &[HTTP], both)]), &web());
        assert_eq!(shown(&resolved.ports[0].endpoints), ["10.0.0.1:8080 rs-"], "{address}");
        assert_eq!(resolved.findings.len(), 1, "{address}");
        assert!(resolved.findings[0].what.contains(why), "{}", resolved.findings[0]);
    }
}

#[test]
fn ready_addresses_count_each_address_once_and_no_terminating_ones() {
    let mut leaving = endpoint("10.0.0.2", Some(false), Some(true), Some(true));
    leaving.node_name = Some("n1".into());
    let mut here = endpoint("10.0.0.1", None, None, None);
    here.node_name = Some("n1".into());
    let away = endpoint("10.0.0.3", None, None, None);
    let objects = with_slices([
        slice("a", &[HTTP], vec![here.clone(), leaving]),
        slice("b", &[("http", Protocol::Tcp, Some(8081))], vec![here, away]),
    ]);
    let resolved = resolve(&objects, &web());
    assert_eq!(resolved.ports[0].ready_addresses(Some("n1")).len(), 1);
    assert_eq!(resolved.ports[0].ready_addresses(None).len(), 2);
}

#[test]
fn external_name_headless_and_foreign_proxies_are_skipped() {
    assert_eq!(web().not_for_proxies(), None);
    assert!(Service { headless: true, ..web() }.not_for_proxies().is_some());
    assert!(Service { service_type: ServiceType::ExternalName, ..web() }.not_for_proxies().is_some());
    let mut foreign = web();
    foreign.meta.labels.insert("service.kubernetes.io/service-proxy-name".into(), String::new());
    assert!(foreign.not_for_proxies().is_some());
}

#[test]
fn a_namespace_without_an_object_still_has_its_name_as_a_label() {
    let labels = Objects::default().namespace_labels("shop");
    assert_eq!(labels.get("kubernetes.io/metadata.name").map(String::as_str), Some("shop"));
}

/// The last byte of the address, the conditions, and the slice in each of two arrangements.
type Sighting = (u8, [bool; 3], usize, usize);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However the same endpoints are distributed over slices, and in whatever order, the set of backends is equal.
    #[test]
    fn the_merge_does_not_depend_on_order_or_on_the_slice_an_endpoint_is_in(
        sightings in prop::collection::vec((1u8..6, any::<[bool; 3]>(), 0usize..3, 0usize..3), 0..12),
    ) {
        let build = |reverse: bool, which: fn(&Sighting) -> usize| {
            let mut slices: Vec<Vec<Endpoint>> = vec![vec![]; 3];
            let mut ordered = sightings.clone();
            if reverse {
                ordered.reverse();
            }
            for s in &ordered {
                let [r, v, t] = s.1;
                slices[which(s)].push(endpoint(&format!("10.0.0.{}", s.0), Some(r), Some(v), Some(t)));
            }
            let named = slices.into_iter().enumerate().map(|(i, e)| slice(&format!("s{i}"), &[HTTP], e));
            resolve(&with_slices(named), &web()).ports
        };
        prop_assert_eq!(build(false, |s| s.2), build(true, |s| s.3));
    }
}

#[test]
fn nothing_depends_on_the_order_in_which_slices_arrived() {
    let faulty = |name: &str, host: u8| {
        let mut slice = slice(name, &[HTTP], vec![endpoint(&format!("10.0.1.{host}"), None, None, None)]);
        slice.meta.faults = vec![Diagnostic::error(format!("a fault of {name}"))];
        slice
    };
    let objects = with_slices([faulty("a", 1), faulty("b", 2), faulty("c", 3)]);
    let service = web();
    let expected = resolve(&objects, &service);
    assert_eq!(expected.slice_faults.len(), 3);
    let mut index = SliceIndex::new(&objects);
    let first = &objects.endpoint_slices[&ObjectKey::new("default", "a")];
    // It is the last one now.
    drop(index.replace(Some(first), Some(first)));
    let pods = PodIndex::default();
    assert_eq!(EndpointIndex::over(&objects, &index, &pods).resolve(&service), expected);
}
