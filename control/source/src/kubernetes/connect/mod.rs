//! The connection to the API server: its address, our credentials, and a new client when their files change.
//!
//! A [`Connector`] returns a client for the current kubeconfig, or for the service account of the Pod. It checks the
//! files (kubeconfig, certificates, keys, tokens) before every request, and never returns a client that is older than a
//! change, except once if files change again while a client is being created. If the files become invalid, it keeps the
//! last valid client. Credentials of a plugin ([`exec`]) are fetched again when they expire or are refused. [`proxy`]
//! connects through a proxy. [`server_addresses`] tracks the addresses of the API server, which no Service may have.
//! Both the watches and the code that writes to the API server use it.
//!
//! [`Config`] parses the kubeconfig and sets up TLS. The rest is here because a client of kube-client 5.0.0 reads its
//! certificates once and its token file once a minute (`client/auth/mod.rs`), has no keepalives, and hides with which
//! credentials a request was sent, so that a 401 can't discard them.
//!
//! This file sends no request, and nothing here waits without a limit. Files and plugins are read on a separate thread
//! that shutdown doesn't wait for. While there is a valid client, requests wait for a newer one only for
//! [`REPLACE_MAX`]. If the file system doesn't respond when files are checked for changes, they wait only once, for
//! [`file_check::CHECK_MAX`]. The limits exist because Leases must be renewed.

mod exec;
mod file_check;
mod lifetime;
mod proxy;
mod server_addresses;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use hyper::header::{HeaderValue, USER_AGENT};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use jiff::{SignedDuration, Timestamp};
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::config::{AuthInfo, Cluster, ExecConfig, Kubeconfig};
use kube::{Client, Config};
use tokio::sync::{Mutex, Notify, Semaphore, oneshot};
use tokio::time::timeout;
use tower::{BoxError, ServiceBuilder};

use super::error_text::causes;
use exec::Credentials;
use file_check::{FileCheck, Signature};
use lifetime::Lifetime;
use proxy::{Proxy, Tunnel};
use server_addresses::{Found, Host};

/// The maximum wait for a TCP and TLS connection, including a proxy.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// A connection without traffic is probed after this time.
const KEEPALIVE: Duration = Duration::from_secs(6);
/// The interval of further probes of a connection that doesn't respond.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
/// The number of unanswered probes after which a connection is closed: 15 s in total.
const KEEPALIVE_RETRIES: u32 = 3;
/// The maximum wait for a credential plugin and for the files.
const CREDENTIALS_MAX: Duration = Duration::from_secs(30);
/// The maximum wait for a newer client while the last one is valid.
const REPLACE_MAX: Duration = Duration::from_secs(2);
/// Credentials are fetched again this long before they expire.
const EXPIRY_MARGIN: SignedDuration = SignedDuration::from_secs(10);
/// The minimum pause before a failed plugin is run again.
const PLUGIN_PAUSE: Duration = Duration::from_secs(5);
/// The maximum number of threads that read credentials. A thread may hang forever on a file system that doesn't
/// respond.
const READERS_MAX: usize = 16;
/// The location of a Pod's token and certificate authority, as in the client library.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Provides clients for the API server.
pub struct Connector {
    kubeconfig: Option<PathBuf>,
    /// The context to use instead of the current one.
    context: Option<String>,
    state: Mutex<State>,
    found: Found,
    changed: Notify,
    /// Each thread that reads credentials has a permit.
    readers: Arc<Semaphore>,
    /// When the credentials in use expire. It has its own lock, because `state` is locked while files are read.
    expires: std::sync::Mutex<Option<Timestamp>>,
}

#[derive(Default)]
struct State {
    current: Option<Current>,
    /// Whether the current client must not be used: the API server rejected its credentials, or its connections are
    /// dead.
    given_up: bool,
    plugin: Option<Plugin>,
    /// When the credentials were last rejected.
    refused: Option<Instant>,
    /// The last logged reason for continuing with the last valid client.
    logged: Option<ConnectError>,
    /// The client that is being created.
    pending: Option<Pending>,
    file_check: FileCheck,
    /// The credentials whose expiry was reported.
    reported: Option<Lifetime>,
}

/// A client that is being created on a thread.
struct Pending {
    created: oneshot::Receiver<ClientResult>,
    started: Instant,
}

struct Current {
    client: Client,
    server: String,
    /// The host to resolve; `None` behind a proxy, which resolves it.
    host: Option<Host>,
    serial: u64,
    files: Vec<(PathBuf, Signature)>,
    expires: Option<Timestamp>,
    /// When its credentials expire, and from when on that needs attention.
    lifetime: Option<Lifetime>,
}

