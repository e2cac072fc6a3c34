//! The connection to the API server: who it is, who we are, and both again when their files change.
//!
//! A [`Connector`] gives out a client for the kubeconfig as it is now: its files (the kubeconfig itself, certificates,
//! keys, tokens) are looked at before every request, and a client made before a change is not given out again. The
//! token and CA files of a Pod's service account are read anew by the client every minute. Used by the watches here and
//! by whoever writes to the API server. It also knows where the API server is found, for no Service may have that.
//!
//! No request is made here. Nothing here waits without a limit; plug-ins that fetch credentials run on a thread of
//! their own.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::client::ClientBuilder;
use kube::config::{ExecInteractiveMode, Kubeconfig};
use kube::{Client, Config};
use tokio::sync::Mutex;

/// Longest wait for a TCP and TLS connection.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// The API server is looked for again after this long, and for this long at most.
const FIND_AGAIN: Duration = Duration::from_secs(60);
const FIND_MAX: Duration = Duration::from_secs(2);
/// Longest wait for a plug-in that fetches credentials, and for the files.
const CREDENTIALS_MAX: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug)]
pub struct Connector {
    kubeconfig: Option<PathBuf>,
    current: Mutex<Option<Current>>,
    found: std::sync::Mutex<Found>,
}

/// Where the API server was found.
#[derive(Debug, Default)]
struct Found {
    addresses: Arc<BTreeSet<IpAddr>>,
    /// For which host, and when it was looked for.
    host: Option<(Host, Instant)>,
}

/// Host and port of the API server.
type Host = (String, u16);

struct Current {
    client: Client,
    server: String,
    /// Where it is to be looked for; `None` behind a proxy, which looks for itself.
    host: Option<Host>,
    serial: u64,
    files: Vec<(PathBuf, Signature)>,
}

/// A client, and which one it is.
#[derive(Clone)]
pub struct Connection {
    /// To be used with the API server.
    pub client: Client,
    /// Its address, for people.
    pub server: String,
    /// For [`Connector::renew`].
    pub serial: u64,
}

/// Why there is no client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConnectError(String);

impl Connector {
    /// A connector by this kubeconfig, or by the default: `$KUBECONFIG`, else `~/.kube/config` where it exists, else the
    /// service account of the Pod.
    #[must_use]
    pub fn new(kubeconfig: Option<PathBuf>) -> Self {
        Self { kubeconfig, current: Mutex::new(None), found: std::sync::Mutex::default() }
    }

    /// Where the API server was found when a client was given out last: addresses that nobody else may have. Loopback
    /// addresses, which nobody can have, are left out.
    #[must_use]
    pub fn addresses(&self) -> Arc<BTreeSet<IpAddr>> {
        Arc::clone(&self.found().addresses)
    }

    fn found(&self) -> std::sync::MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A client by what the files say now.
    ///
    /// # Errors
    /// When the kubeconfig, or what it names, cannot be read or makes no sense.
    pub async fn connection(&self) -> Result<Connection, ConnectError> {
        let (connection, host) = self.current().await?;
        if let Some(host) = host {
            self.find(host).await;
        }
        Ok(connection)
    }

    /// Looks for the API server as the client does. Where nothing is found, what was found before stays.
    async fn find(&self, host: Host) {
        let now = Instant::now();
        {
            let mut found = self.found();
            let is_new = |(last, at): &(Host, Instant)| *last == host && now.duration_since(*at) < FIND_AGAIN;
            if found.host.as_ref().is_some_and(is_new) {
                return;
            }
            found.host = Some((host.clone(), now));
        }
        let found = tokio::time::timeout(FIND_MAX, tokio::net::lookup_host(host)).await;
        let Ok(Ok(addresses)) = found else { return };
        let addresses: BTreeSet<IpAddr> =
            addresses.map(|address| address.ip().to_canonical()).filter(|ip| !ip.is_loopback()).collect();
        self.found().addresses = Arc::new(addresses);
    }

    async fn current(&self) -> Result<(Connection, Option<Host>), ConnectError> {
        let mut current = self.current.lock().await;
        if let Some(current) = &*current
            && current.files.iter().all(|(path, signature)| *signature == Signature::of(path))
        {
            return Ok((current.connection(), current.host.clone()));
        }
        let serial = current.as_ref().map_or(0, |current| current.serial) + 1;
        let kubeconfig = self.kubeconfig.clone();
        let made = tokio::task::spawn_blocking(move || make(kubeconfig, serial));
        let made = tokio::time::timeout(CREDENTIALS_MAX, made).await;
        let limit = CREDENTIALS_MAX.as_secs();
        let made = made.map_err(|_| ConnectError(format!("no credentials within {limit} s")))?;
        let made = made.map_err(|e| ConnectError(e.to_string()))??;
        let made = current.insert(made);
        Ok((made.connection(), made.host.clone()))
    }

