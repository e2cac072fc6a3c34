//! The path to the kernel and back with a real tap, in a separate network namespace, with ports in memory instead of
//! the wire.
//!
//! The test runs itself again under `unshare --net`. It needs root, util-linux and iproute2, and says so if they are
//! missing.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

mod common;

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::process::Command;

use common::*;
use ipnet::IpNet;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidegate_dataplane::drivers::memory::{self, Heap, MemoryPort};
use tidegate_dataplane::gateway::{WorkerPool, WorkerPoolConfig};
use tidegate_dataplane::punt::tap::{Tap, TapConfig, remove_stale};
use tidegate_dataplane::topology::{Idle, WorkerPlacement};
use tidegate_pipeline::forward::snat_ports::Steering;
use tidegate_pipeline::frame::{Frame, MemoryFrame};
use tidegate_pipeline::testing::Builder;
use tidegate_spec::{NeighborSpec, RouteSpec, SnapshotSpec};
use tidegate_wire::arp::{ArpOperation, ArpPacket};
use tidegate_wire::{MacAddr, Parsed, VlanId, ethernet, parse};

const INSIDE: &str = "TIDEGATE_TEST_INSIDE";
const TEST: &str = "the_kernel_is_reached_in_its_vlan_and_answers_through_the_port";
const VLAN: u16 = 100;

#[test]
fn the_kernel_is_reached_in_its_vlan_and_answers_through_the_port() {
    if std::env::var(INSIDE).is_ok() {
        return inside();
    }
    assert!(
        rustix::process::geteuid().is_root(),
        "this test creates a tap in a network namespace: run it as root (make test does)"
    );
    let mut again = Command::new("unshare");
    again
        .arg("--net")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", TEST, "--nocapture"])
        .env(INSIDE, "1");
    let output = again.output().unwrap_or_else(|error| panic!("unshare is needed: {error}"));
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
}

fn inside() {
    let tap = Tap::create(&TapConfig {
        interface: "uplink".into(),
        mac: GATEWAY,
        mtu: 1400,
        vlan: VlanId::new(VLAN),
        addresses: vec!["2001:db8::2/64".parse().unwrap(), "192.0.2.2/24".parse().unwrap()],
        mark: None,
    })
    .unwrap();
    changed_settings_are_restored(&tap);
    for wanted in ["tg-uplink: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1400", "link/ether 02:00:00:00:00:02"] {
        let output = iproute(&["link"]);
        assert!(output.contains(wanted), "{wanted:?} is not in:\n{output}");
    }

    let (wire, ends) = memory::port(1, 64);
    let config = WorkerPoolConfig {
        placements: vec![WorkerPlacement { worker: 0, core: 0, numa: None }],
        idle: Idle::Adaptive,
        flow_entries: 1024,
        flow_service_percent: 50,
        huge_pages: false,
        flow_store: None,
        steering: Steering::Single,
        seed: 7,
        announce: false,
        snat_is_released: false,
        main_cpus: Vec::new(),
    };
    let mut first = spec(1);
    first.network.interfaces[0].vlan = Some(VLAN);
    first.network.routes = routes(&[
        ("198.51.100.0/24", "192.0.2.1"),
        ("203.0.113.0/24", "2001:db8::1"),
        ("10.0.0.0/24", "192.0.2.1"),
        ("::/0", "2001:db8::1"),
    ]);
    // Neighbours that the dataplane has resolved.
    let known = ["192.0.2.60", "2001:db8::60"].map(|ip| ip.parse::<IpAddr>().unwrap());
    first.network.neighbors.extend(known.map(|ip| NeighborSpec { ip, mac: BACKEND }));
    let queues = ends.into_iter().map(|end| vec![end]).collect();
    let enter = |_: &WorkerPlacement| Ok::<(), String>(());
    let mut worker_pool =
        WorkerPool::start(&config, queues, Heap, vec![Some(tap)], &first, enter, None).unwrap();

    the_kernels_routes_follow(&worker_pool, &first);
    routes_wait_while_no_descriptor_is_free(&worker_pool, &first);
    the_slow_path_restores_the_settings_of_the_tap();

    a_host_is_answered(&wire);
    known_neighbors_need_no_request(&wire, known);

    let waits = worker_pool.stats().punt_queue;
    let stats = worker_pool.stats().slow_path;
    assert!(waits.count() >= 2 && waits.sum() > 0, "{waits:?}");
    assert!(stats.to_kernel >= 2 && stats.from_kernel >= 2, "{stats:?}");
    worker_pool.stop();
    the_next_process_continues_with_the_tap();
    only_taps_that_this_gateway_has_left_are_removed();
}

