//! Removes what gateways wrote to a cluster (finalizers, conditions and statuses), so that Tidegate can be
//! uninstalled and no object is blocked by its finalizers.
//!
//! Running gateways would write it again. So the Lease that decides which gateway writes is taken first, under the
//! name [`UNINSTALLED`](super::lease::UNINSTALLED): no gateway takes it from that holder, and each gateway that sees
//! it sets `stopped` and stops writing. The gateways keep forwarding by the status of Services until that is cleared.
//! `traces` finds what is ours; `gateways` waits for the gateways and holds the Lease.
//!
//! Every write is tried as a dry run before the first real one. If one is refused, nothing is changed.
//!
//! Invariant: nothing here needs a gateway, its configuration, or the definitions of its kinds.

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
use super::request::{RequestError, within};
use error::failed;
use gateways::{Before, Gateway, Gateways, Hold};
use traces::{Kind, Traces};

/// The number of objects in a page.
const PAGE: u32 = 500;
/// The maximum number of requests in progress.
const UNDER_WAY_MAX: usize = 8;
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
    pub left: Vec<String>,
    /// Gateways that are running. They write nothing more as long as the Lease is held.
    pub running: Vec<String>,
    /// Whether the Lease remains held, because gateways run, or may run since an earlier uninstallation.
    pub holds_lease: bool,
}

/// Releases everything. `say` is called with a line for each step.
///
/// # Errors
/// If nothing was changed. Parts that could not be released are in [`Uninstalled::left`].
pub async fn uninstall(
    connector: &Connector,
    options: &Options,
    say: &mut (impl FnMut(&str) + Send),
) -> Result<Uninstalled, UninstallError> {
    let connection = connector.connection().await;
    let connection = connection.map_err(|error| UninstallError::Request {
        what: "cannot connect to the API server".into(),
        why: error.to_string(),
    })?;
    say(&format!("connected to the API server {}", connection.server));
    let client = connection.client;
    let gateways = Gateways::new(client.clone());
    let found = traces(&client).await?;
    if options.dry_run {
        return rehearse(&client, &gateways, found, say).await;
    }
    let before = gateways.list().await?;
    let hold = Hold::take(&client, &options.lease_namespace).await?;
    let mut running = gateways.silenced(before, say).await?;
    if let Before::Gateway(name) = &hold.before
        && !running.contains(name)
        && !gateways.list().await?.iter().any(|one| one.name == *name)
    {
        // Without the definition of GatewayStatus, only the Lease shows the gateway.
        running.push(name.clone());
    }
    // These may have been written before the gateways noticed.
    let found = traces(&client).await?;
    let refused = refusals(&client, found).await;
    if !refused.is_empty() && !options.keep_going {
        hold.give_back().await;
        return Err(UninstallError::Refused(refused));
    }
    let mut done = Uninstalled { running, ..Uninstalled::default() };
    let mut left: BTreeMap<String, String> = BTreeMap::new();
    let mut names = BTreeSet::new();
    for _ in 0..ROUNDS_MAX {
        let found = traces(&client).await?;
        left.clear();
        if found.is_empty() {
            break;
        }
        for (one, result) in release_all(&client, found, false).await {
            match result {
                Ok(()) => {
                    if names.insert(one.name()) {
                        say(&format!("released {}", one.describe()));
                    }
                }
                Err(error) => drop(left.insert(one.name(), format!("{}: {error}", one.describe()))),
            }
        }
    }
    done.released = names.len();
    done.left.extend(left.into_values());
    done.left.extend(gateways.delete_all(say).await?);
    done.holds_lease = !done.running.is_empty() || hold.before == Before::Uninstallation;
    if !done.holds_lease {
        done.left.extend(hold.delete().await);
    }
    Ok(done)
}

/// Makes a dry run: returns the changes, and the API server's answers to them.
async fn rehearse(
    client: &Client,
    gateways: &Gateways,
    found: Vec<Traces>,
    say: &mut (impl FnMut(&str) + Send),
) -> Result<Uninstalled, UninstallError> {
    for one in &found {
        say(&format!("would release {}", one.describe()));
    }
    let all = gateways.list().await?;
    for gateway in &all {
        say(&format!("would delete GatewayStatus {}", gateway.name));
    }
    let running = all.into_iter().filter(Gateway::may_run).map(|gateway| gateway.name);
    let (released, running) = (found.len(), running.collect());
    Ok(Uninstalled { released, left: refusals(client, found).await, running, holds_lease: false })
}

