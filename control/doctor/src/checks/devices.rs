//! The devices of the interfaces: do they exist, with which driver and firmware, and can the gateway use them?

use tidegate_model::config::Interface;

use super::subject::{Device, Subject};
use crate::finding::Finding;
use crate::network::Link;

const NO_START: &str = "the gateway doesn't start";
const NOT_READY: &str = "the gateway isn't ready until the link is up";
const PCI: &str = "sys/bus/pci/devices";
/// Kernel drivers that share their NIC with DPDK.
const SHARING: [&str; 3] = ["mlx4_core", "mlx5_core", "mana"];
/// Drivers of user-space I/O.
const USER_SPACE: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];

pub(super) fn check(subject: &Subject<'_>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = subject.pci().next().map(|_| iommu(subject)).into_iter().collect();
    for interface in subject.interfaces() {
        match Device::of(interface) {
            Device::Kernel(name) => kernel_device(subject, interface, name, &mut findings),
            Device::Pci(address) => findings.extend(pci_device(subject, interface, address)),
            Device::Virtual => {}
        }
    }
    findings
}

fn kernel_device(subject: &Subject<'_>, interface: &Interface, name: &str, findings: &mut Vec<Finding>) {
    let check = "device";
    let Some(link) = subject.network.link(name) else {
        let others = subject.network.links.iter().filter(|link| !link.is_loopback);
        let others: Vec<&str> = others.map(|link| link.name.as_str()).collect();
        let what = format!("interface {name} does not exist (dataplane.interfaces: {})", interface.name);
        let fix = format!("iface= one of: {}", others.join(", "));
        findings.push(Finding::fault(check, what, NO_START, fix));
        return;
    };
    let facts = facts(subject, &link.name);
    findings.push(match (link.is_up, link.has_carrier) {
        (true, true) => Finding::ok(check, format!("{name} is up{facts}")),
        (true, false) => {
            let what = format!("{name} has no carrier{facts}");
            Finding::fault(
                check,
                what,
                NOT_READY,
                format!("connect the cable; ethtool {name} shows the link"),
            )
        }
        (false, _) => {
            let fix = format!(
                "ip link set {name} up (at each boot: `auto {name}` and `iface {name} inet manual` in \
                 /etc/network/interfaces)"
            );
            Finding::fault(check, format!("{name} is set down{facts}"), NOT_READY, fix)
        }
    });
    findings.push(mtu(interface, link));
    if interface.device.starts_with("net_af_packet") {
        findings.extend(duplicate_addresses(subject, interface, link));
        findings.extend(offloads(subject, link));
    }
}

/// Driver, firmware, and queues.
fn facts(subject: &Subject<'_>, name: &str) -> String {
    let machine = subject.machine;
    let described = machine.output("ethtool", &["-i", name]).unwrap_or_default();
    let field = |key: &str| {
        let mut lines = described.lines().filter_map(|line| line.split_once(": "));
        lines.find_map(|(found, value)| {
            (found == key && !value.trim().is_empty()).then(|| value.trim().to_owned())
        })
    };
    let driver = machine.link(format!("sys/class/net/{name}/device/driver")).or_else(|| field("driver"));
    let firmware = field("firmware-version").filter(|text| text != "N/A");
    let queues = machine.names(format!("sys/class/net/{name}/queues"));
    let queues = queues.iter().filter(|queue| queue.starts_with("rx-")).count();
    let mut facts = Vec::new();
    facts.extend(driver.map(|driver| format!("driver {driver}")));
    facts.extend(firmware.map(|firmware| format!("firmware {firmware}")));
    facts.extend(
        (queues > 0).then(|| format!("{queues} receive queue{}", if queues == 1 { "" } else { "s" })),
    );
    if facts.is_empty() { String::new() } else { format!(": {}", facts.join(", ")) }
}

fn mtu(interface: &Interface, link: &Link) -> Finding {
    let (check, name, device) = ("mtu", &interface.name, &link.name);
    let (wanted, has) = (u32::from(interface.mtu), link.mtu);
    if has >= wanted {
        return Finding::ok(check, format!("interface {name}: {wanted}, and {device} has {has}"));
    }
    let what = format!("interface {name} has mtu {wanted}, and {device} only {has}");
    let fix = format!("ip link set {device} mtu {wanted}, or dataplane.interfaces[].mtu: {has}");
    Finding::fault(check, what, NO_START, fix)
}

