//! Merges the objects of all kinds into one state and publishes it when it is complete.
//!
//! The hub receives the events of the reflectors, keeps the objects of each kind ([`Retain`]), and publishes one
//! [`SourceUpdate`] for all events that arrived together. It does not wait for more events; the reader of the update
//! does. It also publishes the state of the source ([`SourceState`]) and decides when objects are loaded from disk
//! and saved.
//!
//! Invariant: nothing is published before every kind was listed, or was loaded from disk because the API server
//! cannot be reached. Invariant: an object that did not change keeps its `Arc`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use tidegate_model::diagnostic::{Diagnostic, Report};
use tidegate_model::objects::{NotKept, ObjectKey, Objects};
use tokio::sync::{mpsc, oneshot, watch};

use super::connect::Connector;
use super::disk::{Contents, Disk, Saved, SavedObject};
use super::fit::Slices;
use super::history::{Heard, Point};
use super::kinds::{KINDS, KindIndex, SERVICE, SLICE};
use super::object::{Content, Identity, Received};
use super::reflect::Event;
use super::retain::{Continuity, Item, Retain};
use super::save::Saver;
use super::tuning::Tuning;
use super::wire::WatchEvent;
use crate::slices::locked;
use crate::{KeptObjects, SourceState, SourceUpdate};

/// The maximum number of events in one update.
const EVENTS_AT_ONCE: usize = 4096;
/// The maximum number of kept objects that a report names.
const KEPT_NAMES: usize = 3;
/// The minimum interval between two logged errors, and between two equal ones.
const LOG_MIN: Duration = Duration::from_secs(10);
const LOG_AGAIN: Duration = Duration::from_secs(60);

/// Receives the events of all reflectors.
pub(super) struct Hub {
    stores: Vec<Store>,
    objects: Objects,
    /// The faults of objects that have any.
    reports: BTreeMap<(KindIndex, ObjectKey), Report>,
    grace: Duration,
    tuning: Tuning,
    connector: Arc<Connector>,
    saver: Saver,
    slices: Slices,
    to_save: mpsc::Receiver<oneshot::Sender<()>>,
    /// When the objects on disk were last known to be those of the API server.
    confirmed: Option<SystemTime>,
    server: String,
    started: Instant,
    /// Whether an attempt has failed since the start.
    failed: bool,
    /// When the first unpublished change was received.
    changed: Option<Instant>,
    given: bool,
    revision: u64,
    /// The version of the API server's Services, and that of the Services that were last published.
    version: u64,
    version_given: u64,
    logged: Option<(String, Instant)>,
    state: SourceState,
    updates: watch::Sender<SourceUpdate>,
    states: watch::Sender<SourceState>,
}

/// The objects of one kind.
struct Store {
    retain: Retain<Content>,
    listed: bool,
    up: bool,
    /// How long the kind was up before `since`.
    counted: Duration,
    since: Instant,
    heard: Option<Heard>,
    /// Why the API server does not allow the gateway to read the kind, if the gateway continues without it.
    forbidden: Option<String>,
}

impl Store {
    /// The time during which the API server has answered.
    fn clock(&self, now: Instant) -> Duration {
        let running = if self.up { now.duration_since(self.since) } else { Duration::ZERO };
        self.counted + running
    }

    fn set_up(&mut self, up: bool, now: Instant) {
        self.counted = self.clock(now);
        // While the kind stays down, `since` shows for how long.
        if self.up || up {
            self.since = now;
        }
        self.up = up;
    }

    /// How long there has been no watch.
    fn outage(&self, now: Instant) -> Duration {
        if self.up { Duration::ZERO } else { now.saturating_duration_since(self.since) }
    }
}

