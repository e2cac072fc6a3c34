//! The device under test: one round of one scenario, from the namespaces to the results of the generator.
//!
//! ```text
//!   client namespace            gateway namespace
//!   generator, one thread ====> forwarder, one worker    memif: rings in shared memory
//!        ^                         |                     veth: links gen0-dut0 and gen1-dut1
//!        +=========================+
//! ```
//! The namespaces are those of the end-to-end tests, so that whatever happens, they are removed.

mod kernel;
mod restarts;
mod testpmd;
mod tidegate;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::{Lab, LabPlan, wait_for};
use tidegate_wire::MacAddr;

use crate::generator::{Job, Measured, Soak, Stream};
use crate::packets::{BACKEND_SIDE_MAC, CLIENT_SIDE_MAC, GENERATOR_MAC};
use crate::scenario::{Forwarder, Mode, Scenario, Wire};

pub(crate) use restarts::{Restarted, restarts};
pub(crate) use tidegate::Sample;

/// What all rounds have in common.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    /// The `tidegate` binary.
    pub(crate) tidegate: PathBuf,
    pub(crate) hugepages: bool,
    /// The CPU of the generator, and of everything that is not the forwarder's worker.
    pub(crate) generator_cpu: usize,
    /// The CPU of the forwarder's worker.
    pub(crate) forwarder_cpu: usize,
}

/// One round: the figures of the generator, and in a soak what the forwarder used.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) measured: Measured,
    pub(crate) samples: Vec<Sample>,
}

/// The link addresses of the forwarder.
const FORWARDER_MACS: [MacAddr; 2] = [CLIENT_SIDE_MAC, BACKEND_SIDE_MAC];
const LISTENING: Duration = Duration::from_secs(30);

/// Runs one round.
///
/// # Errors
/// The lab or a program does not start, or the generator fails; the message has the end of the forwarder's log.
pub(crate) fn round(scenario: &Scenario, setup: &Setup, soak: Option<Soak>) -> Result<Round> {
    let Stand { lab, mut generator, forwarder_devices } = stand(scenario, setup, soak, None)?;
    let mut forwarder = match scenario.forwarder {
        Forwarder::Tidegate => Some(tidegate::start(&lab, scenario, setup, &forwarder_devices, None)?),
        Forwarder::Testpmd => Some(testpmd::start(&lab, setup, &forwarder_devices)?),
        Forwarder::Kernel => {
            kernel::start(&lab, scenario, setup)?;
            None
        }
    };
    // The results of a long soak are larger than a pipe, so they are read while the generator writes them.
    let mut results = generator.stdout.take().context("the generator's output is a pipe")?;
    let reading = std::thread::spawn(move || {
        let mut all = Vec::new();
        results.read_to_end(&mut all).map(|_| all)
    });
    let mut samples = Vec::new();
    if let (Some(soak), Some(process)) = (soak, &forwarder) {
        samples = tidegate::change_backends(&lab, scenario, process, soak, || {
            generator.try_wait().ok().flatten().is_some()
        })?;
    }
    let status = generator.wait()?;
    let out = reading.join().expect("reading does not panic")?;
    match serde_json::from_slice(&out).ok() {
        Some(measured) if status.success() => Ok(Round { measured, samples }),
        _ => bail!(
            "{}: the generator failed{}",
            scenario.name(),
            forwarder.as_mut().map_or_else(String::new, last_words)
        ),
    }
}

/// A lab with a generator whose ports are open, and no forwarder yet.
struct Stand {
    lab: Lab,
    generator: Child,
    forwarder_devices: [String; 2],
}

fn stand(scenario: &Scenario, setup: &Setup, soak: Option<Soak>, stream: Option<Stream>) -> Result<Stand> {
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
    Ok(Stand { lab, generator, forwarder_devices })
}

/// The end of a log, as the end of a message.
fn last_words(process: &mut LabProcess) -> String {
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
fn shell(lab: &Lab, text: &str) -> Result<()> {
    let out = lab.gateway().command("sh").args(["-c", text]).output()?;
    ensure!(out.status.success(), "{text}: {}", String::from_utf8_lossy(&out.stderr).trim());
    Ok(())
}

/// Waits until a log has a line with this text.
fn wait_for_line(process: &mut LabProcess, text: &str, bound: Duration) -> Result<()> {
    let since = Instant::now();
    while !process.log().contains(text) {
        ensure!(process.runs() && since.elapsed() < bound, "no {text:?}{}", last_words(process));
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
