//! The reasons for which flows are removed from a table, and their counts.

tidegate_wire::named! {
    /// Why a flow was removed from its table.
    #[derive(PartialOrd, Ord, Hash)]
    #[repr(u8)]
    pub enum EvictionReason {
        /// Idle for its timeout.
        Expired => "expired",
        /// Not established, and evicted for a new flow: there was no free position near it, although the table is within
        /// its bound.
        BucketFull => "bucket_full",
        /// Not established, and evicted for a new flow: the table is over its bound.
        TableFull => "table_full",
        /// Removed by the pipeline or an operator.
        Removed => "removed",
        /// Not established, and idle for longer than a table under memory pressure allows.
        Pressure => "pressure",
        /// Established, and evicted for a new flow: no other flow could be evicted, and this one was idle the longest.
        LongestIdle => "longest_idle",
        /// Evicted for a new flow of a service that has reached its share of a full table: a flow of the same service, or
        /// one that was not established.
        ServiceShare => "service_share",
        /// Closed, closing or opening, and its port was needed for a new flow.
        PortReused => "port_reused",
    }
}

/// Counts of flows that were removed or refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowCounters {
    /// Removed flows, by [`EvictionReason`].
    pub evictions: [u64; EvictionReason::COUNT],
    /// New flows that were refused: all flows that could have been evicted were established and in use, or the service
    /// had reached its share of a full table.
    pub refused: u64,
}

impl FlowCounters {
    /// The number of flows removed for this reason.
    #[must_use]
    pub fn evictions(&self, why: EvictionReason) -> u64 {
        self.evictions[why as usize]
    }

    /// Counts a flow removed for this reason.
    pub(super) fn count(&mut self, why: EvictionReason) {
        self.evictions[why as usize] += 1;
    }

    /// Adds two sets of counters.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            evictions: std::array::from_fn(|n| self.evictions[n] + other.evictions[n]),
            refused: self.refused + other.refused,
        }
    }
}
