//! The daemon behind `tidegate run`, from reading the configuration to shutdown.
//!
//! One loop ([`serve`]) waits for everything that can change the desired state: manifests, health, drains that end,
//! the operator, signals. It lets changes settle, and has the [`Controller`] reconcile and publish. [`State`] holds
//! what other tasks read: the admin socket, metrics, health ports.
//!
//! Invariant: after any failure at run time the last good state keeps forwarding. Only a signal, a worker or slow path that
//! hangs for good, or a thread or task that has ended although the gateway needs it, ends the process.

mod address_file;
mod announcements;
mod catch_up;
mod cluster;
mod command;
mod configuration;
mod controller;
mod degraded;
mod desired;
mod drain_watch;
mod drains;
mod fault_log;
mod flood_log;
mod flow_sharing;
mod flows;
mod found_peers;
mod gateway_drain;
mod kube_proxy;
mod layer2;
mod left_out;
mod list_copies;
mod moved_seats;
mod node_ports;
mod observer;
mod operator;
mod publications;
mod publisher;
mod readiness;
mod refused;
mod reload;
mod round;
mod round_log;
mod self_check;
mod snat_exchange;
mod snat_owners;
mod start;
mod state;
mod supervisor;
mod symptoms;
mod turn;
mod vital;
mod vrrp;
mod vrrp_faults;
mod watches;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use command::Command;
use configuration::Read;
use controller::Controller;
use drain_watch::DrainWatch;
use flow_sharing::{FlowExchange, Teach};
use layer2::Layer2;
use list_copies::Lists;
use start::{Listeners, Source};
use state::State;
use supervisor::Supervisor;
use symptoms::Symptoms;
use tidegate_admin_api::{DrainRequester, GatewayDrainState};
use tidegate_announce::Announcer;
use tidegate_cluster::plan::LeaseHolders;
use tidegate_cluster::{ClusterWriter, DrainAnnotation, PeerReleases, cpu_time};
use tidegate_dataplane::gateway::Dataplane;
use tidegate_health::health_check_node_port::BindFailure;
use tidegate_health::{Checker, Limits, NetworkProber};
use tidegate_model::config::{self, GatewayConfig};
use tidegate_model::health::Verdicts;
use tidegate_source::{SourceState, SourceUpdate};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use vital::Vital;

/// Exit code for a configuration that is refused.
const REFUSED: u8 = 2;
/// Exit code if another gateway has the same `metadata.name` at the same API server.
const NAME_TAKEN: u8 = 3;
/// Exit code if only files that the configuration names are refused: other programs write them, so a later start may succeed.
const FILES_REFUSED: u8 = 4;
/// A gateway that finds its name taken within this time after its start exits. A later one has flows, and keeps
/// forwarding them.
const NAME_TAKEN_ENDS: Duration = Duration::from_secs(60);
/// The minimum pause between two rounds. Changes during a pause are handled together.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The maximum pause, which follows a round of at least this duration.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The maximum time for the threads of the dataplane to end. Each of them ends at the end of its turn, unless it hangs.
const THREADS_END: Duration = Duration::from_secs(10);
/// The same after one of them has failed: packets are being lost, and one that hangs does not end.
const THREADS_END_AFTER_FAILURE: Duration = Duration::from_secs(2);
/// The maximum time for everything else to end, after the grace period. Each step has a limit of its own, some seconds in
/// total, unless the kernel does not let a thread or BIRD end.
const CONTROL_ENDS: Duration = Duration::from_secs(20);
/// How often the loop looks whether a task has ended that must not.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long the gateway keeps forwarding after a shutdown signal: clients of `/readyz` have this time to send their
/// packets elsewhere.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// Runs the gateway of the configuration at `path` until a signal ends it.
///
/// # Errors
/// When the dataplane, the source or a listener cannot be started.
pub fn run(path: &Path) -> anyhow::Result<ExitCode> {
    let began = std::time::Instant::now();
    let loaded = config::load_at_start(path);
    loaded.report.iter().for_each(crate::logging::diagnostic);
    let Some(config) = loaded.config else {
        if loaded.only_files_refused {
            supervisor::delay_retry(began);
        }
        return Ok(ExitCode::from(if loaded.only_files_refused { FILES_REFUSED } else { REFUSED }));
    };
    let ended = run_with(path, config, Lists { read: loaded.lists, copied: loaded.copied });
    if ended.is_err() {
        supervisor::delay_retry(began);
    }
    ended
}

