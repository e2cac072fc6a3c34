//! `sessionAffinity: ClientIP` with several workers: a client keeps its backend at every worker, while backends are
//! added and removed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tidegate_conntrack::affinities::Affinities;
use tidegate_spec::now::Now;
use tidegate_spec::verdict::{TransmitReason, Verdict};
use tidegate_spec::{BackendState, ForwardingMode, LoadRule, Protocol, Scheduler, ServiceSpec, SnapshotSpec};
use tidegate_wire::tcp::flags;

use super::lab::{FrameResult, Lab, ROUTER_MAC, backend, ip, service, spec};
use crate::forward::snat_ports::Steering;
use crate::pipeline::Arrival;
use crate::testing::builder::{Builder, GATEWAY_MAC};

const WORKERS: u8 = 3;
const TIMEOUT_S: u64 = 100;

struct Workers {
    labs: Vec<Lab>,
    v6: bool,
    next_port: u16,
}

impl Workers {
    fn new(mode: ForwardingMode, scheduler: Scheduler, v6: bool) -> Self {
        let (vip, backends): (_, Vec<String>) = if v6 {
            ("[2001:db8:1::5]:80", (1..=3).map(|n| format!("[fd00::{n}]:80")).collect())
        } else {
            ("203.0.113.5:80", (1..=3).map(|n| format!("10.0.0.{n}:80")).collect())
        };
        let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
        let sticky = ServiceSpec {
            affinity: Some(Duration::from_secs(TIMEOUT_S)),
            scheduler,
            ..service(mode, Protocol::Tcp, vip, &backends)
        };
        let spec = SnapshotSpec { services: vec![sticky.into()], ..spec() };
        let affinities = Arc::new(Affinities::new(1000, 7));
        affinities.prepare();
        let lab = |worker| {
            let lab = Lab::worker(spec.clone(), worker, WORKERS, Steering::Partition);
            let pipeline = lab.pipeline.with_affinities(Arc::clone(&affinities));
            Lab { pipeline, ..lab }
        };
        Self { labs: (0..WORKERS).map(lab).collect(), v6, next_port: 1024 }
    }

    /// A new connection of a client, which arrives at this worker. Returns its backend; `None` if there is none.
    fn connect(&mut self, client: u8, worker: u8) -> Option<IpAddr> {
        self.next_port += 1;
        let (client, vip) = if self.v6 {
            (format!("[2001:db8::{client}]:{}", self.next_port), "[2001:db8:1::5]:80")
        } else {
            (format!("198.51.100.{client}:{}", self.next_port), "203.0.113.5:80")
        };
        let syn = Builder::tcp(client.as_str(), vip).flags(flags::SYN).mac(ROUTER_MAC, GATEWAY_MAC).build();
        let (at, result) = self.receive(usize::from(worker), Arrival::Wire(0), &syn);
        if result.verdict == (Verdict::Transmit { interface: 0, why: TransmitReason::NoEndpoints }) {
            return None;
        }
        result.sent(TransmitReason::Forward);
        Some(self.labs[at].backend_of(&result))
    }

    fn receive(&mut self, at: usize, arrival: Arrival, frame: &[u8]) -> (usize, FrameResult) {
        let result = self.labs[at].receive_as(arrival, frame);
        match result.verdict {
            Verdict::HandOver(to) => self.receive(usize::from(to), arrival.handed_over(0), frame),
            _ => (at, result),
        }
    }

    fn address(&self, n: u8) -> IpAddr {
        if self.v6 { ip(&format!("fd00::{n}")) } else { ip(&format!("10.0.0.{n}")) }
    }

    /// Adds a backend, sets its state, or removes it.
    fn set(&mut self, n: u8, state: Option<BackendState>) {
        let address = self.address(n);
        for lab in &mut self.labs {
            lab.change(|spec| {
                let backends = &mut spec.services[0].backends;
                backends.retain(|one| one.address != address || state.is_some());
                match backends.iter_mut().find(|one| one.address == address) {
                    Some(one) => one.state = state.unwrap_or(one.state),
                    None => {
                        let text = std::net::SocketAddr::new(address, 80).to_string();
                        backends.extend(state.map(|state| backend(&text, state)));
                    }
                }
            });
        }
    }

    fn wait(&mut self, seconds: u64) {
        self.labs.iter_mut().for_each(|lab| lab.wait(Duration::from_secs(seconds)));
    }
}

