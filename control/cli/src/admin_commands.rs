//! The commands that use the admin socket of a running daemon. The API server can answer some of them too
//! ([`super::cluster`]).
//!
//! As in kubectl, the exit code is 1 with `Error from gateway ...` if the daemon does not answer, refuses the request,
//! or does not have a named object; an empty list is not an error. Each command has its own file.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use tidegate_admin_api::ClientError;

use super::args::{Common, SocketArg};
use super::failure::Failure;
use super::query::run_query;
use super::{describe, drain, drops, events, flows, lists, network, top, watch};

/// The commands.
#[derive(Debug, Subcommand)]
pub enum AdminCommand {
    /// Show the gateway's status: workers, interfaces, source, refused requests
    #[command(after_help = "Examples:\n  tidegate status -o wide")]
    Status(lists::Named),
    /// List the Services that request an address, with their VIPs and ports
    #[command(
        after_help = "Examples:\n  tidegate services\n  tidegate services shop/web -o wide\n  tidegate services -n shop -w"
    )]
    Services(lists::Services),
    /// List the backends of each service port, with their state and connections
    #[command(after_help = "Examples:\n  tidegate backends shop/web -o wide")]
    Backends(lists::Backends),
    /// List, count, watch or delete flows, by Service, backend, client, state or idle time
    #[command(
        after_help = "Examples:\n  tidegate flows --client 198.51.100.7\n  tidegate flows --service shop/web --state established --sort idle\n  tidegate flows --count"
    )]
    Flows(flows::Flows),
    /// Show the number of packets dropped and punted to the kernel, by reason, and what each reason means
    #[command(after_help = "Examples:\n  tidegate drops -o wide\n  tidegate drops --delta 5s")]
    Drops(drops::Drops),
    /// List the neighbours on the gateway's links, with their link addresses
    #[command(after_help = "Examples:\n  tidegate neighbors --interface uplink")]
    Neighbors(network::OnInterface),
    /// List the routes of the gateway, with the state of their next hops
    #[command(after_help = "Examples:\n  tidegate routes -o wide")]
    Routes(network::OnInterface),
    /// List the interfaces, with their links and counters
    #[command(after_help = "Examples:\n  tidegate links uplink -o wide")]
    Links(network::Links),
    /// Show everything known about a Service, a backend, a pool or the gateway
    #[command(
        after_help = "Examples:\n  tidegate describe service shop/web\n  tidegate describe backend 10.0.0.1:8080\n  tidegate describe pool public\n  tidegate describe gateway"
    )]
    Describe(describe::Describe),
    /// List the address pools and their usage
    #[command(after_help = "Examples:\n  tidegate pools public -o wide")]
    Pools(lists::Named),
    /// Show what happened: backends, Services, VIPs, links, BGP sessions and others that changed state
    #[command(
        after_help = "Examples:\n  tidegate events --service shop/web --since 10m\n  tidegate events -w"
    )]
    Events(events::Events),
    /// Stop new flows to a backend, or to all backends of a node; existing flows continue. With --gateway, take this
    /// gateway out of service and wait until no more packets arrive
    #[command(
        after_help = "Examples:\n  tidegate drain 10.0.0.1:8080\n  tidegate drain node-a --wait --timeout 5m\n  tidegate drain --gateway --timeout 5m"
    )]
    Drain(drain::Drain),
    /// Cancel a drain
    #[command(after_help = "Examples:\n  tidegate undrain 10.0.0.1:8080\n  tidegate undrain --gateway")]
    Undrain(drain::Target),
    /// Show packets as they arrive, with what happens to each
    #[command(
        after_help = "Examples:\n  tidegate trace --host 198.51.100.7 --count 20\n  tidegate trace --service shop/web --verdict drop"
    )]
    Trace(Trace),
    /// Write packets to a pcapng file, each with a comment that says what happened to it
    #[command(
        after_help = "Examples:\n  tidegate capture --host 198.51.100.7 --seconds 10 --write client.pcapng"
    )]
    Capture(Capture),
    /// Show live figures: workers, interfaces, drops and the busiest Services
    #[command(
        after_help = "Examples:\n  tidegate top --sort bytes\n  tidegate top --service shop/web\n  tidegate top --iterations 1 -o json"
    )]
    Top(Top),
    /// For keepalived's vrrp_script: report to the gateway that keepalived is running; exit with 1 if the gateway
    /// cannot forward
    #[command(after_help = "Examples:\n  tidegate vrrp-check --socket /run/tidegate/tidegate.sock")]
    VrrpCheck(SocketOnly),
    /// Print the metrics in the Prometheus text format
    #[command(after_help = "Examples:\n  tidegate metrics")]
    Metrics(SocketOnly),
}

/// Options of commands without output options.
#[derive(Debug, Args)]
pub struct SocketOnly {
    #[command(flatten)]
    socket: SocketArg,
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

/// Options of `top`.
#[derive(Debug, Args)]
pub struct Top {
    #[command(flatten)]
    view: top::View,
    #[command(flatten)]
    common: Common,
}

/// The maximum duration of `vrrp-check`: keepalived starts one each second.
const VRRP_CHECK_MAX: Duration = Duration::from_secs(2);

pub(super) fn run(command: AdminCommand) -> anyhow::Result<ExitCode> {
    run_query(async {
        let out = &mut io::stdout().lock();
        match command {
            AdminCommand::Status(named) => named.status(out).await?,
            AdminCommand::Services(services) => services.run(out).await?,
            AdminCommand::Backends(backends) => backends.run(out).await?,
            AdminCommand::Flows(flows) => flows.run(out).await?,
            AdminCommand::Drops(drops) => drops.run(out).await?,
            AdminCommand::Neighbors(options) => options.neighbors(out).await?,
            AdminCommand::Routes(options) => options.routes(out).await?,
            AdminCommand::Links(links) => links.run(out).await?,
            AdminCommand::Describe(describe) => describe.run(out).await?,
            AdminCommand::Pools(named) => named.pools(out).await?,
            AdminCommand::Events(events) => events.run(out).await?,
            AdminCommand::Drain(drain) => drain.run(out).await?,
            AdminCommand::Undrain(target) => target.undrain(out).await?,
            AdminCommand::Trace(Trace { selection, common }) => {
                let client = common.socket.gateway("packets")?;
                watch::trace(&client, &selection, common.output.style(), out).await?;
            }
            AdminCommand::Capture(Capture { file, selection, socket }) => {
                watch::capture(&socket.gateway("packets")?, &selection, &file).await?;
            }
            AdminCommand::Top(Top { view, common }) => {
                let client = common.socket.gateway("live figures")?;
                top::run(&client, &view, common.output.style(), out).await?;
            }
            AdminCommand::VrrpCheck(SocketOnly { socket }) => vrrp_check(&socket).await?,
            AdminCommand::Metrics(SocketOnly { socket }) => {
                out.write_all(socket.gateway("metrics")?.metrics().await?.as_bytes())?;
            }
        }
        Ok(out.flush()?)
    })
}

async fn vrrp_check(socket: &SocketArg) -> Result<(), Failure> {
    let client = socket.gateway("VRRP groups")?;
    // The time when this process started: the request may wait for a gateway that is paused.
    let began = tidegate_admin_api::boot_time();
    let checked = tokio::time::timeout(VRRP_CHECK_MAX, client.vrrp_check(began)).await;
    checked.map_err(|_| ClientError::Timeout { path: client.path().to_owned() })??;
    Ok(())
}
