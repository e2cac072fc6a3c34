//! The effect on packets: objects from both sources are reconciled, compiled, and used by the real pipeline.
//!
//! [`Gateways`] is the two gateways of [`Both`], each with a dataplane. A frame is sent through both, and the results
//! must be equal, byte for byte. The tests here cover the sentences of section 2 about flows. Affinity, source ranges,
//! own addresses and nodes have their own files.

use tidegate_pipeline::forward::snat_ports::Steering;
use tidegate_pipeline::pipeline::{FlowNote, Pipeline, PipelineConfig};
use tidegate_pipeline::testing::builder::{Builder, GATEWAY_MAC};
use tidegate_pipeline::testing::lab::{FrameResult, Lab, ROUTER_MAC, backend_mac};
use tidegate_spec::verdict::{PuntReason, Refusal, TransmitReason, Verdict};
use tidegate_spec::{NeighborSpec, NoEndpoints};
use tidegate_wire::tcp::flags;
use tidegate_wire::{Headers, Parsed, parse, tcp};

use super::*;

/// Both gateways, each with its dataplane.
pub(super) struct Gateways {
    both: Both,
    labs: [Lab; 2],
}

impl Gateways {
    /// Gateways without earlier state. Off-link addresses are behind a router; `10.0.1.1` to `10.0.1.9` are on-link.
    pub(super) fn new(both: Both) -> Self {
        Self::with_seed(both, 7)
    }

    /// Like [`Self::new`] with another seed, for values that may differ between gateways.
    pub(super) fn with_seed(both: Both, seed: u64) -> Self {
        let mut both = both.with(|world| {
            let route = |to: &str, via| RouteSpec { to: to.parse().expect("a network"), via: ip(via) };
            world.settings.network.routes =
                vec![route("0.0.0.0/0", "10.0.0.250"), route("::/0", "2001:db8::fa")];
            let routers =
                ["10.0.0.250", "2001:db8::fa"].map(|at| NeighborSpec { ip: ip(at), mac: ROUTER_MAC });
            let near = (1..=9).map(|n| NeighborSpec { ip: ip(&format!("10.0.1.{n}")), mac: backend_mac(n) });
            world.settings.network.neighbors = routers.into_iter().chain(near).collect();
        });
        let labs = both.step_each().map(|outcome| {
            let mut lab = Lab::with_spec(outcome.spec);
            let config =
                PipelineConfig { worker: 0, workers: 1, entries: 4096, seed, steering: Steering::Single };
            lab.pipeline = Pipeline::new(&config);
            lab
        });
        Self { both, labs }
    }

    /// Replaces the objects, and publishes the result to the workers.
    pub(super) fn set(&mut self, yaml: &str) {
        self.both.set(yaml);
        self.publish();
    }

    /// Changes both gateways, and publishes the result to the workers.
    pub(super) fn change(&mut self, change: impl Fn(&mut World)) {
        self.both.both(change);
        self.publish();
    }

    /// Advances the time, and publishes the result to the workers.
    pub(super) fn wait(&mut self, time: Duration) {
        self.both.both(|world| world.now += time);
        self.labs.iter_mut().for_each(|lab| lab.wait(time));
        self.publish();
    }

    fn publish(&mut self) {
        for (lab, outcome) in self.labs.iter_mut().zip(self.both.step_each()) {
            lab.change(|spec| *spec = SnapshotSpec { generation: spec.generation, ..outcome.spec });
        }
    }

    /// Sends a frame from the router to both gateways, and returns the common result.
    pub(super) fn send(&mut self, builder: Builder) -> FrameResult {
        let frame = builder.mac(ROUTER_MAC, GATEWAY_MAC).build();
        let [directory, api] = self.labs.each_mut().map(|lab| lab.receive(&frame));
        assert_eq!((directory.verdict, directory.note), (api.verdict, api.note));
        assert_eq!(directory.frame, api.frame);
        directory
    }

    /// The backend of a sent frame.
    pub(super) fn backend_of(&self, result: &FrameResult) -> IpAddr {
        self.labs[0].backend_of(result)
    }

    /// The number of known flows.
    pub(super) fn flows(&self) -> usize {
        let [directory, api] = self.labs.each_ref().map(|lab| lab.pipeline.flows().live());
        assert_eq!(directory, api);
        directory
    }
}

/// The headers of a frame.
pub(super) fn headers(frame: &[u8]) -> Headers {
    match parse(frame) {
        Ok(Parsed::Ip(headers)) => headers,
        other => panic!("{other:?}"),
    }
}

