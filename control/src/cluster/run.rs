//! The task that writes: takes the newest round, plans, sends, and plans again with whatever changes.
//!
//! The daemon starts a [`ClusterWriter`], offers it each round, and hears from it who decides on addresses. Nothing it
//! does is waited for: rounds are handed over in a cell that holds the newest, and the end has a limit.
//!
//! Invariant: the lead is looked at before every single write, and a plan of a gateway that does not lead has none.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{Api, ListParams, Patch, PatchParams};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use super::counts::{Counts, Ended};
use super::crd::{GatewayStatus, GatewayStatusStatus};
use super::elect::{self, Leadership};
use super::event::{Event, EventType, Regarding, reason};
use super::peers::Peers;
use super::plan::{Identity, Memory, Observation, Plan, Situation, Write, gateway_status, plan};
use super::queue::{Answer, Job, Next, Queue, Seen, Target};
use super::record::Recorder;
use super::request::{self, ANSWER_MAX, RequestError, within};
use crate::model::ObjectKey;
use crate::pools::{Authority, FIELD_MANAGER};
use crate::source::SourceState;
use crate::source::kubernetes::Connector;

/// A status without news is written this often.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// No status of a gateway is written sooner after the last one.
const STATUS_MIN: Duration = Duration::from_secs(1);
/// The other gateways are looked at this often,
const PEERS: Duration = Duration::from_secs(10);
/// and while something waits for them.
const PEERS_URGENT: Duration = Duration::from_secs(1);
/// Plans are made no more often than this.
const SETTLE: Duration = Duration::from_millis(100);
/// Longest farewell.
const LEAVE_MAX: Duration = Duration::from_millis(1500);

/// Writes to a cluster until it is dropped or leaves.
#[derive(Debug)]
pub struct ClusterWriter {
    observed: watch::Sender<Option<Observation>>,
    authority: watch::Receiver<Authority>,
    ends: watch::Sender<bool>,
    counts: Arc<Counts>,
    ended: watch::Receiver<bool>,
    tasks: Vec<AbortHandle>,
}

impl ClusterWriter {
    /// Begins to take part in the election and to write, on the runtime that this is called on. `name` is the
    /// gateway's, `namespace` that of the lease; `source` tells whether the API server is heard.
    ///
    /// # Panics
    /// Outside of a Tokio runtime with time and I/O.
    #[must_use]
    pub fn start(
        connector: &Arc<Connector>,
        name: &str,
        node: Option<&str>,
        namespace: &str,
        source: watch::Receiver<SourceState>,
    ) -> Self {
        let identity =
            Identity { name: name.to_owned(), instance: instance(), node: node.map(str::to_owned) };
        let counts = Arc::<Counts>::default();
        let (observed, observations) = watch::channel(None);
        let (decides, authority) = watch::channel(Authority::Follows);
        let (ends, leaves) = watch::channel(false);
        let (is_over, ended) = watch::channel(false);
        let (leading, leadership) = watch::channel(Leadership::default());
        let (recorder, recording) =
            Recorder::new(Arc::clone(connector), identity.name.clone(), Arc::clone(&counts));
        let holder = format!("{}_{}", identity.name, identity.instance);
        let election =
            elect::run(Arc::clone(connector), namespace.to_owned(), holder, leading, leaves.clone());
        let writer = Writer {
            connector: Arc::clone(connector),
            identity,
            counts: Arc::clone(&counts),
            recorder,
            observations,
            source,
            leadership,
            led: false,
            leaves,
            decides,
            memory: Memory::default(),
            queue: Queue::default(),
            peers: None,
            under_way: JoinSet::new(),
            plan_due: None,
            plan_not_before: Instant::now(),
            plan_again: None,
            waits_for_peers: false,
            look_at: Instant::now(),
            is_looking: false,
            look_error: None,
            status: OwnStatus::default(),
        };
        let writing = async move {
            // The lease is given back when nothing is written any more.
            tokio::join!(writer.run(), election);
            is_over.send_replace(true);
        };
        let tasks = vec![tokio::spawn(recording).abort_handle(), tokio::spawn(writing).abort_handle()];
        Self { observed, authority, ends, counts, ended, tasks }
    }

    /// Hands over a round. Never waits.
    pub fn offer(&self, observation: Observation) {
        self.observed.send_replace(Some(observation));
    }

    /// Who decides on addresses; changes with the election and with what other gateways serve.
    #[must_use]
    pub fn authority(&self) -> watch::Receiver<Authority> {
        self.authority.clone()
    }

