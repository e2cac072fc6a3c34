//! Keeps a HAProxy running that serves what the objects request.
//!
//! [`Edge::step`] compares the wanted configuration with the one that HAProxy has, and takes one step towards it: start,
//! change servers and certificates at run time, or reload. It never waits longer than [`READY_MAX`]. The caller calls it
//! again after the returned time, or when the objects change.
//!
//! A HAProxy that ends or hangs is started again, after a pause that doubles with each failure.
//!
//! Invariant: whatever fails, HAProxy keeps the last configuration that it has accepted.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tidegate_host::child;
use tidegate_model::objects::Objects;
use tidegate_policy::edge::{Listener, ListenerId};

use crate::config::Config;
use crate::haproxy::master::{self, Workers};
use crate::haproxy::process::{self, Process};
use crate::haproxy::program::Program;
use crate::haproxy::servers::{self, Leaving};
use crate::render::certificate_file;
use crate::runtime::Runtime;
use crate::status;
use crate::wanted::{Configuration, Wanted, addresses};

/// How long HAProxy may take to start or to reload.
const READY_MAX: Duration = Duration::from_secs(30);
const READY_POLL: Duration = Duration::from_millis(10);
/// The shortest time from one reload to the next. Changes in between are combined.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);
/// How often a worker is queried, and for how long it may not answer.
const HEALTH_INTERVAL: Duration = Duration::from_secs(2);
const SILENT_MAX: Duration = Duration::from_secs(10);
/// How often servers without connections are deleted.
const LEAVING_INTERVAL: Duration = Duration::from_secs(1);
/// How often addresses are checked on which this machine could not listen.
const ADDRESSES_INTERVAL: Duration = Duration::from_secs(5);
/// The longest time between two steps.
const STEP_MAX: Duration = Duration::from_millis(500);

/// An edge.
#[derive(Debug)]
pub struct Edge {
    config: Config,
    runtime: Runtime,
    wanted: Wanted,
    /// Whether the wanted configuration may differ from the one in use.
    is_dirty: bool,
    running: Option<Running>,
    /// Whether HAProxy has run before.
    has_run: bool,
    failures: u32,
    /// When the next start or reload is allowed.
    next_start: Option<Instant>,
    next_address_check: Instant,
    status: status::Haproxy,
}

/// A running HAProxy.
#[derive(Debug)]
struct Running {
    process: Process,
    program: Program,
    since: Instant,
    applied: Configuration,
    /// The listeners in `applied`.
    listeners: BTreeMap<ListenerId, Listener>,
    /// Removed servers with connections, and since when.
    leaving: BTreeMap<ListenerId, BTreeMap<String, Instant>>,
    next_leaving: Instant,
    next_health: Instant,
    answered: Instant,
}

impl Edge {
    /// Prepares the runtime directory, and ends a HAProxy that an earlier edge left behind.
    ///
    /// # Errors
    /// If the directory can't be used.
    pub fn open(mut config: Config, now: Instant) -> io::Result<Self> {
        let limits = &mut config.limits;
        let possible = connections_max();
        if limits.connections > possible {
            let wanted = limits.connections;
            tracing::warn!(
                wanted,
                used = possible,
                "limits.connections is lowered to what the file limit allows"
            );
            limits.connections = possible;
        }
        let runtime = Runtime::open(&config.haproxy.directory)?;
        if !runtime.is_tmpfs {
            let directory = runtime.path().display();
            tracing::warn!(%directory, "the runtime directory is not on a tmpfs: private keys are written to a disk");
        }
        process::end_old(runtime.path(), &runtime.file());
        Ok(Self {
            wanted: Wanted::new(config.clone()),
            config,
            runtime,
            is_dirty: true,
            running: None,
            has_run: false,
            failures: 0,
            next_start: None,
            next_address_check: now,
            status: status::Haproxy::default(),
        })
    }

    /// Serves these objects from the next step on.
    pub fn set_objects(&mut self, objects: Arc<Objects>) {
        self.wanted.set_objects(objects);
        self.is_dirty = true;
    }

