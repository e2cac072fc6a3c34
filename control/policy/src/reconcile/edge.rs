//! Whether this gateway is at the edge for a VIP: whether the VIP's pool selects it, and how it announces the VIP.
//!
//! Pure. `program` asks for each frontend, and `frontends` for display. The rules: the `gatewaySelector` of the pool that
//! an address is from selects gateways by their labels; its `announce` says how they announce the address. An address
//! whose pool no longer exists is announced by every gateway, as before there were selectors. A gateway that is not
//! selected neither answers nor announces, and still forwards what arrives.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tidegate_core::ownership::{Layer2, OwnerKey};
use tidegate_model::config::Layer2Mode;
use tidegate_model::fnv::{START, fnv1a};
use tidegate_model::objects::{AnnounceWays, Pool, Selector};

use super::outcome::Outcome;
use super::settings::Settings;
use super::view::{EdgeView, VipKind};

/// The VIPs of a group of gateways are spread over this number of Leases. A protocol between gateways.
const BUCKETS: u64 = 16;

/// The relation of this gateway to an address of a pool; `None` for a pool that no longer exists.
pub(super) fn edge(settings: &Settings, pool: Option<&Pool>, vip: IpAddr) -> EdgeView {
    let serves = pool.is_none_or(|pool| pool.gateway_selector.matches(&settings.labels));
    let announce = pool.map(|pool| pool.announce).unwrap_or_default();
    let AnnounceWays { l2, bgp } = if serves { announce } else { AnnounceWays::NONE };
    let mode = settings.layer2.mode;
    let layer2 = l2 && mode != Layer2Mode::Off;
    let owner = match mode {
        _ if !layer2 => None,
        Layer2Mode::Always | Layer2Mode::Off => None,
        Layer2Mode::Lease => Some(lease_name(pool.map(|pool| &pool.gateway_selector), vip)),
        Layer2Mode::Vrrp => {
            let groups = &settings.layer2.vrrp.groups;
            groups.get(usize::try_from(spread(vip, groups.len() as u64)).unwrap_or(0)).cloned()
        }
    };
    EdgeView { outside_group: !serves, layer2, bgp, owner, owned_by: None }
}

/// The Lease of an address, in a group of gateways with this selector.
fn lease_name(selector: Option<&Selector>, vip: IpAddr) -> String {
    let bucket = spread(vip, BUCKETS);
    match selector.filter(|selector| **selector != Selector::default()) {
        None => format!("tidegate-l2-all-{bucket:02}"),
        Some(selector) => {
            let hash = fnv1a(START, selector.to_string().bytes());
            format!("tidegate-l2-{hash:016x}-{bucket:02}")
        }
    }
}

/// A number below `count` that follows from the address.
fn spread(vip: IpAddr, count: u64) -> u64 {
    let hash = match vip {
        IpAddr::V4(vip) => fnv1a(START, vip.octets()),
        IpAddr::V6(vip) => fnv1a(START, vip.octets()),
    };
    hash % count.max(1)
}

/// The key of a Lease or VRRP group, in the ownership of the dataplane.
#[must_use]
pub fn owner_key(group: &str) -> OwnerKey {
    OwnerKey::new(fnv1a(START, group.bytes()))
}

/// The groups of VIPs of which this gateway may be the owner, each with the selector of its gateways.
#[must_use]
pub fn owner_groups(outcome: &Outcome) -> BTreeMap<String, Selector> {
    let mut groups: BTreeMap<String, Selector> = BTreeMap::new();
    for vip in outcome.services.iter().flat_map(|service| &service.vips) {
        let Some(owner) = &vip.edge.owner else { continue };
        if !groups.contains_key(owner) {
            let pool = outcome.pools.iter().find(|usage| usage.pool == vip.pool);
            groups
                .insert(owner.clone(), pool.map(|usage| usage.gateway_selector.clone()).unwrap_or_default());
        }
    }
    groups
}

/// How the gateway answers for the link address of an address that serves a Service in this capacity.
pub(super) fn layer2(edge: &EdgeView, kind: VipKind) -> Layer2 {
    match kind {
        // The kernel announces own addresses, and cluster IPs are routed to the gateway.
        VipKind::NodePort | VipKind::ClusterIp => Layer2::Answered,
        VipKind::LoadBalancer | VipKind::ExternalIp => match &edge.owner {
            Some(owner) => Layer2::Owned(owner_key(owner)),
            None if edge.layer2 => Layer2::Always,
            None => Layer2::Silent,
        },
    }
}