#[derive(Debug, Clone)]
enum Step {
    Connect { client: u8, worker: u8 },
    Set { n: u8, state: BackendState },
    Remove { n: u8 },
    Wait { seconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    use BackendState::{Active, Down, Draining};
    let state = prop_oneof![3 => Just(Active), 1 => Just(Draining), 1 => Just(Down)];
    prop_oneof![
        8 => (1_u8..6, 0..WORKERS).prop_map(|(client, worker)| Step::Connect { client, worker }),
        3 => (1_u8..8, state).prop_map(|(n, state)| Step::Set { n, state }),
        1 => (1_u8..8).prop_map(|n| Step::Remove { n }),
        2 => (0_u64..120).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

/// The rule: a client keeps its last backend until the timeout after its last connection, while the backend accepts new
/// flows.
fn follows_the_rule(mut workers: Workers, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut states: BTreeMap<u8, BackendState> = (1..=3).map(|n| (n, BackendState::Active)).collect();
    let mut last: BTreeMap<u8, (u8, Now)> = BTreeMap::new();
    for step in steps {
        match *step {
            Step::Connect { client, worker } => {
                let now = workers.labs[0].now;
                let kept = last.get(&client).filter(|(n, at)| {
                    now.since(*at) <= Duration::from_secs(TIMEOUT_S)
                        && states.get(n) == Some(&BackendState::Active)
                });
                let active: Vec<u8> =
                    states.iter().filter(|(_, s)| **s == BackendState::Active).map(|(n, _)| *n).collect();
                let expected = kept.map_or(active, |(n, _)| vec![*n]);
                let got = workers.connect(client, worker);
                let got = got.and_then(|got| states.keys().copied().find(|&n| workers.address(n) == got));
                prop_assert!(
                    got.map_or(expected.is_empty(), |got| expected.contains(&got)),
                    "client {client} at worker {worker} got {got:?}, not one of {expected:?}"
                );
                if let Some(got) = got {
                    last.insert(client, (got, now));
                }
            }
            Step::Set { n, state } => {
                states.insert(n, state);
                workers.set(n, Some(state));
            }
            Step::Remove { n } => {
                states.remove(&n);
                workers.set(n, None);
                // If it is added again, it's another backend.
                last.retain(|_, (backend, _)| *backend != n);
            }
            Step::Wait { seconds } => workers.wait(seconds),
        }
    }
    Ok(())
}

const MODES: [ForwardingMode; 3] = [ForwardingMode::DsrL2, ForwardingMode::Nat, ForwardingMode::FullNat];

const SCHEDULERS: [Scheduler; 5] = [
    Scheduler::Rendezvous,
    Scheduler::Maglev { slots: 251 },
    Scheduler::WeightedRoundRobin,
    Scheduler::Loads(LoadRule::LeastConnections),
    Scheduler::SourceHash,
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn a_client_keeps_its_backend_at_every_worker_until_its_timeout(
        steps in proptest::collection::vec(step(), 1..80),
        mode in proptest::sample::select(&MODES[..]),
        scheduler in proptest::sample::select(&SCHEDULERS[..]),
        v6 in any::<bool>(),
    ) {
        follows_the_rule(Workers::new(mode, scheduler, v6), &steps)?;
    }
}

#[test]
fn a_worker_keeps_the_backend_of_a_client_that_it_has_never_seen() {
    for mode in MODES {
        let mut workers = Workers::new(mode, Scheduler::Rendezvous, false);
        let before: Vec<_> = (1..=60).map(|client| workers.connect(client, 0)).collect();
        (4..=9).for_each(|n| workers.set(n, Some(BackendState::Active)));
        let after: Vec<_> = (1..=60).map(|client| workers.connect(client, 1)).collect();
        assert_eq!(before, after, "{mode}");
        let new: Vec<_> = (101..=160).map(|client| workers.connect(client, 1)).collect();
        assert_ne!(before, new, "{mode}: new clients get all backends");
    }
}

#[test]
fn a_connection_renews_the_timeout_at_all_workers() {
    let mut workers = Workers::new(ForwardingMode::DsrL2, Scheduler::Rendezvous, false);
    let before: Vec<_> = (1..=60).map(|client| workers.connect(client, 0)).collect();
    (4..=9).for_each(|n| workers.set(n, Some(BackendState::Active)));
    for round in 0..4 {
        workers.wait(TIMEOUT_S - 1);
        let again: Vec<_> = (1..=60).map(|client| workers.connect(client, 1)).collect();
        assert_eq!(before, again, "round {round}");
    }
    // Worker 0 saw none of these connections.
    workers.wait(TIMEOUT_S - 1);
    let last: Vec<_> = (1..=60).map(|client| workers.connect(client, 0)).collect();
    assert_eq!(before, last);
    workers.wait(TIMEOUT_S + 1);
    let released: Vec<_> = (1..=60).map(|client| workers.connect(client, 2)).collect();
    assert_ne!(before, released);
}

#[test]
fn a_flood_of_sources_evicts_no_client_that_connected_twice() {
    let mut workers = Workers::new(ForwardingMode::DsrL2, Scheduler::Rendezvous, false);
    let before: Vec<_> = (1..=60).map(|client| workers.connect(client, 0)).collect();
    assert_eq!(before, (1..=60).map(|client| workers.connect(client, 1)).collect::<Vec<_>>());
    for n in 0..20_000_u32 {
        let source = std::net::Ipv4Addr::from(0x0b00_0000 | n);
        let syn = Builder::tcp(format!("{source}:1024").as_str(), "203.0.113.5:80").flags(flags::SYN);
        workers.labs[0].send(syn);
    }
    (4..=9).for_each(|n| workers.set(n, Some(BackendState::Active)));
    assert_eq!(before, (1..=60).map(|client| workers.connect(client, 2)).collect::<Vec<_>>());
}
