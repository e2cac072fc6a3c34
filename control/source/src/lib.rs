//! The sources of the desired state: a directory of manifests, or the API server (connection, watches, retention).
//!
//! Every source produces [`tidegate_model::objects::Objects`], validated and with defaults applied, and publishes them
//! as [`SourceUpdate`]s, so that later stages don't depend on the source. Faults are in a report, with their location.
//! Each source has a [`SourceState`] for metrics, `status` and conditions.
//!
//! Invariant: the same objects give equal [`Objects`] from either source ([`manifest`] decodes for both).
//!
//! May depend on: `tidegate-model`, `tidegate-events`, `tidegate-host` (atomic files). May not depend on the dataplane or on
//! `tidegate-policy`, which decides on the objects.

pub mod directory;
pub mod kubernetes;
mod manifest;
mod slices;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use jiff::Timestamp;
use tidegate_model::config::GatewayApi;
use tidegate_model::diagnostic::{Diagnostic, Report};
use tidegate_model::objects::{ObjectKey, Objects};

/// The kinds of objects that a directory may contain, but that not every reader needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kinds {
    /// Whether objects of the Gateway API are read.
    pub gateway_api: GatewayApi,
    /// Whether Secrets of type `kubernetes.io/tls` are read. Gateways don't read them.
    pub tls_secrets: bool,
}

impl From<GatewayApi> for Kinds {
    fn from(gateway_api: GatewayApi) -> Self {
        Self { gateway_api, tls_secrets: false }
    }
}

/// All objects at one moment.
#[derive(Debug, Clone)]
pub struct SourceUpdate {
    /// The number of this update, from 1.
    pub revision: u64,
    /// All objects. If some are unavailable (a file with errors, an API server that lost them), the objects of their
    /// last valid state are included. An unchanged object keeps its `Arc`; [`Objects`] describes how to find changes.
    pub objects: Arc<Objects>,
    /// The resourceVersion of the Services. A gateway that has applied this update no longer serves addresses that were
    /// released at this version or earlier, except those of objects that it keeps. 0 for a directory, and until an API
    /// server has sent a version.
    pub version: u64,
    /// Whether some of the Services or Gateways are kept although the API server lost them or rolled them back.
    pub keeps_services: bool,
    /// Whether no Gateway is known because the API server doesn't allow the gateway to read Gateways, which may have
    /// addresses.
    pub gateways_unknown: bool,
    /// All faults.
    pub report: Arc<Report>,
    /// The faults of objects in a namespace, by namespace. Always empty for a directory, whose files belong to the
    /// operator.
    pub faults_of_namespaces: Arc<BTreeMap<String, Report>>,
    /// The files whose last valid objects are used instead of their contents.
    pub stale: Arc<[StaleFile]>,
    /// Objects that are not used at all because of their errors. Only a directory has such objects.
    pub refused: Arc<[RefusedObject]>,
    /// The number of EndpointSlices whose endpoints are not kept because they exceed a limit.
    pub slices_left_out: usize,
    /// When the change was first seen. The programming latency is measured from here.
    pub seen: Instant,
}

/// An object with errors that has no earlier version in use. Objects of an API server are never refused: see
/// [`Metadata::faults`](tidegate_model::objects::Metadata::faults).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedObject {
    /// Its kind, such as `EndpointSlice`.
    pub kind: &'static str,
    /// Namespace and name.
    pub key: ObjectKey,
    /// The Service itself, the Service as which a Gateway is served, or the Service that the endpoints belong to; `None`
    /// for other kinds.
    pub service: Option<ObjectKey>,
    /// Its errors (at least one), in file order.
    pub faults: Vec<Diagnostic>,
}

impl RefusedObject {
    /// The key under which it is served when it's valid: that of a Service or a Gateway. `None` for other kinds.
    #[must_use]
    pub fn served_as(&self) -> Option<&ObjectKey> {
        self.service.as_ref().filter(|_| matches!(self.kind, "Service" | "Gateway"))
    }
}

/// A file whose last valid objects are kept because its current contents have errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleFile {
    /// The file.
    pub path: PathBuf,
    /// When the errors were first seen.
    pub since: SystemTime,
}

/// The state of the source. A directory counts as connected while it responds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceState {
    /// Whether every watch is connected. Otherwise the gateway continues with the last known objects.
    pub connected: bool,
    /// When `connected` last changed.
    pub since: Timestamp,
    /// While disconnected: when the objects were last known to match the source. See [`SourceState::last_sync`].
    pub last_sync: Option<Timestamp>,
    /// While disconnected: why the last attempt failed. While connected, it names the kind that the API server doesn't
    /// allow the gateway to read, or whose CRD is being deleted.
    pub last_error: Option<String>,
    /// Whether the objects are those that were on disk when the gateway started, because the API server has not
    /// responded yet.
    pub from_disk: bool,
    /// Objects that the API server lost or rolled back in an outage, kept for `apiLossGrace`.
    pub kept: Arc<[KeptObjects]>,
    /// The number of failed attempts to list or watch since the start.
    pub failures: u64,
    /// The number of unreadable files with stored objects since the start.
    pub corrupt_files: u64,
    /// Why the newest objects are not on disk although they should be: a restart without the API server would use older
    /// objects.
    pub unsaved: Option<String>,
}

impl SourceState {
    /// When the objects were last known to match the source: `now` while it is connected.
    #[must_use]
    pub fn last_sync(&self, now: Timestamp) -> Option<Timestamp> {
        if self.connected { Some(now) } else { self.last_sync }
    }

    /// The state of a source that was just read completely.
    #[must_use]
    pub fn connected_since(since: Timestamp) -> Self {
        Self { connected: true, last_sync: Some(since), ..Self::unconnected_since(since) }
    }

    /// The state of a source that has not responded yet.
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

/// Objects of one kind that are kept although the API server lost them or rolled them back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptObjects {
    /// The kind, such as `Service`.
    pub kind: &'static str,
    /// The number of objects.
    pub count: usize,
    /// The names of the first few.
    pub some: Vec<String>,
    /// When the first of them is removed, unless it returns.
    pub until: Timestamp,
}

impl std::fmt::Display for KeptObjects {
    /// `3 Service objects that the API server lost or rolled back are kept until 2026-01-31T12:00:00Z: shop/web, ...`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let more = if self.count > self.some.len() { ", ..." } else { "" };
        let until = self.until.strftime("%FT%TZ");
        let (count, kind, some) = (self.count, self.kind, self.some.join(", "));
        let what = "objects that the API server lost or rolled back are kept until";
        write!(f, "{count} {kind} {what} {until}: {some}{more}")
    }
}