fn run_with(path: &Path, config: GatewayConfig, lists: Lists) -> anyhow::Result<ExitCode> {
    let (failed, failures) = watch::channel(None);
    let (changed, changes) = watch::channel(());
    let dataplane = start::dataplane(&config, failed, changed)?;
    // The threads of the runtime inherit this, and so keep off the workers' cores.
    start::confine_to(dataplane.main_cpus());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("tg-control")
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let code = runtime.block_on(serve(path, config, lists, Arc::new(dataplane), failures, changes));
    // Only checks and connections may still be in progress, and nothing waits for them.
    runtime.shutdown_timeout(Duration::from_millis(200));
    code
}

/// The inputs of the loop.
struct Inputs {
    source: Source,
    manifests: watch::Receiver<SourceUpdate>,
    /// When the change of the manifests was seen that ended the last wait.
    seen: Option<std::time::Instant>,
    verdicts: watch::Receiver<Verdicts>,
    unbound: watch::Receiver<Vec<BindFailure>>,
    symptoms: watch::Receiver<Arc<Symptoms>>,
    peer_releases: watch::Receiver<PeerReleases>,
    name_taken: watch::Receiver<Option<String>>,
    /// Whether the gateway's `GatewayStatus` requests a drain.
    drain_annotation: watch::Receiver<DrainAnnotation>,
    /// The drain of the gateway.
    drain: watch::Receiver<GatewayDrainState>,
    kube_proxy: watch::Receiver<bool>,
    /// The holders of the Leases of VIPs.
    lease_holders: watch::Receiver<Arc<LeaseHolders>>,
    commands: mpsc::Receiver<Command>,
    failures: watch::Receiver<Option<String>>,
    /// Signals that an interface has changed its state, or a worker hangs or goes on, which may affect the gateway's
    /// readiness.
    changes: watch::Receiver<()>,
    /// Signals that a comparison of incremental results has ended.
    comparisons: watch::Receiver<()>,
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

/// Why the loop continues.
enum Wake {
    /// The desired state may have changed.
    Changed,
    /// A comparison of incremental results has ended.
    Compared,
    /// A request of the operator, who waits for the result.
    Command(Command),
    /// SIGHUP.
    Reload,
    /// The configuration has been read, or has not been in time.
    Read(Box<Read>),
    /// SIGTERM or SIGINT.
    End,
    /// A thread of the dataplane has failed, or a task has ended that must not.
    Failed(String),
    /// Another gateway has this gateway's name.
    NameTaken,
}

async fn serve(
    path: &Path,
    config: GatewayConfig,
    lists: Lists,
    dataplane: Arc<Dataplane>,
    failures: watch::Receiver<Option<String>>,
    changes: watch::Receiver<()>,
) -> anyhow::Result<ExitCode> {
    let mut gateway = Gateway::start(path, config, lists, &dataplane, failures, changes).await?;
    let End { code, grace, threads_end } = gateway.run().await;
    exit_if_it_hangs("the end of the control plane", grace + CONTROL_ENDS);
    // From the end of this call until the next process starts, packets are lost, so nothing may delay the exit.
    gateway.shut_down(grace).await;
    stop(dataplane, threads_end).await;
    tracing::info!("stopped");
    Ok(code)
}

/// How the exchange with other gateways gives the controller changes of backends that it has not seen.
fn teach(commands: mpsc::Sender<Command>) -> Teach {
    Box::new(move |moved, answer| match commands.try_send(Command::LearnSeats(moved, answer)) {
        Err(mpsc::error::TrySendError::Full(Command::LearnSeats(moved, _))) => Some(moved),
        // Otherwise the controller has them, or the gateway stops.
        _ => None,
    })
}

/// A running gateway, without its dataplane.
struct Gateway {
    _listeners: Listeners,
    _flow_exchange: Option<FlowExchange>,
    _drain_watch: DrainWatch,
    controller: Controller,
    inputs: Inputs,
    state: Arc<State>,
    announcer: Arc<Announcer>,
    /// The tasks and threads that must not end.
    vital: Vital,
    /// The latest end of the drain that a signal has begun.
    stops_at: Option<Instant>,
}

/// How the loop ends.
struct End {
    code: ExitCode,
    /// How long to keep forwarding.
    grace: Duration,
    /// How long to wait for the threads of the dataplane.
    threads_end: Duration,
}

impl End {
    fn new(code: ExitCode, grace: Duration) -> Self {
        Self { code, grace, threads_end: THREADS_END }
    }