    /// Takes one step. Returns after which time the next one is due.
    pub fn step(&mut self, now: Instant) -> Duration {
        self.notice_end(now);
        self.check_health(now);
        if self.wanted.has_unavailable() && now >= self.next_address_check {
            self.is_dirty = true;
        }
        if self.is_dirty {
            self.next_address_check = now + ADDRESSES_INTERVAL;
            self.wanted.check_addresses(&self.listening());
        }
        let is_allowed = self.next_start.is_none_or(|at| now >= at);
        match self.running.take() {
            None if is_allowed => self.start(now),
            None => {}
            Some(running) => self.running = self.change(running, is_allowed, now),
        }
        self.delete_servers(now);
        self.status.pid = self.running.as_ref().map(|running| running.process.pid());
        match self.next_start {
            Some(at) if self.is_dirty => {
                at.saturating_duration_since(Instant::now()).clamp(READY_POLL, STEP_MAX)
            }
            _ => STEP_MAX,
        }
    }

    /// The addresses on which HAProxy listens.
    fn listening(&self) -> BTreeSet<SocketAddr> {
        let Some(running) = &self.running else { return BTreeSet::new() };
        let of_listeners = running.listeners.iter().flat_map(|(id, listener)| addresses(id, listener));
        let is_rendered = |it: &SocketAddr| running.applied.rendered.head.contains(&format!("bind {it}\n"));
        of_listeners.chain(self.config.metrics.filter(is_rendered)).collect()
    }

    fn notice_end(&mut self, now: Instant) {
        let Some(how) = self.running.as_mut().and_then(|running| running.process.ended()) else { return };
        let running = self.running.take().expect("it was running");
        let why = running.process.take_alert().map_or(how.clone(), |alert| format!("{how}: {alert}"));
        // The workers end with their master, unless they hang.
        running.process.kill();
        self.fail(format!("HAProxy ended: {why}"), now);
    }

    /// Kills a HAProxy whose worker hangs.
    fn check_health(&mut self, now: Instant) {
        let Some(running) = self.running.as_mut().filter(|running| now >= running.next_health) else {
            return;
        };
        running.next_health = now + HEALTH_INTERVAL;
        let socket = running.process.socket();
        if master::query_worker(&socket, "show version").is_ok_and(|answer| !answer.trim().is_empty()) {
            running.answered = now;
            if now.duration_since(running.since) >= child::STABLE {
                self.failures = 0;
            }
        } else if now.duration_since(running.answered) >= SILENT_MAX {
            let running = self.running.take().expect("it is running");
            running.process.kill();
            self.fail("HAProxy did not answer and was killed".to_owned(), now);
        }
    }

    /// Records a failure, after which the next start or reload waits.
    fn fail(&mut self, why: String, now: Instant) {
        self.next_start = Some(now + child::pause_after(self.failures));
        self.failures = self.failures.saturating_add(1);
        self.is_dirty = true;
        if self.status.error.as_ref() != Some(&why) {
            tracing::error!(reason = why, "HAProxy does not serve the wanted configuration; trying again");
        }
        self.status.error = Some(why);
    }

    fn start(&mut self, now: Instant) {
        match self.try_start(now) {
            Ok(running) => {
                let (pid, version) = (running.process.pid(), &running.program.version);
                tracing::info!(pid, version, listeners = running.listeners.len(), "HAProxy runs");
                self.status.restarts += u64::from(self.has_run);
                self.has_run = true;
                self.running = Some(running);
                self.succeed(now);
            }
            Err(why) => self.fail(why, now),
        }
    }

    fn succeed(&mut self, now: Instant) {
        self.status.error = None;
        self.next_start = Some(now + RELOAD_INTERVAL);
        self.is_dirty = false;
    }

    fn try_start(&mut self, now: Instant) -> Result<Running, String> {
        let program = Program::find(&self.config.haproxy.program);
        self.status.version = program.as_ref().ok().map(|program| program.version.clone());
        let program = program?;
        let (mut staged, applied) =
            self.wanted.stage(&program, &mut self.runtime, &Configuration::default())?;
        let before = self.runtime.activate(&mut staged).map_err(|error| error.to_string())?;
        before.into_iter().for_each(|before| drop(std::fs::remove_dir_all(before)));
        let mut process = Process::start(&program.path, self.runtime.path(), &self.runtime.file())
            .map_err(|error| format!("cannot start HAProxy: {error}"))?;
        if let Err(why) = wait_for_worker(&mut process, None) {
            process.kill();
            return Err(why);
        }
        let listeners = self.served(&applied);
        Ok(Running {
            process,
            program,
            since: now,
            applied,
            listeners,
            leaving: BTreeMap::new(),
            next_leaving: now,
            next_health: now + HEALTH_INTERVAL,
            answered: now,
        })
    }

