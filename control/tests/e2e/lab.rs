//! Tests of the lab itself: its servers answer directly from a VIP to the client, its decapsulation accepts packets of
//! other stacks, and it leaves nothing behind.

use crate::world;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;
use tidegate::netlab::addresses::{self as plan, ECHO_PORT, Family, SERVER_PREFIX, TELL_PORT};
use tidegate::netlab::client::{BackendAnswer, Tell, curl_many, spread};
use tidegate::netlab::{Lab, wait_for};

#[test]
fn servers_answer_as_the_vip_straight_to_the_client() {
    let _turn = world::alone();
    let lab = world::lab(2);
    for family in Family::BOTH {
        // The client itself selects the server here by its Ethernet address, as a gateway in dsr-l2 does.
        let (vip, server) = (plan::routed_vip(family, 1), lab.server(2).address(family));
        let length = if family == Family::V4 { 32 } else { 128 };
        reach_servers(&lab, family);
        lab.client().ip_batch(&format!("route add {vip}/{length} via {server}")).unwrap();

        let url = format!("http://{}/", SocketAddr::new(vip, 80));
        let answers = curl_many(lab.client(), &url, 20, &[]).unwrap();
        assert_eq!(answers.errors, "");
        assert_eq!(spread(&answers.told), [("backend-2".to_owned(), 20)].into());
        assert!(answers.told.iter().all(|told| told.client.ip() == plan::client(family, 0)), "{answers:?}");

        let source = SocketAddr::new(plan::client(family, 3), 0);
        let mut tell = Tell::connect(lab.client(), source, SocketAddr::new(vip, TELL_PORT)).unwrap();
        tell.ping().unwrap();
        assert_eq!(
            tell.told,
            BackendAnswer { backend: "backend-2".to_owned(), client: tell.local().unwrap() }
        );
    }
}

#[test]
fn decapsulation_delivers_all_four_combinations() {
    let _turn = world::alone();
    let lab = world::lab(1);
    for family in Family::BOTH {
        reach_servers(&lab, family);
    }
    for outer in Family::BOTH {
        for inner in Family::BOTH {
            let (client, vip) = (plan::client(inner, 1), plan::routed_vip(inner, 2));
            let text = format!("{inner} in {outer}");
            let packet = udp_packet(client, 4000, vip, ECHO_PORT, text.as_bytes());
            let heard = lab.client().enter(|| {
                // The kernel accepts the answer for this socket only if it comes from the VIP.
                let socket = UdpSocket::bind((client, 4000)).unwrap();
                socket.connect((vip, ECHO_PORT)).unwrap();
                socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
                let domain = if outer == Family::V4 { Domain::IPV4 } else { Domain::IPV6 };
                let protocol = if inner == Family::V4 { 4 } else { 41 };
                let tunnel = Socket::new(domain, Type::RAW, Some(Protocol::from(protocol))).unwrap();
                let server = SockAddr::from(SocketAddr::new(lab.server(1).address(outer), 0));
                let mut buffer = [0; 512];
                wait_for(&text, Duration::from_secs(5), || {
                    tunnel.send_to(&packet, &server).unwrap();
                    let length = socket.recv(&mut buffer).ok()?;
                    Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
                })
                .unwrap()
            });
            assert_eq!(heard, format!("backend-1 client={} {text}", SocketAddr::new(client, 4000)));
        }
    }
}

#[test]
fn nothing_is_left_of_a_lab_that_was_dropped() {
    let _turn = world::alone();
    let lab = world::lab(1);
    let (id, directory) = (lab.id().to_owned(), lab.directory().to_owned());
    let named_so = || {
        let listed = std::process::Command::new("ip").args(["netns", "list"]).output().unwrap();
        String::from_utf8(listed.stdout).unwrap().lines().filter(|line| line.starts_with(&id)).count()
    };
    assert_eq!(named_so(), 4, "switch, client, gateway and one server stand");
    drop(lab);
    assert_eq!(named_so(), 0);
    assert!(!directory.exists());
}

/// Lets the client talk to the servers without a gateway.
fn reach_servers(lab: &Lab, family: Family) {
    let prefix = SERVER_PREFIX[family as usize];
    let routed = lab.client().ip_batch_of(family, &format!("route add {prefix} dev eth0"));
    routed.expect("the servers are on the client's link");
}

/// A UDP packet with its IP header. Its checksums are computed by a simple, slow method (RFC 768, RFC 791, RFC 8200).
fn udp_packet(source: IpAddr, source_port: u16, to: IpAddr, port: u16, data: &[u8]) -> Vec<u8> {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let length = u16::try_from(8 + data.len()).expect("a short text");
    let addresses = [octets(source), octets(to)].concat();
    let mut udp = [source_port, port, length, 0].map(u16::to_be_bytes).concat();
    udp.extend_from_slice(data);
    // The pseudo-headers of both families have the same sum: addresses, length, protocol.
    let pseudo = [&addresses[..], &length.to_be_bytes(), &[0, 17], &udp].concat();
    udp[6..8].copy_from_slice(&checksum(&pseudo).to_be_bytes());

    let mut header = if source.is_ipv4() {
        let total = (20 + length).to_be_bytes();
        [&[0x45, 0][..], &total, &[0, 1, 0, 0, 64, 17, 0, 0], &addresses].concat()
    } else {
        [&[0x60, 0, 0, 0][..], &length.to_be_bytes(), &[17, 64], &addresses].concat()
    };
    if source.is_ipv4() {
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    [header, udp].concat()
}

/// The Internet checksum by the simple loop of RFC 1071.
pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded to 16 bits")
}
