//! The limits of the protocol. Each bounds memory, time or a rate, and neither peers nor strangers can change it.
//!
//! Invariant: the memory for one peer is bounded by [`QUEUE_MAX`], and twice [`WINDOW`] datagrams.

use std::time::Duration;

/// The maximum size of a datagram in bytes. It fits links with an MTU of 1,280, the minimum of IPv6 (RFC 8200 section
/// 5).
pub const DATAGRAM_MAX: usize = 1_200;
/// The maximum number of peers of one gateway.
pub const PEERS_MAX: usize = 64;
/// The maximum number of messages queued for one peer. A full queue drops its oldest message and counts it; a table
/// walk repeats it.
pub const QUEUE_MAX: usize = 65_536;
/// The maximum number of weight changes sent to a peer when a session starts or when it requests them. Further changes
/// are not sent.
pub const WEIGHT_CHANGES_MAX: usize = 16_384;
/// The maximum number of removed backends sent with the weight changes. The queue has space for both once.
pub const REMOVED_BACKENDS_MAX: usize = 32_768;
/// The maximum number of batches in flight to one peer. The peer buffers up to this many while an earlier one is
/// missing.
pub const WINDOW: usize = 256;
/// The interval of handshake messages.
pub const HELLO_EVERY: Duration = Duration::from_millis(250);
/// The interval of handshake messages to a peer that has not responded for four times [`SILENCE_MAX`].
pub const HELLO_SLOWLY_EVERY: Duration = Duration::from_secs(2);
/// How long the status of a peer shows its last rejected datagram. Peers send handshake messages more often than this.
pub const REJECTION_MAX: Duration = Duration::from_secs(10);
/// The maximum number of handshake messages of one peer that are opened per second.
pub const HELLOS_PER_SECOND: u32 = 20;
/// The maximum number of strangers (gateways that are not peers) that are remembered for display.
pub const STRANGERS_MAX: usize = 16;
/// A stranger is forgotten after this time without a datagram.
pub const STRANGER_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of datagrams of a session that are opened per second: more than any peer sends.
pub const OPENS_PER_SECOND: u32 = 100_000;
/// The keepalive interval of a session.
pub const KEEP_ALIVE: Duration = Duration::from_millis(500);
/// After this time without a datagram in a session, a handshake with the same epoch starts a new session.
pub const FRESH: Duration = Duration::from_millis(1_500);
/// A session ends after this time without a datagram.
pub const SILENCE_MAX: Duration = Duration::from_secs(3);
/// A peer that acknowledges no batch for this time no longer delays table walks.
pub const STUCK_AFTER: Duration = Duration::from_secs(3);
/// The first timeout of an unacknowledged batch; it doubles with each retransmission.
pub const RESEND_AFTER: Duration = Duration::from_millis(100);
/// The maximum retransmission timeout.
pub const RESEND_AFTER_MAX: Duration = Duration::from_millis(800);
/// The interval of table walks. They repeat lost messages and keep idle flows alive.
pub const REFRESH_EVERY: Duration = Duration::from_secs(20);
/// The maximum length of a gateway's name, as for names in Kubernetes.
pub const NAME_MAX: usize = 253;
