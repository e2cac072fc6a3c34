//! The addresses that the gateway answers for, and in what manner.
//!
//! VIPs and SNAT addresses are the dataplane's: it answers ARP, neighbour solicitations and pings for them.
//! The interfaces' own addresses are the kernel's: what is sent to them is punted. Asked for packets that no
//! service and no flow has claimed. Built by the compile of a snapshot.
//!
//! Invariant: an address has one kind; where it is several things, the interface's own comes first (else ssh
//! and BGP to a gateway that serves nodePorts would end), then the VIP.

use std::sync::Arc;

use crate::hash::key_hash;
use crate::ids::InterfaceIndex;
use crate::key_index::KeyIndex;
use crate::wire::Addr;

/// What an address of the gateway is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressKind {
    /// An interface's own: the kernel answers. A service may have ports of it nevertheless.
    Own(InterfaceIndex),
    /// Of at least one service.
    Vip,
    /// A source of `fullnat`.
    Snat,
}

/// All of them. A copy shares them.
#[derive(Debug, Clone)]
pub(crate) struct Addresses {
    index: KeyIndex,
    records: Arc<[(Addr, AddressKind)]>,
}

impl Addresses {
    /// Of an address that is listed more than once the first counts.
    pub(crate) fn build(listed: impl Iterator<Item = (Addr, AddressKind)>) -> Self {
        let mut records: Vec<_> = listed.collect();
        // Stable: the first of equals stays first.
        records.sort_by_key(|&(addr, _)| addr);
        records.dedup_by_key(|&mut (addr, _)| addr);
        let entries = records.iter().enumerate().map(|(at, (addr, _))| (key_hash(addr, 0, 0), at));
        Self { index: KeyIndex::build(entries), records: records.into() }
    }

    #[inline]
    pub(crate) fn find(&self, addr: &Addr) -> Option<AddressKind> {
        let at = self.index.find(key_hash(addr, 0, 0), |at| self.records[at].0 == *addr)?;
        Some(self.records[at].1)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Addr, AddressKind)> {
        self.records.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_kind_of_an_address_counts() {
        let addr = |n| Addr::v4([192, 0, 2, n]);
        let listed =
            [(addr(1), AddressKind::Own(3)), (addr(2), AddressKind::Vip), (addr(1), AddressKind::Vip)];
        let addresses = Addresses::build(listed.into_iter());
        assert_eq!(addresses.find(&addr(1)), Some(AddressKind::Own(3)));
        assert_eq!(addresses.find(&addr(2)), Some(AddressKind::Vip));
        assert_eq!(addresses.find(&addr(3)), None);
        assert_eq!(addresses.iter().count(), 2);
    }
}
