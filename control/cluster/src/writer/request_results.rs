//! Handles the results of the writer's requests.

use tidegate_model::objects::ObjectKey;
use tokio::time::Instant;

use super::Writer;
use crate::counts::Ended;
use crate::crd::{GatewayStatus, GatewayStatusStatus};
use crate::drain_annotation::DrainAnnotation;
use crate::duplicate_name;
use crate::elect::Candidacy;
use crate::event::{Event, Regarding};
use crate::own_status::Written;
use crate::peer_poll;
use crate::queue::{Outcome, Target};
use crate::reasons::event_reason;
use crate::request::{self, RequestError};

impl Writer {
    fn ip_mode_refused(&mut self, target: &Target, now: Instant) {
        if self.planning.leave_out_ip_mode() {
            tracing::warn!(
                "the API server does not support ipMode, which needs Kubernetes 1.29; writing status without it"
            );
        }
        self.counts.ended(Ended::Failed);
        // The next plan contains another write for this target.
        self.queue.ended(target, &Outcome::Superseded, now);
        self.planning.soon();
    }

    /// Handles the result of a planned write.
    pub(super) fn write_ended(&mut self, target: &Target, result: &Result<(), RequestError>, now: Instant) {
        if result.as_ref().is_err_and(RequestError::is_about_ip_mode) {
            return self.ip_mode_refused(target, now);
        }
        let (outcome, ended) = request::classify(result);
        self.counts.ended(ended);
        self.queue.ended(target, &outcome, now);
        if let (Outcome::Failed, Err(error)) = (&outcome, result) {
            self.log_failure(target, error, now);
            self.report_failure(target, error);
        }
    }

    fn log_failure(&mut self, target: &Target, error: &RequestError, now: Instant) {
        match self.failure_lines.take_reporting(target.namespace(), now) {
            Some(left_out) => {
                let left_out = Some(left_out).filter(|count| *count > 0);
                tracing::warn!(write = %target, %error, left_out, "a write to the API server failed and will be retried");
            }
            None => self.counts.line_left_out(),
        }
    }

    /// Records an event on a Service or Gateway that can't be written.
    fn report_failure(&self, target: &Target, error: &RequestError) {
        let key = match target {
            Target::Finalizer(key) | Target::Status(key) => key.clone(),
            Target::GatewayApi("Gateway", key) => ObjectKey::of_gateway(&key.namespace, &key.name),
            Target::GatewayApi(..) | Target::Pool(_) | Target::PoolFinalizer(_) => return,
        };
        // Other errors are faults of the connection, not of this Service.
        let Some(400 | 403 | 422) = error.code() else { return };
        let observation = self.inputs.observations.borrow();
        let service = observation.as_ref().and_then(|o| o.objects.services.get(&key));
        let uid = service.map(|service| service.meta.uid.clone()).unwrap_or_default();
        let note = format!("Error syncing load balancer: {error}");
        let regarding = Regarding::service(&key, uid);
        self.recorder.record(Event::new(regarding, event_reason::SYNC_FAILED, &note));
    }

    /// Handles a list of the gateways. When it was requested, this gateway had applied version `own_applied` of the
    /// Services; `is_written`: whether its own status was written by then.
    pub(super) fn gateways_listed(
        &mut self,
        (own_applied, is_written): (u64, bool),
        result: Result<Vec<GatewayStatus>, RequestError>,
        now: Instant,
    ) {
        if !self.peer_poll.ended(result, own_applied, now) {
            return;
        }
        self.check_name(is_written, now);
        self.read_drain_annotation();
        let sharing = Some(self.peer_poll.peers.sharing());
        self.outputs.sharing_peers.send_if_modified(|last| {
            let is_new = *last != sharing;
            *last = sharing;
            is_new
        });
        if self.leads(now) {
            // Mark gateways without a heartbeat, and delete those that are gone for good.
            for silent in self.peer_poll.silent() {
                let name = silent.name.clone();
                let mark = |client| peer_poll::mark(client, silent);
                self.requests.send_as_leader(mark, move |_, result, _| log_marked(&name, result));
            }
            for gone in self.peer_poll.gone() {
                let name = gone.name.clone();
                let forget = |client| peer_poll::forget(client, gone);
                self.requests.send_as_leader(forget, move |_, result, _| log_forgotten(&name, result));
            }
        }
        self.planning.soon();
    }

