//! A real API server, with the connection of the gateways to it and the tokens of their account.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kube::config::Kubeconfig;
use serde_json::{Value, json};
use tidegate_netlab::{Lab, Namespace, wait_for};

use super::ACCOUNT;
use super::cluster::Reservation;
use super::forward::Forwarder;
use super::mode::Binaries;
use super::objects::Admin;
use super::started::ControlPlane;

/// The Secret that limits the validity of the first token.
const FIRST: &str = "stories-first";
/// The maximum time until a server refuses a token after its Secret is deleted. The server caches tokens for ten
/// seconds.
const REFUSED: Duration = Duration::from_secs(60);

/// A real API server. The fields are dropped in the order of their declaration.
#[derive(Debug)]
pub(crate) struct Real {
    forwarder: Forwarder,
    /// `None` for a server that belongs to one test.
    _reservation: Option<Reservation>,
    /// `None` for the server of a cluster.
    plane: Option<ControlPlane>,
    admin: Admin,
    /// The cluster and user of the administrator for access without the forwarder.
    kubeconfig: (Value, Value),
    /// `https` or `http`, and the name in its certificate.
    scheme: String,
    name: String,
    token: Mutex<Option<String>>,
    /// The namespace from which the server is reached; `None` is the namespace of the tests.
    namespace: Option<Namespace>,
}

impl Real {
    /// Starts a separate control plane for the test.
    pub(crate) fn started(binaries: &'static Binaries, lab: &Lab, listen: SocketAddr) -> Self {
        let plane = ControlPlane::start(binaries, lab);
        let kubeconfig = plane.kubeconfig();
        Self::new(&kubeconfig, (None, Some(plane)), lab, listen)
    }

    /// Reserves the cluster of a kubeconfig.
    pub(crate) fn of_cluster(kubeconfig: &Path, lab: &Lab, listen: SocketAddr) -> Self {
        let reservation = Reservation::take(Admin::new(kubeconfig, None));
        let reservation = reservation.unwrap_or_else(|error| panic!("{}: {error}", kubeconfig.display()));
        Self::new(kubeconfig, (Some(reservation), None), lab, listen)
    }

    fn new(
        kubeconfig: &Path,
        (reservation, plane): (Option<Reservation>, Option<ControlPlane>),
        lab: &Lab,
        listen: SocketAddr,
    ) -> Self {
        // A server that belongs to the test runs in the gateways' namespace.
        let namespace = plane.as_ref().map(|_| lab.gateway().clone());
        let admin = Admin::new(kubeconfig, namespace.as_ref());
        let (cluster, user) = current(kubeconfig);
        let server = cluster["server"].as_str().expect("a kubeconfig names its server").to_owned();
        let server: hyper::Uri = server.parse().unwrap_or_else(|error| panic!("{server}: {error}"));
        assert!(
            cluster["proxy-url"].is_null(),
            "proxy-url is not supported; accepted: a server that is reached directly"
        );
        let host = server.host().expect("a server has a host").trim_matches(['[', ']']).to_owned();
        let scheme = server.scheme_str().unwrap_or("https").to_owned();
        let port = server.port_u16().unwrap_or(if scheme == "http" { 80 } else { 443 });
        let forwarder = Forwarder::start(lab.gateway(), listen, (host.clone(), port), admin.runtime());
        let name = cluster["tls-server-name"].as_str().map_or(host, str::to_owned);
        let (kubeconfig, token) = ((cluster, user), Mutex::default());
        Self {
            forwarder,
            _reservation: reservation,
            plane,
            admin,
            kubeconfig,
            scheme,
            name,
            token,
            namespace,
        }
    }

    pub(super) fn admin(&self) -> &Admin {
        &self.admin
    }

    pub(super) fn forwarder(&self) -> &Forwarder {
        &self.forwarder
    }

