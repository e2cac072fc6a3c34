//! The processes of the gateway and of the API server, and everything that is observable from outside: the log, the
//! listeners, and the kernel's figures of memory and time.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use procfs::process::Process;
use rustix::process::Signal;
use serde_json::Value;
use tidegate_control_bench::cluster;
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::{Lab, Namespace, addresses as plan_of_lab, wait_for};

use crate::figures::{Page, Quantiles};
use crate::plan::{Plan, SINGLES};
use crate::serve::{READY, gateway_kubeconfig};

/// The time limit for the API server to create its objects.
const FILLED: Duration = Duration::from_secs(300);
const SYNCED: Duration = Duration::from_secs(120);
/// The time limit for more than 20,000 writes at 50 a second.
const IDLE_BOUND: Duration = Duration::from_secs(900);
/// The gateway is idle after so many consecutive polls, one per second, with nothing to write.
const QUIET: u32 = 5;
/// `dataplane.memory.sizeMiB`.
const MEMORY_MIB: u32 = 64;
const METRICS: &str = "127.0.0.1:9469";
const HEALTHZ: &str = "127.0.0.1:10356";

/// Both processes. Dropping it stops them.
pub(crate) struct Daemon {
    process: LabProcess,
    _api: LabProcess,
    namespace: Namespace,
    directory: PathBuf,
    plan: Plan,
    started: Timestamp,
    /// The time at which `/readyz` first succeeded.
    ready: Timestamp,
}

impl Daemon {
    /// Starts both, and waits until the gateway has published every Service.
    ///
    /// # Errors
    /// A process did not start. The error has the last log lines of the gateway.
    pub(crate) fn start(lab: &Lab, plan: &Plan) -> Result<Self> {
        let (namespace, directory) = (lab.gateway().clone(), lab.directory().to_owned());
        let mut arguments: Vec<String> = vec![
            "--serve".into(),
            directory.display().to_string(),
            "--services".into(),
            plan.size.services.to_string(),
            "--endpoints".into(),
            plan.size.endpoints.to_string(),
            "--checked".into(),
            plan.variant.checked.to_string(),
        ];
        arguments.extend((!plan.variant.has_status).then(|| "--fresh".into()));
        arguments.extend((!plan.variant.has_pods).then(|| "--without-pods".into()));
        let own = std::env::current_exe()?;
        let api = LabProcess::start(&namespace, &directory, "api-server", own, &arguments)?;
        let ready = wait_for("the API server", FILLED, || directory.join(READY).exists().then_some(()));
        ready.with_context(|| api.log_tail(10))?;

        let config = directory.join("gateway.yaml");
        let kubeconfig = gateway_kubeconfig(&directory).display().to_string();
        fs::write(&config, yaml(plan, &kubeconfig, &directory.join("tidegate.sock").display().to_string()))?;
        // The publications are logged only at this level.
        let level = "RUST_LOG=info,tidegate::daemon::publisher=debug".to_owned();
        let tidegate = lab.plan().tidegate.display().to_string();
        let arguments = [level, tidegate, "run".to_owned(), "-c".to_owned(), config.display().to_string()];
        let started = Timestamp::now();
        let env = Path::new("/usr/bin/env");
        let mut process = LabProcess::start(&namespace, &directory, "gateway", env, &arguments)?;
        let ready = namespace.enter(|| {
            wait_for("/readyz", SYNCED, || {
                let is_ready = get(HEALTHZ, "/readyz").is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"));
                (is_ready || !process.runs()).then(Timestamp::now)
            })
        });
        let ready = ready.with_context(|| process.log_tail(20))?;
        let daemon = Self { process, _api: api, namespace, directory, plan: plan.clone(), started, ready };
        wait_for("every Service to be published", SYNCED, || daemon.published())
            .with_context(|| daemon.process.log_tail(20))?;
        Ok(daemon)
    }

    /// The time of the first log line with this text.
    fn logged(&self, text: &str) -> Option<Timestamp> {
        let log = self.process.log();
        log.lines().find(|line| line.contains(text))?.split_whitespace().next()?.parse().ok()
    }

    fn published(&self) -> Option<Timestamp> {
        let services = self.plan.size.services + SINGLES;
        // The line has `generation` in between.
        let log = self.process.log();
        let ends = format!("services={services}");
        let line = log.lines().find(|line| line.contains(" published ") && line.ends_with(&ends))?;
        line.split_whitespace().next()?.parse().ok()
    }

    /// The duration of the first sync, from the log and from outside.
    ///
    /// # Errors
    /// The log does not have the necessary lines.
    pub(crate) fn first_sync(&self) -> Result<String> {
        let listed =
            self.logged("the initial objects are loaded").context("the log has the initial objects")?;
        let published = self.published().context("the log has the first snapshot")?;
        let seconds = |from: Timestamp, to: Timestamp| to.duration_since(from).as_secs_f64();
        Ok(format!(
            "lists arrived {:.2} s after the start; applied by all workers {:.2} s after that (log), /readyz answers \
             200 {:.2} s after the lists (polled each 10 ms)",
            seconds(self.started, listed),
            seconds(listed, published),
            seconds(listed, self.ready)
        ))
    }