/// The writes that the API server would refuse, each with its reason.
async fn refusals(client: &Client, found: Vec<Traces>) -> Vec<String> {
    let rehearsed = release_all(client, found, true).await.into_iter();
    let refused =
        rehearsed.filter_map(|(one, result)| Some(format!("{}: {}", one.describe(), result.err()?)));
    refused.collect()
}

/// Releases all of these, a few at a time.
async fn release_all(
    client: &Client,
    found: Vec<Traces>,
    dry_run: bool,
) -> Vec<(Traces, Result<(), RequestError>)> {
    let (mut left, mut under_way) = (VecDeque::from(found), JoinSet::new());
    let mut done = Vec::new();
    loop {
        while under_way.len() < UNDER_WAY_MAX
            && let Some(one) = left.pop_front()
        {
            let client = client.clone();
            under_way.spawn(async move {
                let result = release_surely(&client, &one, dry_run).await;
                (one, result)
            });
        }
        match under_way.join_next().await {
            Some(Ok(ended)) => done.push(ended),
            Some(Err(panic)) => std::panic::resume_unwind(panic.into_panic()),
            None => return done,
        }
    }
}

/// Everything that we wrote, on all objects.
async fn traces(client: &Client) -> Result<Vec<Traces>, UninstallError> {
    let mut found = Vec::new();
    for kind in [Kind::Service, Kind::AddressPool] {
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

/// Like [`release`], but tries again if the object was modified meanwhile: a running gateway writes statuses.
async fn release_surely(client: &Client, traces: &Traces, dry_run: bool) -> Result<(), RequestError> {
    let mut now = traces.clone();
    for _ in 1..gateways::ATTEMPTS {
        match release(client, &now, dry_run).await {
            Err(error) if error.code() == Some(409) => {}
            ended => return ended,
        }
        match left(now.kind, within(objects(client, &now).get(&now.key.name)).await)? {
            Some(left) if left.uid == now.uid => now = left,
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

/// Removes our parts from an object, or asks whether the API server would accept that.
async fn release(client: &Client, traces: &Traces, dry_run: bool) -> Result<(), RequestError> {
    let api = objects(client, traces);
    let name = &traces.key.name;
    let params =
        PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), dry_run, ..PatchParams::default() };
    let mut now = traces.clone();
    if traces.has_status() {
        if traces.kind == Kind::Service {
            let apply = params.clone().force();
            let answer = within(api.patch_status(name, &apply, &Patch::Apply(traces.apply_nothing()))).await;
            let Some(left) = left(traces.kind, answer)? else { return Ok(()) };
            now = left;
        }
        if now.has_status() {
            let patch = match traces.kind {
                Kind::Service => Patch::Strategic(now.status_patch()),
                Kind::AddressPool => Patch::Merge(now.status_patch()),
            };
            let answer = within(api.patch_status(name, &params, &patch)).await;
            let Some(left) = left(traces.kind, answer)? else { return Ok(()) };
            now = left;
        }
    }
    if now.is_held() {
        // A dry run changed nothing, so the version is still the previous one.
        let patch = Patch::Merge(if dry_run { traces } else { &now }.finalizer_patch());
        left(traces.kind, within(api.patch(name, &params, &patch)).await)?;
    }
    Ok(())
}

/// Our parts that remain on an object, according to the API server's answer. A deleted object has none.
fn left(kind: Kind, answer: Result<DynamicObject, RequestError>) -> Result<Option<Traces>, RequestError> {
    match answer {
        Ok(object) => Ok(Traces::of(kind, &json_of(&object))),
        Err(error) if error.code() == Some(404) => Ok(None),
        Err(error) => Err(error),
    }
}

fn resource(kind: Kind) -> ApiResource {
    match kind {
        Kind::Service => ApiResource::erase::<Service>(&()),
        Kind::AddressPool => ApiResource::erase::<AddressPool>(&()),
    }
}

fn json_of(object: &DynamicObject) -> Value {
    serde_json::to_value(object).expect("it came as JSON")
}
