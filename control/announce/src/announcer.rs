//! The announcer thread: takes the result of the latest reconcile round, decides what to announce, and applies that to
//! BIRD and the kernel.
//!
//! It checks the gateway's state every [`TICK`], so a gateway that stops forwarding withdraws its VIPs within a second,
//! even if no round follows. It is also BIRD's parent process: BIRD exits when this thread ends.
//!
//! Invariant: the daemon's loop never waits for this thread, except in [`Announcer::withdraw`] at shutdown.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tidegate_model::config::BgpConfig;

use crate::announced_routes::Decision;
use crate::bird::config::{Files, InitialExport, Waiting};
use crate::bird::{Bird, record_failure};
use crate::decide::Gateway;
use crate::first_bfd::FirstBfd;
pub use crate::inputs::{Condition, Round, Serves, Setup};
use crate::interruption::Interruption;
use crate::kernel::Table;
use crate::snat::SnatRoutes;
use crate::status::{self, BgpStatus, KernelStatus, PeerStatus, Status};

/// How long routes that an earlier daemon left in the kernel are kept while no objects are known.
const KEEP_MAX: Duration = Duration::from_secs(10);
/// How often the state of the gateway is checked.
const TICK: Duration = Duration::from_millis(200);

/// The inputs of the thread.
#[derive(Debug, Default)]
struct Inputs {
    setup: Option<Arc<Setup>>,
    round: Option<Round>,
    snat: Arc<SnatRoutes>,
    leaving: bool,
    stopping: bool,
    /// Counts changes of the above.
    changes: u64,
}

#[derive(Debug, Default)]
struct Shared {
    inputs: Mutex<Inputs>,
    changed: Condvar,
    status: Mutex<Arc<Status>>,
    /// Whether all routes have been withdrawn after [`Announcer::withdraw`].
    withdrawn: Mutex<bool>,
    withdrawn_changed: Condvar,
}

