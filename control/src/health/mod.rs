//! Active health checks: which endpoints answer.
//!
//! `reconcile` says what to check ([`Target`]), the [`Checker`] checks it on tokio and tells what fails
//! ([`Failing`]), and the daemon reconciles again. [`Tally`] is the rule of thresholds, without a clock or a
//! socket. Checks go out by the kernel, like any connection of this host.
//!
//! Invariant: a target that was never checked passes. A gateway that starts forwards at once by what Kubernetes
//! says, and takes out what it then finds failing.
//! Invariant: a fault of the gateway itself (no file descriptor, no local port) says nothing about a target.

mod runner;
mod tally;
mod target;

pub use runner::{CheckCounts, Checker, Connect, TcpConnect};
pub use tally::Tally;
pub use target::{Failing, Probe, Target};
