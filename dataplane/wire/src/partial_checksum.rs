//! Detects packets whose sender left the transport checksum to its NIC, although no NIC completed it.
//!
//! A kernel that relies on checksum offload writes only the sum of the pseudo header into the field (Linux calls the
//! packet `CHECKSUM_PARTIAL`). On a veth pair or a virtual switch, no hardware completes it. A receiving kernel knows
//! this from a flag in the packet's metadata. A poll-mode driver that reads from a packet socket doesn't pass the flag
//! on, and the backend silently drops the packet. One valid packet in 65,536 looks like a partial one, so callers
//! compare counts.

use super::checksum::Sum;
use super::{Headers, L4Checksum, proto};

/// Offset of the checksum in the headers of TCP and UDP.
const OF_TCP: usize = 16;
const OF_UDP: usize = 6;

/// Whether the transport checksum of a whole TCP or UDP packet is only the sum of its pseudo header. `None` for other
/// packets and for fragments.
#[must_use]
pub fn is_partial(frame: &[u8], h: &Headers) -> Option<bool> {
    if h.is_fragment() {
        return None;
    }
    let (number, offset) = match h.l4_checksum {
        L4Checksum::Tcp => (proto::TCP, OF_TCP),
        L4Checksum::Udp => (proto::UDP, OF_UDP),
        _ => return None,
    };
    let at = usize::from(h.l4) + offset;
    let field = frame.get(at..at + 2)?;
    let len = u32::from(h.ip_end.checked_sub(h.l4)?);
    let sum = Sum::pseudo_header(h.family, &h.src, &h.dst, number, len).folded();
    Some(field == sum.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Builder;
    use crate::{Parsed, parse};

    fn check(frame: &[u8]) -> Option<bool> {
        let Ok(Parsed::Ip(h)) = parse(frame) else { panic!("an IP packet") };
        is_partial(frame, &h)
    }

    #[test]
    fn a_checksum_that_only_sums_the_pseudo_header_is_partial() {
        let packets = [
            (Builder::tcp("192.0.2.1:1024", "203.0.113.5:443"), 34 + OF_TCP),
            (Builder::udp("192.0.2.1:1024", "203.0.113.5:53"), 34 + OF_UDP),
            (Builder::tcp("[2001:db8::1]:1024", "[2001:db8::5]:443"), 54 + OF_TCP),
        ];
        for (packet, at) in packets {
            let mut frame = packet.build();
            assert_eq!(check(&frame), Some(false));
            let Ok(Parsed::Ip(h)) = parse(&frame) else { panic!("an IP packet") };
            let len = u32::from(h.ip_end - h.l4);
            let sum = Sum::pseudo_header(h.family, &h.src, &h.dst, h.proto, len).folded();
            frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
            assert_eq!(check(&frame), Some(true));
        }
    }
}
