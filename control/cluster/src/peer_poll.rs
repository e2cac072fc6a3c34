//! Polls the GatewayStatus objects of the other gateways.
//!
//! [`PeerPoll`] schedules the polls and stores the last result; `writer` sends the requests in the background. It polls
//! every ten seconds, and every second until the first poll succeeds and while something waits for other gateways.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use kube::Client;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions,
};
use serde_json::{Value, json};
use tidegate_policy::pools::FIELD_MANAGER;
use tidegate_source::kubernetes::Connector;
use tokio::time::Instant;

use super::crd::{Condition, GatewayStatus, GatewayStatusSpec, GatewayStatusStatus};
use super::duplicate_name::NAME_UNIQUE;
use super::own_status::heartbeat_time;
use super::peers::{Gone, Peers, Silent};
use super::reasons::condition_reason;
use super::request::{RequestError, with_client, within};

/// The interval of polls.
const INTERVAL: Duration = Duration::from_secs(10);
/// The interval of polls while a Service waits for other gateways.
const INTERVAL_WAITING: Duration = Duration::from_secs(1);
/// The maximum number of attempts to report a duplicate name.
const REPORTS_MAX: usize = 3;
/// The maximum number of objects of silent gateways that are marked, and of removed ones that are deleted, per poll.
const GONE_MAX: usize = 8;

/// The polls of the other gateways.
#[derive(Debug)]
pub(super) struct PeerPoll {
    pub(super) peers: Peers,
    /// Whether the API server has listed the other gateways.
    pub(super) is_known: bool,
    at: Instant,
    started: Option<Instant>,
    is_in_progress: bool,
    /// Why the last poll failed, to log each reason once.
    error: Option<String>,
}

impl PeerPoll {
    pub(super) fn new(own_name: &str, now: Instant) -> Self {
        let peers = Peers::new(own_name, now);
        Self { peers, is_known: false, at: now, started: None, is_in_progress: false, error: None }
    }

    /// When the next poll is due; `None` while one is in progress.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.is_in_progress).then_some(self.at)
    }

    pub(super) fn start(&mut self, now: Instant) {
        (self.started, self.is_in_progress) = (Some(now), true);
    }

    /// Polls soon, because something waits for the other gateways.
    pub(super) fn poll_soon(&mut self, now: Instant) {
        self.at = self.at.min(self.started.map_or(now, |started| started + INTERVAL_WAITING));
    }

    /// Records the end of a poll. `own_applied` is the version of the Services that this gateway had applied at its
    /// start. Returns whether the poll succeeded.
    pub(super) fn ended(
        &mut self,
        result: Result<Vec<GatewayStatus>, RequestError>,
        own_applied: u64,
        now: Instant,
    ) -> bool {
        self.is_in_progress = false;
        self.at = now + if self.is_known || result.is_ok() { INTERVAL } else { INTERVAL_WAITING };
        let started = self.started.unwrap_or(now);
        match result {
            Ok(list) => self.peers.listed(list, own_applied, started),
            // If the kind is missing, no other gateway can report a state. The pools of the configuration work without
            // it.
            Err(error) if error.code() == Some(404) => self.peers.listed(Vec::new(), own_applied, started),
            Err(error) => {
                let error = error.to_string();
                // Without the list no gateway leads, because an address could be assigned twice.
                if self.error.as_ref() != Some(&error) {
                    tracing::warn!(%error, "cannot list the other gateways; trying again");
                }
                self.error = Some(error);
                return false;
            }
        }
        (self.is_known, self.error) = (true, None);
        true
    }

    /// Why the other gateways are unknown, so that this gateway can't lead.
    pub(super) fn failure(&self) -> Option<String> {
        let error = self.error.as_ref().filter(|_| !self.is_known)?;
        Some(format!("cannot list the other gateways: {error}"))
    }

    /// Gateways without a heartbeat, whose conditions the leader updates.
    pub(super) fn silent(&self) -> Vec<Silent> {
        let mut silent = self.peers.silent();
        silent.truncate(GONE_MAX);
        silent
    }

    /// Objects to be deleted by the leader.
    pub(super) fn gone(&self) -> Vec<Gone> {
        let mut gone = self.peers.gone(Timestamp::now());
        gone.truncate(GONE_MAX);
        gone
    }
}

/// All `GatewayStatus` objects.
pub(super) async fn gateways(connector: &Connector) -> Result<Vec<GatewayStatus>, RequestError> {
    with_client(connector, |client| async {
        let kind = ApiResource::erase::<GatewayStatus>(&());
        let api: Api<DynamicObject> = Api::all_with(client, &kind);
        let list = within(api.list(&ListParams::default())).await?;
        Ok(list.items.into_iter().map(read).collect())
    })
    .await
}

