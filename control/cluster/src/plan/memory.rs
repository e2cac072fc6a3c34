//! The state that one plan passes to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use tidegate_model::objects::{ObjectKey, Service};
use tidegate_policy::reconcile::view::ServiceView;

use super::peer::Change;
use super::status_conflict::StatusConflict;
use crate::event::Event;

/// The memory between two plans.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// The times of conditions that were written and not read back yet.
    pub(super) since: BTreeMap<(ObjectKey, String), (String, Timestamp)>,
    /// Statuses that another controller writes.
    pub(super) conflicts: BTreeMap<ObjectKey, StatusConflict>,
    /// Events that were written and whose cause still exists.
    pub(super) reported_events: BTreeSet<Event>,
    /// Services that release their addresses, by uid, with the version in which that was first seen.
    pub(super) leaving: BTreeMap<String, Leaving>,
    /// The requests of the owners of Services.
    pub(super) asked: BTreeMap<ObjectKey, RequestState>,
    /// Services that wait for other gateways, each with the start of the wait.
    pub(super) waiting: BTreeMap<ObjectKey, Timestamp>,
    /// The time of the last plan, and the version of its Services.
    pub(super) planned: Timestamp,
    pub(super) version: u64,
    /// Whether the API server is older than Kubernetes 1.29 and refuses a status with `ipMode`.
    pub(super) without_ip_mode: bool,
    /// Services that needed no write, with all inputs of that decision. They are skipped as long as these are
    /// unchanged.
    pub(super) settled: BTreeMap<ObjectKey, Settled>,
}

/// The inputs for [`Memory::settled`]. Only for Services without findings, because findings must be reported again and
/// again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) service: Arc<Service>,
    pub(super) view: Option<Arc<ServiceView>>,
    pub(super) claimed: bool,
    /// A number for the reports of the other gateways.
    pub(super) around: u64,
}

impl Settled {
    /// Whether all inputs are unchanged.
    pub(super) fn is_still(
        &self,
        service: &Arc<Service>,
        view: Option<&Arc<ServiceView>>,
        claimed: bool,
        around: u64,
    ) -> bool {
        let same_view = match (&self.view, view) {
            (Some(was), Some(is)) => Arc::ptr_eq(was, is),
            (None, None) => true,
            _ => false,
        };
        same_view && (self.claimed, self.around) == (claimed, around) && Arc::ptr_eq(&self.service, service)
    }
}

/// A Service that releases its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leaving {
    pub(super) key: ObjectKey,
    pub(super) since: u64,
}

/// The requests of the owner of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestState {
    pub(super) uid: String,
    /// A number for the requests.
    pub(super) what: u64,
    pub(super) change: Change,
    /// Whether it has changed, and no event has yet reported that it is served.
    pub(super) is_news: bool,
}

impl Memory {
    /// Records the current time, and the version of the Services. If the clock was set back, times in the future become
    /// the current time, so that nothing waits longer than it would have. If the API server was restored, no gateway
    /// confirms versions from before that.
    pub(super) fn tick(&mut self, now: Timestamp, version: u64) {
        if now < self.planned {
            self.waiting.values_mut().for_each(|since| *since = (*since).min(now));
            self.asked.values_mut().for_each(|asked| asked.change.since = asked.change.since.min(now));
            self.conflicts.values_mut().for_each(|conflict| conflict.set_back(now));
        }
        if version < self.version {
            self.asked.values_mut().for_each(|asked| asked.change.version = 0);
        }
        (self.planned, self.version) = (now, version);
    }

    /// Stops writing `ipMode`. Returns whether it was written until now.
    pub fn leave_out_ip_mode(&mut self) -> bool {
        self.settled.clear();
        !std::mem::replace(&mut self.without_ip_mode, true)
    }
}
