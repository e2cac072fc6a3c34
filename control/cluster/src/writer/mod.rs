//! The task that writes to the API server: it plans the writes from the newest outcome, sends them, and plans again
//! after every change.
//!
//! `queue` decides which writes may be sent when; `peer_poll` and `own_status` keep the times of the other requests.
//! `requests` sends all of them in the background, and `request_results` handles what they return. `planning` keeps the times
//! of the plans, and `term` the version of the Services from which on this gateway decides.
//!
//! Invariant: the leadership is checked before every single write, and the plan of a gateway that does not lead has
//! no writes. Invariant: a gateway leads only if it knows the other gateways, and the version of the Services from
//! which on it decides.

mod planning;
mod request_results;
mod requests;
mod term;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tidegate_source::SourceState;
use tidegate_source::kubernetes::Connector;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use super::counts::{Candidate, Counts};
use super::drain_annotation::DrainAnnotation;
use super::elect::{Candidacy, Leadership};
use super::event_recorder::Recorder;
use super::failure_log::FailureLog;
use super::lease::LEASE;
use super::namesake::Namesake;
use super::own_status::{HEARTBEAT, OwnStatus, heartbeat_time};
use super::peer_poll::PeerPoll;
use super::plan::{Identity, Observation, Peer, Plan, SERVICES_MAX, Situation, Write, gateway_status};
use super::queue::{Job, Next, Queue, Seen};
use super::releases::{LiveGateway, PeerReleases};
use super::sharing_peers::SharingPeers;
use planning::Planning;
use requests::{Poll, Requests};
use term::Term;

/// The time to wait at the end for writes that are under way.
const WRITES_END_MAX: Duration = Duration::from_secs(1);

/// The inputs of the task.
pub(super) struct Inputs {
    pub(super) observations: watch::Receiver<Option<Observation>>,
    pub(super) source: watch::Receiver<SourceState>,
    pub(super) leadership: watch::Receiver<Leadership>,
    pub(super) leaves: watch::Receiver<bool>,
    /// Asks for a look at the other gateways soon.
    pub(super) look: Arc<Notify>,
}

/// The outputs of the task.
pub(super) struct Outputs {
    pub(super) peer_releases: watch::Sender<PeerReleases>,
    pub(super) candidacy: watch::Sender<Candidacy>,
    /// Set if another gateway has the same name.
    pub(super) name_taken: watch::Sender<Option<String>>,
    /// Whether this gateway's `GatewayStatus` requests a drain.
    pub(super) drain_annotation: watch::Sender<DrainAnnotation>,
    /// The sockets at which the other gateways exchange flows, once they are known.
    pub(super) sharing_peers: watch::Sender<Option<SharingPeers>>,
    /// Asks the source to list the Services.
    pub(super) refresh: Arc<Notify>,
}

pub(super) struct Writer {
    identity: Identity,
    counts: Arc<Counts>,
    recorder: Recorder,
    inputs: Inputs,
    outputs: Outputs,
    namesake: Namesake,
    /// Whether this gateway led at the last check.
    led: bool,
    /// The last reported reason why this gateway cannot lead.
    hindrance: Option<String>,
    term: Term,
    planning: Planning,
    queue: Queue,
    failure_log: FailureLog,
    peer_poll: PeerPoll,
    status: OwnStatus,
    requests: Requests,
}

impl Writer {
    pub(super) fn new(
        connector: Arc<Connector>,
        identity: Identity,
        counts: Arc<Counts>,
        recorder: Recorder,
        inputs: Inputs,
        outputs: Outputs,
    ) -> Self {
        let now = Instant::now();
        Self {
            peer_poll: PeerPoll::new(&identity.name, now),
            namesake: Namesake::new(&identity.instance),
            requests: Requests::new(connector, identity.name.clone(), inputs.leadership.clone()),
            identity,
            counts,
            recorder,
            inputs,
            outputs,
            led: false,
            hindrance: None,
            term: Term::default(),
            planning: Planning::new(now),
            queue: Queue::default(),
            failure_log: FailureLog::default(),
            status: OwnStatus::default(),
        }
    }

