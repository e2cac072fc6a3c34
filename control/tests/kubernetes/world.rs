//! The fixtures of the tests: a namespace with an API server and gateways.
//!
//! A gateway has a port without a network (`net_null`), almost never checks its backends, and uses the ServiceAccount
//! of `deploy/kubernetes`.
//!
//! Invariant: every wait has a limit, and the error after the limit describes the last state.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use test_apiserver::Options;
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::{Lab, LabPlan, Namespace, cleanup, wait_for};

use crate::api::{Api, needs};

/// The maximum time until a change is visible on a busy machine. The speed is measured elsewhere.
pub(crate) const SEEN: Duration = Duration::from_secs(60);
/// The limit with a real API server: gateways detect the state of their connection from its bookmarks, one a minute.
const SEEN_WITH_A_REAL_SERVER: Duration = Duration::from_secs(180);
/// The time between bookmarks.
const BOOKMARKS: Duration = Duration::from_secs(2);

/// The manifests that every cluster of the tests has, including the rights of the gateways.
const INSTALL: [&str; 3] = ["kubernetes/base/namespace.yaml", "kubernetes/base/rbac.yaml", "kubernetes/crds"];

/// A cluster with gateways. Prints the end of their logs if its test fails.
pub(crate) struct World {
    // Declared first, so that the gateways end before their API server, and both before the namespace.
    gateways: Vec<Gateway>,
    pub(crate) api: Api,
    lab: Lab,
    _guard: Guard,
}

/// Lets either one test use the machine alone, or several others share it.
static MACHINE: RwLock<()> = RwLock::new(());

