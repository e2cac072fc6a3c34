//! Tests of explanations, with snapshots compiled from hand-written specs.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_admin_api::explain::Transport;
use tidegate_pipeline::testing::builder::Builder;
use tidegate_pipeline::testing::lab::{self, Lab};
use tidegate_spec::testing;
use tidegate_spec::{
    BackendSpec, GatewaySpec, LoadRule, MssClamp, NeighborSpec, NetworkSpec, PassiveHealth, Policy,
    RouteSpec, Scheduler, ServiceKey, ServiceLimits, ServiceSpec, SnapshotSpec, SynCookies,
};
use tidegate_structures::hash::selection_hash;
use tidegate_wire::MacAddr;
use tidegate_wire::proxy_header::ProxyVersion;
use tidegate_wire::tcp::flags;

use super::*;

fn service(
    mode: ForwardingMode,
    vip: &str,
    port: u16,
    backends: &[(&str, u16, BackendState)],
) -> ServiceSpec {
    let backend = |&(address, port, state): &(&str, u16, BackendState)| BackendSpec {
        address: address.parse().expect("an address"),
        port,
        weight: 1,
        state,
    };
    let vip = SocketAddr::new(vip.parse().expect("an address"), port);
    ServiceSpec {
        port_name: "http".into(),
        idle_timeout_tcp: Duration::from_secs(7440),
        idle_timeout_udp: Duration::from_secs(300),
        idle_timeout_sctp: Duration::from_secs(300),
        backends: backends.iter().map(backend).collect(),
        ..testing::service(mode, Protocol::Tcp, &vip.to_string(), &[])
    }
}

fn spec(services: Vec<ServiceSpec>) -> SnapshotSpec {
    let mac = |n| MacAddr([2, 0, 0, 0, 0, n]);
    SnapshotSpec {
        generation: 7,
        network: NetworkSpec {
            interfaces: vec![testing::interface(mac(2), &["192.0.2.2/24", "2001:db8::2/64"])],
            routes: vec![testing::route("10.0.0.0/8", "192.0.2.1")],
            neighbors: vec![
                NeighborSpec { ip: "192.0.2.1".parse().expect("an address"), mac: mac(1) },
                NeighborSpec { ip: "192.0.2.11".parse().expect("an address"), mac: mac(11) },
            ],
            snat_addresses: vec!["192.0.2.3".parse().expect("an address")],
            tunnel_source_v4: Some("192.0.2.2".parse().expect("an address")),
            tunnel_source_v6: Some("2001:db8::2".parse().expect("an address")),
            gateway: GatewaySpec::default(),
            policy: Policy::default(),
            ..NetworkSpec::default()
        }
        .into(),
        services: services.into_iter().map(Into::into).collect(),
    }
}

fn explained_from(
    spec: &SnapshotSpec,
    source: &str,
    destination: &str,
    refused: Option<&str>,
) -> Explanation {
    explained_with(spec, &NeighborTable::new(), (source, destination), refused)
}

fn explained_with(
    spec: &SnapshotSpec,
    neighbors: &NeighborTable,
    (source, destination): (&str, &str),
    refused: Option<&str>,
) -> Explanation {
    let (snapshot, problems) = Snapshot::compile(spec, None, neighbors).expect("a spec that compiles");
    assert_eq!(problems, []);
    let about = Circumstances::of_files(neighbors, Now::default(), refused);
    let packet = Packet {
        protocol: Transport(Protocol::Tcp),
        source: source.parse().expect("an address with a port"),
        destination: destination.parse().expect("an address with a port"),
    };
    explain(&snapshot, about, &packet)
}

fn explained(spec: &SnapshotSpec, destination: &str) -> Explanation {
    explained_from(spec, "198.51.100.7:40000", destination, None)
}

/// The explanation of a running gateway, which resolves link addresses.
fn explained_running(spec: &SnapshotSpec, destination: &str) -> Explanation {
    let neighbors = NeighborTable::new();
    let (snapshot, _) = Snapshot::compile(spec, None, &neighbors).expect("a spec that compiles");
    let about = Circumstances {
        assumes_neighbors: false,
        pool: Some("public"),
        ..Circumstances::of_files(&neighbors, Now::default(), None)
    };
    let [source, destination] =
        ["198.51.100.7:40000", destination].map(|text| text.parse().expect("an address with a port"));
    explain(&snapshot, about, &Packet { protocol: Transport(Protocol::Tcp), source, destination })
}

fn found<'a>(answer: &'a Explanation, step: &str) -> &'a str {
    let step = answer.steps.iter().find(|s| s.step == step);
    step.map(|s| s.found.as_str()).unwrap_or_else(|| panic!("a step of that name in\n{answer}"))
}

const ACTIVE: BackendState = BackendState::Active;

#[test]
fn a_syn_cookie_for_a_new_connection_is_shown() {
    let of = |mode, cookies| {
        let mut spec = spec(vec![service(mode, "203.0.113.1", 80, &[("10.0.0.1", 80, ACTIVE)])]);
        spec.network.policy.syn_cookies = cookies;
        let steps = explained(&spec, "203.0.113.1:80").steps;
        steps.into_iter().find(|step| step.step == "syn cookie").map(|step| step.found)
    };
    let always = of(ForwardingMode::FullNat, SynCookies::Always);
    assert_eq!(
        always.as_deref(),
        Some("always: the gateway answers the SYN (syn_cookie), and the next segment starts the flow")
    );
    assert!(of(ForwardingMode::Nat, SynCookies::Auto).is_some());
    assert_eq!(of(ForwardingMode::FullNat, SynCookies::Off), None);
    assert_eq!(of(ForwardingMode::DsrIpip, SynCookies::Always), None);
    let web = service(ForwardingMode::Nat, "203.0.113.1", 80, &[("10.0.0.1", 80, ACTIVE)]);
    let mut own = spec(vec![ServiceSpec { syn_cookies: Some(SynCookies::Off), ..web }]);
    own.network.policy.syn_cookies = SynCookies::Always;
    assert!(explained(&own, "203.0.113.1:80").steps.iter().all(|step| step.step != "syn cookie"));
}

