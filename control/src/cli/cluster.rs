//! Commands that query the API server instead of a gateway: `status`, `services` and `pools`, from any machine with a
//! kubeconfig.
//!
//! They read the objects that the gateways write. The user needs the right to list gatewaystatuses, services and
//! addresspools. Flows, drops and backends are known only to a gateway and are not available here.

use std::io::Write;
use std::path::PathBuf;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition as KubeCondition;
use kube::Resource;
use kube::api::{Api, ListParams};
use tidegate_cluster::crd::{AddressPool, Condition, GatewayStatus};
use tidegate_source::kubernetes::{Connector, causes};

use super::output::{Style, Table, age};

/// Connects with this kubeconfig, or with the default one.
async fn client(kubeconfig: Option<PathBuf>) -> Result<kube::Client, String> {
    let connection = Connector::new(kubeconfig).connection().await;
    connection.map(|connection| connection.client).map_err(|error| error.to_string())
}

async fn list<T>(client: kube::Client) -> Result<Vec<T>, String>
where
    T: Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let list = Api::<T>::all(client).list(&ListParams::default()).await;
    list.map(|list| list.items).map_err(|error| match error {
        kube::Error::Api(status) => format!("{} {}: {}", status.code, status.reason, status.message),
        other => causes(&other),
    })
}

/// Warns on standard error if the definition of AddressPool is being deleted: its discovery lacks the verb `create` then.
async fn warn_of_deleted_definition(client: &kube::Client) {
    let version = AddressPool::api_version(&());
    // Whoever may not read it learns as much as before.
    let Ok(known) = client.list_api_group_resources(&version).await else { return };
    let plural = AddressPool::plural(&());
    let pools = known.resources.iter().find(|resource| resource.name == plural);
    if pools.is_some_and(|pools| !pools.verbs.iter().any(|verb| verb == "create")) {
        eprintln!(
            "Warning: the definition of AddressPool is being deleted: no AddressPool can be created, and those in use are \
             gone when no Service uses them; docs/addresses.md says how to restore the definition"
        );
    }
}

/// `status`: prints all gateways.
pub(super) async fn status(
    kubeconfig: Option<PathBuf>,
    style: Style,
    out: &mut impl Write,
) -> Result<usize, String> {
    let client = client(kubeconfig).await?;
    warn_of_deleted_definition(&client).await;
    let gateways: Vec<GatewayStatus> = list(client).await?;
    let now = Timestamp::now();
    let table = || {
        let headers = [
            "NAME", "READY", "LEADER", "SERVICES", "PENDING", "BACKENDS", "VIPS", "SEEN", "VERSION", "+NODE",
            "+MESSAGE",
        ];
        let mut table = Table::new(&headers);
        for gateway in &gateways {
            let status = gateway.status.clone().unwrap_or_default();
            let seen = status.last_heartbeat.as_deref().and_then(|at| at.parse::<Timestamp>().ok());
            let faults: Vec<String> = status.conditions.iter().filter_map(fault).collect();
            table.row([
                gateway.metadata.name.clone().unwrap_or_default(),
                status_of(&status.conditions, "Ready"),
                if status.leader { "yes" } else { "no" }.to_owned(),
                status.services.to_string(),
                status.services_pending.to_string(),
                format!("{}/{}", status.backends_up, status.backends),
                status.vip_count.to_string(),
                seen.map_or_else(|| "<unknown>".to_owned(), |at| age_of(at, now)),
                status.version,
                status.node,
                faults.join("; "),
            ]);
        }
        table
    };
    style.print_list(out, &gateways, table).map_err(|error| error.to_string())?;
    Ok(gateways.len())
}

fn status_of(conditions: &[Condition], kind: &str) -> String {
    let condition = conditions.iter().find(|condition| condition.kind == kind);
    condition.map_or_else(|| "<unknown>".to_owned(), |condition| condition.status.clone())
}

fn fault(condition: &Condition) -> Option<String> {
    let Condition { kind, status, message, .. } = condition;
    (status != "True").then(|| format!("{kind}: {status} {message}").trim_end().to_owned())
}

