//! Two workers on one port with two queues: a reply that arrives at the other worker still finds its flow.

use std::net::SocketAddr;

use tidegate_netlab::GatewayOptions;
use tidegate_netlab::addresses::{IPERF_PORT, client};
use tidegate_netlab::client::{Direction, curl_many, iperf_tcp, spread, udp_request};
use tidegate_netlab::modes::{all_paths, manifests, manifests_for_bulk};

use crate::world::{World, alone, assert_alive};

#[test]
fn two_workers_pass_every_mode() {
    let _machine = alone();
    let options = GatewayOptions { cores: vec![0, 1], ..GatewayOptions::default() };
    let world = World::start(3, options, &manifests(&[1, 2, 3]));
    for path in all_paths() {
        let name = format!("{} {}", path.label(), path.family);
        world.wait_until_served(path);
        // Enough flows that both queues receive some, in both directions.
        let answers = curl_many(world.lab.client(), &format!("http://{}/", path.http()), 80, &[]).unwrap();
        assert_eq!((answers.received.len(), answers.errors.as_str()), (80, ""), "{name}: HTTP");
        assert_eq!(spread(&answers.received).len(), 3, "{name}");
        for n in 0..40 {
            let source = SocketAddr::new(client(path.family, n % 16), 0);
            udp_request(world.lab.client(), source, path.udp_echo(), "which worker?").unwrap();
        }
        let mut open: Vec<_> = (0..16).map(|n| (path, world.connect(path, n).unwrap())).collect();
        for round in 0..3 {
            assert_alive(&format!("round {round}"), &mut open);
        }
    }
    let busy =
        (0..2).filter(|worker| {
            let label = format!("worker=\"{worker}\"");
            world.gateway().metrics().unwrap().lines().any(|line| {
                line.starts_with("tidegate_flows") && line.contains(&label) && !line.ends_with(" 0")
            })
        });
    assert_eq!(busy.count(), 2, "both workers own flows");
}

#[test]
fn two_workers_carry_bulk_data_in_nat_modes() {
    let _machine = alone();
    let options = GatewayOptions { cores: vec![0, 1], ..GatewayOptions::default() };
    let world = World::start(1, options, &manifests_for_bulk(&[1]));
    for path in all_paths().into_iter().filter(|path| path.forwarding.contains("nat")) {
        world.wait_until_served(path);
        for direction in [Direction::Upload, Direction::Download] {
            let to = SocketAddr::new(path.vip, IPERF_PORT);
            let rate = iperf_tcp(world.lab.client(), world.lab.server(1), to, direction).unwrap();
            assert!(rate > 1e6, "{} {} {direction:?}: {rate} bit/s", path.label(), path.family);
        }
    }
}
