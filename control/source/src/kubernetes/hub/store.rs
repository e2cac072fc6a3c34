//! The objects of one kind, and whether the API server responds for it.

use std::time::{Duration, Instant, SystemTime};

use jiff::{SignedDuration, Timestamp};
use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::Objects;
use tidegate_model::objects::gateway_api::CONTROLLER;

use crate::kubernetes::disk::Contents;
use crate::kubernetes::history::LastPoint;
use crate::kubernetes::kinds::{KINDS, Kind};
use crate::kubernetes::object::Content;
use crate::kubernetes::retain::Retain;
use crate::{KeptObjects, SourceState};

/// The maximum number of kept objects whose names are reported.
const KEPT_NAMES: usize = 3;

/// The objects of one kind.
pub(super) struct Store {
    pub(super) retain: Retain<Content>,
    pub(super) listed: bool,
    pub(super) up: bool,
    /// The total time for which the kind was up before `since`.
    counted: Duration,
    pub(super) since: Instant,
    pub(super) last_point: Option<LastPoint>,
    /// Why the API server doesn't allow the gateway to read the kind, if the gateway continues without it.
    pub(super) forbidden: Option<String>,
    pub(super) definition: Definition,
    /// Whether the API server doesn't have the kind.
    pub(super) is_absent: bool,
}

/// The state of the CustomResourceDefinition of a kind that needs one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Definition {
    /// It is not known to be missing.
    Present,
    /// The API server does not have it, although the configuration requires it.
    Missing,
    /// The API server is deleting it.
    Terminating,
    /// The API server had it before, but no longer does.
    Removed,
}

impl Store {
    pub(super) fn new(grace: Duration, now: Instant) -> Self {
        Self {
            retain: Retain::new(grace),
            listed: false,
            up: false,
            counted: Duration::ZERO,
            since: now,
            last_point: None,
            forbidden: None,
            definition: Definition::Present,
            is_absent: false,
        }
    }

    /// The total time for which the API server has responded for this kind.
    pub(super) fn clock(&self, now: Instant) -> Duration {
        let running = if self.up { now.duration_since(self.since) } else { Duration::ZERO };
        self.counted + running
    }

    pub(super) fn set_up(&mut self, up: bool, now: Instant) {
        self.counted = self.clock(now);
        // While the kind stays down, `since` shows for how long.
        if self.up || up {
            self.since = now;
        }
        self.up = up;
    }

    /// Whether the objects were never known, because the API server doesn't allow the gateway to read the kind.
    pub(super) fn is_unknown(&self) -> bool {
        self.forbidden.is_some() && self.last_point.is_none()
    }

    /// How long there has been no watch.
    pub(super) fn outage(&self, now: Instant) -> Duration {
        if self.up { Duration::ZERO } else { now.saturating_duration_since(self.since) }
    }
}

/// The reports about kinds that the gateway may not read, whose definition is being deleted, or that the API server
/// lacks although users need them.
pub(super) fn faults_of_kinds(stores: &[Store], objects: &Objects) -> impl Iterator<Item = Diagnostic> {
    let of_kinds = stores.iter().zip(KINDS).filter_map(|(store, Kind { name, .. })| {
        if let Some(why) = &store.forbidden {
            let what = format!("{name} objects cannot be read; the last known ones stay in use: {why}");
            return Some(Diagnostic::warning(what).accepting("the RBAC rules in deploy/kubernetes"));
        }
        let what = match store.definition {
            Definition::Present => return None,
            Definition::Missing => return Some(missing_definition(name)),
            Definition::Terminating => format!(
                "the definition of {name} is being deleted: the API server creates no {name} objects, and removes the \
                 definition when the last of them is gone"
            ),
            Definition::Removed => {
                format!("the API server no longer has a definition of {name}: the {name} objects were deleted with it")
            }
        };
        let accepted = "the definition in deploy/kubernetes/crds; docs/addresses.md says how to restore it";
        Some(Diagnostic::warning(what).accepting(accepted))
    });
    of_kinds.chain(older_gateway_api(stores, objects))
}

