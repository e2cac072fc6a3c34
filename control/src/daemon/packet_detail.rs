//! What `trace` says about the transport header of a packet: TCP flags, ICMP type, and the state of the checksum.

use tidegate_wire::checksum::Sum;
use tidegate_wire::partial_checksum::is_partial;
use tidegate_wire::tcp::flags;
use tidegate_wire::{Headers, L4Checksum, Parsed, icmp, parse, proto, sctp};

/// The flags of TCP, in the order in which tcpdump users read them.
const FLAGS: [(u8, &str); 6] = [
    (flags::SYN, "SYN"),
    (flags::FIN, "FIN"),
    (flags::RST, "RST"),
    (flags::PSH, "PSH"),
    (flags::ACK, "ACK"),
    (flags::URG, "URG"),
];

/// The flags or the ICMP type, and the state of the checksum, of a frame whose first bytes were copied.
pub(super) fn detail(copied: &[u8], length: usize) -> (Option<String>, Option<&'static str>) {
    // The headers do not parse if the copy is cut off, so the missing bytes are zeros.
    let mut frame = copied.to_vec();
    frame.resize(length.max(copied.len()), 0);
    let Ok(Parsed::Ip(headers)) = parse(&frame) else { return (None, None) };
    let is_whole = copied.len() == length && !headers.is_fragment();
    let checksum = has_checksum(&headers).then(|| match is_whole {
        true => state(&frame, &headers),
        false => "unchecked",
    });
    let is_known = !headers.is_later_fragment();
    let detail = match headers.l4_checksum {
        L4Checksum::Tcp if is_known => Some(tcp_flags(headers.tcp_flags)),
        L4Checksum::Icmp | L4Checksum::Icmpv6 if is_known => {
            Some(format!("type {} code {}", headers.icmp_type, headers.icmp_code))
        }
        _ => None,
    };
    (detail, checksum)
}

fn has_checksum(headers: &Headers) -> bool {
    !matches!(headers.l4_checksum, L4Checksum::None | L4Checksum::UdpZero)
}

fn tcp_flags(bits: u8) -> String {
    let set: Vec<&str> = FLAGS.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect();
    if set.is_empty() { "none".to_owned() } else { set.join(",") }
}

/// The state of the checksum of a whole packet.
fn state(frame: &[u8], headers: &Headers) -> &'static str {
    let packet = &frame[usize::from(headers.l4)..usize::from(headers.ip_end)];
    let sum = |number: u8| {
        let length = u32::from(headers.ip_end - headers.l4);
        let pseudo = Sum::pseudo_header(headers.family, &headers.src, &headers.dst, number, length);
        pseudo.bytes(packet).finish() == 0
    };
    let is_right = match headers.l4_checksum {
        L4Checksum::Tcp => sum(proto::TCP),
        L4Checksum::Udp => sum(proto::UDP),
        L4Checksum::Sctp => sctp::checksum_ok(frame, headers),
        L4Checksum::Icmp | L4Checksum::Icmpv6 => icmp::checksum_ok(frame, headers),
        L4Checksum::None | L4Checksum::UdpZero => true,
    };
    match (is_right, is_partial(frame, headers)) {
        (true, _) => "ok",
        (false, Some(true)) => "partial",
        (false, _) => "bad",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_pipeline::testing::builder::Builder;

    #[test]
    fn flags_and_checksums_of_whole_and_cut_packets() {
        let mut syn =
            Builder::tcp("192.0.2.1:1024", "203.0.113.5:443").flags(flags::SYN | flags::ACK).build();
        let length = syn.len();
        assert_eq!(detail(&syn, length), (Some("SYN,ACK".to_owned()), Some("ok")));
        assert_eq!(detail(&syn[..50], length), (Some("SYN,ACK".to_owned()), Some("unchecked")));
        syn[34 + 16] ^= 1;
        assert_eq!(detail(&syn, length).1, Some("bad"));
        let Ok(Parsed::Ip(headers)) = parse(&syn) else { panic!("an IP packet") };
        let (number, bytes) = (headers.proto, u32::from(headers.ip_end - headers.l4));
        let sum = Sum::pseudo_header(headers.family, &headers.src, &headers.dst, number, bytes).folded();
        syn[34 + 16..34 + 18].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(detail(&syn, length).1, Some("partial"));
        assert_eq!(detail(&[0; 60], 60), (None, None));
    }
}
