//! The API server of a test: the test API server in this process, or a real one ([`mode`]).
//!
//! Tests use [`Api`]. Calls go to the handle of the test API server. A real server gets requests of its administrator
//! instead ([`objects`]). Gateways reach it through a forwarder ([`forward`]), which breaks connections on request. A
//! real server is started for the test ([`started`]), or belongs to a cluster that is reserved for the test
//! ([`cluster`]). Tests that need functions of the test API server declare them first ([`needs`]).

mod cluster;
mod forward;
mod mode;
pub(crate) mod needs;
mod objects;
mod real;
mod started;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

pub(crate) use forward::Forwarder;
use mode::Mode;
pub(crate) use needs::Needs;
use needs::used;
pub(crate) use objects::{Admin, ObjectPath, Refusal};
use real::Real;
use serde_json::Value;
use started::ControlPlane;
use test_apiserver::{Fault, Faults, Logged, Options, Snapshot, TestApiServer, User};
use tidegate_netlab::{Lab, Namespace};

/// The namespace and the name of the gateways' account.
const ACCOUNT: (&str, &str) = ("tidegate-system", "tidegate");

/// The API server of a test.
#[derive(Debug)]
pub(crate) struct Api(Server);

#[derive(Debug)]
enum Server {
    /// With the token of the gateways' account.
    Test(TestApiServer, String),
    Real(Box<Real>),
}

/// A copy of all objects.
#[derive(Debug)]
pub(crate) enum Backup {
    Test(Snapshot),
    Real(PathBuf),
}

impl Api {
    /// Starts a server that gateways of the lab can reach. The options apply to the test API server; a real server uses
    /// only their listen address.
    pub(crate) fn start(lab: &Lab, options: Options) -> Self {
        let in_process = || {
            let server = lab.gateway().enter(|| TestApiServer::start(options)).expect("a free port");
            let token = server.service_account_token(ACCOUNT.0, ACCOUNT.1);
            Server::Test(server, token)
        };
        let listen = options.listen;
        Self(match Mode::of_this_run() {
            Mode::InProcess => in_process(),
            Mode::Binaries(binaries) => Server::Real(Box::new(Real::started(binaries, lab, listen))),
            Mode::Cluster(kubeconfig) => Server::Real(Box::new(Real::of_cluster(kubeconfig, lab, listen))),
        })
    }

    /// Whether this run has the test API server.
    pub(crate) fn is_in_process() -> bool {
        matches!(Mode::of_this_run(), Mode::InProcess)
    }

    // --- objects ---

    /// Creates or replaces the objects of a YAML text, including their status. Creates missing namespaces. On a real
    /// server, fields of other writers are kept.
    pub(crate) fn apply(&self, yaml: &str) -> Result<Vec<Value>, String> {
        match &self.0 {
            Server::Test(server, _) => server.apply(yaml),
            Server::Real(real) => real.admin().apply(yaml),
        }
    }

    /// Applies objects that a current server refuses.
    pub(crate) fn apply_past_validation(&self, yaml: &str) -> Result<Vec<Value>, String> {
        self.test(Needs::PastValidation).apply(yaml)
    }

    /// Creates many new objects.
    pub(crate) fn load(&self, objects: Vec<Value>) -> Result<(), String> {
        self.test(Needs::Faults).load(objects)
    }

    pub(crate) fn get(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        match &self.0 {
            Server::Test(server, _) => server.get(api_version, kind, namespace, name),
            Server::Real(real) => real.admin().get(api_version, kind, namespace, name),
        }
    }

    /// The objects of a kind. An empty `namespace` selects all namespaces.
    pub(crate) fn list(&self, api_version: &str, kind: &str, namespace: &str) -> Vec<Value> {
        match &self.0 {
            Server::Test(server, _) => server.list(api_version, kind, namespace),
            Server::Real(real) => real.admin().list(api_version, kind, namespace),
        }
    }

