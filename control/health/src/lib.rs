//! Health checks: those that the gateway performs (which endpoints answer) and those that it answers
//! ([`health_check_node_port`]).
//!
//! `reconcile` lists the [`Target`]s, the [`Checker`] checks them on tokio and publishes [`Verdicts`], and the daemon
//! reconciles again. [`Tally`] applies thresholds and `schedule` decides when each target is checked; neither has a
//! clock or a socket. Checks use the host's kernel, like any other connection. Checks of DSR backends go through the
//! dataplane to the VIP, like clients' packets.
//!
//! May depend on: `tidegate-model` (targets and verdicts), `tidegate-probe` (checks at a VIP), `tidegate-wire`
//! (protocol numbers), `tidegate-structures` (histograms), `tidegate-http`. May not: `tidegate-policy`, which acts on
//! the verdicts; the dataplane.
//!
//! Invariants: a target that was never checked passes, so a starting gateway forwards at once to the endpoints that
//! Kubernetes lists and removes those that then fail. A fault of the gateway itself (no file descriptor, no local port)
//! does not count against a target.

mod association;
mod capacity_shares;
mod check_result;
pub mod health_check_node_port;
mod limits;
mod network;
mod runner;
mod schedule;
mod tally;

use tidegate_model::health::{
    Check, Failure, HealthStatus, Probe, Rules, Target, Targets, UDP_SILENCE_MAX, Verdicts,
};

pub use check_result::{Answer, CheckResult};
pub use limits::Limits;
pub use network::NetworkProber;
pub use runner::{CheckCounts, CheckLoad, Checker, Prober};
pub use tally::{CHANGES_MAX, DAMPING_MAX, Tally, WINDOW};
