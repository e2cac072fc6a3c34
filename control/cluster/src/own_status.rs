//! Decides when and how this gateway writes its own `GatewayStatus`.
//!
//! A change is written at least a second after the last write. Without a change, there is a write every ten seconds as
//! a heartbeat. The requests run in the background of `writer`.
//!
//! A write is conditional on the version that this gateway wrote last. If another gateway has written since (to report
//! a duplicate name), the API server responds with a conflict, and the object is read before it is written again.

use std::time::Duration;

use jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use tidegate_model::time::whole_seconds;
use tidegate_policy::pools::FIELD_MANAGER;
use tidegate_source::kubernetes::Connector;
use tokio::time::Instant;

use super::crd::{GatewayStatus, GatewayStatusStatus};
use super::reasons::{condition_reason, condition_type};
use super::request::{self, RequestError, with_client, within};

/// The interval at which an unchanged status is written.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(10);
/// The minimum time between two writes.
const WRITE_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// The maximum time to read what another gateway wrote before overwriting it.
const READ_MAX: Duration = Duration::from_secs(2);

/// When and how the status is written.
#[derive(Debug, Default)]
pub(super) struct OwnStatus {
    /// The last written status.
    pub(super) written: GatewayStatusStatus,
    /// Whether the object is known to exist.
    exists: bool,
    /// The resourceVersion of our last write; `None` if another gateway has written since.
    version: Option<String>,
    is_in_progress: bool,
    due: Option<Instant>,
    last: Option<Instant>,
    failures: u32,
    write_failure: Option<WriteFailure>,
}

/// Why the last writes failed, and since when.
#[derive(Debug)]
struct WriteFailure {
    since: Timestamp,
    why: String,
}

impl OwnStatus {
    /// When the next write is due; `None` during a write, and before there is a status.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due.filter(|_| !self.is_in_progress)
    }

    /// Records the current status.
    pub(super) fn set(&mut self, status: &GatewayStatusStatus, now: Instant) {
        if *status != self.written {
            let soonest = self.last.map_or(now, |last| last + WRITE_INTERVAL_MIN);
            self.due = Some(self.due.map_or(soonest, |due| due.min(soonest)));
        }
    }

    /// Whether the status was written.
    pub(super) fn is_written(&self) -> bool {
        self.exists
    }

    /// Why the status could not be written recently, as text for display. A single failure is ignored.
    pub(super) fn failure(&self) -> Option<String> {
        let WriteFailure { since, why } = self.write_failure.as_ref().filter(|_| self.failures > 1)?;
        let since = whole_seconds(*since);
        Some(format!(
            "the GatewayStatus of this gateway has not been written since {since}, so other gateways reassign \
             addresses without waiting for this gateway: {why}; accepted: the CRDs and RBAC rules of \
             deploy/kubernetes/base"
        ))
    }

    /// Starts a write. Returns what it overwrites.
    pub(super) fn start(&mut self) -> Overwrites {
        self.is_in_progress = true;
        match &self.version {
            _ if !self.exists => Overwrites::Nothing,
            Some(version) => Overwrites::Version(version.clone()),
            None => Overwrites::Any,
        }
    }

    /// Stops the writes. Returns the last status to write; `None` if none was written before, or while a write is in
    /// progress or waits for a retry.
    pub(super) fn last(&mut self, now: Instant) -> Option<GatewayStatusStatus> {
        if self.is_in_progress || self.due.is_some_and(|due| self.failures > 0 && now < due) {
            return None;
        }
        self.due = None;
        let status = self.final_status()?;
        self.is_in_progress = true;
        Some(status)
    }

    /// Records that the last write ended.
    pub(super) fn last_status_written(&mut self, result: &Written, now: Instant) {
        self.is_in_progress = false;
        match result {
            Err(error) if error.code() != Some(404) => {
                self.failures = (self.failures + 1).min(3);
                self.due = Some(now + HEARTBEAT * self.failures);
            }
            // If writes start again, they start from scratch.
            _ => *self = Self::default(),
        }
    }

    /// Records that a write ended. Returns whether another gateway had written, so that the object must be read before
    /// the next write.
    pub(super) fn ended(&mut self, status: GatewayStatusStatus, result: Written, now: Instant) -> bool {
        self.is_in_progress = false;
        self.last = Some(now);
        match result {
            Ok(version) => {
                (self.exists, self.failures) = (true, 0);
                if self.write_failure.take().is_some() {
                    tracing::info!("writing the GatewayStatus of this gateway works again");
                }
                (self.written, self.version) = (status, version);
                self.due = Some(now + HEARTBEAT);
                false
            }
            Err(error) if error.code() == Some(409) && self.version.take().is_some() => {
                self.due = Some(now + READ_MAX);
                true
            }
            Err(error) => {
                self.exists = false;
                let why = error.to_string();
                if self.write_failure.as_ref().is_none_or(|before| before.why != why) {
                    tracing::warn!(error = why, "cannot write the GatewayStatus of this gateway");
                }
                let since = self.write_failure.as_ref().map_or_else(Timestamp::now, |before| before.since);
                self.write_failure = Some(WriteFailure { since, why });
                self.failures = (self.failures + 1).min(3);
                self.due = Some(now + HEARTBEAT * self.failures);
                false
            }
        }
    }

    /// The final status, after the daemon has withdrawn its addresses, so that other gateways no longer wait for this
    /// one. `None` if no status was ever written.
    pub(super) fn final_status(&self) -> Option<GatewayStatusStatus> {
        if !self.exists {
            return None;
        }
        let mut status = self.written.clone();
        (status.leader, status.stopped) = (false, true);
        status.last_heartbeat = Some(heartbeat_time());
        status.vips.clear();
        status.vip_count = 0;
        for condition in &mut status.conditions {
            let is_ready = condition.kind == condition_type::READY.as_str();
            let after = match condition.status.as_str() {
                "True" if is_ready => "False",
                // A drain in progress is complete when the gateway stops.
                "False" if condition.kind == condition_type::DRAINED.as_str() => "True",
                _ => continue,
            };
            condition.status = after.to_owned();
            condition.reason = condition_reason::STOPPED.as_str().to_owned();
            condition.last_transition_time = heartbeat_time();
            if !is_ready {
                condition.message.clear();
            }
        }
        Some(status)
    }
}

