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
mod explain;
mod load;
mod replay;
mod size;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use tidegate_cli::Program;

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
    #[command(after_help = "Examples:\n  tidegate run -c gateway.yaml")]
    Run(ConfigArg),
    /// Validate the configuration and the manifests; exit with 2 if anything is refused
    #[command(after_help = "Examples:\n  tidegate check\n  tidegate check -c gateway.yaml -o json")]
    Check(CheckArgs),
    /// Run a packet capture through the gateway's packet processing, without NICs or root
    #[command(
        after_help = "Examples:\n  tidegate replay -c gateway.yaml --in client.pcapng --out sent.pcap --json"
    )]
    Replay(replay::ReplayArgs),
    /// Explain step by step what the gateway does with a packet
    #[command(
        after_help = "Examples:\n  tidegate explain --proto tcp --src 198.51.100.7:40000 --dst 203.0.113.1:80\n  tidegate explain -c gateway.yaml --proto udp --src [2001:db8::7]:5000 --dst [2001:db8:1::1]:53"
    )]
    Explain(explain::ExplainCommand),
    /// Compute the cores, memory and huge pages that a gateway needs, and the configuration that provides them
    #[command(
        after_help = "Examples:\n  tidegate size --services 1000 --endpoints 10000 --flows 1000000 --pps 2000000\n  tidegate size --services 200 --endpoints 4000 --flows 5000000 --pps 8000000 --forwarding dsr-l2 --dual-stack -o json"
    )]
    Size(size::SizeArgs),
    #[command(flatten)]
    FirstAid(tidegate_doctor::Command),
    #[command(flatten)]
    Other(tidegate_cli::Command),
}

/// `-c`.
#[derive(Debug, Clone, Args)]
struct ConfigArg {
    /// Configuration file of the gateway
    #[arg(short, long, value_name = "FILE", default_value = tidegate_cli::CONFIG)]
    config: PathBuf,
}

/// Arguments of `check`.
#[derive(Debug, Args)]
struct CheckArgs {
    #[command(flatten)]
    config: ConfigArg,
    #[command(flatten)]
    output: check::CheckOutput,
}

/// The command line, with all commands.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the given command and returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let Cli { log_format, command } = tidegate_cli::parse();
    let result = run(command, log_format);
    logging::end();
    tidegate_cli::exit_code(result, |text| match log_format {
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
        Command::Check(CheckArgs { config, output }) => check::run(&config.config, output),
        Command::Replay(args) => replay::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Size(args) => size::run(&args),
        Command::FirstAid(command) => command.run(),
        Command::Other(command) => command
            .run(|| Program { command: Cli::command(), dpdk: Some(tidegate_dataplane::dpdk_version()) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of a command and its subcommands, each of which must have some.
    fn examples(command: &clap::Command, found: &mut Vec<String>) {
        for subcommand in command.get_subcommands() {
            let help = subcommand.get_after_help().map(ToString::to_string).unwrap_or_default();
            let before = found.len();
            found.extend(help.lines().filter_map(|line| line.strip_prefix("  ")).map(str::to_owned));
            examples(subcommand, found);
            assert!(found.len() > before, "{} has no example", subcommand.get_name());
        }
    }

    #[test]
    fn every_command_has_examples_that_it_accepts() {
        let mut found = Vec::new();
        examples(&command(), &mut found);
        assert!(found.len() > 25, "{found:?}");
        for example in found {
            let words = example.split(" > ").next().unwrap_or_default().split(' ');
            if let Err(error) = Cli::try_parse_from(words) {
                panic!("{example}: {error}");
            }
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }
}
