//! Where the kinds come together: one state of all objects, given out when it is whole.
//!
//! The hub hears the reflectors, keeps what is shown of each kind ([`Retain`]), and gives out a [`SourceUpdate`] for
//! whatever came at once: it does not wait for more, its reader does. It says how the source gets on
//! ([`SourceState`]), and sees to the objects on disk.
//!
//! Invariant: nothing is given out before every kind was listed, or is there from the disk because the API server
//! cannot be reached.
//! Invariant: an object that did not change keeps its `Arc`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use tokio::sync::{mpsc, watch};

use super::Tuning;
use super::disk::{Disk, Saved};
use super::kinds::{KINDS, KindIndex};
use super::object::{Content, Received};
use super::reflect::Event;
use super::retain::{Item, Retain};
use super::wire::Told;
use crate::diagnostic::{Diagnostic, Report};
use crate::model::{ObjectKey, Objects};
use crate::source::{KeptObjects, SourceState, SourceUpdate};

/// Events taken before what they came to is given out.
const EVENTS_AT_ONCE: usize = 4096;
/// Names of kept objects that are told.
const KEPT_NAMES: usize = 3;
/// An error is logged no sooner after the last one than this; the same again only after this.
const LOG_MIN: Duration = Duration::from_secs(10);
const LOG_AGAIN: Duration = Duration::from_secs(60);

/// See the module.
pub(super) struct Hub {
    stores: Vec<Store>,
    objects: Objects,
    /// Faults of objects that have some.
    reports: BTreeMap<(KindIndex, ObjectKey), Report>,
    grace: Duration,
    tuning: Tuning,
    disk: Option<Disk>,
    /// When the objects of the disk were last known to be those of the API server.
    confirmed: Option<SystemTime>,
    server: String,
    started: Instant,
    /// An attempt failed since the start.
    failed: bool,
    /// Since when there is something to give out.
    changed: Option<Instant>,
    given: bool,
    revision: u64,
    /// Since when the disk is behind, and when it was last written.
    unsaved: Option<Instant>,
    saved: Option<Instant>,
    saving: Option<JoinHandle<()>>,
    logged: Option<(String, Instant)>,
    state: SourceState,
    updates: watch::Sender<SourceUpdate>,
    states: watch::Sender<SourceState>,
}

/// One kind.
struct Store {
    retain: Retain<Content>,
    listed: bool,
    up: bool,
    /// Time for which the kind was up before `since`.
    counted: Duration,
    since: Instant,
}

impl Store {
    /// Time with the API server answering.
    fn clock(&self, now: Instant) -> Duration {
        let running = if self.up { now.duration_since(self.since) } else { Duration::ZERO };
        self.counted + running
    }

    fn set_up(&mut self, up: bool, now: Instant) {
        self.counted = self.clock(now);
        self.since = now;
        self.up = up;
    }
}

impl Hub {
    pub(super) fn new(
        grace: Duration,
        tuning: Tuning,
        disk: Option<Disk>,
        updates: watch::Sender<SourceUpdate>,
        states: watch::Sender<SourceState>,
    ) -> Self {
        let now = Instant::now();
        let state = states.borrow().clone();
        let store = || Store {
            retain: Retain::new(grace),
            listed: false,
            up: false,
            counted: Duration::ZERO,
            since: now,
        };
        Self {
            stores: KINDS.iter().map(|_| store()).collect(),
            objects: Objects::default(),
            reports: BTreeMap::new(),
            grace,
            tuning,
            disk,
            confirmed: None,
            server: String::new(),
            started: now,
            failed: false,
            changed: None,
            given: false,
            revision: 0,
            unsaved: None,
            saved: None,
            saving: None,
            logged: None,
            state,
            updates,
            states,
        }
    }

    /// Goes without a kind: as if there were none of it.
    pub(super) fn leave_out(&mut self, index: KindIndex) {
        let store = &mut self.stores[index];
        (store.listed, store.up) = (true, true);
    }

