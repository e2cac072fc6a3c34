//! Publishes updates, and tracks whether there is something new to publish.

use std::time::Instant;

use tokio::sync::watch;

use crate::SourceUpdate;
use crate::kubernetes::kinds::{GATEWAY, KindIndex, SERVICE};

/// Publishes the updates of the hub.
pub(super) struct Publication {
    updates: watch::Sender<SourceUpdate>,
    /// When the first unpublished change was received.
    changed: Option<Instant>,
    /// Counts the published updates.
    revision: u64,
    /// The current version of the Services on the API server.
    services: u64,
    /// The current version of the Gateways; `None` if the API server has no such kind.
    gateways: Option<u64>,
    version_published: u64,
}

impl Publication {
    pub(super) fn new(updates: watch::Sender<SourceUpdate>) -> Self {
        Self { updates, changed: None, revision: 0, services: 0, gateways: None, version_published: 0 }
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

    /// Records that the objects of this version were listed, if they have addresses.
    pub(super) fn listed(&mut self, index: KindIndex, version: u64, now: Instant) {
        match index {
            SERVICE => self.services = version,
            GATEWAY => self.gateways = Some(version),
            _ => return,
        }
        self.advance(now);
    }

    /// Records that a watch has reported this version of objects, if they have addresses.
    pub(super) fn watched(&mut self, index: KindIndex, version: u64, now: Instant) {
        match index {
            SERVICE => self.services = self.services.max(version),
            GATEWAY => self.gateways = self.gateways.max(Some(version)),
            _ => return,
        }
        self.advance(now);
    }

    /// Records that the API server doesn't have the kind.
    pub(super) fn absent(&mut self, index: KindIndex, now: Instant) {
        if index == GATEWAY {
            self.gateways = None;
            self.advance(now);
        }
    }

    /// The version of all objects that have addresses: a release of an address at this version or earlier is known.
    fn version(&self) -> u64 {
        self.gateways.map_or(self.services, |gateways| gateways.min(self.services))
    }

    /// Counts a new version as a change, because readers may wait for it even if no object has changed.
    fn advance(&mut self, now: Instant) {
        if self.version() != self.version_published {
            self.changed(now);
        }
    }

    /// Publishes the update that `update` creates from the revision and the version of the objects with addresses.
    pub(super) fn publish(&mut self, update: impl FnOnce(u64, u64) -> SourceUpdate) {
        self.changed = None;
        self.revision += 1;
        self.version_published = self.version();
        self.updates.send_replace(update(self.revision, self.version_published));
    }
}
