//! The lists of `status`, `services`, `backends` and `pools`. The API server can answer some of them too
//! ([`super::cluster`]). [`tables`](super::tables) defines the columns.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};

use clap::Args;
use k8s_openapi::api::core::v1::Service;
use serde::Serialize;
use tidegate_admin_api::{BackendRow, PoolView, ServiceView, Status};
use tidegate_cluster::crd::{AddressPool, GatewayStatus};

use super::args::{ClusterArgs, Common, WatchArgs};
use super::failure::Failure;
use super::follow::{Identity, follow};
use super::output::refs;
use super::query::{found_all, is_named, report_if_empty};
use super::{status_tables, tables};

/// Options of lists of objects without a namespace.
#[derive(Debug, Args)]
pub struct Named {
    /// Names of the objects; all if omitted
    names: Vec<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Which Services are shown.
#[derive(Debug, Args)]
pub(super) struct Selection {
    /// Names of Services, NAME, NAMESPACE/NAME or NAMESPACE/gateway/NAME; all if omitted
    names: Vec<String>,
    /// Show only this namespace
    #[arg(short, long, conflicts_with = "all_namespaces")]
    namespace: Option<String>,
    /// Show all namespaces (the default)
    #[arg(short = 'A', long)]
    all_namespaces: bool,
}

/// Options of `services`.
#[derive(Debug, Args)]
pub struct Services {
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Options of `backends`.
#[derive(Debug, Args)]
pub struct Backends {
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    watch: WatchArgs,
    #[command(flatten)]
    common: Common,
}

impl Named {
    pub(super) async fn status(&self, out: &mut impl Write) -> Result<(), Failure> {
        let Self { names, cluster } = self;
        if let Some(query) = cluster.query(names, None)? {
            report_if_empty(query.show::<GatewayStatus>(out).await?, None);
            return Ok(());
        }
        let (client, style) = (cluster.socket.client(), cluster.output.style());
        if cluster.watch.watch {
            let read = async || {
                let status = client.status().await?;
                let wanted = names.is_empty() || names.contains(&status.name);
                Ok(if wanted { vec![status] } else { Vec::new() })
            };
            return follow(cluster.watch, style, out, read, status_identity, status_tables::lines).await;
        }
        let status = client.status().await?;
        if names.is_empty() || names.contains(&status.name) {
            match style.is_data() {
                true => style.print_data(out, &status)?,
                false => out.write_all(status_tables::status(&status, style).as_bytes())?,
            }
        }
        found_all("gateways", names, |name| name == status.name)
    }

