//! Arguments that several commands have.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use tidegate_policy::explain::Transport;

use super::output::{Format, Style};

/// Default path of the admin socket.
pub const SOCKET: &str = "/run/tidegate/tidegate.sock";

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// Use this configuration and its manifests instead of a running gateway; all backends count as healthy
    #[arg(short, long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Admin socket of the running gateway (admin.socket)
    #[arg(long, value_name = "PATH", default_value = SOCKET, conflicts_with = "config")]
    pub(super) socket: PathBuf,
    /// Protocol: tcp, udp or sctp
    #[arg(long)]
    pub(super) proto: Transport,
    /// Source address and port, such as 198.51.100.7:40000 or [2001:db8::7]:40000
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(super) src: SocketAddr,
    /// Destination address and port, in the same format
    #[arg(long, value_name = "VIP:PORT")]
    pub(super) dst: SocketAddr,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// The output options `-o` and `--no-headers`.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct OutputArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    pub(super) output: Format,
    /// Omit the header row
    #[arg(long)]
    pub(super) no_headers: bool,
}

impl OutputArgs {
    pub(super) fn style(self) -> Style {
        Style { format: self.output, no_headers: self.no_headers }
    }
}

/// Options of the commands that the API server can answer.
#[derive(Debug, Clone, Args)]
pub(super) struct ClusterArgs {
    /// From the API server: only objects with these labels, such as env=prod,tier!=test
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub(super) selector: Option<String>,
    /// From the API server: print each change too, until Ctrl-C
    #[arg(short, long)]
    pub(super) watch: bool,
}
