//! The running gateway without its dataplane: the loop that runs the rounds, and its shutdown.
//!
//! [`Gateway::run`] waits for everything that can change the desired state ([`Inputs`]). It batches changes, and has
//! the [`Controller`] reconcile and publish.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tidegate_admin_api::{DrainRequester, GatewayDrainState};
use tidegate_announce::Announcer;
use tidegate_cluster::cpu_time;
use tidegate_events::{Event, ObjectKind, Reason};
use tidegate_source::SourceState;
use tokio::time::{Instant, sleep_until};

use super::announcements;
use super::controller::Controller;
use super::drain_watch::DrainWatch;
use super::flow_log::FlowLogThread;
use super::flow_sharing::FlowExchange;
use super::inputs::{Inputs, Wake};
use super::pace::Pace;
use super::start::Listeners;
use super::state::State;
use super::supervisor::Supervisor;
use super::task_watchdog::Vital;

/// Exit code if another gateway has the same `metadata.name` at the same API server.
const NAME_TAKEN: u8 = 3;
/// A gateway exits if it finds its name taken within this time after its start. After this time, it has flows and keeps
/// forwarding them.
const NAME_TAKEN_ENDS: Duration = Duration::from_secs(60);
/// How long the dataplane threads may take to end. Each of them ends after its loop iteration, unless it hangs.
const THREADS_END: Duration = Duration::from_secs(10);
/// The shorter limit after one of them has failed: packets are being lost, and a hung thread does not end.
const THREADS_END_AFTER_FAILURE: Duration = Duration::from_secs(2);
/// How often the loop checks whether a vital task has ended.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long the gateway keeps forwarding after a shutdown signal, so that clients of `/readyz` can send their packets
/// elsewhere.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// A running gateway, without its dataplane.
pub(super) struct Gateway {
    pub(super) _guards: Guards,
    pub(super) controller: Controller,
    pub(super) inputs: Inputs,
    pub(super) state: Arc<State>,
    pub(super) announcer: Arc<Announcer>,
    /// The flow log, if it has an output.
    pub(super) flow_log: Option<FlowLogThread>,
    /// Tasks and threads that must not end.
    pub(super) vital: Vital,
    /// The latest time when the drain that a signal started may end.
    pub(super) stops_at: Option<Instant>,
}

/// What ends when it is dropped.
pub(super) struct Guards {
    _listeners: Listeners,
    _flow_exchange: Option<FlowExchange>,
    _drain_watch: DrainWatch,
}

impl Guards {
    pub(super) fn new(
        listeners: Listeners,
        flow_exchange: Option<FlowExchange>,
        drain_watch: DrainWatch,
    ) -> Self {
        Self { _listeners: listeners, _flow_exchange: flow_exchange, _drain_watch: drain_watch }
    }
}

/// How the loop ends.
pub(super) struct End {
    pub(super) code: ExitCode,
    /// How long to keep forwarding.
    pub(super) grace: Duration,
    /// How long to wait for the threads of the dataplane.
    pub(super) threads_end: Duration,
}

impl End {
    fn new(code: ExitCode, grace: Duration) -> Self {
        Self { code, grace, threads_end: THREADS_END }
    }

    /// The end because of a failure that only a restart can fix.
    fn of_failure(why: &str) -> Self {
        tracing::error!(reason = why, "exiting, so that the supervisor restarts the gateway");
        // Packets may already be lost.
        Self { threads_end: THREADS_END_AFTER_FAILURE, ..Self::new(ExitCode::FAILURE, Duration::ZERO) }
    }
}

impl Gateway {
    /// Runs a round after each change, until a signal, a failed thread or task, or another gateway with its name ends
    /// it.
    pub(super) async fn run(&mut self) -> End {
        self.state.main_loop.iteration.begin();
        self.inputs.pass_to(&mut self.controller);
        self.controller.apply(None).await;
        let started = Instant::now();
        let mut pace = Pace::begin();
        let mut supervisor = Supervisor::of_environment();
        self.notify_supervisor(&mut supervisor);
        match self.inputs.manifests.borrow().revision {
            0 => tracing::info!(gateway = self.controller.config().name, "waiting for the initial objects"),
            _ => tracing::debug!(gateway = self.controller.config().name, "has the initial objects"),
        }
        let end = loop {
            let mut seen = None;
            if let Some(end) = self.stops() {
                break end;
            }
            let due = self.controller.due().into_iter().chain(supervisor.due()).chain(self.stops_at).min();
            self.state.main_loop.iteration.end();
            let wake = self.wait(due, &mut supervisor).await;
            self.state.main_loop.iteration.begin();
            match wake {
                Wake::Changed => {
                    seen = self.inputs.seen.take();
                    sleep_until(pace.next()).await;
                }
                Wake::Compared => {
                    // Most comparisons find no difference and need no round.
                    if !self.controller.heal() {
                        continue;
                    }
                    sleep_until(pace.next()).await;
                }
                Wake::Command(command) => self.controller.execute(command).await,
                Wake::Reload => {
                    self.controller.request_reload();
                    continue;
                }
                Wake::Read(read) => {
                    self.controller.reload(*read);
                    self.inputs.source.reload();
                }
                Wake::End => match self.begin_stop() {
                    Some(end) => break end,
                    None => supervisor.stopping(),
                },
                Wake::NameTaken if started.elapsed() < NAME_TAKEN_ENDS => {
                    tracing::error!("exiting: another gateway has the same metadata.name");
                    break End::new(ExitCode::from(NAME_TAKEN), Duration::ZERO);
                }
                Wake::NameTaken => {
                    tracing::error!(
                        "another gateway has the same metadata.name: this one keeps forwarding, but does not lead and \
                         writes no status; rename one of them"
                    );
                }
                Wake::Failed(why) => break End::of_failure(&why),
            }
            self.inputs.pass_to(&mut self.controller);
            // The pause depends on the CPU time of the main thread, which runs this loop and its rounds. Elapsed time
            // would include the CPU time of others: on a busy machine, each slow round would be followed by an equally
            // long pause.
            let before = cpu_time();
            self.controller.apply(seen).await;
            pace.ended(cpu_time().saturating_sub(before));
            self.notify_supervisor(&mut supervisor);
        };
        supervisor.stopping();
        end
    }

