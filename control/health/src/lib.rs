//! Health checks: those that the gateway makes (which endpoints answer), and those that it answers
//! ([`health_check_node_port`]).
//!
//! `reconcile` says what to check ([`Target`]), the [`Checker`] checks it on tokio and tells what it found
//! ([`Verdicts`]), and the daemon reconciles again. [`Tally`] is the rule of thresholds, `schedule` that of turns;
//! neither has a clock or a socket. Checks go out by the kernel, like any connection of this host; those of DSR backends
//! go through the dataplane to the VIP, as clients' packets do.
//!
//! May depend on: `tidegate-model` (targets and verdicts), `tidegate-probe` (checks at a VIP), `tidegate-http`. May not:
//! what follows from a verdict (`tidegate-policy`), the dataplane.
//!
//! Invariant: a target that was never checked passes. A gateway that starts forwards at once by what Kubernetes
//! says, and takes out what it then finds failing.
//! Invariant: a fault of the gateway itself (no file descriptor, no local port) says nothing about a target.

mod answer;
pub mod health_check_node_port;
mod limits;
mod network;
mod runner;
mod schedule;
mod shares;
mod tally;

use tidegate_model::health::{
    Check, Failure, HealthStatus, Probe, Rules, Target, Targets, UDP_SILENCE_MAX, Verdicts,
};

pub use answer::{Answer, CheckResult};
pub use limits::Limits;
pub use network::NetworkProber;
pub use runner::{CheckCounts, CheckLoad, Checker, Prober};
pub use tally::{DAMPING_MAX, TURNS_MAX, Tally, WINDOW};