    /// The end because of a failure that only a new process can fix.
    fn of_failure(why: &str) -> Self {
        tracing::error!(reason = why, "exiting, so that the supervisor restarts the gateway");
        // Packets may already be lost.
        Self { threads_end: THREADS_END_AFTER_FAILURE, ..Self::new(ExitCode::FAILURE, Duration::ZERO) }
    }
}

impl Gateway {
    /// Starts everything but the dataplane.
    async fn start(
        path: &Path,
        config: GatewayConfig,
        lists: Lists,
        dataplane: &Arc<Dataplane>,
        failures: watch::Receiver<Option<String>>,
        changes: watch::Receiver<()>,
    ) -> anyhow::Result<Self> {
        let source = Source::open(&config)?;
        let prober = NetworkProber::new().through(Arc::clone(dataplane.probes()));
        let checker = Checker::start(prober, Limits::of_this_process(), &config.name);
        let verdicts = checker.verdicts();
        let state = State::new(config.name.clone(), Arc::clone(dataplane), checker.counts(), source.state());
        let state = Arc::new(state);
        let of_checks = Arc::downgrade(&state);
        checker.fail_only_while(move || of_checks.upgrade().is_none_or(|state| state.can_forward()));
        state.configure(&config);
        let (operator, commands) = mpsc::channel(16);
        let of_exchange = Arc::clone(&state);
        let is_able = move || of_exchange.forwards();
        let flow_peers = Arc::default();
        let seats = (&state.moved_seats, teach(operator.clone()));
        let links = (state.sharing_keys(), start::snat_links(dataplane, &state));
        let flow_exchange = FlowExchange::start(&config, dataplane, is_able, seats, &flow_peers, links)?;
        if let Some(exchange) = &flow_exchange {
            state.share_flows(exchange.shown());
        }
        let listeners = start::listeners(&config, &state, operator).await?;
        let cluster = start::cluster(&config, &source);
        let (peer_releases, name_taken, drain_annotation) = match &cluster {
            Some(cluster) => {
                state.join_cluster(cluster.counts(), cluster.name_taken());
                let _ = flow_peers.set(cluster.flow_peers());
                (cluster.peer_releases(), cluster.name_taken(), cluster.drain_annotation())
            }
            // No other gateway reads the directory.
            None => (
                watch::Sender::new(PeerReleases::default()).subscribe(),
                watch::Sender::new(None).subscribe(),
                watch::Sender::new(DrainAnnotation::Unknown).subscribe(),
            ),
        };
        let mut vital = Vital::default();
        let kube_proxy = kube_proxy::follow(&config, &mut vital);
        vital.task("the log of SYN floods", flood_log::follow(dataplane));
        let (symptoms, observer) = observer::follow(&state);
        vital.task("the search for misconfigurations", observer);
        state.show_symptoms(symptoms.clone());
        let addresses = start::address_file(&config);
        let announcer = announcements::start(&config, &state)?;
        let connector = match &source {
            Source::Watched(watched) => Some(watched.connector()),
            Source::Directory(..) => None,
        };
        let of_layer2 = Arc::clone(&state);
        let is_cut_off = move || of_layer2.is_cut_off();
        let ownership = dataplane.neighbors().ownership();
        let (layer2, layer2_view) =
            Layer2::start(&config, cluster.as_ref().zip(connector), ownership, is_cut_off)?;
        state.join_layer2(layer2_view);
        vital.sender("the source of the objects", source.updates());
        vital.sender("the state of the source", source.state());
        vital.sender("the health checks", checker.verdicts());
        listeners.add_to(&mut vital);
        if let Some(exchange) = &flow_exchange {
            vital.sender("flow sharing", exchange.lives());
        }
        for task in cluster.iter().flat_map(ClusterWriter::tasks) {
            vital.task("the writer to the API server", task.clone());
        }
        if let Some(task) = layer2.task() {
            vital.task("the keeper of VIPs on layer 2", task);
        }
        let of_announcements = Arc::clone(&announcer);
        vital.add("the thread of the announcements", move || of_announcements.has_ended());
        let lease_holders = layer2.holders();
        let mut controller = Controller::new(
            config,
            path,
            Arc::clone(dataplane),
            Arc::clone(&state),
            checker,
            (cluster, layer2),
            Arc::clone(&announcer),
        );
        controller.keep_earlier_backends();
        if let Some(addresses) = addresses {
            controller.resume(addresses);
        }
        controller.begin_with(lists);
        let inputs = Inputs {
            manifests: source.updates(),
            seen: None,
            source,
            verdicts,
            unbound: controller.unbound(),
            symptoms,
            peer_releases,
            name_taken,
            drain_annotation,
            drain: state.drain.changes(),
            kube_proxy,
            lease_holders,
            commands,
            failures,
            changes,
            comparisons: controller.comparisons_end(),
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        };
        vital.sender("the listeners of health-check node ports", controller.unbound());
        let drain_watch = drain_watch::follow(&state);
        vital.task("the count of packets during a drain", drain_watch.task());
        Ok(Self {
            _listeners: listeners,
            _flow_exchange: flow_exchange,
            _drain_watch: drain_watch,
            controller,
            inputs,
            state,
            stops_at: None,
            announcer,
            vital,
        })
    }

