//! Removes what gateways wrote to a cluster (finalizers, conditions and statuses), so that Tidegate can be uninstalled
//! and its finalizers block no object.
//!
//! Running gateways would write it again. The Lease that decides which gateway writes is therefore acquired first,
//! under the name [`UNINSTALLED`](super::lease::UNINSTALLED). No gateway acquires it from that holder, and each gateway
//! that sees it sets `stopped` and stops writing. The gateways keep forwarding according to the status of Services
//! until that is cleared. `traces` finds our parts of objects; `gateways` waits for the gateways and holds the Lease.
//!
//! Every write is tried as a dry run before the first real one. If any is refused, nothing is changed.
//!
//! Invariant: nothing here needs a running gateway, its configuration, or the definitions of its kinds.

mod error;
mod gateways;
mod traces;

pub use error::UninstallError;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use k8s_openapi::api::core::v1::Service;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use serde_json::Value;
use tidegate_policy::pools::FIELD_MANAGER;
use tidegate_source::kubernetes::Connector;
use tokio::task::JoinSet;

use super::crd::AddressPool;
use super::gateway_api_request;
use super::request::{RequestError, within};
use error::failed;
use gateways::{Gateway, Gateways, LeaseGuard, PreviousHolder};
use traces::{Kind, Traces};

/// The number of objects per page.
const PAGE: u32 = 500;
/// The maximum number of requests in progress.
const IN_PROGRESS_MAX: usize = 8;
/// The maximum number of rounds of listing and releasing: an object may change while it is released.
const ROUNDS_MAX: usize = 5;

/// The options of an uninstallation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Change nothing; only check whether the API server would accept every write.
    pub dry_run: bool,
    /// Continue after a write is refused.
    pub keep_going: bool,
    /// The namespace of the Lease: `source.kubernetes.leaseNamespace` of the gateways.
    pub lease_namespace: String,
}

/// The result of an uninstallation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Uninstalled {
    /// The number of objects that were changed, or would be.
    pub released: usize,
    /// The parts that still exist, each with the reason.
    pub remaining: Vec<String>,
    /// Gateways that are running. They write nothing more as long as the Lease is held.
    pub running: Vec<String>,
    /// Whether the Lease remains held because gateways run, or may still run since an earlier uninstallation.
    pub holds_lease: bool,
}

/// Releases everything. `report` is called with a line for each step.
///
/// # Errors
/// Nothing was changed. Parts that could not be released are in [`Uninstalled::remaining`].
pub async fn uninstall(
    connector: &Connector,
    options: &Options,
    report: &mut (impl FnMut(&str) + Send),
) -> Result<Uninstalled, UninstallError> {
    let connection = connector.connection().await;
    let connection = connection.map_err(|error| UninstallError::Request {
        what: "cannot connect to the API server".into(),
        why: error.to_string(),
    })?;
    report(&format!("connected to the API server {}", connection.server));
    let client = connection.client;
    let gateways = Gateways::new(client.clone());
    let found = traces(&client).await?;
    if options.dry_run {
        return run_dry(&client, &gateways, found, report).await;
    }
    let before = gateways.list().await?;
    let guard = LeaseGuard::take(&client, &options.lease_namespace).await?;
    let mut running = gateways.silenced(before, report).await?;
    if let PreviousHolder::Gateway(name) = &guard.previous
        && !running.contains(name)
        && !gateways.list().await?.iter().any(|one| one.name == *name)
    {
        // Without the definition of GatewayStatus, only the Lease shows the gateway.
        running.push(name.clone());
    }
    // Search again: the gateways may have written more before they stopped.
    let found = traces(&client).await?;
    let refused = refusals(&client, found).await;
    if !refused.is_empty() && !options.keep_going {
        guard.release().await;
        return Err(UninstallError::Refused(refused));
    }
    let mut done = Uninstalled { running, ..Uninstalled::default() };
    let mut remaining: BTreeMap<String, String> = BTreeMap::new();
    let mut names = BTreeSet::new();
    for _ in 0..ROUNDS_MAX {
        let found = traces(&client).await?;
        remaining.clear();
        if found.is_empty() {
            break;
        }
        for (one, result) in release_all(&client, found, false).await {
            match result {
                Ok(()) => {
                    if names.insert(one.name()) {
                        report(&format!("released {}", one.describe()));
                    }
                }
                Err(error) => drop(remaining.insert(one.name(), format!("{}: {error}", one.describe()))),
            }
        }
    }
    done.released = names.len();
    done.remaining.extend(remaining.into_values());
    done.remaining.extend(gateways.delete_all(report).await?);
    done.holds_lease = !done.running.is_empty() || guard.previous == PreviousHolder::Uninstallation;
    if !done.holds_lease {
        done.remaining.extend(guard.delete().await);
    }
    Ok(done)
}

/// Performs a dry run. Returns the changes, and the writes that the API server would refuse.
async fn run_dry(
    client: &Client,
    gateways: &Gateways,
    found: Vec<Traces>,
    report: &mut (impl FnMut(&str) + Send),
) -> Result<Uninstalled, UninstallError> {
    for one in &found {
        report(&format!("would release {}", one.describe()));
    }
    let all = gateways.list().await?;
    for gateway in &all {
        report(&format!("would delete GatewayStatus {}", gateway.name));
    }
    let running = all.into_iter().filter(Gateway::may_run).map(|gateway| gateway.name);
    let (released, running) = (found.len(), running.collect());
    Ok(Uninstalled { released, remaining: refusals(client, found).await, running, holds_lease: false })
}

