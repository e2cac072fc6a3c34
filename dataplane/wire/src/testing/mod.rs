//! Shared code of tests, benches and fuzz runs: frames from short expressions, their display and their comparison.
//!
//! Only the feature `testing` compiles it, and only dev-dependencies, the benches and `fuzz/` enable that feature. The
//! daemon does not contain it. It may therefore allocate, and the builder and the comparison may panic.

pub mod builder;
pub mod decapsulate;
pub mod diff;
pub mod fields;
pub mod show;

pub use builder::Builder;
pub use diff::{Diff, assert_only_changed, diff};
pub use show::{hexdump, summary};
