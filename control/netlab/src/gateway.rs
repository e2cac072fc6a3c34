//! The gateway under test: the real `tidegate run` on DPDK's af_packet driver in the gateway's namespace.
//!
//! Writes the configuration, starts and stops the daemon, and reads its probes. It uses only the daemon's public
//! interfaces: command line, configuration keys, signals, HTTP.

use super::addresses as plan;
use super::namespace::output_of;
use super::process::LabProcess;
use super::{Lab, Namespace, wait_for};
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

/// The maximum time until the daemon has applied its first snapshot, on a busy machine and without hugepages.
const READY_BOUND: Duration = Duration::from_secs(30);
/// The maximum time from SIGTERM to its end.
const STOP_BOUND: Duration = Duration::from_secs(20);

/// `f_type` of tmpfs in statfs(2).
const TMPFS: u64 = 0x0102_1994;

/// `dataplane.memory.sizeMiB`.
pub const MEMORY_MIB: u32 = 192;

/// The options that differ between the gateways of the tests.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// `dataplane.cores`; the port gets as many queue pairs.
    pub cores: Vec<u32>,
    /// `dataplane.memory.hugepages`.
    pub hugepages: bool,
    /// `health.protocol`.
    pub health_protocol: &'static str,
    /// `health.interval` (and, halved, `health.timeout`).
    pub health_interval: Duration,
    /// `health.unhealthyThreshold`.
    pub unhealthy_threshold: u32,
    /// `services.defaults.drainTimeout`.
    pub drain_timeout: Duration,
    /// `source.directory.watch`.
    pub watch: bool,
    /// `source.kubernetes.kubeconfig`, instead of the directory.
    pub kubeconfig: Option<PathBuf>,
    /// `dataplane.routes`: prefix and next hop.
    pub routes: Vec<(String, IpAddr)>,
    /// `dataplane.tunnelPeers`.
    pub tunnel_peers: Vec<IpAddr>,
    /// `dataplane.gateway.masquerade`: the servers' own traffic is forwarded with a SNAT address as its source.
    pub masquerade: bool,
    /// `services.nodePortAddresses`.
    pub node_port_addresses: Vec<String>,
    /// `services.healthCheckNodePortNetworks`.
    pub health_port_networks: Vec<String>,
    /// `services.ownClusterIPs`.
    pub own_cluster_ips: bool,
    /// `dataplane.flowTable.entriesPerCore`.
    pub flow_entries: u32,
    /// `dataplane.flowTable.directory`; by default a directory of the lab if that is in memory, or none otherwise.
    pub flow_directory: Option<PathBuf>,
    /// `protection.synCookies`.
    pub syn_cookies: &'static str,
    /// `protection.deny.files`.
    pub deny_files: Vec<PathBuf>,
    /// The number of servers, from 1, that are configured in `dataplane.neighbors`: `replay` resolves no others.
    pub static_servers: u8,
    /// `selfCheck.enabled`. If it is on, a comparison runs every second.
    pub self_check: bool,
    /// `admin.page.listen: "127.0.0.1:9470"`.
    pub page: bool,
    /// `flowLog`, as a YAML mapping; empty for none.
    pub flow_log: String,
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self {
            cores: vec![1],
            hugepages: false,
            health_protocol: "tcp",
            health_interval: Duration::from_millis(500),
            unhealthy_threshold: 2,
            drain_timeout: Duration::from_secs(300),
            watch: true,
            kubeconfig: None,
            routes: Vec::new(),
            tunnel_peers: Vec::new(),
            masquerade: false,
            node_port_addresses: Vec::new(),
            health_port_networks: Vec::new(),
            own_cluster_ips: false,
            flow_entries: 65_536,
            flow_directory: None,
            syn_cookies: "auto",
            deny_files: Vec::new(),
            static_servers: 0,
            self_check: true,
            page: false,
            flow_log: String::new(),
        }
    }
}

impl GatewayOptions {
    /// The maximum time from a backend's death to its detection: the last successful check may have just ended, and
    /// each failing one may use its whole timeout.
    #[must_use]
    pub fn detection_bound(&self) -> Duration {
        self.health_interval * (self.unhealthy_threshold + 1)
    }

