//! How many local ports of `fullnat` are in use, by SNAT address and backend, for metrics.
//!
//! Nothing is counted per packet: workers walk their tables, a few buckets per turn, when they are asked. Who reads
//! waits for them with a bound. Where they have not finished by then, the reading is the one before, and the count goes
//! on for the next one.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::conntrack::Phase;
use tidegate_core::ids::BackendId;
use tidegate_core::snapshot::{ForwardingMode, Snapshot};
use tidegate_core::wire::{Addr, Family};

use super::worker_pool::WorkerPool;
use crate::worker::{Question, SnatPorts, SnatQuestion};

/// Pairs of a SNAT address and a backend that are counted; those beyond are left out.
const PAIRS_MAX: usize = 1 << 16;

/// Ports of one SNAT address towards one backend, over all workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnatPortStats {
    /// The backend.
    pub backend: BackendId,
    /// The SNAT address.
    pub address: Addr,
    /// Ports by the phase of their flows.
    pub ports: [(Phase, u64); 4],
}

/// The last count, and the one under way.
#[derive(Debug, Default)]
pub(super) struct SnatUsage(Mutex<Counting>);

/// The way by which a worker answers.
type Answer = Receiver<Vec<Option<SnatPorts>>>;

#[derive(Debug, Default)]
struct Counting {
    under_way: bool,
    asked: Vec<Answer>,
    found: Vec<Vec<Option<SnatPorts>>>,
    last: Vec<SnatPortStats>,
}

impl Counting {
    /// Takes in what is answered until then. The count has ended when all have answered, or will not.
    fn collect(&mut self, until: Instant) {
        if !self.under_way {
            return;
        }
        let Self { asked, found, .. } = self;
        asked.retain(|answer| match answer.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(counts) => {
                found.push(counts);
                false
            }
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => false,
        });
        if asked.is_empty() {
            self.under_way = false;
            self.last = self.sum();
        }
    }

    /// The sum over the workers.
    fn sum(&mut self) -> Vec<SnatPortStats> {
        let mut sums = BTreeMap::<(BackendId, Addr), [u64; 4]>::new();
        for one in self.found.drain(..).flatten().flatten() {
            let sum = sums.entry((one.backend, one.address)).or_default();
            for (sum, ports) in sum.iter_mut().zip(one.ports) {
                *sum += u64::from(ports);
            }
        }
        let phases = [Phase::Closed, Phase::Opening, Phase::Closing, Phase::Established];
        let stats = |((backend, address), sum): (_, [u64; 4])| SnatPortStats {
            backend,
            address,
            ports: phases.map(|phase| (phase, sum[phase as usize])),
        };
        sums.into_iter().map(stats).collect()
    }
}

impl<F> WorkerPool<F> {
    /// Local ports in use now. Where the workers do not finish the count within `wait`: those of the last count that
    /// they finished, none before the first.
    #[must_use]
    pub fn snat_ports(&self, wait: Duration) -> Vec<SnatPortStats> {
        let until = Instant::now() + wait;
        let mut counting = self.snat_usage().0.lock().unwrap_or_else(PoisonError::into_inner);
        // What an earlier reader did not wait for.
        counting.collect(Instant::now());
        if !counting.under_way {
            counting.asked = self.ask_for_ports();
            counting.under_way = true;
        }
        counting.collect(until);
        counting.last.clone()
    }

    /// Asks every worker that can be asked.
    fn ask_for_ports(&self) -> Vec<Answer> {
        let pairs = pairs(&self.control().publisher.current().snapshot).min(PAIRS_MAX);
        if pairs == 0 {
            return Vec::new();
        }
        let mailboxes = self.exchange().mailboxes.iter();
        let asked = mailboxes.filter_map(|mailbox| {
            let (reply, answer) = sync_channel(1);
            let question = Question::SnatPorts(SnatQuestion::new(pairs, reply));
            mailbox.ask(question).ok().map(|()| answer)
        });
        asked.collect()
    }
}

/// How many pairs of a SNAT address and a backend there may be.
fn pairs(snapshot: &Snapshot) -> usize {
    let services = snapshot.services().filter(|(service, _)| service.mode == ForwardingMode::FullNat);
    services
        .map(|(_, info)| {
            let family = if info.key.vip.is_ipv4() { Family::V4 } else { Family::V6 };
            info.backends.len() * snapshot.snat_addresses(family).len()
        })
        .sum()
}