#[test]
fn a_forwarded_packet_is_followed_from_vip_to_link_address() {
    let spec = spec(vec![service(ForwardingMode::FullNat, "203.0.113.1", 80, &[("10.0.0.1", 8080, ACTIVE)])]);
    let answer = explained(&spec, "203.0.113.1:80");
    let steps: Vec<&str> = answer.steps.iter().map(|s| s.step.as_str()).collect();
    let expected =
        ["destination", "service", "source range", "flow", "seat", "backend", "mode", "next hop", "mtu"];
    assert_eq!(steps, expected);
    assert_eq!(
        (answer.verdict.as_str(), answer.reason.as_str(), answer.generation),
        ("transmit", "forward", 7)
    );
    assert_eq!(answer.service.as_deref(), Some("default/web:http"));
    assert_eq!(answer.backend, Some("10.0.0.1:8080".parse().expect("an address")));
    assert_eq!(
        found(&answer, "next hop"),
        "router 192.0.2.1 on uplink, 02:00:00:00:00:01 (dataplane.neighbors)"
    );
    assert!(found(&answer, "mode").contains("192.0.2.3"), "{answer}");
}

#[test]
fn a_proxy_protocol_header_is_shown_as_the_backend_receives_it() {
    let proxied = ServiceSpec {
        proxy_protocol: Some(ProxyVersion::V1),
        ..service(ForwardingMode::FullNat, "203.0.113.1", 80, &[("10.0.0.1", 8080, ACTIVE)])
    };
    let answer = explained(&spec(vec![proxied]), "203.0.113.1:80");
    assert_eq!(
        found(&answer, "proxy protocol"),
        "v1, 46 bytes in front of the client's data: PROXY TCP4 198.51.100.7 203.0.113.1 40000 80"
    );
}

#[test]
fn the_backend_is_the_one_that_the_selection_hash_chooses() {
    let backends = [("10.0.0.1", 80, ACTIVE), ("10.0.0.2", 80, ACTIVE), ("10.0.0.3", 80, ACTIVE)];
    let spec = spec(vec![service(ForwardingMode::Nat, "203.0.113.1", 80, &backends)]);
    let neighbors = NeighborTable::new();
    let (snapshot, _) = Snapshot::compile(&spec, None, &neighbors).expect("a spec that compiles");
    let vip = Addr::v4([203, 0, 113, 1]);
    let service = snapshot.service(Snapshot::hash_service(&vip, 6, 80), &vip, 6, 80).expect("it is there");
    for port in 40_000..40_050 {
        let answer = explained_from(&spec, &format!("198.51.100.7:{port}"), "203.0.113.1:80", None);
        let hash = selection_hash(&Addr::v4([198, 51, 100, 7]), port, &vip, 80, 6);
        let owner = service.select(hash).and_then(|id| snapshot.backend(id)).expect("all are active");
        assert_eq!(answer.backend, Some(SocketAddr::new(owner.address.ip(), 80)));
    }
}

#[test]
fn rendezvous_shows_seat_and_rank_and_maglev_the_slot() {
    let backends = [("10.0.0.1", 80, ACTIVE), ("10.0.0.2", 80, ACTIVE)];
    let by = |scheduler| {
        let mut web = service(ForwardingMode::Nat, "203.0.113.1", 80, &backends);
        web.scheduler = scheduler;
        explained(&spec(vec![web]), "203.0.113.1:80")
    };
    let answer = by(Scheduler::Rendezvous);
    let Some(BackendChoice::Seat { seat, deck: 0, rank, seats: 2 }) = answer.choice else {
        panic!("{answer}")
    };
    let words = format!(
        "{seat}: this seat comes first among the 2 occupied seats in the flow's order, at rank {rank} of 8192; hash 0x"
    );
    assert!(found(&answer, "seat").starts_with(&words), "{answer}");
    let owns = "owns the seat: weight 1, 1 seat (50.0 %), one of 2 backends (2 active)";
    assert!(found(&answer, "backend").ends_with(owns), "{answer}");

    let answer = by(Scheduler::Maglev { slots: 251 });
    let Some(BackendChoice::Slot { slot, slots: 251 }) = answer.choice else { panic!("{answer}") };
    assert!(found(&answer, "slot").starts_with(&format!("{slot} of 251: hash 0x")), "{answer}");
    assert!(found(&answer, "backend").contains("owns the slot: weight 1, 12"), "{answer}");
}

