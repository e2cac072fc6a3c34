//! Arguments that several commands have.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use tidegate_admin_api::Client;

use super::cluster::{Query, Server};
use super::failure::Failure;
use super::invocation::plugin_name;
use super::output::{Format, Style};

/// Default path of the admin socket.
pub const SOCKET: &str = "/run/tidegate/tidegate.sock";
/// The variable that replaces this default.
const SOCKET_VARIABLE: &str = "TIDEGATE_SOCKET";

/// Default path of the configuration.
pub const CONFIG: &str = "/etc/tidegate/gateway.yaml";

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

/// `--socket`.
// The variable is not an `env` of clap: it would conflict with --kubeconfig.
#[derive(Debug, Args)]
pub struct SocketArg {
    /// Admin socket of the gateway (admin.socket) [env: TIDEGATE_SOCKET] [default: /run/tidegate/tidegate.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// The admin socket that the variable `TIDEGATE_SOCKET` names.
#[must_use]
pub fn socket_of_variable() -> Option<PathBuf> {
    std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

impl SocketArg {
    /// The path; `None` if neither the option nor the variable names one.
    fn named(&self) -> Option<PathBuf> {
        self.socket.clone().or_else(socket_of_variable)
    }

    /// Whether this is a kubectl plugin and no gateway runs on this machine.
    fn has_no_gateway(&self) -> bool {
        let program = std::env::args_os().next();
        plugin_name(program.as_deref()).is_some() && self.named().is_none() && !Path::new(SOCKET).exists()
    }

    /// The client of the gateway, for a query that an API server can answer, too.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(self.named().unwrap_or_else(|| SOCKET.into()))
    }

    /// The client of the gateway, for a query that only a gateway can answer: it has `what`.
    ///
    /// # Errors
    /// A kubectl plugin finds no gateway on this machine.
    pub(super) fn gateway(&self, what: &str) -> Result<Client, Failure> {
        if !self.has_no_gateway() {
            return Ok(self.client());
        }
        Err(Failure::Cluster(format!(
            "only a gateway has {what}, and none runs on this machine; an API server has status, services and pools; \
             accepted: the command on the machine of a gateway or in its Pod (`kubectl exec`), or --socket PATH"
        )))
    }
}

/// Options of the commands that only a gateway can answer.
#[derive(Debug, Args)]
pub(super) struct Common {
    #[command(flatten)]
    pub(super) socket: SocketArg,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// `-w`.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(super) struct WatchArgs {
    /// Print each change too, until Ctrl-C
    #[arg(short, long)]
    pub(super) watch: bool,
    /// With --watch: print whether each row was ADDED, MODIFIED or DELETED
    #[arg(long, requires = "watch")]
    pub(super) output_watch_events: bool,
}

/// Options of the lists that the API server can answer, too.
#[derive(Debug, Args)]
pub(super) struct ClusterArgs {
    #[command(flatten)]
    pub(super) socket: SocketArg,
    /// Query the API server with this kubeconfig instead of a gateway; "" selects the default kubeconfig
    #[arg(long, value_name = "PATH", conflicts_with = "socket", value_parser = maybe_empty())]
    kubeconfig: Option<PathBuf>,
    /// Query the API server of this context of the kubeconfig
    #[arg(long, value_name = "NAME", conflicts_with = "socket")]
    context: Option<String>,
    /// From the API server: only objects with these labels, such as env=prod,tier!=test
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    #[command(flatten)]
    pub(super) watch: WatchArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// A path that may be empty.
pub(super) fn maybe_empty() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(|path: OsString| PathBuf::from(path))
}

impl ClusterArgs {
    /// The query, if it goes to the API server. A kubectl plugin also queries it if no gateway runs on this machine.
    ///
    /// # Errors
    /// An option needs the API server, and the query goes to a gateway.
    pub(super) fn query<'a>(
        &'a self,
        names: &'a [String],
        namespace: Option<&'a str>,
    ) -> Result<Option<Query<'a>>, Failure> {
        let Self { socket, kubeconfig, context, selector, .. } = self;
        let (selector, watch) = (selector.as_deref(), self.watch.watch);
        if kubeconfig.is_none() && context.is_none() && !socket.has_no_gateway() {
            return match selector {
                None => Ok(None),
                Some(_) => Err(Failure::Cluster(
                    "--selector needs the API server; accepted: --kubeconfig PATH (\"\" for the default one) or \
                     --context NAME"
                        .to_owned(),
                )),
            };
        }
        let kubeconfig = kubeconfig.clone().filter(|path| !path.as_os_str().is_empty());
        let server = Server { kubeconfig, context: context.clone() };
        let style = self.output.style();
        Ok(Some(Query { server, selector, watch, names, namespace, style }))
    }
}