const VIP: &str = "203.0.113.5:80";

/// `web` at 203.0.113.5 with TCP 80 `http` and UDP 80 `dgram` to 8080; `spec` is more of its spec.
fn by_tcp_and_udp(spec: &str) -> String {
    web(&format!("  loadBalancerIP: 203.0.113.5\n{spec}")).replace(
        "ports: [{name: http, port: 80, targetPort: 8080}]",
        "ports: [{name: http, port: 80, targetPort: 8080}, {name: dgram, protocol: UDP, port: 80, targetPort: 8080}]",
    )
}

/// Endpoints of both ports.
fn endpoints(endpoints: &[&str]) -> String {
    slice_of_web("web-1", "IPv4", endpoints).replace(
        "[{name: http, protocol: TCP, port: 8080}]",
        "[{name: http, port: 8080}, {name: dgram, protocol: UDP, port: 8080}]",
    )
}

pub(super) fn segment(gateways: &mut Gateways, port: u16, flags: u8) -> FrameResult {
    gateways.send(Builder::tcp(format!("198.51.100.7:{port}").as_str(), VIP).flags(flags).seq_ack(100, 0))
}

fn datagram(gateways: &mut Gateways, port: u16) -> FrameResult {
    gateways.send(Builder::udp(format!("198.51.100.7:{port}").as_str(), VIP))
}

/// Opens connections from these ports, which their backends answer. Returns the backend of each.
pub(super) fn connected(gateways: &mut Gateways, ports: std::ops::Range<u16>) -> Vec<(u16, IpAddr)> {
    ports
        .map(|port| {
            let result = segment(gateways, port, flags::SYN);
            let sent = headers(result.sent(TransmitReason::Forward));
            let (backend, own) = ((sent.dst.ip(), sent.dst_port), (sent.src.ip(), sent.src_port));
            let answer = Builder::tcp(SocketAddr::from(backend), SocketAddr::from(own));
            gateways.send(answer.flags(flags::SYN | flags::ACK)).sent(TransmitReason::Reply);
            segment(gateways, port, flags::ACK).sent(TransmitReason::Forward);
            (port, gateways.backend_of(&result))
        })
        .collect()
}

#[test]
fn without_endpoints_tcp_gets_rst_and_udp_port_unreachable() {
    let mut gateways = Gateways::new(Both::new(&by_tcp_and_udp("")));
    let result = segment(&mut gateways, 40_000, flags::SYN);
    let answer = result.sent(TransmitReason::NoEndpoints);
    let reset = tcp::segment(answer, &headers(answer)).expect("a segment");
    assert_eq!((reset.flags, reset.ack), (flags::RST | flags::ACK, 101));
    let result = datagram(&mut gateways, 40_000);
    let answer = headers(result.sent(TransmitReason::NoEndpoints));
    assert_eq!((answer.icmp_type, answer.icmp_code), (3, 3), "destination unreachable, port unreachable");
    let answered = |gateways: &mut Gateways| {
        let results = (0..1000).map(|n| datagram(gateways, 41_000 + n).verdict);
        results.filter(|verdict| matches!(verdict, Verdict::Transmit { .. })).count()
    };
    let burst = answered(&mut gateways);
    assert!((1..1000).contains(&burst), "{burst} answers at once");
    assert_eq!(datagram(&mut gateways, 42_000).refused(), Refusal::NoEndpoints, "the rest is dropped");
    gateways.wait(Duration::from_secs(10));
    assert!(answered(&mut gateways) > 0, "and the rate limit recovers");

    gateways.change(|world| world.settings.services.defaults.no_endpoints = NoEndpoints::Drop);
    gateways.wait(Duration::from_secs(10));
    assert_eq!(segment(&mut gateways, 40_000, flags::SYN).refused(), Refusal::NoEndpoints);
    assert_eq!(datagram(&mut gateways, 40_000).refused(), Refusal::NoEndpoints);
}

#[test]
fn policy_local_with_endpoints_only_elsewhere_drops() {
    let local = by_tcp_and_udp("  externalTrafficPolicy: Local\n  healthCheckNodePort: 30500\n");
    let elsewhere = local.clone() + &endpoints(&["addresses: [10.1.0.1], nodeName: b"]);
    let on_a = Both::new(&elsewhere).with(|world| world.settings.node = Some("a".into()));
    let mut gateways = Gateways::new(on_a);
    assert_eq!(segment(&mut gateways, 40_000, flags::SYN).refused(), Refusal::NoEndpoints);
    assert_eq!(datagram(&mut gateways, 40_000).refused(), Refusal::NoEndpoints);
    gateways.set(&local);
    segment(&mut gateways, 40_000, flags::SYN).sent(TransmitReason::NoEndpoints);
}

