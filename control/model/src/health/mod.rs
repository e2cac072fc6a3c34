//! Values of health checks: the targets ([`Target`], [`Targets`]), the results ([`Verdicts`]), and the answers to
//! upstream load balancers ([`HealthCheckNodePort`]).
//!
//! `reconcile` creates targets and reads verdicts. The checks and thresholds are implemented in `tidegate-health`.
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
