//! What the stories stand on: a namespace with an API server and gateways in it.
//!
//! A gateway has a port that leads nowhere (`net_null`), checks its backends too seldom to matter, and acts for the
//! ServiceAccount of `deploy/kubernetes`.
//!
//! Invariant: nothing waits without a bound, and a bound that runs out says what was seen last.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use test_apiserver::Options;
use tidegate::netlab::process::LabProcess;
use tidegate::netlab::{Lab, LabPlan, cleanup, wait_for};

use crate::api::{Api, needs};

/// How long a change may take to be seen on a busy machine. How fast it really is, is measured elsewhere.
pub(crate) const SEEN: Duration = Duration::from_secs(60);
/// The same with a real API server: what gateways know of their connection follows its bookmarks, one a minute.
const SEEN_WITH_A_REAL_SERVER: Duration = Duration::from_secs(180);
/// Time between bookmarks.
const BOOKMARKS: Duration = Duration::from_secs(2);

/// What every cluster of the stories has, and what every gateway may do.
const INSTALL: [&str; 4] = [
    "kubernetes/base/namespace.yaml",
    "kubernetes/base/rbac.yaml",
    "kubernetes/base/lease.yaml",
    "kubernetes/crds",
];

/// A cluster with gateways. Tells their last words when its story fails.
pub(crate) struct World {
    // Declared first: gateways end before their API server, and both before the namespace.
    gateways: Vec<Gateway>,
    pub(crate) api: Api,
    lab: Lab,
    _alone: MutexGuard<'static, ()>,
}

/// One `tidegate run`.
pub(crate) struct Gateway {
    name: String,
    socket: PathBuf,
    process: LabProcess,
}

/// How gateways of a story are configured, beyond what all have.
#[derive(Debug, Clone, Default)]
pub(crate) struct Setting {
    /// Lines of `source.kubernetes`.
    pub(crate) source: String,
    /// Lines of the document, such as `pools`.
    pub(crate) document: String,
    /// `services.defaults.drainTimeout`; an hour without.
    pub(crate) drain: String,
    /// Text of its kubeconfig; empty for none at all. With the token of Tidegate's account without.
    pub(crate) kubeconfig: Option<String>,
    /// A program with arguments that starts the gateway, such as `env NAME=VALUE`.
    pub(crate) starter: Vec<String>,
    /// `metadata.name`, where it is not what the story calls the gateway.
    pub(crate) called: Option<String>,
}

impl World {
    /// A cluster with Tidegate's rights and definitions installed, no gateway yet.
    pub(crate) fn new() -> Self {
        Self::installed(&[], Options::default())
    }

    /// The same with a test API server of these options: for stories that name [`needs::Needs::ServerOptions`].
    pub(crate) fn with(options: Options) -> Self {
        needs::used(needs::Needs::ServerOptions);
        Self::installed(&[], options)
    }

    /// Where gateways are there is this address too, and at it they reach the API server.
    pub(crate) fn reached_at(address: IpAddr) -> Self {
        let listen = SocketAddr::new(address, 0);
        Self::installed(&[address], Options { listen, ..Options::default() })
    }

    fn installed(addresses: &[IpAddr], options: Options) -> Self {
        let world = Self::empty_with(addresses, options);
        world.install();
        world
    }

    /// A cluster without anything of Tidegate.
    pub(crate) fn empty() -> Self {
        Self::empty_with(&[], Options::default())
    }