#[test]
fn a_stateful_scheduler_lists_its_candidates_and_no_single_backend() {
    let explain_scheduler = |scheduler, backends: &[(&str, u16, BackendState)]| {
        let mut web = service(ForwardingMode::Nat, "203.0.113.1", 80, backends);
        web.scheduler = scheduler;
        explained(&spec(vec![web]), "203.0.113.1:80")
    };
    let two = [("10.0.0.1", 80, ACTIVE), ("10.0.0.2", 80, ACTIVE)];
    for (scheduler, how) in [
        (Scheduler::WeightedRoundRobin, "wrr: the worker that receives the packet assigns its new flows"),
        (Scheduler::Loads(LoadRule::LeastConnections), "lc: the worker that receives the packet compares"),
    ] {
        let answer = explain_scheduler(scheduler, &two);
        let name = scheduler.as_str().to_owned();
        assert_eq!(answer.choice, Some(BackendChoice::OfWorker { scheduler: name, candidates: 2 }));
        assert!(found(&answer, "scheduler").starts_with(how), "{answer}");
        let named = "one of 10.0.0.1:80 (50.0 %), 10.0.0.2:80 (50.0 %) (share by weight)";
        assert_eq!(found(&answer, "backend"), named);
        assert_eq!(
            (answer.verdict, answer.reason.as_str(), answer.backend),
            (PacketVerdict::Transmit, "forward", None)
        );
        let one = explain_scheduler(scheduler, &two[..1]);
        assert_eq!(one.backend, Some("10.0.0.1:80".parse().expect("an address")), "{one}");
    }
    let source = explain_scheduler(Scheduler::SourceHash, &two);
    assert!(found(&source, "seat").ends_with("of the client's address alone"), "{source}");
    let destination = explain_scheduler(Scheduler::DestinationHash, &two);
    assert!(found(&destination, "seat").ends_with("of the VIP alone"), "{destination}");
}

#[test]
fn hash_client_is_shown_as_the_input_of_the_choice() {
    let backends = [("10.0.0.1", 80, ACTIVE), ("10.0.0.2", 80, ACTIVE)];
    for (scheduler, step) in [(Scheduler::Rendezvous, "seat"), (Scheduler::Maglev { slots: 251 }, "slot")] {
        let mut web = service(ForwardingMode::Nat, "203.0.113.1", 80, &backends);
        web.scheduler = scheduler;
        web.choice.hash = tidegate_spec::HashInput::Client;
        let answer = explained(&spec(vec![web]), "203.0.113.1:80");
        assert!(found(&answer, step).ends_with("of the client's address alone"), "{answer}");
    }
}

#[test]
fn a_warming_backend_is_shown_with_its_share_and_where_other_flows_go() {
    let backends = [("10.0.0.1", 80, ACTIVE), ("10.0.0.2", 80, ACTIVE)];
    let mut web = service(ForwardingMode::Nat, "203.0.113.1", 80, &backends);
    let cold = tidegate_spec::Warming { address: "10.0.0.2".parse().expect("an address"), port: 80, step: 3 };
    web.choice.warming = [cold].into();
    let spec = spec(vec![web]);
    let (mut taken, mut not_taken) = (0, 0);
    for port in 40_000..40_200 {
        let answer = explained_from(&spec, &format!("198.51.100.7:{port}"), "203.0.113.1:80", None);
        let backend = answer.backend.map(|at| at.to_string()).expect("it has one");
        match answer.steps.iter().find(|step| step.step == "slow start") {
            Some(step) if backend == "10.0.0.2:80" => {
                assert_eq!(
                    step.found,
                    "10.0.0.2:80 is warming up and gets 3/10 of its share of flows, including this flow"
                );
                taken += 1;
            }
            Some(step) => {
                let words = "10.0.0.2:80 is warming up and gets 3/10 of its share of flows; this flow goes to a \
                    backend that is not warming up";
                assert_eq!((step.found.as_str(), backend.as_str()), (words, "10.0.0.1:80"));
                not_taken += 1;
            }
            None => assert_eq!(backend, "10.0.0.1:80", "{answer}"),
        }
    }
    assert!(taken > 10 && not_taken > taken, "{taken} {not_taken}");
}

#[test]
fn affinity_hashes_only_the_client() {
    let backends = [("10.0.0.1", 80, ACTIVE), ("10.0.0.2", 80, ACTIVE), ("10.0.0.3", 80, ACTIVE)];
    let mut web = service(ForwardingMode::Nat, "203.0.113.1", 80, &backends);
    web.affinity = Some(Duration::from_secs(10_800));
    let spec = spec(vec![web]);
    let chosen: std::collections::BTreeSet<_> = (40_000..40_050)
        .map(|port| explained_from(&spec, &format!("198.51.100.7:{port}"), "203.0.113.1:80", None).backend)
        .collect();
    assert_eq!(chosen.len(), 1);
}

#[test]
fn a_tunnel_header_reduces_the_mtu() {
    let web = service(ForwardingMode::DsrIpip, "203.0.113.1", 80, &[("192.0.2.11", 80, ACTIVE)]);
    let answer = explained(&spec(vec![web]), "203.0.113.1:80");
    let next_hop = Some("192.0.2.11".parse().expect("an address"));
    assert_eq!(answer.egress, Some(Egress { interface: "uplink".to_owned(), next_hop, mtu: 1480 }));
}

