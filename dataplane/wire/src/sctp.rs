//! SCTP (RFC 9260): the kind of a packet by its chunks, its tags, and its CRC32c. `transport` reads the common header.
//!
//! Only the first few chunks are read. A packet with malformed chunks counts as [`Kind::Plain`]: the endpoint decides
//! what to do with it.
//!
//! The CRC covers the ports but no pseudo header: it stays correct when addresses change, and needs a pass over the
//! packet when ports change. Prefer forwarding modes that keep the ports.

use super::headers::{Headers, L4Checksum};

/// Bytes of the common header.
pub const HEADER_LEN: usize = 12;

/// The CRC32c of a packet whose checksum field counts as zero, as the 4 bytes of that field: least significant byte
/// first (RFC 9260 6.8 and appendix A).
pub fn crc32c(packet: &[u8]) -> [u8; 4] {
    let head = &packet[..packet.len().min(8)];
    let tail = packet.get(HEADER_LEN..).unwrap_or(&[]);
    let crc = crc32c::crc32c(head);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, tail).to_le_bytes()
}

/// What a packet does to its association.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// Neither starts nor ends an association: DATA, SACK, HEARTBEAT, COOKIE ACK, ERROR, and unknown chunks.
    Plain = 0,
    /// INIT, with verification tag 0 and no other chunk first in the packet.
    Init,
    /// INIT ACK.
    InitAck,
    /// COOKIE ECHO.
    CookieEcho,
    /// SHUTDOWN or SHUTDOWN ACK.
    Shutdown,
    /// ABORT or SHUTDOWN COMPLETE: the sender no longer has an association.
    End,
    /// A packet of kind [`Self::Shutdown`] or [`Self::End`] whose verification tag is wrong or can't be checked. Only
    /// the flow tables use it; no packet is parsed as this kind.
    Unproved = 8,
}

impl Kind {
    /// The kind with this number; [`Self::Plain`] for unknown numbers.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u8) -> Self {
        match bits {
            1 => Self::Init,
            2 => Self::InitAck,
            3 => Self::CookieEcho,
            4 => Self::Shutdown,
            5 => Self::End,
            8 => Self::Unproved,
            _ => Self::Plain,
        }
    }
}

/// Chunk types (RFC 9260 section 3.2).
pub mod chunk {
    #![allow(missing_docs, reason = "the names are those of RFC 9260")]
    pub const DATA: u8 = 0;
    pub const INIT: u8 = 1;
    pub const INIT_ACK: u8 = 2;
    pub const HEARTBEAT: u8 = 4;
    pub const ABORT: u8 = 6;
    pub const SHUTDOWN: u8 = 7;
    pub const SHUTDOWN_ACK: u8 = 8;
    pub const COOKIE_ECHO: u8 = 10;
    pub const COOKIE_ACK: u8 = 11;
    pub const SHUTDOWN_COMPLETE: u8 = 14;
}

/// The number of chunks examined to find an ABORT or SHUTDOWN behind others. DATA never precedes them (RFC 9260 section
/// 6.10).
const CHUNKS_MAX: usize = 4;

/// The length of an INIT or INIT ACK without parameters (RFC 9260 section 3.3.2).
const INIT_LEN: usize = 20;

/// Bit T of an ABORT or SHUTDOWN COMPLETE: its verification tag is the sender's own, because the sender doesn't know
/// the receiver's (RFC 9260 section 8.5.1).
const T_BIT: u8 = 1;

