//! Values of health checks: what is checked ([`Target`], [`Targets`]), and what was found ([`Verdicts`]).
//!
//! `reconcile` makes targets and reads verdicts; the checks themselves are elsewhere, and so is the rule of thresholds.
//!
//! Invariant: a target that was never checked passes.

mod target;
mod targets;
mod verdicts;

pub use target::{AtVip, Check, NODE_PROXY_PORT, Probe, Rules, Target, UDP_SILENCE_MAX};
pub use targets::Targets;
pub use verdicts::{Failure, Standing, Verdicts};