    /// Runs a round after each change, until a signal, a dead thread or task, or another gateway's name ends it.
    async fn run(&mut self) -> End {
        self.state.turn.begin();
        self.inputs.pass_to(&mut self.controller);
        self.controller.apply(None).await;
        let started = Instant::now();
        let mut pace = Pace::begin();
        let mut supervisor = Supervisor::of_environment();
        self.tell(&mut supervisor);
        match self.inputs.manifests.borrow().revision {
            0 => tracing::info!(gateway = self.controller.config().name, "waiting for the initial objects"),
            _ => tracing::info!(gateway = self.controller.config().name, "forwarding"),
        }
        let end = loop {
            let mut seen = None;
            if let Some(end) = self.stops() {
                break end;
            }
            let due = self.controller.due().into_iter().chain(supervisor.due()).chain(self.stops_at).min();
            self.state.turn.end();
            let wake = self.wait(due, &mut supervisor).await;
            self.state.turn.begin();
            match wake {
                Wake::Changed => {
                    seen = self.inputs.seen.take();
                    sleep_until(pace.next()).await;
                }
                Wake::Compared => {
                    // Most comparisons find no difference, and no round is due.
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
                        "another gateway has the same metadata.name: this one keeps forwarding existing traffic; change the name of one of them"
                    );
                }
                Wake::Failed(why) => break End::of_failure(&why),
            }
            self.inputs.pass_to(&mut self.controller);
            // The main thread runs this loop and its rounds. Elapsed time would include the CPU time of others: on a
            // busy machine each slow round would be followed by an equally long pause.
            let before = cpu_time();
            self.controller.apply(seen).await;
            pace.ended(cpu_time().saturating_sub(before));
            self.tell(&mut supervisor);
        };
        supervisor.stopping();
        end
    }