/// Parses an object field by field, so that an invalid field (for example, from another version of the definition)
/// affects neither other fields nor other gateways.
fn read(object: DynamicObject) -> GatewayStatus {
    let name = object.metadata.name.clone().unwrap_or_default();
    let mut read = GatewayStatus::new(&name, GatewayStatusSpec { gateway: name.clone() });
    read.metadata = object.metadata;
    if let Some(Value::Object(fields)) = object.data.get("status") {
        let is_valid = |(key, value): &(&String, &Value)| {
            serde_json::from_value::<GatewayStatusStatus>(json!({(*key): value})).is_ok()
        };
        let valid = fields.iter().filter(is_valid).map(|(key, value)| (key.clone(), value.clone()));
        read.status = serde_json::from_value(Value::Object(valid.collect())).ok();
    }
    read
}

/// Deletes the object of a gateway that no longer exists, unless the object was written again.
pub(super) async fn forget(client: Client, gone: Gone) -> Result<(), RequestError> {
    let Gone { name, uid, resource_version } = gone;
    let preconditions = Some(Preconditions { uid, resource_version });
    let params = DeleteParams { preconditions, ..DeleteParams::default() };
    let api: Api<GatewayStatus> = Api::all(client);
    within(api.delete(&name, &params)).await.map(|_| ())
}

/// Sets the conditions of a gateway without a heartbeat, unless its object was written again.
pub(super) async fn mark(client: Client, silent: Silent) -> Result<(), RequestError> {
    let Silent { name, resource_version, status } = silent;
    let patch = json!({
        "metadata": {"resourceVersion": resource_version},
        "status": {
            "leader": status.leader,
            "sourceConnected": status.source_connected,
            "conditions": status.conditions,
        },
    });
    merge_status(client, &name, patch).await
}

/// Reports to the gateway with our name, through its status, that this gateway has the same name. The other gateway
/// reads it before it writes its next status (`own_status`).
pub(super) async fn report_duplicate_name(
    connector: &Connector,
    name: &str,
    who: &str,
) -> Result<(), RequestError> {
    for _ in 1..REPORTS_MAX {
        match report_once(connector, name, who).await {
            // Its heartbeat was written in between.
            Err(error) if error.code() == Some(409) => {}
            ended => return ended,
        }
    }
    report_once(connector, name, who).await
}

async fn report_once(connector: &Connector, name: &str, who: &str) -> Result<(), RequestError> {
    // Read through a list, because the account has no permission to get a single object.
    let all = gateways(connector).await?;
    let own = all.into_iter().find(|one| one.metadata.name.as_deref() == Some(name));
    let Some(own) = own else { return Ok(()) };
    let mut conditions = own.status.map(|status| status.conditions).unwrap_or_default();
    conditions.retain(|condition| condition.kind != NAME_UNIQUE);
    conditions.push(Condition {
        kind: NAME_UNIQUE.to_owned(),
        status: "False".to_owned(),
        reason: condition_reason::NAME_TAKEN.as_str().to_owned(),
        message: format!("another process has the name of this gateway: {who}"),
        observed_generation: own.metadata.generation.unwrap_or_default(),
        last_transition_time: heartbeat_time(),
    });
    let patch = json!({
        "metadata": {"resourceVersion": own.metadata.resource_version},
        "status": {"conditions": conditions},
    });
    with_client(connector, |client| merge_status(client, name, patch)).await
}

async fn merge_status(client: Client, name: &str, patch: Value) -> Result<(), RequestError> {
    let api: Api<GatewayStatus> = Api::all(client);
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    within(api.patch_status(name, &params, &Patch::Merge(patch))).await.map(|_| ())
}

/// The current version of the Services at the API server.
pub(super) async fn services_version(connector: &Connector) -> Result<u64, RequestError> {
    with_client(connector, |client| async {
        let api: Api<Service> = Api::all(client);
        let list = within(api.list_metadata(&ListParams::default().limit(1))).await?;
        let version = list.metadata.resource_version.unwrap_or_default();
        version
            .parse()
            .map_err(|_| RequestError::Unconnected(format!("resourceVersion {version:?} is not a number")))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_field_affects_no_other_field_of_a_gateway() {
        let object = serde_json::from_value(json!({
            "apiVersion": "tidegate.dev/v1alpha1", "kind": "GatewayStatus",
            "metadata": {"name": "edge-2", "resourceVersion": "7"},
            "spec": {"gateway": 5},
            "status": {
                "instance": "b", "services": "many", "vips": {"a": 1}, "addresses": ["192.0.2.2"],
                "lastHeartbeat": "2026-01-01T00:00:00Z", "conditions": [{"type": 1}], "fromTheFuture": true
            }
        }));
        let read = read(object.expect("an object"));
        assert_eq!(read.metadata.name.as_deref(), Some("edge-2"));
        let status = read.status.expect("a status");
        assert_eq!((status.instance.as_str(), &*status.addresses), ("b", &["192.0.2.2".to_owned()][..]));
        assert_eq!(status.last_heartbeat.as_deref(), Some("2026-01-01T00:00:00Z"));
        assert_eq!((status.services, status.vips.len(), status.conditions.len()), (0, 0, 0));
    }
}
