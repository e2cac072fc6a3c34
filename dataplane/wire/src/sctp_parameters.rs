//! The parameters of an INIT or INIT ACK (RFC 9260 sections 3.3.2 and 3.3.3): the addresses of a multihomed endpoint.
//!
//! [`addresses`] reads the addresses that an endpoint lists. [`hide`] overwrites them in place, for an endpoint whose
//! peer must not send to them because the gateway translates its address. The caller updates the checksum.
//!
//! Invariant: no parameter is read or written outside its chunk and the packet, and a bounded number is examined.

use super::addr::Addr;
use super::sctp::{HEADER_LEN, Kind, chunk};

/// Maximum number of parameters examined. RFC 9260, RFC 4895, RFC 5061 and RFC 6525 together define fewer kinds.
const PARAMETERS_MAX: usize = 32;

/// Length of the chunk header and the fixed fields of INIT and INIT ACK.
const FIXED_LEN: usize = 20;

/// Parameter types.
mod parameter {
    /// IPv4 Address (RFC 9260 section 3.3.2.1.1).
    pub(super) const IPV4: u16 = 5;
    /// IPv6 Address (RFC 9260 section 3.3.2.1.2).
    pub(super) const IPV6: u16 = 6;
    /// Host Name Address (RFC 9260 section 3.3.2.1.4): deprecated.
    pub(super) const HOST_NAME: u16 = 11;
    /// Set Primary Address (RFC 5061 section 4.2.4), which contains an address parameter.
    pub(super) const SET_PRIMARY: u16 = 0xc004;
    /// Supported Extensions (RFC 5061 section 4.2.7): a list of chunk types.
    pub(super) const EXTENSIONS: u16 = 0x8008;
    /// Padding (RFC 4820 section 4). A receiver that doesn't know the type skips it silently, because of its upper bits
    /// (RFC 9260 section 3.2.1).
    pub(super) const PADDING: u16 = 0x8005;
}

/// Chunk types that [`hide`] removes from the supported extensions: ASCONF and ASCONF-ACK (RFC 5061 section 4.1).
const ASCONF: [u8; 2] = [0xc1, 0x80];

/// The chunk PAD (RFC 4820 section 3), which every receiver skips.
const PAD: u8 = 0x84;

/// The position of a parameter's value in the packet.
struct Parameter {
    at: usize,
    kind: u16,
    value: core::ops::Range<usize>,
}

/// The parameters of the INIT or INIT ACK with which a packet starts. `packet` starts with the common header.
fn parameters(packet: &[u8]) -> impl Iterator<Item = Parameter> + use<> {
    let header = packet.get(HEADER_LEN..).and_then(|chunk| chunk.first_chunk::<4>());
    let end = match header {
        Some(&[chunk::INIT | chunk::INIT_ACK, _, a, b]) => {
            (HEADER_LEN + usize::from(u16::from_be_bytes([a, b]))).min(packet.len())
        }
        _ => 0,
    };
    // The positions are collected first, so that the iterator doesn't borrow the packet.
    let mut found = arrayvec::ArrayVec::<Parameter, PARAMETERS_MAX>::new();
    let mut at = HEADER_LEN + FIXED_LEN;
    while let Some(&[k, l, a, b]) = packet.get(..end).and_then(|p| p.get(at..)).and_then(<[u8]>::first_chunk)
    {
        let (kind, len) = (u16::from_be_bytes([k, l]), usize::from(u16::from_be_bytes([a, b])));
        if len < 4 || at + len > end || found.is_full() {
            break;
        }
        found.push(Parameter { at, kind, value: at + 4..at + len });
        at += len.next_multiple_of(4);
    }
    found.into_iter()
}

/// The addresses that the sender of an INIT or INIT ACK lists; none if it only uses the address of its packet.
pub fn addresses(packet: &[u8]) -> impl Iterator<Item = Addr> {
    parameters(packet).filter_map(|one| {
        let value = packet.get(one.value)?;
        match one.kind {
            parameter::IPV4 => Some(Addr::v4(value.try_into().ok()?)),
            parameter::IPV6 => Some(Addr::v6(value.try_into().ok()?)).filter(|addr| !addr.is_v4()),
            _ => None,
        }
    })
}

/// An address as a parameter.
#[must_use]
pub fn address_parameter(addr: &Addr) -> arrayvec::ArrayVec<u8, 20> {
    let (kind, value) = if addr.is_v4() {
        (parameter::IPV4, &addr.bytes()[12..])
    } else {
        (parameter::IPV6, &addr.bytes()[..])
    };
    let [k, l] = kind.to_be_bytes();
    let [a, b] = (4 + value.len() as u16).to_be_bytes();
    [k, l, a, b].iter().chain(value).copied().collect()
}

/// Whether [`hide`] would change the packet.
#[must_use]
pub fn would_hide(packet: &[u8], addresses: bool) -> bool {
    parameters(packet).any(|one| match one.kind {
        parameter::IPV4 | parameter::IPV6 | parameter::HOST_NAME | parameter::SET_PRIMARY => addresses,
        parameter::EXTENSIONS => {
            packet.get(one.value).is_some_and(|types| types.iter().any(|t| ASCONF.contains(t)))
        }
        _ => false,
    })
}