/// The running thread.
#[derive(Debug)]
pub struct Announcer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Announcer {
    /// Starts the thread. `directory` is for BIRD's files and is created when BIRD is needed. `condition` returns the
    /// current state of the gateway.
    ///
    /// # Errors
    /// If the system cannot create another thread.
    pub fn start(directory: PathBuf, condition: impl Fn() -> Condition + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (for_thread, condition) = (Arc::clone(&shared), Box::new(condition));
        let worker = move || {
            let mut worker = Worker::new(directory, condition);
            worker.run(&for_thread);
        };
        let thread = thread::Builder::new().name("tg-announce".to_owned()).spawn(worker)?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Replaces the configuration.
    pub fn configure(&self, setup: Setup) {
        self.change(|inputs| inputs.setup = Some(Arc::new(setup)));
    }

    /// Replaces the result of the latest round.
    pub fn offer(&self, round: Round) {
        self.change(|inputs| inputs.round = Some(round));
    }

    /// Replaces the SNAT routes.
    pub fn announce_snat(&self, routes: SnatRoutes) {
        self.change(|inputs| inputs.snat = Arc::new(routes));
    }

    /// Withdraws everything for good and waits until that is done, for at most `within`. Returns whether it is done.
    pub fn withdraw(&self, within: Duration) -> bool {
        self.change(|inputs| inputs.leaving = true);
        let until = Instant::now() + within;
        let mut withdrawn = lock(&self.shared.withdrawn);
        while !*withdrawn {
            let remaining = until.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return false;
            }
            let waited = self.shared.withdrawn_changed.wait_timeout(withdrawn, remaining);
            withdrawn = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Stops BIRD, removes the kernel routes, and ends the thread.
    pub fn stop(&self) {
        self.change(|inputs| inputs.stopping = true);
        if let Some(thread) = lock(&self.thread).take()
            && thread.join().is_err()
        {
            tracing::error!("the announcer thread panicked");
        }
    }

    /// Whether the thread has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        lock(&self.thread).as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// The state of the announcements.
    #[must_use]
    pub fn status(&self) -> Arc<Status> {
        Arc::clone(&lock(&self.shared.status))
    }

    fn change(&self, change: impl FnOnce(&mut Inputs)) {
        let mut inputs = lock(&self.shared.inputs);
        change(&mut inputs);
        inputs.changes += 1;
        self.shared.changed.notify_one();
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state that only the thread uses.
struct Worker {
    directory: PathBuf,
    started: Instant,
    condition: Box<dyn Fn() -> Condition + Send>,
    bird: Option<Bird>,
    /// Why BIRD cannot be used, if it cannot.
    no_bird: Option<String>,
    table: Option<Table>,
    decision: Decision,
    files: Files,
    /// The inputs that `files` was generated from: configuration, number of the decision, and waiting peers.
    written: Option<(Arc<Setup>, u64, Waiting)>,
    first_bfd: FirstBfd,
    interruption: Interruption,
    peers: Vec<PeerStatus>,
    /// How many VIPs and prefixes the peers or the kernel have received.
    sent: (usize, usize),
}

impl Worker {
    fn new(directory: PathBuf, condition: Box<dyn Fn() -> Condition + Send>) -> Self {
        Self {
            directory,
            started: Instant::now(),
            condition,
            bird: None,
            no_bird: None,
            table: None,
            decision: Decision::default(),
            files: Files::default(),
            written: None,
            first_bfd: FirstBfd::default(),
            interruption: Interruption::default(),
            peers: Vec::new(),
            sent: (0, 0),
        }
    }

    fn run(&mut self, shared: &Shared) {
        let mut seen = 0;
        loop {
            let (setup, round, snat, leaving, changes, stopping) = {
                let mut inputs = lock(&shared.inputs);
                if inputs.changes == seen {
                    let waited = shared.changed.wait_timeout(inputs, TICK);
                    inputs = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                seen = inputs.changes;
                let snat = Arc::clone(&inputs.snat);
                (inputs.setup.clone(), inputs.round.clone(), snat, inputs.leaving, seen, inputs.stopping)
            };
            if stopping {
                return self.end();
            }
            let now = Instant::now();
            let Condition { forwarding, draining, catching_up } = (self.condition)();
            self.interruption.observe(catching_up, now);
            let catching_up =
                catching_up && !setup.as_deref().is_some_and(|setup| self.keeps_routes(setup, now));
            let gateway = Gateway { forwarding, draining, catching_up, leaving };
            let mut is_applied = true;
            if let Some(setup) = &setup {
                let announces = setup.config.bgp.is_some() || setup.config.kernel_routes.is_some();
                if !announces {
                    self.decision.clear();
                } else if let Some(round) = &round {
                    self.decision.decide(&setup.config, (round, &snat), gateway, changes, now);
                }
                // Before the first round, a restarted daemon must not remove routes that it will announce again. This
                // matters only for kernel routes: BIRD's routes ended with the previous BIRD.
                if round.is_some() || gateway.leaving {
                    is_applied = self.apply(setup, now);
                } else if now.saturating_duration_since(self.started) >= KEEP_MAX {
                    // Without objects nothing is forwarded: remove the earlier daemon's routes.
                    is_applied = self.apply_to_kernel(setup, now);
                }
                self.count_sent(is_applied);
                *lock(&shared.status) = Arc::new(self.status(setup));
            }
            if gateway.leaving && is_applied && self.decision.announced.is_empty() {
                *lock(&shared.withdrawn) = true;
                shared.withdrawn_changed.notify_all();
            }
        }
    }

    /// Whether announced routes are kept while the gateway catches up, because a router still sends packets through
    /// them.
    fn keeps_routes(&mut self, setup: &Setup, now: Instant) -> bool {
        if self.decision.announced.is_empty() {
            return false;
        }
        let Some(bgp) = &setup.config.bgp else { return true };
        if let Some(bird) = &mut self.bird {
            bird.poll_soon(now);
        }
        self.observe_peers(bgp, now);
        self.peers.iter().any(|peer| self.interruption.keeps(peer))
    }

    /// Applies the routes to BIRD and the kernel. Returns whether both have applied them.
    fn apply(&mut self, setup: &Arc<Setup>, now: Instant) -> bool {
        let in_kernel = self.apply_to_kernel(setup, now);
        let in_bird = self.apply_to_bird(setup, now);
        in_kernel && in_bird
    }

    fn apply_to_kernel(&mut self, setup: &Setup, now: Instant) -> bool {
        let wanted = setup.config.kernel_routes;
        if self.table.as_ref().map(Table::config) != wanted {
            if let Some(mut table) = self.table.take() {
                table.clear(now);
            }
            self.table = wanted.map(Table::new);
        }
        self.table.as_mut().is_none_or(|table| table.apply(&self.decision.kernel_routes, now))
    }

    fn apply_to_bird(&mut self, setup: &Arc<Setup>, now: Instant) -> bool {
        let Some(bgp) = &setup.config.bgp else {
            if let Some(mut bird) = self.bird.take() {
                bird.stop();
            }
            self.no_bird = None;
            self.peers.clear();
            return true;
        };
        if self.bird.is_none() {
            match Bird::open(&self.directory) {
                Ok(bird) => (self.bird, self.no_bird) = (Some(bird), None),
                Err(error) => {
                    let directory = self.directory.display();
                    let why = format!("cannot create BIRD's directory {directory}: {error}");
                    if self.no_bird.as_ref() != Some(&why) {
                        record_failure(&why);
                        self.no_bird = Some(why);
                    }
                    return false;
                }
            }
        }
        self.first_bfd.observe(self.bird.as_ref().is_some_and(Bird::is_up), &self.peers, now);
        let waiting = self.waiting(bgp);
        let is_written = self.written.as_ref().is_some_and(|(of, decision, waited)| {
            Arc::ptr_eq(of, setup) && *decision == self.decision.number && *waited == waiting
        });
        if !is_written {
            self.files =
                Files::of(bgp, &setup.own, (&self.decision.routes, &self.decision.last_resort), &waiting);
            self.written = Some((Arc::clone(setup), self.decision.number, waiting));
        }
        let Some(bird) = &mut self.bird else { return false };
        let recovers = bgp.peers.iter().any(|peer| peer.graceful_restart);
        let is_applied = bird.apply(&self.files, &bgp.program, recovers, now);
        self.observe_peers(bgp, now);
        is_applied
    }

    /// The peers that don't get all routes yet.
    fn waiting(&self, bgp: &BgpConfig) -> Waiting {
        let mut waiting = Waiting::new();
        if self.interruption.is_catching_up() {
            let restarts =
                |address| bgp.peers.iter().any(|peer| peer.address == address && peer.graceful_restart);
            let lost = self.peers.iter().filter(|peer| !self.interruption.keeps(peer));
            // A peer with graceful restart keeps the old routes; an empty table would remove them.
            let lost = lost.map(|peer| peer.address).filter(|&address| !restarts(address));
            // If no other gateway is alive, last-resort routes are the only path for replies to our SNAT addresses.
            waiting.extend(lost.map(|address| (address, InitialExport::LastResort)));
        }
        waiting
            .extend(self.first_bfd.waiting(bgp).into_iter().map(|address| (address, InitialExport::Nothing)));
        waiting
    }

    /// Queries BIRD for the sessions if a query is due.
    fn observe_peers(&mut self, bgp: &BgpConfig, now: Instant) {
        let mut before = std::mem::take(&mut self.peers);
        for peer in &bgp.peers {
            let known = before.iter().position(|one| (one.address, one.asn) == (peer.address, peer.asn));
            self.peers.push(
                known.map_or_else(|| PeerStatus::new(peer.address, peer.asn), |at| before.swap_remove(at)),
            );
        }
        let Some(bird) = &mut self.bird else { return };
        if !bird.is_up() {
            for (status, peer) in self.peers.iter_mut().zip(&bgp.peers) {
                status.update(None, peer.bfd, now);
            }
        } else if let Some(protocols) = bird.poll(now) {
            for (status, peer) in self.peers.iter_mut().zip(&bgp.peers) {
                status.update(Some(&protocols), peer.bfd, now);
            }
        }
    }

    /// Counts what peers and the kernel have received. While a change is being applied, the previous counts stay,
    /// unless no routes are received at all.
    fn count_sent(&mut self, is_applied: bool) {
        let reached = status::reached(&self.peers, is_applied && self.table.is_some());
        if is_applied || reached == [false; 2] {
            let has = |address: IpAddr| reached[usize::from(address.is_ipv6())];
            let vips = self.decision.announced.iter().filter(|vip| has(**vip)).count();
            self.sent = (vips, self.decision.routes.keys().filter(|prefix| has(prefix.addr())).count());
        }
    }

    fn status(&self, setup: &Setup) -> Status {
        Status {
            is_configured: setup.config.bgp.is_some() || setup.config.kernel_routes.is_some(),
            prefixes: self.sent.1,
            announced: self.sent.0,
            unsent: self.decision.announced.len().saturating_sub(self.sent.0),
            withheld: status::withheld(&self.decision.vips),
            outside: self.decision.outside.clone(),
            bgp: setup.config.bgp.as_ref().map(|_| BgpStatus {
                is_running: self.bird.as_ref().is_some_and(Bird::is_up),
                restarts: self.bird.as_ref().map_or(0, Bird::restarts),
                last_error: self
                    .bird
                    .as_ref()
                    .and_then(Bird::last_error)
                    .or(self.no_bird.as_deref())
                    .map(str::to_owned),
                peers: self.peers.clone(),
            }),
            kernel: self.table.as_ref().map(|table| KernelStatus {
                table: table.config().table,
                protocol: table.config().protocol,
                routes: table.len(),
                last_error: table.last_error().map(str::to_owned),
            }),
            at: Some(Instant::now()),
        }
    }

    fn end(&mut self) {
        if let Some(mut table) = self.table.take() {
            table.clear(Instant::now());
        }
        if let Some(mut bird) = self.bird.take() {
            bird.stop();
        }
    }
}

/// The directory for BIRD's files, derived from the path of the admin socket, which is unique per gateway on a machine.
#[must_use]
pub fn directory_beside(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".bird");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tidegate_model::config::AnnounceConfig;

    use super::*;
    use crate::bird;
    use crate::snat::{Preference, SnatRoute};

    #[test]
    fn a_directory_that_cannot_be_created_is_reported_until_it_can() {
        let at = tempfile::tempdir().unwrap();
        let parent = at.path().join("run");
        fs::write(&parent, "a file").unwrap();
        let condition = || Condition { forwarding: true, draining: false, catching_up: false };
        let mut worker = Worker::new(parent.join("bird"), Box::new(condition));
        let bgp = Some(bird::without_peers("there-is-no-such-bird"));
        let config = AnnounceConfig { bgp, ..AnnounceConfig::default() };
        let setup = Arc::new(Setup { config, own: Vec::new() });
        let reports = |worker: &Worker| {
            let bgp = worker.status(&setup).bgp.unwrap();
            assert!(!bgp.is_running);
            bgp.last_error.unwrap_or_default()
        };
        let now = Instant::now();
        assert!(!worker.apply_to_bird(&setup, now));
        let why = reports(&worker);
        assert!(why.starts_with("cannot create BIRD's directory "), "{why}");
        fs::remove_file(&parent).unwrap();
        assert!(!worker.apply_to_bird(&setup, now));
        let why = reports(&worker);
        assert!(why.starts_with("cannot start BIRD"), "{why}");
    }
    #[test]
    fn peers_get_only_last_resort_routes_until_the_gateway_has_caught_up() {
        let text = "apiVersion: tidegate.dev/v1alpha1\nkind: GatewayConfig\n\
             announce: {bgp: {asn: 1, peers: [{address: 192.0.2.1, asn: 2, bfd: false}], program: /there/is/no/bird}}\n\
             dataplane: {interfaces: [{name: up, device: net_null0, addresses: [192.0.2.2/24]}]}\n";
        let loaded = tidegate_model::config::parse(text, "gateway.yaml", Path::new("."), 2);
        let config = loaded.config.unwrap_or_else(|| panic!("{}", loaded.report)).announce;
        let setup = Arc::new(Setup { config, own: vec![vec!["192.0.2.2/24".parse().unwrap()]] });
        let at = tempfile::tempdir().unwrap();
        let condition = || Condition { forwarding: true, draining: false, catching_up: true };
        let mut worker = Worker::new(at.path().join("bird"), Box::new(condition));
        let gateway = Gateway { forwarding: true, draining: false, catching_up: true, leaving: false };
        let mut written = |preference, catching_up| {
            let now = Instant::now();
            let own = ("192.0.2.12".parse().unwrap(), SnatRoute { preference, is_best: true });
            worker.interruption.observe(catching_up, now);
            worker.decision.routes.clear();
            worker.decision.add_snat(&SnatRoutes::from([own]), Gateway { catching_up, ..gateway });
            worker.decision.number += 1;
            // The first call creates the peers, which are down.
            for _ in 0..2 {
                assert!(!worker.apply_to_bird(&setup, now), "there is no BIRD");
            }
            format!("{:?}", worker.files)
        };
        let before = written(Preference::Last, true);
        assert!(before.contains("192.0.2.12/32 blackhole { tg_pref = 0; "), "{before}");
        assert!(before.contains("tg_last_resort = 1;") && !before.contains("export none"), "{before}");
        assert!(before.contains("if !defined(tg_last_resort) then reject;"), "{before}");
        let after = written(Preference::Own, false);
        assert!(after.contains("192.0.2.12/32 blackhole;") && !after.contains("!defined("), "{after}");
    }
}
