//! The schedulers of IPVS: round robin, by load, by source, by destination.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_select::loads::LOADS_COMPARED;
use tidegate_snapshot::counters::Tallies;
use tidegate_spec::limits::LOADS_SHARED_MS;
use tidegate_spec::verdict::{Refusal, TransmitReason};
use tidegate_spec::{
    BackendSpec, BackendState, ForwardingMode, LoadRule, Protocol, Scheduler, ServiceSpec, SnapshotSpec,
};
use tidegate_wire::tcp::flags;

use super::lab::{FrameResult, Lab, ROUTER_MAC, backend, service, spec};
use crate::forward::snat_ports::Steering;
use crate::pipeline::FlowNote;
use crate::testing::builder::{Builder, GATEWAY_MAC};

const VIP: &str = "203.0.113.5:80";
const LC: Scheduler = Scheduler::Loads(LoadRule::LeastConnections);
const NQ: Scheduler = Scheduler::Loads(LoadRule::NeverQueue);
const SED: Scheduler = Scheduler::Loads(LoadRule::ShortestDelay);

fn weighted(weights: &[u16]) -> Vec<BackendSpec> {
    // The first nine are on the link, the others behind the router.
    let at = |n: usize| match n {
        ..9 => format!("10.0.0.{}:80", n + 1),
        _ => format!("10.1.{}.{}:80", n >> 7, n & 127),
    };
    let spec = |(n, &weight)| BackendSpec { weight, ..backend(&at(n), BackendState::Active) };
    weights.iter().enumerate().map(spec).collect()
}

fn web(scheduler: Scheduler, mode: ForwardingMode, weights: &[u16]) -> ServiceSpec {
    ServiceSpec { scheduler, backends: weighted(weights), ..service(mode, Protocol::Tcp, VIP, &[]) }
}

fn lab(scheduler: Scheduler, mode: ForwardingMode, weights: &[u16]) -> Lab {
    Lab::new(vec![web(scheduler, mode, weights)])
}

fn tcp(lab: &mut Lab, client: u32, flags: u8) -> FrameResult {
    let from = format!("198.51.{}.{}:{}", 100 + (client >> 16), client >> 8 & 255, 20_000 + (client & 255));
    lab.send(Builder::tcp(from.as_str(), VIP).flags(flags))
}

fn open(lab: &mut Lab, client: u32) -> IpAddr {
    let result = tcp(lab, client, flags::SYN);
    result.sent(TransmitReason::Forward);
    lab.backend_of(&result)
}

fn open_many(lab: &mut Lab, clients: impl Iterator<Item = u32>) -> BTreeMap<IpAddr, u32> {
    let mut counts = BTreeMap::new();
    clients.for_each(|client| *counts.entry(open(lab, client)).or_default() += 1);
    counts
}

fn address(host: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, host])
}

#[test]
fn wrr_assigns_new_flows_round_robin_by_weight_and_a_flow_stays() {
    for mode in ForwardingMode::ALL {
        let mut lab = lab(Scheduler::WeightedRoundRobin, mode, &[3, 1, 0, 2]);
        for round in 0..10 {
            let counts = open_many(&mut lab, round * 6..round * 6 + 6);
            assert_eq!(counts, [(address(1), 3), (address(2), 1), (address(4), 2)].into(), "{mode}");
        }
        let first = open(&mut lab, 0);
        for _ in 0..5 {
            let result = tcp(&mut lab, 0, flags::SYN);
            assert_eq!((lab.backend_of(&result), result.note.flow), (first, FlowNote::Known));
        }
    }
}

#[test]
fn no_scheduler_assigns_new_flows_to_weight_0_or_a_draining_backend() {
    for scheduler in [Scheduler::WeightedRoundRobin, LC, SED, NQ, Scheduler::SourceHash] {
        let mut lab = lab(scheduler, ForwardingMode::FullNat, &[1, 1, 0]);
        lab.change(|spec| spec.services[0].backends[1].state = BackendState::Draining);
        let counts = open_many(&mut lab, (0..200).map(|n| n << 8));
        assert_eq!(counts, [(address(1), 200)].into(), "{scheduler:?}");
        lab.change(|spec| spec.services[0].backends[0].state = BackendState::Down);
        assert_eq!(tcp(&mut lab, 9, flags::SYN).sent(TransmitReason::NoEndpoints).len(), 54);
    }
}

