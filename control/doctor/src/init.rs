//! `tidegate init`: a first `gateway.yaml` for this machine, with comments.
//!
//! It takes what the machine knows: a NIC with its addresses, its MTU and its routers; CPUs; free hugepages. What only
//! the operator knows is a comment that says what to fill in. The text is checked before it is written.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use ipnet::IpNet;
use tidegate_model::config;
use tidegate_model::yaml::text::is_rfc1123_subdomain;
use tidegate_wire::Addr;

use crate::machine::{Machine, show_cpus};
use crate::network::{Link, Network};

/// Packet memory if there is plenty, and if there is little.
const MEMORY_MIB: [u64; 2] = [1024, 256];
/// The MTUs that a configuration accepts.
const MTU: std::ops::RangeInclusive<u32> = 576..=9216;

/// Options of `init`.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// The NIC: an interface of the kernel, or a PCI address that DPDK drives [default: that of the default route]
    #[arg(long, value_name = "NAME")]
    nic: Option<String>,
    /// Addresses for Services; repeatable, for both families
    #[arg(long, value_name = "CIDR")]
    pool: Vec<IpNet>,
    /// Read Services from the API server of this kubeconfig instead of a directory
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The file to write
    #[arg(short, long, value_name = "FILE", default_value = "gateway.yaml")]
    output: PathBuf,
}

