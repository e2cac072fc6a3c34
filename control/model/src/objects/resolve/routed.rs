//! The endpoints of a Gateway's listeners: those of the Services that their routes name.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_spec::limits::BACKENDS_PER_SERVICE_MAX;

use super::{ENDPOINTS_MAX, EndpointIndex, EndpointShare, Merge, ResolvedEndpoint, ServiceEndpoints};
use crate::diagnostic::Diagnostic;
use crate::fair_share::fair_share;
use crate::objects::{ObjectKey, Port, Protocol, Service, ServicePort};

/// The maximum number of endpoints of one Gateway over all its listeners. Each may serve an address of either family.
/// If there are more, its listeners get equal shares: each may belong to another owner.
const GATEWAY_ENDPOINTS_MAX: usize = ENDPOINTS_MAX / 2;

impl EndpointIndex<'_> {
    /// The endpoints of every listener of a Gateway. Faults of one Service leave only that Service without endpoints.
    pub(super) fn routed(&self, gateway: &Service) -> ServiceEndpoints {
        let mut result = Merge::new(self.objects, gateway).finish();
        let mut resolved: BTreeMap<&ObjectKey, ServiceEndpoints> = BTreeMap::new();
        for (key, _) in gateway.ports.iter().flat_map(|listener| backends(listener).flatten()) {
            if let Some(service) = self.objects.services.get(key) {
                resolved.entry(key).or_insert_with(|| self.resolve(service));
            }
        }
        let size = |listener: &ServicePort| {
            let distinct: BTreeSet<_> = backends(listener).flatten().collect();
            let all: usize = distinct
                .into_iter()
                .filter_map(|one| self.of_backend(&resolved, listener, one))
                .map(<[_]>::len)
                .sum();
            all.min(BACKENDS_PER_SERVICE_MAX)
        };
        let share = fair_share(gateway.ports.iter().map(size).collect(), GATEWAY_ENDPOINTS_MAX);
        let max = share.min(BACKENDS_PER_SERVICE_MAX);
        let mut too_large = BTreeSet::new();
        for (listener, of_listener) in gateway.ports.iter().zip(&mut result.ports) {
            let mut endpoints = BTreeMap::new();
            let mut shares = Vec::new();
            let weights = listener.routed.iter().flat_map(|routed| &routed.backends).map(|one| one.weight);
            for (weight, backend) in weights.zip(backends(listener)) {
                let of_port = backend.and_then(|backend| self.of_backend(&resolved, listener, backend));
                let of_port = of_port.unwrap_or_default();
                let more = of_port.iter().filter(|one| !endpoints.contains_key(&(one.ip, one.port))).count();
                let mut share = EndpointShare { weight, endpoints: Vec::new() };
                if endpoints.len() + more > max {
                    too_large.extend(backend.map(|(key, _)| key));
                } else {
                    share.endpoints = of_port.iter().map(|one| (one.ip, one.port)).collect();
                    endpoints.extend(of_port.iter().map(|one| ((one.ip, one.port), one.clone())));
                }
                shares.push(share);
            }
            of_listener.shares = Some(shares);
            of_listener.endpoints = endpoints.into_values().collect();
        }
        let mut findings = BTreeSet::new();
        for (key, service) in resolved {
            if too_large.contains(key) {
                let what = format!(
                    "Service {key} has too many endpoints for a listener of this Gateway: its share of new flows is \
                     rejected"
                );
                let accepted = format!("at most {max} endpoints for each listener");
                findings.insert(Diagnostic::warning(what).accepting(accepted));
            } else if service.too_many.is_some() || service.not_kept.is_some() {
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

    /// The endpoints of one backend of a listener.
    fn of_backend<'r>(
        &self,
        resolved: &'r BTreeMap<&ObjectKey, ServiceEndpoints>,
        listener: &ServicePort,
        (key, port): (&ObjectKey, Port),
    ) -> Option<&'r [ResolvedEndpoint]> {
        let at = port_index(self.objects.services.get(key)?, port, listener.protocol)?;
        Some(&resolved.get(key)?.ports[at].endpoints)
    }
}

/// The Service and the port of each backend of a listener; `None` for an invalid reference.
fn backends(listener: &ServicePort) -> impl Iterator<Item = Option<(&ObjectKey, Port)>> {
    let backends = listener.routed.iter().flat_map(|routed| &routed.backends);
    backends.map(|backend| backend.service.as_ref().map(|(key, port)| (key, *port)))
}

fn port_index(service: &Service, port: Port, protocol: Protocol) -> Option<usize> {
    service.ports.iter().position(|of| (of.port, of.protocol) == (port, protocol))
}