    fn yaml(&self, directory: &Path) -> String {
        let (v4, v6) = (0, 1);
        let list = |addresses: [&str; 2]| format!("[\"{}\", \"{}\"]", addresses[v4], addresses[v6]);
        let cores = self.cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let neighbors: Vec<String> = (1..=self.static_servers)
            .flat_map(|n| plan::Family::BOTH.map(|family| (plan::server(family, n), plan::server_mac(n))))
            .map(|(ip, mac)| format!("{{ip: \"{ip}\", mac: \"{mac}\"}}"))
            .collect();
        let routes: Vec<String> =
            self.routes.iter().map(|(to, via)| format!("\n    - {{to: \"{to}\", via: \"{via}\"}}")).collect();
        let routes = if routes.is_empty() { " []".to_owned() } else { routes.concat() };
        let quoted = |networks: &[String]| -> Vec<String> {
            networks.iter().map(|network| format!("\"{network}\"")).collect()
        };
        let own_networks = quoted(&self.node_port_addresses);
        let page = if self.page { ", page: {listen: \"127.0.0.1:9470\"}" } else { "" };
        let source = match &self.kubeconfig {
            None => format!("directory: {{path: manifests, watch: {}, stateDirectory: state}}", self.watch),
            Some(path) => format!("kubernetes: {{kubeconfig: \"{}\", stateDirectory: \"\"}}", path.display()),
        };
        format!(
            r#"apiVersion: tidegate.dev/v1alpha1
kind: GatewayConfig
metadata: {{name: lab}}
dataplane:
  cores: [{cores}]
  idle: adaptive
  memory: {{hugepages: {hugepages}, sizeMiB: {MEMORY_MIB}}}
  flowTable: {{entriesPerCore: {flow_entries}, directory: "{flow_directory}"}}
  interfaces:
    - name: uplink
      device: "net_af_packet0,iface=eth0,qpairs={queues}"
      addresses: ["{c4}/24", "{c6}/64", "{s4}/24", "{s6}/64"]
      mac: "{mac}"
      mtu: 1500
  neighbors: [{neighbors}]
  routes:{routes}
  snatAddresses: {snat}{gateway}
  tunnelSource: {tunnel}
  tunnelPeers: [{peers}]
source:
  {source}
services:
  defaults: {{drainTimeout: {drain}s}}
  nodePortAddresses: [{own_networks}]
  healthCheckNodePortNetworks: [{health_networks}]
  ownClusterIPs: {own_cluster_ips}
pools:
  - {{name: routed, addresses: {routed}, autoAssign: true, externalIPs: true}}
  - {{name: on-link, addresses: {on_link}, autoAssign: false}}
health: {{protocol: {protocol}, interval: {interval}ms, timeout: {timeout}ms, healthyThreshold: 1, unhealthyThreshold: {unhealthy}}}
admin: {{socket: {socket}, listen: "127.0.0.1:9469", healthz: "127.0.0.1:10356"{page}}}
protection: {{synCookies: "{syn_cookies}", deny: {{files: {deny_files:?}}}}}
selfCheck: {{enabled: {self_check}, interval: 1s, changes: 1}}
{flow_log}
"#,
            self_check = self.self_check,
            flow_log = match self.flow_log.as_str() {
                "" => String::new(),
                section => format!("flowLog: {section}"),
            },
            hugepages = self.hugepages,
            flow_entries = self.flow_entries,
            flow_directory = self.flow_directory.clone().unwrap_or_else(|| flows_of(directory)).display(),
            syn_cookies = self.syn_cookies,
            deny_files = self.deny_files,
            queues = self.cores.len(),
            c4 = plan::GATEWAY_FOR_CLIENTS[v4],
            c6 = plan::GATEWAY_FOR_CLIENTS[v6],
            s4 = plan::GATEWAY_FOR_SERVERS[v4],
            s6 = plan::GATEWAY_FOR_SERVERS[v6],
            mac = plan::GATEWAY_MAC,
            neighbors = neighbors.join(", "),
            peers = self.tunnel_peers.iter().map(|peer| format!("\"{peer}\"")).collect::<Vec<_>>().join(", "),
            own_networks = own_networks.join(", "),
            health_networks = quoted(&self.health_port_networks).join(", "),
            own_cluster_ips = self.own_cluster_ips,
            snat = list(plan::SNAT),
            gateway = match self.masquerade {
                true => format!(
                    "\n  gateway: {{prefixes: {servers}, forward: routes, masquerade: {servers}}}",
                    servers = list(plan::SERVER_PREFIX),
                ),
                false => String::new(),
            },
            tunnel = list(plan::GATEWAY_FOR_SERVERS),
            drain = self.drain_timeout.as_secs(),
            routed = list(plan::ROUTED_VIPS),
            on_link = list(plan::ON_LINK_VIPS),
            protocol = self.health_protocol,
            interval = self.health_interval.as_millis(),
            timeout = self.health_interval.as_millis() / 2,
            unhealthy = self.unhealthy_threshold,
            socket = directory.join("tidegate.sock").display(),
        )
    }
}

