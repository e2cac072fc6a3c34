//! Why flows leave, and how many of them did.

/// Why a flow has left its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum EvictionReason {
    /// Idle for as long as its state and service allow.
    Expired,
    /// Not established, and made way for a new flow: no room near it, though the table is within its bound.
    BucketFull,
    /// Not established, and made way for a new flow: the table is over its bound.
    TableFull,
    /// By the pipeline or an operator.
    Removed,
    /// Not established, and idle for as long as a table that is short of room allows.
    Pressure,
    /// Established, and made way for a new flow: nothing else could, and it was idle for longest.
    LongestIdle,
    /// Made way for a new flow of a service that has its share of a full table: a flow of the same service, or one that
    /// was not established.
    ServiceShare,
    /// Closed, closing or only opening, and gave its port to a new flow.
    PortReused,
}

impl EvictionReason {
    /// Every reason, in the order of their numbers.
    pub const ALL: &'static [Self] = &[
        Self::Expired,
        Self::BucketFull,
        Self::TableFull,
        Self::Removed,
        Self::Pressure,
        Self::LongestIdle,
        Self::ServiceShare,
        Self::PortReused,
    ];

    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The name in `tidegate_flow_evictions_total{reason}`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::BucketFull => "bucket_full",
            Self::TableFull => "table_full",
            Self::Removed => "removed",
            Self::Pressure => "pressure",
            Self::LongestIdle => "longest_idle",
            Self::ServiceShare => "service_share",
            Self::PortReused => "port_reused",
        }
    }
}

/// What tables count, in flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowCounters {
    /// Flows that have left, by [`EvictionReason`].
    pub evictions: [u64; EvictionReason::COUNT],
    /// New flows that were not taken in: all that could have made way were established and in use, or the service had
    /// its share of a full table.
    pub refused: u64,
}

impl FlowCounters {
    /// Flows that have left for this reason.
    #[must_use]
    pub fn evictions(&self, why: EvictionReason) -> u64 {
        self.evictions[why as usize]
    }

    /// One more flow has left for this reason.
    pub(super) fn count(&mut self, why: EvictionReason) {
        self.evictions[why as usize] += 1;
    }

    /// The sums of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            evictions: std::array::from_fn(|n| self.evictions[n] + other.evictions[n]),
            refused: self.refused + other.refused,
        }
    }
}
