//! Shared code of tests, benches and fuzz runs: builds, displays and compares frames.
//!
//! Only compiled with the feature `testing`, which only dev-dependencies, the benches and `fuzz/` enable; the daemon
//! doesn't contain it. It may therefore allocate, and the builder and the comparison may panic.

pub mod builder;
pub mod decapsulate;
pub mod diff;
pub mod fields;
pub mod show;

pub use builder::Builder;
pub use diff::{Diff, assert_only_changed, diff};
pub use show::{hexdump, summary};
