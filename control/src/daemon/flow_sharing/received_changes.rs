//! Queues changes of backends from other gateways for the controller.
//!
//! Invariant: nothing here blocks, and the queue is limited to what one gateway may send.

use tidegate_sharing::limits::{REMOVED_BACKENDS_MAX, WEIGHT_CHANGES_MAX};
use tidegate_spec::{BackendChange, ServiceKey};
use tokio::sync::oneshot;

use crate::daemon::recent_changes::BackendChanges;

/// Sends changes of backends to the controller, with a channel that confirms when the workers have applied them.
/// Returns the changes if the controller's queue is full.
pub(in crate::daemon) type ApplyChanges =
    Box<dyn Fn(BackendChanges, oneshot::Sender<()>) -> Option<BackendChanges> + Send>;

/// The changes that peers have sent and that the workers have not applied yet.
pub(super) struct ReceivedChanges {
    apply: ApplyChanges,
    waiting: BackendChanges,
    /// Confirms when the workers have applied the changes last sent to the controller.
    applied: Option<oneshot::Receiver<()>>,
}

impl ReceivedChanges {
    pub(super) fn new(apply: ApplyChanges) -> Self {
        Self { apply, waiting: Vec::new(), applied: None }
    }

    /// Queues a change for the controller. Returns false if the queue is full.
    pub(super) fn add(&mut self, service: ServiceKey, change: BackendChange) -> bool {
        let has_space = self.waiting.len() < WEIGHT_CHANGES_MAX + REMOVED_BACKENDS_MAX;
        if has_space {
            self.waiting.push((service, change));
        }
        has_space
    }

    /// Sends the queued changes to the controller, unless it is still applying previous ones.
    pub(super) fn pass_on(&mut self) {
        if let Some(applied) = &mut self.applied {
            if matches!(applied.try_recv(), Err(oneshot::error::TryRecvError::Empty)) {
                return;
            }
            self.applied = None;
        }
        if self.waiting.is_empty() {
            return;
        }
        let (answer, applied) = oneshot::channel();
        match (self.apply)(std::mem::take(&mut self.waiting), answer) {
            None => self.applied = Some(applied),
            // They are sent again in the next loop iteration.
            Some(refused) => self.waiting = refused,
        }
    }

    /// Whether the workers have not applied all changes yet.
    pub(super) fn is_pending(&self) -> bool {
        self.applied.is_some() || !self.waiting.is_empty()
    }
}