fn only_taps_that_this_gateway_has_left_are_removed() {
    let (own, other) = ("tidegate edge /run/a.sock", "tidegate edge /run/b.sock");
    let tap = |interface: &str, mark: &str| {
        let (interface, mark) = (interface.to_owned(), Some(mark.to_owned()));
        let addresses = vec!["198.51.100.9/32".parse().unwrap()];
        Tap::create(&TapConfig { interface, mac: GATEWAY, mtu: 1500, vlan: None, addresses, mark }).unwrap()
    };
    let (_kept, _read) = (tap("kept", own), tap("read", own));
    drop((tap("left", own), tap("others", other)));
    iproute(&["tuntap", "add", "tg-foreign", "mode", "tap"]);
    iproute(&["link", "add", "tg-veth", "type", "veth", "peer", "name", "tg-peer"]);
    iproute(&["link", "set", "tg-veth", "alias", own]);
    drop(tap("renamed", own));
    iproute(&["link", "set", "tg-renamed", "down"]);
    iproute(&["link", "set", "tg-renamed", "name", "strange0"]);
    let mut removed = remove_stale(own, &["tg-kept"]).unwrap();
    removed.sort();
    assert_eq!(removed, ["strange0", "tg-left"]);
    let output = iproute(&["address"]);
    for (name, is_there) in [
        ("tg-kept", true),
        ("tg-read", true),
        ("tg-others", true),
        ("tg-foreign", true),
        ("tg-veth@tg-peer", true),
        ("tg-left", false),
        ("strange0", false),
    ] {
        assert_eq!(output.contains(&format!(" {name}: ")), is_there, "{name}: {output}");
    }
    assert_eq!(remove_stale(own, &["tg-kept"]).unwrap(), Vec::<String>::new());
}

/// The tap stays for daemons whose sockets are bound to it. Without a reader it has no carrier, and no route applies.
fn the_next_process_continues_with_the_tap() {
    let index = || {
        let output = iproute(&["link", "show", "tg-uplink"]);
        output.split(':').next().map(str::to_owned).filter(|index| !index.is_empty())
    };
    let before = index().expect("the tap stays");
    wait_until("the loss of the carrier", || iproute(&["link", "show", "tg-uplink"]).contains("NO-CARRIER"));
    let output = iproute(&["route", "get", "192.0.2.77"]);
    assert!(!output.contains("tg-uplink"), "a route without a gateway leads to it: {output}");
    iproute(&["address", "add", "192.0.2.99/24", "dev", "tg-uplink"]);
    let config = TapConfig {
        interface: "uplink".into(),
        mac: BACKEND,
        mtu: 1500,
        vlan: None,
        addresses: vec!["192.0.2.3/24".parse().unwrap()],
        mark: None,
    };
    let tap = Tap::create(&config).unwrap();
    assert_eq!((tap.name(), index()), ("tg-uplink", Some(before)));
    let link = iproute(&["link", "show", "tg-uplink"]);
    assert!(link.contains("LOWER_UP> mtu 1500") && link.contains(&BACKEND.to_string()), "{link}");
    let addresses = iproute(&["address", "show", "tg-uplink"]);
    for (wanted, is_there) in [("192.0.2.3/24", true), ("192.0.2.99/24", true), ("192.0.2.2/24", false)] {
        assert_eq!(addresses.contains(wanted), is_there, "{wanted}: {addresses}");
    }
    assert!(!addresses.contains("2001:db8::2"), "{addresses}");
    let routes = iproute(&["route"]) + &iproute(&["-6", "route"]);
    assert!(!routes.contains("metric 4096"), "routes of the earlier process: {routes}");
    let second = Tap::create(&config).unwrap();
    assert_eq!(second.name(), "tg-uplink-2", "another gateway has the first one");
}

