//! A router between gateway and backend has a link with a smaller MTU. Its ICMP messages are shown to the operator.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tidegate_netlab::addresses::{self as plan, Family, GATEWAY_FOR_SERVERS, TCP_ECHO_PORT};
use tidegate_netlab::modes::{all_paths, manifests};
use tidegate_netlab::{GatewayOptions, checksum};

use crate::world::{World, beside_others};

/// "Fragmentation needed" (RFC 1191 section 4) about a packet of 1,500 bytes of the tunnel to `backend`.
fn too_big(backend: Ipv4Addr, vip: Ipv4Addr, mtu: u16) -> Vec<u8> {
    let source: Ipv4Addr = GATEWAY_FOR_SERVERS[Family::V4 as usize].parse().expect("an address");
    let IpAddr::V4(client) = plan::client(Family::V4, 0) else { panic!("an IPv4 address") };
    let header = |length: u16, protocol: u8, from: Ipv4Addr, to: Ipv4Addr| {
        let mut header = vec![0x45, 0];
        header.extend(length.to_be_bytes());
        // Any id; DF; 63 hops left.
        header.extend([0, 7, 0x40, 0, 63, protocol, 0, 0]);
        header.extend(from.octets());
        header.extend(to.octets());
        let sum = checksum(&header).to_be_bytes();
        header[10..12].copy_from_slice(&sum);
        header
    };
    let mut message = vec![3, 4, 0, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    message.extend(header(1500, 4, source, backend));
    message.extend(header(1480, 6, client, vip));
    message.extend([40_000, TCP_ECHO_PORT].map(u16::to_be_bytes).concat());
    message.extend([0; 4]);
    let sum = checksum(&message).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    message
}

#[test]
fn a_path_mtu_that_a_router_reports_is_shown_with_the_backend_and_logged() {
    let _machine = beside_others();
    let world = World::start(2, GatewayOptions::default(), &manifests(&[1, 2]));
    let is_tunnel = |path: &tidegate_netlab::modes::ModePath| {
        path.forwarding == "dsr-ipip" && path.family == Family::V4 && path.backends == Family::V4
    };
    let path = all_paths().into_iter().find(is_tunnel).expect("a tunnel of IPv4 in IPv4");
    world.wait_until_served(path);
    let (IpAddr::V4(backend), IpAddr::V4(vip)) = (plan::server(Family::V4, 1), path.vip) else {
        panic!("IPv4 addresses")
    };
    let message = too_big(backend, vip, 1400);
    let gateway: IpAddr = GATEWAY_FOR_SERVERS[Family::V4 as usize].parse().expect("an address");
    // The other server acts as the router.
    let send = || {
        let socket =
            Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).expect("a raw socket, as root");
        socket
            .send_to(&message, &SockAddr::from(SocketAddr::new(gateway, 0)))
            .expect("a route to the gateway");
    };
    let rows = |world: &World| -> Vec<String> {
        let wide = world.gateway().query(&["backends", "-A", "-o", "wide"]).expect("the gateway answers");
        assert!(wide.lines().next().is_some_and(|head| head.trim_end().ends_with("PATH-MTU")), "{wide}");
        wide.lines().filter(|line| line.trim_end().ends_with(" 1400")).map(str::to_owned).collect()
    };
    assert_eq!(rows(&world), [""; 0], "none is known");
    world.wait_until("a path MTU of 1,400 bytes", || {
        world.lab.server(2).namespace().enter(send);
        (!rows(&world).is_empty()).then_some(())
    });
    // Other tunnels may lead to the same backend. Services without tunnels never have a path MTU.
    let rows = rows(&world);
    assert!(rows.iter().any(|row| row.split_whitespace().nth(1) == Some(path.service)), "{rows:?}");
    for row in &rows {
        let columns: Vec<&str> = row.split_whitespace().collect();
        let tunnels: Vec<_> = all_paths().into_iter().filter(|path| path.forwarding == "dsr-ipip").collect();
        assert!(tunnels.iter().any(|tunnel| tunnel.service == columns[1]), "{row}");
        assert!(columns[4].starts_with(&format!("{backend}:")), "{row}");
    }
    let message = "a router reported a smaller path MTU to a backend";
    world.wait_until("a line in the log", || world.gateway().log().contains(message).then_some(()));
    let log = world.gateway().log();
    let line = log.lines().find(|line| line.contains(message)).expect("it is there");
    assert!(line.contains(&backend.to_string()) && line.contains("1400"), "{line}");
    assert_eq!(log.matches(message).count(), 1, "logged once, however often the router reports it: {log}");
}
