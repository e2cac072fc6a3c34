//! `dsr-dscp`: the backend becomes the destination of the packet, and a DSCP (RFC 2474 section 3)
//! identifies the VIP. The backend restores the VIP, and answers the client from it.
//!
//! The packet doesn't grow, and there may be routers between gateway and backend. The client's own DSCP is lost, but
//! the ECN bits (RFC 3168) stay. Checksums are updated by difference (RFC 1624), so a damaged packet stays damaged.

use tidegate_wire::headers::L4Checksum;
use tidegate_wire::rewrite::{self, Endpoint};
use tidegate_wire::{Addr, Headers};

use super::{Link, NoHeadroom, dsr_l2};
use crate::frame::Frame;

/// Rewrites a packet to a backend of the same address family. `dscp` must be below 64. Returns the new headers.
///
/// # Errors
/// [`NoHeadroom`]; the frame is then unchanged.
pub fn forward<F: Frame>(
    frame: &mut F,
    h: &Headers,
    link: &Link,
    backend: Addr,
    dscp: u8,
) -> Result<Headers, NoHeadroom> {
    dsr_l2::forward(frame, h, link)?;
    let mut h = *h;
    link.shift(&mut h);
    let checksum = h.l4_checksum;
    if checksum == L4Checksum::Sctp {
        // The CRC doesn't cover addresses. The SCTP parameters stay, because the backend restores the VIP.
        h.l4_checksum = L4Checksum::None;
    }
    let backend = Endpoint { addr: backend, port: h.dst_port };
    rewrite::translate(frame.bytes_mut(), &mut h, None, Some(backend)).expect("the ports stay");
    rewrite::set_dscp(frame.bytes_mut(), &h, dscp);
    h.l4_checksum = checksum;
    Ok(h)
}
