//! The result of step 1: how a Service is to be served, before its addresses and endpoints are known.

use std::sync::Arc;

use tidegate_model::objects::Service;

use super::finding::Finding;
use super::options::Options;
use super::too_large::TooLarge;

/// The result of step 1 for a Service that concerns this gateway.
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

/// A Service that requests an address from the gateway, with its options.
#[derive(Clone, Copy)]
pub(super) struct Plan<'a> {
    pub(super) service: &'a Service,
    pub(super) options: &'a Options,
    pub(super) wants_load_balancer: bool,
    /// Set if the Service names more ports and addresses than it may have: none is programmed.
    pub(super) too_large: Option<&'a TooLarge>,
}
