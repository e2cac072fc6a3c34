//! `dpdk-testpmd` (Debian: dpdk-dev), which passes each frame on to the other port and does nothing else.

use std::time::Duration;

use anyhow::Result;
use tidegate_netlab::Lab;
use tidegate_netlab::process::LabProcess;

use super::testbed::{Setup, wait_for_line};

/// Starts it, forwarding with one core.
///
/// # Errors
/// It is not installed, or does not start.
pub(super) fn start(lab: &Lab, setup: &Setup, devices: &[String; 2]) -> Result<LabProcess> {
    let cpus = format!("{},{}", setup.generator_cpu, setup.forwarder_cpu);
    let main = setup.generator_cpu.to_string();
    let mut arguments: Vec<String> =
        ["-l", &cpus, "--main-lcore", &main, "--no-pci", "--in-memory"].map(str::to_owned).to_vec();
    if setup.hugepages {
        arguments.extend(["-m", "128"].map(str::to_owned));
    } else {
        arguments.retain(|argument| argument != "--in-memory");
        arguments.extend(["--no-huge", "--no-shconf", "-m", "256"].map(str::to_owned));
    }
    arguments.extend(devices.iter().map(|device| format!("--vdev={device}")));
    arguments.extend(
        ["--", "--forward-mode=io", "--nb-cores=1", "--total-num-mbufs=32767", "--rxd=1024", "--txd=1024"]
            .map(str::to_owned),
    );
    // Without a terminal, it forwards until it can read a line.
    arguments.push("--stats-period=1000000".to_owned());
    let mut process =
        LabProcess::start(lab.gateway(), lab.directory(), "testpmd", "dpdk-testpmd", &arguments)?;
    wait_for_line(&mut process, "packet forwarding", Duration::from_secs(30))?;
    Ok(process)
}