    /// Takes the objects that were on disk: used once it shows that the API server cannot be reached.
    pub(super) fn load(&mut self, saved: Saved) {
        let mut by_kind: Vec<Vec<Received>> = KINDS.iter().map(|_| Vec::new()).collect();
        saved.objects.into_iter().for_each(|(index, received)| by_kind[index].push(received));
        self.confirmed = Some(saved.confirmed);
        self.state.last_sync = Timestamp::try_from(saved.confirmed).ok();
        let by_kind = by_kind.into_iter().enumerate();
        for (index, received) in by_kind.filter(|(index, _)| !self.stores[*index].listed).collect::<Vec<_>>()
        {
            let keys: Vec<ObjectKey> = received.iter().map(|r| r.key.clone()).collect();
            let items = received.into_iter().map(|r| self.item(index, r)).collect::<Vec<_>>();
            self.stores[index].retain.load(items);
            keys.iter().for_each(|key| self.show(index, key));
        }
    }

    /// The file of objects cannot be used.
    pub(super) fn load_failed(&mut self) {
        self.state.corrupt_files += 1;
        self.tell_state();
    }

    /// Hears the reflectors until they end.
    pub(super) async fn run(mut self, mut events: mpsc::Receiver<Event>) {
        loop {
            let due = self.due().map(tokio::time::Instant::from_std);
            let event = tokio::select! {
                event = events.recv() => Some(event),
                () = sleep_until(due) => None,
            };
            let now = Instant::now();
            match event {
                Some(None) => return,
                Some(Some(event)) => {
                    self.take(event, now);
                    for _ in 1..EVENTS_AT_ONCE {
                        let Ok(event) = events.try_recv() else { break };
                        self.take(event, now);
                    }
                }
                None => {}
            }
            self.expire(now);
            self.give(now);
            self.save(now);
            self.tell_state();
        }
    }

    fn take(&mut self, event: Event, now: Instant) {
        let index = event.kind();
        let kept = self.stores[index].retain.kept().len();
        self.believe(event, now);
        // What is told of kept objects changes though none of them does.
        if self.stores[index].retain.kept().len() != kept {
            self.changed.get_or_insert(now);
        }
    }

    fn believe(&mut self, event: Event, now: Instant) {
        match event {
            Event::Listed(index, received, version) => self.listed(index, received, version, now),
            Event::Told(index, Told::Applied(received)) => {
                let (key, item) = self.item(index, *received);
                if self.stores[index].retain.applied(&key, item) {
                    self.show_changed(index, &key, now);
                }
            }
            Event::Told(index, Told::Deleted(key, version)) => {
                if self.stores[index].retain.deleted(&key, version) {
                    self.show_changed(index, &key, now);
                }
            }
            Event::Told(index, Told::Bookmark(version)) => self.stores[index].retain.bookmark(version),
            Event::Up(index, server) => {
                self.server = server;
                self.stores[index].set_up(true, now);
                self.turn(None);
            }
            Event::Down(index, why) => {
                self.stores[index].set_up(false, now);
                self.failed = true;
                self.state.failures += 1;
                self.turn(Some(why));
            }
        }
    }

    fn listed(&mut self, index: KindIndex, received: Vec<Received>, version: u64, now: Instant) {
        if !self.given && self.disk_is_old() {
            // Nobody goes by what is on disk yet, and it is too old to be held against a list.
            let keys: Vec<ObjectKey> = self.stores[index].retain.all().map(|(key, _)| key.clone()).collect();
            self.stores[index].retain = Retain::new(self.grace);
            keys.iter().for_each(|key| self.show(index, key));
        }
        let items: Vec<_> = received.into_iter().map(|r| self.item(index, r)).collect();
        let count = items.len();
        let store = &mut self.stores[index];
        let relisted = store.retain.listed(items, version, store.clock(now));
        let first = !std::mem::replace(&mut store.listed, true);
        let kind = KINDS[index].name;
        tracing::debug!(kind, count, version, "listed");
        if (relisted.vanished > 0 || relisted.older > 0) && !self.grace.is_zero() {
            tracing::warn!(
                kind,
                listed = count,
                vanished = relisted.vanished,
                older = relisted.older,
                "the API server lost objects, or has older ones: they are kept for {:?} (apiLossGrace) unless it \
                 has them again",
                self.grace
            );
            // No object may have changed, and still there is something to tell.
            self.changed.get_or_insert(now);
        }
        if first {
            self.changed.get_or_insert(now);
        }
        relisted.changed.iter().for_each(|key| self.show_changed(index, key, now));
    }

    /// Whether the objects on disk were last known to be right longer than the grace time ago.
    fn disk_is_old(&self) -> bool {
        let age = self.confirmed.map(|at| SystemTime::now().duration_since(at).unwrap_or_default());
        age.is_none_or(|age| age > self.grace)
    }

