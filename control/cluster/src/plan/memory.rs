//! The state that one plan passes to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use tidegate_model::objects::gateway_api::Gateway;
use tidegate_model::objects::{ObjectKey, Service};
use tidegate_policy::gateway_api::GatewayState;
use tidegate_policy::reconcile::view::ServiceView;

use super::gateway_api::{Programming, UpToDateStatuses};
use super::peer::Change;
use super::situation::OfGateway;
use super::status_conflict::StatusConflict;
use crate::event::Event;

/// The memory between two plans.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// The times of conditions that were written but not read back yet.
    pub(super) since: BTreeMap<(ObjectKey, String), (String, Timestamp)>,
    /// Statuses that another controller writes.
    pub(super) conflicts: BTreeMap<ObjectKey, StatusConflict>,
    /// Events that were written and whose cause still exists.
    pub(super) reported_events: BTreeSet<Event>,
    /// Services that release their addresses, by uid, with the version in which that was first seen.
    pub(super) leaving: BTreeMap<String, Leaving>,
    /// The requests of the owners of Services.
    pub(super) requests: BTreeMap<ObjectKey, RequestState>,
    /// Services that wait for other gateways, each with the start of the wait.
    pub(super) waiting: BTreeMap<ObjectKey, Timestamp>,
    /// The time of the last plan, and the version of its Services.
    pub(super) planned: Timestamp,
    pub(super) version: u64,
    /// Whether the API server is older than Kubernetes 1.29 and refuses a status with `ipMode`.
    pub(super) without_ip_mode: bool,
    /// Services that needed no write, with all inputs of that decision. They are skipped while these are unchanged.
    pub(super) up_to_date: BTreeMap<ObjectKey, UpToDate>,
    /// Other objects whose status needed no write.
    pub(super) up_to_date_statuses: UpToDateStatuses,
    /// Which ports of each Gateway are served.
    pub(super) programming: BTreeMap<ObjectKey, Arc<Programming>>,
}

/// The inputs for [`Memory::up_to_date`]. Services with findings are never included, because findings must be reported
/// repeatedly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UpToDate {
    pub(super) service: Arc<Service>,
    pub(super) view: Option<Arc<ServiceView>>,
    pub(super) claimed: bool,
    /// A hash of the other gateways' reports.
    pub(super) peer_summary: u64,
    /// The Gateway that is served as this Service, with its state.
    pub(super) gateway: Option<(Arc<Gateway>, Option<Arc<GatewayState>>)>,
}

impl UpToDate {
    /// Whether all inputs are unchanged.
    pub(super) fn is_unchanged(
        &self,
        service: &Arc<Service>,
        view: Option<&Arc<ServiceView>>,
        claimed: bool,
        peer_summary: u64,
        gateway: Option<OfGateway<'_>>,
    ) -> bool {
        let same_gateway = match (&self.gateway, gateway) {
            (Some((object, state)), Some(now)) => {
                Arc::ptr_eq(object, now.object)
                    && state.as_ref().map(Arc::as_ptr) == now.state.map(Arc::as_ptr)
            }
            (None, None) => true,
            _ => false,
        };
        let same_view = match (&self.view, view) {
            (Some(was), Some(is)) => Arc::ptr_eq(was, is),
            (None, None) => true,
            _ => false,
        };
        same_view
            && same_gateway
            && (self.claimed, self.peer_summary) == (claimed, peer_summary)
            && Arc::ptr_eq(&self.service, service)
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
    /// A hash of the requests.
    pub(super) what: u64,
    pub(super) change: Change,
    /// Whether they have changed since an event last reported that the Service is served.
    pub(super) is_unreported: bool,
}

impl Memory {
    /// Records the current time and the version of the Services. If the clock was set back, times in the future become
    /// the current time, so that nothing waits longer than it would have. If the API server was restored from a backup,
    /// no gateway will confirm the earlier, higher versions.
    pub(super) fn tick(&mut self, now: Timestamp, version: u64) {
        if now < self.planned {
            self.waiting.values_mut().for_each(|since| *since = (*since).min(now));
            self.requests
                .values_mut()
                .for_each(|requests| requests.change.since = requests.change.since.min(now));
            self.conflicts.values_mut().for_each(|conflict| conflict.set_back(now));
        }
        if version < self.version {
            self.requests.values_mut().for_each(|requests| requests.change.version = 0);
        }
        (self.planned, self.version) = (now, version);
    }

    /// A copy that skips no object.
    pub(super) fn without_up_to_date(&self) -> Self {
        Self { up_to_date: BTreeMap::new(), up_to_date_statuses: UpToDateStatuses::default(), ..self.clone() }
    }

    /// Stops writing `ipMode`. Returns whether it was written before.
    pub(crate) fn leave_out_ip_mode(&mut self) -> bool {
        self.up_to_date.clear();
        !std::mem::replace(&mut self.without_ip_mode, true)
    }
}
