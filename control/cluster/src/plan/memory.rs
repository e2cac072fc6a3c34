//! What one plan leaves to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use tidegate_model::objects::{ObjectKey, Service};
use tidegate_policy::reconcile::view::ServiceView;

use super::status_conflict::StatusConflict;
use crate::event::Event;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// Since when conditions are as they are, for what is written and not seen yet.
    pub(super) since: BTreeMap<(ObjectKey, String), (String, Timestamp)>,
    /// Statuses that another controller writes.
    pub(super) contests: BTreeMap<ObjectKey, StatusConflict>,
    /// Events that were written and whose cause still exists.
    pub(super) told: BTreeSet<Event>,
    /// Services that give their addresses back, by uid: the version in which they were first seen to.
    pub(super) leaving: BTreeMap<String, Leaving>,
    /// What the owners of Services ask for.
    pub(super) asked: BTreeMap<ObjectKey, Asked>,
    /// Services that wait for other gateways: since when.
    pub(super) waiting: BTreeMap<ObjectKey, Timestamp>,
    /// When the last plan was made.
    pub(super) planned: Timestamp,
    /// The API server is from before Kubernetes 1.29 and refuses a status with `ipMode`.
    pub(super) without_ip_mode: bool,
    /// Services about which there was nothing to do, with all that this followed from: while that is the same, they are
    /// passed over.
    pub(super) settled: BTreeMap<ObjectKey, Settled>,
}

/// See [`Memory::settled`]. Only for Services without findings, because findings must be reported again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) service: Arc<Service>,
    pub(super) view: Option<Arc<ServiceView>>,
    pub(super) claimed: bool,
    /// Of what the other gateways say.
    pub(super) around: u64,
}

impl Settled {
    /// Whether all of it is the same.
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

/// A Service that gives its addresses back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leaving {
    pub(super) key: ObjectKey,
    pub(super) since: u64,
}

/// The requests of the owner of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) uid: String,
    /// A number for it.
    pub(super) what: u64,
    /// The version of the Services in which it was first seen, and when; 0 where it was served before.
    pub(super) version: u64,
    pub(super) since: Timestamp,
    /// Whether it has changed, and no event has yet reported that it is served.
    pub(super) is_news: bool,
}

impl Memory {
    /// It is this time. Where the clock was set back, what began later than now begins now: nothing waits for longer than
    /// it would have waited.
    pub(super) fn tick(&mut self, now: Timestamp) {
        if now < self.planned {
            self.waiting.values_mut().for_each(|since| *since = (*since).min(now));
            self.asked.values_mut().for_each(|asked| asked.since = asked.since.min(now));
            self.contests.values_mut().for_each(|contest| contest.set_back(now));
        }
        self.planned = now;
    }

    /// From now on no `ipMode` is written. Whether that is news.
    pub fn leave_out_ip_mode(&mut self) -> bool {
        self.settled.clear();
        !std::mem::replace(&mut self.without_ip_mode, true)
    }
}