    /// Reads from the list of gateways whether this one must drain. An object that another gateway wrote under our name
    /// doesn't apply to this one. If there is no object, the last known annotation stays.
    fn read_drain_annotation(&mut self) {
        let own = self.peer_poll.peers.own().filter(|_| self.duplicate_name.is_free());
        let Some(annotation) = own.map(DrainAnnotation::of) else { return };
        self.outputs.drain_annotation.send_if_modified(|last| {
            let is_new = *last != annotation;
            if let Some(fault) = annotation.fault().filter(|_| is_new) {
                tracing::warn!(gateway = self.identity.name, "{fault}");
            }
            *last = annotation;
            is_new
        });
    }

    /// Checks in the list of gateways whether another one has our name. `is_written`: whether this gateway had written
    /// its status before the request.
    fn check_name(&mut self, is_written: bool, now: Instant) {
        self.duplicate_name.seen(self.peer_poll.peers.own(), is_written, now);
        if self.duplicate_name.is_undecided() {
            self.peer_poll.poll_soon(now);
        }
        let taken = self.duplicate_name.taken().map(str::to_owned);
        let candidacy = match (&taken, self.duplicate_name.is_free()) {
            (Some(_), _) => Candidacy::Cut,
            (None, true) => Candidacy::Candidate,
            (None, false) => Candidacy::NotYet,
        };
        let is_new =
            self.outputs.candidacy.send_if_modified(|last| std::mem::replace(last, candidacy) != candidacy);
        let Some(who) = taken else { return };
        if is_new {
            tracing::error!(
                gateway = self.identity.name,
                other = who,
                "another gateway has the same name, so this one does not lead and writes no status; give each gateway a \
                 unique metadata.name"
            );
        }
        // The report contains the addresses of this gateway, so that an operator can find it. They are known after the
        // first round.
        let Some(observation) = self.observation() else { return self.peer_poll.poll_soon(now) };
        if self.duplicate_name.start_report() {
            let addresses: Vec<String> = observation.own_addresses.iter().map(ToString::to_string).collect();
            let node = self.identity.node.as_deref().unwrap_or_default();
            let who = duplicate_name::described(&self.identity.instance, node, &addresses);
            let name = self.identity.name.clone();
            self.requests.send(
                |connector| async move { peer_poll::report_duplicate_name(&connector, &name, &who).await },
                |writer, result, _| writer.duplicate_name_reported(result),
            );
        }
    }

    fn duplicate_name_reported(&mut self, result: Result<(), RequestError>) {
        self.duplicate_name.report_ended();
        // Publish this only after the report: the process may exit as a result, and the other gateway would never be
        // informed.
        let taken_by = self.duplicate_name.taken().map(str::to_owned);
        self.outputs.name_taken.send_if_modified(|last| {
            let is_new = last.is_none();
            *last = last.take().or(taken_by);
            is_new
        });
        if let Err(error) = result {
            tracing::warn!(%error, "cannot report the duplicate name to the other gateway");
        }
    }

    /// Handles the version of the Services with which the term `number` starts.
    pub(super) fn term_received(&mut self, number: u64, result: Result<u64, RequestError>, now: Instant) {
        // Otherwise the Lease was lost in the meantime.
        if !self.holds_lease(now) {
            return;
        }
        let Some(version) = self.term.received(number, result, now) else { return };
        // Fetch the writes of the previous leader without waiting for a bookmark.
        let seen = self.inputs.observations.borrow().as_ref().map_or(0, |o| o.version);
        if seen < version {
            self.outputs.refresh.notify_one();
        }
        self.planning.soon();
    }

    /// Handles the result of a write of this gateway's status.
    pub(super) fn status_written(&mut self, status: GatewayStatusStatus, result: Written, now: Instant) {
        // Plan for changes that arrived during the request.
        if result.is_ok() {
            self.planning.soon();
        }
        if self.status.ended(status, result, now) {
            self.peer_poll.poll_soon(now);
        }
    }
}

fn log_marked(name: &str, result: Result<(), RequestError>) {
    match result {
        Ok(()) => tracing::warn!(
            gateway = name,
            "no heartbeat from the gateway for 40 s: its conditions are now Unknown"
        ),
        Err(error) => {
            tracing::debug!(gateway = name, %error, "cannot set the conditions of the gateway to Unknown");
        }
    }
}

fn log_forgotten(name: &str, result: Result<(), RequestError>) {
    match result {
        Ok(()) => tracing::info!(
            gateway = name,
            "no heartbeat from the gateway for a day; deleted its GatewayStatus"
        ),
        // The gateway has written again, or its object is already deleted.
        Err(error) if matches!(error.code(), Some(404 | 409)) => {}
        Err(error) => {
            tracing::warn!(gateway = name, %error, "cannot delete the GatewayStatus of a gateway that is gone");
        }
    }
}