/// The guard of a test, kept until its cluster is gone.
#[expect(dead_code, reason = "the guards are only dropped")]
enum Guard {
    Alone(RwLockWriteGuard<'static, ()>),
    BesideOthers(RwLockReadGuard<'static, ()>),
}

/// One process of `tidegate run`.
pub(crate) struct Gateway {
    name: String,
    socket: PathBuf,
    process: LabProcess,
}

/// The individual configuration of the gateways of a test.
#[derive(Debug, Clone, Default)]
pub(crate) struct Setting {
    /// Lines of `source.kubernetes`.
    pub(crate) source: String,
    /// Lines of the document, such as `pools`.
    pub(crate) document: String,
    /// The value of `services.defaults.drainTimeout`; an hour if empty.
    pub(crate) drain: String,
    /// The text of its kubeconfig; empty for no kubeconfig. `None` for one with the token of Tidegate's account.
    pub(crate) kubeconfig: Option<String>,
    /// A program with arguments that starts the gateway, such as `env NAME=VALUE`.
    pub(crate) starter: Vec<String>,
    /// The `metadata.name`, if it differs from the gateway's name in the test.
    pub(crate) called: Option<String>,
    /// The device of its port, with `mac` and other keys; empty for one without a network.
    pub(crate) device: String,
}

impl World {
    /// A cluster with Tidegate's rights and definitions, and no gateway yet.
    pub(crate) fn new() -> Self {
        Self::installed(&[], Options::default())
    }

    /// A new cluster with these options of the test API server, for tests that declare [`needs::Needs::ServerOptions`].
    pub(crate) fn with(options: Options) -> Self {
        needs::used(needs::Needs::ServerOptions);
        Self::installed(&[], options)
    }

    /// A cluster whose gateways reach the API server at this additional address.
    pub(crate) fn reached_at(address: IpAddr) -> Self {
        let listen = SocketAddr::new(address, 0);
        Self::installed(&[address], Options { listen, ..Options::default() })
    }

    /// A new cluster for tests that compare times: no other test runs meanwhile.
    pub(crate) fn alone() -> Self {
        let guard = Guard::Alone(MACHINE.write().unwrap_or_else(PoisonError::into_inner));
        let world = Self::with_guard(guard, &[], Options::default());
        world.install();
        world
    }

    fn installed(addresses: &[IpAddr], options: Options) -> Self {
        let world = Self::empty_with(addresses, options);
        world.install();
        world
    }

    /// A cluster without any object of Tidegate.
    pub(crate) fn empty() -> Self {
        Self::empty_with(&[], Options::default())
    }

    fn empty_with(addresses: &[IpAddr], options: Options) -> Self {
        // All tests share a real server, or it needs the memory and processors of this machine.
        let guard = if Api::is_in_process() {
            Guard::BesideOthers(MACHINE.read().unwrap_or_else(PoisonError::into_inner))
        } else {
            Guard::Alone(MACHINE.write().unwrap_or_else(PoisonError::into_inner))
        };
        Self::with_guard(guard, addresses, options)
    }

    fn with_guard(guard: Guard, addresses: &[IpAddr], options: Options) -> Self {
        static SIGNALS: std::sync::Once = std::sync::Once::new();
        SIGNALS.call_once(|| cleanup::on_signals().expect("signal handlers"));
        let plan = LabPlan { servers: 0, vips: Vec::new(), tidegate: env!("CARGO_BIN_EXE_tidegate").into() };
        let lab = Lab::build(&plan).expect("the lab is built (needs root)");
        for address in addresses {
            lab.gateway().ip_batch(&format!("addr add {address} dev lo\n")).expect("a free address");
        }
        // Without changes, the reported progress of gateways follows bookmarks: a minute on a real server, and less
        // than SEEN here.
        let options = Options { bookmark_interval: BOOKMARKS, ..options };
        let api = Api::start(&lab, options);
        Self { gateways: Vec::new(), api, lab, _guard: guard }
    }

    /// Installs the manifests of `deploy/kubernetes`.
    pub(crate) fn install(&self) {
        for path in INSTALL {
            for text in files(&deploy().join(path)) {
                self.api.apply(&text).expect("the manifests of deploy/ are valid");
            }
        }
    }

    /// Installs the manifests again after the API server lost all objects. The account is new. If its tokens depend on
    /// it, the gateways get new tokens.
    pub(crate) fn install_again(&self) {
        self.install();
        let others = self.gateways.iter().filter(|_| !Api::is_in_process());
        for gateway in others {
            let directory = self.lab.directory().join(&gateway.name);
            self.api.kubeconfig_for(&directory, &self.api.token()).expect("kubeconfig written");
        }
    }

    /// Applies objects to the cluster.
    pub(crate) fn apply(&self, yaml: &str) {
        self.api.apply(yaml).expect("objects of a test are valid");
    }

    /// Starts a gateway with the default setting, and waits until it answers.
    pub(crate) fn start(&mut self, name: &str) {
        self.start_with(name, &Setting::default());
    }

    pub(crate) fn start_with(&mut self, name: &str, setting: &Setting) {
        let directory = self.lab.directory().join(name);
        std::fs::create_dir_all(&directory).expect("a directory for the gateway");
        let named = match &setting.kubeconfig {
            Some(text) if text.is_empty() => "\"\"",
            Some(text) => {
                std::fs::write(directory.join("kubeconfig"), text).expect("kubeconfig written");
                "kubeconfig"
            }
            None => {
                self.api.kubeconfig_for(&directory, &self.api.token()).expect("kubeconfig written");
                "kubeconfig"
            }
        };
        let config = directory.join("gateway.yaml");
        let number = self.gateways.len() + 1;
        let socket = directory.join("tidegate.sock");
        let Setting { source, document, drain, device, .. } = setting;
        let device = match device.as_str() {
            "" => format!("\"net_null{number},no-rx=1\""),
            device => device.to_owned(),
        };
        let called = setting.called.as_deref().unwrap_or(name);
        let drain = if drain.is_empty() { "1h" } else { drain };
        let document = if document.contains("pools:") {
            document.clone()
        } else {
            format!(
                "pools: [{{name: public, addresses: [\"203.0.113.0/28\"], externalIPs: true}}]\n{document}"
            )
        };
        let text = format!(
            r#"apiVersion: tidegate.dev/v1alpha1
kind: GatewayConfig
metadata: {{name: {called}}}
dataplane:
  cores: [1]
  idle: adaptive
  memory: {{hugepages: false, sizeMiB: 64}}
  flowTable: {{entriesPerCore: 4096, directory: ""}}
  interfaces:
    - {{name: up{number}, device: {device}, addresses: ["192.0.2.{number}/24"]}}
  routes: [{{to: "0.0.0.0/0", via: "192.0.2.254"}}]
  neighbors: [{{ip: "192.0.2.254", mac: "02:00:00:00:00:01"}}]
  snatAddresses: ["192.0.2.{snat}"]
source:
  kubernetes:
    kubeconfig: {named}
    stateDirectory: state
{source}
services: {{defaults: {{drainTimeout: {drain}}}}}
health: {{interval: 3600s, timeout: 1s, allowedNetworks: ["0.0.0.0/0", "::/0"]}}
admin: {{socket: {socket}, listen: "127.0.0.1:{metrics}", healthz: "127.0.0.1:{healthz}"}}
{document}
"#,
            snat = 100 + number,
            socket = socket.display(),
            metrics = 9_000 + number,
            healthz = 10_000 + number,
        );
        std::fs::write(&config, text).expect("configuration written");
        self.launch(name, &config, socket, &setting.starter);
    }

    fn launch(&mut self, name: &str, config: &Path, socket: PathBuf, starter: &[String]) {
        let directory = config.parent().expect("in a directory");
        let run = [env!("CARGO_BIN_EXE_tidegate"), "run", "-c"].map(str::to_owned);
        let mut words = starter.iter().cloned().chain(run).chain([config.display().to_string()]);
        let program = words.next().expect("at least this gateway exists");
        let arguments: Vec<String> = words.collect();
        let process = LabProcess::start(self.lab.gateway(), directory, "gateway", program, &arguments);
        let process = process.expect("the binary starts");
        self.gateways.push(Gateway { name: name.into(), socket, process });
        let gateway = self.gateway(name);
        let up = wait_for("the gateway to answer", SEEN, || gateway.query("status"));
        up.unwrap_or_else(|error| panic!("{error:#}\n{}", gateway.process.log_tail(40)));
    }

    /// Starts a stopped gateway again with the same configuration.
    pub(crate) fn start_again(&mut self, name: &str) {
        let config = self.lab.directory().join(name).join("gateway.yaml");
        let socket = self.lab.directory().join(name).join("tidegate.sock");
        self.launch(name, &config, socket, &[]);
    }

    /// Changes the configuration of a gateway and reloads it.
    pub(crate) fn reconfigure(&mut self, name: &str, edit: impl FnOnce(String) -> String) {
        let config = self.lab.directory().join(name).join("gateway.yaml");
        let text = std::fs::read_to_string(&config).expect("it was written");
        std::fs::write(&config, edit(text)).expect("configuration written");
        let at = self.gateways.iter_mut().find(|gateway| gateway.name == name);
        at.expect("a gateway of this test").process.signal(Signal::HUP);
    }

    /// Waits for the end of a gateway and returns its exit code.
    pub(crate) fn exit_code(&mut self, name: &str, bound: Duration) -> Option<i32> {
        let at = self.gateways.iter().position(|gateway| gateway.name == name)?;
        let mut gateway = self.gateways.remove(at);
        let ended = gateway.process.wait(bound);
        ended.unwrap_or_else(|error| panic!("{error:#}\n{}", gateway.process.log_tail(40))).code()
    }

    /// Status and body of `GET path`. The first gateway has `/metrics` at port 9000 and `/healthz` at port 10000; the
    /// next gateways have the next ports.
    pub(crate) fn http(&self, port: u16, path: &str) -> Option<(u16, String)> {
        use std::io::{Read, Write};
        self.enter_gateway(|| {
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).ok()?;
            let (head, body) = answer.split_once("\r\n\r\n")?;
            Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
        })
    }

    /// Waits for a condition that takes longer than usual.
    pub(crate) fn within<T>(&self, bound: Duration, what: &str, probe: impl FnMut() -> Option<T>) -> T {
        wait_for(what, bound, probe).unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// The end of the log of a gateway.
    pub(crate) fn log(&self, name: &str) -> String {
        self.gateway(name).process.log_tail(60)
    }

    pub(crate) fn gateway(&self, name: &str) -> &Gateway {
        self.gateways.iter().find(|gateway| gateway.name == name).expect("a gateway of this test")
    }

    /// Runs a function in the gateways' namespace, where their loopback ports are.
    pub(crate) fn enter_gateway<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        self.lab.gateway().enter(what)
    }

    /// Stops a gateway with a signal and waits for its exit.
    pub(crate) fn end(&mut self, name: &str, signal: Signal, bound: Duration) -> Result<(), String> {
        let at =
            self.gateways.iter().position(|gateway| gateway.name == name).expect("a gateway of this test");
        let mut gateway = self.gateways.remove(at);
        gateway.process.signal(signal);
        let ended = gateway.process.wait(bound);
        ended.map(|_| ()).map_err(|error| format!("{error:#}\n{}", gateway.process.log_tail(40)))
    }

    /// A directory for the files of a test, removed with it.
    pub(crate) fn directory(&self) -> &Path {
        self.lab.directory()
    }

    /// Writes a new token for the same account to the gateway's kubeconfig.
    pub(crate) fn renew_token(&self, name: &str) {
        let token = self.api.other_token("renewed");
        self.api.kubeconfig_for(&self.lab.directory().join(name), &token).expect("kubeconfig written");
    }

    /// Whether the gateway has objects on disk.
    pub(crate) fn has_state(&self, name: &str) -> bool {
        let state = self.lab.directory().join(name).join("state");
        let is_of_objects =
            |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().ends_with(".objects.jsonl");
        std::fs::read_dir(state).is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(is_of_objects)))
    }

    /// The network of the test.
    pub(crate) fn lab(&self) -> &Lab {
        &self.lab
    }

    /// The gateways' namespace.
    pub(crate) fn namespace(&self) -> &Namespace {
        self.lab.gateway()
    }

    /// Sends a signal to a gateway, which stays part of the test.
    pub(crate) fn signal(&mut self, name: &str, signal: Signal) {
        let at = self.gateways.iter_mut().find(|gateway| gateway.name == name);
        at.expect("a gateway of this test").process.signal(signal);
    }

    /// Waits like [`World::until`], for tests that describe the failure themselves.
    pub(crate) fn eventually<T>(&self, probe: impl FnMut() -> Option<T>) -> Option<T> {
        wait_for("it", seen(), probe).ok()
    }

    /// Waits until the probe returns a value, and returns it.
    pub(crate) fn until<T>(&self, what: &str, probe: impl FnMut() -> Option<T>) -> T {
        wait_for(what, seen(), probe).unwrap_or_else(|error| panic!("{error:#}"))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for gateway in &self.gateways {
                eprintln!("end of the log of {}:\n{}", gateway.name, gateway.process.log_tail(60));
                eprintln!("its services: {}", gateway.query("services").unwrap_or_default());
            }
        } else {
            needs::assert_all_used();
        }
    }
}

