//! Schedules the writer's plans, and keeps the state from one plan to the next.

use std::time::Duration;

use jiff::Timestamp;
use tidegate_structures::difference::Difference;
use tokio::time::Instant;

use crate::counts::Counts;
use crate::crd::GatewayStatusStatus;
use crate::low_priority::at_low_priority;
use crate::plan::{Memory, Plan, Situation, gateway_status, plan, plan_compared};

/// The shortest time between two plans.
const PLAN_DELAY: Duration = Duration::from_millis(100);
/// The pause after a plan is this many times the CPU time of the plan, and at most [`PAUSE_MAX`]. Elapsed time would
/// include the CPU time of other processes, so that on a busy machine a plan of one second would be followed by a long
/// pause.
const PAUSE_TIMES: u32 = 20;
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The schedule of the plans, and the state that they keep.
pub(super) struct Planning {
    memory: Memory,
    /// [`Observation::comparisons`](crate::plan::Observation::comparisons) at the last plan that was compared.
    compared: u64,
    /// When the next plan is due because of a change.
    due: Option<Instant>,
    /// When the last plan requested another one.
    again: Option<Instant>,
    not_before: Instant,
}

impl Planning {
    pub(super) fn new(now: Instant) -> Self {
        Self { memory: Memory::default(), compared: 0, due: None, again: None, not_before: now }
    }

    /// Schedules a plan because of a change. Plans use no more than about a twentieth of the time.
    pub(super) fn soon(&mut self) {
        let soon = Instant::now() + PLAN_DELAY;
        self.due.get_or_insert(soon.max(self.not_before));
    }

    /// The times at which plans are due.
    pub(super) fn times(&self) -> [Option<Instant>; 2] {
        [self.due, self.again]
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.times().into_iter().flatten().any(|at| at <= now)
    }

    /// Starts a plan that takes all changes so far into account.
    pub(super) fn start(&mut self) {
        (self.due, self.again) = (None, None);
    }

    /// Plans at low priority. Also returns the status of this gateway, except for the time of its heartbeat. `leads`:
    /// whether this gateway leads now; `written`: its last status; `now`: the time of the situation.
    pub(super) fn plan(
        &mut self,
        situation: &Situation<'_>,
        leads: bool,
        written: &GatewayStatusStatus,
        counts: &Counts,
        now: Instant,
    ) -> (Plan, GatewayStatusStatus) {
        let comparisons = situation.observation.comparisons;
        let is_due = comparisons > self.compared;
        self.compared = comparisons;
        // A gateway that doesn't lead has nothing to compare. A new leader doesn't start with a comparison.
        let compares = is_due && situation.leads;
        let memory = &mut self.memory;
        let (planned, took) = at_low_priority(|| {
            let (plan, differences) = match compares {
                true => plan_compared(situation, memory),
                false => (plan(situation, memory), Vec::new()),
            };
            if compares {
                counts.compared(!differences.is_empty());
                differences.iter().for_each(log_difference);
            }
            (plan, gateway_status(&Situation { leads, ..*situation }, written))
        });
        self.not_before = Instant::now() + (took * PAUSE_TIMES).min(PAUSE_MAX);
        self.again = planned.0.plan_again_at.map(|at: Timestamp| {
            let wait = Duration::try_from(at.duration_since(situation.now)).unwrap_or_default();
            now + wait.max(PLAN_DELAY)
        });
        planned
    }

    /// Stops writing `ipMode`. Returns whether it was written before.
    pub(super) fn leave_out_ip_mode(&mut self) -> bool {
        self.memory.leave_out_ip_mode()
    }
}

/// Logs that an incremental plan differed from the plan from scratch, which is used instead.
fn log_difference(difference: &Difference) {
    tracing::error!(
        layer = "plan",
        part = difference.part,
        incremental = difference.incremental,
        from_scratch = difference.from_scratch,
        "an incremental result differs from the one computed from scratch: this is a bug in the gateway, please report it"
    );
}
