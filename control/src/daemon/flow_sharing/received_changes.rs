//! Changes of backends that other gateways have sent, on their way to the controller.
//!
//! Invariant: nothing here waits, and at most as many changes wait as one gateway may send.

use tidegate_sharing::limits::{LEFT_MAX, SEATS_MAX};
use tidegate_spec::{BackendChange, ServiceKey};
use tokio::sync::oneshot;

use crate::daemon::moved_seats::Moved;

/// Sends changes of backends to the controller, and where to answer when the workers have them. Returns them if the queue of
/// the controller is full.
pub(in crate::daemon) type ApplyChanges = Box<dyn Fn(Moved, oneshot::Sender<()>) -> Option<Moved> + Send>;

/// The changes that peers have sent and that the workers do not have yet.
pub(super) struct ReceivedChanges {
    apply: ApplyChanges,
    waiting: Moved,
    /// Answers when the workers have what the controller got last.
    applied: Option<oneshot::Receiver<()>>,
}

impl ReceivedChanges {
    pub(super) fn new(apply: ApplyChanges) -> Self {
        Self { apply, waiting: Vec::new(), applied: None }
    }

    /// Keeps a change for the controller. Returns false if too many wait.
    pub(super) fn add(&mut self, service: ServiceKey, change: BackendChange) -> bool {
        let has_room = self.waiting.len() < SEATS_MAX + LEFT_MAX;
        if has_room {
            self.waiting.push((service, change));
        }
        has_room
    }

    /// Sends the changes to the controller, if it has applied those that it got before.
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
            // It is tried again in the next loop iteration.
            Some(refused) => self.waiting = refused,
        }
    }

    /// Whether the workers lack some of the changes.
    pub(super) fn is_under_way(&self) -> bool {
        self.applied.is_some() || !self.waiting.is_empty()
    }
}