/// The current time in whole seconds.
pub(super) fn heartbeat_time() -> String {
    whole_seconds(Timestamp::now()).to_string()
}

/// The resourceVersion of the written object, or the error.
pub(super) type Written = Result<Option<String>, RequestError>;

/// What a write of the status overwrites.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Overwrites {
    /// Nothing: the object may not exist and is created first.
    Nothing,
    /// Exactly this resourceVersion.
    Version(String),
    /// Any version.
    Any,
}

/// Writes the status. Its conditions get the generation of the object, at the latest in the next write.
pub(super) async fn write(
    connector: &Connector,
    name: &str,
    over: Overwrites,
    status: &mut GatewayStatusStatus,
) -> Written {
    with_client(connector, |client| async move {
        let api: Api<GatewayStatus> = Api::all(client);
        if over == Overwrites::Nothing {
            let apply = PatchParams::apply(FIELD_MANAGER).force();
            let object = within(api.patch(name, &apply, &Patch::Apply(request::gateway(name)))).await?;
            observe(status, &object);
        }
        let mut patch = request::own_status("GatewayStatus", name, status);
        if let Overwrites::Version(version) = over {
            patch["metadata"]["resourceVersion"] = version.into();
        }
        let (object, _) = request::apply_status(&api, name, patch).await?;
        observe(status, &object);
        Ok(object.metadata.resource_version)
    })
    .await
}

/// Sets the observed generation of the conditions. `kubectl wait` ignores conditions of an older generation.
fn observe(status: &mut GatewayStatusStatus, object: &GatewayStatus) {
    let generation = object.metadata.generation.unwrap_or_default();
    status.conditions.iter_mut().for_each(|condition| condition.observed_generation = generation);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_that_cannot_be_written_is_reported_until_it_is_written() {
        let mut own = OwnStatus::default();
        let now = Instant::now();
        let fails = |own: &mut OwnStatus| {
            let refused = RequestError::Unconnected("403 Forbidden".to_owned());
            own.ended(GatewayStatusStatus::default(), Err(refused), now)
        };
        assert_eq!((fails(&mut own), own.failure()), (false, None), "a single failure is ignored");
        fails(&mut own);
        let text = own.failure().expect("the second failure is reported");
        assert!(text.contains("not been written since 20") && text.contains("403 Forbidden"), "{text}");
        own.ended(GatewayStatusStatus::default(), Ok(None), now);
        assert_eq!(own.failure(), None);
        fails(&mut own);
        assert_eq!(own.failure(), None, "the count starts again");
    }
}