/// A directory of the lab for flow tables. Empty if the lab is on a disk, where the gateway would not use it.
fn flows_of(directory: &Path) -> PathBuf {
    let is_tmpfs = rustix::fs::statfs(directory).is_ok_and(|found| u64::try_from(found.f_type) == Ok(TMPFS));
    if is_tmpfs { directory.join("flows") } else { PathBuf::new() }
}

/// A running gateway. Dropping it kills the daemon.
#[derive(Debug)]
pub struct Gateway {
    process: LabProcess,
    namespace: Namespace,
    tidegate: PathBuf,
    directory: PathBuf,
}

impl Gateway {
    /// Writes `gateway.yaml` and the directory of manifests into the lab's directory, so that manifests can be put
    /// there before the gateway starts.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn configure(lab: &Lab, options: &GatewayOptions) -> Result<()> {
        fs::create_dir_all(manifests_of(lab))?;
        fs::write(config_of(lab), options.yaml(lab.directory())).context("gateway.yaml")
    }

    /// Starts `tidegate run` with the configuration of [`Gateway::configure`], and waits until it is ready.
    ///
    /// # Errors
    /// When it ends, or is not ready in time; the message contains the end of its log.
    pub fn start(lab: &Lab) -> Result<Self> {
        let mut gateway = Self::launch(lab)?;
        gateway.wait_until_ready()?;
        Ok(gateway)
    }

    /// Starts `tidegate run` and returns at once.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn launch(lab: &Lab) -> Result<Self> {
        Self::launch_in(lab.gateway(), lab.directory(), &lab.plan().tidegate)
    }

    /// Starts `tidegate run` in a namespace with `gateway.yaml` of a directory, which sets `tidegate.sock` there as its
    /// socket. Returns at once.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn launch_in(namespace: &Namespace, directory: &Path, tidegate: &Path) -> Result<Self> {
        ensure!(tidegate.is_file(), "{} does not exist: run `cargo build -p tidegate`", tidegate.display());
        let config = directory.join("gateway.yaml").display().to_string();
        let process = LabProcess::start(namespace, directory, "gateway", tidegate, &["run", "-c", &config])?;
        let (namespace, tidegate, directory) = (namespace.clone(), tidegate.to_owned(), directory.to_owned());
        Ok(Self { process, namespace, tidegate, directory })
    }

    /// Waits until `/readyz` reports that the first snapshot is applied.
    ///
    /// # Errors
    /// When the daemon ends, or is not ready in time; the message contains the end of its log.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        let mut ended = None;
        let waited = wait_for("the gateway to be ready", READY_BOUND, || {
            ended = self.process.exit_status();
            (ended.is_some() || self.probe("/readyz") == Some(200)).then_some(())
        });
        let log = || format!("end of the gateway's log:\n{}", self.process.log_tail(30));
        waited.with_context(log)?;
        ensure!(ended.is_none(), "the gateway ended: {ended:?}\n{}", log());
        Ok(())
    }

    /// The status code of a GET on the health address; `None` if there is no answer.
    #[must_use]
    pub fn probe(&self, path: &str) -> Option<u16> {
        let url = format!("http://127.0.0.1:10356{path}");
        let mut curl = self.namespace.command("curl");
        let text =
            output_of(curl.args(["-s", "--max-time", "2", "-o", "/dev/null", "-w", "%{http_code}", &url]));
        text.ok()?.trim().parse().ok()
    }

    /// The text of `/metrics`.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn metrics(&self) -> Result<String> {
        let mut curl = self.namespace.command("curl");
        output_of(curl.args(["-sS", "--fail", "--max-time", "5", "http://127.0.0.1:9469/metrics"]))
    }

    /// The sum of the samples of `metric` (its full name) whose labels contain all of `labels`, e.g. `reason="x"`.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn metric(&self, metric: &str, labels: &[&str]) -> Result<f64> {
        let text = self.metrics()?;
        let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (name, rest) = series.split_once('{').unwrap_or((series, ""));
            let wanted = name == metric && labels.iter().all(|label| rest.contains(label));
            wanted.then(|| value.parse::<f64>().ok())?
        });
        Ok(samples.sum())
    }

    /// Runs another command of the binary with this daemon's socket, and returns its output.
    ///
    /// # Errors
    /// When it fails.
    pub fn query(&self, args: &[&str]) -> Result<String> {
        let socket = self.directory.join("tidegate.sock");
        output_of(self.namespace.command(&self.tidegate).args(args).arg("--socket").arg(socket))
    }

    /// Whether the daemon is still running.
    pub fn runs(&mut self) -> bool {
        self.process.runs()
    }

    /// The daemon's pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The last `lines` lines of its output.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        self.process.log_tail(lines)
    }

    /// Its complete output.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Sends SIGHUP, which reloads the configuration.
    pub fn reload(&mut self) {
        self.process.signal(Signal::HUP);
    }

    /// Stops the process as a debugger or a hypervisor does, until [`Self::resume`].
    pub fn pause(&mut self) {
        self.process.signal(Signal::STOP);
    }

    /// Continues the process.
    pub fn resume(&mut self) {
        self.process.signal(Signal::CONT);
    }

    /// Sends SIGTERM, and returns at once.
    pub fn terminate(&mut self) {
        self.process.signal(Signal::TERM);
    }

    /// Sends SIGTERM, and waits for the end.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn stop(mut self) -> Result<ExitStatus> {
        self.process.signal(Signal::TERM);
        let ended = self.process.wait(STOP_BOUND);
        ended.with_context(|| format!("end of the gateway's log:\n{}", self.process.log_tail(30)))
    }

    /// Sends SIGKILL.
    pub fn kill(mut self) {
        self.process.kill();
    }
}

/// The directory of the lab's manifests.
#[must_use]
pub fn manifests_of(lab: &Lab) -> PathBuf {
    lab.directory().join("manifests")
}

/// The configuration file of the lab's gateway.
#[must_use]
pub fn config_of(lab: &Lab) -> PathBuf {
    lab.directory().join("gateway.yaml")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_configuration_of_the_lab_is_accepted_without_a_warning() {
        let more = GatewayOptions {
            cores: vec![0, 1],
            hugepages: true,
            watch: false,
            static_servers: 3,
            masquerade: true,
            routes: vec![("10.244.0.0/16".to_owned(), plan::server(plan::Family::V4, 1))],
            node_port_addresses: vec!["198.51.100.0/24".to_owned()],
            own_cluster_ips: true,
            ..GatewayOptions::default()
        };
        for options in [GatewayOptions::default(), more] {
            let text = options.yaml(Path::new("/run/lab"));
            let loaded = tidegate_model::config::parse(&text, "gateway.yaml", Path::new("/run/lab"), 2);
            assert!(loaded.config.is_some() && loaded.report.is_empty(), "{}\n{text}", loaded.report);
        }
    }
}