#[test]
fn longer_packets_are_handled_by_family_policy_and_header() {
    let backends = [("192.0.2.11", 80, ACTIVE)];
    let mut direct = spec(vec![service(ForwardingMode::DsrL2, "203.0.113.1", 80, &backends)]);
    let answer = explained(&direct, "203.0.113.1:80");
    assert_eq!(
        found(&answer, "mtu"),
        "1500 bytes, the MTU of uplink; longer packets are fragmented or, with DF, answered with \"fragmentation \
         needed\""
    );
    direct.network.policy.fragment_ipv4 = false;
    let answer = explained(&direct, "203.0.113.1:80");
    assert!(found(&answer, "mtu").ends_with("even without DF (dataplane.oversized: answer)"), "{answer}");

    let six = [service(ForwardingMode::DsrIpip, "2001:db8:1::1", 80, &backends)];
    let explain_v6 =
        |spec: &SnapshotSpec| explained_from(spec, "[2001:db8:9::7]:40000", "[2001:db8:1::1]:80", None);
    let mut tunnel = spec(six.to_vec());
    let answer = explain_v6(&tunnel);
    assert!(
        found(&answer, "mtu").ends_with("; longer packets are answered with \"packet too big\""),
        "{answer}"
    );
    tunnel.network.interfaces[0].mtu = 1280;
    let answer = explain_v6(&tunnel);
    assert!(found(&answer, "mtu").ends_with("in fragments of the outer packet"), "{answer}");

    use tidegate_wire::proxy_tlvs::ProxyTlvs;
    let (none, both) = (ProxyTlvs::NONE, ProxyTlvs::UNIQUE_ID.and(ProxyTlvs::CRC32C));
    for (version, proxy_tlvs, protocol, needs) in [
        (ProxyVersion::V1, none, Protocol::Tcp, "the first segment needs 46 more bytes"),
        (ProxyVersion::V2, none, Protocol::Udp, "each datagram needs 28 more bytes"),
        (ProxyVersion::V2, both, Protocol::Udp, "each datagram needs 35 more bytes"),
        (ProxyVersion::V2, both, Protocol::Tcp, "the first segment needs 54 more bytes"),
    ] {
        let plain = service(ForwardingMode::Nat, "203.0.113.1", 80, &backends);
        let key = ServiceKey { protocol, ..plain.key };
        let proxied = spec(vec![ServiceSpec { key, proxy_protocol: Some(version), proxy_tlvs, ..plain }]);
        let neighbors = NeighborTable::new();
        let (snapshot, _) = Snapshot::compile(&proxied, None, &neighbors).expect("a spec that compiles");
        let packet = Packet {
            protocol: Transport(protocol),
            source: "198.51.100.7:40000".parse().expect("an address"),
            destination: "203.0.113.1:80".parse().expect("an address"),
        };
        let answer = explain(&snapshot, Circumstances::of_files(&neighbors, Now::default(), None), &packet);
        let expected = format!("{needs} for the PROXY protocol header");
        assert!(found(&answer, "mtu").ends_with(&expected), "{answer}");
        let header = found(&answer, "proxy protocol");
        assert_eq!(header.contains("; TLVs "), proxy_tlvs != none, "{header}");
        assert_eq!(
            header.ends_with("; TLVs unique-id, crc32c"),
            expected.contains("54 more bytes"),
            "{header}"
        );
    }

    let plain = service(ForwardingMode::FullNat, "203.0.113.1", 80, &backends);
    let toa = spec(vec![ServiceSpec { proxy_protocol: Some(ProxyVersion::Toa), ..plain }]);
    let answer = explained(&toa, "203.0.113.1:80");
    assert_eq!(
        found(&answer, "proxy protocol"),
        "toa, TCP option 254 of 8 bytes in each segment of the client until the backend has acknowledged data: \
         198.51.100.7:40000"
    );
    assert!(
        found(&answer, "mtu").ends_with("each segment needs 8 more bytes for the TOA option"),
        "{answer}"
    );
}

#[test]
fn traffic_that_a_backend_originates_is_shown_as_forwarded_or_refused() {
    for (forward, verdict) in [(true, "transmit routed"), (false, "transmit not_routed")] {
        let mut spec = spec(vec![]);
        spec.network.gateway = GatewaySpec {
            prefixes: vec!["192.0.2.0/25".parse().expect("a net")],
            forward,
            masquerade: vec![],
        };
        let answer = explained_from(&spec, "192.0.2.11:40000", "10.1.2.3:53", None);
        assert_eq!(format!("{} {}", answer.verdict, answer.reason), verdict);
        assert!(found(&answer, "gateway").starts_with("192.0.2.11 is in dataplane.gateway.prefixes"));
        let elsewhere = explained_from(&spec, "192.0.2.200:40000", "10.1.2.3:53", None);
        assert_eq!((elsewhere.verdict.as_str(), elsewhere.reason.as_str()), ("punt", "not_ours"));
    }
}

#[test]
fn masqueraded_traffic_is_shown_as_leaving_with_a_snat_address() {
    let net = || vec!["192.0.2.0/25".parse().expect("a net")];
    let mut spec = spec(vec![]);
    spec.network.gateway = GatewaySpec { prefixes: net(), forward: true, masquerade: net() };
    let answer = explained_from(&spec, "192.0.2.11:40000", "10.1.2.3:53", None);
    assert_eq!((answer.verdict.as_str(), answer.reason.as_str()), ("transmit", "masqueraded"));
    assert!(
        found(&answer, "masquerade").contains("the source becomes one of dataplane.snatAddresses"),
        "{answer}"
    );
    let inside = explained_from(&spec, "192.0.2.11:40000", "192.0.2.12:53", None);
    assert_eq!((inside.verdict.as_str(), inside.reason.as_str()), ("transmit", "routed"));
}