impl Hub {
    #[allow(clippy::too_many_arguments, reason = "each is of its own type, and there is one caller")]
    pub(super) fn new(
        grace: Duration,
        tuning: Tuning,
        connector: Arc<Connector>,
        disk: Option<Disk>,
        slices: Slices,
        updates: watch::Sender<SourceUpdate>,
        states: watch::Sender<SourceState>,
        to_save: mpsc::Receiver<oneshot::Sender<()>>,
    ) -> Self {
        let now = Instant::now();
        let state = states.borrow().clone();
        let store = || Store {
            retain: Retain::new(grace),
            listed: false,
            up: false,
            counted: Duration::ZERO,
            since: now,
            heard: None,
            forbidden: None,
        };
        Self {
            stores: KINDS.iter().map(|_| store()).collect(),
            objects: Objects::default(),
            reports: BTreeMap::new(),
            grace,
            tuning,
            connector,
            saver: Saver::new(disk, tuning, now),
            slices,
            to_save,
            confirmed: None,
            server: String::new(),
            started: now,
            failed: false,
            changed: None,
            given: false,
            revision: 0,
            version: 0,
            version_given: 0,
            logged: None,
            state,
            updates,
            states,
        }
    }

    /// Treats a kind as one without objects.
    pub(super) fn leave_out(&mut self, index: KindIndex) {
        let store = &mut self.stores[index];
        (store.listed, store.up) = (true, true);
    }

    /// Loads the objects from disk, once it is clear that the API server cannot be reached.
    pub(super) fn load(&mut self, saved: Saved) {
        let Saved { server, confirmed, heard, objects } = saved;
        let mut by_kind: Vec<Vec<SavedObject>> = KINDS.iter().map(|_| Vec::new()).collect();
        objects.into_iter().for_each(|object| by_kind[object.kind].push(object));
        self.server = server;
        self.confirmed = Some(confirmed);
        self.state.last_sync = Timestamp::try_from(confirmed).ok();
        let now = Instant::now();
        let outage = SystemTime::now().duration_since(confirmed).unwrap_or_default();
        for (index, objects) in by_kind.into_iter().enumerate() {
            if self.stores[index].listed {
                continue;
            }
            let keys: Vec<ObjectKey> = objects.iter().map(|object| object.received.key.clone()).collect();
            let item = |object: SavedObject| {
                let (key, item) = self.item(index, object.received);
                (key, item, object.left)
            };
            let items: Vec<_> = objects.into_iter().map(item).collect();
            let store = &mut self.stores[index];
            store.retain.load(items);
            store.since = now.checked_sub(outage).unwrap_or(now);
            keys.iter().for_each(|key| self.show(index, key));
        }
        for (index, point, ago) in heard {
            self.stores[index].heard = now.checked_sub(ago).map(|at| Heard { point, at });
        }
    }

    /// Records that the file of objects cannot be used.
    pub(super) fn load_failed(&mut self) {
        self.state.corrupt_files += 1;
        self.tell_state();
    }

    /// Receives events until the reflectors end.
    pub(super) async fn run(mut self, mut events: mpsc::Receiver<Event>) {
        loop {
            let due = self.due().map(tokio::time::Instant::from_std);
            let event = tokio::select! {
                event = events.recv() => Some(event),
                Some(done) = self.to_save.recv() => {
                    self.finish(done);
                    None
                }
                () = sleep_until(due) => None,
            };
            let now = Instant::now();
            let kept = self.kept_counts();
            match event {
                Some(None) => return,
                Some(Some(event)) => {
                    self.take(event, now);
                    for _ in 1..EVENTS_AT_ONCE {
                        self.fit(now);
                        let Ok(event) = events.try_recv() else { break };
                        self.take(event, now);
                    }
                }
                None => {}
            }
            self.tell_returned(&kept);
            self.expire(now);
            self.fit(now);
            self.give(now);
            self.save(now);
            self.tell_state();
        }
    }

    fn kept_counts(&self) -> Vec<usize> {
        self.stores.iter().map(|store| store.retain.kept().len()).collect()
    }

