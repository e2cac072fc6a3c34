//! The endpoints of a Gateway's listeners: those of the Services that their routes name.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_spec::limits::BACKENDS_PER_SERVICE_MAX;

use super::{ENDPOINTS_MAX, EndpointIndex, EndpointShare, Merge, ServiceEndpoints};
use crate::diagnostic::Diagnostic;
use crate::objects::{ObjectKey, Port, Protocol, Service};

/// The maximum number of endpoints of one Gateway over all its listeners. Each may serve an address of either family.
const GATEWAY_ENDPOINTS_MAX: usize = ENDPOINTS_MAX / 2;

impl EndpointIndex<'_> {
    /// The endpoints of every listener of a Gateway. Faults of one Service leave only that Service without endpoints.
    pub(super) fn routed(&self, gateway: &Service) -> ServiceEndpoints {
        let mut result = Merge::new(self.objects, gateway).finish();
        let mut resolved: BTreeMap<&ObjectKey, ServiceEndpoints> = BTreeMap::new();
        let mut total = 0;
        let mut too_large = BTreeSet::new();
        for (listener, of_listener) in gateway.ports.iter().zip(&mut result.ports) {
            let mut endpoints = BTreeMap::new();
            let mut shares = Vec::new();
            for backend in listener.routed.iter().flat_map(|routed| &routed.backends) {
                let mut share = EndpointShare { weight: backend.weight, endpoints: Vec::new() };
                if let Some((key, port)) = &backend.service
                    && let Some(service) = self.objects.services.get(key)
                    && let Some(at) = port_index(service, *port, listener.protocol)
                {
                    let resolved = resolved.entry(key).or_insert_with(|| self.resolve(service));
                    let of_port = &resolved.ports[at].endpoints;
                    // Each listener may belong to another owner, so a large Service does not affect the others.
                    let of_listener = endpoints.len() + of_port.len();
                    if of_listener > BACKENDS_PER_SERVICE_MAX || total + of_listener > GATEWAY_ENDPOINTS_MAX {
                        too_large.insert(key);
                    } else {
                        share.endpoints = of_port.iter().map(|one| (one.ip, one.port)).collect();
                        endpoints.extend(of_port.iter().map(|one| ((one.ip, one.port), one.clone())));
                    }
                }
                shares.push(share);
            }
            total += endpoints.len();
            of_listener.endpoints = endpoints.into_values().collect();
            of_listener.shares = Some(shares);
        }
        let mut findings = BTreeSet::new();
        for (key, service) in resolved {
            if service.too_many.is_some() || service.not_kept.is_some() || too_large.contains(key) {
                let what =
                    format!("Service {key} has too many endpoints: its share of new flows is rejected");
                findings.insert(Diagnostic::warning(what));
            }
            findings.extend(service.findings.into_iter().chain(service.unmatched));
            result.slice_faults.extend(service.slice_faults);
        }
        result.findings = findings.into_iter().collect();
        result
    }
}

fn port_index(service: &Service, port: Port, protocol: Protocol) -> Option<usize> {
    service.ports.iter().position(|of| (of.port, of.protocol) == (port, protocol))
}
