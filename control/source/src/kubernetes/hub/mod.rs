//! Merges the objects of all kinds into one state and publishes it when it is complete.
//!
//! The hub receives the events of the reflectors, stores the objects of each kind ([`Retain`]), and publishes one
//! [`SourceUpdate`] for all events that arrived together. It doesn't wait for more events; the reader of the update
//! does. It also publishes the state of the source ([`SourceState`]) and decides when objects are loaded from disk and
//! saved.
//!
//! Invariant: nothing is published before every kind was listed, or was loaded from disk because the API server can't
//! be reached. An object that did not change keeps its `Arc`.

mod faults;
mod publication;
mod state;
mod store;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use tidegate_model::config::GatewayApi;
use tidegate_model::diagnostic::{Diagnostic, Report};
use tidegate_model::objects::{NotKept, ObjectKey, Objects};
use tokio::sync::{mpsc, oneshot, watch};

use super::connect::Connector;
use super::disk::{Disk, Saved, SavedObject};
use super::history::{LastPoint, OUTAGE_MAX, Point};
use super::kinds::{GATEWAY, KINDS, KindIndex, SERVICE, SLICE};
use super::object::{Content, Identity, Received};
use super::reflect::{Event, Failure};
use super::retain::{Continuity, Item, Retain};
use super::save::Saver;
use super::slice_budget::Slices;
use super::tuning::Tuning;
use super::wire::WatchEvent;
use crate::manifest::Object;
use crate::slices::{self, locked};
use crate::{SourceState, SourceUpdate};
use faults::Faults;
use publication::Publication;
use state::State;
pub(super) use store::missing_definition;
use store::{Definition, Store, contents, faults_of_kinds, kept_counts, kept_objects, log_returned};

/// The maximum number of events in one update.
const EVENTS_AT_ONCE: usize = 4096;
/// Receives the events of all reflectors.
pub(super) struct Hub {
    stores: Vec<Store>,
    objects: Objects,
    faults: Faults,
    grace: Duration,
    gateway_api: GatewayApi,
    tuning: Tuning,
    connector: Arc<Connector>,
    saver: Saver,
    slices: Slices,
    to_save: mpsc::Receiver<oneshot::Sender<()>>,
    /// When the objects on disk were last known to match the API server.
    confirmed: Option<SystemTime>,
    started: Instant,
    /// Whether an attempt has failed since the start.
    failed: bool,
    publication: Publication,
    state: State,
}

impl Hub {
    #[allow(clippy::too_many_arguments, reason = "each is of its own type, and there is one caller")]
    pub(super) fn new(
        grace: Duration,
        gateway_api: GatewayApi,
        tuning: Tuning,
        connector: Arc<Connector>,
        disk: Option<Disk>,
        slices: Slices,
        updates: watch::Sender<SourceUpdate>,
        states: watch::Sender<SourceState>,
        to_save: mpsc::Receiver<oneshot::Sender<()>>,
    ) -> Self {
        let now = Instant::now();
        Self {
            stores: KINDS.iter().map(|_| Store::new(grace, now)).collect(),
            objects: Objects::default(),
            faults: Faults::default(),
            grace,
            gateway_api,
            tuning,
            connector,
            saver: Saver::new(disk, tuning.save, now),
            slices,
            to_save,
            confirmed: None,
            started: now,
            failed: false,
            publication: Publication::new(updates),
            state: State::new(states),
        }
    }

    /// Treats a kind as one without objects.
    pub(super) fn leave_out(&mut self, index: KindIndex) {
        let store = &mut self.stores[index];
        (store.listed, store.up) = (true, true);
    }

