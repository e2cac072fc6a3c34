//! Whether and how this gateway announces a VIP.
//!
//! Pure. `program` calls it for each frontend, and `service_addresses` for display. The `gatewaySelector` of an
//! address's pool selects gateways by their labels, and its `announce` lists the methods of announcement. If the pool
//! no longer exists, every gateway announces the address. A gateway that is not selected doesn't announce the address
//! or answer for it, but still forwards packets that arrive.
//!
//! A gateway that can serve no port of an address doesn't answer for it on layer 2, because with
//! `externalTrafficPolicy: Local` another gateway may have the endpoints. In Lease mode, such addresses have separate
//! Leases, so that a gateway that can serve them owns them. Which addresses these are depends only on the Services, so
//! all gateways agree.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tidegate_model::config::Layer2Mode;
use tidegate_model::fnv::{START, fnv1a};
use tidegate_model::objects::{AnnounceMethods, ObjectKey, Pool, Selector};
use tidegate_spec::ownership::{Layer2, OwnerKey};

use super::outcome::Outcome;
use super::settings::Settings;
use super::view::{EdgeView, ServiceView, VipKind};

/// The VIPs of a group of gateways are spread over this number of Leases. All gateways must use the same number.
const LEASES: u64 = 16;

/// How this gateway announces an address of a pool (`None`: the pool no longer exists). `has_own_lease`: whether the
/// address has a separate Lease.
pub(super) fn edge(settings: &Settings, pool: Option<&Pool>, vip: IpAddr, has_own_lease: bool) -> EdgeView {
    let serves = pool.is_none_or(|pool| pool.gateway_selector.matches(&settings.labels));
    let announce = pool.map(|pool| pool.announce).unwrap_or_default();
    let AnnounceMethods { l2, bgp } = if serves { announce } else { AnnounceMethods::NONE };
    let mode = settings.layer2.mode;
    let layer2 = l2 && mode != Layer2Mode::Off;
    let owner = match mode {
        _ if !layer2 => None,
        Layer2Mode::Always | Layer2Mode::Off => None,
        Layer2Mode::Lease => Some(lease_name(pool.map(|pool| &pool.gateway_selector), vip, has_own_lease)),
        Layer2Mode::Vrrp => {
            let groups = &settings.layer2.vrrp.groups;
            groups.get(usize::try_from(spread(vip, groups.len() as u64)).unwrap_or(0)).cloned()
        }
    };
    EdgeView { outside_group: !serves, layer2, bgp, owner, ..EdgeView::default() }
}

/// The name of an address's Lease, for a group of gateways with this selector. Each gateway serves different Services
/// with `externalTrafficPolicy: Local`, so each address that such Services have or may share has a separate Lease.
fn lease_name(selector: Option<&Selector>, vip: IpAddr, has_own_lease: bool) -> String {
    let group = match selector.filter(|selector| **selector != Selector::default()) {
        None => "all".to_owned(),
        Some(selector) => format!("{:016x}", fnv1a(START, selector.to_string().bytes())),
    };
    match vip {
        _ if !has_own_lease => format!("tidegate-l2-{group}-{:02}", spread(vip, LEASES)),
        IpAddr::V4(vip) => format!("tidegate-l2-{group}-{vip}"),
        IpAddr::V6(vip) => {
            // The name of an object ends with a letter or a digit, and has no colon.
            let parts: Vec<String> = vip.segments().iter().map(|part| format!("{part:x}")).collect();
            format!("tidegate-l2-{group}-{}", parts.join("-"))
        }
    }
}

/// A number below `count`, derived from the address.
fn spread(vip: IpAddr, count: u64) -> u64 {
    let hash = match vip {
        IpAddr::V4(vip) => fnv1a(START, vip.octets()),
        IpAddr::V6(vip) => fnv1a(START, vip.octets()),
    };
    hash % count.max(1)
}

/// The key of a Lease or VRRP group in the dataplane's ownership table.
#[must_use]
pub fn owner_key(group: &str) -> OwnerKey {
    OwnerKey::new(fnv1a(START, group.bytes()))
}

/// VIPs with a common owner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnerGroup {
    /// The gateways that may own them.
    pub selector: Selector,
    /// Their Services.
    pub services: BTreeSet<ObjectKey>,
    /// The Services for which this gateway doesn't serve every port, or has no backend.
    pub lacking: BTreeSet<ObjectKey>,
    /// Whether this gateway can serve one of the VIPs.
    pub is_servable: bool,
    /// Whether it is the Lease of a single VIP that no other VIP can join.
    pub is_of_one_vip: bool,
}

/// The groups of VIPs that this gateway may own.
#[must_use]
pub fn owner_groups(outcome: &Outcome) -> BTreeMap<String, OwnerGroup> {
    let mut groups: BTreeMap<String, OwnerGroup> = BTreeMap::new();
    for service in &outcome.services {
        let is_lacking = service.is_refused_in_part() || service.lacks_backends();
        for vip in &service.vips {
            let Some(owner) = &vip.edge.owner else { continue };
            let group = groups.entry(owner.clone()).or_insert_with(|| {
                let pool = outcome.pools.iter().find(|usage| usage.pool == vip.pool);
                let selector = pool.map(|usage| usage.gateway_selector.clone()).unwrap_or_default();
                let is_of_one_vip = *owner == lease_name(Some(&selector), vip.address, true);
                OwnerGroup { selector, is_of_one_vip, ..OwnerGroup::default() }
            });
            group.is_servable |= vip.edge.unable.is_none();
            let key = ObjectKey::new(service.namespace.as_str(), service.name.as_str());
            if is_lacking {
                group.lacking.insert(key.clone());
            }
            group.services.insert(key);
        }
    }
    groups
}

