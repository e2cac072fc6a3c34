//! The task that writes to the API server: it plans the writes from the newest outcome, sends them, and plans again
//! after every change.
//!
//! `queue` decides which writes may be sent when; `peer_poll` and `own_status` schedule the other requests. `requests`
//! sends all of them in the background, and `request_results` handles their results. `planning` schedules the plans,
//! and `term` provides the version of the Services with which this gateway's leadership starts.
//!
//! Invariant: the leadership is checked before every single write, and the plan of a gateway that doesn't lead has no
//! writes. A gateway leads only if it knows the other gateways and the version of the Services with which it starts.

mod planning;
mod request_results;
mod requests;
mod term;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tidegate_model::objects::gateway_api::Gateway;
use tidegate_source::SourceState;
use tidegate_source::kubernetes::Connector;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use super::counts::{Candidate, Counts};
use super::drain_annotation::DrainAnnotation;
use super::duplicate_name::DuplicateName;
use super::elect::{Candidacy, Leadership};
use super::event_recorder::Recorder;
use super::lease::LEASE;
use super::line_budget::LineBudgets;
use super::own_status::{self, HEARTBEAT, Overwrites, OwnStatus, heartbeat_time};
use super::peer_poll::{self, PeerPoll};
use super::plan::{Identity, Observation, Peer, Plan, SERVICES_MAX, Situation, gateway_status};
use super::queue::{Job, Next, PlannedFrom, Queue};
use super::releases::{LiveGateway, PeerReleases};
use super::sharing_peers::SharingPeers;
use super::write_request;
use planning::Planning;
use requests::Requests;
use term::Term;

/// The maximum wait at shutdown for writes in progress.
const WRITES_END_MAX: Duration = Duration::from_secs(1);

/// The inputs of the task.
pub(super) struct Inputs {
    pub(super) observations: watch::Receiver<Option<Observation>>,
    pub(super) source: watch::Receiver<SourceState>,
    pub(super) leadership: watch::Receiver<Leadership>,
    pub(super) shutdown: watch::Receiver<bool>,
    /// Requests a poll of the other gateways soon.
    pub(super) poll_now: Arc<Notify>,
}

/// The outputs of the task.
pub(super) struct Outputs {
    pub(super) peer_releases: watch::Sender<PeerReleases>,
    pub(super) candidacy: watch::Sender<Candidacy>,
    /// Set if another gateway has the same name.
    pub(super) name_taken: watch::Sender<Option<String>>,
    /// Whether this gateway's `GatewayStatus` requests a drain.
    pub(super) drain_annotation: watch::Sender<DrainAnnotation>,
    /// The sockets at which the other gateways share flows, once they are known.
    pub(super) sharing_peers: watch::Sender<Option<SharingPeers>>,
    /// Requests that the source lists the Services.
    pub(super) refresh: Arc<Notify>,
}

