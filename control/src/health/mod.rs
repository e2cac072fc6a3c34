//! Active health checks: what is checked, and what was found.

mod target;

pub use target::{Failing, Probe, Target};