/// A packet of a host on the link reaches a socket of the kernel, and the answer returns to the host.
fn a_host_is_answered(wire: &MemoryPort) {
    let server = UdpSocket::bind("192.0.2.2:7").unwrap();
    let question = Builder::udp("192.0.2.51:4000", "192.0.2.2:7")
        .mac(CLIENT, GATEWAY)
        .vlan(VLAN)
        .payload(b"hello")
        .build();
    assert!(wire.offer(0, &question));
    let mut buffer = [0; 64];
    let (count, from) = server.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..count], from.to_string().as_str()), (&b"hello"[..], "192.0.2.51:4000"));

    server.send_to(b"welcome", from).unwrap();
    // The kernel requests the client's link address first, and the test answers for the client.
    let request = sent(wire, |parsed| matches!(parsed, Parsed::Arp(packet) if packet.target_ip == client()));
    assert_eq!(ethernet::destination(request.bytes()), MacAddr::BROADCAST);
    let answer = ArpPacket {
        operation: ArpOperation::Reply,
        sender_mac: CLIENT,
        sender_ip: client(),
        target_mac: GATEWAY,
        target_ip: Ipv4Addr::new(192, 0, 2, 2),
        vlan: VlanId::new(VLAN),
    };
    assert!(wire.offer(0, &answer.frame(GATEWAY)));
    let back = sent(wire, |parsed| matches!(parsed, Parsed::Ip(headers) if headers.dst_port == 4000));
    assert_eq!((ethernet::destination(back.bytes()), ethernet::source(back.bytes())), (CLIENT, GATEWAY));
    assert!(back.bytes().ends_with(b"welcome"));
}

/// The kernel's requests for addresses that the dataplane knows are answered locally.
fn known_neighbors_need_no_request(wire: &MemoryPort, known: [IpAddr; 2]) {
    for (n, to) in (9..).zip(known) {
        let host = UdpSocket::bind(if to.is_ipv4() { "192.0.2.2:0" } else { "[2001:db8::2]:0" }).unwrap();
        wait_until("a route to the neighbour", || host.send_to(b"check", (to, n)).is_ok());
        let is_about = |parsed: &Parsed| match parsed {
            Parsed::Arp(packet) => IpAddr::from(packet.target_ip) == to,
            Parsed::Ip(h) => h.dst_port == n || to.is_ipv6() && h.icmp_type == 135,
            Parsed::Other => false,
        };
        let first = sent(wire, is_about);
        let Ok(Parsed::Ip(h)) = parse(first.bytes()) else {
            panic!("the kernel's request was sent on the wire")
        };
        assert_eq!((h.dst.ip(), h.dst_port), (to, n));
        assert_eq!(ethernet::destination(first.bytes()), BACKEND);
    }
}

/// Checks that the kernel has the routes of the first forwarding state, and then those of the next ones.
fn the_kernels_routes_follow(worker_pool: &WorkerPool<MemoryFrame>, first: &SnapshotSpec) {
    let has = |arguments: &[&str], wanted: &str| iproute(arguments).contains(wanted);
    wait_until("the first routes", || {
        has(&["route"], "198.51.100.0/24 via 192.0.2.1 dev tg-uplink proto static metric 4096")
            && has(&["route"], "203.0.113.0/24 via inet6 2001:db8::1 dev tg-uplink")
            && has(&["route"], "10.0.0.0/24 via 192.0.2.1 dev tg-uplink")
            && has(&["-6", "route"], "default via 2001:db8::1 dev tg-uplink")
    });
    // A route of the host itself, which the dataplane must not remove.
    iproute(&["route", "add", "10.9.0.0/16", "via", "192.0.2.77", "dev", "tg-uplink"]);
    let mut next = SnapshotSpec { generation: 2, ..first.clone() };
    let node = |n: u32| (format!("10.244.{n}.0/24"), format!("192.0.2.{}", 100 + n % 100));
    let nodes: Vec<_> = (0..250).map(node).collect();
    let nodes = nodes.iter().map(|(to, via)| (to.as_str(), via.as_str()));
    let kept = [("198.51.100.0/24", "192.0.2.1"), ("10.0.0.0/24", "192.0.2.9")];
    next.network.routes = routes(&kept.into_iter().chain(nodes).collect::<Vec<_>>());
    worker_pool.publish(&next).unwrap();
    wait_until("the routes of the next state", || {
        let output = iproute(&["route"]);
        output.matches("10.244.").count() == 250
            && output.contains("10.244.249.0/24 via 192.0.2.149 dev tg-uplink")
            && output.contains("10.0.0.0/24 via 192.0.2.9 dev tg-uplink")
            && !output.contains("203.0.113.0/24")
            && !has(&["-6", "route"], "default")
    });
    let output = iproute(&["route"]);
    assert_eq!(output.matches("10.0.0.0/24").count(), 1, "the router was replaced:\n{output}");
    assert!(output.contains("198.51.100.0/24") && output.contains("10.9.0.0/16"), "{output}");
    worker_pool.publish(&SnapshotSpec { generation: 3, ..first.clone() }).unwrap();
    wait_until("the first routes again", || !has(&["route"], "10.244.") && has(&["-6", "route"], "default"));
}

