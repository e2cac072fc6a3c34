//! Changes of backends that other gateways have told, on their way to the controller.
//!
//! Invariant: nothing here waits, and at most as many changes wait as one gateway may tell.

use tidegate_sharing::limits::{LEFT_MAX, SEATS_MAX};
use tidegate_spec::{BackendChange, ServiceKey};
use tokio::sync::oneshot;

use crate::daemon::moved_seats::Moved;

/// Gives the controller changes of backends, and how to answer when the workers know them. Returns them if there is no room
/// at present.
pub(in crate::daemon) type Teach = Box<dyn Fn(Moved, oneshot::Sender<()>) -> Option<Moved> + Send>;

/// Changes of backends that peers have told, on their way to the controller.
pub(super) struct Learning {
    teach: Teach,
    learnt: Moved,
    /// Answers when the workers know what the controller was told last.
    applied: Option<oneshot::Receiver<()>>,
}

impl Learning {
    pub(super) fn new(teach: Teach) -> Self {
        Self { teach, learnt: Vec::new(), applied: None }
    }

    /// Keeps a change for the controller. Returns false if there is no room.
    pub(super) fn learn(&mut self, service: ServiceKey, change: BackendChange) -> bool {
        let has_room = self.learnt.len() < SEATS_MAX + LEFT_MAX;
        if has_room {
            self.learnt.push((service, change));
        }
        has_room
    }

    /// Tells the controller, if it has finished with what it was told before.
    pub(super) fn pass_on(&mut self) {
        if let Some(applied) = &mut self.applied {
            if matches!(applied.try_recv(), Err(oneshot::error::TryRecvError::Empty)) {
                return;
            }
            self.applied = None;
        }
        if self.learnt.is_empty() {
            return;
        }
        let (answer, applied) = oneshot::channel();
        match (self.teach)(std::mem::take(&mut self.learnt), answer) {
            None => self.applied = Some(applied),
            // It is tried again in the next turn.
            Some(refused) => self.learnt = refused,
        }
    }

    /// Whether the workers do not know everything yet.
    pub(super) fn is_under_way(&self) -> bool {
        self.applied.is_some() || !self.learnt.is_empty()
    }
}