/// The gateway puts its addresses on a tap. The kernel must not have them on the device as well.
fn duplicate_addresses(subject: &Subject<'_>, interface: &Interface, link: &Link) -> Option<Finding> {
    let own: Vec<_> = interface.addresses.iter().map(ipnet::IpNet::addr).collect();
    let both = subject.network.addresses_of(link).filter(|net| own.contains(&net.addr()));
    let both: Vec<String> = both.map(|net| net.to_string()).collect();
    if both.is_empty() {
        return None;
    }
    let device = &link.name;
    let what = format!("the kernel has {} on {device} too", both.join(" and "));
    let why = format!(
        "the gateway puts the address on the tap tg-{}; with a second one on {device}, packets of the kernel (ssh, BGP, \
         health checks) leave past the gateway, and their answers are lost",
        interface.name
    );
    let fix: Vec<String> = both.iter().map(|net| format!("ip address del {net} dev {device}")).collect();
    let fix = format!(
        "{}, when the gateway runs or from a console: an ssh session through it ends",
        fix.join("; ")
    );
    Some(Finding::warning("addresses", what, why, fix))
}

/// Offloads with which a packet socket gets packets that are not as on the wire.
fn offloads(subject: &Subject<'_>, link: &Link) -> Vec<Finding> {
    let check = "offloads";
    let device = &link.name;
    let Some(features) = features(subject, device) else {
        let what = format!("the offloads of {device} are not known");
        let why = "with some of them, a packet socket gets packets with partial checksums, or merged ones";
        return vec![Finding::warning(check, what, why, "apt-get install ethtool")];
    };
    let mut findings = Vec::new();
    let merging = ["generic-receive-offload", "large-receive-offload"];
    let merging: Vec<&str> = merging.into_iter().filter(|name| is_on(&features, name)).collect();
    if !merging.is_empty() {
        let what = format!("{device} has {} on", merging.join(" and "));
        let why = "the kernel merges TCP segments into packets that are larger than the MTU, and the gateway must \
                   answer or fragment them";
        let fix = format!("ethtool -K {device} gro off lro off");
        findings.push(Finding::warning(check, what, why, fix));
    }
    let why = "packets of this machine arrive with partial checksums, and backends drop them silently";
    let peer = link.peer.and_then(|peer| subject.network.links.iter().find(|link| link.index == peer));
    let sender = peer.filter(|peer| {
        let features = self::features(subject, &peer.name).unwrap_or_default();
        is_on(&features, "tx-checksumming")
    });
    if let Some(Link { name, .. }) = sender {
        let what = format!("{name}, the other side of {device}, has tx-checksumming on");
        findings.push(Finding::warning(check, what, why, format!("ethtool -K {name} tx off")));
    }
    let driver = subject.machine.link(format!("sys/class/net/{device}/device/driver"));
    if driver.as_deref() == Some("virtio_net") && is_on(&features, "rx-checksumming") {
        let what = format!("{device} is a virtio NIC with rx-checksumming on");
        let why = "packets of other machines on the same host may arrive with partial checksums, and backends drop them \
                   silently";
        let fix = format!(
            "ethtool -K {device} rx off, or guest_csum=off in the hypervisor; tidegate_partial_checksums_total counts \
             such packets"
        );
        findings.push(Finding::warning(check, what, why, fix));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(check, format!("{device} passes packets on as they arrive")));
    }
    findings
}

/// What `ethtool -k` prints; `None` if there is no ethtool, or it doesn't know the device.
fn features(subject: &Subject<'_>, device: &str) -> Option<String> {
    let printed = subject.machine.output("ethtool", &["-k", device])?;
    printed.contains("checksumming:").then_some(printed)
}

fn is_on(features: &str, name: &str) -> bool {
    features
        .lines()
        .filter_map(|line| line.trim().split_once(": "))
        .any(|(found, value)| found == name && value.starts_with("on"))
}

