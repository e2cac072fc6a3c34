//! What step 1 gives: how a Service is to be served, before it is known which addresses and endpoints it has.

use std::sync::Arc;

use tidegate_model::objects::Service;

use super::finding::Finding;
use super::options::Options;
use super::too_large::TooLarge;

/// Step 1 of a Service that concerns us.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) service: Arc<Service>,
    pub(super) options: Options,
    pub(super) wants_load_balancer: bool,
    pub(super) findings: Vec<Finding>,
    pub(super) too_large: Option<TooLarge>,
}

impl Planned {
    pub(super) fn plan(&self) -> Plan<'_> {
        let Self { service, options, wants_load_balancer, too_large, .. } = self;
        let (wants_load_balancer, too_large) = (*wants_load_balancer, too_large.as_ref());
        Plan { service, options, wants_load_balancer, too_large }
    }

    pub(super) fn service(&self) -> &Service {
        &self.service
    }

    pub(super) fn wants_load_balancer(&self) -> bool {
        self.wants_load_balancer
    }
}

/// A Service that asks the gateway for an address, and how it is to be served.
#[derive(Clone, Copy)]
pub(super) struct Plan<'a> {
    pub(super) service: &'a Service,
    pub(super) options: &'a Options,
    pub(super) wants_load_balancer: bool,
    /// The Service names more ports and addresses than it may have: none is programmed.
    pub(super) too_large: Option<&'a TooLarge>,
}
