//! Step 1, and its result: whether a Service concerns this gateway, and how to serve it, before its addresses and
//! endpoints are known.

use std::sync::Arc;

use tidegate_model::objects::Service;

use super::finding::{Finding, ObjectKind};
use super::finding_limit::limited;
use super::options::{Options, options};
use super::own_frontends::has_own_frontends;
use super::settings::Settings;
use super::size_limits::{TooLarge, too_many_frontends};

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
    /// Set if the Service has too many ports and addresses: none is programmed.
    pub(super) too_large: Option<&'a TooLarge>,
}

/// The plan for a Service; `None` if it requests nothing from this gateway.
pub(super) fn plan(service: &Arc<Service>, settings: &Settings) -> Option<Planned> {
    let wants_load_balancer = settings.claims(service);
    let requests_any =
        wants_load_balancer || !service.external_ips.is_empty() || has_own_frontends(settings, service);
    if !requests_any || service.not_for_proxies().is_some() || service.meta.deletion_time.is_some() {
        return None;
    }
    let mut findings = Vec::new();
    findings.extend(Finding::of_faults(ObjectKind::Service, &service.meta));
    let options = options(service, settings, &mut findings);
    let findings = limited(&service.meta, findings, &[]);
    let too_large = too_many_frontends(settings, service);
    // A Service that is too large is planned without ports and external IPs. It keeps its assigned addresses.
    let service = match &too_large {
        None => Arc::clone(service),
        Some(_) => {
            Arc::new(Service { ports: Vec::new(), external_ips: Vec::new(), ..Service::clone(service) })
        }
    };
    Some(Planned { service, options, wants_load_balancer, findings, too_large })
}
