//! The packet path of Tidegate: bytes in, verdict out.
//!
//! It contains header checks, service and flow look-ups, the choice of a backend, the forwarding modes, and the
//! pipeline that runs them over a burst. It must not contain DPDK, threads, clocks, I/O, tokio, Kubernetes, or
//! `unsafe` (except for [`prefetch`]). Callers: the workers of `tidegate-dataplane`, `replay`, `explain`, the
//! benches. [`capture`] is the one part that is not on the path of a packet: it reads and writes capture files through
//! the `Read` and `Write` of its caller. The feature `testing` adds what tests, benches and fuzz runs share.
//!
//! May depend on: nothing of Tidegate.
//!
//! Invariant: a frame never panics, allocates or blocks; it gets a [`verdict::Verdict`] with a counted reason. The
//! same snapshot, frames and times give the same verdicts, bytes and state.
#![deny(unsafe_code)]

pub mod addresses;
pub mod affinities;
pub mod associations;
pub mod backend;
pub mod capture;
mod chunked;
pub mod conntrack;
pub mod counters;
pub mod difference;
pub mod flow_copies;
pub mod flow_record;
pub mod forward;
pub mod fragments;
pub mod frame;
pub mod hash;
pub mod histogram;
pub mod ids;
mod key_index;
pub mod limits;
pub mod loads;
pub mod maglev;
pub mod neighbors;
pub mod now;
pub mod ownership;
pub mod path_mtu;
pub mod pipeline;
pub mod prefetch;
mod ranks;
pub mod rendezvous;
mod reply_limit;
pub mod routes;
pub mod selection_key;
pub mod selector;
pub mod service;
pub mod service_limits;
pub mod set_aside;
pub mod snapshot;
mod sorted_chunks;
pub mod source_lists;
pub mod source_ranges;
pub mod source_rates;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod turns;
pub mod verdict;
pub mod warm_up;
pub mod wire;
