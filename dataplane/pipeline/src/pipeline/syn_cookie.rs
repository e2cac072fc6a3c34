//! SYN cookies: the initial sequence number of a SYN ACK that encodes a handshake, so that the gateway needn't store it
//! (Bernstein 1996, RFC 4987 section 3.6), and the three segments of a handshake that the gateway completes itself.
//!
//! A cookie has 28 bits of a keyed hash over both ends, the client's initial sequence number, the period and the data
//! of the cookie, and 4 bits of data: the client's segment size as one of eight, and whether it accepts SACK. Window
//! scale and timestamps are offered neither to the client nor to the backend.
//!
//! Invariant: nothing here reads a clock or keeps state, and segments of the gateway have no data.

use core::net::{Ipv4Addr, Ipv6Addr};

use tidegate_structures::hash::words;
use tidegate_structures::selection_key::SelectionKey;
use tidegate_wire::checksum::Sum;
use tidegate_wire::ethernet::{self, EthernetHeader, MacAddr, SmallFrame, ether_type};
use tidegate_wire::headers::{Family, Headers, proto};
use tidegate_wire::ipv4::Ipv4Header;
use tidegate_wire::ipv6::Ipv6Header;
use tidegate_wire::mss;
use tidegate_wire::tcp::{self, HEADER_LEN, flags};
use tidegate_wire::tcp_options::{kind, next_option};

/// The segment sizes that a cookie can encode, in ascending order: for the smallest IPv4 and IPv6 packets, usual
/// tunnels, Ethernet, and jumbo frames.
const SIZES: [u16; 8] = [536, 1220, 1340, 1380, 1400, 1440, 1460, 8940];

/// The bits of a cookie that are data.
const DATA: u32 = 0xf;
const SACK: u32 = 0x8;

/// A cookie period in nanoseconds: 64 s. A cookie is valid in its own period and the next.
const PERIOD_NS: u64 = 64_000_000_000;

/// The options of a handshake that a cookie stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Offer {
    /// The largest segment that the client accepts, rounded down to one of eight sizes.
    pub(super) mss: u16,
    /// Whether the client accepts SACK (RFC 2018).
    pub(super) sack: bool,
}

impl Offer {
    /// The options of a client's SYN. Without an MSS option, this assumes the size that every host accepts.
    ///
    /// # Panics
    /// If `h` does not belong to this frame, or is not TCP.
    #[must_use]
    pub(super) fn of(frame: &[u8], h: &Headers) -> Self {
        let segment = &frame[usize::from(h.l4)..usize::from(h.ip_end)];
        let header_len = usize::from(segment[12] >> 4) * 4;
        let options = segment.get(HEADER_LEN..header_len).unwrap_or_default();
        let (mut at, mut size, mut sack) = (0, mss::smallest(h.family), false);
        while let Some(option) = next_option(options, at) {
            at = option.range.end;
            match (option.kind, &options[option.range]) {
                (kind::MSS, &[_, _, high, low]) => size = u16::from_be_bytes([high, low]),
                (kind::SACK_PERMITTED, [_, _]) => sack = true,
                _ => {}
            }
        }
        Self::from_bits(Self { mss: size, sack }.bits())
    }

    fn bits(self) -> u32 {
        // Smaller sizes are rounded up to the first one, which every host must accept (RFC 9293 section 3.7.1).
        let size = SIZES.iter().rposition(|&size| size <= self.mss).unwrap_or(0);
        size as u32 | if self.sack { SACK } else { 0 }
    }

    fn from_bits(bits: u32) -> Self {
        Self { mss: SIZES[(bits & (DATA ^ SACK)) as usize], sack: bits & SACK != 0 }
    }

    /// The offer that a valid cookie stores.
    #[must_use]
    pub(super) fn stored_in(cookie: u32) -> Self {
        Self::from_bits(cookie & DATA)
    }
}

/// The cookie at `now_ns` for the SYN with these addresses and ports and the sequence number `isn`.
#[must_use]
pub(super) fn cookie(key: &SelectionKey, h: &Headers, isn: u32, offer: Offer, now_ns: u64) -> u32 {
    hashed(key, h, isn, offer.bits(), now_ns / PERIOD_NS)
}

/// Whether this gateway recently sent `cookie` to the sender of a segment with these addresses and ports, whose SYN had
/// the sequence number `isn`.
#[must_use]
pub(super) fn is_valid(key: &SelectionKey, h: &Headers, isn: u32, cookie: u32, now_ns: u64) -> bool {
    let period = now_ns / PERIOD_NS;
    let data = cookie & DATA;
    hashed(key, h, isn, data, period) == cookie
        || period > 0 && hashed(key, h, isn, data, period - 1) == cookie
}

fn hashed(key: &SelectionKey, h: &Headers, isn: u32, data: u32, period: u64) -> u32 {
    let ((s0, s1), (d0, d1)) = (words(&h.src), words(&h.dst));
    let ends = u64::from(h.src_port) << 16 | u64::from(h.dst_port);
    let hash = key.cookie_hash(&[s0, s1, d0, d1, ends | u64::from(isn) << 32, period << 4 | u64::from(data)]);
    (hash >> 32) as u32 & !DATA | data
}

