//! `tidegate run` with its configuration, a directory of Services, and in a soak their changes.

use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use procfs::process::Process;
use serde::{Deserialize, Serialize};
use tidegate_netlab::manifests::{EndpointSpec, Manifest, PortSpec};
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::{Lab, wait_for};

use super::testbed::{Setup, log_end};
use crate::generator::Soak;
use crate::packets::{
    GENERATOR_MAC, PORT, backend, backend_mac, backend_side, client_side, prefix, snat, vip,
};
use crate::scenario::{Family, Mode, Protocol, Scenario, Tracking};

/// SNAT addresses: each backend has 64,512 ports of each.
const SNAT_ADDRESSES: u32 = 4;
/// MiB of packet memory.
const MEMORY_MIB: u32 = 256;
const READY: Duration = Duration::from_secs(60);

/// The resources of the process at one time of a soak.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Seconds since the beginning.
    pub(crate) at: f64,
    pub(crate) resident_mib: f64,
    pub(crate) files: usize,
    /// Packet buffers that are not in use, if the gateway reports them.
    pub(crate) buffers_free: Option<u64>,
    /// Snapshots that the workers have applied.
    pub(crate) generation: u64,
}

/// Starts the gateway, and waits until its workers have the Services. If a directory is given, its `flows` outlive the
/// process, and each backend has its own link address.
///
/// # Errors
/// It does not start; the message has the end of its log.
pub(super) fn start(
    lab: &Lab,
    scenario: &Scenario,
    setup: &Setup,
    devices: &[String; 2],
    flows: Option<&Path>,
) -> Result<LabProcess> {
    let manifests = lab.directory().join("manifests");
    fs::create_dir_all(&manifests)?;
    for service in 0..scenario.services {
        manifest(scenario, service, 0).write(&manifests)?;
    }
    let config = lab.directory().join("gateway.yaml");
    fs::write(&config, yaml(scenario, setup, devices, lab.directory(), flows))?;
    let mut process = launch(lab, &setup.tidegate)?;
    wait_until_ready(lab, &mut process)?;
    Ok(process)
}

/// Starts a binary with the configuration that [`start`] has written, and returns at once.
pub(super) fn launch(lab: &Lab, binary: &Path) -> Result<LabProcess> {
    let config = lab.directory().join("gateway.yaml").display().to_string();
    LabProcess::start(lab.gateway(), lab.directory(), "gateway", binary, &["run", "-c", &config])
}

/// Waits until its workers have the Services.
pub(super) fn wait_until_ready(lab: &Lab, process: &mut LabProcess) -> Result<()> {
    let mut ended = false;
    let waited = wait_for("the gateway to be ready", READY, || {
        ended = process.exit_status().is_some();
        (ended || is_ready(lab)).then_some(())
    });
    ensure!(waited.is_ok() && !ended, "the gateway is not ready{}", log_end(process));
    Ok(())
}

fn is_ready(lab: &Lab) -> bool {
    let arguments =
        ["-s", "--max-time", "2", "-o", "/dev/null", "-w", "%{http_code}", "http://127.0.0.1:10356/readyz"];
    lab.gateway().command("curl").args(arguments).output().is_ok_and(|out| out.stdout == b"200")
}

/// A service with its backends. Each `change` of a service leaves out another backend than the one before; change 0
/// leaves out none.
fn manifest(scenario: &Scenario, service: u32, change: u32) -> Manifest {
    let port = match scenario.protocol {
        Protocol::Tcp => PortSpec::tcp("bench", PORT),
        Protocol::Udp => PortSpec::udp("bench", PORT),
    };
    let vips: [IpAddr; 1] = [vip(scenario.family, service)];
    let mode = scenario.mode.unwrap_or(Mode::DsrL2).as_str();
    let left_out = (change > 0).then(|| (change + change / scenario.services) % scenario.backends);
    let endpoints = (0..scenario.backends)
        .filter(|&n| Some(n) != left_out)
        .map(|n| EndpointSpec::ready(backend(scenario.family, service * scenario.backends + n)));
    Manifest::new(&format!("s{service}"), mode, &vips, vec![port]).with_endpoints(endpoints)
}