    /// Runs until `ClusterWriter::leave`, then shuts down normally.
    pub(super) async fn run(mut self) {
        loop {
            let wake = self.work();
            tokio::select! {
                biased;
                _ = self.inputs.leaves.changed() => break,
                Ok(()) = self.inputs.observations.changed() => self.planning.soon(),
                Ok(()) = self.inputs.leadership.changed() => self.planning.soon(),
                () = self.inputs.look.notified() => self.peer_poll.hasten(Instant::now()),
                ended = self.requests.next() => match ended {
                    Ok(done) => self.done(done),
                    Err(panic) => tracing::error!(error = %panic, "a request to the API server was aborted"),
                },
                () = sleep_until(wake) => {}
            }
        }
        self.queue.clear();
        self.counts.set_leadership(false, 0);
        // The next leader may begin as soon as the lease is released, so none of our writes may arrive after that.
        let candidacy = match self.requests.end(WRITES_END_MAX).await {
            true => Candidacy::Gone,
            false => Candidacy::Cut,
        };
        self.outputs.candidacy.send_replace(candidacy);
        let Some(status) = self.status.final_status() else { return };
        if let Err(error) = self.requests.write_final_status(status).await {
            tracing::debug!(%error, "cannot write the last GatewayStatus of this gateway");
        }
    }

    /// Does all work that is possible now, and returns the time of the next work.
    fn work(&mut self) -> Instant {
        let now = Instant::now();
        self.term(now);
        self.report_candidate(now);
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if self.planning.is_due(now) {
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
            self.poll_peers(now);
        }
        let next = if leads { self.send_all(now) } else { None };
        let (is_uninstalled, is_asked) = {
            let leadership = self.inputs.leadership.borrow();
            (leadership.is_uninstalled(), leadership.is_asked)
        };
        if is_uninstalled {
            self.write_last_status(now);
        } else if is_asked && self.namesake.is_free() && is_due(self.status.due()) {
            self.heartbeat(now);
        }
        self.counts.set_leadership(leads, self.queue.len());
        let until = self.inputs.leadership.borrow().until.filter(|until| *until > now);
        let others = [next, until, self.peer_poll.due(), self.status.due(), self.term.ask_at()];
        let earliest = self.planning.times().into_iter().chain(others).flatten().filter(|at| *at > now).min();
        earliest.unwrap_or(now + HEARTBEAT)
    }