pub(super) struct Writer {
    identity: Identity,
    counts: Arc<Counts>,
    recorder: Recorder,
    inputs: Inputs,
    outputs: Outputs,
    duplicate_name: DuplicateName,
    /// Whether this gateway led at the last check.
    led: bool,
    /// The last reported reason why this gateway can't lead.
    cannot_lead: Option<String>,
    term: Term,
    /// The version for which the Services were listed, because a Gateway releases its addresses.
    refreshed: u64,
    planning: Planning,
    queue: Queue,
    failure_lines: LineBudgets,
    peer_poll: PeerPoll,
    status: OwnStatus,
    requests: Requests<Self>,
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
            duplicate_name: DuplicateName::new(&identity.instance),
            requests: Requests::new(connector, inputs.leadership.clone()),
            identity,
            counts,
            recorder,
            inputs,
            outputs,
            led: false,
            cannot_lead: None,
            term: Term::default(),
            refreshed: 0,
            planning: Planning::new(now),
            queue: Queue::default(),
            failure_lines: LineBudgets::default(),
            status: OwnStatus::default(),
        }
    }

    /// Runs until `ClusterWriter::shut_down`, then shuts down cleanly.
    pub(super) async fn run(mut self) {
        loop {
            let wake = self.work();
            tokio::select! {
                biased;
                _ = self.inputs.shutdown.changed() => break,
                Ok(()) = self.inputs.observations.changed() => self.planning.soon(),
                Ok(()) = self.inputs.leadership.changed() => self.planning.soon(),
                () = self.inputs.poll_now.notified() => self.peer_poll.poll_soon(Instant::now()),
                ended = self.requests.next() => match ended {
                    Ok(handle) => handle(&mut self, Instant::now()),
                    Err(panic) => tracing::error!(error = %panic, "a request to the API server was aborted"),
                },
                () = sleep_until(wake) => {}
            }
        }
        self.queue.clear();
        self.counts.set_leadership(false, 0);
        // The next leader may start as soon as the Lease is released, so none of our writes may arrive after that.
        let candidacy = match self.requests.end(WRITES_END_MAX).await {
            true => Candidacy::Gone,
            false => Candidacy::Cut,
        };
        self.outputs.candidacy.send_replace(candidacy);
        let Some(mut status) = self.status.final_status() else { return };
        let (connector, name) = (&self.requests.connector, &self.identity.name);
        if let Err(error) = own_status::write(connector, name, Overwrites::Any, &mut status).await {
            tracing::debug!(%error, "cannot write the last GatewayStatus of this gateway");
        }
    }

    /// Does all work that is currently possible, and returns when to continue.
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
        let (is_uninstalled, is_requested) = {
            let leadership = self.inputs.leadership.borrow();
            (leadership.is_uninstalled(), leadership.is_requested)
        };
        if is_uninstalled {
            self.write_last_status(now);
        } else if is_requested && self.duplicate_name.is_free() && is_due(self.status.due()) {
            self.heartbeat(now);
        }
        self.counts.set_leadership(leads, self.queue.len());
        let until = self.inputs.leadership.borrow().until.filter(|until| *until > now);
        let others = [next, until, self.peer_poll.due(), self.status.due(), self.term.request_at()];
        let earliest = self.planning.times().into_iter().chain(others).flatten().filter(|at| *at > now).min();
        earliest.unwrap_or(now + HEARTBEAT)
    }

    /// Updates the displayed state of this gateway in the election.
    fn report_candidate(&mut self, now: Instant) {
        let (holder, is_uninstalled, failure) = {
            let leadership = self.inputs.leadership.borrow();
            (leadership.holder.clone(), leadership.is_uninstalled(), leadership.failure.clone())
        };
        let uninstalled = is_uninstalled.then(|| {
            format!("Tidegate was uninstalled from the cluster: `tidegate uninstall` holds the Lease {LEASE}")
        });
        let taken =
            self.duplicate_name.taken().map(|who| format!("another gateway has the same name ({who})"));
        let cannot_lead = if self.leads(now) {
            None
        } else {
            let poll_failure = self.peer_poll.failure();
            taken.or(uninstalled).or(failure).or(poll_failure).or_else(|| self.term.error().cloned())
        };
        // The last known content of a Lease that can't be read may be outdated.
        let leader = holder.filter(|_| cannot_lead.is_none());
        // The identity ends with a suffix for the run (see `ClusterWriter::start`).
        let leader = leader.and_then(|holder| Some(holder.rsplit_once('_')?.0.to_owned()));
        // While the API server doesn't respond at all, the state of the source shows it.
        let status_failure = self.status.failure().filter(|_| self.inputs.source.borrow().connected);
        self.counts.set_candidate(Candidate { leader, cannot_lead: cannot_lead.clone(), status_failure });
        if self.cannot_lead != cannot_lead {
            self.cannot_lead = cannot_lead;
            self.planning.soon();
        }
    }

    fn holds_lease(&self, now: Instant) -> bool {
        self.inputs.leadership.borrow().leads(now)
    }

    /// Whether this gateway leads and knows enough to write.
    fn leads(&self, now: Instant) -> bool {
        self.peer_poll.is_known
            && self.duplicate_name.is_free()
            && self.term.version().is_some()
            && self.holds_lease(now)
    }

    /// Requests the version of the Services, if this gateway holds the Lease and doesn't know the version yet.
    fn term(&mut self, now: Instant) {
        if !self.holds_lease(now) {
            self.term.lost();
        } else if let Some(number) = self.term.request(now) {
            self.requests.send(
                |connector| async move { peer_poll::services_version(&connector).await },
                move |writer, result, now| writer.term_received(number, result, now),
            );
        }
    }

    /// The newest round, with the current state of the source.
    fn observation(&self) -> Option<Observation> {
        let observation = self.inputs.observations.borrow().clone()?;
        let source_connected = self.inputs.source.borrow().connected;
        Some(Observation { source_connected, ..observation })
    }

    fn plan(&mut self, now: Instant) {
        self.planning.start();
        let leads = self.leads(now);
        self.peer_poll.peers.set_lapsed(self.inputs.leadership.borrow().lapsed.as_deref());
        let withdrawn = self.peer_poll.peers.withdrawn();
        let observation = self.observation();
        self.publish_peer_releases(leads, withdrawn, observation.as_ref());
        let Some(observation) = observation else { return };
        self.refresh_for_gateways(&observation);
        let peers = self.peer_poll.peers.live();
        let wall = Timestamp::now();
        let polled = now.saturating_duration_since(self.peer_poll.peers.polled());
        let situation = Situation {
            observation: &observation,
            identity: &self.identity,
            peers: &peers,
            polled: wall.saturating_sub(polled).unwrap_or(wall),
            duplicate_name: self.duplicate_name.other_user(now),
            cannot_lead: self.cannot_lead.as_deref(),
            // A leader doesn't write from a round that was computed as a follower. Its next round will follow.
            leads: leads && observation.decides,
            withdrawn,
            now: wall,
        };
        let written = &self.status.written;
        let (plan, status) = self.planning.plan(&situation, leads, written, &self.counts, now);
        self.status.set(&status, now);
        let Plan { writes, events, waits_for_peers, plan_again_at: _ } = plan;
        let jobs = writes.into_iter().filter_map(|write| {
            let seen = PlannedFrom::of(&write, &observation.objects)?;
            Some(Job { write, seen })
        });
        self.queue.replace(jobs);
        events.into_iter().for_each(|event| self.recorder.record(event));
        let is_withheld = observation.waits_for.is_some_and(|version| version > withdrawn);
        if leads && (waits_for_peers || is_withheld) {
            self.peer_poll.poll_soon(now);
        }
    }

    /// Requests that the source lists the Services if a Gateway releases its addresses in a newer version than theirs.
    /// The leader waits until every gateway reports that version, which could take until the next bookmark.
    fn refresh_for_gateways(&mut self, observation: &Observation) {
        let Observation { objects, gateway_states, version, .. } = observation;
        let releases = |gateway: &Gateway| {
            gateway.is_finalized_by_us()
                && (gateway.meta.deletion_time.is_some()
                    || gateway.status.addresses.is_empty()
                    || !gateway_states.gateways.contains_key(&gateway.meta.key))
        };
        let released = objects.gateways.values().filter(|gateway| releases(gateway));
        let newest = released.map(|gateway| gateway.version.0).max().unwrap_or(0);
        if newest > self.refreshed.max(*version) {
            self.refreshed = newest;
            self.outputs.refresh.notify_one();
        }
    }

    /// Publishes the state of the other gateways to reconcile rounds. Progress is published only if something waits.
    fn publish_peer_releases(&self, leads: bool, withdrawn: u64, observation: Option<&Observation>) {
        let leader_since = self.term.version().filter(|_| leads).unwrap_or(0);
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
            let is_same = (published.leads, published.leader_since) == (leads, leader_since)
                && *published.addresses == addresses
                && *published.live == live
                && (withdrawn == published.withdrawn || is_progress && !waits);
            if is_same {
                return false;
            }
            (published.leads, published.withdrawn, published.leader_since) = (leads, withdrawn, leader_since);
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
                Next::Send(target, write) => self.requests.send_as_leader(
                    |client| write_request::send(client, *write),
                    move |writer, result, now| writer.write_ended(&target, &result, now),
                ),
                Next::At(at) => return Some(at),
                Next::Nothing => return None,
            }
        }
    }

    /// Polls the other gateways.
    fn poll_peers(&mut self, now: Instant) {
        self.peer_poll.start(now);
        let own_applied =
            self.inputs.observations.borrow().as_ref().map_or(0, |o| o.forwarding.version_applied);
        let poll = (own_applied, self.status.is_written());
        self.requests.send(
            |connector| async move { peer_poll::gateways(&connector).await },
            move |writer, result, now| writer.gateways_listed(poll, result, now),
        );
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
            duplicate_name: self.duplicate_name.other_user(now),
            cannot_lead: self.cannot_lead.as_deref(),
            now: Timestamp::now(),
        };
        let mut status = gateway_status(&situation, &self.status.written);
        status.last_heartbeat = Some(heartbeat_time());
        let (over, name) = (self.status.start(), self.identity.name.clone());
        self.requests.send(
            |connector| async move {
                let written = own_status::write(&connector, &name, over, &mut status).await;
                (status, written)
            },
            |writer, (status, written), now| writer.status_written(status, written, now),
        );
    }

    /// Writes the last status before this gateway stops writing, unless it was already written.
    fn write_last_status(&mut self, now: Instant) {
        let Some(mut status) = self.status.last(now) else { return };
        let name = self.identity.name.clone();
        self.requests.send(
            |connector| async move {
                own_status::write(&connector, &name, Overwrites::Any, &mut status).await
            },
            |writer, written, now| writer.status.last_status_written(&written, now),
        );
    }
}
