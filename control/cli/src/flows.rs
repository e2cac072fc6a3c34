//! `flows`: lists, counts, watches and deletes flows.

use std::io::Write;
use std::net::IpAddr;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use tidegate_admin_api::{
    BackendName, Client, FlowOrder, FlowRow, FlowState, FlowsAnswer, FlowsQuery, LIMIT_MAX, Limit,
    ServiceName,
};

use super::args::{Common, WatchArgs};
use super::drain::duration;
use super::failure::Failure;
use super::follow::{Identity, follow};
use super::output::refs;
use super::query::{confirmed_on_terminal, print_change, report_if_empty};
use super::tables;

/// Options of `flows`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Flows {
    #[command(subcommand)]
    change: Option<FlowsChange>,
    #[command(flatten)]
    list: List,
}

/// Changes of flows.
#[derive(Debug, Subcommand)]
enum FlowsChange {
    /// Delete flows: the next packet of each is treated as one of an unknown flow
    #[command(
        after_help = "Examples:\n  tidegate flows delete --client 198.51.100.7\n  tidegate flows delete --service shop/web --idle 1h --yes"
    )]
    Delete(Delete),
}

/// Which flows.
#[derive(Debug, Args)]
struct Filter {
    /// Flows of this Service: NAME, NAMESPACE/NAME or NAMESPACE/gateway/NAME, optionally with :PORT
    #[arg(long, value_name = "SERVICE")]
    service: Option<ServiceName>,
    /// Flows to this backend: ADDRESS:PORT, or ADDRESS for all its ports
    #[arg(long, value_name = "BACKEND")]
    backend: Option<BackendName>,
    /// Flows of this client
    #[arg(long, value_name = "ADDRESS")]
    client: Option<IpAddr>,
    /// Flows from this port of a client
    #[arg(long, value_name = "PORT")]
    client_port: Option<u16>,
    /// Flows in this state: opening, established, closing or closed
    #[arg(long)]
    state: Option<FlowState>,
    /// Flows without a packet for at least this time (30s, 10m, 1h)
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    idle: Option<Duration>,
}

impl Filter {
    fn query(&self, limit: usize) -> FlowsQuery {
        let idle = self.idle.unwrap_or_default().as_secs();
        FlowsQuery {
            service: self.service.clone(),
            backend: self.backend,
            client: self.client,
            client_port: self.client_port,
            state: self.state,
            idle_seconds_min: u32::try_from(idle).unwrap_or(u32::MAX),
            order: FlowOrder::default(),
            limit,
        }
    }
}

/// Options of the list.
#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    filter: Filter,
    /// Order of the flows
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,
    /// Maximum number of flows to show
    #[arg(long, value_name = "N", default_value = "500")]
    limit: Limit,
    /// Show the number of flows of each worker instead of the flows
    #[arg(long, conflicts_with_all = [
        "service", "backend", "client", "client_port", "state", "idle", "sort", "limit", "watch"
    ])]
    count: bool,
    #[command(flatten)]
    watch: WatchArgs,
    #[command(flatten)]
    common: Common,
}

/// The order of flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Sort {
    /// By Service, VIP and client
    #[default]
    Service,
    /// By client
    Client,
    /// The flow with the latest packet first
    Idle,
    /// The flow with the most bytes first; needs the flow log
    Bytes,
}

/// Options of `flows delete`.
#[derive(Debug, Args)]
struct Delete {
    #[command(flatten)]
    filter: Filter,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    common: Common,
}

impl Flows {
    pub(super) async fn run(self, out: &mut impl Write) -> Result<(), Failure> {
        match self.change {
            None => self.list.run(out).await,
            Some(FlowsChange::Delete(delete)) => delete.run(out).await,
        }
    }
}

impl List {
    async fn run(self, out: &mut impl Write) -> Result<(), Failure> {
        let Self { filter, sort, limit: Limit(limit), count, watch, common } = self;
        let limit = if count { 0 } else { limit };
        let (client, style) = (common.socket.gateway("flows")?, common.output.style());
        let order = if sort == Sort::Bytes { FlowOrder::Bytes } else { FlowOrder::Service };
        let query = FlowsQuery { order, ..filter.query(limit) };
        if watch.watch {
            let read = async || Ok(listed(&client, &query, sort).await?.flows);
            let table = |rows: &[&FlowRow]| tables::flows(rows, sort == Sort::Bytes);
            return follow(watch, style, out, read, identity, table).await;
        }
        let answer = listed(&client, &query, sort).await?;
        if limit == 0 {
            style.print(out, &answer, || tables::flow_counts(&answer))?;
            return Ok(());
        }
        let is_counted = answer.flows.iter().any(|flow| flow.bytes.is_some());
        style
            .print(out, &answer, || tables::flows(&refs(&answer.flows), is_counted || sort == Sort::Bytes))?;
        report_if_empty(answer.flows.len(), None);
        if sort == Sort::Bytes && !is_counted && !answer.flows.is_empty() {
            eprintln!(
                "None of these flows is in the flow log, so their bytes are unknown: log them with \
                 flowLog.services or the annotation tidegate.dev/flow-log"
            );
        }
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
}

async fn listed(client: &Client, query: &FlowsQuery, sort: Sort) -> Result<FlowsAnswer, Failure> {
    let mut answer = client.flows(query).await?;
    match sort {
        // The gateway has sorted them.
        Sort::Service | Sort::Bytes => {}
        Sort::Client => answer.flows.sort_by_key(|flow| flow.client),
        Sort::Idle => answer.flows.sort_by_key(|flow| flow.idle_seconds),
    }
    Ok(answer)
}

/// A flow changes if its backend or its state does.
fn identity(flow: &FlowRow) -> Identity {
    let FlowRow { namespace, service, protocol, client, vip, kind, backend, state, source, .. } = flow;
    Identity {
        key: format!("{namespace}/{service} {vip} {protocol} {client} {kind}"),
        compared: format!("{backend:?} {state} {source:?}"),
    }
}

impl Delete {
    async fn run(self, out: &mut impl Write) -> Result<(), Failure> {
        let Self { filter, yes, common } = self;
        let client = common.socket.gateway("flows")?;
        let query = filter.query(LIMIT_MAX);
        if query.is_filter() && !yes {
            let answer = client.flows(&query).await?;
            let count = format!("{}{}", if answer.more { "at least " } else { "" }, answer.flows.len());
            let question = format!("This deletes {count} flows, so their connections may break. Continue?");
            let accepted = "--yes, or `tidegate flows` with the same options to see the flows";
            if !confirmed_on_terminal(&question, accepted)? {
                eprintln!("nothing was changed");
                return Err(Failure::Declined);
            }
        }
        let answer = client.delete_flows(&query).await?;
        print_change(common.output.style(), out, &answer, &format!("{} flows deleted", answer.deleted))?;
        if answer.silent_workers > 0 {
            eprintln!(
                "{} workers did not answer in time and delete their flows later",
                answer.silent_workers
            );
        }
        Ok(())
    }
}
