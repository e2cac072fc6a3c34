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
//! Exit codes: 0 success; 1 the command failed or a named object does not exist; 2 the command line or the input of
//! `import` is wrong; 3 packets still arrived, or connections were left, when `drain` timed out.

mod admin_commands;
pub mod announce_tables;
mod args;
mod cluster;
mod cluster_tables;
mod completion;
mod crds;
mod describe;
mod drain;
pub mod drops;
pub mod events;
mod explain;
mod failure;
mod flows;
mod follow;
mod import;
mod invocation;
mod lists;
mod network;
pub mod output;
mod query;
pub mod status_tables;
pub mod tables;
mod top;
mod uninstall;
mod version;
mod watch;

use std::process::ExitCode;

use clap::Subcommand;

pub use args::{CONFIG, OutputArgs, SOCKET, SocketArg, socket_of_variable};
pub use explain::ExplainArgs;
pub use invocation::{REFUSED, exit_code, parse};
pub use version::COMMIT;

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Commands for a gateway or an API server.
    #[command(flatten)]
    Admin(Box<admin_commands::AdminCommand>),
    /// Print the CustomResourceDefinitions of AddressPool and GatewayStatus, or write them to a directory
    #[command(after_help = "Examples:\n  tidegate crds --dir deploy/kubernetes/crds")]
    Crds(crds::CrdsArgs),
    /// Convert the resources of MetalLB, kube-vip or Cilium to a configuration and AddressPools
    #[command(
        after_help = "Examples:\n  tidegate import metallb metallb.yaml\n  tidegate import cilium --kubeconfig admin.conf -o imported"
    )]
    Import(import::ImportArgs),
    /// Remove the finalizers, conditions and statuses that Tidegate wrote to a cluster
    #[command(
        after_help = "Examples:\n  tidegate uninstall --dry-run\n  tidegate uninstall --context prod --yes"
    )]
    Uninstall(uninstall::UninstallArgs),
    /// Print the completion script of a shell
    #[command(
        after_help = "Examples:\n  tidegate completion bash > /etc/bash_completion.d/tidegate\n  tidegate completion zsh > /usr/local/share/zsh/site-functions/_tidegate\n  tidegate completion fish > ~/.config/fish/completions/tidegate.fish"
    )]
    Completion(completion::CompletionArgs),
    /// Write the man pages to a directory
    #[command(hide = true, after_help = "Examples:\n  tidegate man --dir /usr/local/share/man/man1")]
    Man(completion::ManArgs),
    /// Print the version, the commit and, of the gateway, the version of DPDK
    #[command(after_help = "Examples:\n  tidegate version -o json")]
    Version(version::VersionArgs),
}

/// What the commands know about the program that offers them.
#[derive(Debug)]
pub struct Program {
    /// All commands of the program.
    pub command: clap::Command,
    /// The version of the linked DPDK, if any.
    pub dpdk: Option<String>,
}

impl Command {
    /// Runs the command.
    ///
    /// # Errors
    /// Why it failed, unless it has already printed that.
    pub fn run(self, program: impl FnOnce() -> Program) -> anyhow::Result<ExitCode> {
        match self {
            Self::Admin(command) => admin_commands::run(*command),
            Self::Crds(args) => crds::run(&args),
            Self::Import(args) => import::run(args),
            Self::Uninstall(args) => uninstall::run(args),
            Self::Completion(args) => completion::completion(args, program().command),
            Self::Man(args) => completion::man(&args, program().command),
            Self::Version(args) => version::run(args, program().dpdk),
        }
    }
}
