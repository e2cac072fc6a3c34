//! The binary `tidegate-edge`: `run`, `check` and `status`.
//!
//! May depend on: `tidegate-edge`. Everything that decides is in the library.

mod check;
mod input;
mod run;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tidegate_edge::{runtime, status};

#[derive(Debug, Parser)]
#[command(
    name = "tidegate-edge",
    version,
    about = "The second tier of Tidegate, where TLS and HTTP end: configures and supervises HAProxy",
    max_term_width = 110
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run HAProxy for the Services in the manifests
    Run(File),
    /// Validate the configuration and the manifests, with HAProxy
    Check(File),
    /// Show what a running edge serves, and what it does not serve and why
    Status(StatusArgs),
}

#[derive(Debug, Args)]
struct File {
    /// The configuration
    #[arg(short, long, value_name = "FILE", default_value = "/etc/tidegate/edge.yaml")]
    config: PathBuf,
}

#[derive(Debug, Args)]
struct StatusArgs {
    #[command(flatten)]
    file: File,
    /// The format
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Output {
    #[default]
    Table,
    Json,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(file) => run::run(&file.config),
        Command::Check(file) => check::check(&file.config),
        Command::Status(args) => print_status(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

fn print_status(args: &StatusArgs) -> Result<ExitCode, String> {
    let config = match input::load(&args.file.config) {
        Ok(config) => config,
        Err(code) => return Ok(code),
    };
    let directory = &config.haproxy.directory;
    if !runtime::is_in_use(directory).map_err(|error| format!("{}: {error}", directory.display()))? {
        return Err(format!("no edge runs with the directory {}", directory.display()));
    }
    let status =
        status::Status::read(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut out = io::stdout().lock();
    let printed = match args.output {
        Output::Table => status.print(&mut out),
        Output::Json => serde_json::to_writer_pretty(&mut out, &status)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out)),
    };
    printed.map_err(|error| error.to_string())?;
    Ok(ExitCode::SUCCESS)
}
