//! The command line: what can be asked, and with which exit code it is answered.
//!
//! One file per command; each takes its parsed arguments and gives an exit code or an error, which is printed
//! here as `error: ...` with exit code 1. Clap's own exit code for a wrong command line is 2. No command decides
//! anything about packets or manifests: they call the library and print.
//!
//! Exit codes: 0 done; 1 it failed, or what was named is not there; 2 the input is refused (`check`, a faulty
//! configuration, a wrong command line).

mod ask;
mod check;
mod cluster;
mod crds;
mod explain;
mod load;
pub mod output;
mod replay;
mod tables;
mod uninstall;

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use tidegate_policy::explain::Transport;

use output::{Format, Style};

/// Exit code for input that is refused.
pub const REFUSED: u8 = 2;

/// Where the daemon listens if the configuration does not say otherwise.
pub const SOCKET: &str = "/run/tidegate/tidegate.sock";

#[derive(Debug, Parser)]
#[command(
    name = "tidegate",
    version,
    about = "Kernel-bypass L4 gateway for bare-metal Kubernetes",
    max_term_width = 110
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway until a signal ends it; SIGHUP reloads
    Run(ConfigArg),
    /// Check configuration and manifests together; exit 2 when anything is refused
    Check(ConfigArg),
    /// Say what becomes of each packet of a capture, without ports or root
    Replay(replay::ReplayArgs),
    /// Say step by step what becomes of one packet
    Explain(ExplainArgs),
    #[command(flatten)]
    Ask(ask::Question),
    /// Show the gateway at work, in network namespaces of its own
    Demo(DemoArgs),
    /// Print the definitions of AddressPool and GatewayStatus, or write them to a directory
    Crds(crds::CrdsArgs),
    /// Take finalizers, conditions and statuses of Tidegate off the objects of a cluster, before it is removed
    Uninstall(uninstall::UninstallArgs),
    /// Peers of the gateway in the demo and the tests
    #[command(hide = true)]
    Lab {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

/// `-c`.
#[derive(Debug, Clone, Args)]
struct ConfigArg {
    /// The gateway's configuration
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
}

#[derive(Debug, Clone, Copy, Args)]
struct DemoArgs {
    /// Stay up when all is shown, until Ctrl-C
    #[arg(long)]
    keep: bool,
    /// Do not use hugepages, even where there are some
    #[arg(long)]
    no_hugepages: bool,
}

#[derive(Debug, Args)]
struct ExplainArgs {
    /// Ask of this configuration and its manifests, every backend taken as passing its checks
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Ask the daemon at this socket
    #[arg(long, value_name = "PATH", default_value = SOCKET, conflicts_with = "config")]
    socket: PathBuf,
    /// tcp, udp or sctp
    #[arg(long)]
    proto: Transport,
    /// Source, as 198.51.100.7:40000 or [2001:db8::7]:40000
    #[arg(long, value_name = "ADDRESS:PORT")]
    src: SocketAddr,
    /// Destination, in the same form
    #[arg(long, value_name = "VIP:PORT")]
    dst: SocketAddr,
    #[command(flatten)]
    output: OutputArgs,
}

/// `-o` and `--no-headers`.
#[derive(Debug, Clone, Copy, Args)]
struct OutputArgs {
    /// How to print the answer
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
    /// Leave out the line of headers
    #[arg(long)]
    no_headers: bool,
}

impl OutputArgs {
    fn style(self) -> Style {
        Style { format: self.output, no_headers: self.no_headers }
    }
}

/// Runs the command that the command line names, and gives the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let command = Cli::command();
    let command = match plugin_name(std::env::args_os().next().as_deref()) {
        Some(name) => command.bin_name(name),
        None => command,
    };
    let cli = Cli::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit());
    match run(cli.command) {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => crate::daemon::run(&args.config),
        Command::Check(args) => check::run(&args.config),
        Command::Replay(args) => replay::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Ask(question) => ask::run(question),
        Command::Demo(DemoArgs { keep, no_hugepages }) => {
            Ok(crate::demo::run(&crate::demo::DemoOptions { keep, no_hugepages }))
        }
        Command::Crds(args) => crds::run(&args),
        Command::Uninstall(args) => uninstall::run(args),
        Command::Lab { args } => crate::netlab::tools::run(&args).map(|()| ExitCode::SUCCESS),
    }
}

/// How the command is called where kubectl runs it as a plugin: `kubectl tidegate` for a link `kubectl-tidegate` to
/// this binary.
fn plugin_name(program: Option<&OsStr>) -> Option<String> {
    let file = Path::new(program?).file_name()?.to_str()?;
    // kubectl looks for a dash of a command's name as an underscore.
    Some(format!("kubectl {}", file.strip_prefix("kubectl-")?.replace('_', "-")))
}

/// Whoever read the answer has seen enough (`tidegate ... | head`).
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.into_iter().any(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
}
