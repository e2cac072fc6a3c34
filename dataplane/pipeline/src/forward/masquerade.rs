//! Masquerade: traffic that backends originate leaves with a SNAT address of the gateway as its source. The host outside
//! sees the gateway as its peer, so its answers return to the gateway.

use tidegate_wire::Headers;
use tidegate_wire::rewrite::Endpoint;

use super::nat;
use super::{Link, NoHeadroom};
use crate::frame::Frame;

/// Replaces the source of a backend's packet, which must not be SCTP.
///
/// # Errors
/// [`NoHeadroom`]; the frame is then unchanged.
pub fn outward<F: Frame>(
    frame: &mut F,
    h: &mut Headers,
    link: &Link,
    local: Endpoint,
) -> Result<(), NoHeadroom> {
    nat::send(frame, h, link, Some(local), None)
}

/// Replaces the destination of an answer, which must not be SCTP, by the backend.
///
/// # Errors
/// [`NoHeadroom`]; the frame is then unchanged.
pub fn inward<F: Frame>(
    frame: &mut F,
    h: &mut Headers,
    link: &Link,
    source: Endpoint,
) -> Result<(), NoHeadroom> {
    nat::send(frame, h, link, None, Some(source))
}
