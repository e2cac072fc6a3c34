//! The limit on new flows from each source prefix.

use tidegate_wire::Addr;

/// `protection.newConnections`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceRate {
    /// New flows per second from one prefix, at least 1.
    pub per_second: u32,
    /// The burst: new flows from one prefix at once, at least 1.
    pub burst: u32,
    /// The length of IPv4 prefixes, up to 32.
    pub v4_len: u8,
    /// The length of IPv6 prefixes, up to 64.
    pub v6_len: u8,
}

impl SourceRate {
    /// The prefix of a source as an integer, which is unique within its family, and the number of that family.
    #[must_use]
    pub fn prefix(&self, source: &Addr) -> (u64, u64) {
        if source.is_v4() {
            let bits = u64::from(u32::from_be_bytes(source.v4_bytes()));
            (bits >> (32 - u32::from(self.v4_len.min(32))), 1)
        } else {
            let high: [u8; 8] = source.bytes()[..8].try_into().expect("8 of 16 bytes");
            let len = u32::from(self.v6_len.min(64));
            (u64::from_be_bytes(high).checked_shr(64 - len).unwrap_or(0), 2)
        }
    }
}