/// The sequence numbers and control bits of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Numbers {
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Control bits.
    pub flags: u8,
    /// Window, not scaled.
    pub window: u16,
}

/// The SYN ACK that answers a SYN, sent from `mac` back to the station that sent the frame.
#[must_use]
pub(super) fn syn_ack(
    frame: &[u8],
    h: &Headers,
    mac: MacAddr,
    cookie: u32,
    isn: u32,
    announced: u16,
) -> SmallFrame {
    let numbers =
        Numbers { seq: cookie, ack: isn.wrapping_add(1), flags: flags::SYN | flags::ACK, window: u16::MAX };
    let offer = Offer { mss: announced, sack: Offer::stored_in(cookie).sack };
    write(frame, h, Direction::Back(mac), numbers, Some(offer))
}

/// The client's SYN with the options that the cookie stores, to replace one of its segments.
#[must_use]
pub(super) fn syn(frame: &[u8], h: &Headers, isn: u32, cookie: u32, window: u16) -> SmallFrame {
    let numbers = Numbers { seq: isn, ack: 0, flags: flags::SYN, window };
    write(frame, h, Direction::On, numbers, Some(Offer::stored_in(cookie)))
}

/// The acknowledgement of a backend's SYN ACK, sent from `mac` back to the station that sent the frame.
#[must_use]
pub(super) fn ack(frame: &[u8], h: &Headers, mac: MacAddr, window: u16) -> SmallFrame {
    let segment = tcp::segment(frame, h).map_or((0, 0), |segment| (segment.seq, segment.ack));
    let numbers = Numbers { seq: segment.1, ack: segment.0.wrapping_add(1), flags: flags::ACK, window };
    write(frame, h, Direction::Back(mac), numbers, None)
}

/// The direction of a segment, compared with the frame that it replaces.
#[derive(Clone, Copy)]
enum Direction {
    /// Back to the sender, from this link address.
    Back(MacAddr),
    /// On to the destination.
    On,
}

fn write(
    frame: &[u8],
    h: &Headers,
    direction: Direction,
    numbers: Numbers,
    offer: Option<Offer>,
) -> SmallFrame {
    let mut tcp = [0; HEADER_LEN + 8];
    let len = HEADER_LEN + write_options(&mut tcp[HEADER_LEN..], offer);
    let ((src, src_port), (dst, dst_port)) = match direction {
        Direction::Back(_) => ((&h.dst, h.dst_port), (&h.src, h.src_port)),
        Direction::On => ((&h.src, h.src_port), (&h.dst, h.dst_port)),
    };
    tcp[..2].copy_from_slice(&src_port.to_be_bytes());
    tcp[2..4].copy_from_slice(&dst_port.to_be_bytes());
    tcp[4..8].copy_from_slice(&numbers.seq.to_be_bytes());
    tcp[8..12].copy_from_slice(&numbers.ack.to_be_bytes());
    // The header has 20, 24 or 28 bytes; the field counts 4-byte words.
    tcp[12] = ((len / 4) as u8) << 4;
    tcp[13] = numbers.flags;
    tcp[14..16].copy_from_slice(&numbers.window.to_be_bytes());
    let pseudo = Sum::pseudo_header(h.family, src, dst, proto::TCP, len as u32);
    let check = pseudo.bytes(&tcp[..len]).finish();
    tcp[16..18].copy_from_slice(&check.to_be_bytes());

    let (from_mac, to_mac, ttl) = match direction {
        Direction::Back(mac) => (mac, ethernet::source(frame), 64),
        Direction::On => (ethernet::source(frame), ethernet::destination(frame), h.ttl),
    };
    let ether_type = match h.family {
        Family::V4 => ether_type::IPV4,
        Family::V6 => ether_type::IPV6,
    };
    let mut out = [0; 18 + 40 + HEADER_LEN + 8];
    let l2 = EthernetHeader { dst: to_mac, src: from_mac, vlan: h.vlan, ether_type }.write(&mut out);
    let l3 = match h.family {
        Family::V4 => Ipv4Header {
            // The sum is at most 48.
            total_len: 20 + len as u16,
            tos: 0,
            id: 0,
            dont_fragment: true,
            ttl,
            proto: proto::TCP,
            src: Ipv4Addr::from(src.v4_bytes()),
            dst: Ipv4Addr::from(dst.v4_bytes()),
        }
        .write(&mut out[l2..]),
        Family::V6 => Ipv6Header {
            traffic_class: 0,
            flow_label: 0,
            payload_len: len as u16,
            next_header: proto::TCP,
            hop_limit: ttl,
            src: Ipv6Addr::from(*src.bytes()),
            dst: Ipv6Addr::from(*dst.bytes()),
        }
        .write(&mut out[l2..]),
    };
    let l4 = l2 + l3;
    out[l4..l4 + len].copy_from_slice(&tcp[..len]);
    SmallFrame::try_from(&out[..l4 + len]).expect("86 bytes at most, and the frame has 128")
}

