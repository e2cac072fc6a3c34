//! The Internet checksum (RFC 1071) as a plain loop: slow, and independent of the gateway's code.

/// The checksum of `bytes`.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2);
    let words = words.map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])));
    !folded(words.sum())
}

/// The sum of 16-bit words in ones' complement.
pub(crate) fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
