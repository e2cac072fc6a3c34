//! Counts the packets that still arrive at a draining gateway.
//!
//! The task sleeps while the gateway serves. It has only a weak reference to the state, so it does not keep the
//! dataplane alive.

use std::sync::Arc;
use std::time::Duration;

use tidegate_admin_api::GatewayDrainState as Phase;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::gateway_drain::Counted;
use super::state::State;

/// How often packets are counted.
const INTERVAL: Duration = Duration::from_millis(500);

/// Ends the task when it is dropped.
#[derive(Debug)]
pub(super) struct DrainWatch(AbortHandle);

impl Drop for DrainWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl DrainWatch {
    /// The task, to check whether it has ended.
    pub(super) fn task(&self) -> AbortHandle {
        self.0.clone()
    }
}

/// Counts for [`State::drain`] until the result is dropped.
pub(super) fn follow(state: &Arc<State>) -> DrainWatch {
    let mut changes = state.drain.changes();
    let state = Arc::downgrade(state);
    let watch = tokio::spawn(async move {
        while changes.wait_for(|phase| *phase != Phase::Serving).await.is_ok() {
            tokio::time::sleep(INTERVAL).await;
            let Some(state) = state.upgrade() else { return };
            state.drain.count(Counted::of(&state.dataplane.stats()), Instant::now());
        }
    });
    DrainWatch(watch.abort_handle())
}
