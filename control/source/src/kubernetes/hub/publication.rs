//! Publishes updates, and tracks whether there is something new to publish.

use std::time::Instant;

use tokio::sync::watch;

use crate::SourceUpdate;

/// Publishes the updates of the hub.
pub(super) struct Publication {
    updates: watch::Sender<SourceUpdate>,
    /// When the first unpublished change was received.
    changed: Option<Instant>,
    /// Counts the published updates.
    revision: u64,
    /// The current version of the Services on the API server, and the version that was last published.
    version: u64,
    version_published: u64,
    /// Whether the published version does not advance, because Gateways may be older.
    is_paused: bool,
}

impl Publication {
    pub(super) fn new(updates: watch::Sender<SourceUpdate>) -> Self {
        Self { updates, changed: None, revision: 0, version: 0, version_published: 0, is_paused: false }
    }

    /// Records that there is something to publish.
    pub(super) fn changed(&mut self, now: Instant) {
        self.changed.get_or_insert(now);
    }

    /// When the first unpublished change was received.
    pub(super) fn due_since(&self) -> Option<Instant> {
        self.changed
    }

    /// Whether an update was published.
    pub(super) fn has_published(&self) -> bool {
        self.revision > 0
    }

    /// Records that the Services of this version were listed.
    pub(super) fn listed(&mut self, version: u64, now: Instant) {
        self.version = version;
        self.advance(now);
    }

    /// Records that a watch has reported this version of the Services.
    pub(super) fn watched(&mut self, version: u64, now: Instant) {
        self.version = self.version.max(version);
        self.advance(now);
    }

    /// Sets whether the published version does not advance. Readers count addresses that were released in a version as
    /// withdrawn, and a Gateway can still have such an address while Gateways aren't watched.
    pub(super) fn pause(&mut self, is_paused: bool, now: Instant) {
        self.is_paused = is_paused;
        self.advance(now);
    }

    /// Counts a new version as a change, because readers may wait for it even if no object has changed.
    fn advance(&mut self, now: Instant) {
        if !self.is_paused && self.version != self.version_published {
            self.changed(now);
        }
    }

    /// Publishes the update that `update` creates from the revision and the version of the Services.
    pub(super) fn publish(&mut self, update: impl FnOnce(u64, u64) -> SourceUpdate) {
        self.changed = None;
        self.revision += 1;
        if !self.is_paused {
            self.version_published = self.version;
        }
        self.updates.send_replace(update(self.revision, self.version_published));
    }
}
