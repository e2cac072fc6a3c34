//! The sources of the desired state: a directory of manifests, or the API server (connection, watches, retention).
//!
//! Every source produces the same [`tidegate_model::objects::Objects`], with objects that are defaulted and valid,
//! and publishes it as [`SourceUpdate`]s, so that later stages do not depend on the source. Faults are in a report,
//! with their place. The condition of a source is in its [`SourceState`], for metrics, `status` and conditions.
//!
//! Invariant: the same objects give equal [`Objects`] from either source ([`manifest`] decodes for both).
//!
//! May depend on: `tidegate-model`. May not: `tidegate-policy`, which decides on the objects; the dataplane.

pub mod directory;
pub mod kubernetes;
mod manifest;
mod slices;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use jiff::Timestamp;
use tidegate_model::diagnostic::{Diagnostic, Report};
use tidegate_model::objects::{ObjectKey, Objects};

/// A state of the objects.
#[derive(Debug, Clone)]
pub struct SourceUpdate {
    /// Counts states from 1.
    pub revision: u64,
    /// All objects; where something stands in for them (a file with errors, an API server that lost them), those of
    /// their last good state. What did not change since the last update is the same `Arc` as there: see
    /// [`Objects`] for finding what did.
    pub objects: Arc<Objects>,
    /// The resourceVersion of the Services: a gateway that has applied them serves nothing that was released in this
    /// version or before, except objects that it keeps. 0 for a directory, and until an API server has sent it.
    pub version: u64,
    /// Some of the Services are only kept: the API server lost them, or has older ones.
    pub keeps_services: bool,
    /// All faults.
    pub report: Arc<Report>,
    /// Those of them that are about objects of a namespace, by namespace. Of a directory none: its files are the
    /// operator's.
    pub faults_of_namespaces: Arc<BTreeMap<String, Report>>,
    /// The files that stand at an older state, with the time since when.
    pub stale: Arc<[StaleFile]>,
    /// Objects that are not used at all, for their errors: of a directory alone.
    pub refused: Arc<[RefusedObject]>,
    /// EndpointSlices whose endpoints are not kept, because they are beyond a limit.
    pub slices_left_out: usize,
    /// When the change was first seen, for the time from change to programmed.
    pub seen: Instant,
}

/// An object that has errors, and no earlier state of which is in use. An API server's objects are never refused: see
/// [`Metadata::faults`](tidegate_model::objects::Metadata::faults).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedObject {
    /// Its kind, such as `EndpointSlice`.
    pub kind: &'static str,
    /// Namespace and name.
    pub key: ObjectKey,
    /// The Service that it is, or that its endpoints are for; `None` for other kinds.
    pub service: Option<ObjectKey>,
    /// Its errors, at least one, in the order written.
    pub faults: Vec<Diagnostic>,
}

/// A file whose last good objects are kept because what it holds now has errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleFile {
    /// The file.
    pub path: PathBuf,
    /// When it turned bad.
    pub since: SystemTime,
}

/// The state of the source. A directory is always connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceState {
    /// Whether every watch is connected. Otherwise the gateway continues with the last known objects.
    pub connected: bool,
    /// Since when that is so.
    pub since: Timestamp,
    /// When the connection was last lost, the objects on disk last confirmed, or the directory last read: see
    /// [`SourceState::last_sync`].
    pub last_sync: Option<Timestamp>,
    /// Why the last attempt failed, until a connection stands again; and while one stands, which kind of objects the
    /// API server does not let the gateway read.
    pub last_error: Option<String>,
    /// The objects are those that were on disk when the gateway started: the API server has not answered yet.
    pub from_disk: bool,
    /// Objects that the API server no longer has since it came back, and that are kept for `apiLossGrace`.
    pub kept: Arc<[KeptObjects]>,
    /// Attempts to list or watch that failed, since the start.
    pub failures: u64,
    /// Files of objects on disk that could not be read, since the start.
    pub corrupt_files: u64,
    /// Why the newest objects are not on disk, where they should be: a restart without the API server would go by older
    /// ones.
    pub unsaved: Option<String>,
}

impl SourceState {
    /// When the objects were last known to be those of the source: `now` while it is connected.
    #[must_use]
    pub fn last_sync(&self, now: Timestamp) -> Option<Timestamp> {
        if self.connected { Some(now) } else { self.last_sync }
    }

    /// A source that has just been read in full.
    #[must_use]
    pub fn connected_since(since: Timestamp) -> Self {
        Self { connected: true, last_sync: Some(since), ..Self::unconnected_since(since) }
    }

    /// A source that has not answered yet.
    #[must_use]
    pub fn unconnected_since(since: Timestamp) -> Self {
        Self {
            connected: false,
            since,
            last_sync: None,
            last_error: None,
            from_disk: false,
            kept: Arc::from([]),
            failures: 0,
            corrupt_files: 0,
            unsaved: None,
        }
    }
}

/// Objects of one kind that are kept though the API server lost them, or has older ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptObjects {
    /// Such as `Service`.
    pub kind: &'static str,
    /// How many.
    pub count: usize,
    /// The first few by name.
    pub some: Vec<String>,
    /// When the first of them goes, unless it comes back.
    pub until: Timestamp,
}

impl std::fmt::Display for KeptObjects {
    /// `3 Service objects that the API server lost, or has in an older version, are kept until 2026-01-31T12:00:00Z: shop/web, ...`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let more = if self.count > self.some.len() { ", ..." } else { "" };
        let until = self.until.strftime("%FT%TZ");
        let (count, kind, some) = (self.count, self.kind, self.some.join(", "));
        let what = "objects that the API server lost, or has in an older version, are kept until";
        write!(f, "{count} {kind} {what} {until}: {some}{more}")
    }
}
