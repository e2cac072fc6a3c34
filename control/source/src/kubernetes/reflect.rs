//! Lists one kind of objects and then watches it, and recovers from every failure of the API server.
//!
//! A [`Reflector`] converts the lists and watches of one kind to [`Event`]s for the hub. A watch that ends or breaks
//! resumes where it was, after a check that the API server belongs to the same cluster and isn't behind. Everything is
//! listed again only if that check fails for this or another kind, if the server no longer has the version (410), if it
//! repeatedly stops responding, or if it was away long enough to be restored from a backup. The pause between attempts
//! doubles, with jitter, and is at least what a `Retry-After` requests.
//!
//! `kube::runtime::watcher` (kube-runtime 5.0.0) can't carry this: it handles bookmarks and the end of a watch without
//! an item (`State::Watching` in `watcher.rs`), so that nothing can compare the history before a watch resumes, and its
//! errors lack `Retry-After` and the serial number of the client. It would also add 17 crates.
//!
//! Invariant: every wait has a limit, and no loop runs without a pause: each failed request and each watch that ended
//! immediately is followed by a pause.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tidegate_model::objects::ObjectKey;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::connect::{Connection, Connector};
use super::health_probe::HealthProbe;
use super::history::{Epoch, InHistory, Newest, Point};
use super::kinds::{Kind, KindIndex, SLICE};
use super::object::{Received, version_number};
use super::tuning::Tuning;
use super::wire::{Fault, PAGES, Requests, WatchEvent};
use crate::slices::{SharedBudget, SliceBudget, locked, owner};

/// An event of one kind, from a reflector to the hub.
#[derive(Debug)]
pub(super) enum Event {
    /// All objects at this point.
    Listed(Vec<Received>, Point),
    /// An event of a watch.
    Watched(WatchEvent),
    /// A watch is connected to this API server.
    Up(String),
    /// The API server of this cluster doesn't have the kind.
    Absent(String, Point),
    /// An attempt failed.
    Down(Failure),
    /// The API server doesn't allow the gateway to read an optional kind.
    Forbidden(String),
    /// Whether the API server is deleting the definition of the kind.
    Terminating(bool),
    /// The state of the API server doesn't continue the received history.
    OtherHistory,
}

/// Why an attempt failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) why: String,
    /// Whether the API server responded, so that only this kind is affected.
    pub(super) is_response: bool,
}

/// What the reflectors of all kinds share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) connector: Arc<Connector>,
    pub(super) tuning: Tuning,
    pub(super) events: mpsc::Sender<(KindIndex, Event)>,
    pub(super) retry_now: Arc<Notify>,
    pub(super) health_probe: HealthProbe,
    /// The budget that decides which EndpointSlices are kept.
    pub(super) budget: SharedBudget,
    pub(super) epoch: Epoch,
}

/// Lists and watches one kind.
pub(super) struct Reflector {
    index: KindIndex,
    kind: &'static Kind,
    shared: Shared,
    /// Triggers a list.
    refresh: Arc<Notify>,
    backoff: Backoff,
    /// The cluster of the listed objects.
    cluster: String,
    newest: Option<Newest>,
    /// The version up to which the history was received; 0 if unknown.
    reached: u64,
    /// When the current series of failed attempts started.
    lost: Option<Instant>,
}

/// Why one attempt ended.
enum End {
    Fault(Fault, Option<u64>),
    /// The API server doesn't have the kind.
    Absent,
    /// A watch ended normally.
    Ended,
    /// A caller must know that all changes so far were received, so the objects are listed although nothing is wrong.
    Refresh,
}

impl Reflector {
    /// Reads the kind at this index of [`KINDS`](super::kinds::KINDS).
    pub(super) fn new(index: KindIndex, kind: &'static Kind, shared: Shared, refresh: Arc<Notify>) -> Self {
        let backoff = Backoff::new(shared.tuning.backoff_first, shared.tuning.backoff_max);
        let cluster = String::new();
        Self { index, kind, shared, refresh, backoff, cluster, newest: None, reached: 0, lost: None }
    }

