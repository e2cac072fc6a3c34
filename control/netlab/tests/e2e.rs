//! Tests of the lab itself: its servers answer directly from a VIP to the client, its decapsulation accepts packets of
//! other stacks, and it leaves nothing behind.
//!
//! `--test e2e` of the workspace selects these tests beside those of the gateway, and so builds `tidegate-demo` for both.

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;
use tidegate_netlab::addresses::{self as plan, Family, SERVER_PREFIX, TCP_ECHO_PORT, UDP_ECHO_PORT};
use tidegate_netlab::client::{BackendAnswer, EchoConnection, curl_many, spread};
use tidegate_netlab::{Envelope, Lab, LabPlan, checksum, cleanup, wait_for};

/// A lab with this number of running servers, which have two routed VIPs. Only one test at a time has it.
fn lab(servers: u8) -> (MutexGuard<'static, ()>, Lab) {
    static LAB: Mutex<()> = Mutex::new(());
    static SIGNALS: Once = Once::new();
    let guard = LAB.lock().unwrap_or_else(PoisonError::into_inner);
    SIGNALS.call_once(|| cleanup::on_signals().expect("signal handlers"));
    let vips = Family::BOTH.into_iter().flat_map(|family| [1, 2].map(|n| plan::routed_vip(family, n)));
    // The gateway is not needed; the tools are.
    let tidegate = Path::new(env!("CARGO_BIN_EXE_tidegate-demo")).with_file_name("tidegate");
    let mut lab = Lab::build(&LabPlan { servers, vips: vips.collect(), tidegate }).expect("needs root");
    lab.start_servers().expect("the servers answer");
    (guard, lab)
}

#[test]
fn servers_answer_as_the_vip_straight_to_the_client() {
    let (_guard, lab) = lab(2);
    for family in Family::BOTH {
        // The client itself selects the server here by its Ethernet address, as a gateway in dsr-l2 does.
        let (vip, server) = (plan::routed_vip(family, 1), lab.server(2).address(family));
        let length = if family == Family::V4 { 32 } else { 128 };
        reach_servers(&lab, family);
        lab.client().ip_batch(&format!("route add {vip}/{length} via {server}")).unwrap();

        let url = format!("http://{}/", SocketAddr::new(vip, 80));
        let answers = curl_many(lab.client(), &url, 20, &[]).unwrap();
        assert_eq!(answers.errors, "");
        assert_eq!(spread(&answers.received), [("backend-2".to_owned(), 20)].into());
        assert!(
            answers.received.iter().all(|answer| answer.client.ip() == plan::client(family, 0)),
            "{answers:?}"
        );

        let source = SocketAddr::new(plan::client(family, 3), 0);
        let mut connection =
            EchoConnection::connect(lab.client(), source, SocketAddr::new(vip, TCP_ECHO_PORT)).unwrap();
        connection.ping().unwrap();
        assert_eq!(
            connection.answer,
            BackendAnswer { backend: "backend-2".to_owned(), client: connection.local().unwrap() }
        );
    }
}

#[test]
fn decapsulation_delivers_every_tunnel_in_all_four_combinations() {
    let (_guard, lab) = lab(1);
    for family in Family::BOTH {
        reach_servers(&lab, family);
    }
    for (outer, inner) in COMBINATIONS {
        for (envelope, (protocol, header)) in Envelope::ALL.into_iter().zip(headers(inner)) {
            let (client, vip) = (plan::client(inner, 1), plan::routed_vip(inner, 2));
            let text = format!("{envelope}, {inner} in {outer}");
            let packet = udp_packet(client, 4000, vip, UDP_ECHO_PORT, text.as_bytes());
            let packet = in_tunnel(&lab, outer, protocol, &header, &packet);
            let received = lab.client().enter(|| {
                // The kernel accepts the answer for this socket only if it comes from the VIP.
                let socket = UdpSocket::bind((client, 4000)).unwrap();
                socket.connect((vip, UDP_ECHO_PORT)).unwrap();
                socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
                let mut buffer = [0; 512];
                wait_for(&text, Duration::from_secs(5), || {
                    send_raw(&lab, outer, protocol, &packet);
                    let length = socket.recv(&mut buffer).ok()?;
                    Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
                })
                .unwrap()
            });
            assert_eq!(received, format!("backend-1 client={} {text}", SocketAddr::new(client, 4000)));
            let counts = lab.server(1).tunnel_counts().unwrap();
            let found = counts.envelopes_of(vip);
            assert!(found.contains(&(&envelope.to_string(), &outer.to_string())), "{text}: {counts}");
        }
    }
    let counts = lab.server(1).tunnel_counts().unwrap();
    assert!(counts.refused.is_empty(), "{counts}");
}

