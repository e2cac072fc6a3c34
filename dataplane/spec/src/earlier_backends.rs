//! What a process has left about the backends of its service ports, for the process that continues its flows.

use std::net::SocketAddr;
use std::time::Duration;

use super::service::ServiceKey;

/// A service port that an earlier process forwarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierPort {
    /// The port.
    pub key: ServiceKey,
    /// [`owner_mark`](crate::owner_mark) of its Service.
    pub owner: u32,
    /// Its backends, also those that only kept their flows.
    pub backends: Vec<SocketAddr>,
    /// The seats that it followed, sorted by backend; empty if it followed none, or if it isn't known when it ended.
    pub seats: Vec<EarlierSeat>,
    /// How long ago it ended.
    pub ended: Duration,
}

/// The weight of a backend of an earlier process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlierSeat {
    /// The backend.
    pub backend: SocketAddr,
    /// The weight with which it took new flows; 0 if it took none.
    pub weight: u16,
    /// Its weight before a recent change, otherwise the same.
    pub former: u16,
    /// How long ago its weight changed, if it has changed lately.
    pub ago: Duration,
}
