//! A separate control plane for a test, from binaries: etcd, kube-apiserver and, if available, kube-controller-manager
//! with the controllers that the tests need, in the network namespace of the gateways.
//!
//! Each test has its own: it starts with an empty cluster and may break it, and a failed test leaves nothing to the
//! next one. Starting takes about ten seconds. The processes end with the lab, whatever ends the lab: a failed test, a
//! signal, or the next run after this one was killed.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use test_apiserver::Logged;
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::{Lab, Namespace, wait_for};

use super::mode::Binaries;
use super::objects::Admin;

/// The namespace has no other programs, so the usual ports are free.
const PORT: u16 = 6443;
const ETCD: &str = "http://127.0.0.1:2379";
const ETCD_PEERS: &str = "http://127.0.0.1:2380";
/// The controllers that empty namespaces and check the types of admission policies.
const CONTROLLERS: &str = "namespace,validatingadmissionpolicy-status-controller";
/// The controllers that make Pods of Deployments and EndpointSlices of Pods. Only some tests run them: they would also
/// change the objects of the others.
const WORKLOAD_CONTROLLERS: &str = "deployment-controller,replicaset-controller,endpointslice-controller,\
                                    serviceaccount-controller,garbage-collector-controller";
const ADMIN_TOKEN: &str = "stories-admin";
/// The maximum time of a cold start on a busy machine.
const READY: Duration = Duration::from_secs(180);

/// A running control plane.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    binaries: &'static Binaries,
    namespace: Namespace,
    directory: PathBuf,
    /// In the order of their start.
    processes: Mutex<Vec<LabProcess>>,
    /// The position in the audit log from which requests count.
    counted_from: Mutex<usize>,
}

impl ControlPlane {
    /// Starts a control plane and waits until it is ready.
    pub(crate) fn start(binaries: &'static Binaries, lab: &Lab) -> Self {
        let directory = lab.directory().join("control-plane");
        std::fs::create_dir_all(&directory).expect("a directory of the lab");
        let (processes, counted_from) = (Mutex::default(), Mutex::default());
        let plane = Self { binaries, namespace: lab.gateway().clone(), directory, processes, counted_from };
        plane.write_files();
        plane.launch();
        // Requests of the readiness check don't count, because the server may have refused some.
        plane.forget_requests();
        plane
    }

