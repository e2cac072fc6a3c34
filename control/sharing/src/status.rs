//! What is shown of a gateway's peers: states, reasons and counts.

use std::net::SocketAddr;
use std::time::Duration;

use crate::seats_and_snat::Snat;

/// Why a datagram was not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    /// Its sender is no peer.
    Stranger,
    /// It is no datagram of this protocol, or its content is not valid.
    Malformed,
    /// It was not sealed with our key, or was changed on the way.
    Unauthentic,
    /// It belongs to no current session: it is late, or a copy of an old one.
    NoSession,
    /// It was received before.
    Replayed,
    /// The peer speaks no version that this gateway speaks.
    Version,
    /// More arrived than a peer may send.
    RateLimited,
}

impl Rejection {
    /// The number of variants.
    pub const COUNT: usize = 7;
    /// All of them, in their order.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Stranger,
        Self::Malformed,
        Self::Unauthentic,
        Self::NoSession,
        Self::Replayed,
        Self::Version,
        Self::RateLimited,
    ];

    /// The name in metrics.
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

/// What a hub has counted since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HubCounts {
    /// Datagrams that were sent, with those that were sent again.
    pub sent: u64,
    /// Batches that were sent again because they were not acknowledged in time.
    pub sent_again: u64,
    /// Datagrams that were used.
    pub received: u64,
    /// Messages of peers that were passed on.
    pub passed_on: u64,
    /// Messages that were lost because too many waited for a peer.
    pub lost: u64,
    /// Sessions that began.
    pub sessions: u64,
    /// Datagrams that were not used, by [`Rejection`].
    pub rejected: [u64; Rejection::COUNT],
}

/// What a peer is to this gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerState {
    /// The address is one of this gateway.
    Itself,
    /// It has not answered.
    Connecting,
    /// It speaks only these versions of the protocol.
    OtherVersion(u8, u8),
    /// Flows are shared.
    Up,
    /// Flows are shared, but messages were lost, and a walk of the tables has not repeated them yet.
    Behind,
}

impl PeerState {
    /// The word in `tidegate status` and metrics.
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

/// A peer for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerStatus {
    /// Its address.
    pub address: SocketAddr,
    /// Its name, once it has answered.
    pub name: Option<String>,
    /// What it is.
    pub state: PeerState,
    /// Time since something was last heard from it.
    pub heard_ago: Option<Duration>,
    /// Messages that wait to be sent.
    pub waiting: usize,
    /// Batches that it has not acknowledged.
    pub under_way: usize,
    /// Why a datagram of it was rejected lately, since it has its state.
    pub last_rejection: Option<Rejection>,
    /// The fingerprint of the key that it seals with, once it has answered.
    pub key: Option<String>,
    /// What it has last said of its SNAT addresses.
    pub snat: Snat,
    /// How far it has sent what it knows.
    pub walk: PeerWalk,
}

/// How far a peer has sent what it knew when its session began, or when it was last asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerWalk {
    /// There is no session, or not everything has arrived.
    UnderWay,
    /// Everything has arrived.
    Complete,
    /// Its version of the protocol doesn't say. This is the age of the session.
    Unknown(Duration),
}
