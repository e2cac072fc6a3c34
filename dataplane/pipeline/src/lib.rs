//! The packet path of Tidegate: bytes in, verdict out.
//!
//! It contains the forwarding modes and the pipeline that runs header checks, look-ups and the choice of a backend over a
//! burst. It must not contain DPDK, threads, clocks, I/O, tokio, Kubernetes, or `unsafe`. Callers: the workers of
//! `tidegate-dataplane`, `replay`, `explain`, the benches. The feature `testing` adds what tests, benches and fuzz runs
//! share.
//!
//! May depend on: `tidegate-capture` (in tests), `tidegate-conntrack`, `tidegate-select`, `tidegate-snapshot`,
//! `tidegate-spec`, `tidegate-structures`, `tidegate-wire`.
//!
//! Invariant: a frame never panics, allocates or blocks; it gets a [`Verdict`](tidegate_spec::verdict::Verdict) with a
//! counted reason. The same snapshot, frames and times give the same verdicts, bytes and state.
#![deny(unsafe_code)]

pub mod forward;
pub mod fragments;
pub mod frame;
pub mod pipeline;
mod reply_limit;
pub mod set_aside;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