/// Routes that can't be added now are added later, and the reason is shown meanwhile.
fn routes_wait_while_no_descriptor_is_free(worker_pool: &WorkerPool<MemoryFrame>, first: &SnapshotSpec) {
    let mut next = SnapshotSpec { generation: 4, ..first.clone() };
    next.network.routes = routes(&[("10.246.0.0/16", "192.0.2.1")]);
    let limit = getrlimit(Resource::Nofile);
    // Standard input, output and error use all numbers below the limit.
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..limit }).unwrap();
    worker_pool.publish(&next).unwrap();
    wait_until("the fault", || worker_pool.links().route_fault().is_some());
    let (why, _) = worker_pool.links().route_fault().unwrap();
    setrlimit(Resource::Nofile, limit).unwrap();
    assert!(why.contains("Too many open files"), "{why}");
    wait_until("the routes that waited", || {
        let output = iproute(&["route"]);
        output.contains("10.246.0.0/16 via 192.0.2.1 dev tg-uplink") && !output.contains("198.51.100.0/24")
    });
    wait_until("the end of the fault", || worker_pool.links().route_fault().is_none());
    worker_pool.publish(&SnapshotSpec { generation: 5, ..first.clone() }).unwrap();
    wait_until("the first routes once more", || iproute(&["-6", "route"]).contains("default"));
}

/// Each of these changes would keep packets from the kernel, or let it send oversized packets.
fn changed_settings_are_restored(tap: &Tap) {
    assert_eq!(tap.restore_settings().unwrap(), Vec::<String>::new());
    let [disable, filter] = ["ipv6/conf/tg-uplink/disable_ipv6", "ipv4/conf/tg-uplink/rp_filter"]
        .map(|sysctl| format!("/proc/sys/net/{sysctl}"));
    for sysctl in [&disable, &filter] {
        std::fs::write(sysctl, "1").unwrap();
    }
    iproute(&["address", "flush", "dev", "tg-uplink"]);
    let missing = tap.add_missing_addresses().unwrap();
    assert_eq!(
        missing,
        ["192.0.2.2/24".parse::<IpNet>().unwrap()],
        "an address that is refused delays no other"
    );
    tap.restore_sysctls();
    for sysctl in [&disable, &filter] {
        assert_eq!(std::fs::read_to_string(sysctl).unwrap().trim(), "0", "{sysctl}");
    }
    assert_eq!(tap.add_missing_addresses().unwrap(), ["2001:db8::2/64".parse::<IpNet>().unwrap()]);
    iproute(&["link", "set", "tg-uplink", "address", "02:00:00:00:0e:99"]);
    iproute(&["link", "set", "tg-uplink", "mtu", "9000"]);
    assert_eq!(tap.restore_settings().unwrap(), ["MAC address 02:00:00:00:0e:99", "MTU 9000"]);
    // A udev rule for a NIC with the same address may rename the tap. Older kernels rename a device only while it is
    // down.
    for what in ["tg-uplink down", "tg-uplink name other0", "other0 up"] {
        let arguments: Vec<_> = ["link", "set"].into_iter().chain(what.split(' ')).collect();
        iproute(&arguments);
    }
    assert_eq!(tap.restore_settings().unwrap(), ["name other0"]);
    assert_eq!(tap.restore_settings().unwrap(), Vec::<String>::new());
    // A device that was down has lost its IPv6 address.
    tap.add_missing_addresses().unwrap();
}

fn the_slow_path_restores_the_settings_of_the_tap() {
    iproute(&["link", "set", "tg-uplink", "address", "02:00:00:00:0e:99"]);
    wait_until("the settings of the tap", || {
        let output = iproute(&["link", "show", "tg-uplink"]);
        output.contains("mtu 1400") && output.contains("link/ether 02:00:00:00:00:02")
    });
}

fn routes(list: &[(&str, &str)]) -> Vec<RouteSpec> {
    list.iter().map(|(to, via)| RouteSpec { to: to.parse().unwrap(), via: ip(via) }).collect()
}

fn iproute(arguments: &[&str]) -> String {
    let output = Command::new("ip").args(arguments).output().expect("iproute2 is needed");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A client whose link address the dataplane doesn't know.
fn client() -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, 51)
}

/// The first transmitted frame that matches. All frames carry the tag.
fn sent(wire: &MemoryPort, is: impl Fn(&Parsed) -> bool) -> MemoryFrame {
    let mut found = None;
    wait_until("a matching frame", || {
        while let Some(frame) = wire.take(0) {
            assert_eq!(frame.bytes()[12..16], [0x81, 0, 0, 100], "every frame is tagged");
            if parse(frame.bytes()).is_ok_and(|parsed| is(&parsed)) {
                found = Some(frame);
                return true;
            }
        }
        false
    });
    found.unwrap()
}
