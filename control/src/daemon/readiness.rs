//! The time-dependent part of the answers of health ports and probes.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use tidegate_health::health_check_node_port::{HealthReport, ProxyHealth};

/// If the workers have not applied an update after this time, the gateway is unhealthy. This is
/// kube-proxy's limit: twice its default sync period.
const UPDATE_MAX: Duration = Duration::from_secs(60);

/// The time-dependent state of the gateway's health.
#[derive(Debug)]
pub(super) struct Readiness {
    health: ProxyHealth,
    /// The origin of the monotonic times of `health`.
    epoch: Instant,
}

impl Readiness {
    pub(super) fn new(started: Timestamp) -> Self {
        Self { health: ProxyHealth::new(UPDATE_MAX, started), epoch: Instant::now() }
    }

    /// The time since the start, independent of changes of the system clock.
    pub(super) fn uptime(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Records that the workers have an update to apply, or that it could not be published.
    pub(super) fn update_queued(&self) {
        self.health.update_queued(self.epoch.elapsed());
    }

    /// Sets whether load balancers may send to the gateway's own node.
    pub(super) fn set_node_eligible(&self, eligible: bool) {
        self.health.set_node_eligible(eligible);
    }

    /// The current answer. `is_applied`: the workers have applied the latest update; `workers_run`: all of them run;
    /// `is_draining`: the gateway accepts no more traffic; `degraded`: interfaces that cannot carry packets.
    ///
    /// Load balancers that query `/healthz` must stop sending to a draining gateway, but its process is healthy.
    /// kube-proxy reports that as `nodeEligible` for a node that is about to be removed, and `/livez` ignores it.
    pub(super) fn report(
        &self,
        is_applied: bool,
        workers_run: bool,
        is_draining: bool,
        degraded: Vec<String>,
    ) -> HealthReport {
        let now = Timestamp::now();
        if is_applied {
            self.health.applied(now);
        }
        self.health.set_workers_run(workers_run);
        let report = self.health.report(self.epoch.elapsed(), now);
        HealthReport {
            ready: report.ready && !is_draining && degraded.is_empty(),
            node_eligible: report.node_eligible && !is_draining,
            degraded,
            ..report
        }
    }
}
