//! Times when this gateway may have missed messages of its peers: pauses of the process, and times without any session.

use std::time::Duration;

use tidegate_sharing::Hub;

/// If a loop iteration is later than this, the process or its machine was paused: peers may have ended their sessions,
/// and datagrams are lost.
const PAUSE: Duration = Duration::from_secs(1);

/// The interruptions since the state was last shown. Times are relative to the start of the thread.
#[derive(Debug, Default)]
pub(super) struct Interruptions {
    /// When the last loop iteration was.
    last_iteration: Duration,
    /// When the process last continued after a pause.
    pub(super) resumed: Duration,
    /// Whether there was a session with any peer in the last loop iteration.
    was_up: bool,
    /// Whether the gateway may have missed messages since the state was last shown.
    pub(super) was_interrupted: bool,
    /// Whether the process was paused since the state was last shown.
    pub(super) was_paused: bool,
}

impl Interruptions {
    /// Detects a pause of the process, and the loss of the last session. Sessions that peers ended during a pause are
    /// ended on this side before anything is received.
    pub(super) fn notice(&mut self, hub: &mut Hub, now: Duration) {
        let paused = now.saturating_sub(std::mem::replace(&mut self.last_iteration, now));
        hub.end_silent(now);
        let was_up = std::mem::replace(&mut self.was_up, hub.is_up());
        let lost_all = was_up && !self.was_up;
        if paused > PAUSE {
            self.resumed = now;
            tracing::warn!(?paused, "the process was paused: importing the flows of other gateways again");
        }
        self.was_paused |= paused > PAUSE;
        self.was_interrupted |= paused > PAUSE || lost_all;
    }
}
