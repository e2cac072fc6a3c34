//! The results of steps 3 and 4 for one Service, kept until they run again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate_model::health::{HealthCheckNodePort, Target};
use tidegate_model::objects::Service;
use tidegate_spec::SharedService;

use super::dependencies::Dependencies;
use super::drain::Drains;
use super::finding::Finding;
use super::view::ServiceView;

/// A Service with the results of steps 3 and 4.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) service: Arc<Service>,
    pub(super) served: Served,
    /// The findings about its options, and those of [`Served`].
    pub(super) findings: Vec<Finding>,
    pub(super) deadline: Option<Duration>,
    pub(super) dependencies: Dependencies,
}

/// The result for one Service.
#[derive(Debug)]
pub(super) struct Served {
    /// Sorted by key.
    pub(super) specs: Vec<SharedService>,
    pub(super) view: Arc<ServiceView>,
    pub(super) targets: BTreeSet<Target>,
    /// The findings in addition to those about its options.
    pub(super) findings: Vec<Finding>,
    pub(super) drains: Drains,
    pub(super) listener: Option<HealthCheckNodePort>,
}

impl Served {
    /// Replaces values that are equal to the previous ones by the previous ones, so that later comparisons by pointer
    /// find them unchanged.
    pub(super) fn share(&mut self, before: &Self) {
        if self.view == before.view {
            self.view = Arc::clone(&before.view);
        }
        for spec in &mut self.specs {
            let known = before.specs.binary_search_by_key(&spec.key, |known| known.key);
            if let Ok(at) = known
                && before.specs[at] == *spec
            {
                *spec = before.specs[at].clone();
            }
        }
    }
}
