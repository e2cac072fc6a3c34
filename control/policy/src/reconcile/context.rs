//! The read-only data that the programming of all Services shares.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use tidegate_model::objects::{Pool, ResolvedEndpoint, SliceIndex};

use super::checkable::Checkable;
use super::contested::Contested;
use super::input::Input;
use super::settings::Settings;
use super::vips::Vips;

/// The shared data.
pub(super) struct Context<'a> {
    pub(super) input: &'a Input<'a>,
    /// The VIPs of all Services. None of them can be an endpoint.
    pub(super) vips: &'a Vips,
    /// The places at which endpoints were written.
    pub(super) slices: &'a SliceIndex,
    /// `NetworkSpec::own_addresses`.
    pub(super) own_addresses: &'a BTreeSet<IpAddr>,
    /// `NetworkSpec::hostless_addresses`.
    pub(super) hostless: &'a BTreeMap<IpAddr, IpNet>,
    /// Node ports and cluster IPs that belong to other Services.
    pub(super) contested: &'a Contested,
    /// All pools.
    pub(super) pools: &'a [Pool],
    /// The networks in which endpoints may be checked.
    pub(super) checkable: &'a Checkable,
}

impl<'a> Context<'a> {
    pub(super) fn settings(&self) -> &'a Settings {
        self.input.settings
    }

    /// Whether the address cannot be an endpoint: packets to a VIP or to the gateway itself would return to the gateway,
    /// and no host has the ends of a network of the gateway.
    pub(super) fn refuses_endpoint(&self, ip: &IpAddr) -> bool {
        self.vips.contains(ip) || self.own_addresses.contains(ip) || self.hostless.contains_key(ip)
    }

    /// The zone of the gateway: the configured one, otherwise that of its node, as for kube-proxy.
    pub(super) fn own_zone(&self) -> Option<&'a str> {
        let (settings, objects) = (self.settings(), self.input.objects);
        settings.zone.as_deref().or_else(|| objects.zone_of(settings.node.as_deref()?))
    }

    /// Whether the operator allows checks of an endpoint.
    pub(super) fn may_be_checked(&self, endpoint: &ResolvedEndpoint) -> bool {
        let node = || self.input.objects.nodes.get(endpoint.node.as_deref()?).map(AsRef::as_ref);
        self.checkable.allows(endpoint.ip, node)
    }
}
