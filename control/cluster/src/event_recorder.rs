//! Writes events to the API server at a bounded rate; a repeated event increments the count of the first one.
//!
//! The name of an event object is a hash of its content. An event that is repeated, even after a restart or by another
//! leader, therefore finds its object and increments its count: `kubectl describe` shows one line for as long as the
//! API server keeps the object.
//!
//! Each object has a budget, so that one with many events doesn't crowd out the others. All objects share another
//! budget, which namespaces use in round-robin order ([`RoundRobin`]). Events over the budget are dropped and counted,
//! starting with the namespace that has the most. Nothing waits for an event, and the events of one namespace neither
//! delay nor drop those of another.
//!
//! `kube::runtime::events::Recorder` (kube-runtime 5.0.0) remembers events only in memory, so that every gateway and
//! every restart writes them again, and has neither budgets nor retries.
//!
//! An event is written only once while its cause lasts. If the API server temporarily doesn't accept it (429, 5xx,
//! timeout), it is retried ([`Retries`]) for as long as an API server would keep it. Retries are fair, too: when there
//! are too many, the namespace with the most loses the event that is due last.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as KubeEvent;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tidegate_model::fnv::{self, fnv1a};
use tidegate_source::kubernetes::Connector;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::counts::{Counts, EventEnded};
use super::event::{Event, Regarding, cut};
use super::request::{RequestError, with_client, within};
use super::round_robin::RoundRobin;
use super::token_bucket::TokenBucket;

/// The maximum number of queued events.
const WAITING_MAX: usize = 4096;
/// The budget of one object: a burst, and the interval at which it gains another event. The API server's own clients
/// use the same values.
const OBJECT_BURST: u32 = 25;
const OBJECT_INTERVAL: Duration = Duration::from_secs(300);
/// The budget of all objects: 20 events a second.
const BURST: u32 = 100;
const INTERVAL: Duration = Duration::from_millis(50);
/// The maximum number of events whose count is remembered.
const KNOWN_MAX: usize = 8192;
/// The maximum number of requests for an event that other gateways write at the same time.
const ATTEMPTS_MAX: usize = 4;
/// The maximum number of object budgets that are kept. Full ones are removed first.
const OBJECTS_MAX: usize = 8192;
/// The maximum number of events that wait for a retry.
const RETRIES_MAX: usize = 1024;
/// The pause before the first retry. It doubles with each attempt up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// How long an event is retried: an API server keeps events for an hour.
const RETRY_FOR: Duration = Duration::from_secs(3600);
/// `reportingController`.
pub(super) const CONTROLLER: &str = "tidegate.dev/gateway";

/// Accepts events and writes them in the background.
#[derive(Debug, Clone)]
pub(super) struct Recorder {
    waiting: Arc<Waiting>,
    counts: Arc<Counts>,
}

impl Recorder {
    /// A recorder, and the task that writes events until it is aborted.
    pub(super) fn new(
        connector: Arc<Connector>,
        instance: String,
        counts: Arc<Counts>,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let waiting = Arc::<Waiting>::default();
        let writer = Writer {
            connector,
            instance,
            counts: Arc::clone(&counts),
            limits: Limits::default(),
            known: HashMap::new(),
            retries: Retries::default(),
        };
        (Self { waiting: Arc::clone(&waiting), counts }, writer.run(waiting))
    }

    /// Queues an event. If the queue is full, an event of the namespace that has the most is dropped.
    pub(super) fn record(&self, event: Event) {
        if self.waiting.push(event).is_some() {
            self.counts.event(EventEnded::Dropped);
        }
    }
}

/// The queued events.
#[derive(Debug, Default)]
struct Waiting {
    events: Mutex<RoundRobin<Event>>,
    added: Notify,
}

