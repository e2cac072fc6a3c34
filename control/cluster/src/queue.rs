//! Queues the writes of the newest plan and releases them at a bounded rate, with pauses after failures.
//!
//! Pure: time is an argument, and `writer` sends the requests. Each plan replaces the previous one, so that no outdated
//! write is sent. A write that the API server accepted is not sent again until the object is seen to have changed.
//!
//! Namespaces are served in round-robin order ([`RoundRobin`]): the Services of one namespace, however many there are
//! and however often they change, don't delay the status of those in another. Within a namespace, writes have the order
//! of the plan.
//!
//! Invariant: at most one request per target is in progress.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_model::objects::gateway_api::{Gateway, GatewayClass, ListenerSet, Route};
use tidegate_model::objects::{AddressPool, ObjectKey, Objects, Protocol, Service};
use tokio::time::Instant;

use super::plan::{Write, WrittenStatus};
use super::round_robin::RoundRobin;
use super::token_bucket::TokenBucket;

/// The initial burst of writes, and the initial interval after it: 50 a second.
const BURST: u32 = 100;
const INTERVAL: Duration = Duration::from_millis(20);
/// While responses arrive within [`QUICK`], the interval shrinks to this, 500 writes a second. It returns to the
/// initial value as soon as the API server is slow, refuses (429) or fails.
const INTERVAL_MIN: Duration = Duration::from_millis(2);
/// Each quick response shortens the interval by one part in this many.
const INTERVAL_STEP: u32 = 200;
const QUICK: Duration = Duration::from_millis(100);
/// The maximum number of requests in progress.
const IN_PROGRESS_MAX: usize = 16;
/// The maximum number per namespace: if a webhook slows down the writes of one namespace, the writes of others
/// continue.
const IN_PROGRESS_PER_NAMESPACE_MAX: usize = IN_PROGRESS_MAX / 4 * 3;
/// The minimum pause between two writes of a pool's status, whose counts change with each new Service.
const POOL_PAUSE: Duration = Duration::from_secs(3);
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The longest `Retry-After` that is respected.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// The part of an object that a write changes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Target {
    Finalizer(ObjectKey),
    Status(ObjectKey),
    Pool(String),
    PoolFinalizer(String),
    /// The status of an object of the Gateway API, by its kind and key.
    GatewayApi(&'static str, ObjectKey),
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Finalizer(service) => match service.gateway_name() {
                Some(name) => write!(f, "the finalizer of Gateway {}/{name}", service.namespace),
                None => write!(f, "the finalizer of Service {service}"),
            },
            Self::Status(service) => write!(f, "the status of Service {service}"),
            Self::Pool(pool) => write!(f, "the status of AddressPool {pool}"),
            Self::PoolFinalizer(pool) => write!(f, "the finalizer of AddressPool {pool}"),
            Self::GatewayApi(kind, object) => write!(f, "the status of {kind} {object}"),
        }
    }
}

impl Target {
    fn of(write: &Write) -> Self {
        match write {
            Write::Finalizer { service, .. } => Self::Finalizer(service.clone()),
            Write::ServiceStatus { service, .. } => Self::Status(service.clone()),
            Write::PoolStatus { pool, .. } => Self::Pool(pool.clone()),
            Write::PoolFinalizer { pool, .. } => Self::PoolFinalizer(pool.clone()),
            Write::GatewayApiStatus { object, status, .. } => Self::GatewayApi(status.kind(), object.clone()),
        }
    }

    /// The namespace, which determines the round-robin share; empty for cluster-scoped objects.
    pub(super) fn namespace(&self) -> &str {
        match self {
            Self::Finalizer(object) | Self::Status(object) | Self::GatewayApi(_, object) => &object.namespace,
            Self::Pool(_) | Self::PoolFinalizer(_) => "",
        }
    }
}

/// The object that a write was planned from, compared by identity.
#[derive(Debug, Clone)]
pub(super) enum PlannedFrom {
    Service(Arc<Service>),
    Pool(Arc<AddressPool>),
    GatewayClass(Arc<GatewayClass>),
    Gateway(Arc<Gateway>),
    ListenerSet(Arc<ListenerSet>),
    Route(Arc<Route>),
}