    /// Waits until the gateway is the leader and has nothing more to write to the cluster.
    ///
    /// # Errors
    /// The gateway was not idle in time.
    pub(crate) fn wait_until_idle(&self) -> Result<()> {
        let began = Instant::now();
        // The first plan of writes is created some time after the first state.
        let mut quiet = 0;
        while quiet < QUIET {
            let page = self.metrics()?;
            let leads = page.value("tidegate_leader") == 1.0;
            let is_quiet = leads && page.value("tidegate_cluster_writes_pending") == 0.0;
            quiet = if is_quiet { quiet + 1 } else { 0 };
            if began.elapsed() > IDLE_BOUND {
                bail!("writes are still pending:\n{}", self.process.log_tail(10));
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        let page = self.metrics()?;
        let done = page.value("tidegate_cluster_writes_total{result=\"success\"}");
        println!("leads and has nothing more to write after {:.0?}; {done} writes so far", began.elapsed());
        Ok(())
    }

    /// The address of each Service, by number.
    ///
    /// # Errors
    /// The gateway did not report an address.
    pub(crate) fn vip(&self) -> Result<impl Fn(usize) -> Option<IpAddr> + use<>> {
        let mut given: BTreeMap<usize, IpAddr> = BTreeMap::new();
        if !self.plan.variant.has_status {
            let mut command = self.namespace.command(std::env::current_exe()?.with_file_name("tidegate"));
            command
                .args(["services", "-A", "-o", "json", "--socket"])
                .arg(self.directory.join("tidegate.sock"));
            let answer: Value = serde_json::from_slice(&command.output()?.stdout)?;
            for row in answer["items"].as_array().into_iter().flatten() {
                let number: Option<usize> =
                    row["name"].as_str().and_then(|name| name.strip_prefix("service-")?.parse().ok());
                let ip = row["vips"][0]["address"].as_str().and_then(|ip| ip.parse().ok());
                given.extend(number.zip(ip));
            }
        }
        let has_status = self.plan.variant.has_status;
        Ok(move |n: usize| if has_status { Some(cluster::vip(n)) } else { given.get(&n).copied() })
    }

    /// `/metrics`.
    ///
    /// # Errors
    /// The request failed.
    pub(crate) fn metrics(&self) -> Result<Page> {
        Ok(Page::parse(&self.namespace.enter(|| get(METRICS, "/metrics"))?))
    }

    /// Writes a configuration with or without series for each backend, and waits until the page shows it.
    ///
    /// # Errors
    /// The gateway did not reload it.
    pub(crate) fn reload_with(&mut self, per_backend: bool) -> Result<()> {
        let config = self.directory.join("gateway.yaml");
        let key = |value| format!("metricsPerBackend: {value}");
        let text = fs::read_to_string(&config)?.replace(&key(!per_backend), &key(per_backend));
        fs::write(&config, text)?;
        self.process.signal(Signal::HUP);
        let has_series = || Some(self.metrics().ok()?.has("tidegate_backend_up") == per_backend);
        wait_for("the reload", SYNCED, || has_series().filter(|applied| *applied)).map(|_| ())
    }

    /// Requests `/metrics` with this content encoding. Returns the time until the whole answer has arrived, and the bytes
    /// of its body.
    ///
    /// # Errors
    /// The request failed.
    pub(crate) fn scrape(&self, encoding: &str) -> Result<(Duration, usize)> {
        self.namespace.enter(|| {
            let began = Instant::now();
            let answer = request(METRICS, "/metrics", &format!("accept-encoding: {encoding}\r\n"))?;
            let took = began.elapsed();
            let head =
                answer.windows(4).position(|four| four == b"\r\n\r\n").context("an answer without a body")?;
            let is_gzip =
                String::from_utf8_lossy(&answer[..head]).to_lowercase().contains("content-encoding: gzip");
            ensure!(is_gzip == (encoding == "gzip"), "the answer is not encoded as {encoding}");
            Ok((took, answer.len() - head - 4))
        })
    }

    /// Requests `/metrics` at this interval until it is stopped; never if the interval is zero.
    pub(crate) fn scrape_each(&self, interval: Duration) -> Scraper {
        let (stop, stopped) = mpsc::channel();
        let namespace = self.namespace.clone();
        let thread = (!interval.is_zero()).then(|| {
            std::thread::spawn(move || {
                namespace.move_this_thread()?;
                let (mut times, mut bytes) = (Vec::new(), 0);
                while stopped.recv_timeout(interval) == Err(mpsc::RecvTimeoutError::Timeout) {
                    let began = Instant::now();
                    bytes = get(METRICS, "/metrics")?.len();
                    times.push(began.elapsed());
                }
                Ok(format!(
                    "\n{}\n{}",
                    Quantiles::HEAD,
                    Quantiles::of(times).row(&format!("a scrape of {bytes} bytes"))
                ))
            })
        });
        Scraper { _stop: stop, thread }
    }

    /// The CPU time of the process.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let stat = self.of_kernel()?.stat()?;
        let ticks = (stat.utime + stat.stime) as f64;
        Ok(Duration::from_secs_f64(ticks / procfs::ticks_per_second() as f64))
    }

    /// The memory of the process.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub(crate) fn memory(&self) -> Result<Memory> {
        let process = self.of_kernel()?;
        let status = process.status()?;
        let kb = |value: Option<u64>| value.unwrap_or_default() * 1024;
        let mut packets = 0;
        for map in process.smaps()? {
            let name = format!("{:?}", map.pathname);
            // DPDK's memory without hugepages, and the rings that af_packet shares with the kernel.
            if name.contains("nohuge") || name.contains("socket:") {
                packets += map.extension.map.get("Rss").copied().unwrap_or_default();
            }
        }
        Ok(Memory {
            resident: kb(status.vmrss),
            anonymous: kb(status.rssanon),
            peak: kb(status.vmhwm),
            packets,
        })
    }

