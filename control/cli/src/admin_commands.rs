//! The commands that use the admin socket of a running daemon. The API server can answer some of them too
//! ([`super::cluster`]).
//!
//! As in kubectl, the exit code is 1 with `Error from gateway ...` if the daemon does not answer, refuses the request,
//! or does not have a named object; an empty list is not an error. [`tables`](super::tables) defines the columns.

use std::io::{self, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, Subcommand};
use k8s_openapi::api::core::v1::Service;
use tidegate_admin_api::{
    BackendName, BackendRow, Client, ClientError, FlowsQuery, GatewayDrainState, Limit, ServiceName,
    ServiceView,
};
use tidegate_cluster::crd::{AddressPool, GatewayStatus};
use tidegate_policy::reconcile::DrainTarget;

use super::args::{ClusterArgs, OutputArgs, SOCKET};
use super::cluster::{Query, Server};
use super::failure::Failure;
use super::invocation::plugin_name;
use super::output::Style;
use super::{events, status_tables, tables, top, watch};

/// Exit code of `drain --gateway` if packets still arrive at the timeout.
const NOT_DRAINED: u8 = 3;
/// How often `drain --gateway` queries the state.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// How often it reports the remaining traffic.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// The commands.
#[derive(Debug, Subcommand)]
pub enum AdminCommand {
    /// Show the gateway's status: workers, interfaces, source, refused requests
    Status(Named),
    /// List the Services that request an address, with their VIPs and ports
    Services(Services),
    /// List the backends of each service port, with their state and connections
    Backends(Listing),
    /// List or count flows, by Service, backend or client
    Flows(Flows),
    /// Show the number of packets dropped and punted to the kernel, by reason
    Drops(Common),
    /// List the address pools and their usage
    Pools(Named),
    /// Show what happened: backends, Services, VIPs, links, BGP sessions and others that changed state
    Events(Events),
    /// Stop new flows to a backend, or to all backends of a node; existing flows continue. With --gateway, take this
    /// gateway out of service and wait until no more packets arrive
    Drain(DrainArgs),
    /// Cancel a drain
    Undrain(Target),
    /// Show packets as they arrive, with what happens to each
    Trace(Trace),
    /// Write packets to a pcapng file, each with a comment that says what happened to it
    Capture(Capture),
    /// Show live figures: workers, interfaces, drops and the busiest Services
    Top(Top),
    /// For keepalived's vrrp_script: report to the gateway that keepalived is running; exit with 1 if the gateway
    /// cannot forward
    VrrpCheck(SocketArg),
    /// Print the metrics in the Prometheus text format
    Metrics(SocketArg),
}

/// `--socket`.
#[derive(Debug, Args)]
pub struct SocketArg {
    /// Admin socket of the gateway (admin.socket)
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
    /// Query the API server with this kubeconfig instead of a gateway (status, services, pools); "" selects the
    /// default kubeconfig
    #[arg(long, value_name = "PATH", conflicts_with = "socket")]
    kubeconfig: Option<PathBuf>,
    /// Query the API server of this context of the kubeconfig
    #[arg(long, value_name = "NAME", conflicts_with = "socket")]
    context: Option<String>,
}

impl SocketArg {
    /// The API server, if the query goes there. A kubectl plugin also queries it if no gateway runs on this machine.
    fn cluster(&self) -> Option<Server> {
        let Self { socket, kubeconfig, context } = self;
        let program = std::env::args_os().next();
        let is_plugin = plugin_name(program.as_deref()).is_some();
        let has_no_gateway = is_plugin && socket.as_os_str() == SOCKET && !socket.exists();
        let kubeconfig = kubeconfig.clone();
        (kubeconfig.is_some() || context.is_some() || has_no_gateway).then(|| Server {
            kubeconfig: kubeconfig.filter(|path| !path.as_os_str().is_empty()),
            context: context.clone(),
        })
    }

    /// Fails for a query that the API server cannot answer.
    fn require_gateway(&self, what: &str) -> Result<(), Failure> {
        if self.cluster().is_none() {
            return Ok(());
        }
        Err(Failure::Cluster(format!(
            "only a gateway has {what}, and this command queries the API server, which has status, services and pools; \
             accepted: the command without --kubeconfig and --context, on the machine of a gateway or in its Pod \
             (`kubectl exec`)"
        )))
    }
}