    /// Logs that fewer objects are kept than before.
    fn tell_returned(&self, before: &[usize]) {
        for ((kind, before), now) in KINDS.iter().zip(before).zip(self.kept_counts()) {
            if now < *before {
                let returned = before - now;
                tracing::info!(
                    kind = kind.name,
                    returned,
                    kept = now,
                    "the API server has objects again that it had lost"
                );
            }
        }
    }

    fn take(&mut self, event: Event, now: Instant) {
        let index = event.kind();
        let kept = self.stores[index].retain.kept().len();
        match &event {
            Event::Listed(SERVICE, _, point) => self.version = point.version,
            Event::Watched(SERVICE, told) => self.version = self.version.max(told.version()),
            _ => {}
        }
        self.believe(event, now);
        // Readers may wait for this version, even if nothing else has changed.
        if self.version != self.version_given {
            self.changed.get_or_insert(now);
        }
        // The report about kept objects, and how long each is kept, may change without a change of an object.
        if self.stores[index].retain.kept().len() != kept {
            self.changed.get_or_insert(now);
            self.saver.changed(now);
        }
    }

    fn believe(&mut self, event: Event, now: Instant) {
        if let Event::Watched(index, told) = &event
            && let Some(heard) = &mut self.stores[*index].heard
        {
            heard.tell(told.version(), now);
        }
        match event {
            Event::Listed(index, received, point) => self.listed(index, received, point, now),
            Event::Watched(index, WatchEvent::Applied(mut received)) => {
                if let Some(why) = received.content.slice().and_then(|slice| self.slices.not_kept(slice)) {
                    received.content = received.content.left_out(why);
                }
                let (key, item) = self.item(index, *received);
                if self.stores[index].retain.applied(&key, item) {
                    self.show_changed(index, &key, now);
                }
            }
            Event::Watched(index, WatchEvent::Deleted(Identity { key, uid, version })) => {
                if self.stores[index].retain.deleted(&key, &uid, version) {
                    self.show_changed(index, &key, now);
                }
            }
            Event::Watched(index, WatchEvent::Bookmark(version)) => {
                self.stores[index].retain.bookmark(version);
            }
            // The next list does not continue the received history.
            Event::OtherHistory(index) => self.stores[index].heard = None,
            Event::Forbidden(index, why) => self.forbidden(index, why, now),
            Event::Absent(index, server, point) => self.absent(index, server, point, now),
            Event::Up(index, server) => {
                self.server = server;
                if self.stores[index].forbidden.take().is_some() {
                    tracing::info!(kind = KINDS[index].name, "the API server allows reading this kind again");
                    self.changed.get_or_insert(now);
                }
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

    /// Keeps the known objects of an optional kind that may not be read, and reports it.
    fn forbidden(&mut self, index: KindIndex, why: String, now: Instant) {
        let store = &mut self.stores[index];
        store.set_up(false, now);
        store.listed = true;
        if store.forbidden.as_ref() != Some(&why) {
            tracing::warn!(
                kind = KINDS[index].name,
                error = why,
                "cannot read this kind: keeping the last known objects"
            );
            store.forbidden = Some(why);
            self.changed.get_or_insert(now);
        }
        self.state.failures += 1;
        self.turn(None);
    }

    /// Records that the API server does not have the kind. If there never was an object of it, there are none.
    /// Otherwise their definition was removed and they were not deleted one by one: they stay until it is back.
    fn absent(&mut self, index: KindIndex, server: String, point: Point, now: Instant) {
        if self.stores[index].retain.all().next().is_none() {
            self.listed(index, Vec::new(), point, now);
            self.believe(Event::Up(index, server), now);
            return;
        }
        if !std::mem::replace(&mut self.stores[index].listed, true) {
            self.changed.get_or_insert(now);
        }
        self.stores[index].forbidden = None;
        let kind = &KINDS[index];
        let why = format!("{}: the API server no longer has a definition of {}", kind.path, kind.name);
        self.believe(Event::Down(index, why), now);
    }

    fn listed(&mut self, index: KindIndex, received: Vec<Received>, point: Point, now: Instant) {
        if !self.given && self.disk_is_old() {
            // The objects on disk are not in use yet, and are too old to be compared with a list.
            let keys: Vec<ObjectKey> = self.stores[index].retain.all().map(|(key, _)| key.clone()).collect();
            self.stores[index].retain = Retain::new(self.grace);
            keys.iter().for_each(|key| self.show(index, key));
        }
        let items: Vec<_> = received.into_iter().map(|r| self.item(index, r)).collect();
        let count = items.len();
        let store = &mut self.stores[index];
        let (outage, clock, version) = (store.outage(now), store.clock(now), point.version);
        let continuity = match &store.heard {
            None => Continuity::Unknown,
            // This list is the first one to be compared with the objects on disk.
            Some(heard) if !store.listed => heard.continuity_with_disk(&point, now),
            Some(heard) => heard.continuity(&point, outage, now),
        };
        let relisted = store.retain.listed(items, version, continuity, clock);
        store.heard = Some(Heard { point, at: now });
        let first = !std::mem::replace(&mut store.listed, true);
        let kind = KINDS[index].name;
        let (deleted, recreated) = (relisted.deleted, relisted.recreated);
        tracing::debug!(kind, count, version, ?continuity, deleted, recreated, "listed");
        if (relisted.vanished > 0 || relisted.older > 0) && !self.grace.is_zero() {
            tracing::warn!(
                kind,
                listed = count,
                vanished = relisted.vanished,
                older = relisted.older,
                grace = ?self.grace,
                "objects vanished from the API server or became older: keeping the last known objects for apiLossGrace"
            );
            // Even if no object has changed, there is a state to publish and to save.
            self.changed.get_or_insert(now);
            self.saver.changed(now);
        }
        if first {
            self.changed.get_or_insert(now);
        }
        relisted.changed.iter().for_each(|key| self.show_changed(index, key, now));
    }

    /// Whether the time since the objects on disk were last confirmed exceeds the grace time.
    fn disk_is_old(&self) -> bool {
        let age = self.confirmed.map(|at| SystemTime::now().duration_since(at).unwrap_or_default());
        age.is_none_or(|age| age > self.grace)
    }

    /// The stored form of a received object. Its faults are recorded.
    fn item(&mut self, index: KindIndex, received: Received) -> (ObjectKey, Item<Content>) {
        let Received { key, version, uid, content, report } = received;
        let content = content.after(self.stores[index].retain.shown(&key).and_then(Content::object));
        let place = (index, key.clone());
        let is_left_out = content.slice().is_some_and(|slice| slice.left_out.is_some());
        if report.is_empty() || is_left_out {
            self.reports.remove(&place);
        } else if self.reports.get(&place) != Some(&report) {
            self.reports.insert(place, report);
            self.changed.get_or_insert_with(Instant::now);
        }
        (key, Item { version, uid, value: content })
    }

    fn show_changed(&mut self, index: KindIndex, key: &ObjectKey, now: Instant) {
        self.show(index, key);
        self.changed.get_or_insert(now);
        self.saver.changed(now);
    }

    /// Updates the published object of a key.
    fn show(&mut self, index: KindIndex, key: &ObjectKey) {
        let kind = &KINDS[index];
        let shown = self.stores[index].retain.shown(key);
        if shown.is_none() {
            self.reports.remove(&(index, key.clone()));
        }
        if index == SLICE {
            self.slices.shown(key, shown.and_then(Content::slice));
        }
        match shown.and_then(Content::object) {
            Some(object) => (kind.put)(&mut self.objects, key, object),
            None => (kind.remove)(&mut self.objects, key),
        }
    }

    /// Removes the endpoints of slices that exceed a limit, and marks the slices that fit again.
    fn fit(&mut self, now: Instant) {
        for (key, not_kept) in self.slices.settle() {
            let retain = &mut self.stores[SLICE].retain;
            let before = retain.shown(&key).and_then(Content::slice);
            let Some(before) = before.map(|slice| slice.left_out.map(|left_out| left_out.why)) else {
                continue;
            };
            // Endpoints that are present and fit stay.
            let why = not_kept.or(before.map(|_| NotKept::Awaited));
            let Some(why) = why.filter(|why| before != Some(*why)) else { continue };
            retain.edit(&key, |content| content.left_out(why));
            self.reports.remove(&(SLICE, key.clone()));
            self.show_changed(SLICE, &key, now);
        }
        if self.stores[SLICE].up {
            self.slices.ask(self.tuning.refit, now);
        }
    }

    /// Removes objects whose time to be kept is over, for the kinds that the API server answers.
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
                grace = ?self.grace,
                "apiLossGrace ended and the objects did not return to the API server: using its state"
            );
            gone.iter().for_each(|key| self.show_changed(index, key, now));
            // The report about kept objects changes even if no object does.
            self.changed.get_or_insert(now);
        }
    }

