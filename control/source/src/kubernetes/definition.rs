//! Notices that the definition of AddressPool is being deleted.
//!
//! After `kubectl delete crd` an API server deletes all pools, and the definition once the last pool is gone. A pool in
//! use has a finalizer and stays until no Service uses it, and meanwhile the API server creates no pools. The watch
//! shows only that the pools are being deleted, so discovery is requested while any of them is.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::connect::Connector;
use super::kinds::{KINDS, POOL};
use super::reflect::Event;
use super::tuning::Tuning;
use super::wire;
use crate::SourceUpdate;

/// Reports to the hub when the deletion of the definition begins and when it ends.
pub(super) async fn watch(
    connector: Arc<Connector>,
    tuning: Tuning,
    mut updates: watch::Receiver<SourceUpdate>,
    events: mpsc::Sender<Event>,
) {
    let mut reported = false;
    loop {
        let is_deleting = has_deleted_pool(&updates.borrow_and_update());
        let is_terminating = is_deleting && is_terminating(&connector, tuning).await.unwrap_or(reported);
        if is_terminating != reported {
            reported = is_terminating;
            if events.send(Event::Terminating(POOL, is_terminating)).await.is_err() {
                return;
            }
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

/// What the API server says; `None` if it does not answer.
async fn is_terminating(connector: &Connector, tuning: Tuning) -> Option<bool> {
    let connection = connector.connection().await.ok()?;
    wire::is_terminating(&connection, &KINDS[POOL], tuning.answer).await.ok()
}