    fn empty_with(addresses: &[IpAddr], options: Options) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        static SIGNALS: std::sync::Once = std::sync::Once::new();
        SIGNALS.call_once(|| cleanup::on_signals().expect("signal handlers"));
        let alone = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = LabPlan { servers: 0, vips: Vec::new(), tidegate: env!("CARGO_BIN_EXE_tidegate").into() };
        let lab = Lab::build(&plan).expect("the lab stands (needs root)");
        for address in addresses {
            lab.gateway().ip_batch(&format!("addr add {address} dev lo\n")).expect("a free address");
        }
        // How far gateways say that they are follows bookmarks where nothing happens: a minute on a real server, and less
        // than SEEN here.
        let options = Options { bookmark_interval: BOOKMARKS, ..options };
        let api = Api::start(&lab, options);
        Self { gateways: Vec::new(), api, lab, _alone: alone }
    }

    /// Puts in what `deploy/kubernetes` gives.
    pub(crate) fn install(&self) {
        for path in INSTALL {
            for text in files(&deploy().join(path)) {
                self.api.apply(&text).expect("what deploy/ has is legal");
            }
        }
    }

    /// The same after the API server came back with nothing. The account is another one, and where its tokens hang on it
    /// the gateways get new ones.
    pub(crate) fn install_again(&self) {
        self.install();
        let others = self.gateways.iter().filter(|_| !Api::is_in_process());
        for gateway in others {
            let directory = self.lab.directory().join(&gateway.name);
            self.api.kubeconfig_for(&directory, &self.api.token()).expect("kubeconfig written");
        }
    }

    /// Puts objects into the cluster.
    pub(crate) fn apply(&self, yaml: &str) {
        self.api.apply(yaml).expect("objects of a story are legal");
    }

    /// Starts a gateway that is configured in the usual way, and waits until it answers.
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
        let Setting { source, document, drain, .. } = setting;
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
  flowTable: {{entriesPerCore: 4096}}
  interfaces:
    - {{name: up{number}, device: "net_null{number},no-rx=1", addresses: ["192.0.2.{number}/24"]}}
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
        let program = words.next().expect("there is the gateway at least");
        let arguments: Vec<String> = words.collect();
        let process = LabProcess::start(self.lab.gateway(), directory, "gateway", program, &arguments);
        let process = process.expect("the binary starts");
        self.gateways.push(Gateway { name: name.into(), socket, process });
        let gateway = self.gateway(name);
        let up = wait_for("the gateway to answer", SEEN, || gateway.ask("status"));
        up.unwrap_or_else(|error| panic!("{error:#}\n{}", gateway.process.log_tail(40)));
    }

    /// Starts a gateway again as it was configured, after it was stopped.
    pub(crate) fn start_again(&mut self, name: &str) {
        let config = self.lab.directory().join(name).join("gateway.yaml");
        let socket = self.lab.directory().join(name).join("tidegate.sock");
        self.launch(name, &config, socket, &[]);
    }

    /// Changes the configuration of a gateway and has it read again.
    pub(crate) fn reconfigure(&mut self, name: &str, edit: impl FnOnce(String) -> String) {
        let config = self.lab.directory().join(name).join("gateway.yaml");
        let text = std::fs::read_to_string(&config).expect("it was written");
        std::fs::write(&config, edit(text)).expect("configuration written");
        let at = self.gateways.iter_mut().find(|gateway| gateway.name == name);
        at.expect("a gateway of this story").process.signal(Signal::HUP);
    }

    /// Waits for the end of a gateway; its exit code.
    pub(crate) fn exit_code(&mut self, name: &str, bound: Duration) -> Option<i32> {
        let at = self.gateways.iter().position(|gateway| gateway.name == name)?;
        let mut gateway = self.gateways.remove(at);
        let ended = gateway.process.wait(bound);
        ended.unwrap_or_else(|error| panic!("{error:#}\n{}", gateway.process.log_tail(40))).code()
    }

    /// Where `/metrics` (9000 and on) and `/healthz` (10000 and on) of the first gateway are, and anything else that
    /// answers HTTP there: status and body of `GET path`.
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

    /// Waits for something that takes longer than usual by its nature.
    pub(crate) fn within<T>(&self, bound: Duration, what: &str, probe: impl FnMut() -> Option<T>) -> T {
        wait_for(what, bound, probe).unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// The log of a gateway, its end.
    pub(crate) fn log(&self, name: &str) -> String {
        self.gateway(name).process.log_tail(60)
    }

    pub(crate) fn gateway(&self, name: &str) -> &Gateway {
        self.gateways.iter().find(|gateway| gateway.name == name).expect("a gateway of this story")
    }

    /// Does something where the gateways are: their ports on loopback are there.
    pub(crate) fn enter_gateway<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        self.lab.gateway().enter(what)
    }

    /// Ends a gateway by a signal and waits for its end.
    pub(crate) fn end(&mut self, name: &str, signal: Signal, bound: Duration) -> Result<(), String> {
        let at =
            self.gateways.iter().position(|gateway| gateway.name == name).expect("a gateway of this story");
        let mut gateway = self.gateways.remove(at);
        gateway.process.signal(signal);
        let ended = gateway.process.wait(bound);
        ended.map(|_| ()).map_err(|error| format!("{error:#}\n{}", gateway.process.log_tail(40)))
    }

    /// A place for the files of a story, gone with it.
    pub(crate) fn directory(&self) -> &Path {
        self.lab.directory()
    }

    /// A new token for the same account, in the gateway's kubeconfig.
    pub(crate) fn renew_token(&self, name: &str) {
        let token = self.api.other_token("renewed");
        self.api.kubeconfig_for(&self.lab.directory().join(name), &token).expect("kubeconfig written");
    }

    /// Whether the gateway has objects on disk.
    pub(crate) fn has_state(&self, name: &str) -> bool {
        let state = self.lab.directory().join(name).join("state");
        std::fs::read_dir(state).is_ok_and(|mut entries| entries.next().is_some())
    }

    /// The same where the story says itself what is wrong when it does not come to hold.
    pub(crate) fn eventually<T>(&self, probe: impl FnMut() -> Option<T>) -> Option<T> {
        wait_for("it", seen(), probe).ok()
    }

    /// Waits until something holds of the cluster or its gateways; gives what was made of it.
    pub(crate) fn until<T>(&self, what: &str, probe: impl FnMut() -> Option<T>) -> T {
        wait_for(what, seen(), probe).unwrap_or_else(|error| panic!("{error:#}"))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for gateway in &self.gateways {
                eprintln!("last words of {}:\n{}", gateway.name, gateway.process.log_tail(60));
                eprintln!("its services: {}", gateway.ask("services").unwrap_or_default());
            }
        } else {
            needs::assert_all_used();
        }
    }
}

