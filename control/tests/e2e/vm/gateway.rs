//! The gateway in the machine: `tidegate run` on a NIC that is bound to vfio-pci, as an operator would do it.
//!
//! The configuration is that of the other end-to-end tests, except for the device. Commands of the gateway run in the
//! machine.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tidegate_netlab::gateway::config_of;
use tidegate_netlab::namespace::output_of;
use tidegate_netlab::{Gateway, GatewayOptions, Lab, wait_for};

use super::machine::{Machine, Nic};

/// The maximum time until the gateway is ready, or has ended, under emulation and on a busy host.
const BOUND: Duration = Duration::from_secs(120);
const SOCKET: &str = "/run/tidegate.sock";

/// Writes the configuration for the NIC, and puts the binary where the machine finds it.
pub(super) fn configure(lab: &Lab, nic: Nic) -> Result<()> {
    let options = GatewayOptions {
        cores: (1..=u32::from(nic.queues)).collect(),
        hugepages: true,
        // A check takes a few milliseconds under emulation, and sometimes many.
        health_interval: Duration::from_secs(4),
        ..GatewayOptions::default()
    };
    Gateway::configure(lab, &options)?;
    let mut text = fs::read_to_string(config_of(lab))?;
    let socket = lab.directory().join("tidegate.sock").display().to_string();
    let device = format!("net_af_packet0,iface=eth0,qpairs={}", nic.queues);
    for (from, to) in [(device.as_str(), Nic::ADDRESS), (&socket, SOCKET)] {
        ensure!(text.matches(from).count() == 1, "the configuration has no {from}, or several");
        text = text.replace(from, to);
    }
    fs::write(config_of(lab), text)?;
    let mut strip = Command::new("strip");
    output_of(strip.arg("-o").arg(lab.directory().join("tidegate")).arg(&lab.plan().tidegate)).map(drop)
}

/// Binds the NIC to vfio-pci with DPDK's own tool, and copies the binary into the memory of the machine.
pub(super) fn prepare(machine: &mut Machine, nic: Nic) -> Result<()> {
    let before = machine.must("dpdk-devbind.py --status-dev net")?;
    ensure!(
        before.contains(Nic::ADDRESS) && before.contains("using kernel driver"),
        "{}: not a NIC of the kernel: {before}",
        nic.name
    );
    machine.must(&format!("dpdk-devbind.py --bind=vfio-pci {}", Nic::ADDRESS))?;
    let after = machine.must("dpdk-devbind.py --status-dev net")?;
    ensure!(after.contains("drv=vfio-pci"), "{}: not bound: {after}", nic.name);
    machine.must("mkdir /run/bin && cp tidegate /run/bin/tidegate").map(drop)
}

/// Starts the gateway, and waits until it is ready.
pub(super) fn start(machine: &mut Machine, config: &Path) -> Result<()> {
    let inner = format!("echo $$ >gateway.pid; exec /run/bin/tidegate run -c {}", config.display());
    machine.must(&format!(
        "rm -f gateway.exit; (sh -c '{inner}'; echo $? >gateway.exit) >>gateway.log 2>&1 3>&- &"
    ))?;
    let mut ended = None;
    wait_for("the gateway to be ready", BOUND, || {
        ended = machine.must("cat gateway.exit").ok();
        let mut is_ready =
            || query(machine, "status -o json").is_ok_and(|text| text.contains("\"ready\": true"));
        (ended.is_some() || is_ready()).then_some(())
    })?;
    ensure!(ended.is_none(), "the gateway ended with {ended:?}");
    Ok(())
}

/// Sends a signal, and returns the exit code.
pub(super) fn stop(machine: &mut Machine, signal: &str) -> Result<i32> {
    machine.must(&format!("kill -{signal} $(cat gateway.pid)"))?;
    let code = wait_for("the end of the gateway", BOUND, || {
        machine.must("cat gateway.exit").ok()?.trim().parse().ok()
    })?;
    Ok(code)
}

/// Queries the gateway with a command.
pub(super) fn query(machine: &mut Machine, command: &str) -> Result<String> {
    machine.must(&format!("/run/bin/tidegate {command} --socket {SOCKET}"))
}

/// The answer to a command with `-o json`.
pub(super) fn query_json(machine: &mut Machine, command: &str) -> Result<serde_json::Value> {
    let text = query(machine, &format!("{command} -o json"))?;
    serde_json::from_str(&text).with_context(|| format!("`{command}` answered {text}"))
}

/// The sum of the samples of a metric whose labels contain this text.
pub(super) fn metric(machine: &mut Machine, name: &str, label: &str) -> Result<u64> {
    let text = query(machine, "metrics")?;
    let samples = text.lines().filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        (series.split('{').next() == Some(name) && series.contains(label))
            .then(|| value.parse::<f64>().ok())?
    });
    Ok(samples.sum::<f64>() as u64)
}