    /// Lists and watches until it is aborted.
    pub(super) async fn run(mut self) {
        let mut version: Option<String> = None;
        // Whether the list was just received.
        let mut fresh = false;
        // The number of consecutive watches that reported nothing, or only unknown events.
        let mut empty_watches = 0;
        loop {
            let started = Instant::now();
            let end = match &mut version {
                None => match self.list().await {
                    Ok(listed) => {
                        version = Some(listed);
                        fresh = true;
                        continue;
                    }
                    Err(end) => end,
                },
                // After a restore from a backup, a watch from this version would miss changes, even if the server has
                // passed the version since.
                Some(_)
                    if self.lost.is_some_and(|at| at.elapsed() > self.shared.tuning.resume_max) && !fresh =>
                {
                    version = None;
                    continue;
                }
                Some(version) => {
                    let resumed = !std::mem::take(&mut fresh);
                    self.watch(version, resumed, &mut empty_watches).await
                }
            };
            if started.elapsed() >= self.shared.tuning.watch_min && version.is_some() {
                self.backoff.reset();
            }
            let mut pause = Duration::ZERO;
            match end {
                End::Absent => pause = self.absent_interval(),
                End::Refresh => version = None,
                // A watch that lasted has ended in the usual way and resumes immediately.
                End::Ended if started.elapsed() >= self.shared.tuning.watch_min => {}
                End::Ended => pause = self.backoff.next(),
                End::Fault(fault, serial) => {
                    // An API server that no longer has the version has responded.
                    if !matches!(fault, Fault::Refused { code: 410, .. }) {
                        self.lost.get_or_insert(started);
                    }
                    if fault.is_expired() || fault.is_absence(self.kind) || empty_watches >= 2 {
                        tracing::debug!(kind = self.kind.name, %fault, "relisting");
                        version = None;
                        empty_watches = 0;
                    }
                    pause = self.after(&fault, serial).await;
                }
            }
            if !pause.is_zero() {
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = self.shared.retry_now.notified() => {}
                    () = self.shared.connector.changed() => {}
                }
            }
        }
    }

    /// The interval of requests while the API server doesn't provide the kind.
    fn absent_interval(&self) -> Duration {
        let Tuning { absent, absent_gateway_api, .. } = self.shared.tuning;
        if self.kind.is_gateway_api { absent_gateway_api } else { absent }
    }

    /// Prepares the next attempt after a fault, and reports the fault to the hub. Returns the pause until then.
    async fn after(&mut self, fault: &Fault, serial: Option<u64>) -> Duration {
        let requested = self.renew(fault, serial).await;
        let is_forbidden = self.kind.optional && fault.is_forbidden();
        // Permissions may be granted at any time, and are incomplete while an API server starts.
        let pause = requested.max(if is_forbidden { self.absent_interval() } else { self.backoff.next() });
        if is_forbidden {
            self.send(Event::Forbidden(fault.to_string())).await;
        } else if fault.is_other_history() {
            tracing::warn!(
                kind = self.kind.name,
                %fault,
                "the history of the API server was reset; listing all objects of this kind again"
            );
            self.newest = None;
            if *fault != Fault::OtherKind {
                self.shared.epoch.start();
            }
            self.send(Event::OtherHistory).await;
        } else if !fault.is_expired() && !fault.is_absence(self.kind) {
            let why = format!("{}: {fault}", self.kind.path);
            self.send(Event::Down(Failure { why, is_response: fault.is_response() })).await;
        }
        pause
    }

    /// Gets another client after a fault, if that helps. Returns the pause that the API server requests.
    async fn renew(&self, fault: &Fault, serial: Option<u64>) -> Duration {
        match (fault, serial) {
            (Fault::Refused { code: 401, .. }, Some(serial)) => self.shared.connector.refused(serial).await,
            (Fault::TimedOut(_) | Fault::Broken(_) | Fault::Dead, Some(serial)) => {
                self.shared.connector.renew(serial).await;
            }
            _ => {}
        }
        match fault {
            Fault::Refused { retry_after: Some(requested), .. } => {
                (*requested).min(self.shared.tuning.retry_after_max)
            }
            _ => Duration::ZERO,
        }
    }

    async fn send(&self, event: Event) {
        // If it fails, the hub has ended, and this task is aborted next.
        let _ = self.shared.events.send((self.index, event)).await;
    }

    async fn connection(&self) -> Result<Connection, End> {
        let made = self.shared.connector.connection().await;
        made.map_err(|e| End::Fault(Fault::Connect(e.to_string()), None))
    }

    fn requests<'a>(&self, connection: &'a Connection) -> Requests<'a> {
        Requests { connection, wait: self.shared.tuning.response }
    }

    /// Lists all objects. Returns the version to watch from.
    async fn list(&mut self) -> Result<String, End> {
        let connection = self.connection().await?;
        let (serial, requests) = (connection.serial, self.requests(&connection));
        let cluster = requests.cluster().await;
        self.cluster = cluster.map_err(|fault| End::Fault(fault, Some(serial)))?;
        let budget = (self.index == SLICE).then(|| locked(&self.shared.budget).clone());
        match list_all(requests, self.kind, budget).await {
            Ok((items, version)) => {
                let checked = self.check_list(requests, &items).await;
                checked.map_err(|fault| End::Fault(fault, Some(serial)))?;
                let point = Point { cluster: self.cluster.clone(), version: version_number(&version) };
                self.reached = point.version;
                self.newest = None;
                items.iter().for_each(|i| Newest::record(&mut self.newest, &i.key, i.version, true));
                self.send(Event::Listed(items, point)).await;
                Ok(version)
            }
            Err(fault) if requests.is_absence(&fault, self.kind).await => {
                let point = Point { cluster: self.cluster.clone(), version: 0 };
                self.send(Event::Absent(connection.server, point)).await;
                Err(End::Absent)
            }
            Err(fault) => Err(End::Fault(fault.of_old_server(self.kind), Some(serial))),
        }
    }

    /// Checks, as far as possible, that a list after a loss continues the received history. If the newest object is
    /// missing but the API server had it at the last received version, it was deleted meanwhile.
    async fn check_list(&mut self, requests: Requests<'_>, items: &[Received]) -> Result<(), Fault> {
        if self.shared.epoch.adopt() {
            return Err(Fault::OtherKind);
        }
        // An object of a kind with a filter may be missing because it doesn't pass the filter.
        let newest = self.newest.as_ref().filter(|_| self.lost.is_some() && self.kind.only.is_none());
        let Some(newest) = newest else { return Ok(()) };
        let now = items.iter().find(|item| item.key == newest.key).map(|item| item.version);
        if !newest.is_missing_from_list(now) {
            return Ok(());
        }
        if now.is_none() && self.reached != 0 {
            let had = requests.version_at(self.kind, &newest.key, self.reached).await?;
            if had == Some(newest.version) {
                return Ok(());
            }
        }
        Err(missing_change(newest))
    }

    /// Watches from `version` on, and updates it to the last received version.
    async fn watch(&mut self, version: &mut String, resumed: bool, empty_watches: &mut u32) -> End {
        let connection = match self.connection().await {
            Ok(connection) => connection,
            Err(end) => return end,
        };
        let serial = connection.serial;
        match self.follow(connection, version, resumed, empty_watches).await {
            Ok(()) => End::Ended,
            Err(End::Fault(fault, _)) => {
                if matches!(fault, Fault::TimedOut(_) | Fault::InvalidResponse(_)) {
                    *empty_watches += 1;
                }
                End::Fault(fault, Some(serial))
            }
            Err(end) => end,
        }
    }

    /// Checks that the API server has the history that was watched up to version `before`. A watch from a future
    /// version, or in another history, would not report the difference. If the result is a change, the watch must
    /// report it.
    async fn compare(&mut self, requests: Requests<'_>, before: u64) -> Result<Option<Newest>, Fault> {
        if self.shared.epoch.adopt() {
            return Err(Fault::OtherKind);
        }
        if requests.cluster().await? != self.cluster {
            return Err(Fault::OtherCluster);
        }
        // After a watch that ended normally, no restore can have happened.
        let newest = self.newest.as_ref().filter(|_| self.lost.is_some());
        let key = newest.map(|newest| &newest.key);
        let (now, object) = requests.versions(self.kind, key).await?;
        if now != 0 && now < before {
            return Err(Fault::VersionDecreased { before, now });
        }
        match newest.map(|newest| (newest, newest.in_history(object))) {
            Some((newest, InHistory::No)) => Err(missing_change(newest)),
            Some((newest, InHistory::IfExplained)) => Ok(Some(newest.clone())),
            _ => Ok(None),
        }
    }

    /// Records the newest change.
    fn record(&mut self, outcome: &WatchEvent) {
        match outcome {
            WatchEvent::Applied(received) => {
                Newest::record(&mut self.newest, &received.key, received.version, true);
            }
            // An object that doesn't pass the filter of its kind counts as deleted, although the API server has it.
            WatchEvent::Deleted(identity) if self.kind.only.is_some() => {
                self.newest.take_if(|newest| newest.key == identity.key);
            }
            WatchEvent::Deleted(identity) => {
                Newest::record(&mut self.newest, &identity.key, identity.version, false);
            }
            WatchEvent::Bookmark(_) => {}
        }
    }

    async fn follow(
        &mut self,
        connection: Connection,
        version: &mut String,
        resumed: bool,
        empty_watches: &mut u32,
    ) -> Result<(), End> {
        let fault = |fault| End::Fault(fault, None);
        let requests = self.requests(&connection);
        let before = version_number(version);
        let mut unexplained = match resumed {
            true => self.compare(requests, before).await.map_err(fault)?,
            false => None,
        };
        let (low, high) = self.shared.tuning.watch_seconds;
        let seconds = low + random() % (high - low).max(1);
        let mut watch = requests.watch(self.kind, version, seconds).await.map_err(fault)?;
        // The watch itself may report that the API server no longer has the version. In that case, the list must
        // contain the change.
        if unexplained.is_none() {
            self.lost = None;
        }
        self.send(Event::Up(connection.server.clone())).await;
        let explained_by = Instant::now() + self.shared.tuning.explanation;
        loop {
            let serial = connection.serial;
            let outcome = tokio::select! {
                outcome = watch.next(self.shared.tuning.silence) => outcome.map_err(fault)?,
                () = tokio::time::sleep_until(explained_by), if unexplained.is_some() => {
                    let newest = unexplained.take().expect("checked in the condition");
                    return Err(fault(missing_change(&newest)));
                }
                () = self.shared.health_probe.lost(serial) => return Err(fault(Fault::Dead)),
                () = self.shared.epoch.started_by_another() => {
                    self.shared.epoch.adopt();
                    return Err(fault(Fault::OtherKind));
                }
                () = self.refresh.notified() => return Err(End::Refresh),
            };
            let Some(outcome) = outcome else { return Ok(()) };
            let now = outcome.version();
            if now != 0 && now < before {
                return Err(fault(Fault::VersionDecreased { before, now }));
            }
            if now > version_number(version) {
                *version = now.to_string();
                self.reached = now;
            }
            *empty_watches = 0;
            if unexplained.as_ref().is_some_and(|newest| outcome.key() == Some(&newest.key)) {
                unexplained = None;
                self.lost = None;
            }
            self.record(&outcome);
            self.send(Event::Watched(outcome)).await;
        }
    }
}