/// Options of every query.
#[derive(Debug, Args)]
pub struct Common {
    #[command(flatten)]
    socket: SocketArg,
    #[command(flatten)]
    output: OutputArgs,
}

/// Options of lists of objects without a namespace.
#[derive(Debug, Args)]
pub struct Named {
    /// Names of the objects; all if omitted
    names: Vec<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    common: Common,
}

/// Options of `services`.
#[derive(Debug, Args)]
pub struct Services {
    #[command(flatten)]
    listing: Listing,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Options of lists of namespaced objects.
#[derive(Debug, Args)]
pub struct Listing {
    /// Names of Services; all if omitted
    names: Vec<String>,
    /// Show only this namespace
    #[arg(short, long, conflicts_with = "all_namespaces")]
    namespace: Option<String>,
    /// Show all namespaces (the default)
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    #[command(flatten)]
    common: Common,
}

/// Options of `flows`.
#[derive(Debug, Args)]
pub struct Flows {
    /// Show flows of this Service: NAME or NAMESPACE/NAME, optionally with :PORT
    #[arg(long, value_name = "SERVICE")]
    service: Option<ServiceName>,
    /// Show flows to this backend: ADDRESS:PORT, or ADDRESS for all its ports
    #[arg(long, value_name = "BACKEND")]
    backend: Option<BackendName>,
    /// Show flows of this client
    #[arg(long, value_name = "ADDRESS")]
    client: Option<IpAddr>,
    /// Maximum number of flows to show
    #[arg(long, value_name = "N", default_value = "500")]
    limit: Limit,
    /// Show the number of flows of each worker instead of the flows
    #[arg(long, conflicts_with_all = ["service", "backend", "client", "limit"])]
    count: bool,
    #[command(flatten)]
    common: Common,
}

/// Arguments of `drain` and `undrain`.
#[derive(Debug, Args)]
pub struct Target {
    /// ADDRESS:PORT, ADDRESS for all its ports, or the name of a node
    #[arg(required_unless_present = "gateway")]
    target: Option<DrainTarget>,
    /// The gateway itself. While it is drained, it withdraws its announcements and forwards packets that still arrive
    #[arg(long, conflicts_with = "target")]
    gateway: bool,
    #[command(flatten)]
    common: Common,
}

/// Arguments of `drain`.
#[derive(Debug, Args)]
pub struct DrainArgs {
    #[command(flatten)]
    target: Target,
    /// With --gateway: how long to wait until the gateway is drained (1h, 5m, 300s). The drain continues after the
    /// timeout, and the exit code is 3
    #[arg(long, value_name = "DURATION", default_value = "300s", value_parser = wait, conflicts_with = "target")]
    timeout: Duration,
}

fn wait(text: &str) -> Result<Duration, String> {
    tidegate_model::yaml::text::duration(text)
        .ok_or_else(|| format!("accepted: {}", tidegate_model::yaml::text::DURATION))
}

/// Options of `trace`.
#[derive(Debug, Args)]
pub struct Trace {
    #[command(flatten)]
    selection: watch::Selection,
    #[command(flatten)]
    common: Common,
}

/// Options of `capture`.
#[derive(Debug, Args)]
pub struct Capture {
    #[command(flatten)]
    file: watch::FileArgs,
    #[command(flatten)]
    selection: watch::Selection,
    #[command(flatten)]
    socket: SocketArg,
}

/// Options of `events`.
#[derive(Debug, Args)]
pub struct Events {
    #[command(flatten)]
    selection: events::Selection,
    #[command(flatten)]
    common: Common,
}

/// Options of `top`.
#[derive(Debug, Args)]
pub struct Top {
    #[command(flatten)]
    view: top::View,
    #[command(flatten)]
    common: Common,
}

/// The maximum duration of `vrrp-check`: keepalived starts one each second.
const VRRP_CHECK_MAX: std::time::Duration = std::time::Duration::from_secs(2);

pub(super) fn run(command: AdminCommand) -> anyhow::Result<ExitCode> {
    run_query(async {
        let out = &mut io::stdout().lock();
        match command {
            AdminCommand::Status(named) => status(&named, out).await?,
            AdminCommand::Services(options) => services(&options, out).await?,
            AdminCommand::Backends(listing) => backends(&listing, out).await?,
            AdminCommand::Flows(options) => flows(options, out).await?,
            AdminCommand::Drops(Common { socket, output }) => {
                socket.require_gateway("drops")?;
                let drops = client(&socket).drops().await?;
                output.style().print(out, &drops, || tables::drops(&drops))?;
            }
            AdminCommand::Pools(named) => pools(&named, out).await?,
            AdminCommand::Events(Events { selection, common }) => {
                common.socket.require_gateway("events")?;
                let style = common.output.style();
                report_if_empty(events::run(&client(&common.socket), &selection, style, out).await?, None);
            }
            AdminCommand::Drain(DrainArgs { target: Target { target: None, common, .. }, timeout }) => {
                common.socket.require_gateway("drains")?;
                drain_gateway(&client(&common.socket), timeout, common.output.style(), out).await?;
            }
            AdminCommand::Undrain(Target { target: None, common, .. }) => {
                common.socket.require_gateway("drains")?;
                let answer = client(&common.socket).undrain_gateway().await?;
                let done = format!("gateway/{} undrained", answer.gateway);
                print_change(common.output.style(), out, &answer, &done)?;
                warn_not_kept(answer.not_kept.as_deref());
            }
            AdminCommand::Drain(DrainArgs {
                target: Target { target: Some(target), common, .. }, ..
            }) => {
                common.socket.require_gateway("drains")?;
                let answer = client(&common.socket).drain(&target).await?;
                let done = tables::drained(&target, "drained", answer.backends);
                print_change(common.output.style(), out, &answer, &done)?;
                warn_not_kept(answer.not_kept.as_deref());
            }
            AdminCommand::Undrain(Target { target: Some(target), common, .. }) => {
                common.socket.require_gateway("drains")?;
                let answer = client(&common.socket).undrain(&target).await?;
                let done = tables::drained(&target, "undrained", answer.backends);
                print_change(common.output.style(), out, &answer, &done)?;
                warn_not_kept(answer.not_kept.as_deref());
            }
            AdminCommand::Trace(Trace { selection, common }) => {
                common.socket.require_gateway("packets")?;
                watch::trace(&client(&common.socket), &selection, common.output.style(), out).await?;
            }
            AdminCommand::Capture(Capture { file, selection, socket }) => {
                socket.require_gateway("packets")?;
                watch::capture(&client(&socket), &selection, &file).await?;
            }
            AdminCommand::Top(Top { view, common }) => {
                common.socket.require_gateway("live figures")?;
                top::run(&client(&common.socket), &view, common.output.style(), out).await?;
            }
            AdminCommand::VrrpCheck(socket) => {
                socket.require_gateway("VRRP groups")?;
                // The time when this process started: the request may wait for a gateway that is paused.
                let began = tidegate_admin_api::boot_time();
                let checked = tokio::time::timeout(VRRP_CHECK_MAX, client(&socket).vrrp_check(began)).await;
                let late = || ClientError::Timeout { path: socket.socket.clone() };
                checked.map_err(|_| late())??;
            }
            AdminCommand::Metrics(socket) => {
                socket.require_gateway("metrics")?;
                out.write_all(client(&socket).metrics().await?.as_bytes())?;
            }
        }
        Ok(out.flush()?)
    })
}

/// Warns if a drain was not saved and would be lost in a restart.
fn warn_not_kept(not_kept: Option<&str>) {
    if let Some(why) = not_kept {
        eprintln!("Warning: {why}");
    }
}

/// Drains the gateway itself, and reports the remaining traffic on standard error until it is drained.
async fn drain_gateway(
    client: &Client,
    timeout: Duration,
    style: Style,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let started = Instant::now();
    let mut answer = client.drain_gateway().await?;
    warn_not_kept(answer.not_kept.as_deref());
    let mut report_at = Duration::ZERO;
    let is_drained = loop {
        match answer.drain.state {
            GatewayDrainState::Drained => break true,
            GatewayDrainState::Draining if started.elapsed() >= timeout => break false,
            GatewayDrainState::Draining => {}
            GatewayDrainState::Serving => {
                let why =
                    "the drain was cancelled by `tidegate undrain --gateway`, and the gateway serves again";
                return Err(Failure::Cancelled(why));
            }
        }
        if started.elapsed() >= report_at {
            eprintln!(
                "gateway/{} draining: {}",
                answer.gateway,
                status_tables::drain_progress(&answer.drain)
            );
            report_at = started.elapsed() + REPORT_INTERVAL;
        }
        tokio::time::sleep(POLL_INTERVAL.min(timeout.saturating_sub(started.elapsed()))).await;
        answer.drain = client.status().await?.drain;
    };
    let done = match is_drained {
        true => format!("gateway/{} drained", answer.gateway),
        false => {
            format!(
                "gateway/{} still draining: {}",
                answer.gateway,
                status_tables::drain_progress(&answer.drain)
            )
        }
    };
    print_change(style, out, &answer, &done)?;
    if is_drained { Ok(()) } else { Err(Failure::NotDrained) }
}

/// Runs a query to completion. Prints an error of the daemon in the style of kubectl.
pub(super) fn run_query(query: impl Future<Output = Result<(), Failure>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    match runtime.block_on(query) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(Failure::Output(error)) => Err(error.into()),
        Err(Failure::Gateway(error)) => {
            eprintln!("{}", described(&error));
            Ok(ExitCode::FAILURE)
        }
        Err(Failure::Cluster(why)) => {
            eprintln!("Error from cluster: {why}");
            Ok(ExitCode::FAILURE)
        }
        Err(Failure::Cancelled(why)) => {
            eprintln!("Error from gateway (Conflict): {why}");
            Ok(ExitCode::FAILURE)
        }
        Err(Failure::NotDrained) => Ok(ExitCode::from(NOT_DRAINED)),
        Err(Failure::NotFound(missing)) => {
            missing.iter().for_each(|what| eprintln!("Error from gateway (NotFound): {what} not found"));
            Ok(ExitCode::FAILURE)
        }
    }
}