#[test]
fn the_limit_of_the_segment_size_is_shown_where_it_applies() {
    let limited = |mode, clamp| {
        let port = if mode == ForwardingMode::FullNat { 8080 } else { 80 };
        let web = service(mode, "203.0.113.1", 80, &[("192.0.2.11", port, ACTIVE)]);
        let answer = explained(&spec(vec![ServiceSpec { mss_clamp: clamp, ..web }]), "203.0.113.1:80");
        answer.steps.iter().find(|step| step.step == "segment size").map(|step| step.found.clone())
    };
    let in_syn = |most: u16, whose: &str| {
        Some(format!(
            "at most {most} bytes {whose}, or less if the packet arrives on a link with a smaller MTU"
        ))
    };
    let both = "in the SYN and in the backend's SYN ACK";
    assert_eq!(limited(ForwardingMode::FullNat, MssClamp::Path), in_syn(1460, both));
    assert_eq!(limited(ForwardingMode::FullNat, MssClamp::AtMost(1400)), in_syn(1400, both));
    assert_eq!(limited(ForwardingMode::DsrIpip, MssClamp::Path), in_syn(1440, "in the client's SYN"));
    assert_eq!(limited(ForwardingMode::DsrL2, MssClamp::Path), None, "both links are one");
    assert_eq!(limited(ForwardingMode::FullNat, MssClamp::Off), None);
}

#[test]
fn passive_health_is_shown_if_another_backend_can_be_tried() {
    let web = |backends: &[_], rules| {
        let web = service(ForwardingMode::FullNat, "203.0.113.1", 80, backends);
        spec(vec![ServiceSpec { passive_health: Some(rules), ..web }])
    };
    let (one, two) = (("192.0.2.11", 8080, ACTIVE), ("192.0.2.12", 8080, ACTIVE));
    let rules = PassiveHealth::default();
    let shown = |backends: &[_], rules| {
        let answer = explained(&web(backends, rules), "203.0.113.1:80");
        answer.steps.iter().find(|step| step.step == "passive health").map(|step| step.found.clone())
    };
    let found = "if the backend refuses the connection, up to 2 others are tried; after 3 failures in a row it is set \
                 aside for 10s (at most 50 % of all backends at once)";
    assert_eq!(shown(&[one, two], rules).as_deref(), Some(found));
    assert_eq!(shown(&[one], rules), None, "there is no other backend");
    let retries = PassiveHealth { failures: 0, retries: 1, ..rules };
    let found = "if the backend refuses the connection, another one is tried";
    assert_eq!(shown(&[one, two], retries).as_deref(), Some(found));

    let neighbors = NeighborTable::new();
    let (snapshot, _) = Snapshot::compile(&web(&[one, two], rules), None, &neighbors).expect("compiles");
    let ids: Vec<_> =
        snapshot.services().flat_map(|(_, info)| info.backends.iter().map(|one| one.id)).collect();
    let packet = Packet {
        protocol: Transport(Protocol::Tcp),
        source: "198.51.100.7:40000".parse().expect("an address with a port"),
        destination: "203.0.113.1:80".parse().expect("an address with a port"),
    };
    let about =
        Circumstances { set_aside: &ids, ..Circumstances::of_files(&neighbors, Now::default(), None) };
    let answer = explain(&snapshot, about, &packet).to_string();
    assert!(
        answer.contains("a worker has set this backend aside and assigns new flows to other backends"),
        "{answer}"
    );
}

#[test]
fn a_known_path_mtu_and_the_outer_source_of_the_flow_are_shown() {
    let web = service(ForwardingMode::DsrIpip, "203.0.113.1", 80, &[("192.0.2.11", 80, ACTIVE)]);
    let mut spec = spec(vec![web]);
    let flow = ("198.51.100.7:40000", "203.0.113.1:80");
    let neighbors = NeighborTable::new();
    neighbors.path_mtus().record(Addr::v4([192, 0, 2, 11]), 1400, Now::default());
    let answer = explained_with(&spec, &neighbors, flow, None);
    assert_eq!(answer.egress.as_ref().map(|egress| egress.mtu), Some(1380));
    assert!(
        found(&answer, "mtu").starts_with("1380 bytes: 1400, as reported by a router on the path"),
        "{answer}"
    );
    assert!(found(&answer, "mode").contains("header 192.0.2.2 -> 192.0.2.11"), "{answer}");

    spec.network.tunnel_source_v4 = Some("192.0.2.64/28".parse().expect("a prefix"));
    let answer = explained_with(&spec, &neighbors, flow, None);
    assert!(found(&answer, "mode").contains("(chosen from 192.0.2.64/28 by the flow's hash)"), "{answer}");
}