/// The report that there is a GatewayClass of ours, but not every kind that its Gateways need.
fn older_gateway_api(stores: &[Store], objects: &Objects) -> Option<Diagnostic> {
    let lacking = stores.iter().zip(KINDS).filter(|(store, kind)| {
        kind.is_gateway_api && store.is_absent && store.definition == Definition::Present
    });
    let names: Vec<&str> = lacking.map(|(_, kind)| kind.name).collect();
    let is_used = objects.gateway_classes.values().any(|class| class.controller == CONTROLLER);
    if names.is_empty() || !is_used {
        return None;
    }
    let what = format!(
        "the definitions of the Gateway API are incomplete or older than 1.6: the API server has no version v1 of {}",
        names.join(", ")
    );
    Some(Diagnostic::warning(what).accepting("the definitions of the standard channel, 1.6 or newer"))
}

/// The error that a definition of the Gateway API is missing although the configuration requires it.
pub(in crate::kubernetes) fn missing_definition(kind: &str) -> Diagnostic {
    let what = format!("the API server has no definition of {kind}, and gatewayApi.enabled is true");
    let accepted =
        "the definitions of the Gateway API (standard channel, 1.6 or newer), or gatewayApi.enabled: auto";
    Diagnostic::error(what).accepting(accepted)
}

/// How many objects of each kind are kept although the API server lost them.
pub(super) fn kept_counts(stores: &[Store]) -> Vec<usize> {
    stores.iter().map(|store| store.retain.kept().len()).collect()
}

/// Logs that fewer objects are kept than before.
pub(super) fn log_returned(stores: &[Store], before: &[usize]) {
    for ((kind, before), now) in KINDS.iter().zip(before).zip(kept_counts(stores)) {
        if now < *before {
            let returned = before - now;
            tracing::info!(
                kind = kind.name,
                returned,
                kept = now,
                "objects that the API server had lost are back"
            );
        }
    }
}

/// The report about kept objects. If the kept objects are the same as in the previous report, `before`, so is the
/// reported time.
pub(super) fn kept_objects(stores: &[Store], before: &[KeptObjects], now: Instant) -> Vec<KeptObjects> {
    let wall = Timestamp::now();
    let kept = |(store, kind): (&Store, &Kind)| {
        let until = store.retain.deadline()?.saturating_sub(store.clock(now));
        let before = before.iter().find(|kept| kept.kind == kind.name);
        let kept = KeptObjects {
            kind: kind.name,
            count: store.retain.kept().len(),
            some: store.retain.kept().take(KEPT_NAMES).map(|(key, _)| key.to_string()).collect(),
            until: SignedDuration::try_from(until).map_or(wall, |left| wall + left),
        };
        let same = before.filter(|before| (before.count, &before.some) == (kept.count, &kept.some));
        Some(KeptObjects { until: same.map_or(kept.until, |before| before.until), ..kept })
    };
    stores.iter().zip(KINDS).filter_map(kept).collect()
}

/// All objects in the form in which they are saved.
pub(super) fn contents(stores: &[Store], server: &str, state: &SourceState, now: Instant) -> Contents {
    let objects = stores.iter().enumerate().flat_map(|(kind, store)| {
        let remaining = store.retain.remaining(store.clock(now));
        remaining.map(move |(item, left)| (kind, item.version, item.value.clone(), left))
    });
    let points = stores.iter().enumerate().filter_map(|(kind, store)| {
        let last_point = store.last_point.as_ref()?;
        Some((kind, last_point.point.clone(), now.saturating_duration_since(last_point.at)))
    });
    let confirmed = if state.connected { None } else { state.last_sync };
    Contents {
        server: server.to_owned(),
        confirmed: confirmed.map_or_else(SystemTime::now, SystemTime::from),
        points: points.collect(),
        objects: objects.collect(),
    }
}