fn described(error: &ClientError) -> String {
    match error {
        ClientError::Refused { status, message } => {
            let reason = match status {
                400 => "BadRequest",
                404 => "NotFound",
                409 => "Conflict",
                503 => "ServiceUnavailable",
                _ => "InternalError",
            };
            format!("Error from gateway ({reason}): {message}")
        }
        other => format!("Error from gateway: {other}"),
    }
}

fn client(socket: &SocketArg) -> Client {
    Client::new(&socket.socket)
}

async fn status(named: &Named, out: &mut impl Write) -> Result<(), Failure> {
    if let Some(query) = named.query()? {
        report_if_empty(query.show::<GatewayStatus>(out).await?, None);
        return Ok(());
    }
    let Named { names, common, .. } = named;
    let status = client(&common.socket).status().await?;
    let style: Style = common.output.style();
    if names.is_empty() || names.contains(&status.name) {
        match style.is_data() {
            true => style.print_data(out, &status)?,
            false => out.write_all(status_tables::status(&status, style).as_bytes())?,
        }
    }
    found_all("gateways", names, [status.name.as_str()])
}

async fn pools(named: &Named, out: &mut impl Write) -> Result<(), Failure> {
    if let Some(query) = named.query()? {
        report_if_empty(query.show::<AddressPool>(out).await?, None);
        return Ok(());
    }
    let Named { names, common, .. } = named;
    let mut pools = client(&common.socket).pools().await?.pools;
    pools.retain(|pool| names.is_empty() || names.contains(&pool.name));
    common.output.style().print_list(out, &pools, || tables::pools(&pools))?;
    found_all("pools", names, pools.iter().map(|pool| pool.name.as_str()))?;
    report_if_empty(pools.len(), None);
    Ok(())
}

