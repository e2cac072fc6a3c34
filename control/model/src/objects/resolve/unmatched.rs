//! Reports ports of a Service without endpoints because no slice, Endpoints or Pod has such a port. Usually, the name
//! of the port differs between the Service and that object.

use std::collections::HashSet;
use std::sync::Arc;

use super::Merge;
use crate::diagnostic::{Diagnostic, Location};
use crate::objects::{
    AddressType, EndpointPort, EndpointSlice, Endpoints, Pod, Protocol, ServicePort, TargetPort,
};

/// The maximum number of reported ports of one Service.
const REPORTED_MAX: usize = 8;
/// The maximum number of ports of a slice that a message lists.
const NAMED_MAX: usize = 3;

impl Merge<'_> {
    /// Reports ports that no slice with endpoints has.
    pub(super) fn unmatched_by_slices(&mut self, slices: &[Arc<EndpointSlice>]) {
        let is_ip = |slice: &&Arc<EndpointSlice>| {
            matches!(slice.address_type, AddressType::V4 | AddressType::V6) && slice.endpoint_count() > 0
        };
        let mut slices: Vec<_> = slices.iter().filter(is_ip).collect();
        slices.sort_unstable_by(|a, b| a.meta.key.cmp(&b.meta.key));
        let Some(first) = slices.first() else { return };
        let all = slices.iter().flat_map(|slice| &slice.ports);
        let described = format!("EndpointSlice {} has ports [{}]", first.meta.key, named(&first.ports));
        self.unmatched_by(all, &described, first.meta.origin.field("ports"));
    }

    /// Reports ports that no subset with addresses has.
    pub(super) fn unmatched_by_legacy(&mut self, endpoints: &Endpoints) {
        let subsets = endpoints.subsets.iter().enumerate();
        let mut subsets =
            subsets.filter(|(_, s)| !s.addresses.is_empty() || !s.not_ready_addresses.is_empty()).peekable();
        let Some((i, first)) = subsets.peek() else { return };
        let described = format!("Endpoints {} has ports [{}]", endpoints.meta.key, named(&first.ports));
        let location = endpoints.meta.origin.field(&format!("subsets[{i}].ports"));
        self.unmatched_by(subsets.flat_map(|(_, subset)| &subset.ports), &described, location);
    }

    /// Reports named target ports that no selected Pod has.
    pub(super) fn unmatched_by_pods<'p>(&mut self, pods: impl Iterator<Item = &'p Pod>) {
        let pods: Vec<&Pod> = pods.filter(|pod| !pod.finished && !pod.ips.is_empty()).collect();
        if pods.is_empty() {
            return;
        }
        let service = self.service;
        let lacks = |port: &ServicePort| match &port.target_port {
            TargetPort::Number(_) => false,
            TargetPort::Name(name) => pods.iter().all(|pod| pod.named_port(name, port.protocol).is_none()),
        };
        let lacking = service.ports.iter().enumerate().filter(|(_, port)| lacks(port));
        for (i, port) in lacking.take(REPORTED_MAX) {
            let what = format!(
                "no Pod of Service {} has a container port named {} ({}): port {} gets no endpoint",
                service.meta.key,
                port.target_port,
                port.protocol,
                port.label()
            );
            let location = service.meta.origin.field(&format!("spec.ports[{i}].targetPort"));
            let diagnostic = Diagnostic::warning(what).accepting("the name of a container port, or a number");
            self.unmatched.push(diagnostic.at(location));
        }
    }

    /// Reports unmatched ports. `described` names the object and its ports for the message.
    fn unmatched_by<'p>(
        &mut self,
        ports: impl Iterator<Item = &'p EndpointPort>,
        described: &str,
        location: Option<Location>,
    ) {
        let ports = ports.filter(|port| port.port.is_some());
        let described_ports: HashSet<(&str, Protocol)> =
            ports.map(|port| (port.name.as_str(), port.protocol)).collect();
        let service = self.service;
        let lacking: Vec<&ServicePort> = service
            .ports
            .iter()
            .filter(|port| !described_ports.contains(&(port.name.as_str(), port.protocol)))
            .collect();
        for port in lacking.iter().take(REPORTED_MAX) {
            let by_name = described_ports.iter().any(|(name, _)| *name == port.name);
            let wanted = match (port.name.as_str(), by_name || port.protocol != Protocol::Tcp) {
                ("", false) => "a port without a name".to_owned(),
                ("", true) => format!("a port without a name, protocol {}", port.protocol),
                (name, false) => format!("a port named {name}"),
                (name, true) => format!("a port named {name}, protocol {}", port.protocol),
            };
            let what = format!(
                "{described}, but Service {} needs {wanted}: port {} gets no endpoint",
                service.meta.key, port.port
            );
            let accepted = match port.name.as_str() {
                "" => format!("a port without a name, protocol {}", port.protocol),
                name => format!("a port named {name}, protocol {}", port.protocol),
            };
            self.unmatched.push(Diagnostic::warning(what).accepting(accepted).at(location.clone()));
        }
        if lacking.len() > REPORTED_MAX {
            let more = lacking.len() - REPORTED_MAX;
            let what =
                format!("{described}: {more} more ports of Service {} get no endpoint", service.meta.key);
            self.unmatched.push(
                Diagnostic::warning(what)
                    .accepting("a port with the same name and protocol for each port of the Service")
                    .at(location),
            );
        }
    }
}

/// Formats ports as `web/8080, dns/53/UDP`.
fn named(ports: &[EndpointPort]) -> String {
    if ports.is_empty() {
        return "none".to_owned();
    }
    let one = |port: &EndpointPort| {
        let name = if port.name.is_empty() { "(no name)" } else { &port.name };
        let number = port.port.map_or_else(|| "(no number)".to_owned(), |number| number.to_string());
        let protocol = match port.protocol {
            Protocol::Tcp => String::new(),
            other => format!("/{other}"),
        };
        format!("{name}/{number}{protocol}")
    };
    let mut shown: Vec<String> = ports.iter().take(NAMED_MAX).map(one).collect();
    if ports.len() > NAMED_MAX {
        shown.push(format!("{} more", ports.len() - NAMED_MAX));
    }
    shown.join(", ")
}