/// The last result of a plugin.
#[derive(Clone)]
struct Plugin {
    /// The configuration of the plugin.
    exec: serde_json::Value,
    run_at: Instant,
    result: Result<Credentials, ConnectError>,
}

/// A client, and its serial number.
#[derive(Clone)]
pub struct Connection {
    /// A client for the API server.
    pub client: Client,
    /// The address of the API server, for display.
    pub server: String,
    /// The serial number for [`Connector::renew`] and [`Connector::refused`].
    pub serial: u64,
}

/// Why there is no client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConnectError(String);

impl Connector {
    /// A connector for this kubeconfig, or for the default: `$KUBECONFIG`, otherwise `~/.kube/config` if it exists,
    /// otherwise the service account of the Pod.
    #[must_use]
    pub fn new(kubeconfig: Option<PathBuf>) -> Self {
        Self::with_context(kubeconfig, None)
    }

    /// Like [`Self::new`], for this context of the kubeconfig, or for its current context if `None`.
    #[must_use]
    pub fn with_context(kubeconfig: Option<PathBuf>, context: Option<String>) -> Self {
        let (state, found) = (Mutex::default(), Found::default());
        let readers = Arc::new(Semaphore::new(READERS_MAX));
        let expires = std::sync::Mutex::default();
        Self { kubeconfig, context, state, found, changed: Notify::new(), readers, expires }
    }

    /// The addresses of the API server when a client was last returned. No Service may have them. Loopback addresses
    /// are left out, because no Service can have them.
    #[must_use]
    pub fn addresses(&self) -> Arc<BTreeSet<IpAddr>> {
        self.found.addresses()
    }