    /// What the writing came to.
    #[must_use]
    pub fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    /// Says goodbye: no more writes, the status of this gateway says so, the lease is given back. Whatever the API
    /// server does, this ends within 1.5 s.
    pub async fn leave(&self) {
        self.ends.send_replace(true);
        let mut ended = self.ended.clone();
        // Where it takes longer, the lease runs out by itself.
        let _ = timeout(LEAVE_MAX, ended.wait_for(|over| *over)).await;
    }
}

impl Drop for ClusterWriter {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// A word for this run, unlike that of any other.
fn instance() -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("{:016x}", RandomState::new().hash_one(std::process::id()))
}

/// What is under way.
enum Done {
    Write(Target, String, Result<(), RequestError>),
    Peers(Result<Vec<GatewayStatus>, RequestError>),
    Status(Box<GatewayStatusStatus>, Result<(), RequestError>),
}

/// This gateway's own `GatewayStatus`.
#[derive(Default)]
struct OwnStatus {
    /// As last written.
    written: GatewayStatusStatus,
    /// Whether the object itself is known to be there.
    exists: bool,
    is_under_way: bool,
    due: Option<Instant>,
    last: Option<Instant>,
    failures: u32,
}

struct Writer {
    connector: Arc<Connector>,
    identity: Identity,
    counts: Arc<Counts>,
    recorder: Recorder,
    observations: watch::Receiver<Option<Observation>>,
    source: watch::Receiver<SourceState>,
    leadership: watch::Receiver<Leadership>,
    /// Whether we led when we last looked.
    led: bool,
    leaves: watch::Receiver<bool>,
    decides: watch::Sender<Authority>,
    memory: Memory,
    queue: Queue,
    /// `None` until the API server told who there is.
    peers: Option<Peers>,
    under_way: JoinSet<Done>,
    /// When the next plan is to be made.
    plan_due: Option<Instant>,
    plan_not_before: Instant,
    plan_again: Option<Instant>,
    waits_for_peers: bool,
    look_at: Instant,
    is_looking: bool,
    /// Why the last look failed, until another fails otherwise.
    look_error: Option<String>,
    status: OwnStatus,
}

impl Writer {
    async fn run(mut self) {
        loop {
            let wake = self.work();
            tokio::select! {
                biased;
                _ = self.leaves.changed() => break,
                Ok(()) = self.observations.changed() => self.plan_soon(),
                Ok(()) = self.leadership.changed() => self.plan_soon(),
                Some(done) = self.under_way.join_next() => match done {
                    Ok(done) => self.done(done),
                    Err(panic) => tracing::error!("a request to the API server ended early: {panic}"),
                },
                () = sleep_until(wake) => {}
            }
        }
        self.queue.clear();
        self.counts.stands(false, 0);
        self.farewell().await;
    }

