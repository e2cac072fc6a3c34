//! What a gateway sends to peers besides flows: recent changes of backends, and its SNAT addresses.
//!
//! Invariant: a list of addresses takes effect only when it has arrived completely, and every list is bounded.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use tidegate_spec::limits::SNAT_ADDRESSES_MAX;
use tidegate_spec::{BackendChange, ServiceKey};

use crate::limits::{REMOVED_BACKENDS_MAX, WEIGHT_CHANGES_MAX};
use crate::message::{Message, SnatAddress};

/// The recent changes of backends, for peers that have missed them.
#[derive(Debug, Clone, Default)]
pub struct BackendChanges {
    /// The changes, by service port.
    pub changes: Arc<[(ServiceKey, BackendChange)]>,
    /// When the remaining times in `changes` were computed.
    pub as_of: Duration,
}

/// The SNAT addresses of a gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snat {
    /// All addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// Whether replies should reach this gateway: it forwards, isn't draining, and has the flows of its peers.
    pub serves: bool,
}

impl Snat {
    /// The messages that send the addresses to a peer.
    pub(crate) fn messages(&self) -> impl Iterator<Item = Message> + '_ {
        let none = self.addresses.is_empty().then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let (last, serves) = (self.addresses.len().saturating_sub(1), self.serves);
        let all = self.addresses.iter().copied().chain(none).enumerate();
        all.map(move |(n, address)| {
            Message::Snat(SnatAddress { address, is_first: n == 0, is_last: n == last, serves })
        })
    }

    /// Adds an address from a list that is being received.
    pub(crate) fn add(&mut self, part: &SnatAddress) {
        if part.is_first {
            self.addresses.clear();
        }
        self.serves = part.serves;
        if !part.address.is_unspecified() && self.addresses.len() < SNAT_ADDRESSES_MAX {
            self.addresses.insert(part.address);
        }
    }
}

impl BackendChanges {
    /// The messages for a peer, with the times that remain at `now`.
    pub(crate) fn of(&self, now: Duration) -> impl Iterator<Item = Message> + '_ {
        let passed = now.saturating_sub(self.as_of);
        let (mut moved, mut removed) = (0, 0);
        self.changes.iter().filter_map(move |(key, change)| {
            let change = change.after(passed)?;
            let (count, max) = match change {
                BackendChange::WeightChanged(_) => (&mut moved, WEIGHT_CHANGES_MAX),
                BackendChange::Removed(_) => (&mut removed, REMOVED_BACKENDS_MAX),
            };
            *count += 1;
            (*count <= max).then_some(Message::Change(*key, change))
        })
    }
}