fn yaml(
    scenario: &Scenario,
    setup: &Setup,
    devices: &[String; 2],
    directory: &Path,
    flows: Option<&Path>,
) -> String {
    let family = scenario.family;
    let [own, router] = client_side(family);
    let (length, all, vips) = match family {
        Family::V4 => (16, "0.0.0.0/0", prefix(family, 30)),
        Family::V6 => (64, "::/0", "fd00:1e::/112".to_owned()),
    };
    let mut neighbors = format!("    - {{ip: \"{router}\", mac: \"{GENERATOR_MAC}\"}}\n");
    for n in 0..scenario.services * scenario.backends {
        // If connections are checked one by one, the link address identifies the backend.
        let mac = if flows.is_some() { backend_mac(n) } else { GENERATOR_MAC };
        let _ = writeln!(neighbors, "    - {{ip: \"{}\", mac: \"{mac}\"}}", backend(family, n));
    }
    let snat: Vec<String> = (0..SNAT_ADDRESSES).map(|n| format!("\"{}\"", snat(family, n))).collect();
    format!(
        r#"apiVersion: tidegate.dev/v1alpha1
kind: GatewayConfig
metadata: {{name: bench}}
dataplane:
  cores: [{core}]
  idle: {idle}
  memory: {{hugepages: {hugepages}, sizeMiB: {MEMORY_MIB}}}
  flowTable: {{directory: "{flows}"}}
  interfaces:
    - {{name: clients, device: "{clients}", addresses: ["{own}/{length}"]}}
    - {{name: backends, device: "{backends}", addresses: ["{beside}/{length}"]}}
  routes: [{{to: "{all}", via: "{router}"}}]
  neighbors:
{neighbors}  snatAddresses: [{snat}]
  tunnelSource: ["{beside}"]
source:
  directory: {{path: manifests, watch: true, stateDirectory: state}}
services:
  defaults: {{drainTimeout: 5s, flowTracking: {tracking}}}
pools:
  - {{name: vips, addresses: ["{vips}"]}}
admin: {{socket: {socket}, listen: "127.0.0.1:9469", healthz: "127.0.0.1:10356"}}
protection: {{synCookies: "off"}}
"#,
        core = setup.forwarder_cpu,
        tracking = match scenario.flow_tracking {
            Tracking::Always => "always",
            Tracking::OnChange => "on-change",
        },
        // The next process starts on the same CPUs.
        idle = if flows.is_some() { "adaptive" } else { "poll" },
        hugepages = setup.hugepages,
        flows = flows.map(|path| path.display().to_string()).unwrap_or_default(),
        clients = devices[0],
        backends = devices[1],
        beside = backend_side(family),
        snat = snat.join(", "),
        socket = directory.join("tidegate.sock").display(),
    )
}

/// Repeatedly replaces a backend of one service until `ended`, and samples the resources of the process.
///
/// # Errors
/// The process ends, or a manifest cannot be written.
pub(super) fn change_backends(
    lab: &Lab,
    scenario: &Scenario,
    process: &LabProcess,
    soak: Soak,
    mut ended: impl FnMut() -> bool,
) -> Result<Vec<Sample>> {
    let manifests: PathBuf = lab.directory().join("manifests");
    let (begin, mut samples, mut change) = (Instant::now(), Vec::new(), 0);
    let every = Duration::from_secs_f64((soak.seconds / 100.0).clamp(1.0, 60.0));
    let mut sampled: Option<Instant> = None;
    while !ended() {
        change += 1;
        manifest(scenario, change % scenario.services, change).write(&manifests)?;
        if sampled.is_none_or(|last| last.elapsed() >= every) {
            sampled = Some(Instant::now());
            samples.push(sample(lab, process, begin).context("a sample of the gateway")?);
        }
        std::thread::sleep(Duration::from_secs_f64(soak.change_every));
    }
    Ok(samples)
}

/// `/metrics` of the gateway.
pub(super) struct Metrics(String);

impl Metrics {
    pub(super) fn read(lab: &Lab) -> Result<Self> {
        let arguments = ["-s", "--max-time", "5", "http://127.0.0.1:9469/metrics"];
        let out = lab.gateway().command("curl").args(arguments).output()?;
        Ok(Self(String::from_utf8_lossy(&out.stdout).into_owned()))
    }

    /// The value of a series, written as on the page.
    pub(super) fn value(&self, series: &str) -> Option<f64> {
        let line = self.0.lines().find(|line| line.starts_with(series))?;
        line.rsplit(' ').next()?.parse().ok()
    }
}

fn sample(lab: &Lab, process: &LabProcess, begin: Instant) -> Result<Sample> {
    let one = Process::new(i32::try_from(process.pid())?)?;
    let resident = one.statm()?.resident * procfs::page_size();
    let metrics = Metrics::read(lab)?;
    let value = |name: &str| metrics.value(name).map(|value| value as u64);
    Ok(Sample {
        at: begin.elapsed().as_secs_f64(),
        resident_mib: resident as f64 / f64::from(1 << 20),
        files: one.fd_count()?,
        buffers_free: value("tidegate_packet_buffers{state=\"free\"}"),
        generation: value("tidegate_snapshot_generation{kind=\"applied\"}").unwrap_or(0),
    })
}
