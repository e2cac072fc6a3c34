//! The API server of a story: the test API server in this process, or a real one ([`mode`]).
//!
//! [`Api`] is what stories use. With the test API server each call goes to its handle. A real server gets requests of its
//! administrator ([`objects`]); gateways reach it through a forwarder ([`forward`]), which breaks connections on demand;
//! it is started for the story ([`started`]) or belongs to a cluster that is claimed for it ([`cluster`]). What only the
//! test API server can do, stories name first ([`needs`]).

mod cluster;
mod forward;
mod mode;
pub(crate) mod needs;
mod objects;
mod real;
mod started;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;
use test_apiserver::{Fault, Faults, Logged, Options, Snapshot, TestApiServer, User};
use tidegate::netlab::Lab;

use mode::Mode;
pub(crate) use needs::Needs;
use needs::used;
use real::Real;

/// The namespace and the name of the gateways' account.
const ACCOUNT: (&str, &str) = ("tidegate-system", "tidegate");

/// See the module.
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
    /// A server that gateways of the lab reach, by the options if it is the test API server, else where these listen.
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

    /// Creates or replaces the objects of a YAML text, status included. Missing namespaces are made. Where the server is a
    /// real one, what others wrote stays.
    pub(crate) fn apply(&self, yaml: &str) -> Result<Vec<Value>, String> {
        match &self.0 {
            Server::Test(server, _) => server.apply(yaml),
            Server::Real(real) => real.admin().apply(yaml),
        }
    }

    /// The same for objects that a server of today refuses.
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

    /// Objects of a kind; all namespaces when it is empty.
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

    /// Deletes; finalizers hold an object back. Whether there was one.
    pub(crate) fn delete(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> bool {
        match &self.0 {
            Server::Test(server, _) => server.delete(api_version, kind, namespace, name),
            Server::Real(real) => real.admin().delete(api_version, kind, namespace, name),
        }
    }

    // --- how it is reached ---

    /// Where gateways reach it.
    pub(crate) fn address(&self) -> SocketAddr {
        match &self.0 {
            Server::Test(server, _) => server.address(),
            Server::Real(real) => real.address(),
        }
    }

    /// The PEM certificate that clients must trust.
    pub(crate) fn certificate_authority(&self) -> Option<String> {
        self.test(Needs::NewAuthority).certificate_authority()
    }

    /// Text of a kubeconfig with a token, for gateways.
    pub(crate) fn kubeconfig_text(&self, token: &str) -> String {
        match &self.0 {
            Server::Test(server, _) => server.kubeconfig_text(token),
            Server::Real(real) => real.kubeconfig_text(Some(token)),
        }
    }

    /// Writes the administrator's `kubeconfig` into a directory, as it holds where the gateways are.
    pub(crate) fn kubeconfig(&self, directory: &Path) -> std::io::Result<PathBuf> {
        let path = directory.join("kubeconfig");
        match &self.0 {
            Server::Test(server, _) => server.kubeconfig(directory),
            Server::Real(real) => std::fs::write(&path, real.kubeconfig_text(None)).map(|()| path),
        }
    }

    /// Writes a `kubeconfig` with a token into a directory.
    pub(crate) fn kubeconfig_for(&self, directory: &Path, token: &str) -> std::io::Result<()> {
        std::fs::write(directory.join("kubeconfig"), self.kubeconfig_text(token))
    }

    // --- tokens of the gateways' account ---

    /// The token of the account. It has to be there, but with the test API server.
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

    /// [`Api::token`] is refused from now on.
    pub(crate) fn expire_token(&self) {
        match &self.0 {
            Server::Test(server, token) => server.expire_token(token),
            Server::Real(real) => real.expire_token(),
        }
    }

    // --- what breaks, with every server ---

    /// Closes every connection and refuses new ones, or listens again at the same port.
    pub(crate) fn refuse_connections(&self, refuse: bool) {
        match &self.0 {
            Server::Test(server, _) => server.refuse_connections(refuse).expect("the port is still free"),
            Server::Real(real) => real.way().refuse(refuse),
        }
    }

    /// Closes every connection and goes on with the same objects.
    pub(crate) fn restart(&self) {
        self.refuse_connections(true);
        self.refuse_connections(false);
    }

    /// Ends every watch: the test API server in good order, others with the connection.
    pub(crate) fn end_watches(&self) {
        match &self.0 {
            Server::Test(server, _) => server.faults().end_watches(),
            Server::Real(_) => self.restart(),
        }
    }

    /// Requests are taken and not answered, watches say nothing; or all goes on.
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
            Server::Real(real) => real.way().hold(hang),
        }
    }

    // --- what a story names first ---

    /// The switches of the test API server.
    pub(crate) fn faults(&self) -> &Faults {
        self.test(Needs::Faults).faults()
    }

    /// Forgets history.
    pub(crate) fn compact(&self) {
        self.test(Needs::Faults).compact();
    }

    /// A new authority and certificate for new connections; open ones are closed.
    pub(crate) fn renew_certificate(&self) {
        self.test(Needs::NewAuthority).renew_certificate().expect("the port is still free");
    }

    /// Every request since the start or the last [`Api::forget_requests`], answered ones only.
    pub(crate) fn requests(&self) -> Vec<Logged> {
        used(Needs::Requests);
        match &self.0 {
            Server::Test(server, _) => server.requests(),
            Server::Real(real) => real.plane().requests(),
        }
    }

    /// Empties the log of requests.
    pub(crate) fn forget_requests(&self) {
        used(Needs::Requests);
        match &self.0 {
            Server::Test(server, _) => server.forget_requests(),
            Server::Real(real) => real.plane().forget_requests(),
        }
    }

    /// Comes back as a new cluster. Tokens of a real one do not hold any more: their account is gone.
    pub(crate) fn restart_empty(&self) {
        used(Needs::LostObjects);
        match &self.0 {
            Server::Test(server, _) => server.restart_empty().expect("the port is still free"),
            Server::Real(real) => {
                real.way().refuse(true);
                real.plane().restart_empty();
                real.forget_token();
                real.way().refuse(false);
            }
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

    /// Comes back with the objects and versions of an older copy.
    pub(crate) fn restart_from(&self, backup: &Backup) {
        used(Needs::LostObjects);
        match (&self.0, backup) {
            (Server::Test(server, _), Backup::Test(copy)) => {
                server.restart_from(copy).expect("the port is free");
            }
            (Server::Real(real), Backup::Real(copy)) => {
                real.way().refuse(true);
                real.plane().restart_from(copy);
                real.way().refuse(false);
            }
            _ => unreachable!("a story has one server"),
        }
    }

    fn test(&self, need: Needs) -> &TestApiServer {
        used(need);
        match &self.0 {
            Server::Test(server, _) => server,
            Server::Real(_) => unreachable!("a story that needs {need:?} is skipped with a real server"),
        }
    }
}