/// The writes that the API server would refuse, each with its reason.
async fn refusals(client: &Client, found: Vec<Traces>) -> Vec<String> {
    let results = release_all(client, found, true).await.into_iter();
    let refused = results.filter_map(|(one, result)| Some(format!("{}: {}", one.describe(), result.err()?)));
    refused.collect()
}

/// Releases all of these objects, a few at a time.
async fn release_all(
    client: &Client,
    found: Vec<Traces>,
    dry_run: bool,
) -> Vec<(Traces, Result<(), RequestError>)> {
    let (mut remaining, mut in_progress) = (VecDeque::from(found), JoinSet::new());
    let mut done = Vec::new();
    loop {
        while in_progress.len() < IN_PROGRESS_MAX
            && let Some(one) = remaining.pop_front()
        {
            let client = client.clone();
            in_progress.spawn(async move {
                let result = release_with_retries(&client, &one, dry_run).await;
                (one, result)
            });
        }
        match in_progress.join_next().await {
            Some(Ok(ended)) => done.push(ended),
            Some(Err(panic)) => std::panic::resume_unwind(panic.into_panic()),
            None => return done,
        }
    }
}

/// Everything that we wrote, on all objects.
async fn traces(client: &Client) -> Result<Vec<Traces>, UninstallError> {
    let mut found = Vec::new();
    for kind in Kind::ALL {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(kind));
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page = match within(api.list(&params)).await {
                // Without the definition, there are no objects of the kind.
                Err(error) if error.code() == Some(404) => break,
                page => page.map_err(failed(format!("cannot list the {} objects", kind.as_str())))?,
            };
            found.extend(page.items.iter().filter_map(|object| Traces::of(kind, &json_of(object))));
            match page.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => params = params.continue_token(&next),
                None => break,
            }
        }
    }
    Ok(found)
}

/// Like [`release`], but retries if the object was modified meanwhile: a running gateway writes statuses.
async fn release_with_retries(client: &Client, traces: &Traces, dry_run: bool) -> Result<(), RequestError> {
    let mut now = traces.clone();
    for _ in 1..gateways::ATTEMPTS {
        match release(client, &now, dry_run).await {
            Err(error) if error.code() == Some(409) => {}
            ended => return ended,
        }
        match remaining(now.kind, within(objects(client, &now).get(&now.key.name)).await)? {
            Some(remaining) if remaining.uid == now.uid => now = remaining,
            _ => return Ok(()),
        }
    }
    release(client, &now, dry_run).await
}

/// The API of the object's kind and namespace.
fn objects(client: &Client, traces: &Traces) -> Api<DynamicObject> {
    let resource = resource(traces.kind);
    if traces.key.namespace.is_empty() {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), &traces.key.namespace, &resource)
    }
}

/// Removes our parts from an object, or checks whether the API server would accept that.
async fn release(client: &Client, traces: &Traces, dry_run: bool) -> Result<(), RequestError> {
    let api = objects(client, traces);
    let name = &traces.key.name;
    let params =
        PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), dry_run, ..PatchParams::default() };
    let mut now = traces.clone();
    if traces.has_status() {
        if traces.kind.is_shared() {
            let apply = params.clone().force();
            let response =
                within(api.patch_status(name, &apply, &Patch::Apply(traces.apply_nothing()))).await;
            let Some(remaining) = remaining(traces.kind, response)? else { return Ok(()) };
            now = remaining;
        }
        if now.has_status() {
            let patch = now.status_patch(&if dry_run { traces } else { &now }.resource_version);
            let patch = match traces.kind {
                Kind::Service => Patch::Strategic(patch),
                _ => Patch::Merge(patch),
            };
            let response = within(api.patch_status(name, &params, &patch)).await;
            let Some(remaining) = remaining(traces.kind, response)? else { return Ok(()) };
            now = remaining;
        }
    }
    if now.has_finalizer() {
        // A dry run changes nothing, so the version is still the previous one.
        let patch = Patch::Merge(if dry_run { traces } else { &now }.finalizer_patch());
        remaining(traces.kind, within(api.patch(name, &params, &patch)).await)?;
    }
    Ok(())
}

/// Our parts that remain on an object according to the API server's response. A deleted object has none.
fn remaining(
    kind: Kind,
    response: Result<DynamicObject, RequestError>,
) -> Result<Option<Traces>, RequestError> {
    match response {
        Ok(object) => Ok(Traces::of(kind, &json_of(&object))),
        Err(error) if error.code() == Some(404) => Ok(None),
        Err(error) => Err(error),
    }
}

fn resource(kind: Kind) -> ApiResource {
    match kind {
        Kind::Service => ApiResource::erase::<Service>(&()),
        Kind::AddressPool => ApiResource::erase::<AddressPool>(&()),
        _ => gateway_api_request::resource(kind.as_str()),
    }
}

fn json_of(object: &DynamicObject) -> Value {
    serde_json::to_value(object).expect("it was parsed from JSON")
}
