//! Whether the gateway is healthy: every worker runs, and every update was applied in time.
//!
//! The daemon reports events and the servers read the result; times are arguments. If an update waits longer than the
//! timeout, the gateway is unhealthy until the update is applied, like kube-proxy.

use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;

/// The health of the gateway, shared between the daemon and the servers.
#[derive(Debug)]
pub struct ProxyHealth {
    timeout: Duration,
    started: Timestamp,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The monotonic time since when the oldest unapplied update has been waiting.
    waiting_since: Option<Duration>,
    last_applied: Option<Timestamp>,
    workers_run: bool,
    node_eligible: bool,
}

/// The health at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthReport {
    /// Whether every worker runs, and no update waits longer than the timeout.
    pub healthy: bool,
    /// Whether every worker has applied the first snapshot, all workers run, and [`Self::degraded`] is empty.
    pub ready: bool,
    /// Whether the daemon's loop is alive. The daemon sets it; always true here.
    pub loop_alive: bool,
    /// Why the gateway cannot carry packets although it works, such as links that are down. For display.
    pub degraded: Vec<String>,
    /// False if the node is marked for deletion; true for an appliance outside of a cluster.
    pub node_eligible: bool,
    /// When the daemon started.
    pub started: Timestamp,
    /// When all workers last applied the latest state.
    pub last_applied: Option<Timestamp>,
    /// The time of the report.
    pub now: Timestamp,
}

impl ProxyHealth {
    /// A gateway that has just started: workers run and nothing is applied. An update may wait for `timeout`;
    /// kube-proxy uses twice its sync period, one minute by default.
    #[must_use]
    pub fn new(timeout: Duration, started: Timestamp) -> Self {
        let state = State { waiting_since: None, last_applied: None, workers_run: true, node_eligible: true };
        Self { timeout, started, state: Mutex::new(state) }
    }

    /// Records that a new desired state was sent to the workers at `now` (monotonic).
    pub fn update_queued(&self, now: Duration) {
        self.state().waiting_since.get_or_insert(now);
    }

    /// Records that every worker has applied the latest state.
    pub fn applied(&self, now: Timestamp) {
        let mut state = self.state();
        state.waiting_since = None;
        state.last_applied = Some(now);
    }

    /// Sets whether every worker runs.
    pub fn set_workers_run(&self, run: bool) {
        self.state().workers_run = run;
    }

    /// Sets whether the node accepts traffic: false if it is marked for deletion.
    pub fn set_node_eligible(&self, eligible: bool) {
        self.state().node_eligible = eligible;
    }

    /// The health at `now`, which is given in the daemon's monotonic time and in wall-clock time.
    #[must_use]
    pub fn report(&self, now: Duration, wall: Timestamp) -> HealthReport {
        let state = self.state();
        let in_time = state.waiting_since.is_none_or(|since| now.saturating_sub(since) <= self.timeout);
        HealthReport {
            healthy: state.workers_run && in_time,
            ready: state.workers_run && state.last_applied.is_some(),
            loop_alive: true,
            degraded: Vec::new(),
            node_eligible: state.node_eligible,
            started: self.started,
            last_applied: state.last_applied,
            now: wall,
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics with the lock")
    }
}
