//! Data structures of the packet path and of snapshot compilation: hashes, look-up tables, lists whose copies share
//! unchanged parts, counters and histograms.
//!
//! May depend on: `tidegate-wire` (addresses).
//!
//! Invariant: look-ups neither allocate nor block. `unsafe` is in [`prefetch`] only.
#![deny(unsafe_code)]

pub mod counter;
pub mod difference;
pub mod hash;
pub mod histogram;
pub mod key_index;
pub mod prefetch;
pub mod ranks;
pub mod selection_key;
pub mod sorted_chunks;
pub mod table;