    /// Loads the objects from disk, once it is clear that the API server can't be reached.
    pub(super) fn load(&mut self, saved: Saved) {
        let Saved { server, confirmed, points, objects } = saved;
        let mut by_kind: Vec<Vec<SavedObject>> = KINDS.iter().map(|_| Vec::new()).collect();
        for object in objects {
            // The gateway may have read the slices of headless Services with another configuration.
            let slice = object.received.content.slice();
            if self.gateway_api.is_read() || !slice.is_some_and(|slice| slices::is_headless(&slice.meta)) {
                by_kind[object.kind].push(object);
            }
        }
        self.state.server = server;
        self.confirmed = Some(confirmed);
        self.state.now.last_sync = Timestamp::try_from(confirmed).ok();
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
            keys.iter().for_each(|key| self.update_object(index, key));
        }
        for (index, point, ago) in points {
            self.stores[index].last_point = now.checked_sub(ago).map(|at| LastPoint { point, at });
        }
    }

    /// Records that the file of objects can't be used.
    pub(super) fn load_failed(&mut self) {
        self.state.now.corrupt_files += 1;
        self.state.publish();
    }

    /// Receives events until the reflectors end.
    pub(super) async fn run(mut self, mut events: mpsc::Receiver<(KindIndex, Event)>) {
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
            let kept = kept_counts(&self.stores);
            match event {
                Some(None) => return,
                Some(Some((index, event))) => {
                    self.receive(index, event, now);
                    for _ in 1..EVENTS_AT_ONCE {
                        self.apply_slice_limits(now);
                        let Ok((index, event)) = events.try_recv() else { break };
                        self.receive(index, event, now);
                    }
                }
                None => {}
            }
            log_returned(&self.stores, &kept);
            self.expire(now);
            self.apply_slice_limits(now);
            self.publish_changes(now);
            self.save(now);
            self.state.publish();
        }
    }

    fn receive(&mut self, index: KindIndex, event: Event, now: Instant) {
        let kept = self.stores[index].retain.kept().len();
        match &event {
            Event::Listed(_, point) if index == SERVICE => self.publication.listed(point.version, now),
            Event::Watched(watched) if index == SERVICE => self.publication.watched(watched.version(), now),
            _ => {}
        }
        self.handle(index, event, now);
        if index == GATEWAY {
            let gateways = &self.stores[GATEWAY];
            self.publication.pause(!gateways.up && gateways.forbidden.is_none(), now);
        }
        // The report about kept objects, and how long each is kept, may change without a change of an object.
        if self.stores[index].retain.kept().len() != kept {
            self.publication.changed(now);
            self.saver.changed(now);
        }
    }

    fn handle(&mut self, index: KindIndex, event: Event, now: Instant) {
        if let Event::Watched(watched) = &event
            && let Some(last_point) = &mut self.stores[index].last_point
        {
            last_point.observe_version(watched.version(), now);
        }
        match event {
            Event::Listed(received, point) => {
                self.set_absent(index, false, now);
                if matches!(self.stores[index].definition, Definition::Removed | Definition::Missing) {
                    self.set_definition(index, Definition::Present, now);
                }
                self.listed(index, received, point, now);
            }
            Event::Watched(WatchEvent::Applied(mut received)) => {
                if let Some(why) = received.content.slice().and_then(|slice| self.slices.not_kept(slice)) {
                    received.content = received.content.left_out(why);
                }
                let (key, item) = self.item(index, *received);
                if self.stores[index].retain.applied(&key, item) {
                    self.object_changed(index, &key, now);
                }
            }
            Event::Watched(WatchEvent::Deleted(Identity { key, uid, version })) => {
                if self.stores[index].retain.deleted(&key, &uid, version) {
                    self.object_changed(index, &key, now);
                }
            }
            Event::Watched(WatchEvent::Bookmark(version)) => {
                self.stores[index].retain.bookmark(version);
            }
            Event::OtherHistory => {
                let store = &mut self.stores[index];
                // The next list doesn't continue the received history.
                store.last_point = None;
                let clock = store.clock(now);
                let recalled = store.retain.recall(clock.saturating_sub(OUTAGE_MAX), clock);
                recalled.iter().for_each(|key| self.object_changed(index, key, now));
            }
            Event::Forbidden(why) => self.forbidden(index, why, now),
            Event::Terminating(true) => self.set_definition(index, Definition::Terminating, now),
            Event::Terminating(false) => {
                if self.stores[index].definition == Definition::Terminating {
                    self.set_definition(index, Definition::Present, now);
                }
            }
            Event::Absent(server, point) => self.absent(index, server, point, now),
            Event::Up(server) => {
                self.state.server = server;
                if self.stores[index].forbidden.take().is_some() {
                    tracing::info!(kind = KINDS[index].name, "the API server allows reading this kind again");
                    self.publication.changed(now);
                }
                self.stores[index].set_up(true, now);
                self.update_state(None);
            }
            Event::Down(failure) => {
                self.stores[index].set_up(false, now);
                self.failed = true;
                self.state.now.failures += 1;
                self.update_state(Some(failure));
            }
        }
    }

    /// Keeps the known objects of an optional kind that can't be read, and reports it.
    fn forbidden(&mut self, index: KindIndex, why: String, now: Instant) {
        let store = &mut self.stores[index];
        store.set_up(false, now);
        store.listed = true;
        if store.forbidden.as_ref() != Some(&why) {
            tracing::warn!(
                kind = KINDS[index].name,
                error = why,
                "cannot read this kind; keeping the last known objects"
            );
            store.forbidden = Some(why);
            self.publication.changed(now);
        }
        self.state.now.failures += 1;
        self.update_state(None);
    }

    fn set_absent(&mut self, index: KindIndex, is_absent: bool, now: Instant) {
        if std::mem::replace(&mut self.stores[index].is_absent, is_absent) != is_absent {
            self.publication.changed(now);
        }
    }

    fn set_definition(&mut self, index: KindIndex, definition: Definition, now: Instant) {
        let kind = KINDS[index].name;
        match definition {
            Definition::Present => {
                tracing::info!(kind, "the API server has a CustomResourceDefinition of this kind");
            }
            Definition::Terminating => {
                tracing::warn!(kind, "the API server is deleting the CustomResourceDefinition of this kind");
            }
            Definition::Missing => {
                tracing::warn!(kind, "the API server has no CustomResourceDefinition of this kind");
            }
            Definition::Removed => {
                tracing::warn!(
                    kind,
                    "the CustomResourceDefinition of this kind was deleted, and with it all its objects"
                );
            }
        }
        self.stores[index].definition = definition;
        self.publication.changed(now);
        self.update_state(None);
    }

    /// Records that the API server doesn't have the kind. If no object of the kind is known, there are none. Otherwise
    /// the definition was removed without deleting the objects one by one: they stay until it is back.
    fn absent(&mut self, index: KindIndex, server: String, point: Point, now: Instant) {
        let store = &self.stores[index];
        if store.retain.all().next().is_none() {
            let was_there = store.last_point.as_ref().is_some_and(|last_point| last_point.point.version != 0);
            self.listed(index, Vec::new(), point, now);
            self.set_absent(index, true, now);
            self.handle(index, Event::Up(server), now);
            let definition = match (KINDS[index].is_gateway_api, self.gateway_api) {
                (true, GatewayApi::Required) => Definition::Missing,
                // Unlike pools, the Gateway API may be removed on purpose.
                (true, _) => return,
                (false, _) if was_there => Definition::Removed,
                (false, _) => return,
            };
            if self.stores[index].definition != definition {
                self.set_definition(index, definition, now);
            }
            return;
        }
        if !std::mem::replace(&mut self.stores[index].listed, true) {
            self.publication.changed(now);
        }
        self.stores[index].forbidden = None;
        let kind = &KINDS[index];
        let why = format!("{}: the API server no longer has a definition of {}", kind.path, kind.name);
        self.handle(index, Event::Down(Failure { why, is_response: true }), now);
    }

    fn listed(&mut self, index: KindIndex, received: Vec<Received>, point: Point, now: Instant) {
        if !self.publication.has_published() && self.disk_is_old() {
            // The objects on disk are not in use yet, and are too old to be compared with a list.
            let keys: Vec<ObjectKey> = self.stores[index].retain.all().map(|(key, _)| key.clone()).collect();
            self.stores[index].retain = Retain::new(self.grace);
            keys.iter().for_each(|key| self.update_object(index, key));
        }
        let items: Vec<_> = received.into_iter().map(|r| self.item(index, r)).collect();
        let count = items.len();
        let store = &mut self.stores[index];
        let (outage, clock, version) = (store.outage(now), store.clock(now), point.version);
        let continuity = match &store.last_point {
            None => Continuity::Unknown,
            // The first list is compared with the objects on disk.
            Some(last_point) if !store.listed => last_point.continuity_with_disk(&point, now),
            Some(last_point) => last_point.continuity(&point, outage, now),
        };
        let relisted = store.retain.listed(items, version, continuity, clock);
        store.last_point = Some(LastPoint { point, at: now });
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
                "objects are missing from the API server or older than before; keeping the last known objects for apiLossGrace"
            );
            // Even if no object has changed, there is a state to publish and to save.
            self.publication.changed(now);
            self.saver.changed(now);
        }
        if first {
            self.publication.changed(now);
        }
        relisted.changed.iter().for_each(|key| self.object_changed(index, key, now));
    }

    /// Whether the objects on disk were last confirmed longer ago than the grace time.
    fn disk_is_old(&self) -> bool {
        let age = self.confirmed.map(|at| SystemTime::now().duration_since(at).unwrap_or_default());
        age.is_none_or(|age| age > self.grace)
    }

    /// Records the faults of a received object, and returns its key and stored form.
    fn item(&mut self, index: KindIndex, received: Received) -> (ObjectKey, Item<Content>) {
        let Received { key, version, uid, content, report } = received;
        let content = content.after(self.stores[index].retain.current(&key).and_then(Content::object));
        let is_left_out = content.slice().is_some_and(|slice| slice.left_out.is_some());
        let report = if is_left_out { Report::new() } else { report };
        if self.faults.set(index, &key, report) {
            self.publication.changed(Instant::now());
        }
        (key, Item { version, uid, value: content })
    }

    fn object_changed(&mut self, index: KindIndex, key: &ObjectKey, now: Instant) {
        self.update_object(index, key);
        self.publication.changed(now);
        self.saver.changed(now);
    }

    /// Updates the published object of a key. For a Service that becomes headless, or no longer is, also its slices.
    fn update_object(&mut self, index: KindIndex, key: &ObjectKey) {
        let kind = &KINDS[index];
        let current = self.stores[index].retain.current(key);
        if current.is_none() {
            self.faults.remove(index, key);
        }
        if index == SLICE {
            self.slices.published(key, current.and_then(Content::slice));
        }
        let is_headless = |objects: &Objects| index == SERVICE && slices::is_headless_service(key, objects);
        let was_headless = is_headless(&self.objects);
        match current.and_then(Content::object) {
            Some(Object::EndpointSlice(slice)) if !slices::is_used(slice, &self.objects) => {
                (kind.remove)(&mut self.objects, key);
            }
            Some(object) => (kind.put)(&mut self.objects, key, object),
            None => (kind.remove)(&mut self.objects, key),
        }
        if was_headless != is_headless(&self.objects) {
            let of_service = locked(&self.slices.budget).slices_of(&slices::headless_owner(key));
            of_service.iter().for_each(|slice| self.update_object(SLICE, slice));
        }
    }

    /// Removes the endpoints of slices that exceed a limit, and marks the slices that fit again.
    fn apply_slice_limits(&mut self, now: Instant) {
        for (key, not_kept) in self.slices.decide() {
            let retain = &mut self.stores[SLICE].retain;
            let before = retain.current(&key).and_then(Content::slice);
            let Some(before) = before.map(|slice| slice.left_out.map(|left_out| left_out.why)) else {
                continue;
            };
            // Endpoints that are present and fit stay.
            let why = not_kept.or(before.map(|_| NotKept::Awaited));
            let Some(why) = why.filter(|why| before != Some(*why)) else { continue };
            retain.edit(&key, |content| content.left_out(why));
            self.faults.remove(SLICE, &key);
            self.object_changed(SLICE, &key, now);
        }
        if self.stores[SLICE].up {
            self.slices.request(self.tuning.refit, now);
        }
    }

    /// Removes kept objects whose time is over, for the kinds for which the API server responds.
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
                "apiLossGrace ended and these objects are still missing or older in the API server: the gateway now \
                 uses the API server's state"
            );
            gone.iter().for_each(|key| self.object_changed(index, key, now));
            // The report about kept objects changes even if no object does.
            self.publication.changed(now);
        }
    }

    /// Publishes the changes, if all kinds are complete.
    fn publish_changes(&mut self, now: Instant) {
        let api_servers = self.connector.addresses();
        if self.objects.api_servers != *api_servers {
            self.objects.api_servers.clone_from(&api_servers);
            self.publication.changed(now);
        }
        let whole = self.is_listed();
        let from_disk = !whole
            && self.confirmed.is_some()
            && (self.publication.has_published()
                || self.failed
                || now.duration_since(self.started) >= self.tuning.boot_wait);
        if self.state.now.from_disk != from_disk {
            self.state.now.from_disk = from_disk;
            self.publication.changed(now);
            if from_disk {
                tracing::warn!(
                    "not all objects could be read from the API server yet; forwarding with the objects saved on disk"
                );
            }
        }
        let Some(seen) = self.publication.due_since().filter(|_| whole || from_disk) else { return };
        if !self.publication.has_published() {
            tracing::info!(
                services = self.objects.services.len(),
                endpoint_slices = self.objects.endpoint_slices.len(),
                from_disk,
                "the initial objects are loaded"
            );
        }
        // A GatewayClass of ours may be new.
        self.update_state(None);
        self.state.now.kept = kept_objects(&self.stores, &self.state.now.kept, now).into();
        let of_namespaces = self.faults.of_namespaces(locked(&self.slices.budget).faults());
        let report = self.report(&of_namespaces);
        self.publication.publish(|revision, version| SourceUpdate {
            revision,
            objects: Arc::new(self.objects.clone()),
            version,
            keeps_services: [SERVICE, GATEWAY].iter().any(|kind| self.stores[*kind].retain.kept().len() > 0),
            gateways_unknown: self.stores[GATEWAY].is_unknown(),
            report: Arc::new(report),
            faults_of_namespaces: Arc::new(of_namespaces),
            stale: Arc::from([]),
            refused: Arc::from([]),
            slices_left_out: locked(&self.slices.budget).count_not_kept(),
            seen,
        });
    }

    fn report(&self, of_namespaces: &BTreeMap<String, Report>) -> Report {
        let mut report = Report::new();
        of_namespaces.values().for_each(|one| report.merge(one));
        self.faults.of_cluster().for_each(|one| report.merge(one));
        faults_of_kinds(&self.stores, &self.objects).for_each(|fault| report.push(fault));
        for kept in &*self.state.now.kept {
            report.push(
                Diagnostic::warning(kept.to_string())
                    .accepting("an API server that has the latest version of these objects"),
            );
        }
        report
    }

    /// Updates the state of the source after a failed attempt, or when a watch is connected.
    fn update_state(&mut self, failure: Option<Failure>) {
        let connected = self.stores.iter().all(|store| store.up || store.forbidden.is_some());
        let lacks = faults_of_kinds(&self.stores, &self.objects).next().map(|fault| fault.what);
        self.state.set_connected(connected, failure, lacks);
    }

    /// Whether all kinds were listed, so that the objects may be saved.
    fn is_listed(&self) -> bool {
        self.stores.iter().all(|store| store.listed)
    }

    fn save(&mut self, now: Instant) {
        if self.is_listed() {
            let contents = || contents(&self.stores, &self.state.server, &self.state.now, now);
            self.saver.save(self.state.now.connected, now, contents);
        }
        self.state.now.unsaved = self.saver.failure();
    }

    /// Saves unsaved objects before the shutdown.
    fn finish(&mut self, done: oneshot::Sender<()>) {
        if self.is_listed() {
            let contents = || contents(&self.stores, &self.state.server, &self.state.now, Instant::now());
            self.saver.finish(self.state.now.connected, contents, done);
        }
    }

    /// When there is something to do even if no event arrives.
    fn due(&self) -> Option<Instant> {
        let now = Instant::now();
        let kept = self.stores.iter().filter(|store| store.up).filter_map(|store| {
            let left = store.retain.deadline()?.saturating_sub(store.clock(now));
            Some(now + left)
        });
        let boot = (!self.publication.has_published() && self.confirmed.is_some())
            .then(|| self.started + self.tuning.boot_wait);
        let save = self.is_listed().then(|| self.saver.due(self.state.now.connected)).flatten();
        let refit = self.slices.due().filter(|_| self.stores[SLICE].up);
        kept.chain(boot).chain(save).chain(refit).min()
    }
}

async fn sleep_until(due: Option<tokio::time::Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