    /// Waits for something to happen, or for `due`. Meanwhile it looks whether a task has ended that must not, and tells the
    /// supervisor's watchdog, and who asks `/watchdog`, that the loop goes on.
    async fn wait(&mut self, due: Option<Instant>, supervisor: &mut Supervisor) -> Wake {
        loop {
            let looks = self.state.dataplane.looks();
            self.state.progress.seen(looks);
            supervisor.goes_on(looks);
            if let Some(what) = self.vital.ended() {
                return Wake::Failed(format!("{what} ended unexpectedly"));
            }
            let next = self.inputs.next(due, self.controller.read());
            if let Ok(wake) = tokio::time::timeout(LOOK_EVERY, next).await {
                return wake;
            }
        }
    }

    /// Tells the supervisor whether the gateway forwards, or what it waits for.
    fn tell(&self, supervisor: &mut Supervisor) {
        let health = self.state.health();
        supervisor.notify(self.state.forwards(), || {
            waits_for(&self.inputs.source.state().borrow(), &health.degraded)
        });
    }

    /// A signal has requested the end. Returns the end, or `None` if the gateway drains first: then the loop goes on, so
    /// that changes of backends reach the packets that still come.
    fn begin_stop(&mut self) -> Option<End> {
        let is_taken = self.inputs.name_taken.borrow().is_some();
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
                tracing::info!(?timeout, quiet = ?config.drain.quiet, "stopping when no packet comes any more, or at the timeout");
                self.stops_at = Some(Instant::now() + timeout);
                None
            }
            _ => Some(End::new(code, SHUTDOWN_GRACE)),
        }
    }

    /// The end of the drain that a signal has begun, if it is time.
    fn stops(&self) -> Option<End> {
        let stops_at = self.stops_at?;
        let is_late = Instant::now() >= stops_at;
        if is_late && self.state.drain.phase() != GatewayDrainState::Drained {
            let drain = self.state.drain.view();
            tracing::warn!(
                packets_per_second = drain.packets_per_second,
                flows = drain.flows,
                "stopping although packets still come: drain.stopTimeout is over"
            );
        }
        (is_late || self.state.drain.phase() == GatewayDrainState::Drained)
            .then_some(End::new(ExitCode::SUCCESS, Duration::ZERO))
    }

    /// Keeps forwarding for `grace`, and ends everything but the dataplane.
    async fn shut_down(mut self, grace: Duration) {
        tracing::info!(?grace, "shutting down: not ready, still forwarding until the grace period ends");
        self.state.request_drain(DrainRequester::Signal, true);
        // Routers must have another way before this gateway stops to forward.
        announcements::withdraw(Arc::clone(&self.announcer)).await;
        // Old and new flows are forwarded to the last moment. No other gateway takes them over until a router has seen
        // that this gateway is not ready. If a new flow were refused here, its client would send the next SYN only a
        // second or three later.
        let forwarding = async {
            tokio::select! {
                () = tokio::time::sleep(grace) => {}
                _ = self.inputs.terminate.recv() => {}
                _ = self.inputs.interrupt.recv() => {}
            }
        };
        // The slow tasks run during the grace period.
        // The VIPs first: other gateways take them over while this one still forwards.
        let leave = async {
            self.controller.leave_layer2().await;
            self.controller.leave_cluster().await;
        };
        tokio::join!(forwarding, leave, self.inputs.source.save());
        announcements::stop(self.announcer).await;
    }
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

/// Ends the process if it has not ended in time: nobody can wait for a thread that hangs.
fn exit_if_it_hangs(what: &'static str, within: Duration) {
    let exit = move || {
        std::thread::sleep(within);
        tracing::error!("{what} hangs: exiting without it");
        std::process::exit(1);
    };
    if let Err(error) = std::thread::Builder::new().name("tg-exit".to_owned()).spawn(exit) {
        tracing::warn!(%error, "if {what} hangs, so will the exit");
    }
}