#[test]
fn policy_local_with_endpoints_only_on_excluded_nodes_drops() {
    let local = by_tcp_and_udp("  externalTrafficPolicy: Local\n  healthCheckNodePort: 30500\n");
    let to_nodes = with_annotations(&local, "tidegate.dev/target: node, tidegate.dev/forwarding: dsr-ipip");
    let excluded = ", labels: {node.kubernetes.io/exclude-from-external-load-balancers: ''}";
    let nodes = node_yaml("a", &["10.0.1.1"], excluded) + &node_yaml("b", &["10.0.1.2"], "");
    let on_a = to_nodes.clone() + &nodes + &endpoints(&["addresses: [10.1.0.1], nodeName: a"]);
    let mut gateways = Gateways::new(Both::new(&on_a));
    assert_eq!(segment(&mut gateways, 40_000, flags::SYN).refused(), Refusal::NoEndpoints);
    gateways.set(&(to_nodes + &nodes));
    segment(&mut gateways, 40_000, flags::SYN).sent(TransmitReason::NoEndpoints);
}

#[test]
fn never_complete_a_handshake_without_a_backend() {
    let local = "  externalTrafficPolicy: Local\n  healthCheckNodePort: 30500\n";
    let unready = "addresses: [10.1.0.1], nodeName: b, conditions: {ready: false}";
    for (spec, endpoint) in
        [("", None), ("", Some(unready)), (local, Some("addresses: [10.1.0.1], nodeName: b"))]
    {
        for mode in ["nat", "fullnat", "dsr-ipip"] {
            let slice = endpoint.map(|one| endpoints(&[one])).unwrap_or_default();
            let yaml = with_annotations(&by_tcp_and_udp(spec), &format!("tidegate.dev/forwarding: {mode}"));
            // DSR does not change the port.
            let yaml = (yaml + &slice).replace("8080", "80");
            let on_a = Both::new(&yaml).with(|world| world.settings.node = Some("a".into()));
            let mut gateways = Gateways::new(on_a);
            for sent in [flags::SYN, flags::ACK, flags::SYN | flags::ACK] {
                let result = segment(&mut gateways, 40_000, sent);
                match result.verdict {
                    Verdict::Drop(_) => {}
                    Verdict::Transmit { why: TransmitReason::NoEndpoints, .. } => {
                        let answer = tcp::segment(&result.frame, &headers(&result.frame)).expect("a segment");
                        assert_ne!(answer.flags & flags::RST, 0, "{mode}");
                        assert_eq!(answer.flags & flags::SYN, 0, "{mode}");
                    }
                    other => panic!("{mode}: {other:?}"),
                }
                assert_eq!((gateways.flows(), result.note.flow), (0, FlowNote::None), "{mode}");
            }
        }
    }
}

#[test]
fn udp_flows_of_a_removed_backend_move_with_the_next_packet() {
    let three = ["addresses: [10.1.0.1]", "addresses: [10.1.0.2]", "addresses: [10.1.0.3]"];
    let unready = "addresses: [10.1.0.3], conditions: {ready: false}";
    let ended = "addresses: [10.1.0.3], conditions: {ready: false, serving: false, terminating: true}";
    let failing = |world: &mut World| {
        let targets = reconcile(&world.input()).targets;
        world.verdicts = targets.into_iter().filter(|target| target.address.ip() == ip("10.1.0.3")).collect();
    };
    for gone in ["removed", "unready", "ended", "failing"] {
        let mut gateways = Gateways::new(Both::new(&(by_tcp_and_udp("") + &endpoints(&three))));
        let had: Vec<(u16, IpAddr)> = (40_000..40_060)
            .map(|port| {
                let result = datagram(&mut gateways, port);
                (port, gateways.backend_of(&result))
            })
            .collect();
        match gone {
            "removed" => gateways.set(&(by_tcp_and_udp("") + &endpoints(&three[..2]))),
            "ended" => gateways.set(&(by_tcp_and_udp("") + &endpoints(&[three[0], three[1], ended]))),
            "unready" => gateways.set(&(by_tcp_and_udp("") + &endpoints(&[three[0], three[1], unready]))),
            _ => gateways.change(failing),
        }
        assert!(had.iter().any(|(_, backend)| *backend == ip("10.1.0.3")));
        for (port, had) in had {
            let result = datagram(&mut gateways, port);
            result.sent(TransmitReason::Forward);
            let now = gateways.backend_of(&result);
            if had == ip("10.1.0.3") {
                assert_ne!(now, had, "{gone}");
            } else {
                assert_eq!(now, had, "{gone}: flows of the others stay");
            }
        }
    }
}

