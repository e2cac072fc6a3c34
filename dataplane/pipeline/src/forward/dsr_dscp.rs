//! `dsr-dscp`: the packet gets the address of its backend as its destination, and a DSCP (RFC 2474 section 3) that tells
//! the backend which VIP it had. The backend sets the VIP again, and answers the client from it.
//!
//! Nothing is added to the packet, and routers may be in between. The DSCP that the client chose is lost. The ECN bits
//! (RFC 3168) stay. Checksums change by the difference (RFC 1624), so a damaged packet stays damaged.

use tidegate_wire::headers::L4Checksum;
use tidegate_wire::rewrite::{self, Endpoint};
use tidegate_wire::{Addr, Headers};

use super::{Link, NoRoom, dsr_l2};
use crate::frame::Frame;

/// Rewrites a packet to the backend, which has the family of the packet. `dscp` is below 64. Returns
/// the headers as they are now.
///
/// # Errors
/// [`NoRoom`]; the frame is then unchanged.
pub fn forward<F: Frame>(
    frame: &mut F,
    h: &Headers,
    link: &Link,
    backend: Addr,
    dscp: u8,
) -> Result<Headers, NoRoom> {
    dsr_l2::forward(frame, h, link)?;
    let mut h = *h;
    link.shift(&mut h);
    let checksum = h.l4_checksum;
    if checksum == L4Checksum::Sctp {
        // It does not cover addresses. The parameters of SCTP stay as they are, because the backend sets the VIP again.
        h.l4_checksum = L4Checksum::None;
    }
    let backend = Endpoint { addr: backend, port: h.dst_port };
    rewrite::translate(frame.bytes_mut(), &mut h, None, Some(backend)).expect("the ports stay");
    rewrite::set_dscp(frame.bytes_mut(), &h, dscp);
    h.l4_checksum = checksum;
    Ok(h)
}