/// `services`: prints the Services that a gateway wrote to and that `wants` selects.
pub(super) async fn services(
    kubeconfig: Option<PathBuf>,
    style: Style,
    out: &mut impl Write,
    wants: impl Fn(&str, &str) -> bool,
) -> Result<Vec<String>, String> {
    let mut services: Vec<Service> = list(client(kubeconfig).await?).await?;
    services.retain(|service| {
        let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
        let name = service.metadata.name.as_deref().unwrap_or_default();
        wants(namespace, name) && conditions(service).any(|c| c.type_.starts_with(PREFIX))
    });
    let now = Timestamp::now();
    let table = || {
        let headers =
            ["NAMESPACE", "NAME", "TYPE", "VIP", "PORT(S)", "PROGRAMMED", "HEALTHY", "AGE", "+MESSAGE"];
        let mut table = Table::new(&headers);
        for service in &services {
            let metadata = service.metadata.clone();
            let spec = service.spec.clone().unwrap_or_default();
            let of = |kind: &str| conditions(service).find(|c| c.type_.strip_prefix(PREFIX) == Some(kind));
            let shown = |kind: &str| of(kind).map_or("<unknown>", |c| c.status.as_str()).to_owned();
            let ports = spec.ports.unwrap_or_default();
            let ports: Vec<String> = ports
                .iter()
                .map(|port| format!("{}/{}", port.port, port.protocol.as_deref().unwrap_or("TCP")))
                .collect();
            let faults = ["Allocated", "Programmed", "Healthy"].map(|kind| {
                of(kind).filter(|c| c.status != "True").map(|c| c.message.clone()).filter(|m| !m.is_empty())
            });
            let vips = vips(service);
            table.row([
                metadata.namespace.unwrap_or_default(),
                metadata.name.unwrap_or_default(),
                spec.type_.unwrap_or_default(),
                if vips.is_empty() { "<pending>".to_owned() } else { vips.join(",") },
                ports.join(","),
                shown("Programmed"),
                shown("Healthy"),
                metadata.creation_timestamp.map_or_else(|| "<unknown>".to_owned(), |at| age_of(at.0, now)),
                faults.into_iter().flatten().collect::<Vec<_>>().join("; "),
            ]);
        }
        table
    };
    style.print_list(out, &services, table).map_err(|error| error.to_string())?;
    Ok(services.into_iter().filter_map(|service| service.metadata.name).collect())
}

/// The prefix of our condition types.
const PREFIX: &str = "tidegate.dev/";

fn conditions(service: &Service) -> impl Iterator<Item = &KubeCondition> {
    service.status.iter().flat_map(|status| status.conditions.iter().flatten())
}

/// Returns the load balancer addresses and the external IPs.
fn vips(service: &Service) -> Vec<String> {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = balancer.into_iter().flat_map(|balancer| balancer.ingress.iter().flatten());
    let external = service.spec.iter().flat_map(|spec| spec.external_ips.iter().flatten());
    ingress.filter_map(|ingress| ingress.ip.clone()).chain(external.cloned()).collect()
}

/// `pools`: prints the AddressPools. Only the gateways know the pools of their configurations.
pub(super) async fn pools(
    kubeconfig: Option<PathBuf>,
    style: Style,
    out: &mut impl Write,
) -> Result<usize, String> {
    let client = client(kubeconfig).await?;
    warn_of_deleted_definition(&client).await;
    let pools: Vec<AddressPool> = list(client).await?;
    let table = || {
        let headers = ["NAME", "TOTAL", "USED", "AVAILABLE", "ACCEPTED", "ADDRESSES", "+MESSAGE"];
        let mut table = Table::new(&headers);
        for pool in &pools {
            let status = pool.status.clone().unwrap_or_default();
            let accepted = status.conditions.iter().find(|condition| condition.kind == "Accepted");
            table.row([
                pool.metadata.name.clone().unwrap_or_default(),
                status.total.to_string(),
                status.used.to_string(),
                status.available.to_string(),
                accepted.map_or_else(|| "<unknown>".to_owned(), |condition| condition.status.clone()),
                pool.spec.addresses.join(","),
                accepted.map(|condition| condition.message.clone()).unwrap_or_default(),
            ]);
        }
        table
    };
    style.print_list(out, &pools, table).map_err(|error| error.to_string())?;
    Ok(pools.len())
}

fn age_of(at: Timestamp, now: Timestamp) -> String {
    age(u64::try_from(now.as_second() - at.as_second()).unwrap_or(0))
}