impl PlannedFrom {
    /// The object that a write changes; `None` if it no longer exists.
    pub(super) fn of(write: &Write, objects: &Objects) -> Option<Self> {
        Some(match write {
            Write::Finalizer { service, .. } | Write::ServiceStatus { service, .. } => {
                match service.gateway_name() {
                    // The Service of a Gateway also changes with its routes.
                    Some(name) => {
                        let key = ObjectKey::new(service.namespace.as_str(), name);
                        Self::Gateway(objects.gateways.get(&key)?.clone())
                    }
                    None => Self::Service(objects.services.get(service)?.clone()),
                }
            }
            Write::PoolStatus { pool, .. } | Write::PoolFinalizer { pool, .. } => {
                Self::Pool(objects.address_pools.get(pool)?.clone())
            }
            Write::GatewayApiStatus { object, status, .. } => match status {
                WrittenStatus::GatewayClass(_) => {
                    Self::GatewayClass(objects.gateway_classes.get(&object.name)?.clone())
                }
                WrittenStatus::Gateway(_) => Self::Gateway(objects.gateways.get(object)?.clone()),
                WrittenStatus::ListenerSet(_) => {
                    Self::ListenerSet(objects.listener_sets.get(object)?.clone())
                }
                WrittenStatus::Route(Protocol::Udp, _) => {
                    Self::Route(objects.udp_routes.get(object)?.clone())
                }
                WrittenStatus::Route(..) => Self::Route(objects.tcp_routes.get(object)?.clone()),
            },
        })
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Service(one), Self::Service(other)) => Arc::ptr_eq(one, other),
            (Self::Pool(one), Self::Pool(other)) => Arc::ptr_eq(one, other),
            (Self::GatewayClass(one), Self::GatewayClass(other)) => Arc::ptr_eq(one, other),
            (Self::Gateway(one), Self::Gateway(other)) => Arc::ptr_eq(one, other),
            (Self::ListenerSet(one), Self::ListenerSet(other)) => Arc::ptr_eq(one, other),
            (Self::Route(one), Self::Route(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

/// A write and the object that it was planned from.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) write: Write,
    pub(super) seen: PlannedFrom,
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The API server accepted it.
    Done,
    /// The object was removed or replaced: do nothing until that is seen.
    Superseded,
    /// 429: send no requests for this time.
    Throttled(Duration),
    /// The request is retried after a pause.
    Failed,
}

/// The next action.
#[derive(Debug)]
pub(super) enum Next {
    /// Send this.
    Send(Target, Box<Write>),
    /// Wait until this time.
    At(Instant),
    /// Wait for a change.
    Nothing,
}

/// The queue of writes.
#[derive(Debug)]
pub(super) struct Queue {
    order: RoundRobin<Target>,
    jobs: BTreeMap<Target, Job>,
    /// The requests in progress, each with the time when it was sent.
    in_progress: BTreeMap<Target, (Job, Instant)>,
    /// The requests in progress that are still planned.
    still_planned: BTreeSet<Target>,
    done: BTreeMap<Target, Job>,
    /// Pools whose status was just written, each with the earliest time of the next write.
    pool_pauses: BTreeMap<Target, Instant>,
    /// The earliest time of the next attempt, and the pause after that.
    pauses: BTreeMap<Target, (Instant, Duration)>,
    budget: TokenBucket,
    interval: Duration,
    throttled_until: Option<Instant>,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            order: RoundRobin::default(),
            jobs: BTreeMap::new(),
            in_progress: BTreeMap::new(),
            still_planned: BTreeSet::new(),
            done: BTreeMap::new(),
            pool_pauses: BTreeMap::new(),
            pauses: BTreeMap::new(),
            budget: TokenBucket::new(BURST, INTERVAL),
            interval: INTERVAL,
            throttled_until: None,
        }
    }
}