#[test]
fn the_share_of_rejected_flows_is_shown_and_whether_this_one_is_rejected() {
    let web = service(ForwardingMode::Nat, "203.0.113.1", 80, &[("10.0.0.1", 80, ACTIVE)]);
    let of = |rejected_ppm, source: &str| {
        let spec = spec(vec![ServiceSpec { rejected_ppm, ..web.clone() }]);
        explained_from(&spec, source, "203.0.113.1:80", None)
    };
    let answers: Vec<_> = (40_000..40_100).map(|port| of(125_000, &format!("198.51.100.7:{port}"))).collect();
    let rejected = answers.iter().filter(|answer| answer.reason == "no_endpoints");
    assert!((5..=20).contains(&rejected.count()), "one eighth of 100");
    for answer in &answers {
        let found = found(answer, "rejected share");
        assert!(found.starts_with("12.5 % of new flows are rejected"), "{answer}");
        let (end, is_served) = match answer.reason == "no_endpoints" {
            true => ("this flow is one of them", false),
            false => ("this flow is not one of them", true),
        };
        assert!(found.ends_with(end), "{answer}");
        assert_eq!(answer.backend.is_some(), is_served, "{answer}");
    }
    let none = of(0, "198.51.100.7:40000");
    assert!(none.steps.iter().all(|step| step.step != "rejected share"), "{none}");

    let spec = spec(vec![ServiceSpec { rejected_ppm: 1_000_000, ..web }]);
    let neighbors = NeighborTable::new();
    let (snapshot, _) = Snapshot::compile(&spec, None, &neighbors).expect("a spec that compiles");
    let flow = KnownFlow { backend: "10.0.0.1:80".parse().expect("an address") };
    let about =
        Circumstances { known_flow: Some(flow), ..Circumstances::of_files(&neighbors, Now::default(), None) };
    let [source, destination] =
        ["198.51.100.7:40000", "203.0.113.1:80"].map(|text| text.parse().expect("an address with a port"));
    let answer =
        explain(&snapshot, about, &Packet { protocol: Transport(Protocol::Tcp), source, destination });
    assert!(found(&answer, "rejected share").ends_with("this flow is known and is served"), "{answer}");
    assert_eq!(answer.backend, Some(flow.backend));
}

#[test]
fn each_refusal_shows_its_reason() {
    let none = spec(vec![service(ForwardingMode::Nat, "203.0.113.1", 80, &[])]);
    let end = |answer: &Explanation| format!("{} {}", answer.verdict, answer.reason);
    assert_eq!(end(&explained(&none, "203.0.113.1:80")), "transmit no_endpoints");
    assert_eq!(end(&explained(&none, "203.0.113.1:81")), "transmit no_service");
    assert_eq!(end(&explained(&none, "192.0.2.2:22")), "punt local");
    assert_eq!(end(&explained(&none, "192.0.2.3:22")), "transmit no_flow");
    assert_eq!(end(&explained(&none, "8.8.8.8:53")), "punt not_ours");
    assert_eq!(end(&explained(&none, "224.0.0.5:53")), "punt local");

    let mut silent = none.clone();
    silent.network.policy =
        Policy { reset_unknown_flows: false, reject_unserved_ports: false, ..Policy::default() };
    assert_eq!(end(&explained(&silent, "203.0.113.1:81")), "drop no_service");
    assert_eq!(end(&explained(&silent, "192.0.2.3:22")), "drop no_snat_flow");

    let down = [("10.0.0.1", 80, BackendState::Down), ("10.0.0.2", 80, BackendState::Draining)];
    let answer =
        explained(&spec(vec![service(ForwardingMode::Nat, "203.0.113.1", 80, &down)]), "203.0.113.1:80");
    assert_eq!(found(&answer, "backend"), "none of the 2 backends accepts new flows (1 draining, 1 down)");

    let refused_port = explained_from(
        &none,
        "198.51.100.7:1",
        "203.0.113.1:443",
        Some("tidegate.dev/hash: client is not supported yet"),
    );
    assert!(
        found(&refused_port, "service")
            .ends_with("the gateway does not serve it: tidegate.dev/hash: client is not supported yet"),
        "{refused_port}"
    );

    let one = spec(vec![service(ForwardingMode::DsrL2, "203.0.113.1", 80, &[("192.0.2.12", 80, ACTIVE)])]);
    let offline = explained(&one, "203.0.113.1:80");
    assert_eq!(end(&offline), "transmit forward");
    assert!(found(&offline, "next hop").ends_with("a running gateway resolves it"), "{offline}");
    assert_eq!(end(&explained_running(&one, "203.0.113.1:80")), "drop neighbor_unresolved");
    assert_eq!(end(&explained_from(&one, "127.0.0.1:5", "203.0.113.1:80", None)), "drop bad_source");
    assert_eq!(end(&explained_from(&one, "[2001:db8::9]:5", "203.0.113.1:80", None)), "drop bad_source");
}

#[test]
fn a_backend_that_is_its_own_client_is_masqueraded_or_refused() {
    let own = |mode| spec(vec![service(mode, "203.0.113.1", 80, &[("10.0.0.1", 80, ACTIVE)])]);
    let answer = explained_from(&own(ForwardingMode::Nat), "10.0.0.1:5", "203.0.113.1:80", None);
    assert!(found(&answer, "hairpin").contains("sent to it from 192.0.2.3"), "{answer}");
    assert_eq!(answer.verdict, PacketVerdict::Transmit);
    let mut without = own(ForwardingMode::Nat);
    without.network.snat_addresses.clear();
    let answer = explained_from(&without, "10.0.0.1:5", "203.0.113.1:80", None);
    assert_eq!((answer.verdict.as_str(), answer.reason.as_str()), ("drop", "hairpin"));
    assert!(found(&answer, "hairpin").contains("dataplane.snatAddresses"), "{answer}");
    for (mode, source) in [(ForwardingMode::FullNat, "10.0.0.1:5"), (ForwardingMode::Nat, "10.0.0.2:5")] {
        let answer = explained_from(&own(mode), source, "203.0.113.1:80", None);
        assert!(answer.steps.iter().all(|step| step.step != "hairpin"), "{answer}");
    }
}

