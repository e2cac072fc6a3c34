//! The packets of a capture, and the interfaces that received them.

/// One packet of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Nanoseconds since the epoch. A pcapng simple packet has no timestamp, so it gets the one of the previous packet.
    pub timestamp_ns: u64,
    /// The index of the packet's interface in [`Reader::interfaces`](super::Reader::interfaces); 0 in pcap, which has
    /// only one.
    pub interface: u32,
    /// The length on the wire in bytes. It exceeds `data.len()` if the capture truncated the packet.
    pub original_len: u32,
    /// The frame, starting with the Ethernet header.
    pub data: Vec<u8>,
}

/// One interface of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// `if_name` of pcapng.
    pub name: Option<String>,
    /// The resolution of timestamps on this interface.
    pub(super) resolution: Resolution,
    /// Seconds to add to each timestamp (`if_tsoffset` of pcapng).
    pub(super) offset_s: i64,
    /// The maximum captured length of a packet; 0 for no limit.
    pub(super) snap_len: u32,
}

/// The unit of a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resolution {
    /// 10 to the minus n seconds.
    Decimal(u8),
    /// 2 to the minus n seconds.
    Binary(u8),
}

impl Interface {
    /// The timestamp of a packet in nanoseconds since the epoch, limited to 64 bits.
    pub(super) fn timestamp_ns(&self, units: u64) -> u64 {
        let units = u128::from(units);
        let ns = match self.resolution {
            Resolution::Decimal(n @ 0..=9) => units * 10u128.pow(u32::from(9 - n)),
            Resolution::Decimal(n) => units / 10u128.checked_pow(u32::from(n - 9)).unwrap_or(u128::MAX),
            Resolution::Binary(n) => (units * 1_000_000_000).checked_shr(u32::from(n)).unwrap_or(0),
        };
        let ns = i128::try_from(ns).unwrap_or(i128::MAX);
        let ns = ns.saturating_add(i128::from(self.offset_s) * 1_000_000_000);
        u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
    }
}
