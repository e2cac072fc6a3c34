//! Several workers: whichever worker receives a packet, the owner of its flow processes it.

use std::net::SocketAddr;

use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_spec::{BackendState, ForwardingMode, Protocol, SnapshotSpec};
use tidegate_wire::{Addr, Headers, Parsed, sctp};

use super::lab::{FrameResult, Lab, ROUTER_MAC, backend_mac, ip, service, spec};
use crate::forward::snat_ports::{Rss, Steering};
use crate::fragments::FragmentKey;
use crate::pipeline::Arrival;
use crate::testing::builder::{self, Builder, GATEWAY_MAC};

const VIPS: [&str; 2] = ["203.0.113.5:53", "[2001:db8:1::5]:53"];
const WORKERS: u8 = 3;

fn rss() -> Rss {
    let key = (0..40).map(|n: u8| n.wrapping_mul(167).wrapping_add(13)).collect();
    Rss { key, queues: (0..128).map(|n| n % WORKERS).collect(), sctp_ports: true }
}

fn steerings() -> [Steering; 2] {
    [Steering::Partition, Steering::Rss(Box::new(rss()))]
}

/// The workers of one gateway, with the frames that they hand over.
struct WorkerPool {
    labs: Vec<Lab>,
    waiting: Vec<(usize, Arrival, FragmentKey, Vec<u8>)>,
    most_hand_overs: u8,
}

impl WorkerPool {
    fn new(mode: ForwardingMode, steering: &Steering) -> Self {
        let services =
            [(VIPS[0], ["10.0.0.1:53", "10.0.0.2:53"]), (VIPS[1], ["[fd00::1]:53", "[fd00::2]:53"])];
        let services =
            services.map(|(vip, backends)| service(mode, Protocol::Udp, vip, &backends).into()).to_vec();
        let spec = SnapshotSpec { services, ..spec() };
        let lab = |worker| Lab::worker(spec.clone(), worker, WORKERS, steering.clone());
        Self { labs: (0..WORKERS).map(lab).collect(), waiting: Vec::new(), most_hand_overs: 0 }
    }

    /// Receives a frame at a worker. Returns the results of all frames that this causes.
    fn receive(&mut self, at: usize, frame: &[u8]) -> Vec<FrameResult> {
        self.process(at, Arrival::Wire(0), frame)
    }

    fn process(&mut self, at: usize, arrival: Arrival, frame: &[u8]) -> Vec<FrameResult> {
        self.most_hand_overs = self.most_hand_overs.max(arrival.hand_overs());
        let result = self.labs[at].receive_as(arrival, frame);
        let firsts = result.first_fragments.clone();
        let mut results = match (result.verdict, result.waits_for) {
            (Verdict::HandOver(to), None) => self.process(usize::from(to), arrival.handed_over(0), frame),
            (_, Some(key)) => {
                self.waiting.push((at, arrival, key, frame.to_vec()));
                Vec::new()
            }
            _ => vec![result],
        };
        for first in firsts {
            let gatherer = usize::from(first.gatherer);
            let now = self.labs[gatherer].now;
            self.labs[gatherer].pipeline.record_first_fragment(first.key, first.owner, now);
            let (again, waiting) = self.waiting.drain(..).partition(|(_, _, key, _)| *key == first.key);
            self.waiting = waiting;
            for (at, arrival, _, frame) in again {
                results.extend(self.process(at, arrival, &frame));
            }
        }
        results
    }

    fn sent(&mut self, at: usize, frame: &[u8], why: TransmitReason) -> Vec<Vec<u8>> {
        self.receive(at, frame).iter().map(|result| result.sent(why).to_vec()).collect()
    }
}

fn headers(frame: &[u8]) -> Headers {
    match tidegate_wire::parse(frame) {
        Ok(Parsed::Ip(headers)) => headers,
        other => panic!("not a sound IP packet: {other:?}"),
    }
}

