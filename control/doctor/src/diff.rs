//! `tidegate diff`: what a reload of the running gateway would change, and which flows would break.
//!
//! The gateway computes the difference, because only it has the health, the drains and the addresses in use. The flows
//! are counted here, from its list.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use tidegate_admin_api::{Client, DiffAnswer, FlowRow, FlowsQuery, LIMIT_MAX, PortDiff, ServiceName};
use tidegate_cli::output::{Table, print_answer};
use tidegate_cli::{OutputArgs, REFUSED, SocketArg};

use crate::target::runtime;

/// Options of `diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The changed configuration [default: the file with which the gateway was started]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    socket: SocketArg,
    #[command(flatten)]
    output: OutputArgs,
}

/// What would change, with the flows.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Difference {
    #[serde(flatten)]
    answer: DiffAnswer,
    /// The flows that would break or end, one entry for each port with such flows.
    flows: Vec<BrokenFlows>,
}

/// Flows of a service port that would break or end.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct BrokenFlows {
    /// `NAMESPACE/NAME` of the Service.
    service: String,
    /// The VIP and the port.
    vip: SocketAddr,
    /// `TCP`, `UDP` or `SCTP`.
    protocol: String,
    /// How many there are now.
    flows: usize,
    /// Whether there are more than could be listed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    or_more: bool,
    /// `break`: at the reload; `end`: after the drain timeout.
    effect: &'static str,
}

pub(super) fn run(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    let client = args.socket.client();
    let config = args.config.as_deref().map(std::path::absolute).transpose()?;
    let difference = runtime()?.block_on(async {
        let answer = client.diff(config.as_deref()).await?;
        let flows = broken_flows(&client, &answer.ports).await?;
        Ok::<_, anyhow::Error>(Difference { answer, flows })
    })?;
    print_answer(args.output.style(), &difference)?;
    Ok(if difference.answer.accepted { ExitCode::SUCCESS } else { ExitCode::from(REFUSED) })
}

/// What happens to a flow of a port that differs.
fn effect(port: &PortDiff, flow: &FlowRow) -> Option<&'static str> {
    match (&port.before, &port.after) {
        (Some(_), None) => Some("end"),
        (Some(before), Some(after)) if before != after => Some("break"),
        _ => flow.backend.filter(|backend| port.removed.contains(backend)).map(|_| "end"),
    }
}

async fn broken_flows(client: &Client, ports: &[PortDiff]) -> anyhow::Result<Vec<BrokenFlows>> {
    let mut of_services: BTreeMap<(&str, &str), Vec<&PortDiff>> = BTreeMap::new();
    for port in ports.iter().filter(|port| port.before.is_some()) {
        of_services.entry((&port.namespace, &port.service)).or_default().push(port);
    }
    let mut broken = Vec::new();
    for ((namespace, name), ports) in of_services {
        let service =
            ServiceName { namespace: Some(namespace.to_owned()), name: name.to_owned(), port: None };
        let query = FlowsQuery { service: Some(service), limit: LIMIT_MAX, ..FlowsQuery::default() };
        let answer = client.flows(&query).await?;
        for port in ports {
            let vip = SocketAddr::new(port.vip, port.port);
            let own = answer.flows.iter().filter(|flow| flow.vip == vip && flow.protocol == port.protocol);
            let effects: Vec<&str> = own.filter_map(|flow| effect(port, flow)).collect();
            let Some(effect) = effects.first().copied() else { continue };
            broken.push(BrokenFlows {
                service: format!("{namespace}/{name}"),
                vip,
                protocol: port.protocol.clone(),
                flows: effects.len(),
                or_more: answer.more || answer.silent_workers > 0,
                effect,
            });
        }
    }
    Ok(broken)
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answer, flows } = self;
        answer.report.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        if !answer.restart.is_empty() {
            writeln!(
                f,
                "A reload is refused, because these keys need a restart: {}",
                answer.restart.join(", ")
            )?;
        } else if !answer.accepted {
            return writeln!(f, "A reload is refused, and the gateway keeps its configuration.");
        }
        if !answer.reload.is_empty() {
            writeln!(f, "Changed: {}", answer.reload.join("; "))?;
        }
        answer.pending.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        if answer.ports.is_empty() {
            return writeln!(f, "No Service changes.");
        }
        let mut table = Table::new(&["SERVICE", "VIP", "PORT", "CHANGE", "FLOWS"]);
        for port in &answer.ports {
            let service = format!("{}/{}", port.namespace, port.service);
            let vip = SocketAddr::new(port.vip, port.port);
            let own = flows
                .iter()
                .find(|one| one.service == service && one.vip == vip && one.protocol == port.protocol);
            table.row([
                service,
                port.vip.to_string(),
                format!("{}/{}", port.port, port.protocol),
                change(port),
                own.map(BrokenFlows::show).unwrap_or_else(|| "none".to_owned()),
            ]);
        }
        write!(f, "{table}")
    }
}

/// What changes at a port, in words.
fn change(port: &PortDiff) -> String {
    let mut parts = Vec::new();
    match (&port.before, &port.after) {
        (None, Some(mode)) => return format!("served, {mode}, {} backends", port.added.len()),
        (Some(_), None) => return "no longer served".to_owned(),
        (Some(before), Some(after)) if before != after => parts.push(format!("{before} -> {after}")),
        _ => {}
    }
    for (sign, backends) in [("+", &port.added), ("-", &port.removed)] {
        parts.extend(backends.iter().map(|backend| format!("{sign}{backend}")));
    }
    parts.join(" ")
}

impl BrokenFlows {
    fn show(&self) -> String {
        let at_least = if self.or_more { "at least " } else { "" };
        let effect = if self.effect == "end" { "end after the drain timeout" } else { "break" };
        format!("{at_least}{} {effect}", self.flows)
    }
}
