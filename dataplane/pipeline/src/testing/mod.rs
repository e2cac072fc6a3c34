//! Shared code of tests, benches and fuzz runs: a gateway around one pipeline, worlds from arbitrary bytes, and the frames
//! of [`tidegate_wire::testing`].
//!
//! Only the feature `testing` compiles it, and only dev-dependencies, the benches and `fuzz/` enable that feature. The
//! daemon does not contain it. So this code may allocate and panic.

pub mod fuzz;
pub mod lab;

pub use tidegate_wire::testing::*;