/// The kind of a packet, and whether the chunk that determines it has bit T. `packet` starts with the common header.
#[must_use]
pub fn kind(packet: &[u8]) -> (Kind, bool) {
    let Some(mut rest) = packet.get(HEADER_LEN..) else { return (Kind::Plain, false) };
    for n in 0..CHUNKS_MAX {
        let Some(&[kind, flags, a, b]) = rest.first_chunk::<4>() else { break };
        let len = usize::from(u16::from_be_bytes([a, b]));
        let first = n == 0;
        match kind {
            chunk::INIT if first && len >= INIT_LEN && rest.len() >= INIT_LEN && packet[4..8] == [0; 4] => {
                return (Kind::Init, false);
            }
            chunk::INIT_ACK if first && len >= INIT_LEN && rest.len() >= INIT_LEN => {
                return (Kind::InitAck, false);
            }
            chunk::COOKIE_ECHO if first => return (Kind::CookieEcho, false),
            chunk::SHUTDOWN | chunk::SHUTDOWN_ACK => return (Kind::Shutdown, false),
            chunk::ABORT | chunk::SHUTDOWN_COMPLETE => return (Kind::End, flags & T_BIT != 0),
            chunk::DATA | chunk::INIT | chunk::INIT_ACK => break,
            _ => {}
        }
        // A chunk is padded to a multiple of four bytes; its length includes at least its own header.
        let Some(next) = rest.get(len.max(4).next_multiple_of(4)..) else { break };
        rest = next;
    }
    (Kind::Plain, false)
}

/// The verification tag of a packet, and the initiate tag of its INIT or INIT ACK (0 for other packets).
///
/// # Panics
/// When `h` does not belong to this frame, or is not SCTP.
#[must_use]
pub fn tags(frame: &[u8], h: &Headers) -> (u32, u32) {
    let packet = &frame[usize::from(h.l4)..usize::from(h.ip_end)];
    let word = |at: usize| packet.get(at..at + 4).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
    let starts = matches!(Kind::from_bits(h.tcp_flags), Kind::Init | Kind::InitAck);
    (word(4), if starts { word(HEADER_LEN + 4) } else { 0 })
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

    fn packet(tag: u32, chunks: &[&[u8]]) -> Vec<u8> {
        [&[0, 7, 0, 9], &tag.to_be_bytes()[..], &[0; 4]].concat().into_iter().chain(chunks.concat()).collect()
    }

    const INIT: [u8; 20] = [1, 0, 0, 20, 0, 0, 0, 9, 0, 0, 0x20, 0, 0, 1, 0, 1, 0, 0, 0, 1];
    const SACK: [u8; 16] = [3, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    const ABORT: [u8; 4] = [6, 0, 0, 4];

    #[test]
    fn an_init_has_no_tag_and_all_its_fields() {
        assert_eq!(kind(&packet(0, &[&INIT])), (Kind::Init, false));
        assert_eq!(kind(&packet(1, &[&INIT])), (Kind::Plain, false), "RFC 9260 section 8.5.1");
        assert_eq!(kind(&packet(0, &[&INIT[..19]])), (Kind::Plain, false));
        assert_eq!(kind(&packet(0, &[&SACK, &INIT])), (Kind::Plain, false));
    }

    #[test]
    fn an_ending_chunk_is_found_after_control_chunks_but_not_after_data() {
        assert_eq!(kind(&packet(5, &[&ABORT])), (Kind::End, false));
        assert_eq!(kind(&packet(5, &[&SACK, &[6, 1, 0, 4]])), (Kind::End, true));
        assert_eq!(kind(&packet(5, &[&SACK, &[7, 0, 0, 8, 0, 0, 0, 1]])), (Kind::Shutdown, false));
        assert_eq!(kind(&packet(5, &[&[0, 3, 0, 16], &[0; 12], &ABORT])), (Kind::Plain, false));
        // Five bytes are padded to eight, and a length below four doesn't cause an endless loop.
        assert_eq!(kind(&packet(5, &[&[4, 0, 0, 5, 1, 0, 0, 0], &ABORT])), (Kind::End, false));
        assert_eq!(kind(&packet(5, &[&[4, 0, 0, 0], &ABORT])), (Kind::End, false));
    }

    #[test]
    fn no_length_of_packet_or_chunk_is_read_beyond_its_end() {
        for len in 0..60 {
            for fill in [0, 1, 2, 3, 4, 6, 0xff] {
                let _ = kind(&vec![fill; len]);
            }
        }
    }

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