/// The queue that a NIC with RSS delivers a whole packet to.
fn queue(steering: &Steering, src: SocketAddr, dst: SocketAddr, fallback: usize) -> usize {
    let (from, to): (Addr, Addr) = (src.ip().into(), dst.ip().into());
    match steering {
        Steering::Rss(rss) => usize::from(rss.queue((&from, src.port()), (&to, dst.port()))),
        _ => fallback,
    }
}

#[test]
fn whole_and_fragmented_datagrams_of_a_flow_have_one_snat_port() {
    for steering in steerings() {
        for (n, vip) in (0..24).flat_map(|n| VIPS.map(|vip| (n, vip))) {
            let mut worker_pool = WorkerPool::new(ForwardingMode::FullNat, &steering);
            let vip: SocketAddr = vip.parse().unwrap();
            let host = if vip.is_ipv4() { ip("198.51.100.7") } else { ip("2001:db8::7") };
            let client = SocketAddr::new(host, 40_000 + n as u16);
            let whole = |len| {
                Builder::udp(client, vip).dont_fragment(false).payload_len(len).mac(ROUTER_MAC, GATEWAY_MAC)
            };
            let parts = builder::fragments(&whole(1200).build(), 77, 512);
            // Covers all orders of arrival and all workers.
            let mut order = [0, 1, 2];
            order.rotate_left(n % 3);
            let mut sent = Vec::new();
            if n % 2 == 0 {
                sent = worker_pool.sent(
                    queue(&steering, client, vip, n % 3),
                    &whole(10).build(),
                    TransmitReason::Forward,
                );
            }
            for (at, part) in order.into_iter().enumerate() {
                sent.extend(worker_pool.sent((at + n / 3) % 3, &parts[part], TransmitReason::Forward));
            }
            let last = worker_pool.sent(
                queue(&steering, client, vip, (n + 1) % 3),
                &whole(10).build(),
                TransmitReason::Forward,
            );
            sent.extend(last);
            assert_eq!(sent.len(), 4 + usize::from(n % 2 == 0), "all arrived");
            assert!(
                worker_pool.waiting.is_empty() && worker_pool.most_hand_overs <= 2,
                "{}",
                worker_pool.most_hand_overs
            );
            let all: Vec<Headers> = sent.iter().map(|frame| headers(frame)).collect();
            let local = all.last().unwrap();
            for h in &all {
                assert_eq!((h.src, h.dst), (local.src, local.dst));
                assert!(h.is_later_fragment() || h.src_port == local.src_port, "{h:?}");
            }
            let flows: usize = worker_pool.labs.iter().map(|lab| lab.pipeline.flows().live()).sum();
            assert_eq!(flows, 1);

            // The other direction, with the fragments at any worker.
            let (backend, local) =
                (SocketAddr::new(local.dst.ip(), 53), SocketAddr::new(local.src.ip(), local.src_port));
            let answer = Builder::udp(backend, local).dont_fragment(false).payload_len(1200);
            let answer = answer.mac(backend_mac(1), GATEWAY_MAC).build();
            let mut back = Vec::new();
            let parts = builder::fragments(&answer, 78, 512);
            order.rotate_left(n / 3 % 3);
            for (at, part) in order.into_iter().enumerate() {
                back.extend(worker_pool.sent((at + n / 6) % 3, &parts[part], TransmitReason::Reply));
            }
            assert_eq!(back.len(), 3);
            for frame in &back {
                let h = headers(frame);
                assert_eq!((h.src.ip(), h.dst.ip()), (vip.ip(), client.ip()));
                assert!(h.is_later_fragment() || (h.src_port, h.dst_port) == (vip.port(), client.port()));
            }
        }
    }
}

