//! Every mode and both families: which backend answers, which address the backend sees, and bulk data in both
//! directions.

use std::net::SocketAddr;

use tidegate_netlab::GatewayOptions;
use tidegate_netlab::addresses::client;
use tidegate_netlab::client::{Direction, curl, curl_many, iperf_tcp, iperf_udp, spread, udp_request};
use tidegate_netlab::modes::{
    all_paths, every_path, manifests, manifests_for_bulk, manifests_of, vips_on_servers,
};
use tidegate_netlab::server::LARGE_FILE_BYTES;

use crate::world::{World, beside_others, lab_with};

/// A world with all paths, including every tunnel.
fn world_of_every_path(servers: &[u8]) -> World {
    let count = u8::try_from(servers.len()).expect("a few servers");
    let lab = lab_with(count, vips_on_servers());
    World::over(lab, GatewayOptions::default(), &manifests_of(&every_path(), servers), "")
}

/// Asserts that every tunnel packet that reached a server had exactly the headers that its Service requests.
fn assert_envelopes(world: &World, servers: &[u8]) {
    for n in servers {
        let counts = world.lab.server(*n).tunnel_counts().expect("decapsulation runs");
        assert!(counts.refused.is_empty(), "server {n} refused tunnel packets:\n{counts}");
        for path in every_path() {
            let family = path.backends.to_string();
            let expected = path.envelope().map(|envelope| (envelope.to_string(), family));
            let expected: Vec<_> = expected.iter().map(|(one, two)| (one.as_str(), two.as_str())).collect();
            let found = counts.envelopes_of(path.vip);
            assert_eq!(found, expected, "{} {} at server {n}", path.label(), path.family);
        }
    }
}

#[test]
fn curl_udp_and_tcp_reach_every_backend_in_every_mode_and_family() {
    let _machine = beside_others();
    let world = world_of_every_path(&[1, 2, 3]);
    for path in every_path() {
        let name = format!("{} {}", path.label(), path.family);
        world.wait_until_served(path);

        let answers = curl_many(world.lab.client(), &format!("http://{}/", path.http()), 60, &[]).unwrap();
        assert_eq!((answers.received.len(), answers.errors.as_str()), (60, ""), "{name}: HTTP");
        assert_eq!(spread(&answers.received).len(), 3, "{name}: {:?}", spread(&answers.received));
        let seen = path.seen_client(client(path.family, 0));
        assert!(
            answers.received.iter().all(|answer| answer.client.ip() == seen),
            "{name}: {:?}",
            answers.received
        );

        let source = client(path.family, 5);
        let requests = (0..40).map(|n| {
            let from = SocketAddr::new(source, 0);
            udp_request(world.lab.client(), from, path.udp_echo(), &format!("request {n}")).unwrap()
        });
        let answers: Vec<_> = requests.collect();
        assert_eq!(spread(&answers).len(), 3, "{name}: UDP {:?}", spread(&answers));
        assert!(
            answers.iter().all(|answer| answer.client.ip() == path.seen_client(source)),
            "{name}: {answers:?}"
        );

        let mut connection = world.connect(path, 6).unwrap();
        connection.ping().unwrap();
        let own = connection.local().unwrap();
        assert_eq!(connection.answer.client.ip(), path.seen_client(own.ip()), "{name}");
        if path.forwarding != "fullnat" {
            assert_eq!(connection.answer.client.port(), own.port(), "{name}: the client's port is kept");
        }
    }
    assert_envelopes(&world, &[1, 2, 3]);
}

#[test]
fn a_udp_flow_stays_with_its_backend() {
    let _machine = beside_others();
    let world = World::start(3, GatewayOptions::default(), &manifests(&[1, 2, 3]));
    for (port, path) in (21_000..).zip(all_paths()) {
        let source = SocketAddr::new(client(path.family, 7), port);
        world.wait_until_served(path);
        let answers: Vec<_> = (0..10)
            .map(|n| udp_request(world.lab.client(), source, path.udp_echo(), &format!("{n}")).unwrap())
            .collect();
        assert_eq!(spread(&answers).len(), 1, "{} {}: {answers:?}", path.label(), path.family);
        assert!(answers.windows(2).all(|two| two[0].client == two[1].client), "{answers:?}");
    }
}

