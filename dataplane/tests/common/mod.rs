//! A small gateway for tests: one link, a VIP per mode, two backends, and only configured neighbours.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test binary uses its part of this")]

pub mod bench;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use tidegate_pipeline::testing::Builder;
use tidegate_spec::testing;
use tidegate_spec::{
    BackendSpec, BackendState, ForwardingMode, InterfaceSpec, NeighborSpec, NetworkSpec, Protocol, Scheduler,
    ServiceSpec, SnapshotSpec,
};
use tidegate_wire::{MacAddr, tcp};

pub const GATEWAY: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
pub const CLIENT: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x50]);
pub const BACKEND: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x10]);

pub const VIP_L2: &str = "192.0.2.100";
pub const VIP_FULLNAT: &str = "192.0.2.101";
pub const SNAT: &str = "192.0.2.3";
pub const CLIENT_IP: &str = "192.0.2.50";
pub const BACKEND_IP: &str = "192.0.2.10";

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn service(vip: &str, name: &str, mode: ForwardingMode) -> ServiceSpec {
    let vip = SocketAddr::new(ip(vip), 80);
    ServiceSpec {
        name: name.into(),
        port_name: "http".into(),
        scheduler: Scheduler::Maglev { slots: 101 },
        idle_timeout_udp: Duration::from_secs(60),
        idle_timeout_sctp: Duration::from_secs(60),
        backends: vec![BackendSpec {
            address: ip(BACKEND_IP),
            port: 80,
            weight: 1,
            state: BackendState::Active,
        }],
        ..testing::service(mode, Protocol::Tcp, &vip.to_string(), &[])
    }
}

pub fn interface(mac: MacAddr) -> InterfaceSpec {
    testing::interface(mac, &["192.0.2.2/24", "2001:db8::2/64"])
}

pub fn spec(generation: u64) -> SnapshotSpec {
    SnapshotSpec {
        generation,
        network: NetworkSpec {
            interfaces: vec![interface(GATEWAY)],
            neighbors: vec![
                NeighborSpec { ip: ip(BACKEND_IP), mac: BACKEND },
                NeighborSpec { ip: ip(CLIENT_IP), mac: CLIENT },
            ],
            snat_addresses: vec![ip(SNAT)],
            ..NetworkSpec::default()
        }
        .into(),
        services: vec![
            service(VIP_L2, "direct", ForwardingMode::DsrL2).into(),
            service(VIP_FULLNAT, "translated", ForwardingMode::FullNat).into(),
        ],
    }
}

/// A SYN of the client to a service.
pub fn syn(port: u16, vip: &str) -> Vec<u8> {
    let (from, to) = (format!("{CLIENT_IP}:{port}"), format!("{vip}:80"));
    Builder::tcp(from.as_str(), to.as_str()).mac(CLIENT, GATEWAY).flags(tcp::flags::SYN).build()
}

/// A frame of an unknown protocol, which goes to the kernel.
pub fn stray() -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[..6].copy_from_slice(&GATEWAY.0);
    frame[6..12].copy_from_slice(&CLIENT.0);
    frame[12..14].copy_from_slice(&0x88cc_u16.to_be_bytes());
    frame
}

pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within 30 s");
        std::thread::park_timeout(Duration::from_micros(200));
    }
}