    /// Gives up the client of this serial: its connections are dead, or its credentials are refused.
    pub async fn renew(&self, serial: u64) {
        let mut current = self.current.lock().await;
        if let Some(current) = current.as_mut().filter(|current| current.serial == serial) {
            // An impossible file: the next look finds a change.
            current.files.push((PathBuf::new(), Signature(Some((0, 0, 0, 0, 0)))));
        }
    }
}

impl Current {
    fn connection(&self) -> Connection {
        Connection { client: self.client.clone(), server: self.server.clone(), serial: self.serial }
    }
}

impl std::fmt::Debug for Current {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Current").field("server", &self.server).field("serial", &self.serial).finish()
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("server", &self.server).field("serial", &self.serial).finish()
    }
}

/// What tells that a file changed: device, inode, size, modification. `None` where it cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Signature(Option<(u64, u64, u64, i64, i64)>);

impl Signature {
    fn of(path: &Path) -> Self {
        let metadata = std::fs::metadata(path).ok();
        Self(metadata.map(|m| (m.dev(), m.ino(), m.size(), m.mtime(), m.mtime_nsec())))
    }
}

fn make(kubeconfig: Option<PathBuf>, serial: u64) -> Result<Current, ConnectError> {
    let mut files = Vec::new();
    let mut watch = |path: &Path| files.push((path.to_owned(), Signature::of(path)));
    let mut config = match read(kubeconfig, &mut watch)? {
        Some(read) => of_kubeconfig(read, &mut watch)?,
        None => Config::incluster().map_err(|e| error("neither a kubeconfig nor a service account", &e))?,
    };
    config.connect_timeout = Some(CONNECT_MAX);
    // Whoever asks has limits and retries of his own.
    config.read_timeout = None;
    config.default_retry = false;
    if let Some(exec) = &mut config.auth_info.exec {
        exec.interactive_mode = Some(ExecInteractiveMode::Never);
    }
    let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    let host = config.cluster_url.host().filter(|_| config.proxy_url.is_none());
    let host = host.map(|host| {
        let is_https = config.cluster_url.scheme_str() != Some("http");
        let port = config.cluster_url.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        (host.trim_matches(['[', ']']).to_owned(), port)
    });
    let client = ClientBuilder::try_from(config).map_err(|e| error("no client for the API server", &e))?;
    Ok(Current { client: client.build(), server, host, serial, files })
}

/// The kubeconfig, if there is one.
fn read(named: Option<PathBuf>, watch: &mut impl FnMut(&Path)) -> Result<Option<Kubeconfig>, ConnectError> {
    let of_file = |path: &Path| {
        let read = Kubeconfig::read_from(path);
        read.map(Some).map_err(|e| error(&format!("kubeconfig {}", path.display()), &e))
    };
    if let Some(path) = named {
        watch(&path);
        return of_file(&path);
    }
    if let Some(paths) = std::env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty()) {
        std::env::split_paths(&paths).for_each(|path| watch(&path));
        let read = Kubeconfig::from_env();
        return read.map_err(|e| error("$KUBECONFIG", &e));
    }
    let Some(path) = std::env::home_dir().map(|home| home.join(".kube/config")) else { return Ok(None) };
    watch(&path);
    if path.exists() { of_file(&path) } else { Ok(None) }
}

fn of_kubeconfig(read: Kubeconfig, watch: &mut impl FnMut(&Path)) -> Result<Config, ConnectError> {
    let clusters = read.clusters.iter().filter_map(|c| c.cluster.as_ref());
    let authorities: Vec<_> = clusters.filter_map(|c| c.certificate_authority.clone()).collect();
    let users: Vec<_> = read.auth_infos.iter().filter_map(|u| u.auth_info.as_ref()).collect();
    let own = users.iter().flat_map(|u| [&u.client_certificate, &u.client_key, &u.token_file]).flatten();
    authorities.iter().chain(own).for_each(|path| watch(Path::new(path)));
    Config::try_from(read).map_err(|e| error("kubeconfig", &e))
}

/// An error with all of its causes.
fn error(what: &str, error: &dyn std::error::Error) -> ConnectError {
    ConnectError(format!("{what}: {}", causes(error)))
}

/// An error and its causes, without saying the same twice.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = cause.source();
    }
    text
}
