//! The binary `tidegate-demo`: shows the gateway at work between real clients and servers in network namespaces.
//!
//! Its hidden subcommand `lab` runs one of the programs inside the namespaces ([`tidegate_netlab::tools`]).

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};
use tidegate_netlab::demo::{self, DemoOptions};
use tidegate_netlab::tools;

/// Run a demonstration with real clients and servers in network namespaces
#[derive(Debug, Parser)]
#[command(name = "tidegate-demo", version, max_term_width = 110, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(flatten)]
    demo: DemoArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Args)]
struct DemoArgs {
    /// Keep everything running after the demonstration, until Ctrl-C
    #[arg(long)]
    keep: bool,
    /// Do not use hugepages, even if some are available
    #[arg(long)]
    no_hugepages: bool,
    /// Show two gateways behind a router instead: all backends are replaced under live connections, a gateway is killed,
    /// both are upgraded
    #[arg(long, conflicts_with = "keep")]
    fleet: bool,
    /// With --fleet: number of connections to each Service
    #[arg(long, value_name = "N", default_value_t = 1000, requires = "fleet")]
    connections: usize,
    /// The binary of the gateway [default: tidegate, in the directory of this program]
    #[arg(long, value_name = "PATH")]
    tidegate: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a client or server of the demo and the tests
    #[command(hide = true)]
    Lab {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

fn main() -> ExitCode {
    run(Cli::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(cli: Cli) -> Result<ExitCode> {
    if let Some(Command::Lab { args }) = cli.command {
        return tools::run(&args).map(|()| ExitCode::SUCCESS);
    }
    let DemoArgs { keep, no_hugepages, fleet, connections, tidegate } = cli.demo;
    let tidegate = match tidegate {
        Some(path) => path,
        None => std::env::current_exe()
            .context("cannot find the path of this program")?
            .with_file_name("tidegate"),
    };
    let fleet = fleet.then_some(connections);
    Ok(demo::run(&DemoOptions { keep, no_hugepages, fleet, tidegate }))
}
