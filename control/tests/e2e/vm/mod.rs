//! NICs with DPDK's own drivers: the gateway in a virtual machine under emulation, on emulated PCI NICs that are bound
//! to vfio-pci, with real clients and servers in namespaces of the host.
//!
//! `make vm-test` runs these tests. They take minutes, because every instruction is emulated. Each prints a line for
//! each check. If a check fails, the output of the machine and the gateway is kept in `target/vm/logs`.

mod gateway;
mod machine;

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use machine::{Machine, Nic};
use tidegate_netlab::addresses::client;
use tidegate_netlab::client::{EchoConnection, udp_request};
use tidegate_netlab::gateway::{config_of, manifests_of as directory_of};
use tidegate_netlab::modes::{ModePath, every_path, manifests_of, vips_on_servers, with_sctp};
use tidegate_netlab::{Lab, wait_for};

use crate::matrix::try_every_path;
use crate::sctp::Peers;
use crate::world::{alone, lab_with};

/// The maximum time until a change is visible, under emulation and on a busy host.
const BOUND: Duration = Duration::from_secs(120);

/// Long tests, each with a virtual machine under emulation.
mod long {
    use super::*;

    #[test]
    #[ignore = "boots a virtual machine: make vm-test"]
    fn virtio_with_two_workers_and_rss() {
        run(Nic {
            name: "virtio",
            // The IOMMU is between the device and the memory only with `iommu_platform`.
            device: "virtio-net-pci,mq=on,vectors=6,rss=on,hash=on,disable-legacy=on,iommu_platform=on",
            queues: 2,
            driver: "net_virtio",
            rss: "tcp,udp",
        });
    }

    #[test]
    #[ignore = "boots a virtual machine: make vm-test"]
    fn e1000e_with_one_worker() {
        run(Nic { name: "e1000e", device: "e1000e", queues: 1, driver: "net_e1000_em", rss: "one-queue" });
    }

    #[test]
    #[ignore = "boots a virtual machine: make vm-test"]
    fn vmxnet3_with_one_worker() {
        // With two receive queues, QEMU's vmxnet3 reads an address that the driver has not given to it, and stops.
        run(Nic { name: "vmxnet3", device: "vmxnet3", queues: 1, driver: "net_vmxnet3", rss: "one-queue" });
    }
}

/// A machine with its gateway, and the checks so far.
struct Setup {
    nic: Nic,
    machine: Machine,
    config: PathBuf,
    faults: Vec<String>,
    // The last field, so that the machine ends before the namespaces of the lab.
    lab: Lab,
}

fn run(nic: Nic) {
    let _machine = alone();
    let lab = lab_with(2, vips_on_servers());
    let peers = Peers::start(&lab, 2);
    gateway::configure(&lab, nic).expect("the configuration");
    for manifest in with_sctp(manifests_of(&every_path(), &[1, 2])) {
        manifest.write(&directory_of(&lab)).expect("a manifest");
    }
    let config = config_of(&lab);
    let machine = Machine::boot(&lab, nic).unwrap_or_else(|error| panic!("{error:#}"));
    let mut setup = Setup { nic, machine, config, faults: Vec::new(), lab };
    let steps: [(&str, Step); 10] = [
        ("dpdk-devbind.py binds it to vfio-pci, and the gateway starts on it", binds_and_starts),
        ("all backends become active", becomes_active),
        ("replies of fullnat arrive at the worker of their flow", counts_hand_overs),
        ("an established nat connection is sent by the worker that receives it", hands_over_the_first_only),
        ("`status` reports what was agreed with the driver", reports_what_was_agreed),
        ("the NIC brings packets where the gateway computes", arrives_as_computed),
        ("the link goes down and up, connections stay", survives_link),
        ("after SIGKILL the gateway starts on the NIC again", starts_after_kill),
        ("all backends become active again", becomes_active),
        ("SIGTERM ends the gateway", ends),
    ];
    for (n, (what, step)) in steps.into_iter().enumerate() {
        let done = step(&mut setup);
        let is_fatal = done.is_err() && n < 2;
        setup.report(what, done);
        if is_fatal {
            break;
        }
        if n == 1 {
            setup.every_mode(&peers);
        }
    }
    let faults = std::mem::take(&mut setup.faults);
    if !faults.is_empty() {
        setup.keep_logs();
    }
    assert!(faults.is_empty(), "{}: {faults:#?}", nic.name);
}

/// A check. Its text describes what it has seen.
type Step = fn(&mut Setup) -> Result<String>;

impl Setup {
    /// Prints the line of a check.
    fn report(&mut self, what: &str, done: Result<String>) {
        let name = self.nic.name;
        match done {
            Ok(more) if more.is_empty() => println!("vm-test: ok    {name}: {what}"),
            Ok(more) => println!("vm-test: ok    {name}: {what}: {more}"),
            Err(error) => {
                println!("vm-test: FAIL  {name}: {what}: {error:#}");
                self.faults.push(format!("{what}: {error:#}"));
            }
        }
    }

