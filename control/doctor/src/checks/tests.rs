//! Each check with the files of a machine that is as it should be, and of one that isn't.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use tempfile::TempDir;
use tidegate_admin_api::{InterfaceStatus, LinkStatus, PortStatus, Status};
use tidegate_model::config::{self, GatewayConfig};

use super::*;
use crate::finding::Level;
use crate::machine::Machine;
use crate::network::{Link, Network};

/// A machine in a directory: eight cores, of which 2 and 3 are isolated, with a NIC of the kernel and one of vfio-pci.
struct Site {
    directory: TempDir,
    network: Network,
}

/// An interface of a packet socket, and its addresses.
const PACKET_SOCKET: &str =
    "interfaces: [{name: uplink, device: \"net_af_packet,iface=eth1\", addresses: [192.0.2.2/24]}]";
const NIC: &str = "interfaces: [{name: uplink, device: \"0000:03:00.0\", addresses: [192.0.2.2/24]}]";

fn link(index: u32, name: &str) -> Link {
    Link {
        index,
        name: name.to_owned(),
        other_names: Vec::new(),
        mtu: 1500,
        is_up: true,
        has_carrier: true,
        peer: None,
        is_loopback: false,
    }
}

impl Site {
    fn new() -> Self {
        let network = Network { links: vec![link(2, "eth0"), link(3, "eth1")], ..Network::default() };
        let site = Self { directory: tempfile::tempdir().expect("a directory"), network };
        let cpu = "sys/devices/system/cpu";
        site.file(&format!("{cpu}/online"), "0-7\n");
        site.file(&format!("{cpu}/isolated"), "2-3\n");
        site.file(&format!("{cpu}/nohz_full"), "2-3\n");
        for n in 0..8 {
            site.file(&format!("{cpu}/cpu{n}/topology/thread_siblings_list"), &format!("{n}\n"));
            site.file(&format!("{cpu}/cpu{n}/cpufreq/scaling_governor"), "performance\n");
        }
        site.file("sys/devices/system/node/node0/cpulist", "0-3\n");
        site.file("sys/devices/system/node/node1/cpulist", "4-7\n");
        site.file("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
        let huge = "sys/kernel/mm/hugepages/hugepages-2048kB";
        site.file(&format!("{huge}/free_hugepages"), "512\n");
        site.file(&format!("{huge}/nr_hugepages"), "600\n");
        site.file(
            "proc/self/status",
            "Name:\ttidegate\nCapEff:\t000001ffffffffff\nCpus_allowed_list:\t0-7\n",
        );
        site.file(
            "proc/self/mountinfo",
            "22 1 0:20 / / rw - ext4 /dev/vda rw\n23 22 0:21 / /run rw shared:5 - tmpfs tmpfs rw\n",
        );
        site.file("run/systemd/timesync/synchronized", "");
        for name in ["all", "eth0", "eth1"] {
            site.file(&format!("proc/sys/net/ipv4/conf/{name}/rp_filter"), "0\n");
            site.file(&format!("proc/sys/net/ipv4/conf/{name}/arp_ignore"), "0\n");
        }
        site.program(
            "ethtool",
            "echo 'rx-checksumming: on'; echo 'tx-checksumming: off'; echo 'firmware-version: 7.1 0x8'",
        );
        let nic = "sys/bus/pci/devices/0000:03:00.0";
        site.file(&format!("{nic}/numa_node"), "0\n");
        site.link(&format!("{nic}/driver"), "../../drivers/vfio-pci");
        site.link(&format!("{nic}/iommu_group"), "../../kernel/iommu_groups/7");
        site.file("sys/kernel/iommu_groups/7/devices/0000:03:00.0", "");
        site
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self.directory.path().join(path)
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("it has one")).expect("created");
        fs::write(path, text).expect("written");
    }

    fn link(&self, path: &str, target: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("it has one")).expect("created");
        let _ = fs::remove_file(&path);
        symlink(target, path).expect("linked");
    }

    fn program(&self, name: &str, script: &str) {
        let path = format!("usr/sbin/{name}");
        self.file(&path, &format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(self.path(&path), fs::Permissions::from_mode(0o755)).expect("ours");
    }

    fn findings(&self, dataplane: &str, rest: &str) -> Vec<Finding> {
        self.beside(None, dataplane, rest)
    }

    fn beside(&self, gateway: Option<&Status>, dataplane: &str, rest: &str) -> Vec<Finding> {
        let config = configuration(dataplane, rest);
        let machine = Machine::at(self.directory.path());
        let subject = Subject { machine: &machine, network: &self.network, config: &config, gateway };
        of_machine(&subject)
    }

    /// Expects one finding of this check that isn't ok, with these words; the fix has the last ones.
    #[track_caller]
    fn finds(&self, level: Level, check: &str, dataplane: &str, what: &str, fix: &str) {
        one(&self.findings(dataplane, ""), level, check, what, fix);
    }
}