impl Gateway {
    /// What a question by the admin socket is answered with, as JSON.
    pub(crate) fn ask(&self, question: &str) -> Option<Value> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args([question, "-o", "json", "--socket"]).arg(&self.socket);
        if matches!(question, "services" | "backends") {
            command.arg("-A");
        }
        let output = command.output().ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }

    /// The value of one series of the metrics, with its labels as they are written.
    pub(crate) fn series(&self, series: &str) -> Option<f64> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.args(["metrics", "--socket"]).arg(&self.socket).output().ok()?;
        let page = String::from_utf8(output.stdout).ok()?;
        page.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
    }

    /// Drains a target: what is answered, and what is warned of.
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

    /// The VIPs of a Service; empty when it has none or is not there.
    pub(crate) fn vips(&self, service: &str) -> Vec<String> {
        let vips = self.service(service)["vips"].as_array().cloned().unwrap_or_default();
        vips.iter().map(|vip| text(&vip["address"])).collect()
    }

    /// A Service of namespace `shop` as `tidegate services` shows it; null when it is not there.
    pub(crate) fn service(&self, name: &str) -> Value {
        let answer = self.ask("services").unwrap_or_default();
        let mut rows = answer["items"].as_array().into_iter().flatten();
        rows.find(|row| row["name"] == name && row["namespace"] == "shop").cloned().unwrap_or_default()
    }

    /// Part of `tidegate status`.
    pub(crate) fn source(&self) -> Value {
        self.ask("status").unwrap_or_default()["source"].clone()
    }
}

/// The bound of [`World::until`].
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

/// The texts of a file, or of every YAML file of a directory.
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

/// A LoadBalancer Service of ours, with one TCP port 80.
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
