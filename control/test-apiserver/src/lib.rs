//! A small Kubernetes API server for Tidegate's own tests: in memory, over real HTTP, with switches for what breaks.
//!
//! It answers like a real one as far as clients of Services, EndpointSlices, Nodes, Leases, Events, custom resources
//! and RBAC see: versions and watches, pages, selectors, all patch types with ownership of fields, status apart,
//! finalizers, terminating namespaces, defaults and validation, discovery, tables for kubectl. There are no
//! controllers: nobody makes EndpointSlices or runs Pods, and CEL is not evaluated (of admission policies only what
//! happens where their parameters are not there).
//!
//! `server` is HTTP, `api` reads, `write` changes, `store` keeps. A [`TestApiServer`] is the handle of a test.
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
mod json_path;
mod load;
mod patch;
mod policy;
mod protobuf;
mod request;
mod resource;
mod schema;
mod selector;
mod server;
mod service;
mod shape;
mod shared;
mod store;
mod table;
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

use api::{Api, Knows};
use base64::base64;
use server::{Command, Order};
use shared::Shared;
use tls::Tls;

pub use access::User;
pub use faults::{Fault, Faults, Rule};
pub use shared::Logged;

/// The token of who may do everything.
pub const ADMIN_TOKEN: &str = "admin-token";

/// The version at which a server starts: it has been there for a while. A server that comes back empty begins at 1.
const FIRST_VERSION: u64 = 10_000;

/// How a server starts.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Where it listens; port 0 is any.
    pub listen: SocketAddr,
    /// HTTPS with an authority of its own. Without, kubectl sends no token and so gets 401; other clients do.
    pub tls: bool,
    /// `sendInitialEvents` is understood; a server without refuses it with 422.
    pub watch_list: bool,
    /// Time between bookmarks; about a minute on a real server.
    pub bookmark_interval: Duration,
    /// `ipMode` is in the schema of Services; a server from before 1.29 refuses every apply that has it.
    pub ip_mode: bool,
    /// Namespaces are kept in an etcd of their own, which counts far behind the others (`--etcd-servers-overrides`): so
    /// says the list by which the namespace `kube-system` is found.
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

/// A copy of all objects, to restart from.
#[derive(Debug, Clone)]
pub struct Snapshot(store::Store);