#[test]
fn bulk_data_flows_in_both_directions_and_full_frames_fit_the_tunnels() {
    let _machine = beside_others();
    let world = world_of_every_path(&[1, 2]);
    let body = world.lab.directory().join("body");
    std::fs::write(&body, vec![b'x'; 3 << 20]).unwrap();
    let body = format!("@{}", body.display());
    for path in every_path() {
        let name = format!("{} {}", path.label(), path.family);
        world.wait_until_served(path);
        let (root, large) = (format!("http://{}/", path.http()), format!("http://{}/large", path.http()));

        let got = curl(world.lab.client(), &["-o", "/dev/null", "-w", "%{size_download}", &large]).unwrap();
        assert_eq!(got, LARGE_FILE_BYTES.to_string(), "{name}: download");
        // The client sends frames of 1,500 bytes. It must be notified (packet too big) if a frame does not fit a
        // tunnel.
        let answer = curl(world.lab.client(), &["--data-binary", &body, &root]).unwrap();
        assert!(answer.starts_with("backend-"), "{name}: upload: {answer}");
    }
    assert_envelopes(&world, &[1, 2]);
}

#[test]
fn iperf3_runs_over_every_mode_and_family() {
    let _machine = beside_others();
    // The control and data connections must go to the same server, so each Service has one endpoint.
    let world = World::start(1, GatewayOptions::default(), &manifests_for_bulk(&[1]));
    for path in all_paths() {
        let to = SocketAddr::new(path.vip, tidegate_netlab::addresses::IPERF_PORT);
        world.wait_until_served(path);
        for direction in [Direction::Upload, Direction::Download] {
            let rate = iperf_tcp(world.lab.client(), world.lab.server(1), to, direction).unwrap();
            assert!(rate > 1e6, "{} {} {direction:?}: {rate} bit/s", path.label(), path.family);
        }
        // iperf3's server answers UDP from the address of its route instead of the VIP. With direct server return, its
        // client would receive no answer. `curl_udp_and_tcp_...` tests UDP there.
        if !path.forwarding.contains("nat") {
            continue;
        }
        let rate = iperf_udp(world.lab.client(), world.lab.server(1), to).unwrap();
        assert!(rate > 10e6, "{} {}: {rate} bit/s of 20 Mbit/s arrived", path.label(), path.family);
    }
}

#[test]
fn a_service_without_endpoints_refuses_tcp_and_udp() {
    let _machine = beside_others();
    let world = World::start(1, GatewayOptions::default(), &manifests(&[]));
    for path in all_paths() {
        let vip = path.vip.to_string();
        let mut curl = world.lab.client().command("curl");
        // The connection is refused (7). It neither times out (28) nor connects, because a handshake without a backend
        // is never completed.
        let output =
            curl.args(["-sS", "--max-time", "5", &format!("http://{}/", path.http())]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(7), "{} {vip}: {stderr}", path.label());

        let source = SocketAddr::new(client(path.family, 0), 0);
        let refused = world.lab.client().enter(|| {
            let socket = std::net::UdpSocket::bind(source).unwrap();
            socket.connect(path.udp_echo()).unwrap();
            socket.set_read_timeout(Some(std::time::Duration::from_secs(1))).unwrap();
            // The ICMP port unreachable may be rate limited, so try a few times.
            (0..5).find_map(|_| {
                socket.send(b"anyone?").ok();
                socket.recv(&mut [0; 64]).err().filter(|e| e.kind() == std::io::ErrorKind::ConnectionRefused)
            })
        });
        assert!(refused.is_some(), "{} {vip}: no ICMP port unreachable", path.label());
    }
}
