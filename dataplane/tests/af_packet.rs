//! A gateway on a real kernel link: `net_af_packet` over veth in separate namespaces, with two workers and two queues.
//!
//! The test creates two namespaces and runs itself again in each: as the gateway, and as the LAN with a client and a
//! server. It needs root, iproute2 and ethtool, and says so if they are missing. Two settings are essential: veth must
//! not leave checksums to hardware that doesn't exist (`ethtool -K tx off`), and the kernel must not answer on the port
//! as well as on the tap (`punt::silence`).
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use common::*;
use tidegate_dataplane::gateway::{Dataplane, DataplaneConfig, InterfaceConfig, interface_specs};
use tidegate_spec::{ForwardingMode, NetworkSpec, Protocol, ServiceKey, ServiceSpec, SnapshotSpec};

const ROLE: &str = "TIDEGATE_TEST_ROLE";
const TEST: &str = "two_workers_on_two_queues_serve_real_tcp_and_the_kernel_answers_once";
const CONNECTIONS: u16 = 60;

#[test]
fn two_workers_on_two_queues_serve_real_tcp_and_the_kernel_answers_once() {
    match std::env::var(ROLE).as_deref() {
        Ok("gateway") => gateway(),
        Ok("lan") => lan(),
        _ => slow_path_state(),
    }
}

/// The two namespaces. They are deleted when this is dropped.
struct Lab {
    gateway: String,
    lan: String,
}

impl Lab {
    fn new() -> Self {
        let id = std::process::id();
        let lab = Self { gateway: format!("tgdp-gw-{id}"), lan: format!("tgdp-lan-{id}") };
        run("ip", &["netns", "add", &lab.gateway]);
        run("ip", &["netns", "add", &lab.lan]);
        run(
            "ip",
            &[
                "-n",
                &lab.gateway,
                "link",
                "add",
                "eth0",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                &lab.lan,
            ],
        );
        for netns in [&lab.gateway, &lab.lan] {
            run("ip", &["-n", netns, "link", "set", "lo", "up"]);
            run("ip", &["netns", "exec", netns, "ethtool", "-K", "eth0", "tx", "off"]);
            run("ip", &["-n", netns, "link", "set", "eth0", "up"]);
        }
        for address in ["192.0.2.10/24", "192.0.2.50/24"] {
            run("ip", &["-n", &lab.lan, "address", "add", address, "dev", "eth0"]);
        }
        run("ip", &["-n", &lab.lan, "address", "add", "2001:db8::10/64", "dev", "eth0", "nodad"]);
        lab
    }

    fn again(&self, netns: &str, role: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", netns]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", TEST, "--nocapture", "--test-threads=1"]).env(ROLE, role);
        command
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for netns in [&self.gateway, &self.lan] {
            let _ = Command::new("ip").args(["netns", "del", netns]).status();
        }
    }
}

/// The process is killed when this is dropped, so that a failing test leaves none behind.
struct Gateway(Child);

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn slow_path_state() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test creates network namespaces and packet sockets: run it as root (make test does)"
    );
    let lab = Lab::new();
    let mut command = lab.again(&lab.gateway, "gateway");
    let mut gateway = Gateway(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut output = BufReader::new(gateway.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let ready = output.by_ref().find(|line| line.contains("READY"));
    assert!(ready.is_some(), "the gateway did not come up: {:?}", gateway.0.wait());

    let lan = lab.again(&lab.lan, "lan").output().unwrap();
    assert!(lan.status.success(), "the LAN is unhappy:\n{}", text(&lan));

    // The gateway stops when its input ends. It prints its counters last.
    drop(gateway.0.stdin.take());
    let rest: Vec<String> = output.collect();
    assert!(gateway.0.wait().unwrap().success(), "{rest:?}");
    let count = |name: &str| -> u64 {
        let line = rest
            .iter()
            .find_map(|line| line.split(name).nth(1))
            .unwrap_or_else(|| panic!("no {name}: {rest:?}"));
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    assert!(count("busy0=") > 0 && count("busy1=") > 0, "both workers had frames: {rest:?}");
    assert!(count("hand_overs=") > 0, "replies arrived at the other worker too: {rest:?}");
    assert_eq!(count("connections="), u64::from(CONNECTIONS) * 2 + 2 * 5 * 5, "TCP and UDP: {rest:?}");
    let links = run("ip", &["-n", &lab.gateway, "link"]);
    let has_carrier = text(&links).lines().any(|line| line.contains("tg-") && line.contains("LOWER_UP"));
    assert!(!has_carrier, "no process reads the tap: {}", text(&links));
    let sysctl =
        run("ip", &["netns", "exec", &lab.gateway, "cat", "/proc/sys/net/ipv4/conf/eth0/arp_ignore"]);
    assert_eq!(text(&sysctl).trim(), "0", "the setting of the port is restored");
}

fn gateway() {
    let cpu = dpdk::lcore::usable_cpus();
    let config = DataplaneConfig {
        cores: cpu
            .iter()
            .copied()
            .cycle()
            .take(2)
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect(),
        flow_entries_per_core: 4096,
        memory: dpdk::Memory::NoHuge { mib: 128 },
        interfaces: vec![InterfaceConfig {
            name: "uplink".into(),
            device: "net_af_packet,iface=eth0".into(),
            mac: None,
            mtu: None,
            vlan: None,
            addresses: vec!["192.0.2.2/24".parse().unwrap(), "2001:db8::2/64".parse().unwrap()],
        }],
        ..DataplaneConfig::default()
    };
    assert_eq!(config.cores.len(), 2, "two workers need two CPUs");
    let gateway = Dataplane::start(&config).unwrap();
    let mut v6 = service("2001:db8::101", "translated-6", ForwardingMode::FullNat);
    v6.backends[0].address = ip("2001:db8::10");
    let mut v4 = service(VIP_FULLNAT, "translated", ForwardingMode::FullNat);
    v4.key = ServiceKey { protocol: Protocol::Tcp, ..v4.key };
    let udp = [&v4, &v6].map(|tcp| {
        let key = ServiceKey { protocol: Protocol::Udp, ..tcp.key };
        ServiceSpec { key, ..tcp.clone() }.into()
    });
    let spec = SnapshotSpec {
        generation: 1,
        network: NetworkSpec {
            interfaces: interface_specs(&config, gateway.interfaces()),
            snat_addresses: vec![ip(SNAT), ip("2001:db8::3")],
            ..NetworkSpec::default()
        }
        .into(),
        services: [v4.into(), v6.into()].into_iter().chain(udp).collect(),
    };
    let published = gateway.publish(&spec).unwrap();
    assert!(published.problems.is_empty(), "{:?}", published.problems);
    wait_until("applied", || gateway.applied_generation() == 1);
    for own in ["192.0.2.2:7", "[2001:db8::2]:7"] {
        let socket = UdpSocket::bind(own).unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 16];
            while let Ok((count, from)) = socket.recv_from(&mut buffer) {
                socket.send_to(&buffer[..count], from).unwrap();
            }
        });
    }
    println!("READY");
    std::io::stdout().flush().unwrap();
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest).unwrap();
    let (stats, services) = (gateway.stats(), gateway.service_stats());
    let connections: u64 =
        services.iter().flat_map(|service| &service.backends).map(|backend| backend.connections).sum();
    println!("busy0={} busy1={}", stats.workers[0].frames, stats.workers[1].frames);
    println!("hand_overs={} connections={connections}", stats.hand_overs);
    println!("{stats:?}");
    assert!(gateway.healthy());
    gateway.stop();
}