    /// Waits for an event or until `due`. Meanwhile it checks whether a vital task has ended, and reports to the
    /// supervisor's watchdog and to `/watchdog` that the loop is alive.
    async fn wait(&mut self, due: Option<Instant>, supervisor: &mut Supervisor) -> Wake {
        loop {
            let looks = self.state.dataplane.watchdog_checks();
            self.state.main_loop.progress.seen(looks);
            supervisor.notify_watchdog(looks);
            if let Some(what) = self.vital.ended() {
                return Wake::Failed(format!("{what} ended unexpectedly"));
            }
            let next = self.inputs.next(due, self.controller.read());
            if let Ok(wake) = tokio::time::timeout(CHECK_INTERVAL, next).await {
                return wake;
            }
        }
    }

    /// Reports to the supervisor whether the gateway forwards, or what it waits for.
    fn notify_supervisor(&self, supervisor: &mut Supervisor) {
        let health = self.state.health();
        supervisor.notify(self.state.forwards(), || {
            waits_for(&self.inputs.source.state().borrow(), &health.degraded)
        });
    }

    /// Handles a shutdown signal. Returns how the loop ends, or `None` if the gateway drains first: then the loop
    /// continues, so that changes of backends still take effect.
    fn begin_stop(&mut self) -> Option<End> {
        let is_taken = self.inputs.cluster.name_taken.borrow().is_some();
        let code = if is_taken { ExitCode::from(NAME_TAKEN) } else { ExitCode::SUCCESS };
        let is_drained = self.state.drain.phase() == GatewayDrainState::Drained;
        self.state.request_drain(DrainRequester::Signal, true);
        let config = self.controller.config();
        match config.drain.stop_timeout(config.announce.is_withdrawable()) {
            _ if is_drained => Some(End::new(code, Duration::ZERO)),
            _ if self.stops_at.is_some() => {
                tracing::warn!("a second signal ends the drain: stopping now");
                Some(End::new(code, Duration::ZERO))
            }
            Some(timeout) if !is_taken => {
                tracing::info!(?timeout, quiet = ?config.drain.quiet, "draining: stopping when no more packets arrive, or at the timeout");
                self.stops_at = Some(Instant::now() + timeout);
                None
            }
            _ => Some(End::new(code, SHUTDOWN_GRACE)),
        }
    }

    /// How the loop ends, if the drain that a signal started is over.
    fn stops(&self) -> Option<End> {
        let stops_at = self.stops_at?;
        let is_late = Instant::now() >= stops_at;
        if is_late && self.state.drain.phase() != GatewayDrainState::Drained {
            let drain = self.state.drain.view();
            tracing::warn!(
                packets_per_second = drain.packets_per_second,
                flows = drain.flows,
                "stopping although packets still arrive, because drain.stopTimeout has passed"
            );
        }
        (is_late || self.state.drain.phase() == GatewayDrainState::Drained)
            .then_some(End::new(ExitCode::SUCCESS, Duration::ZERO))
    }

    /// Keeps forwarding for `grace`, then ends everything except the dataplane.
    pub(super) async fn shut_down(mut self, grace: Duration) {
        let message = "shutting down: reporting not ready, and forwarding until the grace period ends";
        record(Reason::GatewayStopping, &self.state.name, message);
        self.state.request_drain(DrainRequester::Signal, true);
        // Routers must have another path before this gateway stops forwarding.
        announcements::withdraw(Arc::clone(&self.announcer)).await;
        // Old and new flows are forwarded until the end. No other gateway takes them over until a router has seen that
        // this gateway is not ready. If a new flow were refused here, its client would send the next SYN one or three
        // seconds later.
        let forwarding = async {
            tokio::select! {
                () = tokio::time::sleep(grace) => {}
                () = self.inputs.signals.end() => {}
            }
        };
        // The slow tasks run during the grace period.
        // The VIPs first: other gateways take them over while this one still forwards.
        let leave = async {
            self.controller.leave_layer2().await;
            self.controller.leave_cluster().await;
        };
        tokio::join!(forwarding, leave, self.inputs.source.save());
        if let Some(log) = self.flow_log {
            log.end().await;
        }
        announcements::stop(self.announcer).await;
    }
}

/// Records a change of the gateway.
fn record(reason: Reason, name: &str, message: &str) {
    tidegate_events::record(Event::new(reason, ObjectKind::Gateway, name, message));
}

/// Why the gateway does not forward yet, as text for people.
fn waits_for(source: &SourceState, degraded: &[String]) -> String {
    if !degraded.is_empty() {
        return format!("cannot forward: {}", degraded.join("; "));
    }
    match &source.last_error {
        Some(why) => format!("waiting for the initial objects: {why}"),
        None => "waiting for objects, or for the workers to apply them".to_owned(),
    }
}
