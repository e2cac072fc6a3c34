//! `fullnat`: both addresses change. The backend sees a SNAT address of the gateway as its client, so its replies
//! return to the gateway whatever its routes are. The client sees the VIP.

use super::nat;
use super::{Link, NoRoom};
use crate::frame::Frame;
use crate::wire::Headers;
use crate::wire::rewrite::Endpoint;

/// Towards the backend, from a SNAT address and port of ours.
///
/// # Errors
/// [`NoRoom`]; then the frame is as it came.
#[inline]
pub fn to_backend<F: Frame>(
    frame: &mut F,
    h: &mut Headers,
    link: &Link,
    local: Endpoint,
    backend: Endpoint,
) -> Result<(), NoRoom> {
    nat::send(frame, h, link, Some(local), Some(backend))
}

/// Back to the client, from the VIP.
///
/// # Errors
/// [`NoRoom`]; then the frame is as it came.
#[inline]
pub fn to_client<F: Frame>(
    frame: &mut F,
    h: &mut Headers,
    link: &Link,
    vip: Endpoint,
    client: Endpoint,
) -> Result<(), NoRoom> {
    nat::send(frame, h, link, Some(vip), Some(client))
}