#[test]
fn sctp_of_fullnat_finds_its_flow_if_the_nic_does_not_hash_its_ports() {
    let steering = Steering::Rss(Box::new(Rss { sctp_ports: false, ..rss() }));
    let vip: SocketAddr = VIPS[0].parse().unwrap();
    let service = service(ForwardingMode::FullNat, Protocol::Sctp, VIPS[0], &["10.0.0.1:53", "10.0.0.2:53"]);
    let spec = SnapshotSpec { services: vec![service.into()], ..spec() };
    for n in 0..12_usize {
        let lab = |worker| Lab::worker(spec.clone(), worker, WORKERS, steering.clone());
        let mut worker_pool =
            WorkerPool { labs: (0..WORKERS).map(lab).collect(), waiting: Vec::new(), most_hand_overs: 0 };
        let client = SocketAddr::new(ip("198.51.100.7"), 40_000 + n as u16);
        let init = Builder::sctp_init(client, vip, 7).mac(ROUTER_MAC, GATEWAY_MAC).build();
        let sent = worker_pool.sent(n % 3, &init, TransmitReason::Forward);
        let h = headers(&sent[0]);
        let (local, backend) =
            (SocketAddr::new(h.src.ip(), h.src_port), SocketAddr::new(h.dst.ip(), h.dst_port));
        // An ABORT with the tag of the INIT: the flow, and only it, makes the gateway forward it.
        let abort = Builder::sctp(backend, local).tag(7).chunk(sctp::chunk::ABORT, 0, &[]);
        let abort = abort.mac(backend_mac(1), GATEWAY_MAC).build();
        let back = worker_pool.sent((n / 3 + n) % 3, &abort, TransmitReason::Reply);
        assert_eq!(headers(&back[0]).dst.ip(), client.ip());
        assert!(worker_pool.most_hand_overs <= 1);
    }
}

#[test]
fn a_worker_knows_which_packets_rss_should_assign_to_it() {
    let steering = Steering::Rss(Box::new(Rss { sctp_ports: false, ..rss() }));
    let worker_pool = WorkerPool::new(ForwardingMode::FullNat, &steering);
    for (n, vip) in (0..12).flat_map(|n| VIPS.map(|vip| (n, vip))) {
        let vip: SocketAddr = vip.parse().unwrap();
        let host = if vip.is_ipv4() { ip("198.51.100.7") } else { ip("2001:db8::7") };
        let client = SocketAddr::new(host, 40_000 + n);
        let whole = Builder::udp(client, vip).dont_fragment(false).payload_len(600).build();
        let at = queue(&steering, client, vip, 0);
        for (worker, lab) in worker_pool.labs.iter().enumerate() {
            assert!(lab.pipeline.computes_arrivals());
            assert_eq!(lab.pipeline.arrives_as_computed(&whole), Some(worker == at));
            let unknown = [
                builder::fragments(&whole, 7, 256).swap_remove(0),
                Builder::sctp_init(client, vip, 7).build(),
                Builder::icmp(host, vip.ip(), 8, 0, [0; 4]).build(),
            ];
            assert!(unknown.iter().all(|frame| lab.pipeline.arrives_as_computed(frame).is_none()));
        }
    }
}

#[test]
fn fragments_at_different_workers_follow_their_first_in_every_mode() {
    for (steering, mode) in steerings().iter().flat_map(|s| ForwardingMode::ALL.map(|mode| (s, mode))) {
        for n in 0..12_usize {
            let mut worker_pool = WorkerPool::new(mode, steering);
            let client = SocketAddr::new(ip("198.51.100.7"), 40_000 + n as u16);
            let whole = Builder::udp(client, VIPS[0]).dont_fragment(false).payload_len(1200);
            let parts = builder::fragments(&whole.mac(ROUTER_MAC, GATEWAY_MAC).build(), n as u32, 512);
            let mut sent = Vec::new();
            for (at, part) in parts.iter().enumerate() {
                let at = if n % 2 == 0 { at } else { 2 - at };
                sent.extend(worker_pool.sent((at + n) % 3, part, TransmitReason::Forward));
            }
            assert_eq!(sent.len(), 3, "{mode}");
            assert!(sent.iter().all(|frame| frame[..12] == sent[0][..12]), "{mode}: one backend");
        }
    }
}

