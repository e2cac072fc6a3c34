//! `describe`: everything that a gateway knows about one Service, backend, pool, or about itself.
//!
//! A description is composed of the answers that the lists use. Its text has lines of facts, then tables, each below
//! its title; the data formats print the answers themselves. Findings and the latest events are at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, Write};

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tidegate_admin_api::{
    BackendName, BackendRow, BackendViewState, Client, EventObject, EventObjectKind, EventRow,
    EventsSelection, FindingView, FlowRow, FlowsQuery, LIMIT_MAX, PoolView, ServiceView, ServicesAnswer,
    Status,
};
use tidegate_model::objects::ObjectKey;

use super::args::Common;
use super::failure::Failure;
use super::output::{Format, Style, Table, refs};
use super::query::is_named;
use super::{events, network, status_tables, tables};

/// The maximum number of events of an object that are shown.
const EVENTS_MAX: usize = 20;

/// Options of `describe`.
#[derive(Debug, Args)]
pub struct Describe {
    #[command(subcommand)]
    object: Object,
}

/// What is described.
#[derive(Debug, Subcommand)]
enum Object {
    /// A Service, or a Gateway of the Gateway API: NAME, NAMESPACE/NAME or NAMESPACE/gateway/NAME
    #[command(after_help = "Examples:\n  tidegate describe service shop/web")]
    Service {
        /// NAME, NAMESPACE/NAME or NAMESPACE/gateway/NAME
        name: String,
        #[command(flatten)]
        common: Common,
    },
    /// A backend: ADDRESS:PORT, or ADDRESS for all its ports
    #[command(after_help = "Examples:\n  tidegate describe backend 10.0.0.1:8080")]
    Backend {
        /// ADDRESS:PORT, or ADDRESS for all its ports
        name: BackendName,
        #[command(flatten)]
        common: Common,
    },
    /// An address pool
    #[command(after_help = "Examples:\n  tidegate describe pool public -o yaml")]
    Pool {
        /// Name of the pool
        name: String,
        #[command(flatten)]
        common: Common,
    },
    /// The gateway
    #[command(after_help = "Examples:\n  tidegate describe gateway")]
    Gateway {
        #[command(flatten)]
        common: Common,
    },
}

/// A description while it is built.
#[derive(Default)]
struct Description {
    text: String,
    data: Map<String, Value>,
}

impl Description {
    fn fact(&mut self, key: &str, value: impl AsRef<str>) {
        let value = value.as_ref();
        let value = if value.is_empty() { "<none>" } else { value };
        writeln!(self.text, "{:17}{value}", format!("{key}:")).expect("writing to a String cannot fail");
    }