    /// When the credentials in use expire; `None` if they don't, or if no client was created yet.
    #[must_use]
    pub fn credentials_expire(&self) -> Option<Timestamp> {
        *self.expires.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client for the current contents of the files.
    ///
    /// # Errors
    /// The kubeconfig, or a file that it refers to, can't be read or is invalid, and there is no previous client.
    pub async fn connection(&self) -> Result<Connection, ConnectError> {
        let current = self.current().await;
        self.report_expiry().await;
        let (connection, host) = current?;
        if let Some(host) = host {
            self.found.resolve(host).await;
        }
        Ok(connection)
    }

    /// Records that the credentials expire soon, or no longer do; each once.
    async fn report_expiry(&self) {
        let mut state = self.state.lock().await;
        let Some(current) = &state.current else { return };
        let server = current.server.clone();
        *self.expires.lock().unwrap_or_else(PoisonError::into_inner) =
            current.lifetime.map(|lifetime| lifetime.expires);
        let due = current.lifetime.filter(|lifetime| lifetime.needs_attention(Timestamp::now()));
        if due == state.reported {
            return;
        }
        lifetime::record(due, &server);
        state.reported = due;
    }

    async fn current(&self) -> Result<(Connection, Option<Host>), ConnectError> {
        let mut state = self.state.lock().await;
        let valid = state.current.as_ref().filter(|current| !state.given_up && !current.has_expired());
        let last = valid.map(|current| (current.connection(), current.expires_soon(), current.files.clone()));
        if let Some((connection, false, files)) = &last {
            let files = files.clone();
            let is_old =
                state.file_check.differs(move || files.iter().any(|(path, was)| *was != Signature::of(path)));
            if !is_old.await {
                return Ok(connection.clone());
            }
        }
        let last = last.map(|(connection, ..)| connection);
        let Some((created, plugin)) = self.create_client(&mut state, last.is_some()).await else {
            return last.ok_or_else(late);
        };
        state.plugin = plugin;
        let error = match created {
            Ok(created) => {
                if state.current.as_ref().is_some_and(|before| before.files != created.files) {
                    self.changed.notify_waiters();
                }
                (state.given_up, state.logged) = (false, None);
                return Ok(state.current.insert(created).connection());
            }
            Err(error) => error,
        };
        let Some(connection) = last else { return Err(error) };
        if state.logged.as_ref() != Some(&error) {
            tracing::warn!(%error, "cannot reload the kubeconfig; keeping the previous API connection");
            state.logged = Some(error);
        }
        Ok(connection)
    }

    /// Waits until a client was created from changed files, so that a caller whose credentials were rejected can end
    /// its pause.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Discards the client with this serial number, because its connections are dead.
    pub async fn renew(&self, serial: u64) {
        let mut state = self.state.lock().await;
        if state.current.as_ref().is_some_and(|current| current.serial == serial) {
            state.given_up = true;
        }
    }

    /// Discards the client with this serial number and its credentials, because the API server rejects them (401).
    pub async fn refused(&self, serial: u64) {
        let mut state = self.state.lock().await;
        if state.current.as_ref().is_some_and(|current| current.serial == serial) {
            state.given_up = true;
            // Another client may use the same credentials.
            state.pending = None;
            // A plugin may return the same credentials again, so don't run it for every request.
            if state.refused.is_none_or(|at| at.elapsed() >= PLUGIN_PAUSE) {
                (state.plugin, state.refused) = (None, Some(Instant::now()));
            }
        }
    }

    /// Creates a client from the files, with the result of its plugin. If there is a valid client (`has_valid`), the
    /// wait is short: on a timeout the result is `None`, and a later call gets the new client.
    async fn create_client(&self, state: &mut State, has_valid: bool) -> Option<ClientResult> {
        if state.pending.is_none() {
            let serial = state.current.as_ref().map_or(0, |current| current.serial) + 1;
            match self.start(serial, state.plugin.clone()) {
                Ok(created) => state.pending = Some(Pending { created, started: Instant::now() }),
                Err(error) => return Some((Err(error), state.plugin.clone())),
            }
        }
        let pending = state.pending.as_mut()?;
        let wait = if has_valid { REPLACE_MAX } else { CREDENTIALS_MAX };
        let ended = timeout(wait.saturating_sub(pending.started.elapsed()), &mut pending.created).await;
        // A thread that takes this long may never end.
        let is_late = pending.started.elapsed() >= CREDENTIALS_MAX;
        if ended.is_err() && !is_late {
            return None;
        }
        state.pending = None;
        let unread = |_| (Err(ConnectError("the credentials could not be read".to_owned())), None);
        let created = ended.map(|created| created.unwrap_or_else(unread));
        Some(created.unwrap_or_else(|_| (Err(late()), state.plugin.clone())))
    }

    /// Starts creating a client on a thread.
    fn start(
        &self,
        serial: u64,
        plugin: Option<Plugin>,
    ) -> Result<oneshot::Receiver<ClientResult>, ConnectError> {
        let Ok(permit) = Arc::clone(&self.readers).try_acquire_owned() else {
            let why = format!(
                "{READERS_MAX} threads hang while reading kubeconfigs and credentials; no further thread is started"
            );
            return Err(ConnectError(why));
        };
        let kubeconfig = (self.kubeconfig.clone(), self.context.clone());
        let (done, created) = oneshot::channel();
        let runtime = tokio::runtime::Handle::current();
        let body = move || {
            // Creating the client starts tasks on the runtime.
            let _entered = runtime.enter();
            let mut plugin = plugin;
            let created = build_client(kubeconfig, serial, &mut plugin);
            drop(permit);
            // The caller may no longer be waiting.
            let _ = done.send((created, plugin));
        };
        let thread = std::thread::Builder::new().name("tg-connect".to_owned()).spawn(body);
        thread.map_err(|error| {
            ConnectError(format!("cannot start a thread to read the kubeconfig: {error}"))
        })?;
        Ok(created)
    }
}

fn late() -> ConnectError {
    ConnectError(format!(
        "reading the kubeconfig and the credentials took longer than {} s",
        CREDENTIALS_MAX.as_secs()
    ))
}

/// A client, and the current or cached result of its plugin.
type ClientResult = (Result<Current, ConnectError>, Option<Plugin>);

impl Current {
    fn connection(&self) -> (Connection, Option<Host>) {
        let (client, server) = (self.client.clone(), self.server.clone());
        (Connection { client, server, serial: self.serial }, self.host.clone())
    }

    /// Whether its credentials must be fetched again.
    fn expires_soon(&self) -> bool {
        self.expires.is_some_and(|at| Timestamp::now() + EXPIRY_MARGIN >= at)
    }