/// Whether two states of a pool give the same results here.
pub(super) fn is_same(one: &Pool, other: &Pool) -> bool {
    one.gateway_selector == other.gateway_selector && one.announce == other.announce
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::config::Layer2Config;
    use tidegate_model::objects::Labels;

    fn settings(mode: Layer2Mode) -> Settings {
        let labels = Labels::from([("rack".into(), "r1".into())]);
        let layer2 = Layer2Config { mode, ..Layer2Config::default() };
        Settings { labels, layer2, ..Settings::default() }
    }

    fn pool(selector: &str, l2: bool, bgp: bool) -> Pool {
        let gateway_selector = Selector::parse(selector).expect("a selector");
        Pool { gateway_selector, announce: AnnounceWays { l2, bgp }, ..Pool::new("p", Vec::new()) }
    }

    fn vip(last: u8) -> IpAddr {
        IpAddr::from([203, 0, 113, last])
    }

    #[test]
    fn a_gateway_announces_the_addresses_of_pools_that_select_it_as_they_say() {
        let settings = settings(Layer2Mode::Always);
        let shown = |pool: Option<&Pool>| {
            let edge = edge(&settings, pool, vip(1));
            (edge.outside_group, edge.layer2, edge.bgp, layer2(&edge, VipKind::LoadBalancer))
        };
        assert_eq!(shown(None), (false, true, true, Layer2::Always), "its pool is gone");
        assert_eq!(shown(Some(&pool("", true, true))), (false, true, true, Layer2::Always));
        assert_eq!(shown(Some(&pool("rack=r1", true, false))), (false, true, false, Layer2::Always));
        assert_eq!(shown(Some(&pool("rack=r1", false, true))), (false, false, true, Layer2::Silent));
        assert_eq!(shown(Some(&pool("rack=r2", true, true))), (true, false, false, Layer2::Silent));
        let other = edge(&settings, Some(&pool("rack=r2", true, true)), vip(1));
        assert_eq!(layer2(&other, VipKind::ClusterIp), Layer2::Answered, "it is from no pool");
    }

    #[test]
    fn the_mode_says_who_answers_for_an_address() {
        let of = |mode, pool: &Pool| {
            let edge = edge(&settings(mode), Some(pool), vip(1));
            (layer2(&edge, VipKind::ExternalIp), edge.owner)
        };
        let everywhere = pool("", true, true);
        assert_eq!(of(Layer2Mode::Off, &everywhere), (Layer2::Silent, None));
        let group = "tidegate".to_owned();
        let owned = |group: &String| Layer2::Owned(owner_key(group));
        assert_eq!(of(Layer2Mode::Vrrp, &everywhere), (owned(&group), Some(group)));
        let (by_lease, lease) = of(Layer2Mode::Lease, &everywhere);
        let lease = lease.expect("it has one");
        assert!(lease.starts_with("tidegate-l2-all-") && by_lease == owned(&lease), "{lease}");
        assert_eq!(of(Layer2Mode::Lease, &pool("rack=r2", true, true)), (Layer2::Silent, None));
        assert_ne!(
            of(Layer2Mode::Lease, &pool("rack=r1", true, true)).1,
            Some(lease),
            "another group of gateways"
        );
    }

    /// Gateways of different versions agree on the Lease of a VIP.
    #[test]
    fn leases_of_addresses_are_a_protocol() {
        let rack = Selector::parse("rack=r1").expect("a selector");
        let names =
            [vip(1), vip(2), "2001:db8:1::1".parse().expect("an address")].map(|vip| lease_name(None, vip));
        assert_eq!(names, GOLDEN);
        assert_eq!(lease_name(Some(&rack), vip(1)), GOLDEN_OF_RACK);
        let leases: std::collections::BTreeSet<String> =
            (0..64).map(|last| lease_name(None, vip(last))).collect();
        assert_eq!(leases.len(), 16, "addresses are spread over all");
    }

    const GOLDEN: [&str; 3] = ["tidegate-l2-all-04", "tidegate-l2-all-13", "tidegate-l2-all-15"];
    const GOLDEN_OF_RACK: &str = "tidegate-l2-7dbd119a8f80b8bb-04";
}
