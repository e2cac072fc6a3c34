//! The task that writes to the API server: it plans the writes from the newest outcome, sends them, and plans again
//! after every change.
//!
//! `queue` decides which writes may be sent when; `peer_poll` and `own_status` keep the times of the other requests.
//! All of them run in the background and return as [`Done`].
//!
//! Invariant: the leadership is checked before every single write, and the plan of a gateway that does not lead has
//! no writes. Invariant: a gateway leads only if it knows the other gateways, and the version of the Services from
//! which on it decides.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tidegate_core::difference::Difference;
use tidegate_model::objects::ObjectKey;
use tidegate_source::SourceState;
use tidegate_source::kubernetes::Connector;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use super::counts::{Candidate, Counts, Ended};
use super::crd::{GatewayStatus, GatewayStatusStatus};
use super::elect::{Candidacy, Leadership};
use super::event::{Event, EventType, Regarding};
use super::failure_log::{FailureLog, Line};
use super::lease::LEASE;
use super::modest::giving_way;
use super::namesake::{self, Namesake};
use super::own_status::{self, HEARTBEAT, Over, OwnStatus, Written};
use super::peer_poll::{self, PeerPoll};
use super::peers::Gone;
use super::plan::{
    Identity, Memory, Observation, Plan, Situation, Write, gateway_status, plan, plan_compared,
};
use super::queue::{Answer, Job, Next, Queue, Seen, Target};
use super::record::Recorder;
use super::releases::PeerReleases;
use super::request::{self, RequestError, with_client};
use super::words::event_reason;

/// The shortest time between two plans.
const SETTLE: Duration = Duration::from_millis(100);
/// The pause after a plan is this many times what the plan had of the CPU, and at most this long. The time of day would
/// count what others had meanwhile: on a busy machine a plan of a second would be followed by a pause of twenty.
const PLAN_PAUSE_TIMES: u32 = 20;
const PLAN_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Writes that are under way at the end are waited for this long.
const WRITES_END_MAX: Duration = Duration::from_secs(1);
/// The time after which the version to lead from is requested again.
const TERM_AGAIN: Duration = Duration::from_secs(1);

/// What the task listens to.
pub(super) struct Inputs {
    pub(super) observations: watch::Receiver<Option<Observation>>,
    pub(super) source: watch::Receiver<SourceState>,
    pub(super) leadership: watch::Receiver<Leadership>,
    pub(super) leaves: watch::Receiver<bool>,
}

/// The outputs of the task.
pub(super) struct Tells {
    pub(super) fleet: watch::Sender<PeerReleases>,
    pub(super) standing: watch::Sender<Candidacy>,
    /// Another gateway has this one's name.
    pub(super) name_taken: watch::Sender<Option<String>>,
}

/// What was under way.
enum Done {
    Write(Target, String, Result<(), RequestError>),
    /// With what this gateway had applied when it began to look, and whether its own status was written then.
    Gateways(u64, bool, Result<Vec<GatewayStatus>, RequestError>),
    Forgotten(Gone, Result<(), RequestError>),
    /// The conditions of a gateway without a heartbeat were set to `Unknown`.
    Marked(String, Result<(), RequestError>),
    /// The conflict was reported to the gateway with our name.
    NamesakeTold(Result<(), RequestError>),
    /// Of the term of this number.
    Term(u64, Result<u64, RequestError>),
    Status(Box<GatewayStatusStatus>, Written),
    /// The last one before this gateway is silent.
    Silence(Written),
}

/// The time from one loss of the lease to the next.
#[derive(Debug, Default)]
struct Term {
    number: u64,
    /// A version of the Services after we had the lease: who held it before wrote nothing newer.
    since: Option<u64>,
    ask_at: Option<Instant>,
    /// Why the version is not known although it was requested.
    error: Option<String>,
}