/// For each address of a Service on layer 2 where this gateway can serve none of the Service's ports, records why.
pub(super) fn note_unable(view: &mut ServiceView) {
    let ServiceView { vips, ports, refused, .. } = view;
    for vip in vips.iter_mut().filter(|vip| vip.edge.layer2) {
        let mut whys = ports.iter().filter(|port| port.vip == vip.address).map(|port| {
            let refused = port.refused.as_ref().map(|refusal| refusal.message.as_str());
            refused.or(port.note.as_deref())
        });
        let first = whys.next().flatten().filter(|_| whys.all(|why| why.is_some()));
        vip.edge.unable = refused.as_deref().or(first).map(str::to_owned);
    }
}

/// How the gateway answers ARP and neighbour discovery for an address of this kind. `is_elsewhere`: whether only other
/// gateways can serve the port.
pub(super) fn layer2(edge: &EdgeView, kind: VipKind, is_elsewhere: bool) -> Layer2 {
    match kind {
        // The kernel announces the gateway's own addresses, and cluster IPs are routed to the gateway.
        VipKind::NodePort | VipKind::ClusterIp => Layer2::Answered,
        VipKind::LoadBalancer | VipKind::ExternalIp if is_elsewhere => Layer2::Silent,
        VipKind::LoadBalancer | VipKind::ExternalIp => match &edge.owner {
            Some(owner) => Layer2::Owned(owner_key(owner)),
            None if edge.layer2 => Layer2::Always,
            None => Layer2::Silent,
        },
    }
}

/// Whether two states of a pool give the same results in this module.
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
        Pool { gateway_selector, announce: AnnounceMethods { l2, bgp }, ..Pool::new("p", Vec::new()) }
    }

    fn vip(last: u8) -> IpAddr {
        IpAddr::from([203, 0, 113, last])
    }

    #[test]
    fn a_gateway_announces_the_addresses_of_pools_that_select_it() {
        let settings = settings(Layer2Mode::Always);
        let shown = |pool: Option<&Pool>| {
            let edge = edge(&settings, pool, vip(1), false);
            (edge.outside_group, edge.layer2, edge.bgp, layer2(&edge, VipKind::LoadBalancer, false))
        };
        assert_eq!(shown(None), (false, true, true, Layer2::Always), "its pool is gone");
        assert_eq!(shown(Some(&pool("", true, true))), (false, true, true, Layer2::Always));
        assert_eq!(shown(Some(&pool("rack=r1", true, false))), (false, true, false, Layer2::Always));
        assert_eq!(shown(Some(&pool("rack=r1", false, true))), (false, false, true, Layer2::Silent));
        assert_eq!(shown(Some(&pool("rack=r2", true, true))), (true, false, false, Layer2::Silent));
        let other = edge(&settings, Some(&pool("rack=r2", true, true)), vip(1), false);
        assert_eq!(layer2(&other, VipKind::ClusterIp, true), Layer2::Answered, "it is from no pool");
    }

    #[test]
    fn the_mode_determines_who_answers_for_an_address() {
        let of = |mode, pool: &Pool| {
            let edge = edge(&settings(mode), Some(pool), vip(1), false);
            assert_eq!(layer2(&edge, VipKind::ExternalIp, true), Layer2::Silent, "it can't serve the port");
            (layer2(&edge, VipKind::ExternalIp, false), edge.owner)
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

    /// Gateways of different versions must agree on the Lease of a VIP.
    #[test]
    fn the_leases_of_addresses_must_not_change() {
        let rack = Selector::parse("rack=r1").expect("a selector");
        let names = [vip(1), vip(2), "2001:db8:1::1".parse().expect("an address")]
            .map(|vip| lease_name(None, vip, false));
        assert_eq!(names, GOLDEN);
        assert_eq!(lease_name(Some(&rack), vip(1), false), GOLDEN_OF_RACK);
        let leases: std::collections::BTreeSet<String> =
            (0..64).map(|last| lease_name(None, vip(last), false)).collect();
        assert_eq!(leases.len(), 16, "addresses are spread over all");
        assert_eq!(lease_name(None, vip(1), true), "tidegate-l2-all-203.0.113.1");
        let v6 = lease_name(Some(&rack), "2001:db8:1::".parse().expect("an address"), true);
        assert_eq!(v6, "tidegate-l2-7dbd119a8f80b8bb-2001-db8-1-0-0-0-0-0");
    }

    const GOLDEN: [&str; 3] = ["tidegate-l2-all-04", "tidegate-l2-all-13", "tidegate-l2-all-15"];
    const GOLDEN_OF_RACK: &str = "tidegate-l2-7dbd119a8f80b8bb-04";
}
