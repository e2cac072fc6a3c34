//! Divides the room of the neighbour table among namespaces, if backends need more next hops than it has.
//!
//! Each namespace may have an equal share of the room. What a namespace leaves of its share, and next hops that an
//! earlier namespace has already, go to the others. So a namespace that needs no more than its share loses nothing,
//! whatever the others do. Within a namespace, ports are served in the order of their keys.
//!
//! Invariant: the result depends only on the spec, not on which entries are free at the moment.

use std::collections::{BTreeMap, HashSet};

use tidegate_spec::SnapshotSpec;
use tidegate_spec::ids::InterfaceIndex;
use tidegate_wire::Addr;

use super::services::Sorted;
use crate::network::Network;

/// The address of a next hop on its link.
type Hop = (InterfaceIndex, Addr);

/// The next hops that backends may have, if there is room for this many besides routers and fixed neighbours.
pub(super) fn granted(
    spec: &SnapshotSpec,
    network: &Network,
    services: &[Sorted<'_>],
    room: usize,
) -> HashSet<Hop> {
    // These have their entries already.
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
    let mut granted = divide(needs, room);
    granted.extend(own);
    granted
}

fn divide(needs: BTreeMap<&str, Vec<Hop>>, room: usize) -> HashSet<Hop> {
    let mut needs: Vec<(&str, Vec<Hop>)> = needs.into_iter().collect();
    needs.sort_by_key(|(namespace, need)| (need.len(), *namespace));
    let mut granted = HashSet::new();
    for (n, (_, need)) in needs.iter().enumerate() {
        let share = (room - granted.len()) / (needs.len() - n);
        let most = granted.len() + share;
        for &hop in need {
            if granted.len() < most {
                granted.insert(hop);
            }
        }
    }
    // Room is left if namespaces have next hops in common.
    for &hop in needs.iter().flat_map(|(_, need)| need) {
        if granted.len() < room {
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
        fn a_namespace_within_its_share_loses_nothing_and_no_room_is_wasted(
            needs in prop::collection::vec(prop::collection::btree_set(0_u8..40, 0..20), 1..6),
            room in 0_usize..50,
        ) {
            let names: Vec<String> = (0..needs.len()).map(|n| format!("n{n}")).collect();
            let of = |set: &std::collections::BTreeSet<u8>| set.iter().map(|&n| hop(n)).collect::<Vec<_>>();
            let given = names.iter().map(String::as_str).zip(needs.iter().map(of)).collect();
            let granted = divide(given, room);
            let all: HashSet<Hop> = needs.iter().flat_map(of).collect();
            prop_assert_eq!(granted.len(), room.min(all.len()));
            for need in needs.iter().filter(|need| need.len() <= room / needs.len()) {
                prop_assert!(of(need).iter().all(|hop| granted.contains(hop)));
            }
        }
    }
}