    fn of_kernel(&self) -> Result<Process> {
        Ok(Process::new(i32::try_from(self.process.pid())?)?)
    }
}

/// A thread that requests metrics.
pub(crate) struct Scraper {
    _stop: mpsc::Sender<()>,
    thread: Option<JoinHandle<Result<String>>>,
}

impl Scraper {
    /// Stops the thread and returns the times of the requests.
    ///
    /// # Errors
    /// A request failed.
    pub(crate) fn stop(self) -> Result<Option<String>> {
        drop(self._stop);
        self.thread.map(|thread| thread.join().expect("it does not panic")).transpose()
    }
}

/// The memory of a process, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    resident: u64,
    anonymous: u64,
    peak: u64,
    packets: u64,
}

impl Memory {
    /// The header of the table.
    pub(crate) const HEAD: &'static str = "| MB | resident | packet buffers and rings | without them | anonymous | most ever resident |\n|---|---|---|---|---|---|";

    /// The memory without packet buffers.
    pub(crate) fn own(&self) -> u64 {
        self.resident - self.packets
    }

    /// A row of the table.
    pub(crate) fn row(&self, what: &str) -> String {
        let mb = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
        let columns = [self.resident, self.packets, self.own(), self.anonymous, self.peak].map(mb);
        format!("| {what} | {} |", columns.join(" | "))
    }
}

impl fmt::Debug for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Daemon").field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// Sends a GET by HTTP/1.1 on a new connection and returns the whole answer.
fn get(at: &str, path: &str) -> Result<String> {
    Ok(String::from_utf8_lossy(&request(at, path, "")?).into_owned())
}

/// As [`get`], with further header lines.
fn request(at: &str, path: &str, headers: &str) -> Result<Vec<u8>> {
    let at: SocketAddr = at.parse()?;
    let mut stream = TcpStream::connect_timeout(&at, Duration::from_secs(5))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n{headers}\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

fn yaml(plan: &Plan, kubeconfig: &str, socket: &str) -> String {
    let v4 = plan_of_lab::Family::V4;
    let (clients, servers) =
        (plan_of_lab::GATEWAY_FOR_CLIENTS[v4 as usize], plan_of_lab::GATEWAY_FOR_SERVERS[v4 as usize]);
    let router = plan_of_lab::client(v4, 0);
    let snat: Vec<String> = (3..11).map(|n| format!("\"192.0.2.{n}\"")).collect();
    format!(
        r#"apiVersion: tidegate.dev/v1alpha1
kind: GatewayConfig
metadata: {{name: bench}}
dataplane:
  cores: [1]
  idle: adaptive
  memory: {{hugepages: false, sizeMiB: {MEMORY_MIB}}}
  flowTable: {{entriesPerCore: 65536, directory: ""}}
  interfaces:
    - name: uplink
      device: "net_af_packet0,iface=eth0,qpairs=1,framecnt=4096,framesz=2048"
      addresses: ["{clients}/24", "{servers}/24"]
      mac: "{mac}"
  routes: [{{to: "0.0.0.0/0", via: "{router}"}}]
  neighbors: [{{ip: "{router}", mac: "{router_mac}"}}]
  snatAddresses: [{snat}]
source: {{kubernetes: {{kubeconfig: {kubeconfig}, stateDirectory: state}}}}
pools: [{{name: {pool_name}, addresses: ["{pool}"]}}]
health: {{protocol: none}}
admin: {{socket: {socket}, listen: "{METRICS}", healthz: "{HEALTHZ}", metricsPerBackend: {per_backend}}}
"#,
        mac = plan_of_lab::GATEWAY_MAC,
        router_mac = plan_of_lab::CLIENT_MAC,
        snat = snat.join(", "),
        pool_name = cluster::POOL_NAME,
        pool = cluster::POOL,
        per_backend = !plan.scrape.is_zero(),
    )
}