    fn has_expired(&self) -> bool {
        self.expires.is_some_and(|at| Timestamp::now() >= at)
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("kubeconfig", &self.kubeconfig).finish_non_exhaustive()
    }
}

/// Creates a client from the contents of the files. `plugin` is the last result of a plugin, and is replaced by a newer
/// one.
fn build_client(
    kubeconfig: (Option<PathBuf>, Option<String>),
    serial: u64,
    plugin: &mut Option<Plugin>,
) -> Result<Current, ConnectError> {
    let mut files = Vec::new();
    let mut watch = |path: &Path| files.push((path.to_owned(), Signature::of(path)));
    let (mut config, proxy) = configured(kubeconfig, &mut watch)?;
    let mut expires = None;
    if let Some(exec) = config.auth_info.exec.take() {
        let last = plugin.take();
        let last = plugin.insert(run_plugin(&exec, last));
        let credentials = last.result.clone()?;
        expires = credentials.expires;
        store_credentials(credentials, &mut config.auth_info);
    }
    let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    let host = server_addresses::host_of(&config.cluster_url).filter(|_| proxy.is_none());
    let lifetime = match expires {
        // A plugin is run again shortly before that.
        Some(at) => Some(Lifetime { kind: lifetime::Kind::OfPlugin, expires: at, attention: at }),
        None => Lifetime::of_user(&config.auth_info),
    };
    let client = client(&config, proxy)?;
    Ok(Current { client, server, host, serial, files, expires, lifetime })
}

/// The configuration from the kubeconfig or the Pod, and the proxy.
fn configured(
    (kubeconfig, context): (Option<PathBuf>, Option<String>),
    watch: &mut impl FnMut(&Path),
) -> Result<(Config, Option<Proxy>), ConnectError> {
    let mut read = read(kubeconfig, watch)?;
    if let Some(context) = context {
        in_context(read.as_mut(), context)?;
    }
    let (mut config, of_cluster) = match read {
        Some(read) => {
            let of_cluster = cluster(&read).and_then(|cluster| cluster.proxy_url.clone());
            (of_kubeconfig(read, watch)?, of_cluster)
        }
        None => {
            ["token", "ca.crt"].iter().for_each(|file| watch(&Path::new(ACCOUNT).join(file)));
            let config = Config::incluster();
            (config.map_err(|e| error("found neither a kubeconfig nor a service account", &e))?, None)
        }
    };
    if let Some(file) = config.auth_info.token_file.take()
        && config.auth_info.token.is_none()
    {
        not_a_fifo(Path::new(&file))?;
        let token = std::fs::read_to_string(&file).map_err(|e| error(&format!("token file {file}"), &e))?;
        // The line feed at the end of the file is not part of the token.
        config.auth_info.token = Some(token.trim().to_owned().into());
    }
    // The certificates were read above, and are read again when the file changes.
    config.root_cert_file = None;
    let environment = |name: &str| std::env::var(name).ok();
    let proxy = Proxy::choose(&config.cluster_url, of_cluster.as_deref(), environment);
    Ok((config, proxy.map_err(ConnectError)?))
}

/// Refuses a FIFO, because reading it may wait forever for a writer. A shell's `<(...)` is accepted: it has a writer.
fn not_a_fifo(path: &Path) -> Result<(), ConnectError> {
    let is_of_shell = path.starts_with("/dev/fd") || path.starts_with("/proc");
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.file_type().is_fifo() && !is_of_shell => {
            Err(ConnectError(format!("{}: it is a FIFO; accepted: a regular file", path.display())))
        }
        // Reading the file will report the error.
        _ => Ok(()),
    }
}

/// The kubeconfig, if there is one.
fn read(named: Option<PathBuf>, watch: &mut impl FnMut(&Path)) -> Result<Option<Kubeconfig>, ConnectError> {
    let of_file = |path: &Path| {
        not_a_fifo(path)?;
        let read = Kubeconfig::read_from(path);
        read.map(Some).map_err(|e| error(&format!("kubeconfig {}", path.display()), &e))
    };
    if let Some(path) = named {
        watch(&path);
        return of_file(&path);
    }
    if let Some(paths) = std::env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty()) {
        std::env::split_paths(&paths).for_each(|path| watch(&path));
        std::env::split_paths(&paths).try_for_each(|path| not_a_fifo(&path))?;
        let read = Kubeconfig::from_env();
        return read.map_err(|e| error("$KUBECONFIG", &e));
    }
    let Some(path) = std::env::home_dir().map(|home| home.join(".kube/config")) else { return Ok(None) };
    watch(&path);
    if path.exists() { of_file(&path) } else { Ok(None) }
}

/// Sets another current context.
fn in_context(read: Option<&mut Kubeconfig>, context: String) -> Result<(), ConnectError> {
    let Some(read) = read else {
        return Err(ConnectError(format!("context {context:?}: there is no kubeconfig")));
    };
    let names: Vec<&str> = read.contexts.iter().map(|one| one.name.as_str()).collect();
    if !names.contains(&context.as_str()) {
        let what = format!("the kubeconfig has no context {context:?}; accepted: {}", names.join(", "));
        return Err(ConnectError(what));
    }
    read.current_context = Some(context);
    Ok(())
}