    pub(super) async fn pools(&self, out: &mut impl Write) -> Result<(), Failure> {
        let Self { names, cluster } = self;
        if let Some(query) = cluster.query(names, None)? {
            report_if_empty(query.show::<AddressPool>(out).await?, None);
            return Ok(());
        }
        let (client, style) = (cluster.socket.client(), cluster.output.style());
        let read = async || {
            let mut pools = client.pools().await?.pools;
            pools.retain(|pool| names.is_empty() || names.contains(&pool.name));
            Ok::<_, Failure>(pools)
        };
        if cluster.watch.watch {
            let identify = |pool: &PoolView| Identity { key: pool.name.clone(), compared: data(pool) };
            return follow(cluster.watch, style, out, read, identify, tables::pools).await;
        }
        let pools = read().await?;
        style.print_list(out, &pools, || tables::pools(&refs(&pools)))?;
        found_all("pools", names, |name| pools.iter().any(|pool| pool.name == name))?;
        report_if_empty(pools.len(), None);
        Ok(())
    }
}

impl Services {
    pub(super) async fn run(&self, out: &mut impl Write) -> Result<(), Failure> {
        let Self { selection, cluster } = self;
        let namespace = selection.namespace.as_deref();
        if let Some(query) = cluster.query(&selection.names, namespace)? {
            report_if_empty(query.show::<Service>(out).await?, namespace);
            return Ok(());
        }
        let (client, style) = (cluster.socket.client(), cluster.output.style());
        let read = async || {
            let mut services = client.services().await?.services;
            services.retain(|service| selection.wants(&service.namespace, &service.name));
            Ok::<_, Failure>(services)
        };
        let table = |services: &[&ServiceView]| tables::services(services, jiff::Timestamp::now());
        if cluster.watch.watch {
            let identify = |service: &ServiceView| Identity {
                key: format!("{}/{}", service.namespace, service.name),
                compared: data(service),
            };
            return follow(cluster.watch, style, out, read, identify, table).await;
        }
        let services = read().await?;
        style.print_list(out, &services, || table(&refs(&services)))?;
        selection.end(services.iter().map(|service| (&*service.namespace, &*service.name)))
    }
}

impl Backends {
    pub(super) async fn run(&self, out: &mut impl Write) -> Result<(), Failure> {
        let Self { selection, watch, common } = self;
        let (client, style) = (common.socket.gateway("backends")?, common.output.style());
        let read = async || {
            let mut rows = client.backends().await?.backends;
            rows.retain(|row| selection.wants(&row.namespace, &row.service));
            Ok::<_, Failure>(rows)
        };
        let table = |rows: &[&BackendRow]| tables::backends(rows, jiff::Timestamp::now());
        if watch.watch {
            return follow(*watch, style, out, read, backend_identity, table).await;
        }
        let rows = read().await?;
        style.print_list(out, &rows, || table(&refs(&rows)))?;
        selection.end(rows.iter().map(|row| (&*row.namespace, &*row.service)))
    }
}

/// The value as text, to compare it.
fn data(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("answers have text keys")
}

/// Everything of a gateway's status except counters, loads and times.
fn status_identity(status: &Status) -> Identity {
    let workers: Vec<&str> = status.workers.iter().map(|worker| worker.state.as_str()).collect();
    let links: Vec<&str> = status.interfaces.iter().map(|interface| interface.link.state.as_str()).collect();
    let peers = status.announce.iter().flat_map(|announce| &announce.bgp).flat_map(|bgp| &bgp.peers);
    let peers: Vec<(IpAddr, &str)> = peers.map(|peer| (peer.address, peer.state.as_str())).collect();
    let counts =
        (status.services, status.services_pending, status.backends_active, status.backends, status.healthy);
    let compared = (
        (status.ready, status.pid, &status.degraded, &status.layer2, &status.drained, status.drain.state),
        (counts, workers, links, peers, &status.findings, &status.refused),
        (status.source.connected, &status.source.errors, status.generation_desired),
    );
    Identity { key: status.name.clone(), compared: data(&compared) }
}

/// Everything of a backend except its counters.
fn backend_identity(row: &BackendRow) -> Identity {
    let BackendRow { namespace, service, port_name, vip, service_port, protocol, backend, forwarding, since } =
        row;
    let name = SocketAddr::new(backend.address, backend.port);
    Identity {
        key: format!("{namespace}/{service}:{port_name} {vip} {service_port}/{protocol} {name}"),
        compared: data(&(backend, since, forwarding.set_aside_workers, forwarding.path_mtu)),
    }
}

impl Selection {
    fn wants(&self, namespace: &str, name: &str) -> bool {
        self.namespace.as_deref().is_none_or(|wanted| wanted == namespace)
            && (self.names.is_empty()
                || self.names.iter().any(|wanted| is_named(wanted, Some(namespace), name)))
    }

    /// Reports requested names that are not among the shown Services, and an empty list.
    fn end<'a>(&self, shown: impl Iterator<Item = (&'a str, &'a str)>) -> Result<(), Failure> {
        let shown: Vec<(&str, &str)> = shown.collect();
        found_all("services", &self.names, |wanted| {
            shown.iter().any(|(namespace, name)| is_named(wanted, Some(namespace), name))
        })?;
        report_if_empty(shown.len(), self.namespace.as_deref());
        Ok(())
    }
}