#[test]
fn a_forged_source_is_refused_with_the_reason() {
    let mut spec = spec(vec![service(ForwardingMode::Nat, "203.0.113.1", 80, &[("10.0.0.1", 80, ACTIVE)])]);
    let to = "0.0.0.0/0".parse().expect("a net");
    spec.network.routes.push(RouteSpec { to, via: "192.0.2.1".parse().expect("an address") });
    for (source, why) in [
        ("203.0.113.1:5", "203.0.113.1 is an address of the gateway"),
        ("192.0.2.3:5", "192.0.2.3 is an address of the gateway"),
        ("192.0.2.255:5", "192.0.2.255 cannot be answered"),
        ("192.0.2.1:5", "192.0.2.1 is the next hop of a default route"),
    ] {
        let answer = explained_from(&spec, source, "203.0.113.1:80", None);
        assert_eq!((answer.verdict.as_str(), answer.reason.as_str()), ("drop", "bad_source"));
        assert!(found(&answer, "source").starts_with(why), "{answer}");
    }
    for (source, destination, end) in [
        ("203.0.113.1:5", "203.0.113.1:81", ("drop", "bad_source")),
        ("203.0.113.1:5", "192.0.2.2:22", ("drop", "bad_source")),
        ("192.0.2.1:5", "192.0.2.2:179", ("punt", "local")),
        ("0.0.0.0:68", "255.255.255.255:67", ("punt", "local")),
    ] {
        let answer = explained_from(&spec, source, destination, None);
        assert_eq!((answer.verdict.as_str(), answer.reason.as_str()), end, "{answer}");
    }
    let answer = explained_from(&spec, "169.254.1.1:5", "203.0.113.1:80", None);
    assert_eq!((answer.verdict.as_str(), answer.reason.as_str()), ("drop", "bad_source"), "{answer}");
    spec.network.interfaces[0].addresses.push("169.254.0.9/16".parse().expect("a net"));
    let answer = explained_from(&spec, "169.254.1.1:5", "203.0.113.1:80", None);
    assert!(
        found(&answer, "source").contains("directly from that host") && answer.backend.is_some(),
        "{answer}"
    );
}

#[test]
fn the_source_range_that_allows_or_refuses_a_client_is_shown() {
    let net = |text: &str| text.parse().expect("a net");
    let mut web = service(ForwardingMode::Nat, "203.0.113.1", 80, &[("10.0.0.1", 80, ACTIVE)]);
    web.source_ranges = Some([net("198.51.0.0/16"), net("198.51.100.0/24"), net("192.0.2.0/24")].into());
    let closed = spec(vec![web]);
    let inside = explained(&closed, "203.0.113.1:80");
    assert_eq!(
        found(&inside, "source range"),
        "198.51.100.7 is allowed: 198.51.100.0/24 is the longest matching source range"
    );
    assert_eq!(inside.verdict, PacketVerdict::Transmit);
    let outside = explained_from(&closed, "8.8.8.8:40000", "203.0.113.1:80", None);
    assert_eq!((outside.verdict.as_str(), outside.reason.as_str()), ("drop", "source_range"));
    assert_eq!(
        found(&outside, "source range"),
        "8.8.8.8 is refused: none of the 3 source ranges of its family matches"
    );
    assert_eq!(outside.backend, None);
    let open = spec(vec![service(ForwardingMode::Nat, "203.0.113.1", 80, &[("10.0.0.1", 80, ACTIVE)])]);
    assert!(
        found(&explained(&open, "203.0.113.1:80"), "source range").starts_with("all clients are allowed")
    );
}

#[test]
fn text_and_json_agree() {
    let spec = spec(vec![service(ForwardingMode::Nat, "203.0.113.1", 80, &[("10.0.0.1", 80, ACTIVE)])]);
    let answer = explained(&spec, "203.0.113.1:80");
    let text = answer.to_string();
    assert!(text.starts_with(
        "TCP 198.51.100.7:40000 -> 203.0.113.1:80, with snapshot generation 7\n 1. destination  "
    ));
    assert!(text.ends_with("=> transmit (forward) to 10.0.0.1:80\n"));
    let json = serde_json::to_string(&answer).expect("plain values");
    assert_eq!(serde_json::from_str::<Explanation>(&json).expect("what was written"), answer);
}

#[test]
fn session_affinity_overrides_the_hash_in_the_explanation() {
    let backends =
        [("10.0.0.1", 80, ACTIVE), ("10.0.0.2", 80, ACTIVE), ("10.0.0.3", 80, BackendState::Draining)];
    let mut web = service(ForwardingMode::FullNat, "203.0.113.1", 80, &backends);
    web.affinity = Some(Duration::from_secs(10_800));
    let spec = spec(vec![web]);
    let neighbors = NeighborTable::new();
    let (snapshot, _) = Snapshot::compile(&spec, None, &neighbors).expect("a spec that compiles");
    let packet = Packet {
        protocol: Transport(Protocol::Tcp),
        source: "198.51.100.7:40000".parse().expect("an address with a port"),
        destination: "203.0.113.1:80".parse().expect("an address with a port"),
    };
    let of_files = Circumstances::of_files(&neighbors, Now::default(), None);
    let by_hash = explain(&snapshot, of_files, &packet).backend.expect("one is active");
    for (n, state) in [(1, true), (2, true), (3, false), (4, false)] {
        let at = format!("10.0.0.{n}:80").parse().expect("an address with a port");
        let about = Circumstances { affinity: Some(at), ..of_files };
        let answer = explain(&snapshot, about, &packet);
        assert_eq!(answer.backend, Some(if state { at } else { by_hash }), "{answer}");
        assert!(found(&answer, "affinity").contains(&at.to_string()));
    }
    let about = Circumstances { silent_workers: 1, ..of_files };
    assert!(found(&explain(&snapshot, about, &packet), "flow").contains("1 did not answer in time"));
}