    /// Publishes the changes, if all kinds are complete.
    fn give(&mut self, now: Instant) {
        let api_servers = self.connector.addresses();
        if self.objects.api_servers != *api_servers {
            self.objects.api_servers.clone_from(&api_servers);
            self.changed.get_or_insert(now);
        }
        let whole = self.is_listed();
        let from_disk = !whole
            && self.confirmed.is_some()
            && (self.given || self.failed || now.duration_since(self.started) >= self.tuning.boot_wait);
        if self.state.from_disk != from_disk {
            self.state.from_disk = from_disk;
            self.changed.get_or_insert(now);
            if from_disk {
                tracing::warn!(
                    "the API server has not answered yet: forwarding with the objects saved on disk"
                );
            }
        }
        let Some(seen) = self.changed.filter(|_| whole || from_disk) else { return };
        self.changed = None;
        if !self.given {
            tracing::info!(
                services = self.objects.services.len(),
                endpoint_slices = self.objects.endpoint_slices.len(),
                from_disk,
                "the initial objects are loaded"
            );
        }
        self.given = true;
        self.revision += 1;
        self.keep_told(now);
        self.version_given = self.version;
        let of_namespaces = self.faults_of_namespaces();
        self.updates.send_replace(SourceUpdate {
            revision: self.revision,
            objects: Arc::new(self.objects.clone()),
            version: self.version,
            keeps_services: self.stores[SERVICE].retain.kept().len() > 0,
            report: Arc::new(self.report(&of_namespaces)),
            faults_of_namespaces: Arc::new(of_namespaces),
            stale: Arc::from([]),
            refused: Arc::from([]),
            slices_left_out: locked(&self.slices.budget).count_not_kept(),
            seen,
        });
    }

