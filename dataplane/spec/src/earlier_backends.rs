//! Records of an earlier process about the backends of its service ports, for the process that continues its flows.

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
    /// Its backends, including those that only kept their flows.
    pub backends: Vec<SocketAddr>,
    /// The weights of its backends, sorted by backend; empty if the process didn't track them, or if the time of its
    /// end is unknown.
    pub seats: Vec<EarlierWeight>,
    /// How long ago the process ended.
    pub ended: Duration,
}

/// The weight of a backend of an earlier process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlierWeight {
    /// The backend.
    pub backend: SocketAddr,
    /// The weight with which it took new flows; 0 if it took none.
    pub weight: u16,
    /// The weight before a recent change, otherwise equal to `weight`.
    pub former: u16,
    /// How long ago the weight changed, if it did recently.
    pub ago: Duration,
}
