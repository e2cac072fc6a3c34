//! The kubectl plugin `kubectl tidegate`: the commands of [`tidegate_cli`], without the daemon and without DPDK.
//!
//! kubectl finds it as `kubectl-tidegate` in the `PATH`.
//!
//! May depend on: `tidegate-cli`.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tidegate_cli::{ExplainArgs, Program};

#[derive(Debug, Parser)]
#[command(
    name = "kubectl-tidegate",
    version,
    about = "Query and control Tidegate, from a workstation or on a gateway",
    max_term_width = 110
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Explain step by step what the gateway on this machine does with a packet
    #[command(
        after_help = "Examples:\n  tidegate explain --proto tcp --src 198.51.100.7:40000 --dst 203.0.113.1:80"
    )]
    Explain(ExplainArgs),
    #[command(flatten)]
    Other(Box<tidegate_cli::Command>),
}

fn main() -> ExitCode {
    let Cli { command } = tidegate_cli::parse();
    let result = match command {
        Command::Explain(args) => args.run(),
        Command::Other(command) => command.run(|| Program { command: Cli::command(), dpdk: None }),
    };
    tidegate_cli::exit_code(result, |text| eprintln!("error: {text}"))
}