    /// What a received object is remembered by; its faults are noted. One that is refused leaves the last good one.
    fn item(&mut self, index: KindIndex, received: Received) -> (ObjectKey, Item<Content>) {
        let Received { key, version, mut content, report } = received;
        if content.object().is_none()
            && let Some(last) = self.stores[index].retain.shown(&key).and_then(Content::object)
        {
            content = content.with(last.clone());
        }
        let place = (index, key.clone());
        if report.is_empty() {
            self.reports.remove(&place);
        } else if self.reports.get(&place) != Some(&report) {
            self.reports.insert(place, report);
            self.changed.get_or_insert_with(Instant::now);
        }
        (key, Item { version, value: content })
    }

    fn show_changed(&mut self, index: KindIndex, key: &ObjectKey, now: Instant) {
        self.show(index, key);
        self.changed.get_or_insert(now);
        self.unsaved.get_or_insert(now);
    }

    /// Brings the object of a key to what is shown of it.
    fn show(&mut self, index: KindIndex, key: &ObjectKey) {
        let kind = &KINDS[index];
        let shown = self.stores[index].retain.shown(key);
        if shown.is_none() {
            self.reports.remove(&(index, key.clone()));
        }
        match shown.and_then(Content::object) {
            Some(object) => (kind.put)(&mut self.objects, key, object),
            None => (kind.remove)(&mut self.objects, key),
        }
    }

    /// Ends what was kept long enough, of the kinds whose API server answers.
    fn expire(&mut self, now: Instant) {
        for (index, kind) in KINDS.iter().enumerate() {
            let store = &mut self.stores[index];
            let clock = store.clock(now);
            if !store.up || store.retain.deadline().is_none_or(|at| at > clock) {
                continue;
            }
            let gone = store.retain.expire(clock);
            tracing::warn!(
                kind = kind.name,
                count = gone.len(),
                "kept for {:?} (apiLossGrace), and the API server has not got them again: its state counts now",
                self.grace
            );
            gone.iter().for_each(|key| self.show_changed(index, key, now));
            // What is told of kept objects changes even where none of them does.
            self.changed.get_or_insert(now);
        }
    }

    /// Gives out what changed, if it is whole.
    fn give(&mut self, now: Instant) {
        let whole = self.stores.iter().all(|store| store.listed);
        let from_disk = !whole
            && self.confirmed.is_some()
            && (self.given || self.failed || now.duration_since(self.started) >= self.tuning.boot_wait);
        if self.state.from_disk != from_disk {
            self.state.from_disk = from_disk;
            self.changed.get_or_insert(now);
            if from_disk {
                tracing::warn!("the API server has not answered yet: forwarding by the objects on disk");
            }
        }
        let Some(seen) = self.changed.filter(|_| whole || from_disk) else { return };
        self.changed = None;
        if !self.given {
            tracing::info!(
                services = self.objects.services.len(),
                endpoint_slices = self.objects.endpoint_slices.len(),
                from_disk,
                "the first objects are there"
            );
        }
        self.given = true;
        self.revision += 1;
        self.keep_told(now);
        self.updates.send_replace(SourceUpdate {
            revision: self.revision,
            objects: Arc::new(self.objects.clone()),
            report: Arc::new(self.report()),
            stale: Arc::from([]),
            seen,
        });
    }

    fn report(&self) -> Report {
        let mut report = Report::new();
        self.reports.values().for_each(|one| report.merge(one));
        for kept in &*self.state.kept {
            report.push(Diagnostic::warning(kept.to_string()).accepting("an API server that has them"));
        }
        report
    }

    /// Brings what is told of kept objects up to date.
    fn keep_told(&mut self, now: Instant) {
        let wall = Timestamp::now();
        let told = |(store, kind): (&Store, &super::kinds::Kind)| {
            let until = store.retain.deadline()?.saturating_sub(store.clock(now));
            let before = self.state.kept.iter().find(|k| k.kind == kind.name);
            let kept = KeptObjects {
                kind: kind.name,
                count: store.retain.kept().len(),
                some: store.retain.kept().take(KEPT_NAMES).map(|(key, _)| key.to_string()).collect(),
                until: jiff::SignedDuration::try_from(until).map_or(wall, |left| wall + left),
            };
            // The same objects keep the time that was told.
            let same = before.filter(|b| (b.count, &b.some) == (kept.count, &kept.some));
            Some(KeptObjects { until: same.map_or(kept.until, |b| b.until), ..kept })
        };
        self.state.kept = self.stores.iter().zip(KINDS).filter_map(told).collect();
    }

