//! What a gateway sends its peers beside flows: recent changes of backends, and its SNAT addresses.
//!
//! Invariant: a list of addresses of a peer counts only when all of it has arrived, and no list grows without a limit.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use tidegate_spec::limits::SNAT_ADDRESSES_MAX;
use tidegate_spec::{BackendChange, ServiceKey};

use crate::limits::{LEFT_MAX, SEATS_MAX};
use crate::message::{Message, SnatAddress};

/// The recent changes of the backends, for peers that have not seen them.
#[derive(Debug, Clone, Default)]
pub struct Seats {
    /// The changes, by service port.
    pub moved: Arc<[(ServiceKey, BackendChange)]>,
    /// When the remaining times of these were as they are here.
    pub as_of: Duration,
}

/// The SNAT addresses of a gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snat {
    /// All of them.
    pub addresses: BTreeSet<IpAddr>,
    /// Whether replies are to reach this gateway: it forwards, does not drain, and has the flows of its peers.
    pub serves: bool,
}

impl Snat {
    /// The messages for a peer.
    pub(crate) fn messages(&self) -> impl Iterator<Item = Message> + '_ {
        let none = self.addresses.is_empty().then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let (last, serves) = (self.addresses.len().saturating_sub(1), self.serves);
        let all = self.addresses.iter().copied().chain(none).enumerate();
        all.map(move |(n, address)| {
            Message::Snat(SnatAddress { address, is_first: n == 0, is_last: n == last, serves })
        })
    }

    /// Adds an address of a list.
    pub(crate) fn add(&mut self, said: &SnatAddress) {
        if said.is_first {
            self.addresses.clear();
        }
        self.serves = said.serves;
        if !said.address.is_unspecified() && self.addresses.len() < SNAT_ADDRESSES_MAX {
            self.addresses.insert(said.address);
        }
    }
}

impl Seats {
    /// The messages for a peer, with the times that remain now.
    pub(crate) fn of(&self, now: Duration) -> impl Iterator<Item = Message> + '_ {
        let passed = now.saturating_sub(self.as_of);
        let (mut seats, mut left) = (0, 0);
        self.moved.iter().filter_map(move |(key, change)| {
            let change = change.after(passed)?;
            let (count, max) = match change {
                BackendChange::WeightChanged(_) => (&mut seats, SEATS_MAX),
                BackendChange::Removed(_) => (&mut left, LEFT_MAX),
            };
            *count += 1;
            (*count <= max).then_some(Message::Change(*key, change))
        })
    }
}