    /// Real endpoints over every mode, family and protocol.
    fn every_mode(&mut self, peers: &Peers) {
        let (works, faults) = try_every_path(&self.lab, peers);
        for (path, protocols) in works {
            let what = format!("{} {}", path.label(), path.family);
            let missing = faults.iter().filter(|fault| fault.starts_with(&what)).cloned();
            let missing: Vec<String> = missing.collect();
            let done = match protocols.len() {
                3 => Ok(protocols.join(", ")),
                _ => Err(anyhow::anyhow!("{}", missing.join("; "))),
            };
            self.report(&what, done);
        }
    }

    /// A connection from the client's address number `n`.
    fn connect(&self, path: ModePath, n: u8) -> Result<EchoConnection> {
        EchoConnection::connect(
            self.lab.client(),
            SocketAddr::new(client(path.family, n), 0),
            path.tcp_echo(),
        )
    }

    /// The state of the link, and whether the gateway is ready.
    fn link(&mut self) -> Result<(String, bool)> {
        let status = gateway::query_json(&mut self.machine, "status")?;
        let link = status["interfaces"][0]["link"]["state"].as_str().unwrap_or_default();
        Ok((link.to_owned(), status["ready"] == true))
    }

    /// Copies the output of the machine and the gateway.
    fn keep_logs(&self) {
        let Some(image) = std::env::var_os("TIDEGATE_VM_IMAGE") else { return };
        let kept = Path::new(&image).join("logs").join(self.nic.name);
        let copied = fs::create_dir_all(&kept).and_then(|()| {
            fs::write(kept.join("console.log"), self.machine.console())?;
            for name in ["gateway.log", "gateway.yaml", "out"] {
                if self.lab.directory().join(name).exists() {
                    fs::copy(self.lab.directory().join(name), kept.join(name))?;
                }
            }
            Ok(())
        });
        match copied {
            Ok(()) => println!("vm-test: logs  {}: {}", self.nic.name, kept.display()),
            Err(error) => println!("vm-test: logs  {}: not kept: {error}", self.nic.name),
        }
    }
}

fn binds_and_starts(setup: &mut Setup) -> Result<String> {
    gateway::prepare(&mut setup.machine, setup.nic)?;
    gateway::start(&mut setup.machine, &setup.config)?;
    let log = setup.machine.must("cat gateway.log")?;
    let driver = format!("driver=\"{}\"", setup.nic.driver);
    ensure!(log.contains(&driver), "the log names no {driver}: {log}");
    Ok(setup.nic.driver.to_owned())
}

fn becomes_active(setup: &mut Setup) -> Result<String> {
    let is_passive = |port: &serde_json::Value| {
        let backends = port["backends"].as_array().into_iter().flatten();
        let active = backends.filter(|backend| backend["state"] == "active");
        let active: BTreeSet<&str> = active.filter_map(|backend| backend["address"].as_str()).collect();
        active.len() != 2
    };
    let mut passive = Vec::new();
    let waited = wait_for("active backends", BOUND, || {
        let answer = gateway::query_json(&mut setup.machine, "services -A").ok()?;
        let services = answer["items"].as_array()?;
        let ports = services.iter().flat_map(|service| service["ports"].as_array().into_iter().flatten());
        let named = ports.filter(|port| is_passive(port)).map(|port| port["vip"].to_string());
        passive = named.collect();
        (passive.is_empty() && !services.is_empty()).then_some(())
    });
    waited.with_context(|| format!("{passive:?}")).map(|()| String::new())
}

/// The NIC hashes addresses and ports, and the gateway chooses the local ports of `fullnat` so that replies arrive at
/// the worker that owns the flow: no packet is handed over.
fn counts_hand_overs(setup: &mut Setup) -> Result<String> {
    const FLOWS: u8 = 64;
    let mut counts = Vec::new();
    for mode in ["fullnat", "nat"] {
        let before = gateway::metric(&mut setup.machine, "tidegate_hand_overs_total", "")?;
        let received = gateway::metric(&mut setup.machine, "tidegate_packets_total", "")?;
        for path in every_path().into_iter().filter(|path| path.forwarding == mode) {
            for n in 0..FLOWS {
                let source = SocketAddr::new(client(path.family, n % 16), 0);
                udp_request(setup.lab.client(), source, path.udp_echo(), "which worker?")?;
                setup.connect(path, n % 16)?.ping()?;
            }
        }
        let after = gateway::metric(&mut setup.machine, "tidegate_hand_overs_total", "")?;
        let packets = gateway::metric(&mut setup.machine, "tidegate_packets_total", "")? - received;
        counts.push((mode, after - before, packets));
    }
    let text = counts.iter().map(|(mode, handed_over, packets)| {
        format!("{mode}: {handed_over} of {packets} packets received and sent were handed over")
    });
    let text = text.collect::<Vec<_>>().join(", ");
    let has_rss = setup.nic.queues == 1 || setup.nic.device.contains("rss=on");
    ensure!(!has_rss || counts[0].1 == 0, "{text}");
    Ok(text)
}

