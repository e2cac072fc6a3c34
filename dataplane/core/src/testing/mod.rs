//! What tests, benches and fuzz runs share: frames built from words, shown and compared, a gateway around one pipeline,
//! and worlds made from arbitrary bytes.
//!
//! Only the feature `testing` compiles it, and only dev-dependencies, the benches and `fuzz/` enable that feature: the
//! daemon does not contain it. So it may allocate, and the builder and the comparison may panic, as tests do.

pub mod builder;
pub mod diff;
pub mod fields;
pub mod fuzz;
pub mod lab;
pub mod show;

pub use builder::Builder;
pub use diff::{Diff, assert_only_changed, diff};
pub use show::{hexdump, summary};
