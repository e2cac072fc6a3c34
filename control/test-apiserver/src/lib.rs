//! A small Kubernetes API server for Tidegate's own tests: in memory, over real HTTP, with switches that inject faults.
//!
//! Clients of Services, EndpointSlices, Nodes, Leases, Events, custom resources and RBAC see the behavior of a real
//! server: versions and watches, pages, selectors, all patch types with field ownership, a separate status, finalizers,
//! terminating namespaces, defaults and validation, discovery. There are no controllers, so nothing creates
//! EndpointSlices or runs Pods. CEL and admission policies are not evaluated, and nothing that only kubectl needs is
//! implemented: `make test-apiserver` runs kubectl with a real server.
//!
//! `server` handles HTTP, `api` reads, `write` changes, and `store` contains the objects. A [`TestApiServer`] is the
//! handle of a test.
//!
//! May depend on: nothing of Tidegate. Only tests and benches use it.
//!
//! ```
//! use test_apiserver::{Options, TestApiServer};
//!
//! let server = TestApiServer::start(Options::default()).expect("a free port on loopback");
//! server.apply("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}").expect("legal");
//! assert!(server.get("v1", "Namespace", "", "shop").is_some());
//! ```

mod access;
mod admission;
mod api;
mod apply;
mod base64;
mod control;
mod discovery;
mod error;
mod event;
mod faults;
mod fields;
mod form;
mod gateway_api;
mod load;
mod patch;
mod request;
mod resource;
mod schema;
mod selector;
mod server;
mod service;
mod shape;
mod shared;
mod store;
mod tls;
mod typed;
mod watch;
mod write;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{mpsc, watch as tokio_watch};

use api::{Api, Features};
use base64::base64;
use server::{Command, Order};
use shared::Shared;
use tls::Tls;

pub use access::User;
pub use faults::{Fault, Faults, Rule};
pub use shared::Logged;

/// The token of the administrator, who may do everything.
pub const ADMIN_TOKEN: &str = "admin-token";

/// The version at which a server starts, as if it had been running for a while. A server that is restarted empty begins
/// at 1.
const FIRST_VERSION: u64 = 10_000;

/// The options of a new server.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The address to listen on. Port 0 selects any free port.
    pub listen: SocketAddr,
    /// Uses HTTPS with its own certificate authority. Without TLS, kubectl sends no token and gets 401; other clients
    /// still send it.
    pub tls: bool,
    /// Supports `sendInitialEvents`. Without it, the server refuses the parameter with 422.
    pub watch_list: bool,
    /// The time between bookmarks. It is about a minute on a real server.
    pub bookmark_interval: Duration,
    /// Includes `ipMode` in the schema of Services. A server before 1.29 refuses every apply that contains it.
    pub ip_mode: bool,
    /// Stores namespaces in a separate etcd whose version counter is far behind the others
    /// (`--etcd-servers-overrides`). The list that finds the namespace `kube-system` then returns such a version.
    pub namespaces_apart: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            tls: true,
            watch_list: true,
            bookmark_interval: Duration::from_secs(60),
            ip_mode: true,
            namespaces_apart: false,
        }
    }
}

/// A copy of all objects, for a restart.
#[derive(Debug, Clone)]
pub struct Snapshot(store::Store);

