//! The way to the kernel and back, with a real tap: a network namespace of its own, ports in memory for the wire.
//!
//! The test runs itself again under `unshare --net`; needs root, util-linux and iproute2, and says so.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

mod common;

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::process::Command;

use common::*;
use tidegate_core::forward::snat_ports::Steering;
use tidegate_core::frame::{Frame, MemoryFrame};
use tidegate_core::testing::Builder;
use tidegate_core::wire::arp::{ArpOperation, ArpPacket};
use tidegate_core::wire::{MacAddr, Parsed, VlanId, ethernet, parse};
use tidegate_dataplane::drivers::memory::{self, Heap, MemoryPort};
use tidegate_dataplane::gateway::{Crew, CrewConfig};
use tidegate_dataplane::punt::tap::{Tap, TapConfig};
use tidegate_dataplane::topology::{Idle, WorkerPlace};

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
        "this test makes a tap in a network namespace: run it as root (make test does)"
    );
    let mut again = Command::new("unshare");
    again
        .arg("--net")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", TEST, "--nocapture"])
        .env(INSIDE, "1");
    let output = again.output().unwrap_or_else(|error| panic!("unshare is needed: {error}"));
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

fn inside() {
    let tap = Tap::create(&TapConfig {
        interface: "uplink".into(),
        mac: GATEWAY,
        mtu: 1400,
        vlan: VlanId::new(VLAN),
        addresses: vec!["192.0.2.2/24".parse().unwrap(), "2001:db8::2/64".parse().unwrap()],
        routes: vec![
            ("198.51.100.0/24".parse().unwrap(), ip("192.0.2.1")),
            ("203.0.113.0/24".parse().unwrap(), ip("2001:db8::1")),
            ("::/0".parse().unwrap(), ip("2001:db8::1")),
        ],
    })
    .unwrap();
    for (arguments, wanted) in [
        (&["route"][..], "198.51.100.0/24 via 192.0.2.1 dev tg-uplink proto static metric 4096"),
        (&["route"], "203.0.113.0/24 via inet6 2001:db8::1 dev tg-uplink"),
        (&["-6", "route"], "default via 2001:db8::1 dev tg-uplink"),
        (&["link"], "tg-uplink: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1400"),
        (&["link"], "link/ether 02:00:00:00:00:02"),
    ] {
        let output = Command::new("ip").args(arguments).output().expect("iproute2 is needed");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains(wanted), "{wanted:?} is not in:\n{said}");
    }

    let (wire, ends) = memory::port(1, 64);
    let config = CrewConfig {
        places: vec![WorkerPlace { worker: 0, core: 0, numa: None }],
        idle: Idle::Adaptive,
        flow_entries: 1024,
        steering: Steering::Single,
        seed: 7,
        announce: false,
        main_cpus: Vec::new(),
    };
    let mut first = spec(1);
    first.interfaces[0].vlan = Some(VLAN);
    let queues = ends.into_iter().map(|end| vec![end]).collect();
    let enter = |_: &WorkerPlace| Ok::<(), String>(());
    let mut crew = Crew::start(&config, queues, Heap, vec![Some(tap)], &first, enter, None).unwrap();

    let server = UdpSocket::bind("192.0.2.2:7").unwrap();
    let question = Builder::udp("192.0.2.50:4000", "192.0.2.2:7")
        .mac(CLIENT, GATEWAY)
        .vlan(VLAN)
        .payload(b"hello")
        .build();
    assert!(wire.offer(0, &question));
    let mut buffer = [0; 64];
    let (count, from) = server.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..count], from.to_string().as_str()), (&b"hello"[..], "192.0.2.50:4000"));

    server.send_to(b"welcome", from).unwrap();
    // The kernel asks for the client first; the wire answers in the client's name.
    let asked = sent(&wire, |parsed| matches!(parsed, Parsed::Arp(packet) if packet.target_ip == client()));
    assert_eq!(ethernet::destination(asked.bytes()), MacAddr::BROADCAST);
    let answer = ArpPacket {
        operation: ArpOperation::Reply,
        sender_mac: CLIENT,
        sender_ip: client(),
        target_mac: GATEWAY,
        target_ip: Ipv4Addr::new(192, 0, 2, 2),
        vlan: VlanId::new(VLAN),
    };
    assert!(wire.offer(0, &answer.frame(GATEWAY)));
    let back = sent(&wire, |parsed| matches!(parsed, Parsed::Ip(headers) if headers.dst_port == 4000));
    assert_eq!((ethernet::destination(back.bytes()), ethernet::source(back.bytes())), (CLIENT, GATEWAY));
    assert!(back.bytes().ends_with(b"welcome"));

    let stats = crew.stats().slow_path;
    assert!(stats.to_kernel >= 2 && stats.from_kernel >= 2, "{stats:?}");
    crew.stop();
    assert!(!std::path::Path::new("/sys/class/net/tg-uplink").exists(), "the tap goes with the crew");
}

fn client() -> Ipv4Addr {
    match ip(CLIENT_IP) {
        IpAddr::V4(address) => address,
        IpAddr::V6(_) => unreachable!("an IPv4 address"),
    }
}

/// The first frame sent that is what is looked for; all frames carry the tag.
fn sent(wire: &MemoryPort, is: impl Fn(&Parsed) -> bool) -> MemoryFrame {
    let mut found = None;
    wait_until("the frame looked for", || {
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
