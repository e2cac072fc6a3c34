//! The clients that may use a LoadBalancer VIP: converts `loadBalancerSourceRanges` for the dataplane.
//!
//! Pure; used by `program`. The ranges filter LoadBalancer VIPs only: node ports and externalIPs are open to
//! everyone, except an address that is also a LoadBalancer VIP. The manifest decoder decides whether the field or the
//! annotation applies.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tidegate_model::config::OtherFamily;
use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{IpFamily, Service};

use super::annotations::annotation_field;
use super::finding::{Finding, Reason};
use super::settings::Settings;

/// The annotation that is used when the field is empty.
const LEGACY: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

pub(super) struct Admission {
    /// All ranges, shared by the VIPs of both families. For a client, only the ranges of its family matter.
    ranges: Arc<[IpNet]>,
    allow_other_family: bool,
}

impl Admission {
    pub(super) fn new(settings: &Settings, service: &Service) -> Self {
        let mut ranges: Vec<IpNet> = service.source_ranges.iter().map(IpNet::trunc).collect();
        ranges.sort_unstable();
        ranges.dedup();
        Self {
            ranges: ranges.into(),
            allow_other_family: settings.services.source_ranges_other_family == OtherFamily::Allow,
        }
    }

    /// The clients that a LoadBalancer VIP admits; `None` admits all. A /0 admits all clients of its family.
    pub(super) fn of_load_balancer(&self, vip: IpAddr) -> Option<Arc<[IpNet]>> {
        let family = IpFamily::of(vip);
        let mut of_family = self.ranges.iter().filter(|r| IpFamily::of(r.addr()) == family).peekable();
        let everyone = match of_family.peek() {
            None => self.ranges.is_empty() || self.allow_other_family,
            Some(_) => of_family.any(|range| range.prefix_len() == 0),
        };
        (!everyone).then(|| Arc::clone(&self.ranges))
    }

    /// Warns about external IPs that are not LoadBalancer VIPs: the ranges do not filter them, as in kube-proxy.
    pub(super) fn warn_of_external_ips(
        &self,
        service: &Service,
        mut external_ips: impl Iterator<Item = IpAddr>,
        findings: &mut Vec<Finding>,
    ) {
        if self.ranges.is_empty() {
            return;
        }
        let Some(first) = external_ips.next() else { return };
        let what = format!(
            "external IP {first} of Service {} is open to all clients: loadBalancerSourceRanges filters LoadBalancer addresses only",
            service.meta.key
        );
        let accepted = "no externalIPs, or protection.deny for clients that must not reach this gateway";
        let diagnostic = Diagnostic::warning(what).accepting(accepted);
        let reason = Reason::SourceRangesNotApplied;
        findings.push(Finding::at(&service.meta, "spec.externalIPs", reason, diagnostic));
    }

    /// Warns about each LoadBalancer VIP whose family has no range: it admits no client.
    pub(super) fn warn_of_other_family(
        &self,
        service: &Service,
        load_balancer_vips: impl Iterator<Item = IpAddr>,
        findings: &mut Vec<Finding>,
    ) {
        for vip in load_balancer_vips {
            let family = IpFamily::of(vip);
            let named = self.ranges.iter().any(|range| IpFamily::of(range.addr()) == family);
            if named || self.of_load_balancer(vip).is_none() {
                continue;
            }
            let what = format!(
                "address {vip} of Service {} admits no clients: its loadBalancerSourceRanges have no {family} range",
                service.meta.key
            );
            let everyone = if family == IpFamily::V4 { "0.0.0.0/0" } else { "::/0" };
            let diagnostic = Diagnostic::warning(what).accepting(format!(
                "{family} ranges, too ({everyone} for all clients), or services.sourceRangesOtherFamily: allow"
            ));
            let reason = Reason::SourceRangesOtherFamily;
            findings.push(Finding::at(&service.meta, &field(service), reason, diagnostic));
        }
    }
}

/// The field that contains the ranges.
pub(super) fn field(service: &Service) -> String {
    let (meta, field) = (&service.meta, "spec.loadBalancerSourceRanges");
    // A field that the manifest doesn't contain has the location of `spec`: the ranges then come from the annotation.
    if meta.annotations.contains_key(LEGACY) && meta.origin.field(field) == meta.origin.field("spec") {
        return annotation_field(LEGACY);
    }
    field.to_owned()
}