    /// Changes a stored object in any way.
    pub(crate) fn edit(
        &self,
        api_version: &str,
        kind: &str,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<Value, String> {
        match &self.0 {
            Server::Test(server, _) => server.edit(api_version, kind, namespace, name, change),
            Server::Real(real) => real.admin().edit((api_version, kind, namespace, name), change),
        }
    }

    /// Deletes an object; finalizers delay the deletion. Returns whether the object existed.
    pub(crate) fn delete(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> bool {
        match &self.0 {
            Server::Test(server, _) => server.delete(api_version, kind, namespace, name),
            Server::Real(real) => real.admin().delete(api_version, kind, namespace, name),
        }
    }

    // --- access ---

    /// The address at which gateways reach it.
    pub(crate) fn address(&self) -> SocketAddr {
        match &self.0 {
            Server::Test(server, _) => server.address(),
            Server::Real(real) => real.address(),
        }
    }

    /// The PEM certificate that clients must trust.
    pub(crate) fn certificate_authority(&self) -> Option<String> {
        used(Needs::NewAuthority);
        match &self.0 {
            Server::Test(server, _) => server.certificate_authority(),
            Server::Real(real) => Some(real.plane().certificate_authority()),
        }
    }

    /// The text of a kubeconfig with a token, for gateways.
    pub(crate) fn kubeconfig_text(&self, token: &str) -> String {
        match &self.0 {
            Server::Test(server, _) => server.kubeconfig_text(token),
            Server::Real(real) => real.kubeconfig_text(Some(token)),
        }
    }

    /// Writes the administrator's `kubeconfig` for use in the gateways' namespace to a directory.
    pub(crate) fn kubeconfig(&self, directory: &Path) -> std::io::Result<PathBuf> {
        let path = directory.join("kubeconfig");
        match &self.0 {
            Server::Test(server, _) => server.kubeconfig(directory),
            Server::Real(real) => std::fs::write(&path, real.kubeconfig_text(None)).map(|()| path),
        }
    }

    /// Writes a `kubeconfig` with a token to a directory.
    pub(crate) fn kubeconfig_for(&self, directory: &Path, token: &str) -> std::io::Result<()> {
        std::fs::write(directory.join("kubeconfig"), self.kubeconfig_text(token))
    }

    // --- tokens of the gateways' account ---

    /// The token of the account. The account must exist, except with the test API server.
    pub(crate) fn token(&self) -> String {
        match &self.0 {
            Server::Test(_, token) => token.clone(),
            Server::Real(real) => real.token(),
        }
    }

    /// Another token of the same account.
    pub(crate) fn other_token(&self, name: &str) -> String {
        match &self.0 {
            Server::Test(server, first) => {
                let token = format!("{first}-{name}");
                server.add_token(&token, User::service_account(ACCOUNT.0, ACCOUNT.1));
                token
            }
            Server::Real(real) => real.other_token(name),
        }
    }

    /// Makes the server refuse [`Api::token`] from now on.
    pub(crate) fn expire_token(&self) {
        match &self.0 {
            Server::Test(server, token) => server.expire_token(token),
            Server::Real(real) => real.expire_token(),
        }
    }

    // --- faults that every server supports ---

    /// Closes all connections and refuses new ones, or listens on the same port again.
    pub(crate) fn refuse_connections(&self, refuse: bool) {
        match &self.0 {
            Server::Test(server, _) => server.refuse_connections(refuse).expect("the port is still free"),
            Server::Real(real) => real.forwarder().refuse(refuse),
        }
    }

    /// Closes all connections and continues with the same objects.
    pub(crate) fn restart(&self) {
        self.refuse_connections(true);
        self.refuse_connections(false);
    }

    /// Ends every watch. The test API server ends them normally, others with the connection.
    pub(crate) fn end_watches(&self) {
        match &self.0 {
            Server::Test(server, _) => server.faults().end_watches(),
            Server::Real(_) => self.restart(),
        }
    }

    /// Stops answering requests and sending watch events, or continues.
    pub(crate) fn hang(&self, hang: bool) {
        match &self.0 {
            Server::Test(server, _) if hang => {
                server.faults().silence_watches(true);
                server.faults().on("", Fault::Hang);
            }
            Server::Test(server, _) => {
                server.faults().clear();
                server.faults().silence_watches(false);
            }
            Server::Real(real) => real.forwarder().pause(hang),
        }
    }

    // --- functions that a test must declare first ---

    /// The switches of the test API server.
    pub(crate) fn faults(&self) -> &Faults {
        self.test(Needs::Faults).faults()
    }

    /// Discards the history.
    pub(crate) fn compact(&self) {
        self.test(Needs::Faults).compact();
    }

    /// Creates a new authority and certificate for new connections. Open connections are closed.
    pub(crate) fn renew_certificate(&self) {
        used(Needs::NewAuthority);
        match &self.0 {
            Server::Test(server, _) => server.renew_certificate().expect("the port is still free"),
            Server::Real(real) => real.stopped(ControlPlane::restart_with_new_authority),
        }
    }

    /// The administrator of a real server, whose requests are those of any client.
    pub(crate) fn admin(&self) -> &Admin {
        used(Needs::RealServer);
        match &self.0 {
            Server::Test(..) => unreachable!("a test of a real server is skipped without one"),
            Server::Real(real) => real.admin(),
        }
    }

    /// Starts the controllers that make Pods of Deployments and EndpointSlices of Pods.
    pub(crate) fn run_workload_controllers(&self) {
        used(Needs::Pods);
        match &self.0 {
            Server::Test(..) => unreachable!("a test of a real server is skipped without one"),
            Server::Real(real) => real.plane().run_workload_controllers(),
        }
    }

    /// Makes a real server reachable from another namespace of the lab, at the address that its gateways use.
    pub(crate) fn reached_from(&self, namespace: &Namespace) -> Forwarder {
        used(Needs::RealServer);
        match &self.0 {
            Server::Test(..) => unreachable!("a test of a real server is skipped without one"),
            Server::Real(real) => real.reached_from(namespace),
        }
    }

    /// Discards the history of a real server and restarts it, so that no watch can be resumed.
    pub(crate) fn restart_without_history(&self) {
        used(Needs::DiscardedHistory);
        match &self.0 {
            Server::Test(..) => unreachable!("a test of a real server is skipped without one"),
            Server::Real(real) => real.stopped(ControlPlane::restart_without_history),
        }
    }

    /// All answered requests since the start or since the last [`Api::forget_requests`].
    pub(crate) fn requests(&self) -> Vec<Logged> {
        used(Needs::Requests);
        match &self.0 {
            Server::Test(server, _) => server.requests(),
            Server::Real(real) => real.plane().requests(),
        }
    }

    /// Clears the record of requests.
    pub(crate) fn forget_requests(&self) {
        used(Needs::Requests);
        match &self.0 {
            Server::Test(server, _) => server.forget_requests(),
            Server::Real(real) => real.plane().forget_requests(),
        }
    }

    /// Restarts as a new cluster. Tokens of a real server become invalid, because their account is gone.
    pub(crate) fn restart_empty(&self) {
        used(Needs::LostObjects);
        match &self.0 {
            Server::Test(server, _) => server.restart_empty().expect("the port is still free"),
            Server::Real(real) => real.stopped(|plane| {
                plane.restart_empty();
                real.forget_token();
            }),
        }
    }

    /// A copy of all objects.
    pub(crate) fn snapshot(&self) -> Backup {
        used(Needs::LostObjects);
        match &self.0 {
            Server::Test(server, _) => Backup::Test(server.snapshot()),
            Server::Real(real) => Backup::Real(real.plane().snapshot()),
        }
    }

    /// Restarts with the objects and versions of an earlier copy.
    pub(crate) fn restart_from(&self, backup: &Backup) {
        used(Needs::LostObjects);
        match (&self.0, backup) {
            (Server::Test(server, _), Backup::Test(copy)) => {
                server.restart_from(copy).expect("the port is free");
            }
            (Server::Real(real), Backup::Real(copy)) => real.stopped(|plane| plane.restart_from(copy)),
            _ => unreachable!("a test has one server"),
        }
    }

    /// Discards the history of the test API server. A real one loses it by a restart.
    pub(crate) fn lose_history(&self) {
        if let Server::Test(server, _) = &self.0 {
            server.compact();
        }
    }

    fn test(&self, need: Needs) -> &TestApiServer {
        used(need);
        match &self.0 {
            Server::Test(server, _) => server,
            Server::Real(_) => unreachable!("a test that needs {need:?} is skipped with a real server"),
        }
    }
}