pub(super) struct Writer {
    connector: Arc<Connector>,
    identity: Identity,
    counts: Arc<Counts>,
    recorder: Recorder,
    inputs: Inputs,
    tells: Tells,
    /// Asks the source to list the Services.
    refresh: Arc<Notify>,
    namesake: Namesake,
    /// Whether a report to the gateway with our name is in progress.
    tells_namesake: bool,
    /// Whether we led when we last looked.
    led: bool,
    /// The last reported reason why we cannot lead.
    hindrance: Option<String>,
    term: Term,
    memory: Memory,
    /// [`Observation::comparisons`] of the plan that was compared last.
    compared: u64,
    queue: Queue,
    failure_log: FailureLog,
    peer_poll: PeerPoll,
    status: OwnStatus,
    /// Requests that change what is the leader's, and all others.
    writes: JoinSet<Done>,
    asks: JoinSet<Done>,
    /// When the next plan is to be made.
    plan_due: Option<Instant>,
    plan_not_before: Instant,
    plan_again: Option<Instant>,
}

impl Writer {
    pub(super) fn new(
        connector: Arc<Connector>,
        identity: Identity,
        counts: Arc<Counts>,
        recorder: Recorder,
        inputs: Inputs,
        tells: Tells,
        refresh: Arc<Notify>,
    ) -> Self {
        let now = Instant::now();
        Self {
            peer_poll: PeerPoll::new(&identity.name, now),
            namesake: Namesake::new(&identity.instance),
            tells_namesake: false,
            connector,
            identity,
            counts,
            recorder,
            inputs,
            tells,
            refresh,
            led: false,
            hindrance: None,
            term: Term::default(),
            memory: Memory::default(),
            compared: 0,
            queue: Queue::default(),
            failure_log: FailureLog::default(),
            status: OwnStatus::default(),
            writes: JoinSet::new(),
            asks: JoinSet::new(),
            plan_due: None,
            plan_not_before: now,
            plan_again: None,
        }
    }

    /// Runs until `ClusterWriter::leave`, then shuts down normally.
    pub(super) async fn run(mut self) {
        loop {
            let wake = self.work();
            tokio::select! {
                biased;
                _ = self.inputs.leaves.changed() => break,
                Ok(()) = self.inputs.observations.changed() => self.plan_soon(),
                Ok(()) = self.inputs.leadership.changed() => self.plan_soon(),
                Some(done) = self.writes.join_next() => self.joined(done),
                Some(done) = self.asks.join_next() => self.joined(done),
                () = sleep_until(wake) => {}
            }
        }
        self.queue.clear();
        self.counts.stands(false, 0);
        self.asks.abort_all();
        // The next leader may begin as soon as the lease is given back: nothing of ours may arrive after that.
        let ended = async { while self.writes.join_next().await.is_some() {} };
        let standing = match timeout(WRITES_END_MAX, ended).await {
            Ok(()) => Candidacy::Gone,
            Err(_) => Candidacy::Cut,
        };
        self.tells.standing.send_replace(standing);
        let Some(status) = self.status.farewell() else { return };
        if let Err(error) =
            own_status::write(&self.connector, &self.identity.name, Over::Whatever, &status).await
        {
            tracing::debug!(%error, "cannot write the last GatewayStatus of this gateway");
        }
    }

    fn joined(&mut self, done: Result<Done, JoinError>) {
        match done {
            Ok(done) => self.done(done),
            Err(panic) => tracing::error!(error = %panic, "a request to the API server was aborted"),
        }
    }

    /// Does all that can be done now, and says when there is more.
    fn work(&mut self) -> Instant {
        let now = Instant::now();
        self.term(now);
        self.stand(now);
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
        if is_due(self.peer_poll.due()) {
            self.look(now);
        }
        let next = if leads { self.send_all(now) } else { None };
        let (is_uninstalled, is_asked) = {
            let leadership = self.inputs.leadership.borrow();
            (leadership.is_uninstalled(), leadership.is_asked)
        };
        if is_uninstalled {
            self.fall_silent(now);
        } else if is_asked && self.namesake.is_free() && is_due(self.status.due()) {
            self.heartbeat(now);
        }
        self.counts.stands(leads, self.queue.len());
        let until = self.inputs.leadership.borrow().until.filter(|until| *until > now);
        let all = [
            self.plan_due,
            self.plan_again,
            next,
            until,
            self.peer_poll.due(),
            self.status.due(),
            self.term.ask_at,
        ];
        let earliest = all.into_iter().flatten().filter(|at| *at > now).min();
        earliest.unwrap_or(now + HEARTBEAT)
    }

