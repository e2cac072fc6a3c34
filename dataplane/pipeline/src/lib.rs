//! The packet path of Tidegate: bytes in, verdict out.
//!
//! The pipeline checks headers, looks up flows and chooses backends for a burst of frames; the forwarding modes rewrite
//! the frames. There is no DPDK, thread, clock, I/O, tokio, Kubernetes or `unsafe` here. Callers are the workers of
//! `tidegate-dataplane`, `replay`, `explain` and the benches. The feature `testing` adds code that tests, benches and
//! fuzz runs share.
//!
//! May depend on: `tidegate-capture` (in tests), `tidegate-conntrack`, `tidegate-select`, `tidegate-snapshot`,
//! `tidegate-spec`, `tidegate-structures`, `tidegate-wire`.
//!
//! Invariant: no frame makes the pipeline panic, allocate or block; each gets a
//! [`Verdict`](tidegate_spec::verdict::Verdict) with a counted reason. The same snapshot, frames
//! and times give the same verdicts, bytes and state.
#![deny(unsafe_code)]

pub mod forward;
pub mod fragments;
pub mod frame;
pub mod pipeline;
mod reply_limit;
pub mod set_aside;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
