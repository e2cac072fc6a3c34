//! Detects that the definition of AddressPool is being deleted.
//!
//! After `kubectl delete crd` an API server deletes all pools, and then the definition. A pool in use has a finalizer
//! and stays until no Service uses it. Until then, the API server refuses to create pools. The watch shows only that
//! the pools are being deleted, so discovery is requested while any of them is.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::connect::Connector;
use super::kinds::{KINDS, KindIndex, POOL};
use super::reflect::Event;
use super::tuning::Tuning;
use super::wire::{Fault, JSON, Requests};
use crate::SourceUpdate;

/// Reports to the hub when the deletion of the definition starts and ends.
pub(super) async fn watch(
    connector: Arc<Connector>,
    tuning: Tuning,
    mut updates: watch::Receiver<SourceUpdate>,
    events: mpsc::Sender<(KindIndex, Event)>,
) {
    let mut reported = false;
    loop {
        let is_deleting = has_deleted_pool(&updates.borrow_and_update());
        let is_terminating = is_deleting && is_terminating(&connector, tuning).await.unwrap_or(reported);
        if is_terminating != reported {
            reported = is_terminating;
            // If it fails, the hub has ended, and this task is aborted next.
            let _ = events.send((POOL, Event::Terminating(is_terminating))).await;
        }
        if is_deleting {
            sleep(tuning.absent).await;
        } else if updates.changed().await.is_err() {
            return;
        }
    }
}

fn has_deleted_pool(update: &SourceUpdate) -> bool {
    update.objects.address_pools.values().any(|pool| pool.meta.deletion_time.is_some())
}

/// Whether the API server is deleting the definition; `None` if it doesn't respond. According to discovery, which every
/// account may read, objects of such a kind can still be listed but not created.
async fn is_terminating(connector: &Connector, tuning: Tuning) -> Option<bool> {
    let connection = connector.connection().await.ok()?;
    let (group, plural) = KINDS[POOL].path.rsplit_once('/').expect("the path of a kind has several parts");
    let requests = Requests { connection: &connection, wait: tuning.response };
    match requests.read::<APIResourceList>(group.to_owned(), JSON).await {
        Ok(list) => {
            let pools = list.resources.iter().find(|resource| resource.name == plural);
            Some(pools.is_some_and(|pools| pools.verbs.iter().all(|verb| verb != "create")))
        }
        // The group is gone, because this was its only kind.
        Err(Fault::Refused { code: 404, .. }) => Some(false),
        Err(_) => None,
    }
}
