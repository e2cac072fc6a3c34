//! Packets that another gateway forwards in a tunnel: a program on the clients' host encapsulates packets of real
//! connections in IP-in-IP, GRE and GUE, in turn.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context as _, Result};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tidegate_netlab::addresses::{CLIENT_ADDRESSES, Family, GATEWAY_FOR_CLIENTS, client};
use tidegate_netlab::modes::{ModePath, all_paths, manifests};
use tidegate_netlab::{GatewayOptions, Lab};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use crate::world::{World, beside_others, lab};

/// Protocol numbers of IPv4 in IP, IPv6 in IP, and GRE.
const RAW: [u8; 3] = [4, 41, 47];

/// The peer: it reads packets for VIPs from a TUN device, and sends them to the gateway in tunnels over IPv4.
struct Peer {
    sent: Arc<[AtomicUsize; 3]>,
}

impl Peer {
    fn address() -> IpAddr {
        client(Family::V4, CLIENT_ADDRESSES - 1)
    }

    fn start(lab: &Lab, paths: &[ModePath]) -> Result<Self> {
        let open = || -> Result<_> {
            let device = DeviceBuilder::new()
                .name("peer")
                .layer(Layer::L3)
                .mtu(1400)
                .build_sync()
                .context("TUN device")?;
            let gateway: IpAddr = GATEWAY_FOR_CLIENTS[0].parse()?;
            let raw = RAW.map(|protocol| raw_socket(protocol, gateway));
            let gue = UdpSocket::bind((Self::address(), 0))?;
            gue.connect((gateway, 6080))?;
            Ok((device, raw, gue))
        };
        let (device, raw, gue) = lab.client().enter(open)?;
        let mut lines = "link set peer up\n".to_owned();
        lines.extend(paths.iter().map(|path| format!("route add {} dev peer\n", path.vip)));
        lab.client().ip_batch(&lines)?;
        let [v4, v6, gre] = raw;
        let (v4, v6, gre) = (v4?, v6?, gre?);
        let sent: Arc<[AtomicUsize; 3]> = Arc::default();
        let counts = Arc::clone(&sent);
        // The thread ends with its device, which is removed with the lab.
        thread::spawn(move || forward(&device, [&v4, &v6, &gre], &gue, &counts));
        Ok(Self { sent })
    }

    /// Packets in IP-in-IP, GRE and GUE.
    fn sent(&self) -> [usize; 3] {
        self.sent.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}

fn raw_socket(protocol: u8, gateway: IpAddr) -> Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(i32::from(protocol))))?;
    socket.bind(&SockAddr::from(SocketAddr::new(Peer::address(), 0)))?;
    socket.connect(&SockAddr::from(SocketAddr::new(gateway, 0)))?;
    Ok(socket)
}

fn forward(device: &SyncDevice, [v4, v6, gre]: [&Socket; 3], gue: &UdpSocket, counts: &[AtomicUsize; 3]) {
    let mut buffer = [0; 2048];
    for n in 0.. {
        let Ok(len) = device.recv(&mut buffer[4..]) else { return };
        let is_v4 = buffer[4] >> 4 == 4;
        let header = if is_v4 { [0, 0, 8, 0] } else { [0, 0, 0x86, 0xdd] };
        buffer[..4].copy_from_slice(&header);
        let packet = &buffer[4..4 + len];
        let sent = match n % 3 {
            0 if is_v4 => v4.send(packet),
            0 => v6.send(packet),
            1 => gre.send(&buffer[..4 + len]),
            _ => gue.send(packet),
        };
        // Packets that the kernel does not send are lost, and TCP retransmits them.
        if sent.is_ok() {
            counts[n % 3].fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn tunneled_packets_of_another_gateway_are_served_in_every_mode() {
    let _machine = beside_others();
    let paths = all_paths();
    let options = GatewayOptions { tunnel_peers: vec![Peer::address()], ..GatewayOptions::default() };
    let world = World::over(lab(2), options, &manifests(&[1, 2]), "");
    for path in &paths {
        world.wait_until_active(*path, &[1, 2]);
    }
    let before = world.gateway().query(&["drops"]).expect("the gateway answers");
    let peer = Peer::start(&world.lab, &paths).expect("the peer starts");
    for (n, path) in (0..).zip(&paths) {
        for _ in 0..3 {
            let name = format!("{} {}", path.label(), path.family);
            let mut connection = world.connect(*path, n).unwrap_or_else(|error| panic!("{name}: {error:#}"));
            assert_eq!(connection.answer.client.ip(), path.seen_client(client(path.family, n)), "{name}");
            connection.ping().unwrap_or_else(|error| panic!("{name}: {error:#}"));
        }
    }
    let drops = world.gateway().query(&["drops"]).expect("the gateway answers");
    assert!(!drops.contains("tunnel_"), "{before}\n{drops}");
    let sent = peer.sent();
    println!("packets in IP-in-IP, GRE and GUE: {sent:?}");
    assert!(sent.iter().all(|count| *count > paths.len()), "{sent:?}");
}