/// Ends the threads of the dataplane. If other tasks still hold it for an answer in progress, they drop it when the
/// runtime ends, with the same effect.
async fn stop(dataplane: Arc<Dataplane>, within: Duration) {
    exit_if_it_hangs("a thread of the dataplane", within);
    if let Ok(dataplane) = Arc::try_unwrap(dataplane) {
        let stopped = tokio::task::spawn_blocking(move || dataplane.stop()).await;
        if let Err(error) = stopped {
            tracing::error!(%error, "the dataplane did not stop cleanly");
        }
    }
}

impl Inputs {
    /// Sets the newest of each input in the controller.
    fn pass_to(&mut self, controller: &mut Controller) {
        controller.take(self.manifests.borrow_and_update().clone());
        controller.set_verdicts(self.verdicts.borrow_and_update().clone());
        controller.set_peers(&self.peer_releases.borrow_and_update());
        controller.share_node(*self.kube_proxy.borrow_and_update());
        controller.set_lease_holders(Arc::clone(&self.lease_holders.borrow_and_update()));
        controller.set_drain_annotation(&self.drain_annotation.borrow_and_update());
    }

    /// Waits for something to happen, for a configuration to be `read`, or for `due`.
    async fn next(&mut self, due: Option<Instant>, read: impl Future<Output = Read>) -> Wake {
        let due = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = self.terminate.recv() => Wake::End,
            _ = self.interrupt.recv() => Wake::End,
            Ok(()) = self.failures.changed() => match self.failures.borrow_and_update().clone() {
                Some(why) => Wake::Failed(why),
                None => Wake::Changed,
            },
            Ok(()) = self.name_taken.changed() => Wake::NameTaken,
            _ = self.hangup.recv() => Wake::Reload,
            read = read => Wake::Read(Box::new(read)),
            Some(command) = self.commands.recv() => Wake::Command(command),
            Ok(()) = self.manifests.changed() => {
                self.seen = Some(self.manifests.borrow().seen);
                Wake::Changed
            }
            Ok(()) = self.verdicts.changed() => Wake::Changed,
            Ok(()) = self.unbound.changed() => Wake::Changed,
            Ok(()) = self.symptoms.changed() => Wake::Changed,
            Ok(()) = self.changes.changed() => Wake::Changed,
            Ok(()) = self.comparisons.changed() => Wake::Compared,
            Ok(()) = self.peer_releases.changed() => Wake::Changed,
            Ok(()) = self.kube_proxy.changed() => Wake::Changed,
            Ok(()) = self.lease_holders.changed() => Wake::Changed,
            Ok(()) = self.drain_annotation.changed() => Wake::Changed,
            Ok(()) = self.drain.changed() => Wake::Changed,
            () = due => Wake::Changed,
        }
    }
}

/// When the next round may begin. A single change does not wait. Changes that arrive during a round and the pause
/// after it are handled together, so that rounds take at most half of the thread's time.
#[derive(Debug, Clone, Copy)]
struct Pace {
    next: Instant,
}

impl Pace {
    fn begin() -> Self {
        Self { next: Instant::now() }
    }

    fn next(&self) -> Instant {
        self.next
    }

    /// Records that a round ended, which used this much CPU time.
    fn ended(&mut self, took: Duration) {
        self.next = Instant::now() + took.clamp(PAUSE_MIN, PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_change_alone_goes_at_once_and_rounds_take_half_of_the_time_at_most() {
        let mut pace = Pace::begin();
        let pause = |pace: Pace| pace.next().saturating_duration_since(Instant::now());
        assert_eq!(pause(pace), Duration::ZERO);
        for (took, expected) in [(1, 10), (10, 10), (300, 300), (5_000, 1_000)] {
            pace.ended(Duration::from_millis(took));
            assert_eq!(pause(pace), Duration::from_millis(expected), "after a round of {took} ms");
            tokio::time::advance(Duration::from_millis(2_000)).await;
            assert_eq!(pause(pace), Duration::ZERO);
        }
    }
}