impl Gateway {
    /// The answer to a query through the admin socket, as JSON.
    pub(crate) fn query(&self, what: &str) -> Option<Value> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args([what, "-o", "json", "--socket"]).arg(&self.socket);
        if matches!(what, "services" | "backends") {
            command.arg("-A");
        }
        let output = command.output().ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }

    /// The value of one series of the metrics, given with its labels.
    pub(crate) fn series(&self, series: &str) -> Option<f64> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.args(["metrics", "--socket"]).arg(&self.socket).output().ok()?;
        let page = String::from_utf8(output.stdout).ok()?;
        page.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
    }

    /// Drains a target. Returns the answer and the warnings.
    pub(crate) fn drain(&self, target: &str) -> (String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["drain", target, "--socket"]).arg(&self.socket);
        let output = command.output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr))
    }

    /// `ip:port state` of every backend of a Service, sorted.
    pub(crate) fn backends(&self, service: &str) -> Vec<String> {
        let ports = self.service(service)["ports"].as_array().cloned().unwrap_or_default();
        let backends = ports.iter().flat_map(|port| port["backends"].as_array().cloned().unwrap_or_default());
        let mut shown: Vec<String> = backends
            .map(|one| format!("{}:{} {}", text(&one["address"]), one["port"], text(&one["state"])))
            .collect();
        shown.sort();
        shown.dedup();
        shown
    }

    /// The VIPs of a Service; empty if it has none or does not exist.
    pub(crate) fn vips(&self, service: &str) -> Vec<String> {
        let vips = self.service(service)["vips"].as_array().cloned().unwrap_or_default();
        vips.iter().map(|vip| text(&vip["address"])).collect()
    }

    /// A Service of namespace `shop` in the format of `tidegate services`; null if it does not exist.
    pub(crate) fn service(&self, name: &str) -> Value {
        let answer = self.query("services").unwrap_or_default();
        let mut rows = answer["items"].as_array().into_iter().flatten();
        rows.find(|row| row["name"] == name && row["namespace"] == "shop").cloned().unwrap_or_default()
    }

    /// The `source` part of `tidegate status`.
    pub(crate) fn source(&self) -> Value {
        self.query("status").unwrap_or_default()["source"].clone()
    }
}