    /// The listeners in a configuration.
    fn served(&self, configuration: &Configuration) -> BTreeMap<ListenerId, Listener> {
        let mut listeners = self.wanted.listeners();
        listeners.retain(|id, _| configuration.rendered.proxies.contains_key(id));
        listeners
    }

    /// Brings a running HAProxy to the wanted configuration: at run time if possible, otherwise by a reload. Returns it
    /// if it still runs.
    fn change(&mut self, mut running: Running, may_reload: bool, now: Instant) -> Option<Running> {
        if !self.is_dirty {
            return Some(running);
        }
        let wanted = self.wanted.configuration();
        let is_same_set = wanted.pairs.keys().eq(running.applied.pairs.keys());
        if is_same_set && wanted.rendered.differs_only_in_servers(&running.applied.rendered) {
            match change_at_run_time(&mut running, &wanted, now) {
                Ok(()) => {
                    running.listeners = self.served(&running.applied);
                    self.status.error = None;
                    self.is_dirty = false;
                    return Some(running);
                }
                Err(error) => {
                    tracing::warn!(%error, "a change at run time failed; reloading HAProxy");
                }
            }
        }
        if may_reload { self.reload(running, now) } else { Some(running) }
    }

    fn reload(&mut self, mut running: Running, now: Instant) -> Option<Running> {
        let staged = self.wanted.stage(&running.program, &mut self.runtime, &running.applied);
        let (mut staged, wanted) = match staged {
            Ok(staged) => staged,
            Err(why) => {
                self.fail(why, now);
                return Some(running);
            }
        };
        if wanted == running.applied {
            // What differed was refused.
            self.succeed(now);
            return Some(running);
        }
        let current = master::workers(&running.process.socket()).ok().and_then(|workers| workers.current);
        let before = match self.runtime.activate(&mut staged) {
            Ok(before) => before,
            Err(error) => {
                self.fail(error.to_string(), now);
                return Some(running);
            }
        };
        running.process.reload();
        match wait_for_worker(&mut running.process, current) {
            Ok(workers) => {
                self.status.reloads += 1;
                tracing::info!(
                    listeners = wanted.rendered.proxies.len(),
                    old = workers.old,
                    "reloaded HAProxy"
                );
                before.into_iter().for_each(|before| drop(std::fs::remove_dir_all(before)));
                running.listeners = self.served(&wanted);
                running.applied = wanted;
                running.leaving.clear();
                running.answered = now;
                self.succeed(now);
                Some(running)
            }
            Err(why) => {
                let restored = before.map_or(Ok(()), |before| self.runtime.restore(&before));
                let has_ended = running.process.ended().is_some();
                self.fail(format!("HAProxy did not reload: {why}"), now);
                if has_ended || restored.is_err() {
                    running.process.kill();
                    return None;
                }
                Some(running)
            }
        }
    }

    /// Deletes removed servers that have no connections any more, and closes those that last too long.
    fn delete_servers(&mut self, now: Instant) {
        let max_drain = self.config.haproxy.max_drain;
        let Some(running) =
            self.running.as_mut().filter(|it| !it.leaving.is_empty() && now >= it.next_leaving)
        else {
            return;
        };
        running.next_leaving = now + LEAVING_INTERVAL;
        let socket = running.process.socket();
        for (id, leaving) in running.leaving.clone() {
            let backend = id.to_string();
            for (server, since) in &leaving {
                if now.duration_since(*since) >= max_drain {
                    // The next attempt to delete it reports a failure.
                    let _ = servers::close_connections(&socket, &backend, server);
                }
            }
            let wanted = running.applied.rendered.proxies[&id].named_servers();
            match servers::apply(&socket, &backend, &wanted) {
                Ok(leaving) => running.leave(&id, leaving, now),
                Err(error) => tracing::debug!(%error, backend, "cannot delete removed servers yet"),
            }
        }
    }

