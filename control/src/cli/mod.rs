//! The command line of `tidegate`: the commands of `tidegate-cli` and `tidegate-doctor`, and those that need the
//! dataplane or the compiled pipeline.
//!
//! Each command has a file. It takes its parsed arguments and returns an exit code or an error, which is printed here
//! as `error: ...` with exit code 1. Clap exits with 2 if the command line is wrong. Commands make no decisions about
//! packets or manifests: they call the library and print the result.
//!
//! Exit codes: those of `tidegate-cli`; 2 also if the input is invalid (`check`, an invalid configuration). `run` has
//! more codes (`daemon`).

mod check;
mod cross_check;
mod explain;
mod load;
mod replay;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};

use crate::logging::{self, LogFormat};

#[derive(Debug, Parser)]
#[command(
    name = "tidegate",
    version,
    about = "Kernel-bypass L4 gateway for bare-metal Kubernetes",
    max_term_width = 110
)]
struct Cli {
    /// Format of log lines and of a final error on standard error; RUST_LOG selects the lines
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "FORMAT",
        env = "TIDEGATE_LOG_FORMAT",
        default_value_t
    )]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway; SIGHUP reloads the configuration, SIGTERM stops it
    Run(ConfigArg),
    /// Validate the configuration and the manifests; exit with 2 if anything is refused
    Check(ConfigArg),
    /// Run a packet capture through the gateway's packet processing, without NICs or root
    Replay(replay::ReplayArgs),
    /// Explain step by step what the gateway does with a packet
    Explain(explain::ExplainCommand),
    #[command(flatten)]
    FirstAid(tidegate_doctor::Command),
    #[command(flatten)]
    Other(tidegate_cli::Command),
}

/// `-c`.
#[derive(Debug, Clone, Args)]
struct ConfigArg {
    /// Configuration file of the gateway
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
}

/// Runs the given command and returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let Cli { log_format, command } = tidegate_cli::parse();
    tidegate_cli::exit_code(run(command, log_format), |text| match log_format {
        LogFormat::Json if logging::start(log_format).is_ok() => tracing::error!("{text}"),
        _ => logging::last_words(text),
    })
}

fn run(command: Command, log_format: LogFormat) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => {
            logging::start(log_format).context("cannot redirect standard error")?;
            crate::daemon::run(&args.config)
        }
        Command::Check(args) => check::run(&args.config),
        Command::Replay(args) => replay::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::FirstAid(command) => command.run(),
        Command::Other(command) => command.run(),
    }
}