#[track_caller]
fn one(findings: &[Finding], level: Level, check: &str, what: &str, fix: &str) {
    let bad: Vec<&Finding> =
        findings.iter().filter(|one| one.check == check && one.level != Level::Ok).collect();
    let [finding] = bad[..] else { panic!("not one finding of {check}: {findings:#?}") };
    assert_eq!(finding.level, level, "{finding:?}");
    assert!(finding.what.contains(what), "{what:?} in {finding:?}");
    assert!(finding.fix.as_deref().is_some_and(|text| text.contains(fix)), "{fix:?} in {finding:?}");
    assert!(finding.why.as_deref().is_some_and(|text| !text.is_empty()), "{finding:?}");
}

fn configuration(dataplane: &str, rest: &str) -> GatewayConfig {
    let cores = if dataplane.contains("cores:") { "" } else { "  cores: [2, 3]\n" };
    let text = format!(
        "apiVersion: tidegate.dev/v1alpha1\nkind: GatewayConfig\ndataplane:\n{cores}  {dataplane}\n{rest}"
    );
    let loaded = config::parse(&text, "gateway.yaml", Path::new("."), 8);
    loaded.config.unwrap_or_else(|| panic!("{}\n{text}", loaded.report))
}

fn running(pid: u32) -> Status {
    Status { name: "edge-1".to_owned(), pid, healthy: true, ready: true, ..Status::default() }
}

#[test]
fn a_machine_as_it_should_be_has_no_fault_and_no_warning() {
    let site = Site::new();
    for device in [PACKET_SOCKET, NIC] {
        let findings = site.findings(device, "");
        let bad: Vec<&Finding> = findings.iter().filter(|one| one.level != Level::Ok).collect();
        assert!(bad.is_empty(), "{bad:#?}");
        for check in ["cores", "isolcpus", "governor", "smt", "hugepages", "flow_directory", "ports", "clock"]
        {
            assert!(findings.iter().any(|one| one.check == check), "{check} in {findings:#?}");
        }
    }
    let facts = site.findings(PACKET_SOCKET, "");
    assert!(facts.iter().any(|one| one.what.contains("firmware 7.1 0x8")), "{facts:#?}");
}

#[test]
fn cores_that_do_not_exist_or_leave_none_over_are_faults() {
    let site = Site::new();
    let usable = "some of 0,1,2,3,4,5,6,7";
    site.finds(Level::Fault, "cores", "cores: [2, 97]", "core 97 doesn't exist", usable);
    let all = "cores: [0, 1, 2, 3, 4, 5, 6, 7]";
    site.finds(Level::Fault, "cores", all, "every core", "idle: adaptive");
    site.finds(Level::Warning, "cores", &format!("{all}\n  idle: adaptive"), "every core", "leaves out");
    site.file("proc/self/status", "Cpus_allowed_list:\t0-2\n");
    site.finds(Level::Fault, "cores", "cores: [2, 3]", "core 3 doesn't exist, or", "some of 0,1,2");
    // The control plane of a running gateway is not on the workers' cores.
    site.file("proc/77/status", "Cpus_allowed_list:\t0-1\n");
    let findings = site.beside(Some(&running(77)), "cores: [2, 3]", "");
    assert!(findings.iter().all(|one| one.check != "cores" || one.level == Level::Ok), "{findings:#?}");
}

