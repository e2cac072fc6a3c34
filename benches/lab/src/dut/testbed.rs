//! The environment of a round before its forwarder starts: the namespaces, the wires between them and the generator;
//! also the commands and logs that the forwarders share.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::{Lab, LabPlan, wait_for};
use tidegate_wire::MacAddr;

use crate::generator::{Job, Soak, Stream};
use crate::packets::{BACKEND_SIDE_MAC, CLIENT_SIDE_MAC, GENERATOR_MAC};
use crate::scenario::{Forwarder, Mode, Scenario, Wire};

/// The settings that all rounds have in common.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    /// The `tidegate` binary.
    pub(crate) tidegate: PathBuf,
    pub(crate) hugepages: bool,
    /// The CPU of the generator, and of everything except the forwarder's worker.
    pub(crate) generator_cpu: usize,
    /// The CPU of the forwarder's worker.
    pub(crate) forwarder_cpu: usize,
}

/// The link addresses of the forwarder.
const FORWARDER_MACS: [MacAddr; 2] = [CLIENT_SIDE_MAC, BACKEND_SIDE_MAC];
const LISTENING: Duration = Duration::from_secs(30);

/// A lab with a generator whose ports are open, and no forwarder yet.
pub(super) struct Testbed {
    pub(super) lab: Lab,
    pub(super) generator: Child,
    pub(super) forwarder_devices: [String; 2],
}

/// Builds the lab and starts the generator.
///
/// # Errors
/// The lab or the generator does not start.
pub(super) fn testbed(
    scenario: &Scenario,
    setup: &Setup,
    soak: Option<Soak>,
    stream: Option<Stream>,
) -> Result<Testbed> {
    let lab = Lab::build(&LabPlan { servers: 0, vips: Vec::new(), tidegate: setup.tidegate.clone() })?;
    let devices = match scenario.wire {
        Wire::Memif => [0, 1].map(|n| memif(lab.directory(), n, "server", GENERATOR_MAC)),
        Wire::Veth => {
            connect(&lab)?;
            [0, 1].map(|n| format!("net_af_packet{n},iface=gen{n}"))
        }
    };
    let listening = lab.directory().join("listening");
    let job = Job {
        scenario: scenario.clone(),
        devices,
        returns: scenario.forwarder == Forwarder::Kernel || scenario.mode.is_some_and(Mode::returns),
        hugepages: setup.hugepages,
        cpu: setup.generator_cpu,
        listening: listening.clone(),
        soak,
        stream,
    };
    let job_file = lab.directory().join("job.json");
    std::fs::write(&job_file, serde_json::to_string(&job)?)?;
    let mut generator = lab
        .client()
        .command("nice")
        .args(["-n", "-19"])
        .arg(std::env::current_exe()?)
        .arg("generate")
        .arg(&job_file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("the generator")?;
    wait_for("the generator's ports", LISTENING, || {
        (listening.exists() || generator.try_wait().ok().flatten().is_some()).then_some(())
    })?;
    ensure!(listening.exists(), "the generator cannot open its ports");

    let forwarder_devices = match scenario.wire {
        Wire::Memif => [0, 1].map(|n| memif(lab.directory(), n, "client", FORWARDER_MACS[n])),
        Wire::Veth => [0, 1].map(|n| format!("net_af_packet{n},iface=dut{n}")),
    };
    Ok(Testbed { lab, generator, forwarder_devices })
}

/// The end of a log, as the end of an error message.
pub(super) fn log_end(process: &mut LabProcess) -> String {
    format!("; the forwarder's log ends:\n{}", process.log_tail(15))
}

/// One end of a ring in shared memory.
fn memif(directory: &Path, n: usize, role: &str, mac: MacAddr) -> String {
    format!(
        "net_memif{n},role={role},id={n},mac={mac},rsize=11,socket-abstract=no,socket={}/memif{n}.sock",
        directory.display()
    )
}

/// Connects the namespaces by two links without offloads.
fn connect(lab: &Lab) -> Result<()> {
    for (n, mac) in FORWARDER_MACS.iter().enumerate() {
        lab.gateway().ip_batch(&format!(
            "link add dut{n} address {mac} type veth peer name gen{n} netns {}\nlink set dut{n} up",
            lab.client().name()
        ))?;
        lab.client().ip_batch(&format!("link set gen{n} up"))?;
        lab.client().turn_off_offloads(&format!("gen{n}"))?;
        lab.gateway().turn_off_offloads(&format!("dut{n}"))?;
    }
    Ok(())
}

/// Runs a shell command in the forwarder's namespace.
pub(super) fn shell(lab: &Lab, text: &str) -> Result<()> {
    let out = lab.gateway().command("sh").args(["-c", text]).output()?;
    ensure!(out.status.success(), "{text}: {}", String::from_utf8_lossy(&out.stderr).trim());
    Ok(())
}

/// Waits until a log has a line with this text.
pub(super) fn wait_for_line(process: &mut LabProcess, text: &str, bound: Duration) -> Result<()> {
    let since = Instant::now();
    while !process.log().contains(text) {
        ensure!(process.runs() && since.elapsed() < bound, "no {text:?}{}", log_end(process));
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
