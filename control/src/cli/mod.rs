//! The command line: subcommands, options and exit codes.
//!
//! Each command has a file. It takes its parsed arguments and returns an exit code or an error, which is printed here
//! as `error: ...` with exit code 1. Clap exits with 2 when the command line is wrong. Commands make no decisions about
//! packets or manifests: they call the library and print the result.
//!
//! Exit codes: 0 success; 1 the command failed or a named object does not exist; 2 the input is invalid (`check`, an
//! invalid configuration, a wrong command line); 3 packets still came to a gateway at the timeout of `drain --gateway`.
//! `run` has codes of its own (`daemon`).

mod announce_tables;
mod args;
mod ask;
mod check;
mod cluster;
mod cluster_tables;
mod crds;
mod cross_check;
mod explain;
mod failure;
mod invocation;
mod load;
pub mod output;
mod replay;
mod tables;
mod top;
mod uninstall;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::logging::{self, LogFormat};
use args::ExplainArgs;
use invocation::plugin_name;

pub use args::SOCKET;
pub use invocation::REFUSED;

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
    /// Run a packet capture through the pipeline, without network ports or root
    Replay(replay::ReplayArgs),
    /// Explain step by step what the gateway does with a packet
    Explain(ExplainArgs),
    #[command(flatten)]
    Ask(ask::Question),
    /// Print the CustomResourceDefinitions of AddressPool and GatewayStatus, or write them to a directory
    Crds(crds::CrdsArgs),
    /// Remove the finalizers, conditions and statuses that Tidegate wrote to a cluster
    Uninstall(uninstall::UninstallArgs),
}

/// `-c`.
#[derive(Debug, Clone, Args)]
struct ConfigArg {
    /// Configuration file of the gateway
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
}

/// Runs the command of the command line and returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let command = without_empty_variables(Cli::command());
    let command = match plugin_name(std::env::args_os().next().as_deref()) {
        Some(name) => command.bin_name(name),
        None => command,
    };
    let cli = Cli::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit());
    match run(cli.command, cli.log_format) {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error, cli.log_format);
            ExitCode::FAILURE
        }
    }
}

/// Removes the environment variables that are empty, which count as not set: clap would refuse their value.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    command.mut_args(|argument| {
        let value = argument.get_env().and_then(std::env::var_os);
        let is_empty = value.is_some_and(|value| value.is_empty());
        if is_empty { argument.env(None::<&'static str>) } else { argument }
    })
}

/// Prints why the command failed. Some errors include the text of their cause; it is printed only once.
fn report(error: &anyhow::Error, format: LogFormat) {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        match text.as_str() {
            "" => text = cause,
            before if before.contains(&cause) => {}
            _ => text = format!("{text}: {cause}"),
        }
    }
    match format {
        LogFormat::Json if logging::start(format).is_ok() => tracing::error!("{text}"),
        _ => logging::last_words(&text),
    }
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
        Command::Ask(question) => ask::run(question),
        Command::Crds(args) => crds::run(&args),
        Command::Uninstall(args) => uninstall::run(args),
    }
}

/// Whether the error is a write to an output that the reader has closed (`tidegate ... | head`).
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.into_iter().any(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
}