/// The packets of a `nat` connection may arrive at two workers, of which one owns the flow. Only the first and last
/// packets of the connection are handed over, and a few more until the worker that receives the others has its copy.
fn hands_over_the_first_only(setup: &mut Setup) -> Result<String> {
    const CONNECTIONS: u8 = 8;
    const PINGS: u32 = 100;
    /// Packets of a handshake and of a close in both directions, and as many again.
    const FIRST_AND_LAST: u32 = 16;
    let before = gateway::metric(&mut setup.machine, "tidegate_hand_overs_total", "")?;
    let path = every_path().into_iter().find(|path| path.forwarding == "nat").context("a path of nat")?;
    for n in 0..CONNECTIONS {
        let mut connection = setup.connect(path, n)?;
        for _ in 0..PINGS {
            connection.ping()?;
        }
    }
    let handed_over = gateway::metric(&mut setup.machine, "tidegate_hand_overs_total", "")? - before;
    let connections = u32::from(CONNECTIONS);
    let text =
        format!("{handed_over} hand-overs in {connections} connections of {PINGS} requests and answers each");
    ensure!(handed_over <= u64::from(connections * FIRST_AND_LAST), "{text}");
    Ok(text)
}

fn reports_what_was_agreed(setup: &mut Setup) -> Result<String> {
    let status = gateway::query_json(&mut setup.machine, "status")?;
    let port = &status["interfaces"][0]["port"];
    let Nic { driver, rss, queues, .. } = setup.nic;
    ensure!(port["driver"] == driver && port["rss"] == rss && port["queues"] == queues, "{port}");
    ensure!(port["mtu"] == 1500 && port["rxDescriptors"].as_u64() > Some(0), "{port}");
    let offloads = port["txOffloads"].as_array().context("a list of offloads")?;
    ensure!(!offloads.iter().any(|offload| offload == "MULTI_SEGS"), "{port}");
    // The driver's own counter, which is read once a second.
    let stat = "stat=\"rx_good_packets\"";
    let received = gateway::metric(&mut setup.machine, "tidegate_port_stat_total", stat)?;
    ensure!(received > 1000, "the driver counts {received} packets");
    Ok(port.to_string())
}

fn arrives_as_computed(setup: &mut Setup) -> Result<String> {
    let mut count = |result: &str| {
        let label = format!("result=\"{result}\"");
        gateway::metric(&mut setup.machine, "tidegate_rss_checks_total", &label)
    };
    let (expected, elsewhere) = (count("expected")?, count("elsewhere")?);
    let text = format!("{expected} of a sample of {} packets", expected + elsewhere);
    let is_computed = setup.nic.rss.starts_with("tcp,udp");
    ensure!(elsewhere == 0 && (expected > 0) == is_computed, "{text}");
    Ok(text)
}

fn survives_link(setup: &mut Setup) -> Result<String> {
    let paths = every_path().into_iter().filter(|path| path.family == path.backends);
    let paths: Vec<ModePath> = paths.collect();
    let mut open = Vec::new();
    for (n, path) in paths.into_iter().enumerate() {
        open.push((path, setup.connect(path, n as u8 % 16)?));
    }
    for (up, expected) in [(false, ("no-carrier".to_owned(), false)), (true, ("up".to_owned(), true))] {
        setup.machine.set_link(up)?;
        let mut last = None;
        let waited = wait_for("the link", BOUND, || {
            last = setup.link().ok();
            (last.as_ref() == Some(&expected)).then_some(())
        });
        waited.with_context(|| format!("set_link up={up}: {last:?}"))?;
    }
    for (path, connection) in &mut open {
        connection.ping_late(BOUND).with_context(|| format!("{} {}", path.label(), path.family))?;
    }
    Ok(format!("{} connections", open.len()))
}

fn starts_after_kill(setup: &mut Setup) -> Result<String> {
    gateway::stop(&mut setup.machine, "KILL")?;
    gateway::start(&mut setup.machine, &setup.config).map(|()| String::new())
}

fn ends(setup: &mut Setup) -> Result<String> {
    for path in every_path() {
        let what = format!("{} {}", path.label(), path.family);
        setup.connect(path, 0).and_then(|mut connection| connection.ping()).context(what)?;
    }
    let code = gateway::stop(&mut setup.machine, "TERM")?;
    ensure!(code == 0, "with exit code {code}");
    Ok(String::new())
}
