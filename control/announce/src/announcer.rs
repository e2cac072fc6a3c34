//! The thread that announces: it takes the newest round, decides, and lets BIRD and the kernel have the result.
//!
//! It looks at the gateway's state every [`TICK`], so that a gateway that cannot forward withdraws within a second
//! although no round follows. It is also BIRD's parent: BIRD ends when this thread ends.
//!
//! Invariant: the daemon's loop never waits for this thread, except for [`Announcer::withdraw`] at its end.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tidegate_model::config::BgpConfig;

use crate::announced_routes::Decision;
use crate::bird::Bird;
use crate::bird::config::{Files, Given, Waiting};
use crate::decide::Gateway;
use crate::first_bfd::FirstBfd;
pub use crate::inputs::{Condition, Round, Serves, Setup};
use crate::interruption::Interruption;
use crate::kernel::Table;
use crate::snat::SnatRoutes;
use crate::status::{self, BgpStatus, KernelStatus, PeerStatus, Status};

/// Routes that an earlier gateway has left in the kernel stay for this time while no objects are known.
const KEEP_MAX: Duration = Duration::from_secs(10);
/// The interval at which the state of the gateway is looked at.
const TICK: Duration = Duration::from_millis(200);

/// The inputs of the thread.
#[derive(Debug, Default)]
struct Inputs {
    setup: Option<Arc<Setup>>,
    round: Option<Round>,
    snat: Arc<SnatRoutes>,
    leaving: bool,
    stops: bool,
    /// Counts changes of the above.
    changes: u64,
}

#[derive(Debug, Default)]
struct Shared {
    inputs: Mutex<Inputs>,
    changed: Condvar,
    status: Mutex<Arc<Status>>,
    /// Whether everything is withdrawn, since the gateway leaves.
    withdrawn: Mutex<bool>,
    withdraws: Condvar,
}

