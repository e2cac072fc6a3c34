//! Derives the announced prefixes from the announced VIPs: host routes, or the aggregates that contain them.
//!
//! An aggregate is announced while at least one of its VIPs is. It carries the attributes of its pools but not of
//! Services, so it does not change with each Service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use tidegate_model::config::AnnounceConfig;
use tidegate_model::objects::{AddressRange, PoolRoutes, RouteAttributes};
use tidegate_policy::pools::PoolUsage;

use crate::decide::Vip;

/// Prefixes with their attributes.
pub type Routes = BTreeMap<IpNet, RouteAttributes>;

/// The configured aggregates that are not announced because they contain no address of any pool. They would attract
/// traffic that belongs to other hosts.
#[must_use]
pub fn outside_of_pools(config: &AnnounceConfig, pools: &[PoolUsage]) -> BTreeSet<IpNet> {
    let is_outside = |net: &&IpNet| {
        let net = AddressRange::from(**net);
        !pools.iter().flat_map(|usage| &usage.ranges).any(|range| range.overlaps(&net))
    };
    let aggregates = config.bgp.iter().flat_map(|bgp| &bgp.aggregates);
    aggregates.filter(is_outside).copied().collect()
}

/// The prefixes of the VIPs that are not withheld. VIPs in an aggregate of `outside` get host routes.
#[must_use]
pub fn routes(
    vips: &BTreeMap<IpAddr, Vip>,
    config: &AnnounceConfig,
    pools: &[PoolUsage],
    outside: &BTreeSet<IpNet>,
) -> Routes {
    let pools: BTreeMap<&str, &PoolRoutes> =
        pools.iter().map(|usage| (usage.pool.as_str(), &usage.routes)).collect();
    let aggregates = config.bgp.as_ref().map_or(&[][..], |bgp| &bgp.aggregates);
    let mut routes = Routes::new();
    for (&address, vip) in vips.iter().filter(|(_, vip)| vip.withheld.is_none()) {
        let host = IpNet::from(address);
        let pool = pools.get(vip.pool.as_str());
        let is_whole = |net: &&IpNet| net.contains(&address) && !outside.contains(*net);
        let of_config = aggregates.iter().find(is_whole).copied();
        let of_pool = || {
            let length = pool
                .and_then(|pool| if address.is_ipv4() { pool.aggregation_v4 } else { pool.aggregation_v6 });
            IpNet::new(address, length?).ok().map(|net| net.trunc())
        };
        let prefix = of_config.or_else(of_pool).unwrap_or(host);
        let attributes = match prefix == host {
            true => vip.attributes.clone(),
            false => pool.map(|pool| pool.attributes.clone()).unwrap_or_default(),
        };
        match routes.get_mut(&prefix) {
            Some(before) => *before = before.with(&attributes),
            None => {
                routes.insert(prefix, attributes);
            }
        }
    }
    routes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::Withheld;

    fn vips(list: &[(&str, Option<Withheld>)]) -> BTreeMap<IpAddr, Vip> {
        let vip = |withheld| Vip {
            withheld,
            pool: "public".to_owned(),
            attributes: RouteAttributes { med: Some(7), ..RouteAttributes::default() },
        };
        list.iter().map(|&(ip, withheld)| (ip.parse().unwrap(), vip(withheld))).collect()
    }

    #[test]
    fn an_aggregate_is_announced_while_one_of_its_vips_is() {
        let pool = PoolUsage {
            pool: "public".to_owned(),
            routes: PoolRoutes { aggregation_v4: Some(28), ..PoolRoutes::default() },
            ..PoolUsage::default()
        };
        let (config, pools) = (AnnounceConfig::default(), [pool]);
        let shown = |list: &[(&str, Option<Withheld>)]| -> Vec<(String, Option<u32>)> {
            routes(&vips(list), &config, &pools, &outside_of_pools(&config, &pools))
                .into_iter()
                .map(|(net, with)| (net.to_string(), with.med))
                .collect()
        };
        let out = Some(Withheld::NoEndpoints);
        let one_out =
            [("203.0.113.1", None), ("203.0.113.2", out), ("203.0.113.17", out), ("2001:db8::1", None)];
        assert_eq!(
            shown(&one_out),
            [("203.0.113.0/28".to_owned(), None), ("2001:db8::1/128".to_owned(), Some(7))]
        );
        assert_eq!(shown(&[("203.0.113.1", out), ("203.0.113.2", out)]), []);
    }

    #[test]
    fn an_aggregate_is_announced_only_if_a_pool_has_an_address_in_it() {
        let pool = |name: &str, net: &str| PoolUsage {
            pool: name.to_owned(),
            ranges: vec![net.parse::<IpNet>().unwrap().into()],
            ..PoolUsage::default()
        };
        let pools = [pool("public", "203.0.113.0/28"), pool("more", "203.0.113.16/28")];
        let bgp = |aggregate: &str| {
            let text = format!(
                "apiVersion: tidegate.dev/v1alpha1\nkind: GatewayConfig\nannounce: {{bgp: {{asn: 1, routerId: 192.0.2.2, \
                 peers: [{{address: 192.0.2.1, asn: 2, ebgpMultihop: 1}}], aggregates: [{aggregate}]}}}}\n\
                 dataplane: {{interfaces: [{{name: up, device: net_null0, addresses: [192.0.2.2/24]}}]}}\n"
            );
            let loaded = tidegate_model::config::parse(&text, "gateway.yaml", std::path::Path::new("."), 2);
            loaded.config.unwrap_or_else(|| panic!("{}", loaded.report)).announce
        };
        for (aggregate, vip, announced) in [
            ("203.0.113.0/27", "203.0.113.1", "203.0.113.0/27"),
            ("203.0.113.0/29", "203.0.113.1", "203.0.113.0/29"),
            ("203.0.113.0/24", "203.0.113.1", "203.0.113.0/24"),
            // The Service got it before the pool was changed.
            ("203.0.113.64/26", "203.0.113.65", "203.0.113.65/32"),
        ] {
            let config = bgp(aggregate);
            let outside = outside_of_pools(&config, &pools);
            let found = routes(&vips(&[(vip, None)]), &config, &pools, &outside);
            assert_eq!(found.keys().map(ToString::to_string).collect::<Vec<_>>(), [announced], "{aggregate}");
            assert_eq!(outside.is_empty(), announced == aggregate, "{aggregate}");
        }
    }
}
