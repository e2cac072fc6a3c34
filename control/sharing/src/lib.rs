//! The protocol by which gateways tell each other about flows: messages, cryptography, sessions and limits. It is
//! specified in `docs/flow-sharing.md`.
//!
//! [`Hub`] is the whole of it for one gateway. It has no socket, no thread and no clock: the daemon passes datagrams and
//! the time in, and sends what comes out. [`message`] writes and reads what is said about a flow, [`crypt`] seals datagrams,
//! and `session` keeps one peer's sequence of messages.
//!
//! May depend on: `tidegate-conntrack` (the records of flows), `tidegate-spec`, `tidegate-wire`. May not: the dataplane, tokio, the configuration.
//!
//! Invariant: no datagram panics, and nothing of it is used before it is known to come from a holder of the key and to be
//! neither old nor a copy. Every queue is bounded. Only ages are exchanged, never times.

mod allowance;
pub mod crypt;
mod handshake;
pub mod hub;
pub mod limits;
pub mod message;
mod peer;
mod receiver;
mod seats_and_snat;
mod sender;
mod session;
mod status;
#[cfg(test)]
mod tests;

pub use crypt::{Entropy, Keys, SharedKey, SystemEntropy};
pub use hub::{Hub, HubConfig, HubCounts, PeerState, PeerStatus, PeerWalk, Rejection, Snat};