/// Whether DMA of a NIC is limited to the memory of the gateway.
fn iommu(subject: &Subject<'_>) -> Finding {
    let check = "iommu";
    let machine = subject.machine;
    let groups = machine.names("sys/kernel/iommu_groups").len();
    if groups > 0 {
        return Finding::ok(check, format!("{groups} groups"));
    }
    let fix = "add intel_iommu=on or amd_iommu=on to the kernel's command line, enable it (VT-d, AMD-Vi) in the \
               firmware, and reboot";
    let unsafe_mode = machine.text("sys/module/vfio/parameters/enable_unsafe_noiommu_mode");
    if unsafe_mode.as_deref() == Some("Y") {
        let why = "the NIC can write to all memory of this machine";
        return Finding::warning(check, "vfio works without an IOMMU (enable_unsafe_noiommu_mode)", why, fix);
    }
    let why = "vfio-pci refuses the NIC, and the gateway doesn't start";
    Finding::fault(check, "the kernel uses no IOMMU", why, fix)
}

fn pci_device(subject: &Subject<'_>, interface: &Interface, address: &str) -> Vec<Finding> {
    let check = "vfio";
    let machine = subject.machine;
    // DPDK also accepts an address without its domain.
    let full = if address.matches(':').count() == 1 { format!("0000:{address}") } else { address.to_owned() };
    let directory = format!("{PCI}/{full}");
    if !machine.path(&directory).exists() {
        let what = format!("{address} (interface {}) does not exist", interface.name);
        return vec![Finding::fault(
            check,
            what,
            NO_START,
            "dpdk-devbind.py --status-dev net shows the addresses",
        )];
    }
    let driver = machine.link(format!("{directory}/driver"));
    let ids = ["vendor", "device"].map(|id| machine.text(format!("{directory}/{id}")).unwrap_or_default());
    let ids = ids.map(|id| id.trim_start_matches("0x").to_owned()).join(":");
    let bind = format!("modprobe vfio-pci; dpdk-devbind.py --bind=vfio-pci {full} (docs/nics.md)");
    let finding = match driver.as_deref() {
        Some(driver) if SHARING.contains(&driver) => {
            Finding::ok(check, format!("{full} ({ids}): driver {driver}, which shares the NIC with DPDK"))
        }
        Some("vfio-pci") => return vfio_group(subject, &full, &ids),
        Some(driver) if USER_SPACE.contains(&driver) => {
            let why = "without an IOMMU, the NIC can write to all memory of this machine";
            Finding::warning(check, format!("{full} ({ids}): driver {driver}"), why, bind)
        }
        Some(driver) => {
            let device = machine.names(format!("{directory}/net"));
            let device = device.first().map(|name| format!(" as {name}")).unwrap_or_default();
            let what = format!("{full} ({ids}) belongs to the kernel{device}: driver {driver}");
            let fix = format!("{bind}; not with the NIC of your ssh session");
            Finding::fault(check, what, NO_START, fix)
        }
        None => Finding::fault(check, format!("{full} ({ids}) has no driver"), NO_START, bind),
    };
    vec![finding]
}

/// All devices of an IOMMU group must leave the kernel together.
fn vfio_group(subject: &Subject<'_>, address: &str, ids: &str) -> Vec<Finding> {
    let check = "vfio";
    let machine = subject.machine;
    let group = machine.link(format!("{PCI}/{address}/iommu_group")).unwrap_or_default();
    let others = machine.names(format!("sys/kernel/iommu_groups/{group}/devices"));
    let in_kernel = others.iter().filter(|other| other.as_str() != address).filter_map(|other| {
        let driver = machine.link(format!("{PCI}/{other}/driver"))?;
        // A bridge keeps its driver.
        (driver != "vfio-pci" && driver != "pcieport").then(|| format!("{other} (driver {driver})"))
    });
    let in_kernel: Vec<String> = in_kernel.collect();
    if in_kernel.is_empty() {
        return vec![Finding::ok(check, format!("{address} ({ids}): driver vfio-pci"))];
    }
    let what = format!("{address} is in an IOMMU group with {}", in_kernel.join(", "));
    let fix = "bind these to vfio-pci as well, or move the NIC to another position on the board";
    vec![Finding::fault(check, what, NO_START, fix)]
}