#[test]
fn lc_fills_up_to_equal_loads_for_the_weight() {
    for mode in [ForwardingMode::DsrL2, ForwardingMode::Nat, ForwardingMode::FullNat] {
        for scheduler in [LC, SED] {
            let mut lab = lab(scheduler, mode, &[1, 1, 2]);
            let counts = open_many(&mut lab, 0..400);
            for (host, share) in [(1, 100), (2, 100), (3, 200)] {
                assert!(counts[&address(host)].abs_diff(share) <= 1, "{mode} {scheduler:?} {counts:?}");
            }
        }
    }
}

#[test]
fn lc_prefers_the_backend_whose_connections_ended() {
    let mut lab = lab(LC, ForwardingMode::DsrL2, &[1, 1]);
    let by_client: BTreeMap<u32, IpAddr> = (0..100).map(|client| (client, open(&mut lab, client))).collect();
    for (&client, _) in by_client.iter().filter(|(_, at)| **at == address(1)) {
        tcp(&mut lab, client, flags::ACK);
        tcp(&mut lab, client, flags::FIN | flags::ACK);
    }
    // The 50 ended connections weigh less than an active one.
    assert_eq!(open_many(&mut lab, 1_000..1_050), [(address(1), 50)].into());
    let balanced = open_many(&mut lab, 2_000..2_100);
    assert!(balanced.values().all(|count| (48..=52).contains(count)), "{balanced:?}");
    // Expired flows don't count.
    lab.wait(Duration::from_secs(3600));
    (0..10_000).for_each(|_| lab.pipeline.age(lab.now));
    assert_eq!(lab.pipeline.flows().live(), 0);
    let anew = open_many(&mut lab, 3_000..3_100);
    assert!(anew.values().all(|count| *count == 50), "{anew:?}");
}

#[test]
fn nq_prefers_an_idle_backend_to_a_faster_one_and_sed_does_not() {
    let mut never = lab(NQ, ForwardingMode::Nat, &[10, 1, 1]);
    assert_eq!(open_many(&mut never, 0..3).len(), 3, "three idle backends get one flow each");
    let mut delay = lab(SED, ForwardingMode::Nat, &[10, 1, 1]);
    assert_eq!(open_many(&mut delay, 0..3), [(address(1), 3)].into());
}

#[test]
fn counts_of_lc_equal_those_of_the_table_after_any_changes() {
    let mut lab = lab(Scheduler::Rendezvous, ForwardingMode::FullNat, &[1, 1, 1]).with_entries(256);
    // Flows start before they are counted, in a table that moves and evicts entries.
    open_many(&mut lab, 0..300);
    lab.change(|spec| spec.services[0].scheduler = LC);
    let tallies = [Arc::new(Tallies::with_capacity(64, 64))];
    for round in 0..40 {
        open_many(&mut lab, 1_000 + round * 20..1_020 + round * 20);
        (0..10).for_each(|n| {
            tcp(&mut lab, 1_000 + round * 20 + n, flags::ACK);
            tcp(&mut lab, 1_000 + round * 20 + n, flags::RST);
        });
        lab.wait(Duration::from_secs(2));
        lab.pipeline.share_loads(&lab.snapshot, &tallies, lab.now);
        lab.pipeline.age(lab.now);
    }
    // The next walk starts after an interval.
    lab.wait(Duration::from_millis(LOADS_SHARED_MS.into()));
    lab.pipeline.share_loads(&lab.snapshot, &tallies, lab.now);
    let mut flows: BTreeMap<_, u32> = BTreeMap::new();
    lab.pipeline.flows().scan(0, u64::MAX, lab.now, |flow| *flows.entry(flow.backend).or_default() += 2);
    let (web, _) = lab.snapshot.services().next().expect("a service");
    for (id, _) in web.selector().shares() {
        let load = tallies[0].load(id);
        assert_eq!(load.active + load.ended, flows.get(&id).copied().unwrap_or(0), "{id:?} {load:?}");
    }
}