    /// The control plane that belongs to the test.
    pub(super) fn plane(&self) -> &ControlPlane {
        self.plane.as_ref().expect("a test that needs one is skipped with the server of a cluster")
    }

    /// Changes the control plane while gateways can't reach it.
    pub(super) fn stopped(&self, change: impl FnOnce(&ControlPlane)) {
        self.forwarder.refuse(true);
        change(self.plane());
        self.forwarder.refuse(false);
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.forwarder.address()
    }

    /// Listens at the same address in another namespace.
    pub(super) fn reached_from(&self, namespace: &Namespace) -> Forwarder {
        Forwarder::start(namespace, self.address(), self.forwarder.upstream(), self.admin.runtime())
    }

    /// A kubeconfig through the forwarder, with a token or as the administrator.
    pub(super) fn kubeconfig_text(&self, token: Option<&str>) -> String {
        let (mut cluster, admin) = self.kubeconfig.clone();
        cluster["server"] = format!("{}://{}", self.scheme, self.forwarder.address()).into();
        if self.scheme == "https" {
            cluster["tls-server-name"] = self.name.clone().into();
        }
        kubeconfig(&cluster, &token.map_or(admin, |token| json!({ "token": token }))).to_string()
    }

    /// The first token of the account. It is created on the first call.
    pub(super) fn token(&self) -> String {
        let mut token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        token.get_or_insert_with(|| self.other_token(FIRST)).clone()
    }

    /// Forgets the token, because the account has been created again.
    pub(super) fn forget_token(&self) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// A token that is valid while a Secret exists.
    pub(super) fn other_token(&self, secret: &str) -> String {
        let (namespace, account) = ACCOUNT;
        let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret, "namespace": namespace}});
        self.admin.apply(&object.to_string()).expect("a Secret");
        self.admin.token(namespace, account, Some(secret))
    }

    /// Ends the validity of the first token, and waits until the server refuses it.
    pub(super) fn expire_token(&self) {
        let token = self.token();
        assert!(self.admin.delete("v1", "Secret", ACCOUNT.0, FIRST), "the token was created with it");
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("kubeconfig");
        let text = kubeconfig(&self.kubeconfig.0, &json!({ "token": token })).to_string();
        std::fs::write(&path, text).expect("written");
        let client = Admin::new(&path, self.namespace.as_ref());
        let is_refused = || client.request("GET", "/api", None).is_err_and(|no| no.code == 401).then_some(());
        wait_for("the token to be refused", REFUSED, is_refused).unwrap_or_else(|error| panic!("{error:#}"));
    }
}

fn kubeconfig(cluster: &Value, user: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "stories",
        "clusters": [{"name": "stories", "cluster": cluster}],
        "contexts": [{"name": "stories", "context": {"cluster": "stories", "user": "stories"}}],
        "users": [{"name": "stories", "user": user}],
    })
}

/// The cluster and user of the current context, with absolute paths.
fn current(path: &Path) -> (Value, Value) {
    let read = Kubeconfig::read_from(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let context = read.contexts.iter().find(|context| Some(&context.name) == read.current_context.as_ref());
    let context = context.and_then(|context| context.context.as_ref());
    let context = context.unwrap_or_else(|| panic!("{}: no current context", path.display()));
    let cluster =
        read.clusters.iter().find(|one| one.name == context.cluster).and_then(|one| one.cluster.as_ref());
    let user = context.user.as_ref();
    let user =
        read.auth_infos.iter().find(|one| Some(&one.name) == user).and_then(|one| one.auth_info.as_ref());
    let json = |value: Option<Value>, what: &str| {
        value.unwrap_or_else(|| panic!("{}: the current context has no {what}", path.display()))
    };
    let to_json = |value: Result<Value, serde_json::Error>| value.expect("it was read from as much");
    (
        json(cluster.map(|cluster| to_json(serde_json::to_value(cluster))), "cluster"),
        json(user.map(|user| to_json(serde_json::to_value(user))), "user"),
    )
}
