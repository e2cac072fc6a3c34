//! Stops gateways from writing during an uninstallation: acquires the Lease and waits until they have stopped.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, PostParams, Preconditions};
use tokio::time::{Instant, sleep};

use super::error::{UninstallError, failed};
use crate::crd::GatewayStatus;
use crate::lease::{self, LEASE, UNINSTALLED};
use crate::peers::LIVE;
use crate::request::within;

/// The interval of polls of the gateways.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum wait for gateways: older ones don't know this holder of the Lease and keep writing their status. It is
/// longer than [`LIVE`], so that a dead gateway is detected.
const SILENT_MAX: Duration = Duration::from_secs(LIVE.as_secs() + 10);
/// A gateway whose heartbeat is older than this by the clock of this machine is not live, even if the clocks differ.
const HEARTBEAT_MAX_AGE: jiff::SignedDuration = jiff::SignedDuration::from_mins(10);
/// The duration that the Lease states while it is held for the uninstallation.
const HELD_FOR: Duration = Duration::from_secs(3600);
/// The maximum number of attempts to change the Lease, which a gateway may renew meanwhile.
pub(super) const ATTEMPTS: usize = 10;

/// A gateway, from its `GatewayStatus`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gateway {
    pub(super) name: String,
    uid: Option<String>,
    heartbeat: Option<String>,
    stopped: bool,
}

impl Gateway {
    fn of(object: &DynamicObject) -> Option<Self> {
        let status = &object.data["status"];
        Some(Self {
            name: object.metadata.name.clone()?,
            uid: object.metadata.uid.clone(),
            heartbeat: status["lastHeartbeat"].as_str().map(str::to_owned),
            stopped: status["stopped"].as_bool().unwrap_or(false),
        })
    }

    /// Whether it may still be running, according to its last report.
    pub(super) fn may_run(&self) -> bool {
        let last = self.heartbeat.as_deref().and_then(|beat| beat.parse::<Timestamp>().ok());
        !self.stopped && last.is_some_and(|last| Timestamp::now().duration_since(last) < HEARTBEAT_MAX_AGE)
    }
}

/// The `GatewayStatus` objects of a cluster.
#[derive(Debug)]
pub(super) struct Gateways {
    api: Api<DynamicObject>,
}

impl Gateways {
    pub(super) fn new(client: Client) -> Self {
        Self { api: Api::all_with(client, &ApiResource::erase::<GatewayStatus>(&())) }
    }

    /// All gateways; none if the definition of their kind does not exist.
    pub(super) async fn list(&self) -> Result<Vec<Gateway>, UninstallError> {
        match within(self.api.list(&ListParams::default())).await {
            Ok(list) => Ok(list.items.iter().filter_map(Gateway::of).collect()),
            Err(error) if error.code() == Some(404) => Ok(Vec::new()),
            Err(error) => Err(failed("cannot list the GatewayStatus objects")(error)),
        }
    }

