//! Decides which EndpointSlices the hub keeps within the memory budget, and which it must read again.
//!
//! The hub counts each slice when it is published ([`Slices::published`]), and requests which ones to change
//! ([`Slices::decide`]). If a slice that was left out fits again, all slices are listed again ([`Slices::request`]),
//! but not too often: slices that repeatedly cross the limit must not cost the API server a list each time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_model::objects::{EndpointSlice, NotKept, ObjectKey};
use tokio::sync::Notify;

use crate::slices::{SharedBudget, SliceBudget, locked, owner};

/// The EndpointSlices of the hub, with their budget.
pub(super) struct Slices {
    pub(super) budget: SharedBudget,
    /// Requests a list of all slices.
    pub(super) refit: Arc<Notify>,
    /// [Owners](owner) that the next [`decide`](Self::decide) may change: one of their slices was published, and is
    /// left out or may have to be.
    touched: BTreeSet<ObjectKey>,
    /// Slices that fit again and must be read.
    awaited: BTreeSet<ObjectKey>,
    /// The earliest time at which the awaited slices may be listed.
    request_at: Instant,
}

impl Slices {
    pub(super) fn new(mib: u32) -> Self {
        Self {
            budget: SharedBudget::new(SliceBudget::new(mib).into()),
            refit: Arc::default(),
            touched: BTreeSet::new(),
            awaited: BTreeSet::new(),
            request_at: Instant::now(),
        }
    }

    /// Why the endpoints of a slice are not kept, according to the last decision.
    pub(super) fn not_kept(&self, slice: &EndpointSlice) -> Option<NotKept> {
        locked(&self.budget).not_kept(&owner(slice)?)
    }

    /// Records the current state of a slice, or with `None` its removal.
    pub(super) fn published(&mut self, key: &ObjectKey, slice: Option<&EndpointSlice>) {
        let mut budget = locked(&self.budget);
        budget.set(key, slice);
        let Some(slice) = slice else {
            self.awaited.remove(key);
            return;
        };
        let service = budget.service_of(key).expect("it was just set");
        if slice.left_out.is_some() || budget.not_kept(&service).is_some() {
            self.touched.insert(service);
        }
        match slice.left_out {
            Some(left_out) if left_out.why == NotKept::Awaited => self.awaited.insert(key.clone()),
            _ => self.awaited.remove(key),
        };
    }

    /// Decides again. Returns the slices that may have to change, each with the reason if its endpoints are not kept.
    pub(super) fn decide(&mut self) -> Vec<(ObjectKey, Option<NotKept>)> {
        let mut budget = locked(&self.budget);
        let mut services = std::mem::take(&mut self.touched);
        services.extend(budget.decide());
        let of = |service: &ObjectKey| {
            let why = budget.not_kept(service);
            budget.slices_of(service).into_iter().map(move |slice| (slice, why))
        };
        services.iter().flat_map(of).collect()
    }

    /// When the awaited slices must be listed.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.awaited.is_empty()).then_some(self.request_at)
    }

    /// Requests a list if one is due. The next one is requested after `pause` at the earliest.
    pub(super) fn request(&mut self, pause: Duration, now: Instant) {
        if self.due().is_some_and(|due| due <= now) {
            tracing::debug!(
                slices = self.awaited.len(),
                "EndpointSlices fit into endpointSlicesMiB again; listing them"
            );
            self.request_at = now + pause;
            self.refit.notify_one();
        }
    }
}