/// The time limit of [`World::until`].
fn seen() -> Duration {
    if Api::is_in_process() { SEEN } else { SEEN_WITH_A_REAL_SERVER }
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}

/// `deploy/` of this tree.
pub(crate) fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// The texts of a file, or of every YAML file in a directory.
fn files(path: &Path) -> Vec<String> {
    if path.is_file() {
        return vec![std::fs::read_to_string(path).expect("readable")];
    }
    let mut paths: Vec<PathBuf> = std::fs::read_dir(path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .filter(|path| !path.ends_with("kustomization.yaml"))
        .collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read_to_string(path).expect("readable")).collect()
}

/// A LoadBalancer Service with our class and one TCP port 80.
pub(crate) fn service(name: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: shop}}, spec: {{type: LoadBalancer, \
         loadBalancerClass: tidegate.dev/gateway, allocateLoadBalancerNodePorts: false, \
         ports: [{{name: http, port: 80}}]}}}}\n---\n"
    )
}

/// Its EndpointSlice, with one ready endpoint for each address.
pub(crate) fn slice(service: &str, addresses: &[&str]) -> String {
    let endpoints: Vec<String> = addresses
        .iter()
        .map(|address| format!("{{addresses: [{address}], conditions: {{ready: true}}}}"))
        .collect();
    format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: {service}-1, namespace: shop, \
         labels: {{kubernetes.io/service-name: {service}}}}}, addressType: IPv4, \
         ports: [{{name: http, port: 8080, protocol: TCP}}], endpoints: [{}]}}\n---\n",
        endpoints.join(", ")
    )
}
