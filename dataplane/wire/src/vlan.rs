//! The single 802.1Q tag. Stacked tags (802.1ad) are not supported: such frames are `Parsed::Other`.

use super::malformed::Malformed;
use core::num::NonZeroU16;

/// Bytes of one tag.
pub const TAG_LEN: usize = 4;

/// A VLAN identifier, 1 to 4094.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VlanId(NonZeroU16);

impl VlanId {
    /// `None` outside 1 to 4094.
    #[inline]
    pub const fn new(id: u16) -> Option<VlanId> {
        match NonZeroU16::new(id) {
            Some(n) if id < 4095 => Some(VlanId(n)),
            _ => None,
        }
    }

    /// The identifier.
    #[inline]
    pub const fn value(self) -> u16 {
        self.0.get()
    }
}

impl core::fmt::Display for VlanId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.fmt(f)
    }
}

/// Reads the tag control information and the ethertype that begin `bytes` (what follows 0x8100).
///
/// # Errors
/// `VlanTruncated`, `VlanReserved`.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<(Option<VlanId>, u16), Malformed> {
    let tag: &[u8; TAG_LEN] = bytes.first_chunk().ok_or(Malformed::VlanTruncated)?;
    let id = u16::from_be_bytes([tag[0], tag[1]]) & 0x0fff;
    if id == 0x0fff {
        return Err(Malformed::VlanReserved);
    }
    Ok((VlanId::new(id), u16::from_be_bytes([tag[2], tag[3]])))
}
