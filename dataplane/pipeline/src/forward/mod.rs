//! The forwarding modes: they rewrite a frame whose destination is known.
//!
//! Each mode has a file with a few pure functions, which take (frame, headers, destination) and produce the frame to
//! send. There are no look-ups, verdicts, policy or state here: the pipeline has found the backend and the link, and
//! has checked hop limit and size.
//!
//! Invariant: when one of these functions returns [`NoHeadroom`], the frame is unchanged.

pub mod dsr_dscp;
pub mod dsr_l2;
pub mod fullnat;
pub mod masquerade;
pub mod nat;
pub mod proxy_protocol;
pub mod sctp_addresses;
pub mod snat_ports;
pub mod spliced;
pub mod toa;
pub mod tunnel;
pub mod usual;

use tidegate_wire::ethernet::{self, EthernetHeader, ether_type};
use tidegate_wire::{Family, Headers, MacAddr, VlanId};

use crate::frame::Frame;

/// The headroom of the frame is too small for the headers to be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the headroom of the frame is too small")]
pub struct NoHeadroom;

/// Cuts the bytes behind the packet in a frame, which may make the frame longer than the link accepts. The padding of a
/// short frame stays, since it would have to be added again for sending.
#[cold]
pub fn cut_trailer<F: Frame>(frame: &mut F, end: usize) {
    if frame.bytes().len() > ethernet::FRAME_LEN_MIN.max(end) {
        let cut = frame.resize(end);
        debug_assert!(cut, "a frame can always be cut to its packet");
    }
}

/// The link on which a frame leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// The gateway's link address on this link.
    pub source: MacAddr,
    /// The link address of the next hop.
    pub destination: MacAddr,
    /// The VLAN tag of frames on this link.
    pub vlan: Option<VlanId>,
}

impl Link {
    /// Bytes of the Ethernet header on this link.
    #[inline]
    #[must_use]
    pub fn header_len(&self) -> usize {
        if self.vlan.is_some() { ethernet::HEADER_LEN_MAX } else { ethernet::HEADER_LEN }
    }

    /// Replaces the Ethernet header of a packet that starts at `h.l3` by this link's header, and returns the bytes of
    /// the frame. Adding or removing a tag invalidates `h.l3` and the other offsets of `h`.
    ///
    /// # Errors
    /// [`NoHeadroom`] if a tag must be added and does not fit.
    #[inline(always)]
    pub fn rewrite_link_header<'f, F: Frame>(
        &self,
        frame: &'f mut F,
        h: &Headers,
    ) -> Result<&'f mut [u8], NoHeadroom> {
        if self.vlan.is_some() || usize::from(h.l3) != ethernet::HEADER_LEN {
            return self.rewrite_tagged_link_header(frame, h);
        }
        // The common case: the EtherType stays and twelve bytes change.
        let bytes = frame.bytes_mut();
        ethernet::set_addresses(bytes, self.destination, self.source);
        Ok(bytes)
    }

    /// [`Self::rewrite_link_header`] for a frame that arrived with a tag, or leaves with one.
    #[inline(never)]
    fn rewrite_tagged_link_header<'f, F: Frame>(
        self,
        frame: &'f mut F,
        h: &Headers,
    ) -> Result<&'f mut [u8], NoHeadroom> {
        let (wanted, present) = (self.header_len(), usize::from(h.l3));
        if wanted > present {
            if !frame.grow_front(wanted - present) {
                return Err(NoHeadroom);
            }
        } else {
            frame.shrink_front(present - wanted);
        }
        let bytes = frame.bytes_mut();
        self.write(bytes, h.family);
        Ok(bytes)
    }

    /// Adjusts the offsets of a packet's headers to its frame on this link, after [`Self::rewrite_link_header`].
    #[inline]
    fn shift(&self, h: &mut Headers) {
        let shift = self.header_len() as i32 - i32::from(h.l3);
        // Offsets are below 65,536 and the shift is the length of one tag, so the sums stay in range.
        h.l3 = (i32::from(h.l3) + shift) as u8;
        h.l4 = (i32::from(h.l4) + shift) as u16;
        h.ip_end = (i32::from(h.ip_end) + shift) as u16;
    }

    /// Writes this link's Ethernet header for a packet of `family` and returns its length.
    #[inline]
    fn write(&self, out: &mut [u8], family: Family) -> usize {
        let ether_type = match family {
            Family::V4 => ether_type::IPV4,
            Family::V6 => ether_type::IPV6,
        };
        let header = EthernetHeader { dst: self.destination, src: self.source, vlan: self.vlan, ether_type };
        header.write(out)
    }
}
