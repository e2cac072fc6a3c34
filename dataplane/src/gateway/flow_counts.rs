//! The flows of each backend, and the local ports of `fullnat` in use, for metrics and tables.
//!
//! Nothing is counted per packet. On request, workers walk their tables, some hash buckets per loop iteration. The
//! reader waits for them with a time limit. If they don't finish in time, it gets the previous count, and the next
//! reader continues the current one.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_conntrack::Phase;
use tidegate_spec::ids::BackendId;
use tidegate_wire::Addr;

use crate::worker::BackendFlows;

/// The flows of one backend, over all workers. With `fullnat`, those from one SNAT address, which are its local ports in
/// use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackendFlowStats {
    /// The backend.
    pub backend: BackendId,
    /// The SNAT address; `None` if the flows keep the client's address.
    pub local: Option<Addr>,
    /// Flows by phase.
    pub flows: [(Phase, u64); 4],
}

impl BackendFlowStats {
    /// The established flows.
    #[must_use]
    pub fn established(&self) -> u64 {
        self.flows.iter().filter(|(phase, _)| *phase == Phase::Established).map(|(_, count)| count).sum()
    }
}

/// The last finished count, and the current one.
#[derive(Debug, Default)]
pub(super) struct FlowCounts(Mutex<Counting>);

/// The channel on which a worker answers.
pub(super) type Answer = Receiver<Vec<Option<BackendFlows>>>;

#[derive(Debug, Default)]
struct Counting {
    in_progress: bool,
    answers: Vec<Answer>,
    found: Vec<Vec<Option<BackendFlows>>>,
    last: Vec<BackendFlowStats>,
}

impl Counting {
    /// Collects answers until `until`. The count is finished when all workers have answered or can't answer any more.
    fn collect(&mut self, until: Instant) {
        if !self.in_progress {
            return;
        }
        let Self { answers, found, .. } = self;
        answers.retain(|answer| match answer.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(counts) => {
                found.push(counts);
                false
            }
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => false,
        });
        if answers.is_empty() {
            self.in_progress = false;
            self.last = self.sum();
        }
    }

    /// The sum over the workers.
    fn sum(&mut self) -> Vec<BackendFlowStats> {
        let mut sums = BTreeMap::<(BackendId, Option<Addr>), [u64; 4]>::new();
        for one in self.found.drain(..).flatten().flatten() {
            let sum = sums.entry((one.backend, one.local)).or_default();
            for (sum, flows) in sum.iter_mut().zip(one.flows) {
                *sum += u64::from(flows);
            }
        }
        let phases = [Phase::Closed, Phase::Opening, Phase::Closing, Phase::Established];
        let stats = |((backend, local), sum): (_, [u64; 4])| BackendFlowStats {
            backend,
            local,
            flows: phases.map(|phase| (phase, sum[phase as usize])),
        };
        sums.into_iter().map(stats).collect()
    }
}

impl FlowCounts {
    /// The flows of all backends. `query` sends the request to all available workers. If they don't finish within
    /// `wait`, the result is the last finished count, which is empty at first.
    pub(super) fn read(&self, wait: Duration, query: impl FnOnce() -> Vec<Answer>) -> Vec<BackendFlowStats> {
        let until = Instant::now() + wait;
        let mut counting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Answers that an earlier reader didn't wait for.
        counting.collect(Instant::now());
        if !counting.in_progress {
            counting.answers = query();
            counting.in_progress = true;
        }
        counting.collect(until);
        counting.last.clone()
    }
}