/// The workers of one gateway, each of which receives some of the flows.
struct Gateway {
    workers: Vec<Lab>,
    tallies: Vec<Arc<Tallies>>,
}

impl Gateway {
    fn new(service: ServiceSpec, workers: u8) -> Self {
        let spec = SnapshotSpec { services: vec![service.into()], ..spec() };
        let rss = crate::forward::snat_ports::Rss {
            key: (0..40).collect(),
            queues: (0..workers).collect(),
            sctp_ports: true,
        };
        let lab = |worker| Lab::worker(spec.clone(), worker, workers, Steering::Rss(Box::new(rss.clone())));
        let workers: Vec<Lab> = (0..workers).map(lab).collect();
        let tallies = workers.iter().map(|_| Arc::new(Tallies::with_capacity(64, 8192))).collect();
        Self { workers, tallies }
    }

    fn wait(&mut self, time: Duration) {
        self.workers.iter_mut().for_each(|worker| worker.wait(time));
    }

    fn share(&mut self) {
        for lab in &mut self.workers {
            lab.pipeline.share_loads(&lab.snapshot, &self.tallies, lab.now);
        }
    }
}

#[test]
fn lc_over_two_workers_is_off_by_at_most_the_flows_of_two_intervals() {
    let interval = Duration::from_millis(LOADS_SHARED_MS.into());
    let mut gateway = Gateway::new(web(LC, ForwardingMode::DsrL2, &[1; 8]), 2);
    gateway.share();
    let mut counts: BTreeMap<IpAddr, u32> = BTreeMap::new();
    // The first worker receives four times as many flows as the other.
    for n in 0..1_000_u32 {
        let at = usize::from(n % 5 == 0);
        *counts.entry(open(&mut gateway.workers[at], n)).or_default() += 1;
        // 20 flows start in each interval.
        if n % 20 == 19 {
            gateway.wait(interval);
            gateway.share();
        }
        // Each worker's view of the other is up to two intervals old: that is at most 40 flows.
        let (least, most) = (counts.values().min(), counts.values().max());
        if n > 100 {
            assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 40), "{counts:?}");
        }
    }
    // Errors don't add up.
    assert!(counts.values().all(|count| count.abs_diff(125) <= 20), "{counts:?}");
}

#[test]
fn lc_with_thousands_of_backends_compares_few_and_stays_nearly_even() {
    let mut gateway = Gateway::new(web(LC, ForwardingMode::DsrIpip, &vec![1; 2_000]), 1);
    const { assert!(2_000 > LOADS_COMPARED) };
    let lab = &mut gateway.workers[0];
    *lab = Lab::with_spec(lab.spec.clone()).with_entries(100_000);
    let counts = open_many(lab, 0..20_000);
    let (least, most) = (counts.values().min(), counts.values().max());
    assert_eq!(counts.len(), 2_000);
    assert!(
        least.is_some_and(|&least| least >= 5) && most.is_some_and(|&most| most <= 12),
        "{least:?} {most:?}"
    );
}

