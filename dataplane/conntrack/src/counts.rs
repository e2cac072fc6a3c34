//! Counts the flows of each service in a table, and the opening entries of each service and client network.
//!
//! The first count limits the share of one service in a full table; the others identify the source of a flood. An entry
//! is opening until its direction has shown that the flow is established ([`SideState::is_opening`]). So a NAT flow has
//! two such entries at first, and one once its backend has answered. The networks, /24 and /56, share 4,096 counters by
//! a secret hash, so a counter is at least as large as the count of its network.
//!
//! Invariant: the counts are exact after each change of an entry. Affinity entries are never opening.
//!
//! [`SideState::is_opening`]: super::flow_state::SideState

use tidegate_spec::ids::ServiceId;
use tidegate_spec::limits::{
    OPENING_NETWORK_MIN, OPENING_NETWORK_SHARE, OPENING_NETWORKS, OPENING_SERVICE_SHARE, SERVICES_MAX,
};
use tidegate_wire::usual::network;

/// The load that the service and the network of a flow put on the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Load {
    /// Flows with a higher priority are evicted first.
    pub(super) priority: EvictionPriority,
    /// Whether the flow is probably part of a flood.
    pub(super) floods: bool,
}

/// Whether a flow's network floods, and the number of its service's opening entries in powers of four.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct EvictionPriority(u8);

impl EvictionPriority {
    const NETWORK: u8 = 1 << 4;

    fn new(network_floods: bool, opening: u32) -> Self {
        // The class is at most 15.
        let class = opening.checked_ilog2().unwrap_or(0) as u8 / 2;
        Self(if network_floods { Self::NETWORK } else { 0 } | class)
    }

    /// Whether the network of the flow floods.
    pub(super) fn is_of_network(self) -> bool {
        self.0 & Self::NETWORK != 0
    }

    /// Whether the other priority is at least two classes higher, so that its count is more than four times as large.
    pub(super) fn is_far_below(self, other: Self) -> bool {
        self.0 + 1 < other.0
    }
}

/// The counters of one table.
#[derive(Debug)]
pub(super) struct Counts {
    /// Flows and opening entries of each service, by the index of its id. A reused index also counts the former
    /// service's flows until they are gone.
    of_service: Box<[[u32; 2]]>,
    /// Affinity entries of each service, which are also flows above.
    affinities: Box<[u32]>,
    /// Opening entries of the networks with this hash.
    of_network: Box<[u32; OPENING_NETWORKS]>,
    /// The index of the largest counter. After that counter has shrunk, another one may temporarily be slightly larger.
    largest: usize,
    /// The number of opening entries.
    opening: u32,
    /// An odd number that determines which networks share a counter.
    secret: u64,
}

const FLOWS: usize = 0;
const OPENING: usize = 1;

const _: () = assert!(OPENING_NETWORKS.is_power_of_two() && OPENING_NETWORKS > 1);

impl Counts {
    pub(super) fn new(secret: u64) -> Self {
        Self {
            // The system zeroes the memory, so counters without a service take none.
            of_service: vec![[0; 2]; SERVICES_MAX].into_boxed_slice(),
            affinities: vec![0; SERVICES_MAX].into_boxed_slice(),
            of_network: vec![0; OPENING_NETWORKS].try_into().expect("it has this length"),
            largest: 0,
            opening: 0,
            secret: secret | 1,
        }
    }

    /// The number of flows of a service. `owner` is its raw id, as in the keys of its flows.
    #[inline]
    pub(super) fn flows(&self, owner: u32) -> u32 {
        self.of_service.get(index(owner)).map_or(0, |counts| counts[FLOWS])
    }

    /// The number of flows of a service, without affinity entries.
    pub(super) fn connections(&self, owner: u32) -> u32 {
        self.flows(owner).saturating_sub(self.affinities.get(index(owner)).copied().unwrap_or(0))
    }

    /// Counts an affinity entry that is created or removed, in addition to [`Self::add_flow`] and
    /// [`Self::remove_flow`].
    #[cold]
    pub(super) fn change_affinities(&mut self, owner: u32, is_new: bool) {
        if let Some(count) = self.affinities.get_mut(index(owner)) {
            *count = if is_new { *count + 1 } else { *count - 1 };
        }
    }

    #[inline]
    pub(super) fn add_flow(&mut self, owner: u32) {
        if let Some(counts) = self.of_service.get_mut(index(owner)) {
            counts[FLOWS] += 1;
        }
    }

    #[inline]
    pub(super) fn remove_flow(&mut self, owner: u32) {
        if let Some(counts) = self.of_service.get_mut(index(owner)) {
            counts[FLOWS] -= 1;
        }
    }

    /// Counts an entry of this service and client that becomes opening.
    #[inline]
    pub(super) fn add_opening<const A: usize>(&mut self, owner: u32, client: &[u32; A]) {
        self.opening += 1;
        let network = network_index(self.secret, client);
        self.of_network[network] += 1;
        if self.of_network[network] > self.of_network[self.largest] {
            self.largest = network;
        }
        if let Some(counts) = self.of_service.get_mut(index(owner)) {
            counts[OPENING] += 1;
        }
    }

    /// Counts an entry of this service and client that is no longer opening.
    #[inline]
    pub(super) fn remove_opening<const A: usize>(&mut self, owner: u32, client: &[u32; A]) {
        self.opening -= 1;
        self.of_network[network_index(self.secret, client)] -= 1;
        if let Some(counts) = self.of_service.get_mut(index(owner)) {
            counts[OPENING] -= 1;
        }
    }

    /// The load of a flow: its eviction priority, and whether its network or service floods.
    pub(super) fn load<const A: usize>(&self, owner: u32, client: &[u32; A]) -> Load {
        let network_floods = self.floods(network_index(self.secret, client));
        let of_service = self.opening_of(owner);
        let service_floods = of_service > self.opening / OPENING_SERVICE_SHARE;
        // If a network floods, the other clients of the service do not count as flooding.
        let floods = network_floods || service_floods && !self.floods(self.largest);
        Load { priority: EvictionPriority::new(network_floods, of_service), floods }
    }

    fn floods(&self, network: usize) -> bool {
        let of_network = self.of_network[network];
        of_network > OPENING_NETWORK_MIN && of_network > self.opening / OPENING_NETWORK_SHARE
    }

    /// The opening entries of a service, by its raw id.
    pub(super) fn opening_of(&self, owner: u32) -> u32 {
        self.of_service.get(index(owner)).map_or(0, |counts| counts[OPENING])
    }

    #[cfg(test)]
    pub(super) fn opening(&self) -> u32 {
        assert_eq!(self.of_network.iter().sum::<u32>(), self.opening);
        self.opening
    }
}

#[inline]
fn index(owner: u32) -> usize {
    ServiceId::from_raw(owner).index()
}

/// The index of the counter of a client's network: a /24, or a /56. Addresses are in the form that entries store.
#[inline]
fn network_index<const A: usize>(secret: u64, client: &[u32; A]) -> usize {
    // Multiply-shift (Dietzfelbinger et al. 1997) uses the upper bits.
    (network(client).wrapping_mul(secret) >> (u64::BITS - OPENING_NETWORKS.ilog2())) as usize
}
