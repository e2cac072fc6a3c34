//! Routes to SNAT addresses: replies of backends must reach a gateway that has their flows.
//!
//! Gateways that share flows announce each other's SNAT addresses. Routers prefer the gateway that owns an address and
//! fail over to another when its routes disappear, without any message between the gateways. Every attribute that
//! routers compare encodes the preference: LOCAL_PREF within an AS, the length of AS_PATH, and MULTI_EXIT_DISC. Kernel
//! routes have no such attributes, so they exist only while no other gateway has a better route.
//!
//! The daemon chooses the preferences. Nothing is announced while the gateway cannot forward or is stopping.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use tidegate_model::objects::{PREPENDS_MAX, RouteAttributes};

use crate::decide::Gateway;
use crate::routes::Routes;

/// How strongly routers prefer a route to a SNAT address, strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Preference {
    /// The gateway owns the address.
    Own,
    /// The gateway has the flows of the owner.
    Reserve,
    /// The gateway owns the address, but is draining or has not received the flows of its peers yet.
    Last,
}

impl Preference {
    fn attributes(self) -> RouteAttributes {
        match self {
            Self::Own => RouteAttributes::default(),
            Self::Reserve => attributes(1, 1_000_000, PREPENDS_MAX - 1),
            Self::Last => attributes(0, 2_000_000, PREPENDS_MAX),
        }
    }
}

fn attributes(local_pref: u32, med: u32, prepends: u8) -> RouteAttributes {
    RouteAttributes {
        local_pref: Some(local_pref),
        med: Some(med),
        prepends: Some(prepends),
        ..RouteAttributes::default()
    }
}

/// The route of this gateway to a SNAT address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnatRoute {
    /// Its preference.
    pub preference: Preference,
    /// Whether no gateway that is known to be alive has a better route.
    pub is_best: bool,
}

/// The routes of this gateway to SNAT addresses.
pub type SnatRoutes = BTreeMap<IpAddr, SnatRoute>;

/// Adds the routes to SNAT addresses to the BGP routes and the kernel routes.
pub(crate) fn add(snat: &SnatRoutes, gateway: Gateway, bgp: &mut Routes, kernel: &mut Routes) {
    if gateway.leaving || !gateway.forwarding {
        return;
    }
    for (&address, route) in snat {
        bgp.entry(IpNet::from(address)).or_insert_with(|| route.preference.attributes());
        if route.is_best {
            kernel.entry(IpNet::from(address)).or_default();
        }
    }
}

/// The prefixes of the routes with [`Preference::Last`].
pub(crate) fn last_resort(snat: &SnatRoutes) -> BTreeSet<IpNet> {
    let last = snat.iter().filter(|(_, route)| route.preference == Preference::Last);
    last.map(|(&address, _)| IpNet::from(address)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORWARDS: Gateway =
        Gateway { forwarding: true, draining: false, catching_up: false, leaving: false };

    #[test]
    fn routers_prefer_the_owner_then_the_others_then_a_draining_owner() {
        use Preference::{Last, Own, Reserve};
        let all = [Own, Reserve, Last].map(Preference::attributes);
        let rank = |of: &RouteAttributes| {
            let (med, prepends) = (of.med.unwrap_or(0), of.prepends.unwrap_or(0));
            (of.local_pref.unwrap_or(100), std::cmp::Reverse(prepends), std::cmp::Reverse(med))
        };
        for pair in all.windows(2) {
            let [better, worse] = [rank(&pair[0]), rank(&pair[1])];
            assert!(better.0 > worse.0 && better.1 > worse.1 && better.2 > worse.2, "{pair:?}");
        }
    }

    #[test]
    fn the_kernel_has_only_the_best_routes_of_a_forwarding_gateway() {
        let route = |address: &str, preference, is_best| {
            (address.parse().unwrap(), SnatRoute { preference, is_best })
        };
        let snat = SnatRoutes::from([
            route("192.0.2.12", Preference::Own, true),
            route("192.0.2.13", Preference::Reserve, false),
            route("2001:db8::14", Preference::Reserve, true),
        ]);
        let added = |gateway| {
            let (mut bgp, mut kernel) = (Routes::new(), Routes::new());
            add(&snat, gateway, &mut bgp, &mut kernel);
            [bgp, kernel].map(|routes| routes.keys().map(ToString::to_string).collect::<Vec<_>>())
        };
        let [bgp, kernel] = added(Gateway { draining: true, ..FORWARDS });
        assert_eq!(bgp, ["192.0.2.12/32", "192.0.2.13/32", "2001:db8::14/128"]);
        assert_eq!(kernel, ["192.0.2.12/32", "2001:db8::14/128"]);
        for none in [Gateway { forwarding: false, ..FORWARDS }, Gateway { leaving: true, ..FORWARDS }] {
            assert_eq!(added(none), [vec![], Vec::<String>::new()]);
        }
    }
}
