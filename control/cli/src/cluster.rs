//! Commands that query the API server instead of a gateway: `status`, `services` and `pools`, from any machine with a
//! kubeconfig.
//!
//! They read the objects that the gateways write. The user needs the right to list (and with `--watch`, to watch)
//! gatewaystatuses, services and addresspools. Flows, drops and backends are known only to a gateway and are not
//! available here. [`super::cluster_tables`] defines the columns.

use std::fmt::Debug;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::BodyExt as _;
use jiff::Timestamp;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::client::Body;
use kube::{Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_cluster::crd::AddressPool;
use tidegate_source::kubernetes::{Connector, causes};

use super::failure::Failure;
use super::output::{Style, Table};
use super::query::is_named;

/// The pause before a watch that ended is restarted.
const WATCH_RESTART_PAUSE: Duration = Duration::from_secs(1);
/// The HTTP status when the history of a watch is no longer available.
const GONE: u16 = 410;

/// Which API server is queried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    /// `None` for the default one.
    pub(super) kubeconfig: Option<PathBuf>,
    /// `None` for the current one.
    pub(super) context: Option<String>,
}

/// A query.
#[derive(Debug)]
pub(super) struct Query<'a> {
    pub(super) server: Server,
    /// A label selector.
    pub(super) selector: Option<&'a str>,
    /// Whether changes are printed too.
    pub(super) watch: bool,
    pub(super) names: &'a [String],
    pub(super) namespace: Option<&'a str>,
    pub(super) style: Style,
}

/// A kind that is shown.
pub(super) trait Shown:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + Debug
{
    /// The headers of its table.
    const HEADERS: &'static [&'static str];
    /// The cells of its row.
    fn cells(&self, now: Timestamp) -> Vec<String>;
    /// Whether a gateway has written to it.
    fn is_ours(&self) -> bool {
        true
    }
}

impl Query<'_> {
    fn wants<T: Shown>(&self, object: &T) -> bool {
        object.is_ours()
            && self.namespace.is_none_or(|wanted| object.namespace().as_deref() == Some(wanted))
            && (self.names.is_empty() || self.names.iter().any(|wanted| is_it(wanted, object)))
    }

    /// Prints the objects, and with `--watch` their changes. Returns the number of objects.
    pub(super) async fn show<T: Shown>(mut self, out: &mut impl Write) -> Result<usize, Failure> {
        let Server { kubeconfig, context } = self.server.clone();
        let connection = Connector::with_context(kubeconfig, context).connection().await;
        let connection = connection.map_err(|error| Failure::Cluster(error.to_string()))?;
        let (client, server) = (connection.client, connection.server);
        let refused = |error| refused(&server, error);
        if T::group(&()) == AddressPool::group(&()) {
            warn_of_deleted_definition(&client).await;
        }
        let params = ListParams { label_selector: self.selector.map(str::to_owned), ..ListParams::default() };
        loop {
            let list = Api::<T>::all(client.clone()).list(&params).await.map_err(refused)?;
            let version = list.metadata.resource_version.unwrap_or_default();
            let (mut items, mut table) = (list.items, Table::new(T::HEADERS));
            items.retain(|item| self.wants(item));
            items.iter().for_each(|item| table.row(item.cells(Timestamp::now())));
            self.style.print_list(out, &items, || table.clone())?;
            let is_there = |name: &&String| items.iter().any(|item| is_it(name, item));
            let missing: Vec<&String> = self.names.iter().filter(|name| !is_there(name)).collect();
            if !missing.is_empty() {
                let plural = T::plural(&());
                let missing = missing.into_iter().map(|name| format!("{plural} {name:?}"));
                return Err(Failure::NotFound(missing.collect()));
            }
            if !self.watch {
                return Ok(items.len());
            }
            out.flush()?;
            self.follow::<T>((&client, &server), version, table, out).await?;
            self.style.no_headers = true;
        }
    }

    /// Prints each change after a version, until the API server no longer has the history since then.
    async fn follow<T: Shown>(
        &self,
        (client, server): (&Client, &str),
        mut version: String,
        mut table: Table,
        out: &mut impl Write,
    ) -> Result<(), Failure> {
        let refused = |error| refused(server, error);
        let params =
            WatchParams { label_selector: self.selector.map(str::to_owned), ..WatchParams::default() };
        loop {
            let request = kube::core::Request::new(T::url_path(&(), None)).watch(&params, &version);
            let request =
                request.map_err(|error| Failure::Cluster(format!("{server}: {}", causes(&error))))?;
            let answer = client.send(request.map(Body::from)).await.map_err(refused)?;
            match answer.status() {
                status if status.as_u16() == GONE => return Ok(()),
                status if status.is_success() => {}
                status => {
                    let plural = T::plural(&());
                    return Err(Failure::Cluster(format!("{server}: a watch of {plural} failed: {status}")));
                }
            }
            let (mut body, mut read) = (answer.into_body(), Vec::new());
            while let Some(Ok(frame)) = body.frame().await {
                let Some(data) = frame.data_ref() else { continue };
                read.extend_from_slice(data);
                while let Some(end) = read.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = read.drain(..=end).collect();
                    let event = serde_json::from_slice::<WatchEvent<T>>(&line);
                    match event.map_err(|error| Failure::Cluster(format!("{server}: {error}")))? {
                        WatchEvent::Added(object)
                        | WatchEvent::Modified(object)
                        | WatchEvent::Deleted(object) => {
                            version = object.resource_version().unwrap_or_default();
                            self.print(&object, &mut table, out)?;
                        }
                        WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
                        WatchEvent::Error(status) if status.code == GONE => return Ok(()),
                        WatchEvent::Error(status) => return Err(refused(kube::Error::Api(status))),
                    }
                }
            }
            tokio::time::sleep(WATCH_RESTART_PAUSE).await;
        }
    }

    /// Prints a changed object, below the rows of `table`.
    fn print<T: Shown>(&self, object: &T, table: &mut Table, out: &mut impl Write) -> Result<(), Failure> {
        if !self.wants(object) {
            return Ok(());
        }
        if self.style.is_data() {
            self.style.print_data(out, object)?;
        } else {
            self.style.print_below(out, table, object.cells(Timestamp::now()))?;
        }
        Ok(out.flush()?)
    }
}

/// Whether `wanted` (`NAME` or `NAMESPACE/NAME`) is this object.
fn is_it<T: Resource>(wanted: &str, object: &T) -> bool {
    is_named(wanted, object.namespace().as_deref(), &object.name_any())
}

/// Why the API server refuses a request or does not answer.
fn refused(server: &str, error: kube::Error) -> Failure {
    let why = match error {
        kube::Error::Api(status) => format!("{} {}: {}", status.code, status.reason, status.message),
        other => causes(&other),
    };
    Failure::Cluster(format!("{server}: {why}"))
}

/// Warns on standard error if the definition of AddressPool is being deleted: discovery then lacks its verb `create`.
async fn warn_of_deleted_definition(client: &kube::Client) {
    let version = AddressPool::api_version(&());
    // Without the right to read the definition, there is no warning.
    let Ok(known) = client.list_api_group_resources(&version).await else { return };
    let plural = AddressPool::plural(&());
    let pools = known.resources.iter().find(|resource| resource.name == plural);
    if pools.is_some_and(|pools| !pools.verbs.iter().any(|verb| verb == "create")) {
        eprintln!(
            "Warning: the definition of AddressPool is being deleted: no AddressPool can be created, and existing ones \
             disappear when no Service uses them; see docs/addresses.md for how to restore the definition"
        );
    }
}