#[test]
fn decapsulation_refuses_and_counts_wrong_outer_headers() {
    let (_guard, lab) = lab(1);
    for family in Family::BOTH {
        reach_servers(&lab, family);
    }
    // The byte of tunnel headers and inner packet to change, the bits to change there, and the reason.
    let faults: &[(usize, usize, u8, &str)] = &[
        (0, 0, 0x10, "wrong inner version"),
        (0, 3, 0x01, "wrong inner header checksum"),
        (1, 0, 0x80, "wrong UDP source port"),
        (1, 3, 0x01, "no tunnel of this lab has this variant, port or key"),
        (1, 5, 0x01, "wrong UDP length"),
        (2, 8, 0x01, "wrong GUE control bit or header length"),
        (2, 8, 0x20, "wrong GUE control bit or header length"),
        (2, 9, 0x20, "wrong GUE protocol"),
        (2, 9, 0x2d, "the outer header names another address family than the inner packet has"),
        (2, 11, 0x01, "wrong GUE flags"),
        (3, 0, 0x20, "no tunnel of this lab has this variant, port or key"),
        (3, 0, 0x80, "wrong GRE flags or version"),
        (3, 1, 0x01, "wrong GRE flags or version"),
        (3, 3, 0x01, "wrong GRE protocol type"),
        (4, 7, 0x01, "no tunnel of this lab has this variant, port or key"),
        (5, 8, 0x40, "wrong Geneve version or length of options"),
        (5, 9, 0x40, "wrong Geneve flags or reserved bits"),
        (5, 10, 0x01, "wrong Geneve protocol type"),
        (5, 14, 0x01, "no tunnel of this lab has this variant, port or key"),
        (5, 18, 0x80, "wrong Geneve option"),
        (5, 27, 0x01, "the Geneve identity belongs to no Service of the lab"),
    ];
    let packet = udp_packet(plan::client(Family::V4, 1), 4000, plan::routed_vip(Family::V4, 2), 9, b"text");
    for (kind, at, bits, reason) in faults {
        let (protocol, header) = &headers(Family::V4)[*kind];
        let mut wrong = in_tunnel(&lab, Family::V4, *protocol, header, &packet);
        wrong[*at] ^= bits;
        assert_refused(&lab, Family::V4, *protocol, &wrong, reason);
    }
    let (protocol, header) = &headers(Family::V4)[1];
    let mut with_sum = in_tunnel(&lab, Family::V4, *protocol, header, &packet);
    with_sum[6] = 1;
    assert_refused(&lab, Family::V4, *protocol, &with_sum, "nonzero UDP checksum over IPv4");
    let right = in_tunnel(&lab, Family::V6, *protocol, header, &packet);
    for wrong in [[0, 0], [right[6] ^ 1, right[7]]] {
        let mut changed = right.clone();
        changed[6..8].copy_from_slice(&wrong);
        assert_refused(&lab, Family::V6, *protocol, &changed, "wrong UDP checksum over IPv6");
    }
}

/// Sends a packet to the server until it is refused for this reason.
fn assert_refused(lab: &Lab, outer: Family, protocol: u8, packet: &[u8], reason: &str) {
    let count = || {
        lab.server(1).tunnel_counts().expect("decapsulation runs").refused.get(reason).copied().unwrap_or(0)
    };
    let before = count();
    let refused = wait_for(reason, Duration::from_secs(5), || {
        lab.client().enter(|| send_raw(lab, outer, protocol, packet));
        (count() > before).then_some(())
    });
    refused.unwrap_or_else(|error| {
        panic!("{error:#}: {}", lab.server(1).tunnel_counts().expect("decapsulation runs"))
    });
}

