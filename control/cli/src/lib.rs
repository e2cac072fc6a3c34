//! The commands that query or control a gateway or a cluster: everything that an operator does from a workstation.
//!
//! `tidegate` and the kubectl plugin `kubectl-tidegate` offer [`Command`]; each adds its own. Each command has a file:
//! it takes the parsed arguments and returns an exit code or an error. Commands make no decisions about packets or
//! manifests: they query, and print the answer ([`output`]).
//!
//! May depend on: `tidegate-admin-api` (the admin socket), `tidegate-cluster` (our kinds, and what gateways wrote),
//! `tidegate-source` (the connection to the API server), `tidegate-import` (resources of other load balancers),
//! `tidegate-policy`, `tidegate-model`, `tidegate-capture` (pcapng files). May not: DPDK, the dataplane, the daemon.
//!
//! Exit codes: 0 success; 1 the command failed or a named object does not exist; 2 the command line is wrong; 3 packets
//! still arrived at the gateway when `drain --gateway` timed out.

mod admin_commands;
pub mod announce_tables;
mod args;
mod cluster;
mod cluster_tables;
mod crds;
mod events;
mod explain;
mod failure;
mod import;
mod invocation;
pub mod output;
pub mod status_tables;
pub mod tables;
mod top;
mod uninstall;
mod watch;

use std::process::ExitCode;

use clap::Subcommand;

pub use args::{OutputArgs, SOCKET};
pub use explain::ExplainArgs;
pub use invocation::{REFUSED, exit_code, parse};

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Commands for a gateway or an API server.
    #[command(flatten)]
    Admin(admin_commands::AdminCommand),
    /// Print the CustomResourceDefinitions of AddressPool and GatewayStatus, or write them to a directory
    Crds(crds::CrdsArgs),
    /// Convert the resources of MetalLB, kube-vip or Cilium to a configuration and AddressPools
    Import(import::ImportArgs),
    /// Remove the finalizers, conditions and statuses that Tidegate wrote to a cluster
    Uninstall(uninstall::UninstallArgs),
}

impl Command {
    /// Runs the command.
    ///
    /// # Errors
    /// Why it failed, unless it has already printed that.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Admin(command) => admin_commands::run(command),
            Self::Crds(args) => crds::run(&args),
            Self::Import(args) => import::run(args),
            Self::Uninstall(args) => uninstall::run(args),
        }
    }
}