    /// Updates this gateway's candidacy in the election.
    fn report_candidate(&mut self, now: Instant) {
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
            taken.or(uninstalled).or(trouble).or(look).or_else(|| self.term.error().cloned())
        };
        // The last known content of a lease that cannot be read may be old.
        let leader = holder.filter(|_| hindrance.is_none());
        // The identity ends with a suffix for the run: see `run`.
        let leader = leader.and_then(|holder| Some(holder.rsplit_once('_')?.0.to_owned()));
        // While the API server does not answer at all, the state of the source says so.
        let unwritten = self.status.trouble().filter(|_| self.inputs.source.borrow().connected);
        self.counts.set_candidate(Candidate { leader, hindrance: hindrance.clone(), unwritten });
        if self.hindrance != hindrance {
            self.hindrance = hindrance;
            self.planning.soon();
        }
    }

    fn holds_lease(&self, now: Instant) -> bool {
        self.inputs.leadership.borrow().leads(now)
    }

    /// Whether this gateway leads and knows enough to write.
    fn leads(&self, now: Instant) -> bool {
        self.peer_poll.is_known
            && self.namesake.is_free()
            && self.term.version().is_some()
            && self.holds_lease(now)
    }

    /// Requests the version to lead from, if this gateway holds the lease and does not know the version.
    fn term(&mut self, now: Instant) {
        if !self.holds_lease(now) {
            self.term.lost();
        } else if let Some(number) = self.term.ask(now) {
            self.requests.term(number);
        }
    }

    /// The newest round, with the current state of the source.
    fn observation(&self) -> Option<Observation> {
        let observation = self.inputs.observations.borrow().clone()?;
        let source_connected = self.inputs.source.borrow().connected;
        Some(Observation { source_connected, ..observation })
    }

    fn plan(&mut self, now: Instant) {
        self.planning.begin();
        let leads = self.leads(now);
        let withdrawn = self.peer_poll.peers.withdrawn();
        let observation = self.observation();
        self.publish_peer_releases(leads, withdrawn, observation.as_ref());
        let Some(observation) = observation else { return };
        let peers = self.peer_poll.peers.live();
        let wall = Timestamp::now();
        let polled = now.saturating_duration_since(self.peer_poll.peers.looked());
        let situation = Situation {
            observation: &observation,
            identity: &self.identity,
            peers: &peers,
            polled: wall.saturating_sub(polled).unwrap_or(wall),
            namesake: self.namesake.rival(now),
            hindrance: self.hindrance.as_deref(),
            // A leader does not write from a round that was made as a follower. Its next round will follow.
            leads: leads && observation.decides,
            withdrawn,
            now: wall,
        };
        let written = &self.status.written;
        let (plan, status) = self.planning.plan(&situation, leads, written, &self.counts, now);
        self.status.set(&status, now);
        let Plan { writes, events, waits_for_peers, again_at: _ } = plan;
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
        let is_withheld = observation.waits_for.is_some_and(|version| version > withdrawn);
        if leads && (waits_for_peers || is_withheld) {
            self.peer_poll.hasten(now);
        }
    }

    /// Passes the required information about the other gateways to the rounds. Progress that nothing waits for is not
    /// passed on.
    fn publish_peer_releases(&self, leads: bool, withdrawn: u64, observation: Option<&Observation>) {
        let decides_since = self.term.version().filter(|_| leads).unwrap_or(0);
        let addresses = self.peer_poll.peers.addresses();
        let live = self.peer_poll.peers.live().into_iter().filter(|peer| peer.is_ready);
        let live = live.map(|Peer { name, labels, not_programmed, without_backends, .. }| {
            let lacks_more = not_programmed.len().max(without_backends.len()) >= SERVICES_MAX;
            (name, LiveGateway { labels, lacking: &not_programmed | &without_backends, lacks_more })
        });
        let live: BTreeMap<String, LiveGateway> = live.collect();
        let waits = observation.is_none_or(|observation| observation.waits_for.is_some());
        self.outputs.peer_releases.send_if_modified(|published| {
            let is_progress = withdrawn > published.withdrawn;
            let is_same = (published.leads, published.decides_since) == (leads, decides_since)
                && *published.addresses == addresses
                && *published.live == live
                && (withdrawn == published.withdrawn || is_progress && !waits);
            if is_same {
                return false;
            }
            (published.leads, published.withdrawn, published.decides_since) =
                (leads, withdrawn, decides_since);
            if *published.live != live {
                published.live = Arc::new(live);
            }
            if *published.addresses != addresses {
                published.addresses = Arc::new(addresses);
            }
            true
        });
    }

    /// Sends the writes that may be sent now, and returns the time of the next ones.
    fn send_all(&mut self, now: Instant) -> Option<Instant> {
        loop {
            match self.queue.next(now) {
                Next::Send(target, write) => self.requests.write(target, write),
                Next::At(at) => return Some(at),
                Next::Nothing => return None,
            }
        }
    }

    /// Polls the other gateways.
    fn poll_peers(&mut self, now: Instant) {
        self.peer_poll.begin(now);
        let own_applied =
            self.inputs.observations.borrow().as_ref().map_or(0, |o| o.forwarding.version_applied);
        self.requests.gateways(Poll { own_applied, is_written: self.status.is_written() });
    }

    /// Writes this gateway's own status if it has changed or a heartbeat is due.
    fn heartbeat(&mut self, now: Instant) {
        let Some(observation) = self.observation() else { return };
        let situation = Situation {
            observation: &observation,
            identity: &self.identity,
            leads: self.leads(now),
            withdrawn: 0,
            peers: &[],
            polled: Timestamp::UNIX_EPOCH,
            namesake: self.namesake.rival(now),
            hindrance: self.hindrance.as_deref(),
            now: Timestamp::now(),
        };
        let mut status = gateway_status(&situation, &self.status.written);
        status.last_heartbeat = Some(heartbeat_time());
        self.requests.status(self.status.begin(), status);
    }

    /// Writes the last status before this gateway stops writing, if it is still to be written.
    fn write_last_status(&mut self, now: Instant) {
        if let Some(status) = self.status.last(now) {
            self.requests.write_last_status(status);
        }
    }
}
