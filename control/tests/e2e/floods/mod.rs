//! Floods: an attacker must not affect other clients, whatever it sends.
//!
//! [`setup`] is the network. [`table`] has one row for each mode and flood. [`named`] has floods that each target one
//! limit. [`cookies`] floods Services that use SYN cookies. [`fragments`] tests the kernel's handling of fragments.
//! [`rate`] opens new connections at a steady rate. `make test` runs each flood for seconds, with all modes flooded at
//! once. `make floods` sets `TIDEGATE_FLOODS=long` and runs each flood for the time in `docs/floods.md`, mode by mode.
//!
//! Invariant: no test here asserts a time or a rate. The tests assert counts of connections.

mod cookies;
mod fragments;
mod named;
mod rate;
pub(crate) mod setup;
mod table;