impl Waiting {
    /// Adds an event. Returns the event that was dropped to limit the queue.
    fn push(&self, event: Event) -> Option<Event> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let namespace = event.regarding.key.namespace.clone();
        events.push(&namespace, event);
        let dropped = if events.len() > WAITING_MAX { events.drop_from_largest() } else { None };
        drop(events);
        self.added.notify_one();
        dropped
    }

    /// The next event.
    fn pop(&self) -> Option<Event> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let position = events.find(|_| true, |_| true)?;
        events.take(position)
    }

    /// Waits for the next event.
    async fn next(&self) -> Event {
        loop {
            // A notification between the check and the wait is not lost.
            match self.pop() {
                Some(event) => return event,
                None => self.added.notified().await,
            }
        }
    }
}

/// The budgets; pure.
#[derive(Debug)]
struct Limits {
    all: TokenBucket,
    /// By namespace and uid.
    objects: BTreeMap<(String, String), TokenBucket>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { all: TokenBucket::new(BURST, INTERVAL), objects: BTreeMap::new() }
    }
}

impl Limits {
    /// Takes one event from the object's budget, if possible.
    fn admits(&mut self, namespace: &str, uid: &str, now: Instant) -> bool {
        let object = (namespace.to_owned(), uid.to_owned());
        if !self.objects.contains_key(&object) && !self.has_space(namespace, now) {
            return false;
        }
        let new = || TokenBucket::new(OBJECT_BURST, OBJECT_INTERVAL);
        self.objects.entry(object).or_insert_with(new).take(now).is_ok()
    }

    /// Whether another object of the namespace can be remembered. If necessary, another namespace, the one with the
    /// most objects, loses one.
    fn has_space(&mut self, namespace: &str, now: Instant) -> bool {
        if self.objects.len() >= OBJECTS_MAX {
            self.objects.retain(|_, bucket| !bucket.is_full(now));
        }
        if self.objects.len() < OBJECTS_MAX {
            return true;
        }
        let all: Vec<_> = self.objects.keys().collect();
        let largest = all.chunk_by(|one, next| one.0 == next.0).max_by_key(|objects| objects.len());
        let Some(object) = largest.map(|objects| objects[0].clone()).filter(|(of, _)| of != namespace) else {
            return false;
        };
        self.objects.remove(&object);
        true
    }
}

struct Writer {
    connector: Arc<Connector>,
    instance: String,
    counts: Arc<Counts>,
    limits: Limits,
    /// Known events by name.
    known: HashMap<String, Known>,
    retries: Retries,
}

/// An event to be written.
#[derive(Debug, Clone)]
struct Due {
    event: Event,
    /// When it happened: for display, and by the local clock.
    happened: Timestamp,
    since: Instant,
    /// The pause before the next attempt.
    pause: Duration,
}

impl Due {
    fn new(event: Event) -> Self {
        Self { event, happened: Timestamp::now(), since: Instant::now(), pause: RETRY_MIN }
    }
}

/// Events to be retried, each with the time of the next attempt, in this order. Pure.
#[derive(Debug, Default)]
struct Retries(RoundRobin<(Instant, Due)>);

impl Retries {
    /// When the next event is due.
    fn due(&self) -> Option<Instant> {
        self.0.iter().map(|(at, _)| *at).min()
    }

    /// Takes a due event of the next namespace in round-robin order that has one.
    fn take(&mut self, now: Instant) -> Option<Due> {
        let position = self.0.find(|_| true, |(at, _)| *at <= now)?;
        self.0.take(position).map(|(_, due)| due)
    }

    /// Schedules a retry of a failed event after at least `wait`, unless the event is too old. Returns false if an
    /// event was lost: this one, or, because too many were waiting, the one that is due last in the largest namespace.
    fn schedule(&mut self, due: Due, wait: Duration, now: Instant) -> bool {
        if now.duration_since(due.since) >= RETRY_FOR {
            return false;
        }
        let at = now + due.pause.max(wait.min(RETRY_MAX));
        let due = Due { pause: (due.pause * 2).min(RETRY_MAX), ..due };
        let namespace = due.event.regarding.key.namespace.clone();
        self.0.insert_by_key(&namespace, (at, due), |(at, _)| *at);
        self.0.len() <= RETRIES_MAX || self.0.drop_from_largest().is_none()
    }
}