/// The cluster of the current context.
fn cluster(read: &Kubeconfig) -> Option<&Cluster> {
    let name = read.current_context.as_ref()?;
    let context = read.contexts.iter().find(|context| context.name == *name)?.context.as_ref()?;
    read.clusters.iter().find(|cluster| cluster.name == context.cluster)?.cluster.as_ref()
}

fn of_kubeconfig(read: Kubeconfig, watch: &mut impl FnMut(&Path)) -> Result<Config, ConnectError> {
    let clusters = read.clusters.iter().filter_map(|c| c.cluster.as_ref());
    let authorities: Vec<_> = clusters.filter_map(|c| c.certificate_authority.clone()).collect();
    let users: Vec<_> = read.auth_infos.iter().filter_map(|u| u.auth_info.as_ref()).collect();
    let own = users.iter().flat_map(|u| [&u.client_certificate, &u.client_key, &u.token_file]).flatten();
    for path in authorities.iter().chain(own).map(Path::new) {
        watch(path);
        not_a_fifo(path)?;
    }
    let config = Config::try_from(read).map_err(|e| error("kubeconfig", &e))?;
    if config.accept_invalid_certs && config.root_cert.is_some() {
        let what = "kubeconfig: insecure-skip-tls-verify together with a certificate authority; accepted: one of them";
        return Err(ConnectError(what.to_owned()));
    }
    if let Some(provider) = &config.auth_info.auth_provider {
        let name = &provider.name;
        let what =
            format!("kubeconfig: auth-provider {name} is not supported (Kubernetes has none since 1.26)");
        return Err(ConnectError(format!("{what}; accepted: exec, token, tokenFile, client-certificate")));
    }
    Ok(config)
}

/// The last result of the plugin while it is valid, otherwise a new one.
fn run_plugin(exec: &ExecConfig, last: Option<Plugin>) -> Plugin {
    let key = serde_json::to_value(exec).expect("it was read from as much");
    let is_good = |plugin: &Plugin| match &plugin.result {
        Ok(credentials) => credentials.expires.is_none_or(|at| Timestamp::now() + EXPIRY_MARGIN < at),
        Err(_) => plugin.run_at.elapsed() < PLUGIN_PAUSE,
    };
    if let Some(last) = last.filter(|last| last.exec == key && is_good(last)) {
        return last;
    }
    let result = exec::run(exec, exec::PLUGIN_MAX).map_err(ConnectError);
    Plugin { exec: key, run_at: Instant::now(), result }
}

/// Stores the credentials of a plugin in the corresponding fields of the kubeconfig.
fn store_credentials(credentials: Credentials, user: &mut AuthInfo) {
    let encode = |text: String| base64::engine::general_purpose::STANDARD.encode(text);
    if let Some(token) = credentials.token {
        user.token = Some(token.into());
    }
    if let Some((certificate, key)) = credentials.certificate {
        user.client_certificate_data = Some(encode(certificate));
        user.client_key_data = Some(encode(key).into());
    }
}

/// The client library's stack, but without retries (callers have their own limits and retries), settings from the
/// environment and log lines.
fn client(config: &Config, proxy: Option<Proxy>) -> Result<Client, ConnectError> {
    let failed = |e: kube::Error| error("cannot create a client for the API server", &e);
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    // Keepalives detect a peer that has disappeared, even on an idle connection.
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    let tls = config.rustls_https_connector_with_connector(Tunnel { tcp, proxy }).map_err(failed)?;
    let mut timed = hyper_timeout::TimeoutConnector::new(tls);
    timed.set_connect_timeout(Some(CONNECT_MAX));
    timed.set_write_timeout(config.write_timeout);
    let http: HttpClient<_, Body> = HttpClient::builder(TokioExecutor::new()).build(timed);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(failed)?)
        .layer(config.extra_headers_layer().map_err(failed)?)
        .map_request(set_user_agent)
        .map_err(BoxError::from)
        .service(http);
    Ok(ClientBuilder::new(service, config.default_namespace.clone()).build())
}

/// Sets the user agent, for the audit log of the API server and its priority and fairness.
fn set_user_agent(mut request: hyper::Request<Body>) -> hyper::Request<Body> {
    let agent = HeaderValue::from_static(concat!("tidegate/", env!("CARGO_PKG_VERSION")));
    request.headers_mut().insert(USER_AGENT, agent);
    request
}

/// An error with all of its causes.
fn error(what: &str, error: &dyn std::error::Error) -> ConnectError {
    ConnectError(format!("{what}: {}", causes(error)))
}