#[test]
fn an_explanation_is_one_flat_json_object_and_round_trips() {
    let backends = [("10.0.0.1", 80, ACTIVE), ("10.0.0.2", 80, ACTIVE)];
    let by = |scheduler| {
        let mut web = service(ForwardingMode::Nat, "203.0.113.1", 80, &backends);
        web.scheduler = scheduler;
        explained(&spec(vec![web]), "203.0.113.1:80")
    };
    let way = ["interface", "nextHop", "mtu"];
    let both = [by(Scheduler::Rendezvous), by(Scheduler::Maglev { slots: 251 })];
    for (answer, choice) in both.into_iter().zip([&["seat", "deck", "rank", "seats"][..], &["slot", "slots"]])
    {
        let json = serde_json::to_value(&answer).expect("JSON");
        let keys: Vec<&String> = json.as_object().expect("an object").keys().collect();
        assert!(way.iter().chain(choice).all(|key| json[key].is_u64() || json[key].is_string()), "{keys:?}");
        assert_eq!(keys.len(), 9 + choice.len() + way.len(), "{keys:?}");
        assert_eq!(serde_json::from_value::<Explanation>(json).expect("its own JSON"), answer);
    }
    let refused = explained(&spec(vec![]), "203.0.113.1:80");
    let json = serde_json::to_value(&refused).expect("JSON");
    let mut keys: Vec<&String> = json.as_object().expect("an object").keys().collect();
    keys.sort();
    assert_eq!(keys, ["generation", "packet", "reason", "steps", "verdict"]);
    assert_eq!(serde_json::from_value::<Explanation>(json).expect("its own JSON"), refused);
}

#[test]
fn the_limits_of_a_service_and_the_one_that_refuses_a_flow_are_shown() {
    let limits = ServiceLimits {
        connections: std::num::NonZeroU32::new(1),
        bandwidth: std::num::NonZeroU64::new(2_500_000_000),
        ..ServiceLimits::default()
    };
    let mut lab = Lab::new(vec![ServiceSpec {
        limits,
        ..lab::service(ForwardingMode::Nat, Protocol::Tcp, "203.0.113.5:80", &["10.0.0.1:80"])
    }]);
    let packet = Packet {
        protocol: Transport(Protocol::Tcp),
        source: "198.51.100.7:40000".parse().expect("an address with a port"),
        destination: "203.0.113.5:80".parse().expect("an address with a port"),
    };
    let explained =
        |lab: &Lab| explain(&lab.snapshot, Circumstances::of_files(&lab.neighbors, lab.now, None), &packet);
    let answer = explained(&lab);
    assert_eq!(answer.verdict, PacketVerdict::Transmit, "{answer}");
    assert_eq!(
        found(&answer, "limits"),
        "default/web, on all ports and addresses together: at most 1 connections, 0 now, bandwidth 2500 Mbit/s in each \
         direction"
    );
    lab.send(Builder::tcp("198.51.100.8:40000", "203.0.113.5:80").flags(flags::SYN));
    let answer = explained(&lab);
    assert_eq!(
        (answer.verdict, answer.reason.as_str()),
        (PacketVerdict::Drop, "service_connections"),
        "{answer}"
    );
    assert!(found(&answer, "limits").ends_with("a new connection is refused until one ends"), "{answer}");
}

#[test]
fn the_reply_is_followed_to_the_client_or_passes_the_gateway() {
    let to = |mode, backend: &str| {
        let mut spec = spec(vec![service(mode, "203.0.113.1", 80, &[(backend, 80, ACTIVE)])]);
        spec.network.routes.push(testing::route("198.51.100.0/24", "192.0.2.1"));
        let reply = explained(&spec, "203.0.113.1:80").reply;
        reply.into_iter().map(|step| format!("{}: {}", step.step, step.found)).collect::<Vec<_>>()
    };
    assert_eq!(
        to(ForwardingMode::FullNat, "10.0.0.1"),
        [
            "reply: 10.0.0.1:80 answers to the SNAT address and port of the flow",
            "rewrite: the source becomes 203.0.113.1:80, the destination 198.51.100.7:40000",
            "next hop: router 192.0.2.1 on uplink, 02:00:00:00:00:01 (dataplane.neighbors)",
            "mtu: 1500 of uplink: a longer reply is fragmented or refused",
        ]
    );
    assert!(to(ForwardingMode::Nat, "10.0.0.1")[0].contains("must lead to the gateway"));
    let direct = to(ForwardingMode::DsrL2, "192.0.2.11");
    assert_eq!(
        direct,
        ["reply: the backend sends it from 203.0.113.1:80 straight to 198.51.100.7:40000, past the gateway"]
    );
    let spec = spec(vec![service(ForwardingMode::Nat, "203.0.113.1", 80, &[("10.0.0.1", 80, ACTIVE)])]);
    let lost = explained(&spec, "203.0.113.1:80").reply;
    assert!(lost.last().is_some_and(|step| step.found.contains("dropped as no_route")), "{lost:?}");
}

#[test]
fn an_address_of_a_pool_that_no_service_has_is_named_with_its_pool() {
    let spec = spec(vec![service(ForwardingMode::Nat, "203.0.113.1", 80, &[("10.0.0.1", 80, ACTIVE)])]);
    let answer = explained_running(&spec, "203.0.113.9:80");
    assert_eq!(found(&answer, "destination"), "203.0.113.9 is in pool public, assigned to no Service");
}
