//! `fullnat`: both addresses change. The backend sees a SNAT address of the gateway as its client,
//! so its replies return to the gateway whatever its routes are. The client sees the VIP.

use tidegate_wire::Headers;
use tidegate_wire::rewrite::Endpoint;

use super::nat;
use super::{Link, NoHeadroom};
use crate::frame::Frame;

/// Rewrites a packet to the backend, with a SNAT address and port of the gateway as its source.
///
/// # Errors
/// [`NoHeadroom`]; the frame is then unchanged.
#[inline]
pub fn to_backend<F: Frame>(
    frame: &mut F,
    h: &mut Headers,
    link: &Link,
    local: Endpoint,
    backend: Endpoint,
) -> Result<(), NoHeadroom> {
    nat::send(frame, h, link, Some(local), Some(backend))
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
    client: Endpoint,
) -> Result<(), NoHeadroom> {
    nat::send(frame, h, link, Some(vip), Some(client))
}
