//! Decides which EndpointSlices the hub keeps within the memory budget, and which it must read again.
//!
//! The hub counts each slice when it is shown ([`Slices::shown`]), and asks which ones to change
//! ([`Slices::settle`]). If a slice that was left out fits again, all slices are listed again ([`Slices::ask`]), but
//! not too often: slices that come and go around the limit must not cost the API server a list each time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_model::objects::{EndpointSlice, NotKept, ObjectKey};
use tokio::sync::Notify;

use crate::slices::{SharedBudget, SliceBudget, locked};

/// The EndpointSlices of the hub, with their budget.
pub(super) struct Slices {
    pub(super) budget: SharedBudget,
    /// Requests a list of all slices.
    pub(super) refit: Arc<Notify>,
    /// Services with a slice that is, or may have to be, left out, and that was shown since the last
    /// [`settle`](Self::settle).
    touched: BTreeSet<ObjectKey>,
    /// Slices that fit again, and must be read.
    awaited: BTreeSet<ObjectKey>,
    /// The earliest time at which they may be listed.
    may_ask: Instant,
}

impl Slices {
    pub(super) fn new(mib: u32) -> Self {
        Self {
            budget: SharedBudget::new(SliceBudget::new(mib).into()),
            refit: Arc::default(),
            touched: BTreeSet::new(),
            awaited: BTreeSet::new(),
            may_ask: Instant::now(),
        }
    }

    /// The reason why the endpoints of a slice are not kept, according to the last decision.
    pub(super) fn not_kept(&self, slice: &EndpointSlice) -> Option<NotKept> {
        locked(&self.budget).not_kept(&slice.service()?)
    }

    /// Records the current state of a slice, or with `None` its removal.
    pub(super) fn shown(&mut self, key: &ObjectKey, slice: Option<&EndpointSlice>) {
        let mut budget = locked(&self.budget);
        budget.set(key, slice);
        let Some(slice) = slice else {
            self.awaited.remove(key);
            return;
        };
        let service = budget.service_of(key).expect("it was set just now");
        if slice.left_out.is_some() || budget.not_kept(&service).is_some() {
            self.touched.insert(service);
        }
        match slice.left_out {
            Some(left_out) if left_out.why == NotKept::Awaited => self.awaited.insert(key.clone()),
            _ => self.awaited.remove(key),
        };
    }

    /// Makes the decision. Returns the slices that may have to change, each with the reason why its endpoints are not
    /// kept, if they are not.
    pub(super) fn settle(&mut self) -> Vec<(ObjectKey, Option<NotKept>)> {
        let mut budget = locked(&self.budget);
        let mut services = std::mem::take(&mut self.touched);
        services.extend(budget.settle());
        let of = |service: &ObjectKey| {
            let why = budget.not_kept(service);
            budget.slices_of(service).into_iter().map(move |slice| (slice, why))
        };
        services.iter().flat_map(of).collect()
    }

    /// When the awaited slices must be listed.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.awaited.is_empty()).then_some(self.may_ask)
    }

    /// Requests a list if one is due. The next one is requested after `pause` at the earliest.
    pub(super) fn ask(&mut self, pause: Duration, now: Instant) {
        if self.due().is_some_and(|due| due <= now) {
            tracing::debug!(slices = self.awaited.len(), "EndpointSlices fit again: listing them");
            self.may_ask = now + pause;
            self.refit.notify_one();
        }
    }
}