impl Named {
    /// The query, if it goes to the API server.
    fn query(&self) -> Result<Option<Query<'_>>, Failure> {
        self.cluster.query(&self.common, &self.names, None)
    }
}

impl ClusterArgs {
    /// The query, if it goes to the API server.
    fn query<'a>(
        &'a self,
        common: &Common,
        names: &'a [String],
        namespace: Option<&'a str>,
    ) -> Result<Option<Query<'a>>, Failure> {
        let (selector, watch) = (self.selector.as_deref(), self.watch);
        let style = common.output.style();
        match common.socket.cluster() {
            Some(server) => Ok(Some(Query { server, selector, watch, names, namespace, style })),
            None if selector.is_some() || watch => Err(Failure::Cluster(
                "--selector and --watch need the API server; accepted: --kubeconfig PATH (\"\" for the default one) or \
                 --context NAME"
                    .to_owned(),
            )),
            None => Ok(None),
        }
    }
}

async fn services(options: &Services, out: &mut impl Write) -> Result<(), Failure> {
    let Services { listing, cluster } = options;
    let namespace = listing.namespace.as_deref();
    if let Some(query) = cluster.query(&listing.common, &listing.names, namespace)? {
        report_if_empty(query.show::<Service>(out).await?, namespace);
        return Ok(());
    }
    let mut services = client(&listing.common.socket).services().await?.services;
    services.retain(|s| listing.wants(&s.namespace, &s.name));
    let style = listing.common.output.style();
    let now = jiff::Timestamp::now();
    style.print_list(out, &services, || tables::services(&services, now))?;
    listing.end(services.len(), services.iter().map(|s: &ServiceView| s.name.as_str()))
}