/// Families of the outer and the inner header.
const COMBINATIONS: [(Family, Family); 4] =
    [(Family::V4, Family::V4), (Family::V4, Family::V6), (Family::V6, Family::V4), (Family::V6, Family::V6)];

/// The 64-bit FNV-1a hash of `lab/geneve`.
const GENEVE_SERVICE: [u8; 8] = [0xe2, 0x4d, 0x1f, 0x04, 0xfc, 0x3a, 0xc6, 0xb1];

/// The protocol number and the headers of each tunnel of `Envelope::ALL`, without the UDP length and checksum.
fn headers(inner: Family) -> [(u8, Vec<u8>); 6] {
    let (ip, ether) = if inner == Family::V4 { (4, [0x08, 0x00]) } else { (41, [0x86, 0xdd]) };
    let udp = |port: u16| [&[0xc0, 0x01][..], &port.to_be_bytes(), &[0; 4]].concat();
    [
        (ip, Vec::new()),
        (17, udp(6080)),
        (17, [&udp(6081)[..], &[0, ip, 0, 0]].concat()),
        (47, [&[0, 0][..], &ether].concat()),
        (47, [&[0x20, 0][..], &ether, &[0x0a, 0x1b, 0x2c, 0x3d]].concat()),
        (
            17,
            [&udp(6082)[..], &[3, 0], &ether, &[0x1a, 0x2b, 0x3c, 0, 0xff, 0x54, 1, 2], &GENEVE_SERVICE]
                .concat(),
        ),
    ]
}

/// The tunnel's headers and the packet, with UDP's length, and its checksum over IPv6.
fn in_tunnel(lab: &Lab, outer: Family, protocol: u8, header: &[u8], packet: &[u8]) -> Vec<u8> {
    let mut whole = [header, packet].concat();
    if protocol != 17 {
        return whole;
    }
    let length = u16::try_from(whole.len()).expect("a short packet").to_be_bytes();
    whole[4..6].copy_from_slice(&length);
    if outer == Family::V6 {
        let addresses = [octets(plan::client(outer, 0)), octets(lab.server(1).address(outer))].concat();
        let pseudo = [&addresses[..], &length, &[0, 17], &whole].concat();
        whole[6..8].copy_from_slice(&checksum(&pseudo).to_be_bytes());
    }
    whole
}

/// Sends a packet from the client's first address to the server, in the namespace of the calling thread.
fn send_raw(lab: &Lab, outer: Family, protocol: u8, packet: &[u8]) {
    let domain = if outer == Family::V4 { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(i32::from(protocol))));
    let socket = socket.expect("a raw socket, as root");
    socket.bind(&SockAddr::from(SocketAddr::new(plan::client(outer, 0), 0))).expect("the client's address");
    let server = SockAddr::from(SocketAddr::new(lab.server(1).address(outer), 0));
    socket.send_to(packet, &server).expect("a route to the server");
}

#[test]
fn a_dropped_lab_leaves_nothing_behind() {
    let (_guard, lab) = lab(1);
    let (id, directory) = (lab.id().to_owned(), lab.directory().to_owned());
    let named_so = || {
        let listed = std::process::Command::new("ip").args(["netns", "list"]).output().unwrap();
        String::from_utf8(listed.stdout).unwrap().lines().filter(|line| line.starts_with(&id)).count()
    };
    assert_eq!(named_so(), 4, "switch, client, gateway and one server exist");
    drop(lab);
    assert_eq!(named_so(), 0);
    assert!(!directory.exists());
}

/// Lets the client reach the servers without a gateway.
fn reach_servers(lab: &Lab, family: Family) {
    let prefix = SERVER_PREFIX[family as usize];
    let routed = lab.client().ip_batch_of(family, &format!("route add {prefix} dev eth0"));
    routed.expect("the servers are on the client's link");
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// A UDP packet with its IP header. Its checksums are computed by a simple, slow method (RFC 768, RFC 791, RFC 8200).
fn udp_packet(source: IpAddr, source_port: u16, to: IpAddr, port: u16, data: &[u8]) -> Vec<u8> {
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