    /// A text that another command prints.
    fn text(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// A table below its title. An empty one is `<none>`.
    fn table(&mut self, title: &str, table: &Table) {
        let body = table.render(true, true);
        writeln!(self.text, "\n{title}:").expect("writing to a String cannot fail");
        let lines: Vec<&str> = if table.is_empty() { vec!["<none>"] } else { body.lines().collect() };
        for line in lines {
            writeln!(self.text, "  {line}").expect("writing to a String cannot fail");
        }
    }

    fn data(&mut self, key: &str, value: &impl Serialize) -> Result<(), Failure> {
        let value = serde_json::to_value(value).map_err(io::Error::from)?;
        self.data.insert(key.to_owned(), value);
        Ok(())
    }

    fn events(&mut self, latest: &[EventRow]) -> Result<(), Failure> {
        self.table("Events", &events::table(latest));
        self.data("events", &latest)
    }

    fn findings(&mut self, findings: &[FindingView]) -> Result<(), Failure> {
        self.table("Findings", &status_tables::findings(findings));
        self.data("findings", &findings)
    }

    fn print(self, style: Style, out: &mut impl Write) -> Result<(), Failure> {
        match style.format {
            Format::Table | Format::Wide => out.write_all(self.text.as_bytes())?,
            Format::Json | Format::Yaml => style.print_data(out, &Value::Object(self.data))?,
        }
        Ok(())
    }
}

impl Describe {
    pub(super) async fn run(self, out: &mut impl Write) -> Result<(), Failure> {
        let (Object::Service { common, .. }
        | Object::Backend { common, .. }
        | Object::Pool { common, .. }
        | Object::Gateway { common }) = &self.object;
        let (client, style) = (common.socket.gateway("descriptions")?, common.output.style());
        let descriptions = match &self.object {
            Object::Service { name, .. } => services(&client, name).await?,
            Object::Backend { name, .. } => vec![backend(&client, *name).await?],
            Object::Pool { name, .. } => vec![pool(&client, name).await?],
            Object::Gateway { .. } => vec![gateway(&client).await?],
        };
        for (n, description) in descriptions.into_iter().enumerate() {
            if n > 0 && !style.is_data() {
                writeln!(out, "\n")?;
            }
            description.print(style, out)?;
        }
        Ok(())
    }
}

/// The Services and Gateways with this name: several if the namespace is not given.
async fn services(client: &Client, name: &str) -> Result<Vec<Description>, Failure> {
    let answer = client.services().await?;
    let found = answer.services.iter().filter(|one| is_named(name, Some(&one.namespace), &one.name));
    let found: Vec<&ServiceView> = found.collect();
    let unserved = unserved_gateways(name, &answer);
    if found.is_empty() && unserved.is_empty() {
        return Err(Failure::NotFound(vec![format!("services {name:?}")]));
    }
    let (status, backends) = (client.status().await?, client.backends().await?.backends);
    let traffic = client.traffic().await?.services;
    let mut events = Vec::new();
    for one in &found {
        events.push(events_of(client, format!("{}/{}", one.namespace, one.name)).await?);
    }
    let describe = |(service, events): (&&ServiceView, &Vec<EventRow>)| {
        let mut all = Description::default();
        all.fact("Name", &service.name);
        all.fact("Namespace", &service.namespace);
        all.fact("Type", service.service_type.map_or("", |kind| kind.as_str()));
        all.fact("Status", tables::state_of(service));
        all.fact("Age", tables::age_of(service.created.as_deref(), jiff::Timestamp::now()));
        let conditions = [
            ("Pending", &service.pending),
            ("Refused", &service.refused),
            ("Not applied", &service.unapplied),
        ];
        conditions.into_iter().for_each(|(key, why)| why.iter().for_each(|why| all.fact(key, why)));
        service.warnings.iter().for_each(|warning| all.fact("Warning", warning));
        all.table("VIPs", &vips(service, &status));
        all.table("Ports", &ports(service));
        let of_service =
            |namespace: &str, name: &str| (namespace, name) == (&service.namespace, &service.name);
        let own: Vec<&BackendRow> =
            backends.iter().filter(|row| of_service(&row.namespace, &row.service)).collect();
        all.table("Backends", &tables::backends(&own, jiff::Timestamp::now()));
        let mut forwarded = Table::new(&["PORT", "VIP", "PROTOCOL", "PACKETS", "BYTES", "CONNECTIONS"]);
        let counted: Vec<_> = traffic.iter().filter(|one| of_service(&one.namespace, &one.service)).collect();
        for one in &counted {
            let numbers = [one.packets, one.bytes, one.connections].map(|number| number.to_string());
            let names = [one.port_name.clone(), one.vip.to_string(), one.protocol.clone()];
            forwarded.row(names.into_iter().chain(numbers));
        }
        all.table("Forwarded", &forwarded);
        all.data("service", service)?;
        all.data("backends", &own)?;
        all.data("traffic", &counted)?;
        let findings = answer.findings.iter().filter(|finding| finding.is_about(service));
        all.findings(&findings.cloned().collect::<Vec<_>>())?;
        all.events(events)?;
        Ok(all)
    };
    let described: Result<Vec<Description>, Failure> = found.iter().zip(&events).map(describe).collect();
    let mut described = described?;
    for gateway in unserved {
        let mut all = Description::default();
        all.fact("Name", &gateway.name);
        all.fact("Namespace", &gateway.namespace);
        all.fact("Status", "NotServed");
        all.data("gateway", &json!({"namespace": gateway.namespace, "name": gateway.name}))?;
        let findings = answer.findings.iter().filter(|finding| finding.gateway().as_ref() == Some(&gateway));
        all.findings(&findings.cloned().collect::<Vec<_>>())?;
        all.events(&events_of(client, gateway.to_string()).await?)?;
        described.push(all);
    }
    Ok(described)
}

/// The Gateways with this name that have findings and aren't among the Services, such as those that aren't accepted.
fn unserved_gateways(name: &str, answer: &ServicesAnswer) -> BTreeSet<ObjectKey> {
    let is_served = |key: &ObjectKey| {
        answer.services.iter().any(|one| (&one.namespace, &one.name) == (&key.namespace, &key.name))
    };
    let gateways = answer.findings.iter().filter_map(FindingView::gateway);
    gateways.filter(|key| is_named(name, Some(&key.namespace), &key.name) && !is_served(key)).collect()
}

/// The latest events of a Service, `NAMESPACE/NAME`.
async fn events_of(client: &Client, service: String) -> Result<Vec<EventRow>, Failure> {
    latest_events(client, EventsSelection { service: Some(service), ..EventsSelection::default() }).await
}

/// The latest events of a selection.
async fn latest_events(client: &Client, selection: EventsSelection) -> Result<Vec<EventRow>, Failure> {
    Ok(client.events(&EventsSelection { latest: Some(EVENTS_MAX), ..selection }).await?.events)
}

/// The VIPs of a Service, with their pools and with who announces them.
fn vips(service: &ServiceView, status: &Status) -> Table {
    let withheld = |vip| {
        let all = status.announce.iter().flat_map(|announce| &announce.withheld);
        all.into_iter().find(|withheld| withheld.vip == vip).map(|withheld| withheld.reason.as_str())
    };
    let mut table = Table::new(&["ADDRESS", "KIND", "POOL", "ANNOUNCED", "WITHHELD"]);
    for vip in &service.vips {
        table.row([
            vip.address.to_string(),
            vip.kind.as_str().to_owned(),
            vip.pool.clone(),
            if vip.is_of_pool() { tables::announcement(vip) } else { String::new() },
            withheld(vip.address).unwrap_or_default().to_owned(),
        ]);
    }
    table
}

fn ports(service: &ServiceView) -> Table {
    let mut table = Table::new(&["PORT", "NAME", "VIP", "MODE", "BACKENDS", "MESSAGE"]);
    for port in &service.ports {
        let why = port.refused.as_ref().map(ToString::to_string).or_else(|| port.note.clone());
        let fail_open = port.fail_open.then(|| "no backend is healthy: all of them are used".to_owned());
        let rejected = (port.rejected_ppm > 0)
            .then(|| format!("{:.1} % of new flows are rejected", f64::from(port.rejected_ppm) / 10_000.0));
        table.row([
            format!("{}/{}", port.port, port.protocol),
            port.name.clone(),
            port.vip.to_string(),
            port.mode.to_string(),
            format!("{}/{}", port.count(BackendViewState::Active), port.backends.len()),
            [port.route.clone(), why, fail_open, rejected]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join("; "),
        ]);
    }
    table
}

async fn backend(client: &Client, name: BackendName) -> Result<Description, Failure> {
    let mut rows = client.backends().await?.backends;
    rows.retain(|row| {
        row.backend.address == name.address && name.port.is_none_or(|port| port == row.backend.port)
    });
    let Some(first) = rows.first() else {
        return Err(Failure::NotFound(vec![format!("backends \"{name}\"")]));
    };
    let mut all = Description::default();
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    all.fact("Name", name.to_string());
    all.fact("Node", text(&first.backend.node));
    all.fact("Zone", text(&first.backend.zone));
    all.fact("Pod", text(&first.backend.pod));
    let drained = client.status().await?.drained;
    all.fact("Drained", drained.join(", "));
    all.table("Services", &tables::backends(&refs(&rows), jiff::Timestamp::now()));
    let query = FlowsQuery { backend: Some(name), limit: LIMIT_MAX, ..FlowsQuery::default() };
    let answer = client.flows(&query).await?;
    let flows = flows(&answer.flows);
    all.table(if answer.more { "Flows (of the first 50000)" } else { "Flows" }, &flows);
    let ServicesAnswer { mut services, mut findings } = client.services().await?;
    services
        .retain(|one| rows.iter().any(|row| (&row.namespace, &row.service) == (&one.namespace, &one.name)));
    findings.retain(|finding| services.iter().any(|service| finding.is_about(service)));
    all.data("backends", &rows)?;
    all.data("flows", &answer.flows.len())?;
    all.findings(&findings)?;
    // Events are about a backend with its port.
    let ports: BTreeSet<u16> = rows.iter().map(|row| row.backend.port).collect();
    let mut events = Vec::new();
    for port in ports {
        let name = BackendName { port: Some(port), ..name }.to_string();
        let object = Some(EventObject { kind: EventObjectKind::Backend, name });
        events.extend(latest_events(client, EventsSelection { object, ..EventsSelection::default() }).await?);
    }
    events.sort_by_key(|event| event.number);
    all.events(&events[events.len().saturating_sub(EVENTS_MAX)..])?;
    Ok(all)
}

/// The number of flows by Service and state.
fn flows(rows: &[FlowRow]) -> Table {
    let mut counts = BTreeMap::<_, usize>::new();
    for row in rows {
        let service = format!("{}/{}:{}", row.namespace, row.service, row.port_name);
        *counts.entry((service, row.state.clone())).or_default() += 1;
    }
    let mut table = Table::new(&["SERVICE", "STATE", "FLOWS"]);
    counts.into_iter().for_each(|((service, state), count)| table.row([service, state, count.to_string()]));
    table
}

async fn pool(client: &Client, name: &str) -> Result<Description, Failure> {
    let pools = client.pools().await?.pools;
    let Some(pool) = pools.iter().find(|pool| pool.name == name) else {
        return Err(Failure::NotFound(vec![format!("pools {name:?}")]));
    };
    let answer = client.services().await?;
    let mut all = Description::default();
    let PoolView { total, assigned, free, outside, gateways, announce, object, .. } = pool;
    all.fact("Name", name);
    all.fact("Object", object.as_deref().unwrap_or("the configuration"));
    all.fact("Status", tables::pool_state(pool));
    all.fact(
        "Addresses",
        format!("{total}, {assigned} assigned, {free} free, {outside} no longer in the pool"),
    );
    all.fact("Gateways", if gateways.is_empty() { "<all>" } else { gateways });
    all.fact("Announce", announce.join(", "));
    let mut users = Table::new(&["ADDRESS", "SERVICE", "ANNOUNCED"]);
    let mut owned = Vec::new();
    for service in &answer.services {
        for vip in service.vips.iter().filter(|vip| vip.pool == name) {
            let service = format!("{}/{}", service.namespace, service.name);
            owned.push(json!({"address": vip.address, "service": service}));
            users.row([vip.address.to_string(), service, tables::announcement(vip)]);
        }
    }
    all.table("Services", &users);
    all.data("pool", pool)?;
    all.data("services", &owned)?;
    let is_about =
        |finding: &&FindingView| finding.object == name || Some(&finding.object) == object.as_ref();
    all.findings(&answer.findings.iter().filter(is_about).cloned().collect::<Vec<_>>())?;
    Ok(all)
}

async fn gateway(client: &Client) -> Result<Description, Failure> {
    let status = client.status().await?;
    let (neighbors, routes) = (client.neighbors().await?.neighbors, client.routes().await?.routes);
    let pools = client.pools().await?.pools;
    let mut all = Description::default();
    let style = Style { format: Format::Wide, no_headers: false };
    all.text(&status_tables::status(&status, style));
    all.table("Routes", &network::routes_table(&routes));
    all.table("Neighbors", &network::neighbors_table(&neighbors));
    all.table("Pools", &tables::pools(&refs(&pools)));
    all.data("status", &status)?;
    all.data("routes", &routes)?;
    all.data("neighbors", &neighbors)?;
    all.data("pools", &pools)?;
    all.events(&latest_events(client, EventsSelection::default()).await?)?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_that_only_findings_name_is_found() {
        let finding = |object: &str| FindingView {
            object: object.to_owned(),
            reason: "InvalidParameters".to_owned(),
            severity: "error".to_owned(),
            location: None,
            message: "refused".to_owned(),
            accepted: None,
        };
        let findings = [
            "shop/gateway/edge",
            "shop/gateway/edge",
            "test/gateway/edge",
            "shop/edge",
            "shop/tcproute/edge",
        ];
        let answer = ServicesAnswer { services: vec![], findings: findings.map(finding).to_vec() };
        let found =
            |name: &str| unserved_gateways(name, &answer).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(found("shop/gateway/edge"), ["shop/gateway/edge"]);
        assert_eq!(found("gateway/edge"), ["shop/gateway/edge", "test/gateway/edge"]);
        for other in ["edge", "shop/edge", "shop/tcproute/edge", "shop/gateway/web"] {
            assert!(found(other).is_empty(), "{other}");
        }
    }
}