    /// Waits until no gateway writes: each has set `stopped`, or its heartbeat has not changed for [`LIVE`]. Returns
    /// the names of the running gateways among those that existed `before` the Lease was acquired. A gateway that sets
    /// `stopped` later still runs.
    pub(super) async fn silenced(
        &self,
        before: Vec<Gateway>,
        report: &mut (impl FnMut(&str) + Send),
    ) -> Result<Vec<String>, UninstallError> {
        let start = Instant::now();
        let mut running: BTreeMap<String, Option<String>> =
            before.into_iter().filter(Gateway::may_run).map(|one| (one.name, one.heartbeat)).collect();
        let mut has_logged = false;
        loop {
            let all = self.list().await?;
            let writing: Vec<&Gateway> =
                all.iter().filter(|one| !one.stopped && running.contains_key(&one.name)).collect();
            if writing.is_empty() {
                break;
            }
            if !has_logged {
                let names: Vec<&str> = writing.iter().map(|one| one.name.as_str()).collect();
                report(&format!("waiting for the gateways to stop writing: {}", names.join(", ")));
                has_logged = true;
            }
            if start.elapsed() >= LIVE {
                // A gateway whose heartbeat has not changed is dead.
                let dead = |one: &&Gateway| running.get(&one.name) == Some(&one.heartbeat);
                let (dead, alive): (Vec<&Gateway>, Vec<&Gateway>) = writing.into_iter().partition(dead);
                dead.iter().for_each(|one| drop(running.remove(&one.name)));
                if alive.is_empty() || start.elapsed() >= SILENT_MAX {
                    break;
                }
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(running.into_keys().collect())
    }

    /// Deletes all objects. Returns those that could not be deleted, with the reason.
    pub(super) async fn delete_all(
        &self,
        report: &mut (impl FnMut(&str) + Send),
    ) -> Result<Vec<String>, UninstallError> {
        let mut remaining = Vec::new();
        for gateway in self.list().await? {
            let preconditions = Some(Preconditions { uid: gateway.uid, resource_version: None });
            let params = DeleteParams { preconditions, ..DeleteParams::default() };
            match within(self.api.delete(&gateway.name, &params)).await {
                Ok(_) => report(&format!("deleted GatewayStatus {}", gateway.name)),
                Err(error) if matches!(error.code(), Some(404 | 409)) => {}
                Err(error) => remaining.push(format!("GatewayStatus {}: {error}", gateway.name)),
            }
        }
        Ok(remaining)
    }
}

/// Holds the Lease, so that no gateway acquires it.
#[derive(Debug)]
pub(super) struct LeaseGuard {
    api: Api<Lease>,
    namespace: String,
    /// The previous holder.
    pub(super) previous: PreviousHolder,
}

/// The holder of the Lease before it was acquired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PreviousHolder {
    /// No holder, or one that did not renew it.
    None,
    /// The gateway of this name.
    Gateway(String),
    /// Another uninstallation. Gateways that left no other trace may still run.
    Uninstallation,
}

impl PreviousHolder {
    fn of(lease: &Lease) -> Self {
        let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
        let is_fresh = renewed.is_some_and(|at| Timestamp::now().duration_since(at) < HEARTBEAT_MAX_AGE);
        match lease::holder(lease) {
            Some(UNINSTALLED) => Self::Uninstallation,
            Some(holder) if is_fresh => Self::Gateway(lease::gateway_of(holder).to_owned()),
            _ => Self::None,
        }
    }
}

impl LeaseGuard {
    /// Acquires the Lease from its holder. A leader then stops writing, because its next renewal is refused.
    pub(super) async fn take(client: &Client, namespace: &str) -> Result<Self, UninstallError> {
        let api = Api::namespaced(client.clone(), namespace);
        let mut guard = Self { api, namespace: namespace.to_owned(), previous: PreviousHolder::None };
        guard.previous = guard.change(UNINSTALLED).await.map_err(failed(guard.what("acquire")))?;
        Ok(guard)
    }

    /// Releases the Lease, so that the gateways continue to write.
    pub(super) async fn release(&self) {
        if let Err(error) = self.change("").await {
            tracing::warn!(
                lease = LEASE,
                namespace = self.namespace,
                %error,
                "cannot release the Lease; gateways write nothing until you delete the Lease"
            );
        }
    }

    /// Deletes the Lease. Returns the reason if that failed.
    pub(super) async fn delete(&self) -> Option<String> {
        match within(self.api.delete(LEASE, &DeleteParams::default())).await {
            Ok(_) => None,
            Err(error) if error.code() == Some(404) => None,
            Err(error) => Some(format!("{}: {error}", self.what("delete"))),
        }
    }

    fn what(&self, action: &str) -> String {
        format!("cannot {action} the Lease {}/{LEASE}", self.namespace)
    }

    /// Sets the holder. Returns the previous one.
    async fn change(&self, holder: &str) -> Result<PreviousHolder, crate::request::RequestError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let spec = Some(lease::acquired(holder, HELD_FOR, Timestamp::now()));
            let (before, result) = match within(self.api.get(LEASE)).await {
                Ok(found) => {
                    let before = PreviousHolder::of(&found);
                    let lease = Lease { spec, ..found };
                    (before, within(self.api.replace(LEASE, &PostParams::default(), &lease)).await)
                }
                Err(error) if error.code() == Some(404) => {
                    let lease = Lease { metadata: lease::metadata(&self.namespace), spec };
                    let created = within(self.api.create(&PostParams::default(), &lease)).await;
                    (PreviousHolder::None, created)
                }
                Err(error) => return Err(error),
            };
            match result {
                // It was renewed or created meanwhile.
                Err(error) if error.code() == Some(409) && attempt < ATTEMPTS => {}
                Err(error) => return Err(error),
                Ok(_) => return Ok(before),
            }
        }
    }
}
