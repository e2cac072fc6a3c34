//! Measures the packet path: shared code of the micro-benches, the A/B timings and the instruction counts.
//!
//! [`scenario`] names the scenarios. [`lab`] builds their gateway in memory with its flows. [`traffic`] creates frames
//! of flows in an order that is random but the same on every run. [`sampling`] computes medians. The programs are in
//! `bin/` and `benches/`; README.md beside this crate explains the figures.
//!
//! May depend on: `tidegate-pipeline`, `tidegate-snapshot`, `tidegate-select`, `tidegate-spec`, `tidegate-structures`,
//! `tidegate-wire`. No other crate may use it.
//!
//! Invariant: the timed part is always the pipeline as the daemon's workers call it, or the trivial forwarder. Frames
//! are created outside of the timed part.

pub mod lab;
pub mod sampling;
pub mod scenario;
pub mod traffic;