/// A running server. It stops when the handle is dropped.
#[derive(Debug)]
pub struct TestApiServer {
    shared: Arc<Shared>,
    orders: mpsc::UnboundedSender<Order>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl TestApiServer {
    /// Starts a server with the namespaces of a new cluster and the admin's token.
    ///
    /// # Errors
    /// The server cannot listen on the address.
    pub fn start(options: Options) -> io::Result<Self> {
        let wake = Arc::new(tokio_watch::channel(0).0);
        let Options { watch_list, ip_mode, namespaces_apart, .. } = options;
        let features = Features { watch_list, ip_mode, namespaces_apart };
        let shared = Arc::new(Shared {
            api: Mutex::new(Api::new(features, FIRST_VERSION)),
            tokens: Mutex::new(BTreeMap::from([(ADMIN_TOKEN.to_string(), Some(User::admin()))])),
            certificates: Mutex::default(),
            faults: Faults::new(wake.clone()),
            requests: Mutex::default(),
            tls: Mutex::new(if options.tls { Some(Tls::generate()?) } else { None }),
            wake,
            bookmark_interval: options.bookmark_interval,
        });
        let (orders, receiver) = mpsc::unbounded_channel();
        let thread = {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name("test-apiserver".into())
                .spawn(move || server::run(&shared, options.listen, receiver))?
        };
        let mut server = Self { shared, orders, address: options.listen, thread: Some(thread) };
        server.address = server.order(Command::Listen)?;
        Ok(server)
    }

    /// The address of the server. It never changes.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `https://127.0.0.1:PORT`, or `http` without TLS.
    pub fn url(&self) -> String {
        let scheme = if self.certificate_authority().is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// The PEM certificate that clients must trust. `None` without TLS.
    pub fn certificate_authority(&self) -> Option<String> {
        let tls = self.shared.tls.lock().expect("nothing panics while the certificate is locked");
        tls.as_ref().map(|tls| tls.authority_pem.clone())
    }

    /// Creates a new authority and certificate for new connections. Open connections are closed.
    ///
    /// # Errors
    /// The key cannot be created, or the server cannot listen on the address again.
    pub fn renew_certificate(&self) -> io::Result<()> {
        let tls = Tls::generate()?;
        *self.shared.tls.lock().expect("nothing panics while the certificate is locked") = Some(tls);
        self.restart()
    }

    // --- users and credentials ---

    /// Registers a token.
    pub fn add_token(&self, token: &str, user: User) {
        self.tokens().insert(token.into(), Some(user));
    }

    /// Creates a token for a ServiceAccount. Its rights are those of the stored RBAC objects.
    pub fn service_account_token(&self, namespace: &str, name: &str) -> String {
        let token = format!("token-of-{namespace}-{name}");
        self.add_token(&token, User::service_account(namespace, name));
        token
    }

    /// Expires a token: it gets 401 from now on.
    pub fn expire_token(&self, token: &str) {
        self.tokens().insert(token.into(), None);
    }

    /// Creates a client certificate and key for a user (PEM). `None` without TLS.
    ///
    /// # Errors
    /// The key cannot be created.
    pub fn client_certificate(&self, user: User) -> io::Result<Option<(String, String)>> {
        let tls = self.shared.tls.lock().expect("nothing panics while the certificate is locked").clone();
        let Some(tls) = tls else { return Ok(None) };
        let (der, certificate, key) = tls.client_certificate()?;
        let mut known = self.shared.certificates.lock().expect("nothing panics while they are locked");
        known.insert(der, user);
        Ok(Some((certificate, key)))
    }

    /// The text of a kubeconfig with a token.
    pub fn kubeconfig_text(&self, token: &str) -> String {
        let mut cluster = serde_json::json!({"server": self.url()});
        if let Some(authority) = self.certificate_authority() {
            cluster["certificate-authority-data"] = base64(authority.as_bytes()).into();
        }
        serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "users": [{"name": "test", "user": {"token": token}}],
        })
        .to_string()
    }