pub(super) fn run(args: &InitArgs) -> anyhow::Result<ExitCode> {
    let path = &args.output;
    let network = Network::read().context("cannot read the kernel's links, addresses and routes")?;
    let machine = Machine::here();
    let text = configuration(&machine, &network, args)?;
    let base = path.parent().unwrap_or(Path::new(""));
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let report = config::parse(&text, &path.to_string_lossy(), base, cores).report;
    if report.has_errors() {
        bail!("nothing is written, because the configuration would be refused:\n{report}");
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    let created = OpenOptions::new().write(true).create_new(true).open(path);
    let mut file = created
        .with_context(|| format!("cannot create {} (init never overwrites a file)", path.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
    let shown = path.display();
    println!("{shown} written. Next:");
    if args.kubeconfig.is_none() {
        let manifests = base.join("manifests");
        fs::create_dir_all(&manifests).with_context(|| format!("cannot create {}", manifests.display()))?;
        println!("  put manifests of Services and EndpointSlices into {}", manifests.display());
    }
    println!("  tidegate check -c {shown}");
    println!("  tidegate doctor -c {shown}");
    if has_unit(&machine, path) {
        println!("  systemctl enable --now tidegate");
    } else {
        println!("  tidegate run -c {shown}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether systemd has the unit of `deploy/systemd`, and the unit reads this file.
fn has_unit(machine: &Machine, path: &Path) -> bool {
    let directories = ["etc/systemd/system", "lib/systemd/system"];
    path == Path::new("/etc/tidegate/gateway.yaml")
        && directories.iter().any(|directory| machine.path(format!("{directory}/tidegate.service")).exists())
}

/// The NIC of the gateway.
enum Nic<'a> {
    Kernel(&'a Link),
    Pci(&'a str),
}

fn nic<'a>(machine: &Machine, network: &'a Network, name: Option<&'a str>) -> anyhow::Result<Nic<'a>> {
    let candidates = || network.links.iter().filter(|link| !link.is_loopback);
    let names = || candidates().map(|link| link.name.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(name) = name {
        if let Some(link) = network.link(name) {
            return Ok(Nic::Kernel(link));
        }
        if machine.path(format!("sys/bus/pci/devices/{name}")).exists() {
            return Ok(Nic::Pci(name));
        }
        bail!("--nic: interface {name} does not exist; accepted: a PCI address, or one of {}", names());
    }
    let by_route = network.default_routers.first().map(|(index, _)| *index);
    let mut usable = candidates().filter(|link| link.is_up && link.has_carrier);
    let chosen = match by_route {
        Some(index) => candidates().find(|link| link.index == index),
        None => usable.next().filter(|_| usable.next().is_none()),
    };
    chosen.map(Nic::Kernel).with_context(|| {
        format!(
            "there is no default route that shows which NIC to use; accepted: --nic, with one of {}",
            names()
        )
    })
}

fn configuration(machine: &Machine, network: &Network, args: &InitArgs) -> anyhow::Result<String> {
    let nic = nic(machine, network, args.nic.as_deref())?;
    let mut text = String::new();
    let mut line = |line: &str| writeln!(text, "{line}").expect("writing to a String cannot fail");
    line("# A gateway on this machine, written by `tidegate init`. docs/configuration.md has every key.");
    line(&format!("apiVersion: {}\nkind: {}", config::API_VERSION, config::KIND));
    line(&format!("metadata: {{name: {}}}  # a name of its own for each gateway", name(machine)));
    line("dataplane:");
    let (cores, why) = cores(machine);
    line(&format!("  cores: [{cores}]  # {why}"));
    let (memory, why) = memory(machine);
    line(&format!("  memory: {memory}  # {why}"));
    line("  interfaces:");
    line("    - name: uplink");
    let addresses = match nic {
        Nic::Kernel(link) => kernel_interface(network, link, &mut line),
        Nic::Pci(address) => {
            line(&format!("      device: \"{address}\"  # bound to vfio-pci: docs/nics.md"));
            line(
                "      addresses: []  # the gateway's own addresses, such as [\"192.0.2.2/24\", \"2001:db8::2/64\"]",
            );
            Vec::new()
        }
    };
    routes(network, &addresses, &mut line);
    line(
        "  # Sources of connections to backends in mode fullnat, the default: unused addresses that are routed to this",
    );
    line("  # gateway, at least one of each family.");
    line("  # snatAddresses: [\"192.0.2.3\", \"2001:db8::3\"]");
    line("source:");
    match &args.kubeconfig {
        Some(path) => {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            line(&format!("  kubernetes: {{kubeconfig: {}}}", quoted(&path.to_string_lossy())));
        }
        None => {
            line("  directory: {path: manifests}  # beside this file");
            line("  # kubernetes: {kubeconfig: /etc/tidegate/kubeconfig}  # instead of the directory");
        }
    }
    line(
        "# Addresses that Services get. Routers must have a route to them through this gateway, unless they are on the",
    );
    line("# link of an interface.");
    if args.pool.is_empty() {
        line("# pools: [{name: public, addresses: [\"203.0.113.0/28\"]}]");
    } else {
        let pools: Vec<String> = args.pool.iter().map(|net| format!("\"{net}\"")).collect();
        line(&format!("pools: [{{name: public, addresses: [{}]}}]", pools.join(", ")));
    }
    line("# BGP announces the addresses to routers, if several gateways share them: docs/bgp.md");
    line("# announce: {bgp: {asn: 64512, peers: [{address: 192.0.2.1, asn: 64513}]}}");
    Ok(text)
}

/// The keys of an interface of the kernel. Returns its addresses.
fn kernel_interface(network: &Network, link: &Link, line: &mut impl FnMut(&str)) -> Vec<IpNet> {
    let device = quoted(&format!("net_af_packet,iface={}", link.name));
    line(&format!("      device: {device}  # a packet socket; a PCI address is faster: docs/nics.md"));
    let addresses: Vec<IpNet> = network.addresses_of(link).collect();
    let list: Vec<String> = addresses.iter().map(|net| format!("\"{net}\"")).collect();
    line(
        "      # The gateway puts these addresses on its tap tg-uplink. Remove them from the kernel's interface:",
    );
    line("      # `tidegate doctor` has the command.");
    line(&format!("      addresses: [{}]", list.join(", ")));
    let has_v6 = addresses.iter().any(|net| net.addr().is_ipv6());
    let smallest = if has_v6 { 1280 } else { *MTU.start() };
    line(&format!("      mtu: {}", link.mtu.clamp(smallest, *MTU.end())));
    addresses
}

/// Default routes through the routers that the kernel uses on this link.
fn routes(network: &Network, addresses: &[IpNet], line: &mut impl FnMut(&str)) {
    let is_own = |ip: &IpAddr| addresses.iter().any(|net| net.addr() == *ip);
    let on_link = |ip: &&IpAddr| addresses.iter().any(|net| net.contains(*ip)) && !is_own(ip);
    let routers = || network.default_routers.iter().map(|(_, ip)| ip);
    let of_family = |is_v4: bool| routers().filter(on_link).find(|ip| ip.is_ipv4() == is_v4);
    let found = [("0.0.0.0/0", of_family(true)), ("::/0", of_family(false))];
    let items: Vec<String> = found
        .iter()
        .filter_map(|(to, via)| Some(format!("{{to: \"{to}\", via: \"{}\"}}", (*via)?)))
        .collect();
    if items.is_empty() {
        line("  # The router towards clients, in a network of the interface.");
        line("  # routes: [{to: \"0.0.0.0/0\", via: \"192.0.2.1\"}, {to: \"::/0\", via: \"2001:db8::1\"}]");
    } else {
        line(&format!("  routes: [{}]", items.join(", ")));
    }
    if let Some(router) = routers().find(|ip| Addr::from(**ip).is_link_local()) {
        line(&format!(
            "  # The kernel's router {router} is link-local: give it an address in the interface's network."
        ));
    }
}

/// The cores of the workers, and why these.
fn cores(machine: &Machine) -> (String, &'static str) {
    let isolated = machine.cpus("sys/devices/system/cpu/isolated").unwrap_or_default();
    let online = machine.cpus("sys/devices/system/cpu/online").unwrap_or_default();
    if !isolated.is_empty() {
        return (show_cpus(&isolated), "one worker each: the cores that the kernel leaves alone (isolcpus)");
    }
    match online.iter().find(|cpu| **cpu > 0) {
        Some(cpu) => (cpu.to_string(), "one worker each; isolate them with isolcpus"),
        None => ("0".to_owned(), "this machine has one core, which the worker shares"),
    }
}

fn memory(machine: &Machine) -> (String, &'static str) {
    let free = |kib: u64| {
        let pages = machine.number(format!("sys/kernel/mm/hugepages/hugepages-{kib}kB/free_hugepages"));
        pages.unwrap_or(0) * kib / 1024
    };
    let free = free(2048) + free(1 << 20);
    let available = machine.field("proc/meminfo", "MemAvailable");
    let available =
        available.and_then(|text| text.split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) / 1024;
    match MEMORY_MIB.iter().find(|mib| **mib <= free) {
        Some(mib) => (format!("{{hugepages: true, sizeMiB: {mib}}}"), "of the hugepages that are free now"),
        None => {
            let mib = MEMORY_MIB[usize::from(available < 4 * MEMORY_MIB[0])];
            let why = "hugepages are faster: sysctl vm.nr_hugepages=512";
            (format!("{{hugepages: false, sizeMiB: {mib}}}"), why)
        }
    }
}

/// The name of this machine, as far as a gateway's name may contain it.
fn name(machine: &Machine) -> String {
    let host = machine.text("proc/sys/kernel/hostname").unwrap_or_default().to_lowercase();
    if is_rfc1123_subdomain(&host) { quoted(&host) } else { "edge-1".to_owned() }
}

/// A string in double quotes (YAML 1.2, section 7.3.1).
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