    /// The kubeconfig of the administrator.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.path("admin.kubeconfig")
    }

    /// Restarts with no objects.
    pub(crate) fn restart_empty(&self) {
        self.end();
        std::fs::remove_dir_all(self.path("etcd")).expect("its data");
        self.launch();
    }

    /// Stops the control plane and copies all objects.
    pub(crate) fn snapshot(&self) -> PathBuf {
        let copy = self.path("etcd-copy");
        self.end();
        copy_directory(&self.path("etcd"), &copy);
        self.launch();
        copy
    }

    /// Restarts with the objects of a copy.
    pub(crate) fn restart_from(&self, copy: &Path) {
        self.end();
        std::fs::remove_dir_all(self.path("etcd")).expect("its data");
        copy_directory(copy, &self.path("etcd"));
        self.launch();
    }

    /// The PEM certificate that clients must trust.
    pub(crate) fn certificate_authority(&self) -> String {
        std::fs::read_to_string(self.path("ca.crt")).expect("it was written")
    }

    /// Restarts with a certificate of another authority.
    pub(crate) fn restart_with_new_authority(&self) {
        self.end();
        self.write_certificates();
        self.launch();
    }

    /// Discards all former versions of objects and restarts. Servers keep a part of the history in memory, so without
    /// the restart a watch could still be resumed.
    pub(crate) fn restart_without_history(&self) {
        let range = self.namespace.enter(|| etcd_request("/v3/kv/range", &json!({"key": "YQ=="})));
        let revision =
            range["header"]["revision"].as_str().expect("the answer names its revision").to_owned();
        let request = json!({"revision": revision, "physical": true});
        let answer = self.namespace.enter(|| etcd_request("/v3/kv/compaction", &request));
        assert!(answer["header"].is_object(), "compacted: {answer}");
        self.end();
        self.launch();
    }

    /// The requests in the audit log: answered requests, and started watches.
    pub(crate) fn requests(&self) -> Vec<Logged> {
        let text = std::fs::read_to_string(self.path("audit.log")).unwrap_or_default();
        let from = *self.counted_from.lock().unwrap_or_else(PoisonError::into_inner);
        text.get(from..).unwrap_or_default().lines().filter_map(logged).collect()
    }

    /// Counts requests from now on.
    pub(crate) fn forget_requests(&self) {
        let size = std::fs::metadata(self.path("audit.log")).map_or(0, |file| file.len());
        let size = usize::try_from(size).expect("a log that fits");
        *self.counted_from.lock().unwrap_or_else(PoisonError::into_inner) = size;
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("written");
    }

    /// Writes the certificate of a new authority, and a certificate and key of the server.
    fn write_certificates(&self) {
        let authority_key = KeyPair::generate().expect("a key");
        let mut authority = CertificateParams::new(Vec::new()).expect("no names");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_pem = authority.self_signed(&authority_key).expect("signed").pem();
        let issuer = Issuer::new(authority, authority_key);
        let key = KeyPair::generate().expect("a key");
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let certificate =
            CertificateParams::new(names).expect("names").signed_by(&key, &issuer).expect("signed");
        self.write("ca.crt", &authority_pem);
        self.write("server.crt", &certificate.pem());
        self.write("server.key", &key.serialize_pem());
    }

    /// Writes certificates, keys, the administrator's token, and the audit policy.
    fn write_files(&self) {
        self.write_certificates();
        let accounts = KeyPair::generate().expect("a key");
        self.write("accounts.key", &accounts.serialize_pem());
        self.write("accounts.pub", &accounts.public_key_pem());
        self.write("tokens.csv", &format!("{ADMIN_TOKEN},stories-admin,1,\"system:masters\"\n"));
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata"}],
        });
        self.write("audit-policy.yaml", &policy.to_string());
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "stories",
            "clusters": [{"name": "stories", "cluster": {
                "server": format!("https://127.0.0.1:{PORT}"), "certificate-authority": self.path("ca.crt"),
            }}],
            "contexts": [{"name": "stories", "context": {"cluster": "stories", "user": "admin"}}],
            "users": [{"name": "admin", "user": {"token": ADMIN_TOKEN}}],
        });
        self.write("admin.kubeconfig", &kubeconfig.to_string());
    }

    fn launch(&self) {
        let file = |name: &str| self.path(name).display().to_string();
        self.run(
            "etcd",
            &self.binaries.etcd,
            &[
                format!("--data-dir={}", file("etcd")),
                format!("--listen-client-urls={ETCD}"),
                format!("--advertise-client-urls={ETCD}"),
                format!("--listen-peer-urls={ETCD_PEERS}"),
                format!("--initial-advertise-peer-urls={ETCD_PEERS}"),
                format!("--initial-cluster=default={ETCD_PEERS}"),
            ],
        );
        self.run(
            "kube-apiserver",
            &self.binaries.apiserver,
            &[
                format!("--etcd-servers={ETCD}"),
                format!("--secure-port={PORT}"),
                "--bind-address=127.0.0.1".into(),
                // There is no interface from which to derive it, and nothing finds the server through the Service
                // `kubernetes`.
                "--advertise-address=192.0.2.250".into(),
                "--endpoint-reconciler-type=none".into(),
                format!("--tls-cert-file={}", file("server.crt")),
                format!("--tls-private-key-file={}", file("server.key")),
                format!("--token-auth-file={}", file("tokens.csv")),
                "--authorization-mode=RBAC".into(),
                "--service-account-issuer=https://kubernetes.default.svc".into(),
                format!("--service-account-key-file={}", file("accounts.pub")),
                format!("--service-account-signing-key-file={}", file("accounts.key")),
                "--service-cluster-ip-range=10.96.0.0/16".into(),
                "--allow-privileged=true".into(),
                format!("--audit-policy-file={}", file("audit-policy.yaml")),
                format!("--audit-log-path={}", file("audit.log")),
            ],
        );
        self.await_readiness();
        if self.binaries.controller_manager.is_some() {
            self.run_controllers("kube-controller-manager", CONTROLLERS);
        }
    }

    /// Starts the controllers of Deployments, Pods and EndpointSlices, until the control plane ends or is restarted.
    pub(crate) fn run_workload_controllers(&self) {
        self.run_controllers("kube-controller-manager-of-workloads", WORKLOAD_CONTROLLERS);
    }

    fn run_controllers(&self, name: &str, controllers: &str) {
        let program = self.binaries.controller_manager.as_deref();
        self.run(
            name,
            program.expect("a test without kube-controller-manager is skipped"),
            &[
                format!("--kubeconfig={}", self.path("admin.kubeconfig").display()),
                format!("--controllers={controllers}"),
                "--leader-elect=false".into(),
                // Its metrics are not read.
                "--secure-port=0".into(),
            ],
        );
    }

    fn run(&self, name: &str, program: &Path, arguments: &[String]) {
        let process = LabProcess::start(&self.namespace, &self.directory, name, program, arguments);
        let process = process.unwrap_or_else(|error| panic!("{error:#}"));
        self.processes.lock().unwrap_or_else(PoisonError::into_inner).push(process);
    }

    fn await_readiness(&self) {
        let admin = Admin::new(&self.kubeconfig(), Some(&self.namespace));
        let ready = wait_for("the API server to be ready", READY, || {
            let mut processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
            if processes.iter_mut().any(|process| !process.runs()) {
                return Some(false);
            }
            drop(processes);
            // The answer of /readyz is not JSON. The server is ready when the objects that it creates itself exist.
            let is_there = |path: &str| admin.request("GET", path, None).is_ok();
            let all = ["kube-system", "default"].map(|name| is_there(&format!("/api/v1/namespaces/{name}")));
            let roles = is_there("/apis/rbac.authorization.k8s.io/v1/clusterroles/system:discovery");
            // For a while after a start, it refuses Services because the allocator of cluster IPs is not ready.
            let service = json!({"metadata": {"name": "probe"}, "spec": {"ports": [{"port": 80}]}});
            let path = "/api/v1/namespaces/default/services?dryRun=All";
            let allocates = || admin.request("POST", path, Some(("application/json", &service))).is_ok();
            (roles && all.iter().all(|is_there| *is_there) && allocates()).then_some(true)
        });
        if !matches!(ready, Ok(true)) {
            let processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
            let logs: Vec<String> = processes.iter().map(|process| process.log_tail(30)).collect();
            panic!("the control plane does not come up ({ready:?}):\n{}", logs.join("\n---\n"));
        }
    }

    /// Stops all processes in reverse order of their start.
    fn end(&self) {
        let mut processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(mut process) = processes.pop() {
            // etcd writes acknowledged data to disk, so a kill loses nothing.
            process.kill();
        }
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
            processes.iter().for_each(|process| eprintln!("last words:\n{}", process.log_tail(10)));
        }
        self.end();
    }
}

