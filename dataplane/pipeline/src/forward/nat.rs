//! `nat`: the destination becomes the backend, and the source stays the client. The backend's route to clients must
//! lead through the gateway, which changes the source of replies back to the VIP.
//!
//! [`send`] is also the last step of every translated packet of `fullnat`.

use tidegate_wire::rewrite::{self, Endpoint};
use tidegate_wire::{Headers, L4Checksum};

use super::dsr_l2;
use super::{Link, NoHeadroom};
use crate::frame::Frame;

/// Rewrites a packet to the backend.
///
/// # Errors
/// [`NoHeadroom`]; the frame is then unchanged.
#[inline]
pub fn to_backend<F: Frame>(
    frame: &mut F,
    h: &mut Headers,
    link: &Link,
    backend: Endpoint,
) -> Result<(), NoHeadroom> {
    send(frame, h, link, None, Some(backend))
}

/// Rewrites a reply to the client, with the VIP as its source.
///
/// # Errors
/// [`NoHeadroom`]; the frame is then unchanged.
#[inline]
pub fn to_client<F: Frame>(
    frame: &mut F,
    h: &mut Headers,
    link: &Link,
    vip: Endpoint,
) -> Result<(), NoHeadroom> {
    send(frame, h, link, Some(vip), None)
}

/// Whether the checksum of this packet can be updated when its ports or parameters change. It can't for a fragmented
/// SCTP packet, whose CRC covers bytes of other fragments. The CRC doesn't cover addresses.
#[inline]
#[must_use]
pub fn can_translate(h: &Headers) -> bool {
    h.l4_checksum != L4Checksum::Sctp || !h.is_fragment()
}

/// Replaces the given endpoints and rewrites the frame for `link`.
#[inline]
pub(super) fn send<F: Frame>(
    frame: &mut F,
    h: &mut Headers,
    link: &Link,
    source: Option<Endpoint>,
    destination: Option<Endpoint>,
) -> Result<(), NoHeadroom> {
    dsr_l2::forward(frame, h, link)?;
    link.shift(h);
    rewrite::translate(frame.bytes_mut(), h, source, destination)
        .expect("the pipeline checks can_translate first, or only addresses change");
    Ok(())
}