/// The fault that a history lacks a change.
fn missing_change(newest: &Newest) -> Fault {
    Fault::MissingChange { key: newest.key.to_string(), version: newest.version }
}

/// Reads all pages. If the continuation of a list expires, the next attempt starts over.
///
/// Endpoints of EndpointSlices that `budget` doesn't keep are removed as the pages arrive, so that a list needs no more
/// memory than the kept part. The budget contains the previous state.
pub(super) async fn list_all(
    requests: Requests<'_>,
    kind: &'static Kind,
    mut budget: Option<SliceBudget>,
) -> Result<(Vec<Received>, String), Fault> {
    let mut items = Vec::new();
    let mut next = String::new();
    let (mut size, sizes) = (PAGES[0], &PAGES[1..]);
    let mut sizes = sizes.iter();
    loop {
        let page = match requests.list(kind, &next, size).await {
            Err(Fault::TooLarge(bytes)) => {
                size = *sizes.next().ok_or(Fault::TooLarge(bytes))?;
                continue;
            }
            page => page?,
        };
        let from = items.len();
        items.extend(page.items);
        if let Some(budget) = &mut budget {
            leave_out(budget, &mut items, from);
        }
        if page.next.is_empty() {
            return Ok((items, page.version));
        }
        next = page.next;
    }
}

