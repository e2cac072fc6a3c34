//! The endpoints of a Gateway's listeners: those of the Services that their routes name.

use std::collections::{BTreeMap, BTreeSet};

use super::{ENDPOINTS_MAX, EndpointIndex, EndpointShare, Merge, ServiceEndpoints};
use crate::diagnostic::Diagnostic;
use crate::objects::{ObjectKey, Port, Protocol, Service};

impl EndpointIndex<'_> {
    /// The endpoints of every listener of a Gateway. Faults of one Service leave only that Service without endpoints.
    pub(super) fn routed(&self, gateway: &Service) -> ServiceEndpoints {
        let mut result = Merge::new(self.objects, gateway).finish();
        let mut resolved: BTreeMap<&ObjectKey, ServiceEndpoints> = BTreeMap::new();
        let mut total = 0;
        for (listener, of_listener) in gateway.ports.iter().zip(&mut result.ports) {
            let mut endpoints = BTreeMap::new();
            let mut shares = Vec::new();
            for backend in listener.routed.iter().flat_map(|routed| routed.iter()) {
                let mut share = EndpointShare { weight: backend.weight, endpoints: Vec::new() };
                if let Some((key, port)) = &backend.service
                    && let Some(service) = self.objects.services.get(key)
                    && let Some(at) = port_index(service, *port, listener.protocol)
                {
                    let resolved = resolved.entry(key).or_insert_with(|| self.resolve(service));
                    let of_port = &resolved.ports[at].endpoints;
                    share.endpoints = of_port.iter().map(|one| (one.ip, one.port)).collect();
                    endpoints.extend(of_port.iter().map(|one| ((one.ip, one.port), one.clone())));
                }
                shares.push(share);
            }
            total += endpoints.len();
            of_listener.endpoints = endpoints.into_values().collect();
            of_listener.shares = Some(shares);
        }
        if total > ENDPOINTS_MAX {
            return ServiceEndpoints { too_many: Some(total), ..Merge::new(self.objects, gateway).finish() };
        }
        let mut findings = BTreeSet::new();
        for (key, service) in resolved {
            if service.too_many.is_some() || service.not_kept.is_some() {
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