    /// Does all that can be done now, and says when there is more.
    fn work(&mut self) -> Instant {
        let now = Instant::now();
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.plan_due) || is_due(self.plan_again) {
            self.plan(now);
        }
        let leads = self.leads(now);
        if leads != self.led {
            self.led = leads;
            self.plan(now);
        }
        if !leads {
            self.queue.clear();
        }
        if self.look_at <= now && !self.is_looking {
            self.look(now);
        }
        let next = if leads { self.send_all(now) } else { None };
        self.heartbeat(now);
        self.counts.stands(leads, self.queue.len());
        let until = self.leadership.borrow().until.filter(|until| leads && *until > now);
        let look = (!self.is_looking).then_some(self.look_at);
        let status = self.status.due.filter(|_| !self.status.is_under_way);
        let all = [self.plan_due, self.plan_again, next, until, look, status];
        let earliest = all.into_iter().flatten().filter(|at| *at > now).min();
        earliest.unwrap_or(now + HEARTBEAT)
    }

    /// Whether we lead, and know enough to.
    fn leads(&self, now: Instant) -> bool {
        self.peers.is_some() && self.leadership.borrow().leads(now)
    }

    /// The newest round, and how the source gets on now.
    fn observation(&self) -> Option<Observation> {
        let observation = self.observations.borrow().clone()?;
        let source_connected = self.source.borrow().connected;
        Some(Observation { source_connected, ..observation })
    }

    /// Plans soon, and not so often that it costs more than a twentieth of the time.
    fn plan_soon(&mut self) {
        let soon = Instant::now() + SETTLE;
        self.plan_due.get_or_insert(soon.max(self.plan_not_before));
    }

    fn plan(&mut self, now: Instant) {
        (self.plan_due, self.plan_again) = (None, None);
        let leads = self.leads(now);
        let peers = self.peers.as_ref().map(|peers| peers.at(now)).unwrap_or_default();
        let withheld: BTreeSet<IpAddr> = peers
            .iter()
            .filter(|peer| peer.live && peer.name != self.identity.name)
            .flat_map(|peer| peer.vips.iter().copied())
            .collect();
        let authority = if leads { Authority::Decides { withheld } } else { Authority::Follows };
        self.decides.send_if_modified(|before| {
            let is_new = *before != authority;
            *before = authority;
            is_new
        });
        let Some(observation) = self.observation() else { return };
        let wall = Timestamp::now();
        let situation = Situation {
            observation: &observation,
            identity: &self.identity,
            leads,
            peers: &peers,
            now: wall,
        };
        let Plan { writes, events, again_at, waits_for_peers } = plan(&situation, &mut self.memory);
        let status = gateway_status(&situation, &self.status.written);
        let jobs = writes.into_iter().filter_map(|write| {
            let seen = match &write {
                Write::Finalizer { service, .. } | Write::ServiceStatus { service, .. } => {
                    Seen::Service(observation.objects.services.get(service)?.clone())
                }
                Write::PoolStatus { pool, .. } => {
                    Seen::Pool(observation.objects.address_pools.get(pool)?.clone())
                }
            };
            Some(Job { write, seen })
        });
        self.queue.replace(jobs);
        events.into_iter().for_each(|event| self.recorder.record(event));
        self.plan_again = again_at.map(|at| {
            let wait = Duration::try_from(at.duration_since(wall)).unwrap_or_default();
            now + wait.max(SETTLE)
        });
        self.waits_for_peers = waits_for_peers;
        if waits_for_peers && leads {
            self.look_at = self.look_at.min(now + PEERS_URGENT);
        }
        self.plan_not_before = now + now.elapsed() * 20;
        if status != self.status.written {
            let soonest = self.status.last.map_or(now, |last| last + STATUS_MIN);
            self.status.due = Some(self.status.due.map_or(soonest, |due| due.min(soonest)));
        }
    }

    /// Sends what may be sent now, and says when there is more.
    fn send_all(&mut self, now: Instant) -> Option<Instant> {
        loop {
            match self.queue.next(now) {
                Next::Send(target, write) => self.send(target, write),
                Next::At(at) => return Some(at),
                Next::Nothing => return None,
            }
        }
    }

    fn send(&mut self, target: Target, write: Write) {
        let name = match &write {
            Write::Finalizer { service, .. } => format!("the finalizer of Service {service}"),
            Write::ServiceStatus { service, .. } => format!("the status of Service {service}"),
            Write::PoolStatus { pool, .. } => format!("the status of AddressPool {pool}"),
        };
        let (connector, leadership) = (Arc::clone(&self.connector), self.leadership.clone());
        self.under_way.spawn(async move {
            let result = with_client(&connector, |client| async {
                // The client may have taken its time.
                if !leadership.borrow().leads(Instant::now()) {
                    return Err(RequestError::Timeout);
                }
                request::send(client, write).await
            });
            Done::Write(target, name, result.await)
        });
    }

    /// Looks at the other gateways.
    fn look(&mut self, now: Instant) {
        self.is_looking = true;
        self.look_at = now + PEERS;
        let connector = Arc::clone(&self.connector);
        self.under_way.spawn(async move {
            let listed = with_client(&connector, |client| async {
                let api: Api<GatewayStatus> = Api::all(client);
                within(api.list(&ListParams::default())).await.map(|list| list.items)
            });
            Done::Peers(listed.await)
        });
    }

    /// Writes our own status, where there is news or it is time.
    fn heartbeat(&mut self, now: Instant) {
        if self.status.is_under_way || self.status.due.is_none_or(|due| due > now) {
            return;
        }
        let Some(observation) = self.observation() else { return };
        let leads = self.leads(now);
        let situation = Situation {
            observation: &observation,
            identity: &self.identity,
            leads,
            peers: &[],
            now: Timestamp::now(),
        };
        let mut status = gateway_status(&situation, &self.status.written);
        status.last_heartbeat = Some(heartbeat_time());
        self.status.is_under_way = true;
        let (connector, name, exists) =
            (Arc::clone(&self.connector), self.identity.name.clone(), self.status.exists);
        self.under_way.spawn(async move {
            let result =
                with_client(&connector, |client| write_status(client, name, exists, status.clone())).await;
            Done::Status(Box::new(status), result)
        });
    }

    fn done(&mut self, done: Done) {
        let now = Instant::now();
        match done {
            Done::Write(target, _, Err(error)) if error.is_about_ip_mode() => {
                if self.memory.leave_out_ip_mode() {
                    tracing::warn!(
                        "the API server does not know ipMode (Kubernetes 1.29 or newer does): status is written \
                         without it"
                    );
                }
                self.counts.ended(Ended::Failed);
                // The next plan has another write.
                self.queue.ended(&target, &Answer::Moot, now);
                self.plan_soon();
            }
            Done::Write(target, name, result) => {
                let (answer, ended) = request::judge(&name, &result);
                self.counts.ended(ended);
                self.queue.ended(&target, &answer, now);
                if let (Answer::Failed, Err(error)) = (&answer, &result) {
                    self.tell_failure(&target, error);
                }
            }
            Done::Peers(result) => {
                self.is_looking = false;
                match result {
                    Ok(list) => {
                        self.peers.get_or_insert_default().listed(list, now);
                        self.plan_soon();
                    }
                    // Without the kind there is no other gateway that could tell: the pools of the configuration
                    // work without it.
                    Err(error) if error.code() == Some(404) => {
                        self.peers.get_or_insert_default().listed(Vec::new(), now);
                        self.plan_soon();
                    }
                    Err(error) => {
                        let error = error.to_string();
                        // Without this knowledge nobody leads: an address could be given out twice.
                        if self.look_error.as_ref() != Some(&error) {
                            tracing::warn!("the other gateways cannot be listed: {error}");
                        }
                        self.look_error = Some(error);
                    }
                }
                let pause = if self.waits_for_peers || self.peers.is_none() { PEERS_URGENT } else { PEERS };
                self.look_at = now + pause;
            }
            Done::Status(status, result) => {
                let own = &mut self.status;
                own.is_under_way = false;
                own.last = Some(now);
                match result {
                    Ok(()) => {
                        (own.exists, own.failures) = (true, 0);
                        own.written = *status;
                        own.due = Some(now + HEARTBEAT);
                        // What happened meanwhile.
                        self.plan_soon();
                    }
                    Err(error) => {
                        tracing::debug!("the status of this gateway is not written: {error}");
                        own.exists = false;
                        own.failures = (own.failures + 1).min(3);
                        own.due = Some(now + HEARTBEAT * own.failures);
                    }
                }
            }
        }
    }

    /// A Service whose status cannot be written says so, where events can be.
    fn tell_failure(&self, target: &Target, error: &RequestError) {
        let (Target::Finalizer(key) | Target::Status(key)) = target else { return };
        // What is no refusal of this write is a fault of the connection, and not the Service's.
        let Some(400 | 403 | 422) = error.code() else { return };
        let uid = self.uid_of(key);
        let note = format!("Error syncing load balancer: {error}");
        let regarding = Regarding::service(key, uid);
        self.recorder.record(Event::new(EventType::Warning, regarding, reason::SYNC_FAILED, &note));
    }

    fn uid_of(&self, key: &ObjectKey) -> String {
        let observation = self.observations.borrow();
        let service = observation.as_ref().and_then(|o| o.objects.services.get(key));
        service.map(|s| s.meta.uid.clone()).unwrap_or_default()
    }

    /// Our status without a heartbeat: nobody waits for us any more. The daemon has withdrawn by now.
    async fn farewell(mut self) {
        self.under_way.abort_all();
        if !self.status.exists {
            return;
        }
        let mut status = self.status.written.clone();
        status.leader = false;
        status.last_heartbeat = None;
        status.vips.clear();
        status.vip_count = 0;
        for condition in status.conditions.iter_mut().filter(|c| c.kind == "Ready" && c.status == "True") {
            (condition.status, condition.reason) = ("False".to_owned(), "Stopped".to_owned());
            condition.last_transition_time = heartbeat_time();
        }
        let name = self.identity.name.clone();
        let result = with_client(&self.connector, |client| write_status(client, name, true, status)).await;
        if let Err(error) = result {
            tracing::debug!("no farewell: {error}");
        }
    }
}

