//! Addresses that the gateway adds to the INIT ACK of a backend: further VIPs at which a client reaches the association.
//!
//! The addresses that the backend itself lists were overwritten when the packet was translated
//! ([`sctp_parameters::hide`](tidegate_wire::sctp_parameters::hide)).

use arrayvec::ArrayVec;
use tidegate_spec::limits::FURTHER_VIPS_MAX;
use tidegate_wire::sctp;
use tidegate_wire::sctp_parameters::address_parameter;
use tidegate_wire::{Addr, Headers};

use super::proxy_protocol::set_ip_len;
use crate::frame::Frame;

/// Bytes of the longest address parameter.
const PARAMETER_MAX: usize = 20;

/// Adds at most [`FURTHER_VIPS_MAX`] addresses to the list of an INIT ACK. Returns false, and leaves the frame
/// unchanged, if the packet is damaged or a fragment, has more than one chunk, or would exceed `mtu` or the tailroom.
pub fn append<F: Frame>(frame: &mut F, h: &Headers, addresses: &[Addr], mtu: usize) -> bool {
    let (l4, end) = (usize::from(h.l4), usize::from(h.ip_end));
    // The checksum of a damaged packet must not become correct, and the checksum of a fragment covers other fragments.
    if h.is_fragment() || !sctp::checksum_ok(frame.bytes(), h) {
        return false;
    }
    let chunk = l4 + sctp::HEADER_LEN;
    let Some(&[sctp::chunk::INIT_ACK, _, a, b]) = frame.bytes().get(chunk..end).and_then(<[u8]>::first_chunk)
    else {
        return false;
    };
    let padded = usize::from(u16::from_be_bytes([a, b])).next_multiple_of(4);
    let mut list = ArrayVec::<u8, { FURTHER_VIPS_MAX * PARAMETER_MAX }>::new();
    for addr in addresses.iter().take(FURTHER_VIPS_MAX) {
        let fits = list.try_extend_from_slice(&address_parameter(addr));
        debug_assert!(fits.is_ok(), "no parameter is longer");
    }
    let lengths = u16::try_from(padded + list.len()).ok().zip(h.ip_len().checked_add(list.len() as u16));
    let Some((chunk_len, ip_len)) = lengths.filter(|(_, ip_len)| usize::from(*ip_len) <= mtu) else {
        return false;
    };
    // Ethernet padding is overwritten.
    if list.is_empty() || chunk + padded != end || !frame.resize(end + list.len()) {
        return false;
    }
    let bytes = frame.bytes_mut();
    bytes[end..].copy_from_slice(&list);
    bytes[chunk + 2..chunk + 4].copy_from_slice(&chunk_len.to_be_bytes());
    set_ip_len(bytes, h, ip_len);
    let packet = &mut bytes[l4..];
    let crc = sctp::crc32c(packet);
    packet[8..12].copy_from_slice(&crc);
    true
}