    /// Writes the admin's `kubeconfig` into a directory.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn kubeconfig(&self, directory: &Path) -> io::Result<PathBuf> {
        self.kubeconfig_for(directory, ADMIN_TOKEN)
    }

    /// Writes a `kubeconfig` with a token into a directory.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn kubeconfig_for(&self, directory: &Path, token: &str) -> io::Result<PathBuf> {
        let path = directory.join("kubeconfig");
        std::fs::write(&path, self.kubeconfig_text(token))?;
        Ok(path)
    }

    // --- objects, without HTTP ---

    /// Creates or replaces the objects of a YAML text, including their status. Sets defaults, validates and assigns
    /// versions like the server. Creates missing namespaces. Returns the stored objects.
    ///
    /// # Errors
    /// Returns the message of the first refusal. The objects before it are stored.
    pub fn apply(&self, yaml: &str) -> Result<Vec<Value>, String> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).map_err(|error| error.to_string())?;
        let mut stored = Vec::new();
        for document in documents.into_iter().filter(|document| !document.is_null()) {
            stored.extend(self.put(document)?);
        }
        Ok(stored)
    }

    /// Applies one object, or the items of a `List`, like [`TestApiServer::apply`].
    ///
    /// # Errors
    /// See [`TestApiServer::apply`].
    pub fn put(&self, object: Value) -> Result<Vec<Value>, String> {
        let objects = match object {
            Value::Object(mut list) if list.get("kind").is_some_and(|kind| kind == "List") => {
                match list.remove("items") {
                    Some(Value::Array(items)) => items,
                    _ => Vec::new(),
                }
            }
            one => vec![one],
        };
        let mut stored = Vec::new();
        for object in objects {
            let kept = self.shared.api().load(object).map_err(|error| error.message)?;
            self.shared.wake_watches();
            stored.push(Value::clone(&kept));
        }
        Ok(stored)
    }

    /// Creates many new objects under one lock. Tests use it to create 10,000 Services.
    ///
    /// # Errors
    /// See [`TestApiServer::apply`].
    pub fn load(&self, objects: Vec<Value>) -> Result<(), String> {
        let outcome = self.shared.api().load_many(objects).map_err(|error| error.message);
        self.shared.wake_watches();
        outcome
    }

    /// The stored object. `namespace` is empty for cluster-scoped kinds.
    pub fn get(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let api = self.shared.api();
        let resource = api.resource_of(api_version, kind)?;
        let object = api.store.get(&resource.storage, namespace, name)?;
        Some(event::shown_as(resource, &object).into_owned())
    }

    /// The objects of a kind, sorted by namespace and name. An empty `namespace` selects all namespaces.
    pub fn list(&self, api_version: &str, kind: &str, namespace: &str) -> Vec<Value> {
        let api = self.shared.api();
        let Some(resource) = api.resource_of(api_version, kind) else {
            return Vec::new();
        };
        let objects = api.store.list(&resource.storage, namespace);
        objects.iter().map(|object| event::shown_as(resource, object).into_owned()).collect()
    }

    /// Changes a stored object in any way and returns the stored result.
    ///
    /// # Errors
    /// The object does not exist, or the change is not valid.
    pub fn edit(
        &self,
        api_version: &str,
        kind: &str,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<Value, String> {
        let outcome = {
            let mut api = self.shared.api();
            let resource = api.resource_of(api_version, kind).cloned().ok_or("no such kind")?;
            api.edit(&resource, namespace, name, change).map_err(|error| error.message)?
        };
        self.shared.wake_watches();
        Ok(Value::clone(&outcome))
    }

    /// Deletes an object like a client: finalizers delay the deletion. Returns whether the object existed.
    pub fn delete(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> bool {
        let found = {
            let mut api = self.shared.api();
            let Some(resource) = api.resource_of(api_version, kind).cloned() else {
                return false;
            };
            let found = api.store.get(&resource.storage, namespace, name).is_some();
            api.mark_deleted(&resource, namespace, name);
            found
        };
        self.shared.wake_watches();
        found
    }

    /// The version of the latest change.
    pub fn resource_version(&self) -> u64 {
        self.shared.api().store.version()
    }

    // --- recorded requests ---

    /// All answered requests since the start or since the last [`TestApiServer::forget_requests`].
    pub fn requests(&self) -> Vec<Logged> {
        self.shared.requests.lock().expect("nothing panics while the log is locked").clone()
    }

    /// Clears the record of requests.
    pub fn forget_requests(&self) {
        self.shared.requests.lock().expect("nothing panics while the log is locked").clear();
    }

    // --- faults ---

    /// The switches for requests and watches.
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// Discards the history. Watches and pages from earlier versions get 410; open watches that are up to date
    /// continue.
    pub fn compact(&self) {
        self.shared.api().store.compact();
        self.shared.wake_watches();
    }

    /// A copy of all objects.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.shared.api().store.clone())
    }

    /// Closes all connections and refuses new ones, or listens on the same port again.
    ///
    /// # Errors
    /// The server cannot listen on the port again.
    pub fn refuse_connections(&self, refuse: bool) -> io::Result<()> {
        self.order(if refuse { Command::Refuse } else { Command::Listen }).map(|_| ())
    }

    /// Closes all connections and continues with the same objects.
    ///
    /// # Errors
    /// The server cannot listen on the port again.
    pub fn restart(&self) -> io::Result<()> {
        self.refuse_connections(true)?;
        self.refuse_connections(false)
    }

    /// Restarts as a new cluster with no objects; versions start again. Tokens stay valid.
    ///
    /// # Errors
    /// The server cannot listen on the port again.
    pub fn restart_empty(&self) -> io::Result<()> {
        self.refuse_connections(true)?;
        let features = self.shared.api().features;
        *self.shared.api() = Api::new(features, 1);
        self.refuse_connections(false)
    }

    /// Restarts with the objects and versions of an earlier copy.
    ///
    /// # Errors
    /// The server cannot listen on the port again.
    pub fn restart_from(&self, snapshot: &Snapshot) -> io::Result<()> {
        self.refuse_connections(true)?;
        self.shared.api().replace_store(snapshot.0.clone());
        self.refuse_connections(false)
    }

    /// Stops the server and waits for its thread.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // The thread may already have ended, so the result is ignored.
        let _ = self.order(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    fn order(&self, command: Command) -> io::Result<SocketAddr> {
        let (done, outcome) = std::sync::mpsc::channel();
        let gone = || io::Error::other("the server's thread has ended");
        self.orders.send((command, done)).map_err(|_| gone())?;
        outcome.recv().map_err(|_| gone())?
    }

    fn tokens(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Option<User>>> {
        self.shared.tokens.lock().expect("nothing panics while the tokens are locked")
    }
}

impl Drop for TestApiServer {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.end();
        }
    }
}