fn heartbeat_time() -> String {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

async fn write_status(
    client: kube::Client,
    name: String,
    exists: bool,
    status: GatewayStatusStatus,
) -> Result<(), RequestError> {
    let api: Api<GatewayStatus> = Api::all(client);
    let apply = PatchParams::apply(FIELD_MANAGER).force();
    if !exists {
        within(api.patch(&name, &apply, &Patch::Apply(request::gateway(&name)))).await?;
    }
    let patch = request::own_status("GatewayStatus", &name, &status);
    within(api.patch_status(&name, &apply, &Patch::Apply(patch))).await?;
    Ok(())
}

/// A request with a client of now; where the credentials are refused, the next one gets another.
async fn with_client<T, F: Future<Output = Result<T, RequestError>>>(
    connector: &Connector,
    request: impl FnOnce(kube::Client) -> F,
) -> Result<T, RequestError> {
    let connection = timeout(ANSWER_MAX, connector.connection()).await.map_err(|_| RequestError::Timeout)?;
    let connection = connection.map_err(|error| RequestError::Unconnected(error.to_string()))?;
    let serial = connection.serial;
    let answer = request(connection.client).await;
    if answer.as_ref().is_err_and(|error| error.code() == Some(401)) {
        connector.refused(serial).await;
    }
    answer
}