    /// The reports about the kinds that the gateway may not read.
    fn forbidden_kinds(&self) -> impl Iterator<Item = String> {
        self.stores.iter().zip(KINDS).filter_map(|(store, kind)| {
            let why = store.forbidden.as_ref()?;
            Some(format!("{} objects cannot be read, the last known ones stay in use: {why}", kind.name))
        })
    }

    /// The faults of the objects of each namespace that has any.
    fn faults_of_namespaces(&self) -> BTreeMap<String, Report> {
        let mut all = BTreeMap::<String, Report>::new();
        let namespaced = self.reports.iter().filter(|((_, key), _)| !key.namespace.is_empty());
        for ((_, key), report) in namespaced {
            all.entry(key.namespace.clone()).or_default().merge(report);
        }
        for (namespace, fault) in locked(&self.slices.budget).faults() {
            all.entry(namespace.to_owned()).or_default().push(fault);
        }
        all
    }

    fn report(&self, of_namespaces: &BTreeMap<String, Report>) -> Report {
        let mut report = Report::new();
        of_namespaces.values().for_each(|one| report.merge(one));
        let of_cluster = self.reports.iter().filter(|((_, key), _)| key.namespace.is_empty());
        of_cluster.for_each(|(_, one)| report.merge(one));
        for what in self.forbidden_kinds() {
            report.push(Diagnostic::warning(what).accepting("the RBAC rules in deploy/kubernetes"));
        }
        for kept in &*self.state.kept {
            report.push(Diagnostic::warning(kept.to_string()).accepting("an API server that has them"));
        }
        report
    }

