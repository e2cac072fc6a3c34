//! How a NIC distributes frames to its queues: receive-side scaling.
//!
//! [`RssConfig`] and [`RssHash`] are the request. [`Rss`] is the actual setting (key, hashed fields, redirection
//! table), from which software can compute the queue of a frame. Not here: rte_flow rules, and the hash function.

use std::ops::{BitAnd, BitOr};

use dpdk_sys as sys;

/// The headers that a NIC hashes (`RTE_ETH_RSS_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RssHash(u64);

impl RssHash {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Source and destination addresses of IPv4 and IPv6, including fragments.
    pub const IP: Self = Self(
        sys::DPDK_SYS_RSS_IPV4
            | sys::DPDK_SYS_RSS_FRAG_IPV4
            | sys::DPDK_SYS_RSS_IPV4_OTHER
            | sys::DPDK_SYS_RSS_IPV6
            | sys::DPDK_SYS_RSS_FRAG_IPV6
            | sys::DPDK_SYS_RSS_IPV6_OTHER
            | sys::DPDK_SYS_RSS_IPV6_EX,
    );
    /// Addresses and ports of TCP over IPv4 and IPv6.
    pub const TCP: Self = Self(sys::DPDK_SYS_RSS_IPV4_TCP | sys::DPDK_SYS_RSS_IPV6_TCP);
    /// Addresses and ports of UDP over IPv4 and IPv6.
    pub const UDP: Self = Self(sys::DPDK_SYS_RSS_IPV4_UDP | sys::DPDK_SYS_RSS_IPV6_UDP);
    /// Addresses and ports of SCTP over IPv4 and IPv6.
    pub const SCTP: Self = Self(sys::DPDK_SYS_RSS_IPV4_SCTP | sys::DPDK_SYS_RSS_IPV6_SCTP);

    /// Whether it contains any of `other`.
    #[must_use]
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether it contains all of `other`.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }
}

impl BitOr for RssHash {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for RssHash {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// The requested RSS. A NIC ignores what it doesn't support; [`crate::Port::rss`] returns the actual setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RssConfig {
    /// The hash key, as long as the NIC requires ([`crate::PortInfo::rss_key_len`]). `None` uses the driver's own.
    pub key: Option<Vec<u8>>,
    /// The headers to hash.
    pub hash: RssHash,
    /// The redirection table, repeated to fill the NIC's table. `None` uses the driver's own.
    pub table: Option<Vec<u16>>,
}

impl Default for RssConfig {
    /// Hashes all addresses and ports, with the driver's key.
    fn default() -> Self {
        Self { key: None, hash: RssHash::IP | RssHash::TCP | RssHash::UDP | RssHash::SCTP, table: None }
    }
}

/// The actual RSS setting of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rss {
    /// The Toeplitz key.
    pub key: Vec<u8>,
    /// The hashed headers.
    pub hash: RssHash,
    /// The redirection table: a frame arrives at queue `table[hash % table.len()]`. Its length is a power of two.
    pub table: Vec<u16>,
}
