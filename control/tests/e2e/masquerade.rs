//! Masquerading: a backend reaches an external host that has no route to the backend's network.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use tidegate_netlab::addresses::{self as plan, Family, GATEWAY_FOR_CLIENTS, SNAT, TCP_ECHO_PORT};
use tidegate_netlab::manifests::{EndpointSpec, Manifest, PortSpec};
use tidegate_netlab::{Gateway, GatewayOptions};

use crate::world::{World, beside_others};

/// The maximum time of one exchange, which only limits a failing test.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum time of an exchange that is retried.
const RETRY: Duration = Duration::from_millis(500);

/// Bytes that TCP sends in each direction.
const BYTES: usize = 1 << 18;

#[test]
fn a_reload_enables_masquerading_with_the_snat_address() {
    let _machine = beside_others();
    for cores in [vec![1], vec![0, 1]] {
        let options = GatewayOptions { cores: cores.clone(), ..GatewayOptions::default() };
        let vips = Family::BOTH.map(|family| plan::routed_vip(family, 7));
        let endpoints = Family::BOTH.map(|family| EndpointSpec::ready(plan::server(family, 1)));
        let service = Manifest::new("inside", "nat", &vips, vec![PortSpec::tcp("tcp-echo", TCP_ECHO_PORT)]);
        let mut world = World::start(1, options.clone(), &[service.with_endpoints(endpoints)]);
        // The external host knows the SNAT addresses, and no other address of the backends' network.
        for (snat, via) in SNAT.into_iter().zip(GATEWAY_FOR_CLIENTS) {
            let length = if snat.contains(':') { 128 } else { 32 };
            world.lab.client().ip_batch(&format!("route add {snat}/{length} via {via}")).unwrap();
        }
        Gateway::configure(&world.lab, &GatewayOptions { masquerade: true, ..options }).unwrap();
        world.gateway_mut().reload();
        for family in Family::BOTH {
            let name = format!("{family}, {} workers", cores.len());
            let snat: IpAddr = SNAT[family as usize].parse().unwrap();
            let outside = plan::client(family, 0);
            let first = || datagram(&world, outside, RETRY).ok().filter(|seen| seen.ip() == snat);
            world.wait_until(&name, first);
            for _ in 0..8 {
                assert_eq!(datagram(&world, outside, TIMEOUT).unwrap().ip(), snat, "{name}: UDP");
                assert_eq!(stream(&world, outside).ip(), snat, "{name}: TCP");
            }
        }
        // The Service is served as before.
        for (family, vip) in Family::BOTH.into_iter().zip(vips) {
            let source = SocketAddr::new(plan::client(family, 2), 0);
            let to = SocketAddr::new(vip, TCP_ECHO_PORT);
            let mut connection = world.wait_until("the Service", || {
                tidegate_netlab::client::EchoConnection::connect(world.lab.client(), source, to).ok()
            });
            connection.ping().unwrap();
        }
        let listed = world.gateway().query(&["flows"]).unwrap();
        let lines: Vec<&str> = listed.lines().filter(|line| line.contains("<masquerade>")).collect();
        let server = plan::server(Family::V4, 1).to_string();
        for protocol in ["TCP", "UDP"] {
            let known = |line: &&&str| line.contains(protocol) && line.contains(&server);
            assert!(lines.iter().any(|line| known(&line)), "{protocol}: {listed}");
        }
        let passed = world.gateway().metric("tidegate_transmits_total", &["reason=\"masqueraded\""]).unwrap();
        assert!(passed >= 100.0, "{passed} packets");
    }
}

/// Sends a datagram from the backend to the external host and back. Returns the source that the external host saw.
fn datagram(world: &World, outside: IpAddr, timeout: Duration) -> std::io::Result<SocketAddr> {
    let socket = world.lab.client().enter(|| UdpSocket::bind((outside, 0)))?;
    socket.set_read_timeout(Some(timeout))?;
    let to = socket.local_addr()?;
    let backend = world.lab.server(1).namespace().enter(|| {
        let backend = UdpSocket::bind((plan::server(Family::of(outside), 1), 0))?;
        backend.connect(to)?;
        backend.set_read_timeout(Some(timeout))?;
        backend.send(b"question").map(|_| backend)
    })?;
    let mut bytes = [0; 64];
    let (len, seen) = socket.recv_from(&mut bytes)?;
    assert_eq!(&bytes[..len], b"question");
    socket.send_to(b"answer", seen)?;
    let len = backend.recv(&mut bytes)?;
    assert_eq!(&bytes[..len], b"answer");
    Ok(seen)
}

/// Exchanges streams between the backend and the external host and compares them. Returns the source that the external
/// host saw.
fn stream(world: &World, outside: IpAddr) -> SocketAddr {
    let listener = world.lab.client().enter(|| TcpListener::bind((outside, 0))).expect("a free port");
    let to = listener.local_addr().expect("it is bound");
    let sent: Vec<u8> = (0..BYTES).map(|n| (n * 31 % 251) as u8).collect();
    let back: Vec<u8> = sent.iter().rev().copied().collect();
    thread::scope(|scope| {
        let (question, answer) = (&sent, &back);
        let server = scope.spawn(move || {
            let (mut stream, seen) = listener.accept().expect("the backend connects");
            stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
            let mut received = Vec::new();
            stream.read_to_end(&mut received).expect("all of the stream");
            assert!(received == *question, "{} bytes, which differ from those sent", received.len());
            stream.write_all(answer).expect("the answer is sent");
            seen
        });
        let mut stream = world
            .lab
            .server(1)
            .namespace()
            .enter(|| TcpStream::connect_timeout(&to, TIMEOUT))
            .expect("the host outside answers");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        stream.write_all(&sent).expect("the question is sent");
        stream.shutdown(Shutdown::Write).expect("it is open");
        let mut received = Vec::new();
        stream.read_to_end(&mut received).expect("all of the stream");
        assert!(received == back, "{} bytes, which differ from those sent", received.len());
        server.join().expect("the host outside has its stream")
    })
}