/// A running server; it stops when this is dropped.
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
    /// The address cannot be listened at.
    pub fn start(options: Options) -> io::Result<Self> {
        let wake = Arc::new(tokio_watch::channel(0).0);
        let Options { watch_list, ip_mode, namespaces_apart, .. } = options;
        let knows = Knows { watch_list, ip_mode, namespaces_apart };
        let shared = Arc::new(Shared {
            api: Mutex::new(Api::new(knows, FIRST_VERSION)),
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

    /// Where it listens; the same for its whole life.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `https://127.0.0.1:PORT`, or `http` without TLS.
    pub fn url(&self) -> String {
        let scheme = if self.certificate_authority().is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// The PEM certificate that clients must trust, with TLS.
    pub fn certificate_authority(&self) -> Option<String> {
        let tls = self.shared.tls.lock().expect("nothing panics while it holds the certificate");
        tls.as_ref().map(|tls| tls.authority_pem.clone())
    }

    /// A new authority and certificate for new connections; open ones are closed.
    ///
    /// # Errors
    /// No key can be made, or the address cannot be listened at again.
    pub fn renew_certificate(&self) -> io::Result<()> {
        let tls = Tls::generate()?;
        *self.shared.tls.lock().expect("nothing panics while it holds the certificate") = Some(tls);
        self.restart()
    }

    // --- who asks ---

    /// Makes a token known.
    pub fn add_token(&self, token: &str, user: User) {
        self.tokens().insert(token.into(), Some(user));
    }

    /// A token for a ServiceAccount; its rights are those of the stored RBAC objects.
    pub fn service_account_token(&self, namespace: &str, name: &str) -> String {
        let token = format!("token-of-{namespace}-{name}");
        self.add_token(&token, User::service_account(namespace, name));
        token
    }

    /// From now on the token gets 401.
    pub fn expire_token(&self, token: &str) {
        self.tokens().insert(token.into(), None);
    }

    /// A client certificate for a user, and its key (PEM); `None` without TLS.
    ///
    /// # Errors
    /// No key can be made.
    pub fn client_certificate(&self, user: User) -> io::Result<Option<(String, String)>> {
        let tls = self.shared.tls.lock().expect("nothing panics while it holds the certificate").clone();
        let Some(tls) = tls else { return Ok(None) };
        let (der, certificate, key) = tls.client_certificate()?;
        let mut known = self.shared.certificates.lock().expect("nothing panics while it holds them");
        known.insert(der, user);
        Ok(Some((certificate, key)))
    }

    /// Text of a kubeconfig with a token.
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

    // --- objects, past HTTP ---

    /// Creates or replaces the objects of a YAML text, status included, as the server would: defaults, validation,
    /// versions. Missing namespaces are made. Gives them as stored.
    ///
    /// # Errors
    /// The message of the first refusal; objects before it are kept.
    pub fn apply(&self, yaml: &str) -> Result<Vec<Value>, String> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).map_err(|error| error.to_string())?;
        let mut stored = Vec::new();
        for document in documents.into_iter().filter(|document| !document.is_null()) {
            stored.extend(self.put(document)?);
        }
        Ok(stored)
    }

    /// The same for one object, or the items of a `List`.
    ///
    /// # Errors
    /// As [`TestApiServer::apply`].
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
            self.shared.poke();
            stored.push(Value::clone(&kept));
        }
        Ok(stored)
    }

    /// Creates many new objects under one lock: for 10,000 Services.
    ///
    /// # Errors
    /// As [`TestApiServer::apply`].
    pub fn load(&self, objects: Vec<Value>) -> Result<(), String> {
        let outcome = self.shared.api().load_many(objects).map_err(|error| error.message);
        self.shared.poke();
        outcome
    }

    /// An object as stored; `namespace` is empty for cluster-scoped kinds.
    pub fn get(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let api = self.shared.api();
        let resource = api.resource_of(api_version, kind)?;
        let object = api.store.get(&resource.storage, namespace, name)?;
        Some(event::shown_as(resource, &object).into_owned())
    }

    /// Objects of a kind in the order of namespace and name; all namespaces when it is empty.
    pub fn list(&self, api_version: &str, kind: &str, namespace: &str) -> Vec<Value> {
        let api = self.shared.api();
        let Some(resource) = api.resource_of(api_version, kind) else {
            return Vec::new();
        };
        let objects = api.store.list(&resource.storage, namespace);
        objects.iter().map(|object| event::shown_as(resource, object).into_owned()).collect()
    }

    /// Changes a stored object in any way and gives it as stored.
    ///
    /// # Errors
    /// There is none, or the change is not valid.
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
        self.shared.poke();
        Ok(Value::clone(&outcome))
    }

    /// Deletes as a client would: finalizers hold it back. Whether there was such an object.
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
        self.shared.poke();
        found
    }

    /// The version of the latest change.
    pub fn resource_version(&self) -> u64 {
        self.shared.api().store.version()
    }

    // --- what was asked ---

    /// Every request since the start or the last [`TestApiServer::forget_requests`], answered ones only.
    pub fn requests(&self) -> Vec<Logged> {
        self.shared.requests.lock().expect("nothing panics while it holds the log").clone()
    }

    /// Empties the log of requests.
    pub fn forget_requests(&self) {
        self.shared.requests.lock().expect("nothing panics while it holds the log").clear();
    }

    // --- what breaks ---

    /// The switches for requests and watches.
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// Forgets history: watches and pages from before get 410, open ones that are up to date go on.
    pub fn compact(&self) {
        self.shared.api().store.compact();
        self.shared.poke();
    }

    /// A copy of all objects.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.shared.api().store.clone())
    }

    /// Closes every connection and refuses new ones, or listens again at the same port.
    ///
    /// # Errors
    /// The port cannot be listened at again.
    pub fn refuse_connections(&self, refuse: bool) -> io::Result<()> {
        self.order(if refuse { Command::Refuse } else { Command::Listen }).map(|_| ())
    }

    /// Closes every connection and goes on with the same objects.
    ///
    /// # Errors
    /// The port cannot be listened at again.
    pub fn restart(&self) -> io::Result<()> {
        self.refuse_connections(true)?;
        self.refuse_connections(false)
    }

    /// Comes back as a new cluster: no objects, versions from the beginning. Tokens stay.
    ///
    /// # Errors
    /// The port cannot be listened at again.
    pub fn restart_empty(&self) -> io::Result<()> {
        self.refuse_connections(true)?;
        let knows = self.shared.api().knows;
        *self.shared.api() = Api::new(knows, 1);
        self.refuse_connections(false)
    }

    /// Comes back with the objects and versions of an older copy.
    ///
    /// # Errors
    /// The port cannot be listened at again.
    pub fn restart_from(&self, snapshot: &Snapshot) -> io::Result<()> {
        self.refuse_connections(true)?;
        self.shared.api().replace_store(snapshot.0.clone());
        self.refuse_connections(false)
    }

    /// Ends the server and waits for its thread.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // The thread may have ended by itself: then there is nobody to tell.
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
        self.shared.tokens.lock().expect("nothing panics while it holds the tokens")
    }
}

impl Drop for TestApiServer {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.end();
        }
    }
}
