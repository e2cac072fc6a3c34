//! Floods: what a host that means harm may not take from others, whatever it sends.
//!
//! [`scene`] has the network, [`table`] one row for each mode and flood, [`named`] floods that aim at one limit each,
//! [`fragments`] what the kernel does with fragments, [`rate`] new connections at a steady rate. `make test` runs each for seconds, all modes flooded at once;
//! `make floods` sets `TIDEGATE_FLOODS=long` and runs each for as long as `docs/floods.md` says, mode by mode.
//!
//! Invariant: nothing here asserts a time or a rate; what is asserted are counts of connections.

mod fragments;
mod named;
mod rate;
mod scene;
mod table;