#[test]
fn sh_depends_on_the_client_alone_and_dh_on_the_vip_alone() {
    let ports = |scheduler, vip: &str| ServiceSpec {
        scheduler,
        backends: weighted(&[1; 10]),
        ..service(ForwardingMode::Nat, Protocol::Tcp, vip, &[])
    };
    let vips = ["203.0.113.5:80", "203.0.113.5:443", "203.0.113.6:80", "203.0.113.7:80", "203.0.113.8:80"];
    let backends_of = |scheduler, gateway: u64| {
        let mut lab = Lab::new(vips.iter().map(|vip| ports(scheduler, vip)).collect());
        for n in 0..gateway {
            let _backend = open(&mut lab, 7 + n as u32);
        }
        let mut chosen = BTreeMap::new();
        for vip in vips {
            for client in 1..20 {
                for port in [1_000, 2_000] {
                    let from = format!("198.51.100.{client}:{port}");
                    let result = lab.send(Builder::tcp(from.as_str(), vip).flags(flags::SYN));
                    chosen.insert((vip, client, port), lab.backend_of(&result));
                }
            }
        }
        chosen
    };
    let source = backends_of(Scheduler::SourceHash, 0);
    assert_eq!(source, backends_of(Scheduler::SourceHash, 50), "it doesn't depend on the gateway's history");
    let of_client = |client| source.iter().filter(move |(key, _)| key.1 == client).map(|(_, at)| *at);
    assert!((1..20).all(|client| of_client(client).all(|at| Some(at) == of_client(client).next())));
    assert!((1..20).any(|client| of_client(client).next() != of_client(1).next()));
    let destination = backends_of(Scheduler::DestinationHash, 0);
    assert_eq!(destination, backends_of(Scheduler::DestinationHash, 50));
    let of_vip = |vip: &'static str| destination.iter().filter(move |(key, _)| key.0.starts_with(vip));
    for vip in ["203.0.113.5", "203.0.113.6", "203.0.113.7", "203.0.113.8"] {
        assert!(of_vip(vip).all(|(_, at)| Some(at) == of_vip(vip).next().map(|(_, at)| at)));
    }
    let distinct: std::collections::BTreeSet<_> = destination.values().collect();
    assert!(distinct.len() > 1, "{distinct:?}");
}

#[test]
fn a_full_table_refuses_dsr_flows_whose_backend_needs_an_entry() {
    let mut refused = 0;
    let mut lab = lab(Scheduler::WeightedRoundRobin, ForwardingMode::DsrL2, &[1, 1]).with_entries(16);
    for client in 0..200 {
        match tcp(&mut lab, client, flags::SYN) {
            result if result.note.flow == FlowNote::New => {
                tcp(&mut lab, client, flags::ACK);
            }
            result => {
                assert_eq!(result.refused(), Refusal::FlowTableFull);
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
    let mut rendezvous = lab_of_16(Scheduler::Rendezvous);
    for client in 0..200 {
        tcp(&mut rendezvous, client, flags::SYN).sent(TransmitReason::Forward);
        tcp(&mut rendezvous, client, flags::ACK);
    }
}

fn lab_of_16(scheduler: Scheduler) -> Lab {
    lab(scheduler, ForwardingMode::DsrL2, &[1, 1]).with_entries(16)
}

#[test]
fn with_an_unknown_distribution_each_dsr_flow_has_one_worker() {
    let wrr = web(Scheduler::WeightedRoundRobin, ForwardingMode::DsrL2, &[1; 4]);
    let spec = SnapshotSpec { services: vec![wrr.into()], ..spec() };
    let mut workers: Vec<Lab> =
        (0..2).map(|worker| Lab::worker(spec.clone(), worker, 2, Steering::Partition)).collect();
    for client in 0..50_u32 {
        let from = format!("198.51.100.7:{}", 20_000 + client);
        let frame =
            |flags| Builder::tcp(from.as_str(), VIP).flags(flags).mac(ROUTER_MAC, GATEWAY_MAC).build();
        let chosen: Vec<Option<IpAddr>> = [(0, flags::SYN), (1, flags::ACK), (0, flags::ACK)]
            .into_iter()
            .map(|(at, flags): (usize, u8)| {
                let bytes = frame(flags);
                let result = workers[at].receive(&bytes);
                match result.verdict {
                    tidegate_spec::verdict::Verdict::HandOver(to) => {
                        let to = usize::from(to);
                        let result =
                            workers[to].receive_as(crate::pipeline::Arrival::HandedOver(0, 0), &bytes);
                        Some(workers[to].backend_of(&result))
                    }
                    _ => Some(workers[at].backend_of(&result)),
                }
            })
            .collect();
        assert!(chosen.iter().all(|at| *at == chosen[0]), "{chosen:?}");
    }
}