    /// An attempt failed (`why`), or a watch stands: what that makes of the whole.
    fn turn(&mut self, why: Option<String>) {
        let now = Timestamp::now();
        let connected = self.stores.iter().all(|store| store.up);
        if self.state.connected != connected {
            if connected {
                tracing::info!(server = self.server, "every kind is watched");
            } else {
                self.state.last_sync = Some(now);
            }
            (self.state.connected, self.state.since) = (connected, now);
        }
        if connected {
            self.state.last_error = None;
            self.logged = None;
        } else if let Some(why) = why {
            let pause = |(text, at): &(String, Instant)| {
                at.elapsed() < if *text == why { LOG_AGAIN } else { LOG_MIN }
            };
            if !self.logged.as_ref().is_some_and(pause) {
                tracing::warn!(since = %self.state.since, "the API server is lost, the last objects stay: {why}");
                self.logged = Some((why.clone(), Instant::now()));
            }
            self.state.last_error = Some(why);
        }
    }

    fn tell_state(&self) {
        let state = &self.state;
        self.states.send_if_modified(|told| {
            let differs = told != state;
            if differs {
                told.clone_from(state);
            }
            differs
        });
    }

    /// Writes to disk what changed, not too often, and notes from time to time that it is still right.
    fn save(&mut self, now: Instant) {
        if self.saving.as_ref().is_some_and(|saving| !saving.is_finished()) {
            return;
        }
        self.saving = None;
        let Some(disk) = self.disk.clone() else { return };
        let Some(at) = self.save_due().filter(|at| *at <= now) else { return };
        tracing::trace!(late = ?now.duration_since(at), "the disk is due");
        self.saved = Some(now);
        self.saving = if self.unsaved.take().is_some() {
            let all = self.stores.iter().enumerate().flat_map(|(index, store)| {
                store.retain.all().map(move |(_, item)| (index, item.version, item.value.clone()))
            });
            let (all, server) = (all.collect::<Vec<_>>(), self.server.clone());
            in_background(move || {
                if let Err(error) = disk.write(&server, &all) {
                    tracing::warn!("{}: the last objects are not saved: {error}", disk.path().display());
                }
            })
        } else {
            in_background(move || {
                // Without a file there was a warning already.
                let _ = disk.confirm();
            })
        };
    }

    /// When there is something to do on disk: never before everything was listed.
    fn save_due(&self) -> Option<Instant> {
        if self.disk.is_none() || !self.stores.iter().all(|store| store.listed) {
            return None;
        }
        match (self.unsaved, self.saved) {
            (Some(unsaved), None) => Some(unsaved + self.tuning.save_settle),
            (Some(unsaved), Some(saved)) => {
                Some((unsaved + self.tuning.save_settle).max(saved + self.tuning.save_interval))
            }
            (None, saved) => {
                let since = saved.unwrap_or(self.started);
                self.state.connected.then_some(since + self.tuning.confirm_interval)
            }
        }
    }

    /// When something is to be done though nothing comes.
    fn due(&self) -> Option<Instant> {
        let now = Instant::now();
        let kept = self.stores.iter().filter(|store| store.up).filter_map(|store| {
            let left = store.retain.deadline()?.saturating_sub(store.clock(now));
            Some(now + left)
        });
        let boot = (!self.given && self.confirmed.is_some()).then(|| self.started + self.tuning.boot_wait);
        // While a save is under way its end is looked for with the next thing that happens.
        let busy = self.saving.as_ref().is_some_and(|saving| !saving.is_finished());
        let save = self.save_due().map(|at| if busy { at.max(now + self.tuning.save_settle) } else { at });
        kept.chain(boot).chain(save).min()
    }
}

/// Runs a task of the disk on a thread of its own, that gives way to the others of the process: a file of 100,000
/// endpoints takes a large part of a second, and where the control plane has one CPU, changes would wait for it.
fn in_background(task: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    let modest = || {
        // On Linux this is the thread's own.
        let _ = rustix::process::setpriority_process(None, 19);
        task();
    };
    let thread = std::thread::Builder::new().name("tg-disk".to_owned()).spawn(modest);
    thread.inspect_err(|error| tracing::warn!("the last objects are not saved: no thread: {error}")).ok()
}

async fn sleep_until(due: Option<tokio::time::Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
