//! First aid: checks of the machine (`doctor`), a first configuration (`init`), what a reload would change (`diff`), and
//! a bundle for support.
//!
//! [`Command`] is a part of the command line of `tidegate`. The checks (`checks`) are pure functions of what was
//! read: files and programs below one root ([`Machine`]), the kernel's network, the configuration, and the status of a
//! running gateway.
//!
//! May depend on: `tidegate-cli` (output), `tidegate-admin-api` (the admin socket), `tidegate-source` (the connection to
//! the API server), `tidegate-model` (the configuration), `tidegate-host` (rtnetlink), `tidegate-wire` (addresses). May
//! not: DPDK, the dataplane, the daemon. So all of it works before the first `run`, and beside a running gateway.
//!
//! Invariants: nothing here changes the machine, the gateway or the cluster, except the file that the operator names;
//! no secret is printed or written.

mod bundle;
mod checks;
mod diff;
mod doctor;
mod finding;
mod init;
mod machine;
mod network;
mod redact;
mod target;

use std::process::ExitCode;

use clap::Subcommand;

pub use finding::{Finding, Level, Report};
pub use machine::Machine;

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check this machine, the configuration and the API server: what is wrong, why it matters, what to type; exit with
    /// 1 if there is a fault
    #[command(after_help = "Examples:\n  tidegate doctor\n  tidegate doctor -c gateway.yaml -o json")]
    Doctor(doctor::DoctorArgs),
    /// Write a commented configuration for this machine; an existing file is never overwritten
    #[command(after_help = "Examples:\n  tidegate init --nic eth1 --pool 203.0.113.0/28 -o gateway.yaml")]
    Init(init::InitArgs),
    /// Show what a reload of the running gateway would change: Services, VIPs, modes, keys that need a restart, flows that
    /// would break; exit with 2 if the reload would be refused
    #[command(after_help = "Examples:\n  tidegate diff -c gateway.yaml")]
    Diff(diff::DiffArgs),
    /// Write a tar file for support: status, metrics, log, findings of doctor, and the configuration without secrets
    #[command(after_help = "Examples:\n  tidegate support-bundle -c gateway.yaml -o bundle.tar")]
    SupportBundle(bundle::BundleArgs),
}

impl Command {
    /// Runs the command.
    ///
    /// # Errors
    /// Why it failed.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Doctor(args) => doctor::run(&args),
            Self::Init(args) => init::run(&args),
            Self::Diff(args) => diff::run(&args),
            Self::SupportBundle(args) => bundle::run(&args),
        }
    }
}
