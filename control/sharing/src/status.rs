//! The status of a gateway's peers for display: states, reasons and counters.

use std::net::SocketAddr;
use std::time::Duration;

use crate::gateway_state::Snat;

tidegate_wire::named! {
    /// Why a datagram was rejected.
    pub enum Rejection {
        /// Its sender is not a peer.
        Stranger => "stranger",
        /// It is not a datagram of this protocol, or its content is not valid.
        Malformed => "malformed",
        /// It was not sealed with our key, or was modified in transit.
        Unauthentic => "unauthentic",
        /// It belongs to no current session: it is late, or a replay from an old session.
        NoSession => "no_session",
        /// It was received before.
        Replayed => "replayed",
        /// The peer supports no protocol version that this gateway supports.
        Version => "version",
        /// The peer sent more than it may.
        RateLimited => "rate_limited",
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