async fn backends(listing: &Listing, out: &mut impl Write) -> Result<(), Failure> {
    listing.common.socket.require_gateway("backends")?;
    let mut rows = client(&listing.common.socket).backends().await?.backends;
    rows.retain(|row| listing.wants(&row.namespace, &row.service));
    listing
        .common
        .output
        .style()
        .print_list(out, &rows, || tables::backends(&rows, jiff::Timestamp::now()))?;
    listing.end(rows.len(), rows.iter().map(|row: &BackendRow| row.service.as_str()))
}

async fn flows(options: Flows, out: &mut impl Write) -> Result<(), Failure> {
    let Flows { service, backend, client: of_client, limit: Limit(limit), count, common } = options;
    common.socket.require_gateway("flows")?;
    let limit = if count { 0 } else { limit };
    let query = FlowsQuery { service, backend, client: of_client, limit, ..FlowsQuery::default() };
    let answer = client(&common.socket).flows(&query).await?;
    let style = common.output.style();
    if limit == 0 {
        style.print(out, &answer, || tables::flow_counts(&answer))?;
        return Ok(());
    }
    style.print(out, &answer, || tables::flows(&answer.flows))?;
    report_if_empty(answer.flows.len(), None);
    if answer.more {
        eprintln!("Showing the first {limit} flows only; use --limit, --count or a filter to see more");
    }
    if answer.silent_workers > 0 {
        eprintln!(
            "Flows of {} workers are missing: the workers did not answer in time",
            answer.silent_workers
        );
    }
    Ok(())
}

impl Listing {
    fn wants(&self, namespace: &str, name: &str) -> bool {
        self.namespace.as_deref().is_none_or(|wanted| wanted == namespace)
            && (self.names.is_empty() || self.names.iter().any(|wanted| wanted == name))
    }

    fn end<'a>(&self, shown: usize, found: impl Iterator<Item = &'a str>) -> Result<(), Failure> {
        found_all("services", &self.names, found)?;
        report_if_empty(shown, self.namespace.as_deref());
        Ok(())
    }
}

/// Fails if any requested name is not in `found`.
fn found_all<'a>(
    what: &str,
    names: &[String],
    found: impl IntoIterator<Item = &'a str>,
) -> Result<(), Failure> {
    let found: Vec<&str> = found.into_iter().collect();
    let missing = names.iter().filter(|name| !found.contains(&name.as_str()));
    let missing: Vec<String> = missing.map(|name| format!("{what} {name:?}")).collect();
    if missing.is_empty() { Ok(()) } else { Err(Failure::NotFound(missing)) }
}

/// Reports an empty list on standard error, like kubectl. An empty list is not an error.
fn report_if_empty(shown: usize, namespace: Option<&str>) {
    match (shown, namespace) {
        (0, Some(namespace)) => eprintln!("No resources found in {namespace} namespace."),
        (0, None) => eprintln!("No resources found"),
        _ => {}
    }
}

fn print_change<T: serde::Serialize>(
    style: Style,
    out: &mut impl Write,
    answer: &T,
    done: &str,
) -> io::Result<()> {
    if style.is_data() { style.print_data(out, answer) } else { writeln!(out, "{done}") }
}
