//! Divides the capacity of the neighbour table among namespaces, if backends need more next hops than it has.
//!
//! Namespaces have equal shares. What a namespace doesn't need of its share goes to the others. A next hop that another
//! namespace already has uses no further capacity. So a namespace within its share loses nothing, whatever the others
//! do. Within a namespace, ports are served in the order of their keys.
//!
//! Invariant: the result depends only on the spec, not on which entries are currently free.

use std::collections::{BTreeMap, HashSet};

use tidegate_spec::SnapshotSpec;
use tidegate_spec::ids::InterfaceIndex;
use tidegate_wire::Addr;

use super::services::Sorted;
use crate::network::Network;

/// The address of a next hop on its link.
type Hop = (InterfaceIndex, Addr);

/// The next hops that backends may have, given the capacity that routers and fixed neighbours leave.
pub(super) fn granted(
    spec: &SnapshotSpec,
    network: &Network,
    services: &[Sorted<'_>],
    capacity: usize,
) -> HashSet<Hop> {
    // Routers and fixed neighbours already have their entries.
    let own = spec.network.routes.iter().map(|route| route.via);
    let own = own.chain(spec.network.neighbors.iter().map(|neighbor| neighbor.ip)).map(Addr::from);
    let own: HashSet<Hop> =
        own.filter_map(|address| Some((network.routes.find(&address)?.interface, address))).collect();
    let mut needs: BTreeMap<&str, Vec<Hop>> = BTreeMap::new();
    let mut seen = HashSet::new();
    for Sorted { spec, backends, .. } in services {
        let need = needs.entry(spec.namespace.as_str()).or_default();
        for &(address, _) in backends {
            let hop = network.routes.find(&address).filter(|hop| hop.neighbor.is_none());
            let Some(hop) = hop.map(|hop| (hop.interface, address)) else { continue };
            if !own.contains(&hop) && seen.insert((spec.namespace.as_str(), hop)) {
                need.push(hop);
            }
        }
    }
    let mut granted = divide(needs, capacity);
    granted.extend(own);
    granted
}

fn divide(needs: BTreeMap<&str, Vec<Hop>>, capacity: usize) -> HashSet<Hop> {
    let mut needs: Vec<(&str, Vec<Hop>)> = needs.into_iter().collect();
    needs.sort_by_key(|(namespace, need)| (need.len(), *namespace));
    let mut granted = HashSet::new();
    for (n, (_, need)) in needs.iter().enumerate() {
        let share = (capacity - granted.len()) / (needs.len() - n);
        let most = granted.len() + share;
        for &hop in need {
            if granted.len() < most {
                granted.insert(hop);
            }
        }
    }
    // Capacity remains if namespaces have next hops in common.
    for &hop in needs.iter().flat_map(|(_, need)| need) {
        if granted.len() < capacity {
            granted.insert(hop);
        }
    }
    granted
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    fn hop(n: u8) -> Hop {
        (0, IpAddr::from([10, 0, 0, n]).into())
    }

    proptest! {
        #[test]
        fn a_namespace_within_its_share_loses_nothing_and_all_capacity_is_used(
            needs in prop::collection::vec(prop::collection::btree_set(0_u8..40, 0..20), 1..6),
            capacity in 0_usize..50,
        ) {
            let names: Vec<String> = (0..needs.len()).map(|n| format!("n{n}")).collect();
            let of = |set: &std::collections::BTreeSet<u8>| set.iter().map(|&n| hop(n)).collect::<Vec<_>>();
            let given = names.iter().map(String::as_str).zip(needs.iter().map(of)).collect();
            let granted = divide(given, capacity);
            let all: HashSet<Hop> = needs.iter().flat_map(of).collect();
            prop_assert_eq!(granted.len(), capacity.min(all.len()));
            for need in needs.iter().filter(|need| need.len() <= capacity / needs.len()) {
                prop_assert!(of(need).iter().all(|hop| granted.contains(hop)));
            }
        }
    }
}
