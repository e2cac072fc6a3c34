//! Backends that take new flows, and the identities that determine their seats.

use tidegate_spec::ids::BackendId;
use tidegate_structures::hash::{mix, words};
use tidegate_wire::Addr;

/// The identity that determines the seats of a backend: the same bytes on every gateway.
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

    /// The identity of a backend by address alone, for Services with client affinity: a client then reaches the same
    /// backend on all ports of the Service. `occurrence` numbers backends of equal address by their ports, from 0.
    #[must_use]
    pub fn of_address(address: Addr, occurrence: u32) -> Self {
        Self { address, rest: u64::from(occurrence) << 32 }
    }

    /// The hash that determines its seats.
    pub(super) fn hash(&self) -> u64 {
        let (high, low) = words(&self.address);
        mix(mix(mix(high) ^ low) ^ self.rest)
    }
}

/// A backend that takes new flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// The identity that determines its seats. No two members have the same one.
    pub identity: Identity,
    /// The number of its seats.
    pub weight: u16,
    /// The backend's id, the result of a look-up.
    pub owner: BackendId,
}
