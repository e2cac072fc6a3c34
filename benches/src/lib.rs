//! Measures the packet path: what the micro-benches, the A/B timings and the instruction counts share.
//!
//! [`scenario`] names what is measured; [`lab`] builds that gateway in memory and its flows; [`traffic`] makes
//! frames of flows, in an order that is random and the same on every run; [`sampling`] takes medians. The
//! programs are in `bin/` and `benches/`; README.md beside this crate says what each figure means.
//!
//! Invariant: what is timed is only ever the pipeline as the daemon's workers call it, or the trivial
//! forwarder; frames are made outside of the timed part.

pub mod lab;
pub mod sampling;
pub mod scenario;
pub mod traffic;
