//! The status of a gateway's peers for display: states, reasons and counters.

use std::net::SocketAddr;
use std::time::Duration;

use crate::gateway_state::Snat;

/// Why a datagram was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    /// Its sender is not a peer.
    Stranger,
    /// It is not a datagram of this protocol, or its content is not valid.
    Malformed,
    /// It was not sealed with our key, or was modified in transit.
    Unauthentic,
    /// It belongs to no current session: it is late, or a replay from an old session.
    NoSession,
    /// It was received before.
    Replayed,
    /// The peer supports no protocol version that this gateway supports.
    Version,
    /// The peer sent more than it may.
    RateLimited,
}

impl Rejection {
    /// The number of variants.
    pub const COUNT: usize = 7;
    /// All variants in declaration order.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Stranger,
        Self::Malformed,
        Self::Unauthentic,
        Self::NoSession,
        Self::Replayed,
        Self::Version,
        Self::RateLimited,
    ];

    /// The label value in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stranger => "stranger",
            Self::Malformed => "malformed",
            Self::Unauthentic => "unauthentic",
            Self::NoSession => "no_session",
            Self::Replayed => "replayed",
            Self::Version => "version",
            Self::RateLimited => "rate_limited",
        }
    }
}

/// The counters of a hub since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HubCounts {
    /// Datagrams sent, including retransmissions.
    pub sent: u64,
    /// Batches retransmitted because they were not acknowledged in time.
    pub sent_again: u64,
    /// Datagrams accepted.
    pub received: u64,
    /// Messages of peers that were delivered.
    pub delivered: u64,
    /// Messages dropped because a peer's queue was full.
    pub lost: u64,
    /// Sessions established.
    pub sessions: u64,
    /// Datagrams rejected, by [`Rejection`].
    pub rejected: [u64; Rejection::COUNT],
}

/// The state of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerState {
    /// The address belongs to this gateway.
    Itself,
    /// It has not responded.
    Connecting,
    /// It supports only this range of protocol versions, from the oldest to the newest.
    OtherVersion(u8, u8),
    /// Flows are shared.
    Up,
    /// Flows are shared, but messages were lost, and no table walk has repeated them yet.
    Behind,
}

impl PeerState {
    /// The value in `tidegate status` and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Itself => "itself",
            Self::Connecting => "connecting",
            Self::OtherVersion(..) => "other-version",
            Self::Up => "up",
            Self::Behind => "behind",
        }
    }
}

/// The status of one peer, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerStatus {
    /// Its address.
    pub address: SocketAddr,
    /// Its name, once it has responded.
    pub name: Option<String>,
    /// Its state.
    pub state: PeerState,
    /// Time since its last datagram.
    pub silent_for: Option<Duration>,
    /// Messages queued for it.
    pub waiting: usize,
    /// Batches that it has not acknowledged.
    pub in_flight: usize,
    /// Why one of its datagrams was recently rejected; `None` if a session has started or ended since.
    pub last_rejection: Option<Rejection>,
    /// The fingerprint of the key that it seals with, once it has responded.
    pub key: Option<String>,
    /// The SNAT addresses that it last reported.
    pub snat: Snat,
    /// Whether it has sent everything that it knows.
    pub walk: PeerWalk,
}

/// Whether a peer has sent everything that it knew when its session started, or when that was last requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerWalk {
    /// There is no session, or something has not arrived yet.
    InProgress,
    /// Everything has arrived.
    Complete,
    /// Its protocol version doesn't report this. The value is the age of the session.
    Unknown(Duration),
}