    /// The current state, without the faults of the source.
    #[must_use]
    pub fn status(&self, now: jiff::Timestamp) -> status::Status {
        let running = self.running.as_ref();
        let listeners = running.into_iter().flat_map(|running| &running.listeners).map(|(id, listener)| {
            let protocol = if listener.redirects { "redirect" } else { listener.protocol.as_str() };
            let secrets = listener.tls.iter().flat_map(|tls| &tls.secrets).map(ToString::to_string);
            status::Listener {
                service: id.service.to_string(),
                port: id.port.get(),
                addresses: addresses(id, listener).collect(),
                tls: listener.tls.as_ref().map(|tls| tls.policy.as_str().to_owned()),
                secrets: secrets.collect(),
                protocol: protocol.to_owned(),
                servers: listener.servers.iter().copied().collect(),
            }
        });
        let pairs = running.into_iter().flat_map(|running| &running.applied.pairs);
        let certificates = pairs.map(|(secret, pair)| status::Certificate {
            secret: secret.to_string(),
            names: pair.names.clone(),
            not_after: pair.not_after.to_string(),
        });
        let findings = self.wanted.findings(now).into_iter().map(|finding| status::Finding {
            object: finding.object.to_string(),
            reason: finding.reason.as_str().to_owned(),
            message: finding.diagnostic.to_string(),
        });
        status::Status {
            name: self.config.name.clone(),
            pid: std::process::id(),
            haproxy: self.status.clone(),
            listeners: listeners.collect(),
            certificates: certificates.collect(),
            findings: findings.collect(),
        }
    }

    /// The process, which the caller stops.
    pub fn into_process(self) -> Option<Process> {
        self.running.map(|running| running.process)
    }
}

impl Running {
    /// Records which servers of a backend still have connections.
    fn leave(&mut self, id: &ListenerId, leaving: Leaving, now: Instant) {
        let before = self.leaving.remove(id).unwrap_or_default();
        if !leaving.is_empty() {
            let since = |name: String| (name.clone(), before.get(&name).copied().unwrap_or(now));
            self.leaving.insert(id.clone(), leaving.into_iter().map(since).collect());
        }
    }
}

/// Changes servers and certificates of a running HAProxy. After an error, some may be changed.
fn change_at_run_time(running: &mut Running, wanted: &Configuration, now: Instant) -> io::Result<()> {
    let socket = running.process.socket();
    for (id, proxy) in &wanted.rendered.proxies {
        let before = &running.applied.rendered.proxies[id];
        if proxy.servers != before.servers {
            let leaving = servers::apply(&socket, &id.to_string(), &proxy.named_servers())?;
            running.leave(id, leaving, now);
            running.applied.rendered.proxies.insert(id.clone(), proxy.clone());
        }
    }
    for (secret, pair) in &wanted.pairs {
        if running.applied.pairs[secret] != *pair {
            servers::replace_certificate(&socket, &certificate_file(secret), pair.pem())?;
            tracing::info!(secret = %secret, expires = %pair.not_after, "replaced a certificate");
            running.applied.pairs.insert(secret.clone(), Arc::clone(pair));
        }
    }
    Ok(())
}

/// The number of connections for which the file limit of this process suffices. A connection needs two files, and
/// listeners and threads need some. HAProxy does not start if its limit is too low.
fn connections_max() -> u32 {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    files.map_or(u32::MAX, |files| u32::try_from(files / 20 * 9).unwrap_or(u32::MAX)).max(1)
}

/// Waits until a worker accepts connections that is not `before`, a pid and its number of reloads.
fn wait_for_worker(process: &mut Process, before: Option<(u32, u32)>) -> Result<Workers, String> {
    let until = Instant::now() + READY_MAX;
    loop {
        if let Some(how) = process.ended() {
            return Err(process.take_alert().map_or(how.clone(), |alert| format!("{how}: {alert}")));
        }
        if let Ok(workers) = master::workers(&process.socket())
            && let Some((pid, reloads)) = workers.current
        {
            match before {
                Some((old, reloads_before)) if old == pid => {
                    // The master has read the configuration, and the old worker continues.
                    if reloads > reloads_before {
                        return Err(process.take_alert().unwrap_or_else(|| "it gives no reason".to_owned()));
                    }
                }
                _ => return Ok(workers),
            }
        }
        if Instant::now() >= until {
            return Err(format!("no answer within {} s", READY_MAX.as_secs()));
        }
        thread::sleep(READY_POLL);
    }
}