/// Writes the options of a SYN, and returns their length.
fn write_options(options: &mut [u8], offer: Option<Offer>) -> usize {
    let Some(Offer { mss, sack }) = offer else { return 0 };
    let [high, low] = mss.to_be_bytes();
    options[..4].copy_from_slice(&[kind::MSS, 4, high, low]);
    if !sack {
        return 4;
    }
    options[4..8].copy_from_slice(&[kind::NOP, kind::NOP, kind::SACK_PERMITTED, 2]);
    8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::builder::Builder;
    use proptest::prelude::*;
    use tidegate_wire::{Parsed, parse};

    const SECOND: u64 = 1_000_000_000;

    fn key() -> SelectionKey {
        SelectionKey::from_hex("000102030405060708090a0b0c0d0e0f").unwrap()
    }

    fn syn_frame(from: &str, to: &str, options: &[u8]) -> (Vec<u8>, Headers) {
        let frame = Builder::tcp(from, to).flags(flags::SYN).seq_ack(77, 0).tcp_options(options).build();
        let Ok(Parsed::Ip(h)) = parse(&frame) else { panic!("not IP") };
        (frame, h)
    }

    #[test]
    fn cookies_equal_the_golden_ones() {
        let (frame, h) = syn_frame("192.0.2.1:40000", "203.0.113.5:80", &[2, 4, 5, 180, 4, 2, 1, 1]);
        let offer = Offer::of(&frame, &h);
        assert_eq!(offer, Offer { mss: 1460, sack: true });
        let v4 = cookie(&key(), &h, 77, offer, 1000 * SECOND);
        let (frame, h) = syn_frame("[2001:db8::1]:40000", "[2001:db8:1::5]:80", &[]);
        let offer = Offer::of(&frame, &h);
        assert_eq!(offer, Offer { mss: 1220, sack: false });
        let v6 = cookie(&key(), &h, 77, offer, 1000 * SECOND);
        // Computed by an independent program from the definition of SipHash.
        assert_eq!((v4, v6), (2_661_687_262, 1_416_405_697));
    }

    #[test]
    fn a_cookie_is_valid_in_its_period_and_the_next() {
        let (frame, h) = syn_frame("192.0.2.1:40000", "203.0.113.5:80", &[]);
        let made = cookie(&key(), &h, 77, Offer::of(&frame, &h), 640 * SECOND);
        let valid = |at: u64| is_valid(&key(), &h, 77, made, at * SECOND);
        assert_eq!([639, 640, 703, 704, 767, 768].map(valid), [false, true, true, true, true, false]);
    }

    #[test]
    fn a_syn_ack_is_no_longer_than_a_syn_with_the_same_options() {
        let (frame, h) = syn_frame("192.0.2.1:40000", "203.0.113.5:80", &[2, 4, 5, 180, 1, 1, 4, 2]);
        let answer =
            syn_ack(&frame, &h, MacAddr([2; 6]), cookie(&key(), &h, 77, Offer::of(&frame, &h), 0), 77, 1400);
        assert!(answer.len() <= frame.len());
        let Ok(Parsed::Ip(h)) = parse(&answer) else { panic!("not IP") };
        assert_eq!(Offer::of(&answer, &h), Offer { mss: 1400, sack: true });
    }

    proptest! {
        #[test]
        fn an_altered_cookie_number_or_end_is_refused(isn: u32, flip in 0..32_u32, mss in 1u16.., sack: bool, at in 0..1u64 << 62) {
            let (_, h) = syn_frame("192.0.2.1:40000", "203.0.113.5:80", &[]);
            let offer = Offer { mss, sack };
            let made = cookie(&key(), &h, isn, offer, at);
            prop_assert!(is_valid(&key(), &h, isn, made, at));
            prop_assert_eq!(Offer::stored_in(made), Offer::from_bits(offer.bits()));
            prop_assert!(Offer::stored_in(made).mss <= mss.max(536));
            // Two hashes of 28 bits: the chance that one fits is 2^-27, and the cases are few.
            prop_assert!(!is_valid(&key(), &h, isn, made ^ 1 << flip, at));
            prop_assert!(!is_valid(&key(), &h, isn ^ 1 << flip, made, at));
            let other = Headers { src_port: h.src_port ^ 1, ..h };
            prop_assert!(!is_valid(&key(), &other, isn, made, at));
        }

        #[test]
        fn no_options_make_it_panic(options in proptest::collection::vec(any::<u8>(), 0..10)) {
            let mut options = options;
            options.resize(options.len().next_multiple_of(4), 0);
            let (frame, h) = syn_frame("192.0.2.1:40000", "203.0.113.5:80", &options);
            prop_assert!(SIZES.contains(&Offer::of(&frame, &h).mss));
        }
    }
}