#[test]
fn tcp_flows_of_a_removed_backend_continue_until_the_drain_timeout() {
    let drain = |yaml: String| with_annotations(&yaml, "tidegate.dev/drain-timeout: 60s");
    let leaving = "addresses: [10.1.0.2], conditions: {ready: false, serving: true, terminating: true}";
    let with = |more: &[&str]| {
        let all: Vec<&str> = ["addresses: [10.1.0.1]"].iter().chain(more).copied().collect();
        drain(by_tcp_and_udp("")) + &endpoints(&all)
    };
    let mut gateways = Gateways::new(Both::new(&with(&["addresses: [10.1.0.2]"])));
    let mut flows = connected(&mut gateways, 40_000..40_040);
    flows.retain(|(_, backend)| *backend == ip("10.1.0.2"));
    assert!(!flows.is_empty());
    let check = |gateways: &mut Gateways, new_ports: std::ops::Range<u16>| {
        for (port, had) in &flows {
            let result = segment(gateways, *port, flags::ACK);
            assert_eq!((gateways.backend_of(&result), result.note.flow), (*had, FlowNote::Known));
        }
        for port in new_ports {
            let result = segment(gateways, port, flags::SYN);
            assert_eq!(gateways.backend_of(&result), ip("10.1.0.1"));
        }
    };
    gateways.set(&with(&[leaving]));
    check(&mut gateways, 41_000..41_040);
    gateways.wait(Duration::from_secs(120));
    check(&mut gateways, 42_000..42_040);
    gateways.set(&with(&[]));
    check(&mut gateways, 43_000..43_040);
    gateways.wait(Duration::from_secs(59));
    check(&mut gateways, 44_000..44_040);
    gateways.wait(Duration::from_secs(1));
    for (port, _) in flows {
        // The drain has ended.
        segment(&mut gateways, port, flags::ACK).sent(TransmitReason::NoFlow);
    }
}

#[test]
fn a_removed_service_keeps_its_flows_and_owns_them_when_it_returns() {
    for mode in ["nat", "fullnat"] {
        let annotations = format!("tidegate.dev/forwarding: {mode}, tidegate.dev/drain-timeout: 60s");
        let slice = endpoints(&["addresses: [10.1.0.1]", "addresses: [10.1.0.2]"]);
        let here = with_annotations(&by_tcp_and_udp(""), &annotations) + &slice;
        let mut gateways = Gateways::new(Both::new(&here));
        let flows = connected(&mut gateways, 40_000..40_040);
        let alive = |gateways: &mut Gateways, when: &str| {
            for (port, had) in &flows {
                let result = segment(gateways, *port, flags::ACK);
                let sent = headers(result.sent(TransmitReason::Forward));
                assert_eq!(gateways.backend_of(&result), *had, "{mode}, {when}");
                let (backend, own) = ((sent.dst.ip(), sent.dst_port), (sent.src.ip(), sent.src_port));
                let answer = Builder::tcp(SocketAddr::from(backend), SocketAddr::from(own)).flags(flags::ACK);
                gateways.send(answer).sent(TransmitReason::Reply);
            }
        };
        gateways.set("");
        alive(&mut gateways, "gone");
        let new = segment(&mut gateways, 41_000, flags::SYN).verdict;
        assert_eq!(new, Verdict::Punt(PuntReason::NotOurs), "{mode}: no Service has its address");
        gateways.wait(Duration::from_secs(50));
        alive(&mut gateways, "removed for some time");
        gateways.set(&here);
        alive(&mut gateways, "back");
        segment(&mut gateways, 41_000, flags::SYN).sent(TransmitReason::Forward);

        // The Service is deleted for good.
        gateways.set("");
        gateways.wait(Duration::from_secs(61));
        let late = segment(&mut gateways, 40_000, flags::ACK).verdict;
        assert_eq!(late, Verdict::Punt(PuntReason::NotOurs), "{mode}: the drain is over");
        gateways.set(&here);
        segment(&mut gateways, 40_000, flags::ACK).sent(TransmitReason::NoFlow);
    }
}