    /// Updates the report about kept objects.
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
            // If the objects are the same, the reported time stays.
            let same = before.filter(|b| (b.count, &b.some) == (kept.count, &kept.some));
            Some(KeptObjects { until: same.map_or(kept.until, |b| b.until), ..kept })
        };
        self.state.kept = self.stores.iter().zip(KINDS).filter_map(told).collect();
    }

    /// Updates the state of the source after a failed attempt (`why`), or when a watch is connected.
    fn turn(&mut self, why: Option<String>) {
        let now = Timestamp::now();
        let connected = self.stores.iter().all(|store| store.up || store.forbidden.is_some());
        if self.state.connected != connected {
            if connected {
                tracing::info!(server = self.server, "connected to the API server: all kinds are watched");
            } else {
                self.state.last_sync = Some(now);
            }
            (self.state.connected, self.state.since) = (connected, now);
        }
        if connected {
            let forbidden = self.forbidden_kinds().next();
            self.state.last_error = forbidden;
            self.logged = None;
        } else if let Some(why) = why {
            let pause = |(text, at): &(String, Instant)| {
                at.elapsed() < if *text == why { LOG_AGAIN } else { LOG_MIN }
            };
            if !self.logged.as_ref().is_some_and(pause) {
                tracing::warn!(
                    since = %self.state.since,
                    error = why,
                    "the API server is unavailable: keeping the last known objects"
                );
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

    /// Whether the objects may be saved: not before all kinds were listed.
    fn is_listed(&self) -> bool {
        self.stores.iter().all(|store| store.listed)
    }

    fn save(&mut self, now: Instant) {
        if self.is_listed() {
            let contents = || contents(&self.stores, &self.server, &self.state, now);
            self.saver.save(self.state.connected, now, contents);
        }
        self.state.unsaved = self.saver.trouble();
    }

    /// Saves unsaved objects before the shutdown.
    fn finish(&mut self, done: oneshot::Sender<()>) {
        if self.is_listed() {
            let contents = || contents(&self.stores, &self.server, &self.state, Instant::now());
            self.saver.finish(self.state.connected, contents, done);
        }
    }

    /// When work is due without an event.
    fn due(&self) -> Option<Instant> {
        let now = Instant::now();
        let kept = self.stores.iter().filter(|store| store.up).filter_map(|store| {
            let left = store.retain.deadline()?.saturating_sub(store.clock(now));
            Some(now + left)
        });
        let boot = (!self.given && self.confirmed.is_some()).then(|| self.started + self.tuning.boot_wait);
        let save = self.is_listed().then(|| self.saver.due(self.state.connected)).flatten();
        let refit = self.slices.due().filter(|_| self.stores[SLICE].up);
        kept.chain(boot).chain(save).chain(refit).min()
    }
}

/// All objects in the form in which they are saved.
fn contents(stores: &[Store], server: &str, state: &SourceState, now: Instant) -> Contents {
    let objects = stores.iter().enumerate().flat_map(|(kind, store)| {
        let remaining = store.retain.remaining(store.clock(now));
        remaining.map(move |(item, left)| (kind, item.version, item.value.clone(), left))
    });
    let heard = stores.iter().enumerate().filter_map(|(kind, store)| {
        let heard = store.heard.as_ref()?;
        Some((kind, heard.point.clone(), now.saturating_duration_since(heard.at)))
    });
    let confirmed = if state.connected { None } else { state.last_sync };
    Contents {
        server: server.to_owned(),
        confirmed: confirmed.map_or_else(SystemTime::now, SystemTime::from),
        heard: heard.collect(),
        objects: objects.collect(),
    }
}

async fn sleep_until(due: Option<tokio::time::Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