    /// Tells how we stand in the election.
    fn stand(&mut self, now: Instant) {
        let (holder, is_uninstalled, trouble) = {
            let leadership = self.inputs.leadership.borrow();
            (leadership.holder.clone(), leadership.is_uninstalled(), leadership.trouble.clone())
        };
        let uninstalled = is_uninstalled.then(|| {
            format!(
                "Tidegate was uninstalled from the cluster: the Lease {LEASE} is held by `tidegate uninstall`"
            )
        });
        let taken = self.namesake.taken().map(|who| format!("another gateway has its name ({who})"));
        let hindrance = if self.leads(now) {
            None
        } else {
            let look = self.peer_poll.trouble();
            taken.or(uninstalled).or(trouble).or(look).or_else(|| self.term.error.clone())
        };
        // What was seen last of a lease that cannot be read may be long ago.
        let leader = holder.filter(|_| hindrance.is_none());
        // It is followed by a word for the run: see `run`.
        let leader = leader.and_then(|holder| Some(holder.rsplit_once('_')?.0.to_owned()));
        self.counts.candidate(Candidate { leader, hindrance: hindrance.clone() });
        if self.hindrance != hindrance {
            self.hindrance = hindrance;
            self.plan_soon();
        }
    }

    fn holds_lease(&self, now: Instant) -> bool {
        self.inputs.leadership.borrow().leads(now)
    }

    /// Whether we lead, and know enough to.
    fn leads(&self, now: Instant) -> bool {
        self.peer_poll.is_known
            && self.namesake.is_free()
            && self.term.since.is_some()
            && self.holds_lease(now)
    }

    /// Asks for the version to lead from, where the lease is ours and it is not known.
    fn term(&mut self, now: Instant) {
        if !self.holds_lease(now) {
            let number =
                self.term.number + u64::from(self.term.ask_at.is_some() || self.term.since.is_some());
            self.term = Term { number, ..Term::default() };
            return;
        }
        if self.term.since.is_some() || self.term.ask_at.is_some_and(|at| at > now) {
            return;
        }
        // An answer that takes longer is waited for; one that never comes is asked for again.
        self.term.ask_at = Some(now + request::ANSWER_MAX + TERM_AGAIN);
        let (connector, number) = (Arc::clone(&self.connector), self.term.number);
        self.asks.spawn(async move { Done::Term(number, peer_poll::services_version(&connector).await) });
    }

    /// The newest round, and how the source gets on now.
    fn observation(&self) -> Option<Observation> {
        let observation = self.inputs.observations.borrow().clone()?;
        let source_connected = self.inputs.source.borrow().connected;
        Some(Observation { source_connected, ..observation })
    }

    /// Plans soon, and not so often that it costs much more than a twentieth of the time.
    fn plan_soon(&mut self) {
        let soon = Instant::now() + SETTLE;
        self.plan_due.get_or_insert(soon.max(self.plan_not_before));
    }

