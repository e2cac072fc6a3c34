//! Values of health checks: what is checked ([`Target`], [`Targets`]), what was found ([`Verdicts`]), and what
//! load balancers upstream are answered ([`HealthCheckNodePort`]).
//!
//! `reconcile` makes targets and reads verdicts; the checks themselves are elsewhere, and so is the rule of thresholds.
//!
//! Invariant: a target that was never checked passes.

mod node_port;
mod target;
mod targets;
mod verdicts;

pub use node_port::HealthCheckNodePort;
pub use target::{AtVip, Check, NODE_PROXY_PORT, Probe, Rules, Target, UDP_SILENCE_MAX};
pub use targets::Targets;
pub use verdicts::{Failure, HealthStatus, Verdicts};
