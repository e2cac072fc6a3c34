//! Arguments that several commands have.

use clap::Args;

use super::output::{Format, Style};

/// Default path of the admin socket.
pub const SOCKET: &str = "/run/tidegate/tidegate.sock";

/// The output options `-o` and `--no-headers`.
#[derive(Debug, Clone, Copy, Args)]
pub struct OutputArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    pub(super) output: Format,
    /// Omit the header row
    #[arg(long)]
    pub(super) no_headers: bool,
}

impl OutputArgs {
    /// The style.
    #[must_use]
    pub fn style(self) -> Style {
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