#[test]
fn icmp_errors_reach_the_owner_of_the_flow_from_any_worker() {
    let too_big = |to: SocketAddr, quoted: &[u8]| {
        let (router, kind, code) =
            if to.is_ipv4() { (ip("192.0.2.1"), 3, 4) } else { (ip("2001:db8:9::1"), 2, 0) };
        let rest = if to.is_ipv4() { [0, 0, 5, 0] } else { [0, 0, 5, 0x40] };
        let quoted = &quoted[..quoted.len().min(60)];
        Builder::icmp(router, to.ip(), kind, code, rest).payload(quoted).mac(ROUTER_MAC, GATEWAY_MAC).build()
    };
    for (steering, mode) in steerings().iter().flat_map(|s| ForwardingMode::ALL.map(|mode| (s, mode))) {
        for (n, vip) in (0..12_usize).flat_map(|n| VIPS.map(|vip| (n, vip))) {
            let mut worker_pool = WorkerPool::new(mode, steering);
            let vip: SocketAddr = vip.parse().unwrap();
            let host = if vip.is_ipv4() { ip("198.51.100.7") } else { ip("2001:db8::7") };
            let client = SocketAddr::new(host, 40_000 + n as u16);
            let there = Builder::udp(client, vip).mac(ROUTER_MAC, GATEWAY_MAC).build();
            let sent = worker_pool.sent(queue(steering, client, vip, n % 3), &there, TransmitReason::Forward);
            for lab in &mut worker_pool.labs {
                // From now on the hash selects another backend: only the owner of the flow knows its backend.
                let of_vip = usize::from(vip.is_ipv6());
                lab.change(|spec| {
                    for (n, backend) in spec.services[of_vip].backends.iter_mut().enumerate() {
                        let this = backend_mac(n as u8 + 1).0 == sent[0][..6];
                        backend.state = if this { BackendState::Draining } else { BackendState::Active };
                    }
                });
            }
            let about_answer = Builder::udp(vip, client).packet();
            for at in 0..3 {
                let results = worker_pool.receive(at, &too_big(vip, &about_answer));
                let frame = results[0].sent(TransmitReason::IcmpError);
                assert_eq!(frame[..6], sent[0][..6], "{mode}: to the backend of the flow, from worker {at}");
            }
            if mode.is_dsr() {
                continue;
            }
            let h = headers(&sent[0]);
            let (from, to) =
                (SocketAddr::new(h.src.ip(), h.src_port), SocketAddr::new(h.dst.ip(), h.dst_port));
            let about_request = Builder::udp(from, to).packet();
            for at in 0..3 {
                let results = worker_pool.receive(at, &too_big(from, &about_request));
                let h = headers(results[0].sent(TransmitReason::IcmpError));
                assert_eq!(h.dst.ip(), client.ip(), "{mode}: to the client, from worker {at}");
            }
        }
    }
}

#[test]
fn an_icmp_error_about_no_flow_visits_every_worker_once() {
    for mode in ForwardingMode::ALL {
        let mut worker_pool = WorkerPool::new(mode, &Steering::Partition);
        let quoted = Builder::udp(VIPS[0], "198.51.100.7:40000").packet();
        let error = Builder::icmp(ip("192.0.2.1"), ip("203.0.113.5"), 3, 4, [0, 0, 5, 0]);
        let error = error.payload(&quoted).mac(ROUTER_MAC, GATEWAY_MAC).build();
        for at in 0..3 {
            let results = worker_pool.receive(at, &error);
            match mode.is_dsr() {
                // The frame goes where the packets of the flow go, if they are forwarded.
                true => drop(results[0].sent(TransmitReason::IcmpError)),
                false => assert_eq!(results[0].refused(), Refusal::IcmpErrorUnknown),
            }
        }
        assert!(worker_pool.most_hand_overs < WORKERS);
    }
}
