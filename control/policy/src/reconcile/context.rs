//! The context of step 4: the read-only data that all Services share, and the state of the Service that is being
//! programmed, with its findings so far.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{EndpointShare, Pool, ResolvedEndpoint, ServicePort, SliceIndex};

use super::checkable_networks::Checkable;
use super::drain::Drains;
use super::finding::{Finding, Reason};
use super::frontend::Frontend;
use super::input::Input;
use super::own_frontends::Contested;
use super::plan::Plan;
use super::settings::Settings;
use super::vips::Vips;

pub(super) struct Context<'a> {
    pub(super) input: &'a Input<'a>,
    /// The VIPs of all Services. None of them can be an endpoint.
    pub(super) vips: &'a Vips,
    /// Where endpoints were written.
    pub(super) slices: &'a SliceIndex,
    /// `NetworkSpec::own_addresses`.
    pub(super) own_addresses: &'a BTreeSet<IpAddr>,
    /// `NetworkSpec::hostless_addresses`.
    pub(super) hostless: &'a BTreeMap<IpAddr, IpNet>,
    /// Node ports and cluster IPs that belong to other Services.
    pub(super) contested: &'a Contested,
    pub(super) pools: &'a [Pool],
    /// The networks in which endpoints may be checked.
    pub(super) checkable: &'a Checkable,
}

impl<'a> Context<'a> {
    pub(super) fn settings(&self) -> &'a Settings {
        self.input.settings
    }

    /// Whether the address can't be an endpoint. Packets to a VIP or to the gateway itself would return to the
    /// gateway, and no host has the network and broadcast addresses of the gateway's links.
    pub(super) fn refuses_endpoint(&self, ip: &IpAddr) -> bool {
        self.vips.contains(ip) || self.own_addresses.contains(ip) || self.hostless.contains_key(ip)
    }

    /// The zone of the gateway: the configured zone, otherwise the zone of its node, as in kube-proxy.
    pub(super) fn own_zone(&self) -> Option<&'a str> {
        let (settings, objects) = (self.settings(), self.input.objects);
        settings.zone.as_deref().or_else(|| objects.zone_of(settings.node.as_deref()?))
    }

    /// Whether the operator allows health checks of an endpoint.
    pub(super) fn may_be_checked(&self, endpoint: &ResolvedEndpoint) -> bool {
        let node = || self.input.objects.nodes.get(endpoint.node.as_deref()?).map(AsRef::as_ref);
        self.checkable.allows(endpoint.ip, node)
    }
}

/// The state of one Service during step 4. Every function of that step receives it and adds to it.
pub(super) struct Collector<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) plan: Plan<'a>,
    /// The findings, in the order in which they were made.
    pub(super) findings: Vec<Finding>,
    /// The backends that are listed now, and removed ones that are kept.
    pub(super) drains: Drains,
}

/// One port of the Service on one of its addresses, with its endpoints.
#[derive(Clone, Copy)]
pub(super) struct PortAt<'a> {
    pub(super) i: usize,
    pub(super) port: &'a ServicePort,
    pub(super) frontend: Frontend,
    pub(super) endpoints: &'a [ResolvedEndpoint],
    /// For a listener of a Gateway: the endpoints of each backend of its route.
    pub(super) shares: Option<&'a [EndpointShare]>,
}

impl<'a> Collector<'a> {
    pub(super) fn new(context: &'a Context<'a>, plan: Plan<'a>) -> Self {
        Self { context, plan, findings: Vec::new(), drains: Drains::default() }
    }

    /// Adds a finding about the value at `field` of the Service.
    pub(super) fn find(&mut self, field: &str, reason: Reason, diagnostic: Diagnostic) {
        self.findings.push(Finding::at(&self.plan.service.meta, field, reason, diagnostic));
    }
}

impl PortAt<'_> {
    /// The path of the port in the Service.
    pub(super) fn field(&self) -> String {
        format!("spec.ports[{}]", self.i)
    }
}
