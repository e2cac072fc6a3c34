//! The flow sharing protocol between gateways: messages, cryptography, sessions and limits. `docs/flow-sharing.md`
//! specifies it.
//!
//! [`Hub`] is the entire protocol for one gateway. It has no socket, no thread and no clock: the daemon passes in
//! datagrams and the time, and sends the datagrams that come out. [`message`] encodes and decodes messages, [`crypt`]
//! seals datagrams, and `session` keeps the message sequence of one peer.
//!
//! May depend on: `tidegate-conntrack` (the records of flows), `tidegate-spec`, `tidegate-wire`. May not depend on the
//! dataplane, tokio or the configuration.
//!
//! Invariant: no datagram causes a panic. The contents of a datagram are used only after it is authenticated and known
//! to be neither old nor replayed. Every queue is bounded. Only ages are exchanged, never timestamps.

pub mod crypt;
mod gateway_state;
mod handshake;
pub mod hub;
pub mod limits;
pub mod message;
mod peer;
mod receiver;
mod sender;
mod session;
mod status;
#[cfg(test)]
mod tests;

pub use crypt::{Entropy, Keys, SharedKey, SystemEntropy};
pub use hub::{Hub, HubConfig, HubCounts, PeerState, PeerStatus, PeerWalk, Rejection, Snat};