/// Removes the endpoints that are not kept. The slices from `from` on are new to the budget.
pub(super) fn leave_out(budget: &mut SliceBudget, items: &mut [Received], from: usize) {
    for item in &items[from..] {
        budget.set(&item.key, item.content.slice());
    }
    let changed: BTreeSet<ObjectKey> = budget.decide().into_iter().collect();
    for (at, item) in items.iter_mut().enumerate() {
        let Some(slice) = item.content.slice().filter(|slice| slice.left_out.is_none()) else { continue };
        let Some(service) = owner(slice).filter(|service| at >= from || changed.contains(service)) else {
            continue;
        };
        if let Some(why) = budget.not_kept(&service) {
            item.content = item.content.left_out(why);
        }
    }
}

/// Pauses that double, each randomly reduced by up to half.
#[derive(Debug)]
struct Backoff {
    first: Duration,
    max: Duration,
    now: Duration,
}

impl Backoff {
    fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, now: first }
    }

    fn reset(&mut self) {
        self.now = self.first;
    }

    fn next(&mut self) -> Duration {
        let half = self.now / 2;
        self.now = (self.now * 2).min(self.max);
        half + half.mul_f64((random() % 1024) as f64 / 1024.0)
    }
}

/// A number that differs between processes and calls, which is sufficient for jitter.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_limit_and_are_never_short() {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));
        for nominal in [200, 400, 800, 1600, 2000, 2000] {
            let (pause, nominal) = (backoff.next(), Duration::from_millis(nominal));
            assert!(pause >= nominal / 2 && pause <= nominal, "{pause:?} of {nominal:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= Duration::from_millis(200));
    }
}