    fn plan(&mut self, now: Instant) {
        (self.plan_due, self.plan_again) = (None, None);
        let leads = self.leads(now);
        let withdrawn = self.peer_poll.peers.withdrawn();
        let observation = self.observation();
        self.tell_fleet(leads, withdrawn, observation.as_ref());
        let Some(observation) = observation else { return };
        let wall = Timestamp::now();
        let peers = self.peer_poll.peers.live();
        let namesake = self.namesake.rival(now).map(str::to_owned);
        let situation = Situation {
            observation: &observation,
            identity: &self.identity,
            peers: &peers,
            namesake: namesake.as_deref(),
            hindrance: self.hindrance.as_deref(),
            // What a follower made of it is not what a leader writes: its next round is on its way.
            leads: leads && observation.decides,
            withdrawn,
            now: wall,
        };
        let (memory, written) = (&mut self.memory, &self.status.written);
        let is_due = observation.comparisons > self.compared;
        self.compared = observation.comparisons;
        // Where it does not lead, there is nothing to compare. A new leader does not begin with a comparison.
        let compares = is_due && situation.leads;
        let (planned, took) = giving_way(|| {
            let (plan, differences) = match compares {
                true => plan_compared(&situation, memory),
                false => (plan(&situation, memory), Vec::new()),
            };
            if compares {
                self.counts.compared(!differences.is_empty());
                differences.iter().for_each(log_difference);
            }
            (plan, gateway_status(&Situation { leads, ..situation }, written))
        });
        let (Plan { writes, events, again_at, waits_for_peers }, status) = planned;
        self.status.stands(&status, now);
        let jobs = writes.into_iter().filter_map(|write| {
            let seen = match &write {
                Write::Finalizer { service, .. } | Write::ServiceStatus { service, .. } => {
                    Seen::Service(observation.objects.services.get(service)?.clone())
                }
                Write::PoolStatus { pool, .. } | Write::PoolFinalizer { pool, .. } => {
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
        let is_withheld = observation.waits_for.is_some_and(|version| version > withdrawn);
        if leads && (waits_for_peers || is_withheld) {
            self.peer_poll.hasten(now);
        }
        self.plan_not_before = Instant::now() + (took * PLAN_PAUSE_TIMES).min(PLAN_PAUSE_MAX);
    }

    /// Tells the rounds what they have to know of the others: all changes but a progress that nothing waits for.
    fn tell_fleet(&self, leads: bool, withdrawn: u64, observation: Option<&Observation>) {
        let decides_since = self.term.since.filter(|_| leads).unwrap_or(0);
        let addresses = self.peer_poll.peers.addresses();
        let waits = observation.is_none_or(|observation| observation.waits_for.is_some());
        self.tells.fleet.send_if_modified(|told| {
            let is_progress = withdrawn > told.withdrawn;
            let is_same = (told.leads, told.decides_since) == (leads, decides_since)
                && *told.addresses == addresses
                && (withdrawn == told.withdrawn || is_progress && !waits);
            if is_same {
                return false;
            }
            (told.leads, told.withdrawn, told.decides_since) = (leads, withdrawn, decides_since);
            if *told.addresses != addresses {
                told.addresses = Arc::new(addresses);
            }
            true
        });
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
            Write::PoolFinalizer { pool, .. } => format!("the finalizer of AddressPool {pool}"),
        };
        let (connector, leadership) = (Arc::clone(&self.connector), self.inputs.leadership.clone());
        self.writes.spawn(async move {
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
        self.peer_poll.begin(now);
        let connector = Arc::clone(&self.connector);
        let own_applied = self.inputs.observations.borrow().as_ref().map_or(0, |o| o.version_applied);
        let wrote = self.status.is_written();
        self.asks
            .spawn(async move { Done::Gateways(own_applied, wrote, peer_poll::gateways(&connector).await) });
    }

    /// Says of gateways that are not heard of that they are not, and deletes what is left of those that are gone for good.
    fn tend(&mut self) {
        for silent in self.peer_poll.silent() {
            let (connector, leadership) = (Arc::clone(&self.connector), self.inputs.leadership.clone());
            self.writes.spawn(async move {
                let name = silent.name.clone();
                if !leadership.borrow().leads(Instant::now()) {
                    return Done::Marked(name, Err(RequestError::Timeout));
                }
                Done::Marked(name, peer_poll::mark(&connector, silent).await)
            });
        }
        for gone in self.peer_poll.gone() {
            let (connector, leadership) = (Arc::clone(&self.connector), self.inputs.leadership.clone());
            self.writes.spawn(async move {
                if !leadership.borrow().leads(Instant::now()) {
                    return Done::Forgotten(gone, Err(RequestError::Timeout));
                }
                let result = peer_poll::forget(&connector, gone.clone()).await;
                Done::Forgotten(gone, result)
            });
        }
    }

    /// The gateways were listed: whether another one has our name.
    fn know_ourselves(&mut self, wrote: bool, now: Instant) {
        self.namesake.seen(self.peer_poll.peers.own(), wrote, now);
        if self.namesake.is_undecided() {
            self.peer_poll.hasten(now);
        }
        let taken = self.namesake.taken().map(str::to_owned);
        let standing = match (&taken, self.namesake.is_free()) {
            (Some(_), _) => Candidacy::Cut,
            (None, true) => Candidacy::Candidate,
            (None, false) => Candidacy::NotYet,
        };
        let is_news =
            self.tells.standing.send_if_modified(|told| std::mem::replace(told, standing) != standing);
        let Some(who) = taken else { return };
        let name = &self.identity.name;
        if is_news {
            tracing::error!(
                gateway = name,
                other = who,
                "another gateway has the same name: this one does not lead and writes no status; give each gateway a \
                 unique metadata.name"
            );
        }
        // With the addresses of this one, by which a person finds it: known after the first round.
        let Some(observation) = self.observation() else { return self.peer_poll.hasten(now) };
        if !self.tells_namesake {
            self.tells_namesake = true;
            let addresses: Vec<String> = observation.own_addresses.iter().map(ToString::to_string).collect();
            let node = self.identity.node.as_deref().unwrap_or_default();
            let ours = namesake::described(&self.identity.instance, node, &addresses);
            let (connector, name) = (Arc::clone(&self.connector), name.clone());
            self.asks.spawn(async move {
                Done::NamesakeTold(peer_poll::tell_namesake(&connector, &name, &ours).await)
            });
        }
    }

    /// Writes our own status, where there is news or it is time.
    fn heartbeat(&mut self, now: Instant) {
        let Some(observation) = self.observation() else { return };
        let situation = Situation {
            observation: &observation,
            identity: &self.identity,
            leads: self.leads(now),
            withdrawn: 0,
            peers: &[],
            namesake: self.namesake.rival(now),
            hindrance: self.hindrance.as_deref(),
            now: Timestamp::now(),
        };
        let mut status = gateway_status(&situation, &self.status.written);
        status.last_heartbeat = Some(own_status::heartbeat_time());
        let over = self.status.begin();
        let (connector, name) = (Arc::clone(&self.connector), self.identity.name.clone());
        self.asks.spawn(async move {
            let result = own_status::write(&connector, &name, over, &status).await;
            Done::Status(Box::new(status), result)
        });
    }

    /// Says the last word, if any is left to say.
    fn fall_silent(&mut self, now: Instant) {
        let Some(status) = self.status.fall_silent(now) else { return };
        let (connector, name) = (Arc::clone(&self.connector), self.identity.name.clone());
        self.asks.spawn(async move {
            Done::Silence(own_status::write(&connector, &name, Over::Whatever, &status).await)
        });
    }

    fn done(&mut self, done: Done) {
        let now = Instant::now();
        match done {
            Done::Write(target, _, Err(error)) if error.is_about_ip_mode() => {
                if self.memory.leave_out_ip_mode() {
                    tracing::warn!(
                        "the API server does not support ipMode, which needs Kubernetes 1.29: writing status without it"
                    );
                }
                self.counts.ended(Ended::Failed);
                // The next plan has another write.
                self.queue.ended(&target, &Answer::Moot, now);
                self.plan_soon();
            }
            Done::Write(target, name, result) => {
                let (answer, ended) = request::judge(&result);
                self.counts.ended(ended);
                self.queue.ended(&target, &answer, now);
                if let (Answer::Failed, Err(error)) = (&answer, &result) {
                    self.log_failure(&target, &name, error, now);
                    self.tell_failure(&target, error);
                }
            }
            Done::Gateways(own_applied, wrote, result) => {
                if self.peer_poll.ended(result, own_applied, now) {
                    self.know_ourselves(wrote, now);
                    if self.leads(now) {
                        self.tend();
                    }
                    self.plan_soon();
                }
            }
            Done::Marked(name, Ok(())) => {
                tracing::warn!(
                    gateway = name,
                    "no heartbeat from the gateway for 40 s: its conditions are set to Unknown"
                );
            }
            Done::Marked(name, Err(error)) => {
                tracing::debug!(gateway = name, %error, "cannot set the conditions of the gateway to Unknown");
            }
            Done::NamesakeTold(result) => {
                self.tells_namesake = false;
                // Only now: the process may end by it, and the other one would not have heard of it.
                let taken_by = self.namesake.taken().map(str::to_owned);
                self.tells.name_taken.send_if_modified(|told| {
                    let is_new = told.is_none();
                    *told = told.take().or(taken_by);
                    is_new
                });
                if let Err(error) = result {
                    tracing::warn!(%error, "cannot tell the other gateway of this name that its name is taken");
                }
            }
            Done::Forgotten(gone, result) => match result {
                Ok(()) => tracing::info!(
                    gateway = gone.name,
                    "no heartbeat from the gateway for a day: its GatewayStatus is deleted"
                ),
                // It has written again, or is deleted already.
                Err(error) if matches!(error.code(), Some(404 | 409)) => {}
                Err(error) => {
                    tracing::warn!(gateway = gone.name, %error, "cannot delete the GatewayStatus of a gateway that is gone");
                }
            },
            Done::Term(number, result) if number == self.term.number && self.holds_lease(now) => match result
            {
                Ok(version) => {
                    self.term.since = Some(version);
                    (self.term.ask_at, self.term.error) = (None, None);
                    // What the leader before wrote is seen without waiting for a bookmark.
                    let seen = self.inputs.observations.borrow().as_ref().map_or(0, |o| o.version);
                    if seen < version {
                        self.refresh.notify_one();
                    }
                    self.plan_soon();
                }
                Err(error) => {
                    let told = format!("cannot list the Services: {error}");
                    if self.term.error.as_ref() != Some(&told) {
                        tracing::warn!(reason = told, "this gateway holds the Lease but does not lead yet");
                    }
                    self.term.error = Some(told);
                    self.term.ask_at = Some(now + TERM_AGAIN);
                }
            },
            // The lease was lost meanwhile.
            Done::Term(..) => {}
            Done::Silence(result) => self.status.fell_silent(&result, now),
            Done::Status(status, result) => {
                // What happened meanwhile.
                if result.is_ok() {
                    self.plan_soon();
                }
                if self.status.ended(*status, result, now) {
                    self.peer_poll.hasten(now);
                }
            }
        }
    }

    fn log_failure(&mut self, target: &Target, write: &str, error: &RequestError, now: Instant) {
        match self.failure_log.failed(target.namespace(), now) {
            Line::Logged(left_out) => {
                tracing::warn!(write, %error, left_out, "a write to the API server failed and will be retried");
            }
            Line::LeftOut => self.counts.line_left_out(),
        }
    }

    /// Writes an event for a Service whose status cannot be written.
    fn tell_failure(&self, target: &Target, error: &RequestError) {
        let (Target::Finalizer(key) | Target::Status(key)) = target else { return };
        // What is no refusal of this write is a fault of the connection, and not the Service's.
        let Some(400 | 403 | 422) = error.code() else { return };
        let uid = self.uid_of(key);
        let note = format!("Error syncing load balancer: {error}");
        let regarding = Regarding::service(key, uid);
        self.recorder.record(Event::new(EventType::Warning, regarding, event_reason::SYNC_FAILED, &note));
    }

    fn uid_of(&self, key: &ObjectKey) -> String {
        let observation = self.inputs.observations.borrow();
        let service = observation.as_ref().and_then(|o| o.objects.services.get(key));
        service.map(|s| s.meta.uid.clone()).unwrap_or_default()
    }
}

/// A plan lacked something, or had too much: the one from scratch is written instead.
fn log_difference(difference: &Difference) {
    tracing::error!(
        layer = "plan",
        part = difference.part,
        incremental = difference.incremental,
        from_scratch = difference.from_scratch,
        "an incremental result differs from the one computed from scratch: this is a bug in the gateway, please report it"
    );
}
