//! Link addresses of next hops: what is wanted of a forwarding state, and what the state machine's actions do.
//!
//! The machine is [`resolver`]; the slow path drives it. Here is the seam: a [`SnapshotSpec`] becomes the
//! [`Surroundings`] that the machine looks after, and what it learns goes into the table that workers read.
//!
//! Invariant: the slow path is the only writer of link addresses beside the compile of a snapshot, which makes slots.

use std::net::IpAddr;

use tidegate_core::neighbors::NeighborTable;
use tidegate_core::snapshot::SnapshotSpec;
use tidegate_core::wire::{Addr, MacAddr, VlanId};

pub mod resolver;

use resolver::{Link, Surroundings};

/// What a forwarding state wants to know of its links. `announce`: tell the links about VIPs and SNAT addresses.
#[must_use]
pub fn surroundings(spec: &SnapshotSpec, announce: bool) -> Surroundings {
    let links = spec.interfaces.iter().map(|interface| Link {
        mac: interface.mac,
        vlan: interface.vlan.and_then(VlanId::new),
        addresses: interface.addresses.clone(),
    });
    let backends =
        spec.services.iter().flat_map(|service| service.backends.iter().map(|backend| backend.address));
    let vips = spec.services.iter().map(|service| service.key.vip);
    let own = |address: &IpAddr| {
        spec.interfaces.iter().any(|interface| interface.addresses.iter().any(|net| net.addr() == *address))
    };
    Surroundings {
        interfaces: links.collect(),
        fixed: spec.neighbors.iter().map(|neighbor| (neighbor.ip, neighbor.mac)).collect(),
        next_hops: spec
            .routes
            .iter()
            .map(|route| route.via)
            .chain(backends)
            .filter(|address| !own(address))
            .collect(),
        // The kernel's side of the tap answers and announces the interfaces' own addresses.
        owned: vips
            .chain(spec.snat_addresses.iter().copied())
            .filter(|address| announce && !own(address))
            .collect(),
    }
}

/// Puts a link address into the table. With no room for another next hop it stays unresolved, and that is logged.
pub fn learn(table: &NeighborTable, interface: u8, address: IpAddr, mac: MacAddr, fixed: bool) {
    match table.intern(interface, Addr::from(address)) {
        Ok(slot) if fixed => table.set_static(slot, mac),
        Ok(slot) => {
            table.learn(slot, mac);
        }
        Err(error) => tracing::warn!(%address, interface, %error, "neighbour not kept"),
    }
}

/// Takes a link address out of the table.
pub fn forget(table: &NeighborTable, interface: u8, address: IpAddr) {
    if let Some(slot) = table.lookup(interface, &Addr::from(address)) {
        table.clear_static(slot);
        table.forget(slot);
    }
}