#[test]
fn a_port_of_a_removed_service_can_move_to_another_service() {
    let slice = endpoints(&["addresses: [10.1.0.1]"]);
    let here = with_annotations(&by_tcp_and_udp(""), "tidegate.dev/forwarding: nat") + &slice;
    let mut gateways = Gateways::new(Both::new(&here));
    connected(&mut gateways, 40_000..40_010);
    let other = here.replace("name: web", "name: other").replace("10.1.0.1", "10.1.0.2");
    gateways.set(&other);
    for port in 40_000..40_010 {
        assert!(!matches!(
            segment(&mut gateways, port, flags::ACK).verdict,
            Verdict::Transmit { why: TransmitReason::Forward, .. }
        ));
        let result = segment(&mut gateways, port + 1000, flags::SYN);
        result.sent(TransmitReason::Forward);
        assert_eq!(gateways.backend_of(&result), ip("10.1.0.2"));
    }
}

#[test]
fn nothing_is_kept_for_a_port_that_a_service_loses() {
    let slice = endpoints(&["addresses: [10.1.0.1]"]);
    let here = with_annotations(&by_tcp_and_udp(""), "tidegate.dev/forwarding: nat") + &slice;
    let mut gateways = Gateways::new(Both::new(&here));
    connected(&mut gateways, 40_000..40_010);
    gateways.set(&here.replace("{name: http, port: 80, targetPort: 8080}, ", ""));
    for port in 40_000..40_010 {
        segment(&mut gateways, port, flags::ACK).sent(TransmitReason::NoService);
    }
    gateways.set(&here);
    segment(&mut gateways, 40_000, flags::ACK).sent(TransmitReason::NoFlow);
}

#[test]
fn an_endpoint_that_moves_between_slices_loses_no_flow() {
    let slice = |name: &str| endpoints(&["addresses: [10.1.0.1]"]).replace("web-1", name);
    let others = endpoints(&["addresses: [10.1.0.2]", "addresses: [10.1.0.3]"]);
    let with = |moving: &str| by_tcp_and_udp("") + &others + moving;
    let mut gateways = Gateways::new(Both::new(&with(&slice("old"))));
    let flows = connected(&mut gateways, 40_000..40_040);
    assert!(flows.iter().any(|(_, backend)| *backend == ip("10.1.0.1")));
    for moving in [slice("old") + &slice("new"), String::new(), slice("new")] {
        gateways.set(&with(&moving));
        for (port, had) in &flows {
            let result = segment(&mut gateways, *port, flags::ACK);
            result.sent(TransmitReason::Forward);
            assert_eq!(gateways.backend_of(&result), *had);
        }
    }
}

#[test]
fn tunnels_reach_endpoints_of_the_other_family() {
    let v6 =
        web("  ipFamilies: [IPv6]\n  loadBalancerIP: '2001:db8:1::5'\n").replace("port: 80,", "port: 8080,");
    let yaml = with_annotations(&v6, "tidegate.dev/forwarding: dsr-ipip");
    let mut gateways =
        Gateways::new(Both::new(&(yaml + &slice_of_web("v4", "IPv4", &["addresses: [10.0.1.1]"]))));
    let result =
        gateways.send(Builder::tcp("[2001:db8:9::7]:40000", "[2001:db8:1::5]:8080").flags(flags::SYN));
    let outer = headers(result.sent(TransmitReason::Forward));
    assert_eq!((outer.src.ip(), outer.dst.ip()), (ip("10.0.0.1"), ip("10.0.1.1")));
    assert_eq!(outer.proto, 41, "IPv6 in IPv4");
}

#[test]
fn a_backend_is_always_address_and_port_as_the_slice_resolved_it() {
    let slice = |name: &str, number: u16, address: &str| {
        slice_of_web(name, "IPv4", &[&format!("addresses: [{address}]")]).replace("8080", &number.to_string())
    };
    let service = web("  loadBalancerIP: 203.0.113.5\n").replace("targetPort: 8080", "targetPort: web");
    let yaml = service + &slice("a", 8080, "10.1.0.1") + &slice("b", 9090, "10.1.0.2");
    let mut gateways = Gateways::new(Both::new(&yaml));
    let mut reached = BTreeSet::new();
    for port in 40_000..40_040 {
        let result = segment(&mut gateways, port, flags::SYN);
        let sent = headers(result.sent(TransmitReason::Forward));
        reached.insert(SocketAddr::new(sent.dst.ip(), sent.dst_port).to_string());
    }
    assert_eq!(reached, ["10.1.0.1:8080", "10.1.0.2:9090"].map(str::to_owned).into());
}
