//! The limits of the protocol. Each is a bound on memory, time or rate that a peer or a stranger cannot change.
//!
//! Invariant: the memory for one peer is bounded by [`QUEUE_MAX`], and twice [`WINDOW`] datagrams.

use std::time::Duration;

/// Bytes of a datagram, so that it fits links with an MTU of 1,280, the least of IPv6 (RFC 8200 section 5).
pub const DATAGRAM_MAX: usize = 1_200;
/// Peers of one gateway.
pub const PEERS_MAX: usize = 64;
/// Messages about flows that wait for one peer. When it is full, the oldest is lost, counted, and a walk of the tables
/// repairs it.
pub const QUEUE_MAX: usize = 65_536;
/// Changes of weights that a peer gets when a session with it begins, and when it asks. Of more, it does not learn the others.
pub const SEATS_MAX: usize = 16_384;
/// Backends that have left, likewise. The queue holds one copy of both.
pub const LEFT_MAX: usize = 32_768;
/// Batches that are under way to one peer, and that the peer keeps when one before them is missing.
pub const WINDOW: usize = 256;
/// A handshake message is repeated after this time.
pub const HELLO_EVERY: Duration = Duration::from_millis(250);
/// The same, for a peer that has not answered for [`SILENCE_MAX`].
pub const HELLO_SLOWLY_EVERY: Duration = Duration::from_secs(2);
/// A rejected datagram explains the state of a peer for this time: it says hello more often.
pub const REJECTION_MAX: Duration = Duration::from_secs(10);
/// Handshake messages of one peer that are opened in a second.
pub const HELLOS_PER_SECOND: u32 = 20;
/// Gateways that are no peers and are remembered, for people.
pub const STRANGERS_MAX: usize = 16;
/// One that was not heard for this time is forgotten.
pub const STRANGER_HEARD: Duration = Duration::from_secs(10);
/// Datagrams of a session that are opened in a second: more than any peer sends.
pub const OPENS_PER_SECOND: u32 = 100_000;
/// Something is sent at least this often in a session.
pub const KEEP_ALIVE: Duration = Duration::from_millis(500);
/// A session from which nothing was heard for this time does not answer handshakes of the same epoch with a new session.
pub const FRESH: Duration = Duration::from_millis(1_500);
/// A session from which nothing was heard for this time has ended.
pub const SILENCE_MAX: Duration = Duration::from_secs(3);
/// A peer that takes no batch for this time does not hold up the walks for others.
pub const STUCK_AFTER: Duration = Duration::from_secs(3);
/// A batch that was not acknowledged is sent again after this time, which doubles each time.
pub const RESEND_AFTER: Duration = Duration::from_millis(100);
/// The longest time before a batch is sent again.
pub const RESEND_AFTER_MAX: Duration = Duration::from_millis(800);
/// Gateways walk through their tables this often, so that what was lost is repaired and idle flows stay.
pub const REFRESH_EVERY: Duration = Duration::from_secs(20);
/// Characters of the name of a gateway, as for a name of Kubernetes.
pub const NAME_MAX: usize = 253;