/// The minimum time before a retry; `None` if retrying is useless.
fn retry_after(error: &RequestError) -> Option<Duration> {
    match error.code() {
        Some(429) => Some(error.retry_after()),
        // The next client has different credentials.
        Some(401 | 408) => Some(Duration::ZERO),
        // Missing permissions, a namespace that is being deleted, or an invalid object.
        Some(400..=499) => None,
        _ => Some(Duration::ZERO),
    }
}

impl Writer {
    async fn run(mut self, waiting: Arc<Waiting>) {
        loop {
            let again = self.retries.due();
            let again = async {
                match again {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let due = tokio::select! {
                event = waiting.next() => {
                    let Regarding { key, uid, .. } = &event.regarding;
                    if !self.limits.admits(&key.namespace, uid, Instant::now()) {
                        self.counts.event(EventEnded::Dropped);
                        continue;
                    }
                    Due::new(event)
                }
                () = again => match self.retries.take(Instant::now()) {
                    Some(due) => due,
                    None => continue,
                },
            };
            while let Err(at) = self.limits.all.take(Instant::now()) {
                sleep_until(at).await;
            }
            match self.write(&due).await {
                Ok(()) => self.counts.event(EventEnded::Sent),
                Err(error) => {
                    let Event { reason, regarding, .. } = &due.event;
                    tracing::debug!(reason, object = %regarding.key, %error, "cannot write an event");
                    let wait = retry_after(&error);
                    if wait.is_none_or(|wait| !self.retries.schedule(due, wait, Instant::now())) {
                        self.counts.event(EventEnded::Failed);
                    }
                }
            }
        }
    }

    /// Writes the event, or increments the count of its series.
    async fn write(&mut self, due: &Due) -> Result<(), RequestError> {
        let connector = Arc::clone(&self.connector);
        with_client(&connector, |client| self.write_by(client, due)).await
    }

    async fn write_by(&mut self, client: Client, due: &Due) -> Result<(), RequestError> {
        let event = &due.event;
        let api: Api<KubeEvent> = Api::namespaced(client, namespace_of(event));
        let object = event_object(event, &self.instance, due.happened);
        let name = object.metadata.name.clone().unwrap_or_default();
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        // Other gateways may create, count or delete it at any time. More than a few collisions are an error.
        for _ in 0..ATTEMPTS_MAX {
            let response = match self.known.get(&name) {
                Some(known) => {
                    let patch = Patch::Merge(known.incremented());
                    within(api.patch(&name, &PatchParams::default(), &patch)).await
                }
                None => within(api.create(&PostParams::default(), &object)).await,
            };
            match response {
                Ok(written) => {
                    self.known.insert(name, Known::from(&written));
                    return Ok(());
                }
                // It has expired: events are deleted an hour after the last write.
                Err(error) if error.code() == Some(404) && self.known.remove(&name).is_some() => {}
                // It existed before this process started, or another gateway counted it.
                Err(error) if error.code() == Some(409) => match within(api.get(&name)).await {
                    Ok(there) => drop(self.known.insert(name.clone(), Known::from(&there))),
                    Err(error) if error.code() == Some(404) => drop(self.known.remove(&name)),
                    Err(error) => return Err(error),
                },
                Err(error) => return Err(error),
            }
        }
        Err(RequestError::Contested(name))
    }
}

/// An event as last read from the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    count: i32,
    version: Option<String>,
}

impl From<&KubeEvent> for Known {
    fn from(event: &KubeEvent) -> Self {
        let count = event.series.as_ref().map_or(1, |series| series.count);
        Self { count, version: event.metadata.resource_version.clone() }
    }
}

impl Known {
    /// The patch that increments the count, unless another gateway has done so.
    fn incremented(&self) -> serde_json::Value {
        let count = self.count.saturating_add(1);
        json!({
            "metadata": {"resourceVersion": self.version},
            "series": {"count": count, "lastObservedTime": MicroTime(Timestamp::now())},
        })
    }
}

/// The namespace of an event's object. Events about cluster-scoped objects are in `default`.
fn namespace_of(event: &Event) -> &str {
    let namespace = event.regarding.key.namespace.as_str();
    if namespace.is_empty() { "default" } else { namespace }
}

/// The event as an API object.
fn event_object(event: &Event, instance: &str, now: Timestamp) -> KubeEvent {
    let regarding = &event.regarding;
    let name = format!("{}.{:016x}", cut(&regarding.key.name, 200), hash(event));
    KubeEvent {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace_of(event).to_owned()),
            ..ObjectMeta::default()
        },
        action: Some("Reconcile".to_owned()),
        event_time: Some(MicroTime(now)),
        note: Some(event.note.clone()),
        reason: Some(event.reason.to_owned()),
        regarding: Some(ObjectReference {
            api_version: Some(regarding.api_version().to_owned()),
            kind: Some(regarding.kind.as_str().to_owned()),
            name: Some(regarding.key.name.clone()),
            namespace: Some(regarding.key.namespace.clone()).filter(|n| !n.is_empty()),
            uid: Some(regarding.uid.clone()),
            ..ObjectReference::default()
        }),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(cut(instance, 128)),
        type_: Some(event.event_type.as_str().to_owned()),
        ..KubeEvent::default()
    }
}