impl Queue {
    /// Replaces the last plan with a new one.
    pub(super) fn replace(&mut self, jobs: impl IntoIterator<Item = Job>) {
        self.order.clear();
        self.jobs.clear();
        self.still_planned.clear();
        let mut planned = BTreeSet::new();
        for job in jobs {
            let target = Target::of(&job.write);
            planned.insert(target.clone());
            let is_sent = |sent: Option<&Job>| {
                sent.is_some_and(|sent| sent.write == job.write && sent.seen.is_same(&job.seen))
            };
            if is_sent(self.in_progress.get(&target).map(|(job, _)| job)) {
                self.still_planned.insert(target);
                continue;
            }
            if is_sent(self.done.get(&target)) {
                continue;
            }
            self.order.push(target.namespace(), target.clone());
            self.jobs.insert(target, job);
        }
        self.done.retain(|target, _| planned.contains(target));
        self.pauses.retain(|target, _| planned.contains(target));
    }

    /// Removes all writes, because the leadership was lost.
    pub(super) fn clear(&mut self) {
        self.replace([]);
    }

    /// The number of queued writes.
    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// The next action.
    pub(super) fn next(&mut self, now: Instant) -> Next {
        if self.in_progress.len() >= IN_PROGRESS_MAX {
            return Next::Nothing;
        }
        if let Some(until) = self.throttled_until.filter(|until| now < *until) {
            return if self.jobs.is_empty() { Next::Nothing } else { Next::At(until) };
        }
        let mut earliest: Option<Instant> = None;
        let Self { order, in_progress, pauses, pool_pauses, .. } = &*self;
        let may_send = |namespace: &str| {
            let of_namespace = in_progress.keys().filter(|target| target.namespace() == namespace);
            of_namespace.count() < IN_PROGRESS_PER_NAMESPACE_MAX
        };
        let found = order.find(may_send, |target| {
            // A request in progress with an older version ends first.
            if in_progress.contains_key(target) {
                return false;
            }
            let pause = pauses.get(target).map(|(not_before, _)| not_before);
            let not_before = pause.into_iter().chain(pool_pauses.get(target)).max();
            let Some(not_before) = not_before.filter(|not_before| now < **not_before) else { return true };
            earliest = Some(earliest.map_or(*not_before, |e| e.min(*not_before)));
            false
        });
        let Some(position) = found else { return earliest.map_or(Next::Nothing, Next::At) };
        if let Err(at) = self.budget.take(now) {
            return Next::At(at);
        }
        let target = self.order.take(position).expect("find returned it");
        let job = self.jobs.remove(&target).expect("each target in the order has a job");
        self.in_progress.insert(target.clone(), (job.clone(), now));
        self.still_planned.insert(target.clone());
        Next::Send(target, Box::new(job.write))
    }

    /// Records the end of a request.
    pub(super) fn ended(&mut self, target: &Target, outcome: &Outcome, now: Instant) {
        let Some((job, sent)) = self.in_progress.remove(target) else { return };
        let still_planned = self.still_planned.remove(target);
        self.adjust_rate(outcome, now.duration_since(sent), now);
        match outcome {
            Outcome::Done | Outcome::Superseded => {
                self.pauses.remove(target);
                if matches!(target, Target::Pool(_)) {
                    self.pool_pauses.retain(|_, not_before| now < *not_before);
                    self.pool_pauses.insert(target.clone(), now + POOL_PAUSE);
                }
                self.done.insert(target.clone(), job);
                return;
            }
            Outcome::Throttled(wait) => self.throttled_until = Some(now + (*wait).min(RETRY_AFTER_MAX)),
            Outcome::Failed => {
                let pause = self.pauses.get(target).map_or(PAUSE_MIN, |(_, next)| *next);
                self.pauses.insert(target.clone(), (now + pause, (pause * 2).min(PAUSE_MAX)));
            }
        }
        // Retry the write unless a newer plan has replaced or dropped it, so that no outdated write is sent.
        if still_planned {
            self.order.push(target.namespace(), target.clone());
            self.jobs.insert(target.clone(), job);
        }
    }
}