/// Runs the client and the server, on one link with the gateway.
fn lan() {
    for address in ["192.0.2.10:80", "[2001:db8::10]:80"] {
        let listener = TcpListener::bind(address).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || echo(stream));
            }
        });
    }
    for vip in [format!("{VIP_FULLNAT}:80"), "[2001:db8::101]:80".to_owned()] {
        let vip: SocketAddr = vip.parse().unwrap();
        for n in 0..CONNECTIONS {
            let mut stream = TcpStream::connect_timeout(&vip, Duration::from_secs(20)).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let message = vec![u8::try_from(n % 251).unwrap(); 3000];
            stream.write_all(&message).unwrap();
            let mut answer = vec![0; message.len()];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(answer, message);
        }
    }
    for (own, n) in [("192.0.2.2:7", 0_u8), ("[2001:db8::2]:7", 1)] {
        requested_once_answered_once(own, n);
    }
    for (server, vip) in
        [("192.0.2.10:80", format!("{VIP_FULLNAT}:80")), ("[2001:db8::10]:80", "[2001:db8::101]:80".into())]
    {
        large_datagrams_come_back_whole(server, &vip);
    }
}

/// The kernel reassembles IPv4 before the port receives a packet, but passes IPv6 fragments on individually.
fn large_datagrams_come_back_whole(server: &str, vip: &str) {
    let echo = UdpSocket::bind(server).unwrap();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok((count, from)) = echo.recv_from(&mut buffer) {
            echo.send_to(&buffer[..count], from).unwrap();
        }
    });
    let client = if server.starts_with('[') { "[2001:db8::10]:0" } else { "192.0.2.50:0" };
    let mut lost = Vec::new();
    for size in [1400, 1473, 1500, 9000, 60_000] {
        for n in 0..5 {
            let socket = UdpSocket::bind(client).unwrap();
            socket.connect(vip).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let message: Vec<u8> = (0..size).map(|at| ((at * 7 + n) % 251) as u8).collect();
            socket.send(&message).unwrap();
            let mut answer = vec![0; 65_536];
            match socket.recv(&mut answer) {
                Ok(count) => assert!(answer[..count] == message, "{vip}: {size} bytes came back as {count}"),
                Err(error) => lost.push(format!("{vip}: {size} bytes: {error}")),
            }
        }
    }
    assert!(lost.is_empty(), "{lost:#?}");
}

/// Datagrams to the gateway's own address reach its kernel through the tap, each exactly once, and the kernel's answers
/// return.
fn requested_once_answered_once(own: &str, n: u8) {
    let socket = UdpSocket::bind(if n == 0 { "192.0.2.50:0" } else { "[2001:db8::10]:0" }).unwrap();
    socket.connect(own).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut buffer = [0; 16];
    for round in 0..5 {
        socket.send(&[n, round]).unwrap();
        let count = socket.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..count], [n, round], "in order, and no answer twice");
    }
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(socket.recv(&mut buffer).is_err(), "{own} answered more often than it was queried");
}

fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 2048];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

fn run(program: &str, arguments: &[&str]) -> Output {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program} is needed: {error}"));
    assert!(output.status.success(), "{program} {}: {}", arguments.join(" "), text(&output));
    output
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
