//! Backends that take new flows, and what their seats follow from.

use crate::hash::{mix, words};
use crate::ids::BackendId;
use crate::wire::Addr;

/// What the places of a backend follow from: the same bytes on every gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    address: Addr,
    rest: u64,
}

impl Identity {
    /// The identity of a backend by address, port and IANA protocol number.
    #[must_use]
    pub fn of_port(address: Addr, port: u16, protocol: u8) -> Self {
        Self { address, rest: u64::from(port) << 8 | u64::from(protocol) }
    }

    /// The identity of a backend by address alone, for Services with client affinity: a client then has the same
    /// backend on all ports of the Service. `occurrence` numbers backends of equal address by their ports, from 0.
    #[must_use]
    pub fn of_address(address: Addr, occurrence: u32) -> Self {
        Self { address, rest: u64::from(occurrence) << 32 }
    }

    /// What the places of its seats are drawn from.
    pub(super) fn hash(&self) -> u64 {
        let (high, low) = words(&self.address);
        mix(mix(mix(high) ^ low) ^ self.rest)
    }
}

/// A backend that takes new flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Where its seats follow from; no two members have the same.
    pub identity: Identity,
    /// How many seats it has.
    pub weight: u16,
    /// What a look-up answers with.
    pub owner: BackendId,
}