impl Queue {
    /// Increases the rate while the API server keeps up.
    fn adjust_rate(&mut self, outcome: &Outcome, took: Duration, now: Instant) {
        let keeps_up = matches!(outcome, Outcome::Done | Outcome::Superseded) && took < QUICK;
        let interval = match keeps_up {
            true => (self.interval - self.interval / INTERVAL_STEP).max(INTERVAL_MIN),
            false => INTERVAL,
        };
        if interval != self.interval {
            self.interval = interval;
            self.budget.set_interval(interval, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use tidegate_model::objects::Metadata;

    fn job(n: usize, present: bool) -> Job {
        // From several namespaces, because each has its own limit on requests in progress.
        job_in(&format!("n{}", n % 10), n, present)
    }

    fn job_in(namespace: &str, n: usize, present: bool) -> Job {
        let key = ObjectKey::new(namespace, format!("s{n}"));
        let seen = PlannedFrom::Service(Arc::new(Service::new(Metadata::new(key.clone()))));
        Job { write: Write::Finalizer { service: key, uid: "u".into(), present }, seen }
    }

    fn send(queue: &mut Queue, now: Instant) -> Option<Target> {
        match queue.next(now) {
            Next::Send(target, _) => Some(target),
            Next::At(_) | Next::Nothing => None,
        }
    }

    /// The number of writes sent in `seconds` to an API server that responds with `with` after `outcome`.
    fn sent_in(seconds: u64, outcome: Duration, with: &Outcome) -> usize {
        let start = Instant::now();
        let mut queue = Queue::default();
        queue.replace((0..10_000).map(|n| job(n, true)));
        let (mut now, mut sent, mut in_progress) = (start, 0, VecDeque::new());
        while now < start + Duration::from_secs(seconds) {
            let next = match queue.next(now) {
                Next::Send(target, _) => {
                    sent += 1;
                    in_progress.push_back((now + outcome, target));
                    continue;
                }
                Next::At(at) => Some(at),
                Next::Nothing => None,
            };
            let answered = in_progress.front().map(|(at, _)| *at);
            let Some(at) = next.into_iter().chain(answered).min() else { break };
            now = at;
            if answered == Some(at)
                && let Some((_, target)) = in_progress.pop_front()
            {
                queue.ended(&target, with, now);
            }
        }
        sent
    }

    #[test]
    fn the_first_sync_writes_as_fast_as_the_api_server_allows() {
        let quick = sent_in(10, Duration::from_millis(5), &Outcome::Done);
        assert!((2_000..=5_000).contains(&quick), "{quick} in ten seconds");
        let slow = sent_in(10, Duration::from_millis(150), &Outcome::Done);
        assert!((500..=610).contains(&slow), "{slow} in ten seconds");
        let failing = sent_in(10, Duration::from_millis(5), &Outcome::Failed);
        assert!(failing <= 610, "{failing} in ten seconds");
    }

    #[test]
    fn requests_in_progress_are_bounded_and_one_per_target() {
        let now = Instant::now();
        let mut queue = Queue::default();
        queue.replace((0..20).map(|n| job(n, true)));
        let sent: Vec<Target> = std::iter::from_fn(|| send(&mut queue, now)).collect();
        assert_eq!(sent.len(), IN_PROGRESS_MAX);
        // A newer plan for a write in progress waits until that write ends.
        queue.replace([job(0, false)]);
        for target in &sent[1..] {
            queue.ended(target, &Outcome::Done, now);
        }
        assert_eq!(send(&mut queue, now), None);
        queue.ended(&sent[0], &Outcome::Done, now);
        assert_eq!(send(&mut queue, now), Some(sent[0].clone()));
    }

    #[test]
    fn many_changing_services_of_one_namespace_do_not_delay_another() {
        let start = Instant::now();
        let mut queue = Queue::default();
        let mut sent = Vec::new();
        // Each of ten thousand Services changes before each plan, and their releases are more urgent than the requests
        // of the other namespace.
        for step in 0..20_u64 {
            let now = start + Duration::from_millis(100 * step);
            let restless = (0..10_000).map(|n| job_in("a", n, false));
            queue.replace(restless.chain([job_in("shop", 0, true)]));
            while let Some(target) = send(&mut queue, now) {
                sent.push(target.namespace().to_owned());
                queue.ended(&target, &Outcome::Done, now);
            }
        }
        let first = sent.iter().position(|namespace| namespace == "shop");
        assert!(first.is_some_and(|at| at < 2), "{first:?} of {}", sent.len());
    }

    #[test]
    fn requests_without_a_response_in_one_namespace_do_not_block_another() {
        let now = Instant::now();
        let mut queue = Queue::default();
        queue.replace((0..100).map(|n| job_in("slow", n, true)));
        let slow = std::iter::from_fn(|| send(&mut queue, now)).count();
        assert_eq!(slow, IN_PROGRESS_PER_NAMESPACE_MAX);
        queue.replace((0..100).map(|n| job_in("slow", n, true)).chain([job_in("shop", 0, true)]));
        let next = send(&mut queue, now).expect("the other namespace may send");
        assert_eq!(next.namespace(), "shop");
    }

    #[test]
    fn an_accepted_write_is_not_sent_again_until_the_object_changes() {
        let now = Instant::now();
        let mut queue = Queue::default();
        let planned = job(1, true);
        queue.replace([planned.clone()]);
        let target = send(&mut queue, now).expect("a write is planned");
        queue.replace([planned.clone()]);
        assert_eq!(send(&mut queue, now), None, "under way");
        queue.ended(&target, &Outcome::Done, now);
        queue.replace([planned]);
        assert_eq!(send(&mut queue, now), None, "done, but not seen yet");
        queue.replace([job(1, true)]);
        assert_eq!(send(&mut queue, now), Some(target), "the object changed, but not as written");
    }

    #[test]
    fn the_status_of_a_pool_is_written_immediately_and_then_rate_limited() {
        let start = Instant::now();
        let mut queue = Queue::default();
        let mut sent = Vec::new();
        for step in 0..100_u64 {
            let now = start + Duration::from_millis(200 * step);
            let pool = tidegate_model::objects::AddressPool {
                meta: Metadata::new(ObjectKey::new("", "public")),
                pool: tidegate_model::objects::Pool::new("public", Vec::new()),
                generation: 1,
                is_finalized_by_us: false,
                status: Default::default(),
                faults: Vec::new(),
            };
            let status = crate::crd::AddressPoolStatus {
                used: i64::try_from(step).expect("a small number"),
                ..Default::default()
            };
            let write = Write::PoolStatus { pool: "public".into(), status };
            queue.replace([Job { write, seen: PlannedFrom::Pool(Arc::new(pool)) }]);
            while let Some(target) = send(&mut queue, now) {
                sent.push(step);
                queue.ended(&target, &Outcome::Done, now);
            }
        }
        assert_eq!(sent.first(), Some(&0));
        assert!((6..=8).contains(&sent.len()), "in twenty seconds: {sent:?}");
    }

    #[test]
    fn pauses_after_failures_grow_and_retries_never_end() {
        let mut now = Instant::now();
        let mut queue = Queue::default();
        queue.replace([job(1, true)]);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let target = send(&mut queue, now).expect("a retry is due");
            queue.ended(&target, &Outcome::Failed, now);
            let Next::At(at) = queue.next(now) else { panic!("it waits") };
            pauses.push((at - now).as_secs());
            now = at;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    }

    #[test]
    fn a_failed_write_that_is_no_longer_planned_is_not_retried() {
        let now = Instant::now();
        let mut queue = Queue::default();
        for newer in [vec![], vec![job(1, false)]] {
            queue.replace([job(1, true)]);
            let target = send(&mut queue, now).expect("a write is due");
            queue.replace(newer.clone());
            queue.ended(&target, &Outcome::Failed, now);
            assert_eq!(queue.len(), newer.len(), "{newer:?}");
            assert!(queue.jobs.values().all(|job| job.write == newer[0].write));
            queue.clear();
        }
    }

    #[test]
    fn a_throttled_queue_is_silent_for_the_requested_time() {
        let now = Instant::now();
        let mut queue = Queue::default();
        queue.replace((0..3).map(|n| job(n, true)));
        let target = send(&mut queue, now).expect("a write is due");
        queue.ended(&target, &Outcome::Throttled(Duration::from_secs(7)), now);
        assert!(matches!(queue.next(now), Next::At(at) if at == now + Duration::from_secs(7)));
        assert!(send(&mut queue, now + Duration::from_secs(7)).is_some());
        queue.clear();
        assert_eq!(queue.len(), 0);
    }
}