/// FNV-1a of the event's content. All gateways compute the same value, in every run.
fn hash(event: &Event) -> u64 {
    let parts = [event.event_type.as_str(), event.reason, &event.regarding.uid, &event.note];
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
    fnv1a(fnv::START, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reasons::event_reason;
    use tidegate_model::objects::ObjectKey;

    fn event(note: &str) -> Event {
        let key = ObjectKey::new("shop", "web");
        Event::new(Regarding::service(&key, "u1"), event_reason::IP_ALLOCATED, note)
    }

    #[test]
    fn an_event_has_the_fields_that_api_servers_and_kubectl_require() {
        let object = event_object(&event("Assigned IP 203.0.113.5"), "edge-1", Timestamp::UNIX_EPOCH);
        let regarding = object.regarding.clone().expect("it has an object");
        assert_eq!((regarding.uid.as_deref(), regarding.kind.as_deref()), (Some("u1"), Some("Service")));
        assert_eq!(object.metadata.namespace.as_deref(), Some("shop"));
        assert_eq!(object.reporting_instance.as_deref(), Some("edge-1"));
        assert!(object.event_time.is_some() && object.action.is_some());
        let again = event_object(&event("Assigned IP 203.0.113.5"), "edge-2", Timestamp::UNIX_EPOCH);
        assert_eq!(again.metadata.name, object.metadata.name, "also on another gateway");
        let other = event_object(&event("Assigned IP 203.0.113.6"), "edge-1", Timestamp::UNIX_EPOCH);
        assert_ne!(other.metadata.name, object.metadata.name);
    }

    fn event_of(namespace: &str, name: usize) -> Event {
        let key = ObjectKey::new(namespace, format!("s{name}"));
        let regarding = Regarding::service(&key, format!("u{name}"));
        Event::new(regarding, event_reason::IP_ALLOCATED, "x")
    }

    #[test]
    fn events_of_one_namespace_neither_delay_nor_drop_those_of_another() {
        let waiting = Waiting::default();
        let dropped = (0..3 * WAITING_MAX).filter_map(|n| waiting.push(event_of("noisy", n))).count();
        assert_eq!(dropped, 2 * WAITING_MAX);
        for n in 0..10 {
            let dropped = waiting.push(event_of("shop", n)).expect("the queue is full");
            assert_eq!(dropped.regarding.key.namespace, "noisy");
        }
        let next: Vec<Event> = std::iter::from_fn(|| waiting.pop()).take(20).collect();
        assert_eq!(next.iter().filter(|event| event.regarding.key.namespace == "shop").count(), 10);
    }

    #[test]
    fn too_many_objects_in_one_namespace_use_no_budget_of_another() {
        let now = Instant::now();
        let mut limits = Limits::default();
        let noisy = (0..OBJECTS_MAX + 100).filter(|n| limits.admits("noisy", &n.to_string(), now)).count();
        assert_eq!(noisy, OBJECTS_MAX);
        assert!((0..100).all(|n| limits.admits("shop", &n.to_string(), now)));
        assert_eq!(limits.objects.len(), OBJECTS_MAX);
    }

    #[test]
    fn a_rejected_event_is_retried_with_backoff_for_a_limited_time() {
        let start = Instant::now();
        let mut retries = Retries::default();
        assert!(retries.schedule(Due { since: start, ..Due::new(event("a")) }, Duration::ZERO, start));
        let (mut now, mut attempts) = (start, 0);
        while let Some(at) = retries.due() {
            assert!(at >= now + RETRY_MIN && at <= now + RETRY_MAX, "{:?} after {attempts}", at - now);
            now = at;
            let due = retries.take(now).expect("an event is due");
            attempts += 1;
            retries.schedule(due, Duration::ZERO, now);
        }
        let (least, most) = (RETRY_FOR, RETRY_FOR + 2 * RETRY_MAX);
        assert!((least..=most).contains(&(now - start)) && attempts < 80, "{attempts} in {:?}", now - start);
        let wait = Duration::from_secs(7);
        assert!(retries.schedule(Due::new(event("b")), wait, start) && retries.due() == Some(start + wait));
        let all = (0..2 * RETRIES_MAX).filter(|_| retries.schedule(Due::new(event("c")), wait, start));
        assert_eq!(all.count(), RETRIES_MAX - 1);
    }

    #[test]
    fn retries_of_one_namespace_neither_drop_nor_delay_those_of_another() {
        let now = Instant::now();
        let mut retries = Retries::default();
        let schedule = |retries: &mut Retries, namespace: &str, n| {
            retries.schedule(Due { since: now, ..Due::new(event_of(namespace, n)) }, Duration::ZERO, now)
        };
        assert_eq!((0..2 * RETRIES_MAX).filter(|n| schedule(&mut retries, "noisy", *n)).count(), RETRIES_MAX);
        // Each new event displaces one of the largest namespace.
        assert!((0..100).all(|n| !schedule(&mut retries, "shop", n)));
        let count = |retries: &Retries, namespace: &str| {
            retries.0.iter().filter(|(_, due)| due.event.regarding.key.namespace == namespace).count()
        };
        assert_eq!(
            (count(&retries, "shop"), count(&retries, "noisy"), retries.0.len()),
            (100, RETRIES_MAX - 100, RETRIES_MAX)
        );
        assert!((0..3 * RETRIES_MAX).all(|n| !schedule(&mut retries, "noisy", n)));
        assert_eq!((count(&retries, "shop"), retries.0.len()), (100, RETRIES_MAX));
        assert!((0..RETRIES_MAX).all(|n| !schedule(&mut retries, "greedy", n)));
        assert_eq!(count(&retries, "shop"), 100);
        assert!(count(&retries, "greedy").abs_diff(count(&retries, "noisy")) <= 1, "equal shares");
        // Namespaces are retried in round-robin order.
        let later = now + RETRY_MAX;
        let first: Vec<Due> = std::iter::from_fn(|| retries.take(later)).take(30).collect();
        assert_eq!(first.iter().filter(|due| due.event.regarding.key.namespace == "shop").count(), 10);
        while retries.take(later).is_some() {}
        assert_eq!((retries.0.len(), retries.0.iter().count(), retries.due()), (0, 0, None));
    }

    #[test]
    fn one_noisy_object_does_not_use_the_budget_of_another() {
        let start = Instant::now();
        let mut limits = Limits::default();
        let admitted =
            |limits: &mut Limits, uid: &str, n| (0..n).filter(|_| limits.admits("shop", uid, start)).count();
        assert_eq!(admitted(&mut limits, "noisy", 100), 25);
        assert_eq!(admitted(&mut limits, "quiet", 3), 3);
        assert!(limits.admits("shop", "noisy", start + OBJECT_INTERVAL));
        assert!(!limits.admits("shop", "noisy", start + OBJECT_INTERVAL));
    }
}