/// The running thread.
#[derive(Debug)]
pub struct Announcer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Announcer {
    /// Starts the thread. `directory` is where BIRD's files are; it is created when BIRD is needed. `condition` says
    /// how the gateway is now.
    ///
    /// # Errors
    /// When the system has no more threads.
    pub fn start(directory: PathBuf, condition: impl Fn() -> Condition + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (of_thread, condition) = (Arc::clone(&shared), Box::new(condition));
        let worker = move || {
            let mut worker = Worker::new(directory, condition);
            worker.run(&of_thread);
        };
        let thread = thread::Builder::new().name("tg-announce".to_owned()).spawn(worker)?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Uses a configuration from now on.
    pub fn configure(&self, setup: Setup) {
        self.change(|inputs| inputs.setup = Some(Arc::new(setup)));
    }

    /// Uses the result of a round from now on.
    pub fn offer(&self, round: Round) {
        self.change(|inputs| inputs.round = Some(round));
    }

    /// Announces these SNAT addresses from now on.
    pub fn announce_snat(&self, routes: SnatRoutes) {
        self.change(|inputs| inputs.snat = Arc::new(routes));
    }

    /// Withdraws everything for good, and waits for that for at most `within`. Returns whether it is done.
    pub fn withdraw(&self, within: Duration) -> bool {
        self.change(|inputs| inputs.leaving = true);
        let until = Instant::now() + within;
        let mut withdrawn = lock(&self.shared.withdrawn);
        while !*withdrawn {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.shared.withdraws.wait_timeout(withdrawn, left);
            withdrawn = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Ends BIRD, removes the routes of the kernel, and ends the thread.
    pub fn stop(&self) {
        self.change(|inputs| inputs.stops = true);
        if let Some(thread) = lock(&self.thread).take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the announcements has failed");
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

/// The thread's own state.
struct Worker {
    directory: PathBuf,
    started: Instant,
    condition: Box<dyn Fn() -> Condition + Send>,
    bird: Option<Bird>,
    /// Why there can be no BIRD, if so.
    no_bird: Option<String>,
    table: Option<Table>,
    decision: Decision,
    files: Files,
    /// What `files` was made from: the configuration, the number of the decision, and the peers that wait.
    written: Option<(Arc<Setup>, u64, Waiting)>,
    first_bfd: FirstBfd,
    interruption: Interruption,
    peers: Vec<PeerStatus>,
    /// The numbers of VIPs and prefixes that peers or the kernel have.
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
            let (setup, round, snat, leaving, changes, stops) = {
                let mut inputs = lock(&shared.inputs);
                if inputs.changes == seen {
                    let waited = shared.changed.wait_timeout(inputs, TICK);
                    inputs = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                seen = inputs.changes;
                let snat = Arc::clone(&inputs.snat);
                (inputs.setup.clone(), inputs.round.clone(), snat, inputs.leaving, seen, inputs.stops)
            };
            if stops {
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
                // Before the first round nothing is known: a restarted daemon must not remove what it will announce
                // again. Routes of BIRD cannot be left: they ended with the old BIRD.
                if round.is_some() || gateway.leaving {
                    is_applied = self.apply(setup, now);
                } else if now.saturating_duration_since(self.started) >= KEEP_MAX {
                    // This gateway forwards nothing.
                    is_applied = self.apply_to_kernel(setup, now);
                }
                self.count_sent(is_applied);
                *lock(&shared.status) = Arc::new(self.status(setup));
            }
            if gateway.leaving && is_applied && self.decision.announced.is_empty() {
                *lock(&shared.withdrawn) = true;
                shared.withdraws.notify_all();
            }
        }
    }

    /// Whether what is announced stays so while the gateway catches up: a router still sends packets because of it.
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

    /// Lets BIRD and the kernel have the routes. Returns whether both have them.
    fn apply(&mut self, setup: &Arc<Setup>, now: Instant) -> bool {
        let of_kernel = self.apply_to_kernel(setup, now);
        let of_bird = self.apply_to_bird(setup, now);
        of_kernel && of_bird
    }

    fn apply_to_kernel(&mut self, setup: &Setup, now: Instant) -> bool {
        let wanted = setup.config.kernel_routes;
        if self.table.as_ref().map(Table::of) != wanted {
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
                    let why = Some(format!("cannot create the directory of BIRD: {directory}: {error}"));
                    if self.no_bird != why {
                        tracing::error!(reason = why, "BGP: nothing is announced until BIRD works");
                        self.no_bird = why;
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
        if self.interruption.is_under_way() {
            let restarts =
                |address| bgp.peers.iter().any(|peer| peer.address == address && peer.graceful_restart);
            let lost = self.peers.iter().filter(|peer| !self.interruption.keeps(peer));
            // A peer with graceful restart keeps the old routes, and an empty table would remove them.
            let lost = lost.map(|peer| peer.address).filter(|&address| !restarts(address));
            // If no other gateway lives, replies to the own SNAT addresses have no other way.
            waiting.extend(lost.map(|address| (address, Given::LastResort)));
        }
        waiting.extend(self.first_bfd.waiting(bgp).into_iter().map(|address| (address, Given::Nothing)));
        waiting
    }

    /// Asks BIRD about the sessions, if that is due.
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

    /// Counts what peers and the kernel have. While BIRD has not read the last change (`is_applied`), they have what they had.
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
                table: table.of().table,
                protocol: table.of().protocol,
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

/// The directory of BIRD's files, from the path of the admin socket, which only one gateway of a machine can have.
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
    fn a_directory_that_cannot_be_made_is_shown_until_it_can() {
        let at = tempfile::tempdir().unwrap();
        let parent = at.path().join("run");
        fs::write(&parent, "a file").unwrap();
        let condition = || Condition { forwarding: true, draining: false, catching_up: false };
        let mut worker = Worker::new(parent.join("bird"), Box::new(condition));
        let bgp = Some(bird::without_peers("there-is-no-such-bird"));
        let config = AnnounceConfig { bgp, ..AnnounceConfig::default() };
        let setup = Arc::new(Setup { config, own: Vec::new() });
        let told = |worker: &Worker| {
            let bgp = worker.status(&setup).bgp.unwrap();
            assert!(!bgp.is_running);
            bgp.last_error.unwrap_or_default()
        };
        let now = Instant::now();
        assert!(!worker.apply_to_bird(&setup, now));
        let why = told(&worker);
        assert!(why.starts_with("cannot create the directory of BIRD: "), "{why}");
        fs::remove_file(&parent).unwrap();
        assert!(!worker.apply_to_bird(&setup, now));
        let why = told(&worker);
        assert!(why.starts_with("cannot start BIRD"), "{why}");
    }
    #[test]
    fn peers_get_the_last_resort_before_the_gateway_has_caught_up_and_no_vip() {
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
            // The first look creates the peers, which are down.
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
