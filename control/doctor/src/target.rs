//! Options of several commands, and the runtime for their queries.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use tidegate_cli::{CONFIG, socket_of_variable};

/// Which gateway and which configuration.
#[derive(Debug, Clone, Args)]
pub(crate) struct Target {
    /// Configuration file of the gateway [default: /etc/tidegate/gateway.yaml, if it exists]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Admin socket of the gateway [env: TIDEGATE_SOCKET] [default: admin.socket of the configuration]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl Target {
    /// The configuration file, if there is one.
    pub(crate) fn config(&self) -> Option<PathBuf> {
        let installed = || Some(Path::new(CONFIG)).filter(|path| path.exists()).map(Path::to_owned);
        self.config.clone().or_else(installed)
    }

    /// The admin socket, if an option or a variable names it.
    pub(crate) fn socket(&self) -> Option<PathBuf> {
        self.socket.clone().or_else(socket_of_variable)
    }
}

/// A runtime for the queries of one command.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the runtime")
}