/// If `addresses`, overwrites the sender's addresses in an INIT or INIT ACK: each such parameter becomes a Padding
/// parameter. In any case, overwrites the sender's support for address changes (RFC 5061): their messages contain
/// addresses and are authenticated, so the gateway can't translate them. The length stays.
pub fn hide(packet: &mut [u8], addresses: bool) {
    for one in parameters(packet) {
        match one.kind {
            parameter::IPV4 | parameter::IPV6 | parameter::HOST_NAME | parameter::SET_PRIMARY
                if addresses =>
            {
                if let Some(kind) = packet.get_mut(one.at..one.at + 2) {
                    kind.copy_from_slice(&parameter::PADDING.to_be_bytes());
                }
                if let Some(value) = packet.get_mut(one.value) {
                    value.fill(0);
                }
            }
            parameter::EXTENSIONS => {
                let types = packet.get_mut(one.value).unwrap_or_default();
                types.iter_mut().filter(|t| ASCONF.contains(t)).for_each(|t| *t = PAD);
            }
            _ => {}
        }
    }
}

/// Whether a packet of this kind has parameters.
#[must_use]
pub fn concerns(kind: Kind) -> bool {
    matches!(kind, Kind::Init | Kind::InitAck)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: [u8; 8] = [0, 5, 0, 8, 192, 0, 2, 1];
    const TYPES: [u8; 8] = [0, 12, 0, 6, 0, 5, 0, 0];
    /// RE-CONFIG, ASCONF, ASCONF-ACK.
    const EXTENSIONS: [u8; 8] = [0x80, 8, 0, 7, 0x82, 0xc1, 0x80, 0];

    fn v6() -> [u8; 20] {
        let mut parameter = [0; 20];
        parameter[..8].copy_from_slice(&[0, 6, 0, 20, 0x20, 1, 0xd, 0xb8]);
        parameter[19] = 9;
        parameter
    }

    fn init(parameters: &[&[u8]]) -> Vec<u8> {
        let parameters = parameters.concat();
        let len = u16::try_from(FIXED_LEN + parameters.len()).unwrap().to_be_bytes();
        [&[0; HEADER_LEN][..], &[chunk::INIT, 0], &len, &[7; 16], &parameters].concat()
    }

    #[test]
    fn addresses_of_both_families_are_read_between_other_parameters() {
        let packet = init(&[&TYPES, &V4, &EXTENSIONS, &v6()]);
        let listed: Vec<String> = addresses(&packet).map(|addr| addr.ip().to_string()).collect();
        assert_eq!(listed, ["192.0.2.1", "2001:db8::9"]);
        assert_eq!(addresses(&init(&[])).count(), 0);
    }

    #[test]
    fn hidden_addresses_become_padding_and_address_changes_are_unsupported() {
        let mut packet = init(&[&TYPES, &V4, &EXTENSIONS, &v6()]);
        assert!(would_hide(&packet, true) && would_hide(&packet, false));
        hide(&mut packet, true);
        let padding = [&[0x80, 5, 0, 20][..], &[0; 16]].concat();
        let expected =
            init(&[&TYPES, &[0x80, 5, 0, 8, 0, 0, 0, 0], &[0x80, 8, 0, 7, 0x82, PAD, PAD, 0], &padding]);
        assert_eq!(packet, expected);
        assert!(!would_hide(&packet, true));

        let mut packet = init(&[&V4, &EXTENSIONS]);
        hide(&mut packet, false);
        assert_eq!(packet, init(&[&V4, &[0x80, 8, 0, 7, 0x82, PAD, PAD, 0]]), "the address stays");
        assert!(would_hide(&packet, true) && !would_hide(&packet, false));
    }

    #[test]
    fn a_primary_address_that_the_peer_should_set_is_hidden() {
        let request = [&[0xc0, 4, 0, 16, 0, 0, 0, 1][..], &V4].concat();
        let mut packet = init(&[&TYPES, &request]);
        assert!(would_hide(&packet, true) && !would_hide(&packet, false));
        assert_eq!(addresses(&packet).count(), 0, "the sender doesn't list it as its address");
        hide(&mut packet, true);
        assert_eq!(packet, init(&[&TYPES, &[0x80, 5, 0, 16], &[0; 12]]));
    }

    #[test]
    fn a_parameter_that_does_not_fit_its_chunk_ends_the_list() {
        let mut packet = init(&[&V4, &V4]);
        packet[15] -= 1;
        assert_eq!(addresses(&packet).count(), 1, "the chunk ends before the second");
        let packet = init(&[&V4, &[0, 5, 0, 3], &V4]);
        assert_eq!(addresses(&packet).count(), 1, "a length below that of its header");
        let packet = init(&[&[0, 5, 0, 9, 1, 2, 3, 4, 5, 0, 0, 0], &V4]);
        assert_eq!(addresses(&packet).count(), 1, "an address with five bytes is none");
        let many = vec![&V4[..]; 100];
        assert_eq!(addresses(&init(&many)).count(), PARAMETERS_MAX);
    }

    #[test]
    fn nothing_outside_the_packet_is_read_or_written_whatever_it_contains() {
        for len in 0..80 {
            for fill in [0, 1, 2, 4, 5, 6, 12, 0x80, 0xff] {
                let mut packet = vec![fill; len];
                if let Some(kind) = packet.get_mut(HEADER_LEN) {
                    *kind = chunk::INIT;
                }
                let _ = addresses(&packet).count();
                hide(&mut packet, true);
            }
        }
    }
}