#[test]
fn cores_that_the_kernel_uses_slows_or_shares_are_named() {
    let site = Site::new();
    let cpu = "sys/devices/system/cpu";
    site.file(&format!("{cpu}/nohz_full"), "(null)\n");
    site.finds(
        Level::Warning,
        "isolcpus",
        PACKET_SOCKET,
        "nohz_full lacks 2,3",
        "isolcpus=2,3 nohz_full=2,3",
    );
    site.file(&format!("{cpu}/cpu3/cpufreq/scaling_governor"), "powersave\n");
    site.finds(Level::Warning, "governor", PACKET_SOCKET, "powersave", "cpupower frequency-set");
    site.file(&format!("{cpu}/cpu3/topology/thread_siblings_list"), "3,7\n");
    site.finds(Level::Warning, "smt", PACKET_SOCKET, "7 is a sibling of worker core 3", "cpu7/online");
    site.file(&format!("{cpu}/cpu2/topology/thread_siblings_list"), "2-3\n");
    site.file(&format!("{cpu}/cpu3/topology/thread_siblings_list"), "2-3\n");
    site.finds(Level::Warning, "smt", PACKET_SOCKET, "3 is a sibling of worker core 2", "one of each pair");
    site.file("sys/bus/pci/devices/0000:03:00.0/numa_node", "1\n");
    site.finds(Level::Warning, "numa", NIC, "NUMA node 1, but core 2,3", "some of 4,5,6,7");
    site.file("sys/bus/pci/devices/0000:03:00.0/numa_node", "-1\n");
    assert!(site.findings(NIC, "").iter().all(|one| one.check != "numa"));
}