/// The answer of etcd's HTTP gateway.
fn etcd_request(path: &str, body: &Value) -> Value {
    use std::io::{Read, Write};
    let body = body.to_string();
    let mut stream = std::net::TcpStream::connect(ETCD.trim_start_matches("http://")).expect("etcd answers");
    let head = format!("POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(head.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

fn copy_directory(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.is_ok_and(|status| status.success()), "{} is copied", from.display());
}

/// Converts a line of the audit log to the format of the test API server. Bodies are not audited.
fn logged(line: &str) -> Option<Logged> {
    let event: Value = serde_json::from_str(line).ok()?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let method = match event["verb"].as_str()? {
        "create" => "POST",
        "update" => "PUT",
        "patch" => "PATCH",
        "delete" | "deletecollection" => "DELETE",
        _ => "GET",
    };
    // A watch is logged when it begins and again when it ends.
    if event["verb"] == "watch" && event["stage"] == "ResponseComplete" {
        return None;
    }
    let address = text(&event["requestURI"]);
    let (path, query) = address.split_once('?').unwrap_or((&address, ""));
    let manager = query.split('&').find_map(|part| part.strip_prefix("fieldManager=")).map(str::to_owned);
    let code = event["responseStatus"]["code"].as_u64().and_then(|code| u16::try_from(code).ok())?;
    Some(Logged {
        method: method.into(),
        path: path.into(),
        query: query.into(),
        user: text(&event["user"]["username"]),
        field_manager: manager.unwrap_or_else(|| {
            // The part before the first slash, as the server uses it.
            text(&event["userAgent"]).split('/').next().unwrap_or_default().to_owned()
        }),
        body: String::new(),
        code,
    })
}

#[test]
fn a_line_of_the_audit_log_is_a_request() {
    let line = r#"{"kind":"Event","stage":"ResponseStarted","verb":"watch","requestURI":"/api/v1/services?watch=true&limit=1","user":{"username":"system:serviceaccount:tidegate-system:tidegate"},"userAgent":"tidegate/0.1","responseStatus":{"code":200}}"#;
    let request = logged(line).expect("a request");
    assert_eq!(
        (request.method.as_str(), request.path.as_str(), request.code),
        ("GET", "/api/v1/services", 200)
    );
    assert_eq!((request.query.as_str(), request.field_manager.as_str()), ("watch=true&limit=1", "tidegate"));
    assert_eq!(logged(&line.replace("ResponseStarted", "ResponseComplete")), None, "it was logged before");
}
