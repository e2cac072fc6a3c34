//! SCTP (RFC 9260): the CRC32c of a packet. Only the common header is read, in `transport`.
//!
//! The CRC covers the ports but no pseudo header: it stays correct when addresses change, and needs a pass over the
//! packet when ports change. Prefer forwarding modes that keep the ports.

use super::headers::{Headers, L4Checksum};

/// Bytes of the common header.
pub const HEADER_LEN: usize = 12;

/// The checksum as 4 bytes in the order of the header, over a packet whose checksum field counts as zero (RFC 9260 6.8
/// and appendix A: CRC32c, transmitted least significant byte first).
pub fn crc32c(packet: &[u8]) -> [u8; 4] {
    let head = &packet[..packet.len().min(8)];
    let tail = packet.get(HEADER_LEN..).unwrap_or(&[]);
    let crc = crc32c::crc32c(head);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, tail).to_le_bytes()
}

/// Whether the packet begins an association: its first chunk is INIT, which must be the only chunk (RFC 9260 section
/// 6.10).
///
/// # Panics
/// When `h` does not belong to this frame.
pub fn is_opening(frame: &[u8], h: &Headers) -> bool {
    const INIT: u8 = 1;
    let first_chunk = &frame[usize::from(h.l4)..usize::from(h.ip_end)];
    h.l4_checksum == L4Checksum::Sctp && first_chunk.get(HEADER_LEN) == Some(&INIT)
}

/// True when the packet is complete and its checksum is correct.
///
/// # Panics
/// When `h` does not belong to this frame.
pub fn checksum_ok(frame: &[u8], h: &Headers) -> bool {
    if h.l4_checksum != L4Checksum::Sctp || h.is_fragment() {
        return false;
    }
    let packet = &frame[usize::from(h.l4)..usize::from(h.ip_end)];
    packet[8..12] == crc32c(packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_is_the_castagnoli_polynomial() {
        // The check value of CRC-32C over "123456789" without the field: the function must treat bytes 8..12 as zero,
        // whatever they contain.
        let mut packet = *b"12345678\xaa\xbb\xcc\xdd9";
        let with_garbage = crc32c(&packet);
        packet[8..12].fill(0);
        assert_eq!(crc32c(&packet), with_garbage);
        // RFC 3720 B.4: 32 bytes of zeros.
        assert_eq!(crc32c(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
    }
}