#[test]
fn missing_hugepages_are_counted_beside_those_in_use() {
    let site = Site::new();
    site.file("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "100\n");
    let fix = "sysctl vm.nr_hugepages=1012";
    site.finds(Level::Fault, "hugepages", NIC, "200 MiB of hugepages are free", fix);
    let large = "sys/kernel/mm/hugepages/hugepages-1048576kB";
    site.file(&format!("{large}/free_hugepages"), "1\n");
    assert!(site.findings(NIC, "").iter().all(|one| one.check != "hugepages" || one.level == Level::Ok));
    let plain = format!("{NIC}\n  memory: {{hugepages: false}}");
    site.finds(Level::Warning, "hugepages", &plain, "plain pages", "vm.nr_hugepages=512");
}

#[test]
fn a_limit_of_locked_memory_counts_without_the_capability() {
    let site = Site::new();
    let limits = |soft: &str| {
        format!("Limit  Soft Limit  Hard Limit  Units\nMax locked memory         {soft}   {soft}   bytes\n")
    };
    site.file("proc/self/limits", &limits("8388608"));
    site.file("proc/self/status", "CapEff:\t0000000000003000\nCpus_allowed_list:\t0-7\n");
    let what = "memlock limit is 8 MiB, needs 256 MiB";
    site.finds(Level::Fault, "memlock", PACKET_SOCKET, what, "LimitMEMLOCK=infinity");
    assert!(site.findings(NIC, "").iter().all(|one| one.check != "memlock"));
    site.file("proc/self/limits", &limits("unlimited"));
    let findings = site.findings(PACKET_SOCKET, "");
    assert!(findings.iter().any(|one| one.check == "memlock" && one.level == Level::Ok), "{findings:#?}");
}

#[test]
fn a_device_that_is_missing_too_small_or_used_twice_is_named() {
    let mut site = Site::new();
    let none = PACKET_SOCKET.replace("eth1", "eth9");
    site.finds(Level::Fault, "device", &none, "interface eth9 does not exist", "eth0, eth1");
    site.network.links[1].has_carrier = false;
    site.finds(Level::Fault, "device", PACKET_SOCKET, "eth1 has no carrier", "ethtool eth1");
    site.network.links[1].is_up = false;
    site.finds(Level::Fault, "device", PACKET_SOCKET, "eth1 is set down", "ip link set eth1 up");
    site.network.links[1].is_up = true;
    site.network.links[1].mtu = 1400;
    site.finds(
        Level::Fault,
        "mtu",
        PACKET_SOCKET,
        "mtu 1500, and eth1 only 1400",
        "ip link set eth1 mtu 1500",
    );
    site.network.addresses.push((3, "192.0.2.2/24".parse().expect("an address")));
    let fix = "ip address del 192.0.2.2/24 dev eth1";
    site.finds(Level::Warning, "addresses", PACKET_SOCKET, "192.0.2.2/24 on eth1 too", fix);
}

#[test]
fn offloads_that_change_packets_are_named() {
    let mut site = Site::new();
    site.program("ethtool", "echo 'rx-checksumming: off'; echo 'generic-receive-offload: on'");
    site.finds(
        Level::Warning,
        "offloads",
        PACKET_SOCKET,
        "generic-receive-offload",
        "ethtool -K eth1 gro off",
    );
    site.program("ethtool", "[ $2 = eth0 ] && echo 'tx-checksumming: on' || echo 'tx-checksumming: off'");
    site.network.links[1].peer = Some(2);
    site.finds(Level::Warning, "offloads", PACKET_SOCKET, "eth0, the other side", "ethtool -K eth0 tx off");
    site.network.links[1].peer = None;
    site.program("ethtool", "echo 'rx-checksumming: on [fixed]'");
    site.link("sys/class/net/eth1/device/driver", "../../bus/virtio/drivers/virtio_net");
    site.finds(Level::Warning, "offloads", PACKET_SOCKET, "virtio NIC", "rx off");
    fs::remove_file(site.path("usr/sbin/ethtool")).expect("ours");
    site.finds(Level::Warning, "offloads", PACKET_SOCKET, "not known", "apt-get install ethtool");
}

#[test]
fn a_nic_that_dpdk_cannot_use_is_named_with_its_driver() {
    let site = Site::new();
    let missing = NIC.replace("03:00.0", "99:00.0");
    site.finds(
        Level::Fault,
        "vfio",
        &missing,
        "0000:99:00.0 (interface uplink) does not exist",
        "--status-dev",
    );
    let nic = "sys/bus/pci/devices/0000:03:00.0";
    site.link("sys/bus/pci/devices/0000:03:00.1/driver", "../../drivers/ixgbe");
    site.file("sys/kernel/iommu_groups/7/devices/0000:03:00.1", "");
    site.finds(Level::Fault, "vfio", NIC, "group with 0000:03:00.1 (driver ixgbe)", "as well");
    site.link(&format!("{nic}/driver"), "../../drivers/ixgbe");
    site.file(&format!("{nic}/vendor"), "0x8086\n");
    site.file(&format!("{nic}/device"), "0x10fb\n");
    site.file(&format!("{nic}/net/ens3/mtu"), "1500\n");
    let what = "0000:03:00.0 (8086:10fb) belongs to the kernel as ens3: driver ixgbe";
    site.finds(Level::Fault, "vfio", NIC, what, "dpdk-devbind.py --bind=vfio-pci 0000:03:00.0");
    fs::remove_dir_all(site.path("sys/kernel/iommu_groups")).expect("ours");
    site.finds(Level::Fault, "iommu", NIC, "no IOMMU", "intel_iommu=on");
    site.file("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n");
    site.finds(Level::Warning, "iommu", NIC, "without an IOMMU", "intel_iommu=on");
}

#[test]
fn sysctls_with_which_the_kernel_answers_too_are_named() {
    let mut site = Site::new();
    let conf = "proc/sys/net/ipv4/conf";
    site.file(&format!("{conf}/all/rp_filter"), "2\n");
    site.finds(Level::Warning, "rp_filter", PACKET_SOCKET, "is 2", "all.rp_filter=0");
    site.network.addresses.push((2, "192.0.2.9/24".parse().expect("an address")));
    site.finds(Level::Warning, "arp_ignore", PACKET_SOCKET, "0 on eth0", "conf.eth0.arp_ignore=1");
    site.file(&format!("{conf}/all/arp_ignore"), "1\n");
    let findings = site.findings(PACKET_SOCKET, "");
    assert!(findings.iter().all(|one| one.check != "arp_ignore" || one.level == Level::Ok), "{findings:#?}");
}

#[test]
fn a_flow_directory_on_a_disk_is_named() {
    let site = Site::new();
    let on_disk = format!("{PACKET_SOCKET}\n  flowTable: {{directory: /var/lib/flows}}");
    site.finds(Level::Warning, "flow_directory", &on_disk, "/var/lib/flows is on ext4", "mount -t tmpfs");
}

#[test]
fn ports_of_other_processes_are_faults_and_those_of_the_gateway_are_not() {
    let site = Site::new();
    let line =
        "  1: 0100007F:24FD 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1\n";
    site.file("proc/net/tcp", &format!("  sl  local_address rem_address   st\n{line}"));
    // [::]:10356, and a connection, which is not a listener.
    let any = "0: 00000000000000000000000000000000:2874 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 4712 1\n\
               1: 00000000000000000000000000000000:2874 00000000000000000000000000000000:0000 01 0:0 0:0 0 0 0 4713 1\n";
    site.file("proc/net/tcp6", &format!("  sl  local_address\n{any}"));
    site.file("proc/77/comm", "nginx\n");
    site.link("proc/77/fd/5", "socket:[4711]");
    site.link("proc/77/fd/6", "socket:[4712]");
    let findings = site.findings(PACKET_SOCKET, "");
    let faults: Vec<&Finding> = findings.iter().filter(|one| one.level == Level::Fault).collect();
    let [listen, healthz] = faults[..] else { panic!("{findings:#?}") };
    assert_eq!(listen.what, "admin.listen: tcp port 9469 is used by nginx (pid 77)");
    assert_eq!(healthz.what, "admin.healthz: tcp port 10356 is used by nginx (pid 77)");
    let findings = site.beside(Some(&running(77)), PACKET_SOCKET, "");
    assert!(findings.iter().all(|one| one.level != Level::Fault), "{findings:#?}");
}

#[test]
fn programs_that_the_configuration_needs_must_be_there_and_recent() {
    let site = Site::new();
    let bgp = "announce: {bgp: {asn: 64512, peers: [{address: 192.0.2.1, asn: 64513}]}}\n";
    one(
        &site.findings(PACKET_SOCKET, bgp),
        Level::Fault,
        "programs",
        "bird is not installed",
        "apt-get install bird2",
    );
    site.program("bird", "echo 'BIRD version 1.6.8' >&2");
    one(&site.findings(PACKET_SOCKET, bgp), Level::Warning, "programs", "bird 1.6", "bird2");
    site.program("bird", "echo 'BIRD version 2.0.12' >&2");
    let findings = site.findings(PACKET_SOCKET, bgp);
    assert!(findings.iter().any(|one| one.what == "bird 2.0" && one.level == Level::Ok), "{findings:#?}");
}

#[test]
fn a_clock_that_nobody_sets_or_that_is_slow_is_named() {
    let site = Site::new();
    fs::remove_file(site.path("run/systemd/timesync/synchronized")).expect("ours");
    site.finds(Level::Warning, "clock", PACKET_SOCKET, "no program synchronizes it", "chrony");
    site.file("proc/12/comm", "chronyd\n");
    site.file("sys/devices/system/clocksource/clocksource0/current_clocksource", "acpi_pm\n");
    site.finds(Level::Warning, "clocksource", PACKET_SOCKET, "acpi_pm", "tsc");
}

#[test]
fn the_status_of_a_running_gateway_is_part_of_the_report() {
    let site = Site::new();
    let port = PortStatus {
        driver: "net_ixgbe".to_owned(),
        queues: 2,
        rss: "tcp,udp".to_owned(),
        rx_missed: 12,
        ..PortStatus::default()
    };
    let interface = InterfaceStatus {
        name: "uplink".to_owned(),
        device: String::new(),
        mac: String::new(),
        link_up: true,
        link: LinkStatus::default(),
        tap: None,
        port,
        rx_packets: 0,
        rx_bytes: 0,
        tx_packets: 0,
        tx_bytes: 0,
    };
    let degraded = vec!["BGP session is down".to_owned()];
    let status = Status { ready: false, degraded, interfaces: vec![interface], ..running(77) };
    let findings = site.beside(Some(&status), PACKET_SOCKET, "");
    let texts: Vec<(Level, &str)> = findings.iter().map(|one| (one.level, one.what.as_str())).collect();
    assert!(texts.contains(&(Level::Warning, "BGP session is down")), "{texts:#?}");
    assert!(
        texts.iter().any(|(level, what)| *level == Level::Fault && what.contains("not ready")),
        "{texts:#?}"
    );
    assert!(
        texts.iter().any(|(level, what)| *level == Level::Warning && what.contains("dropped 12 packets"))
    );
    assert!(
        texts.iter().any(|(_, what)| what.contains("driver net_ixgbe, queues 2, RSS tcp,udp")),
        "{texts:#?}"
    );
}

#[test]
fn faults_of_the_configuration_are_findings_with_their_remedy() {
    let site = Site::new();
    site.file("key", &"0f".repeat(32));
    fs::set_permissions(site.path("key"), fs::Permissions::from_mode(0o644)).expect("ours");
    let path = site.path("gateway.yaml");
    let text = "apiVersion: tidegate.dev/v1alpha1\nkind: GatewayConfig\ndataplane: {cores: [one]}\n\
                flowSharing: {mode: nat, peers: [\"192.0.2.3:10358\"], key: {file: key}}\n";
    fs::write(&path, text).expect("written");
    let findings = of_configuration(&path, &config::load(&path));
    let mode =
        findings.iter().find(|one| one.what.contains("every user of this machine can read the secret"));
    assert!(
        mode.expect("it is found").fix.as_deref().is_some_and(|fix| fix.contains("chmod o=")),
        "{findings:#?}"
    );
    let refused = findings.iter().find(|one| one.level == Level::Fault).expect("it is refused");
    assert!(refused.what.contains("gateway.yaml:3:"), "{refused:?}");
}
