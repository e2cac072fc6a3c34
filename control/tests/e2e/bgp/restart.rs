//! Restarts of the gateway alone, while a routing daemon beside it keeps running: FRR or BIRD with routes from the
//! kernel.

use std::time::Instant;

use tidegate_netlab::addresses::Family;
use tidegate_netlab::namespace::output_of;
use tidegate_netlab::router::{BirdRouter, Frr};

use super::edge::{Edge, EdgeGateway, GATEWAY_AS, ROUTER, ROUTER_AS, frr_bgpd};
use super::{connect, hops, prefix};
use crate::world::alone;

/// The index of the gateway's tap.
fn tap(gateway: &EdgeGateway) -> String {
    let text = output_of(gateway.namespace.command("ip").args(["-o", "link", "show", "tg-uplink"]));
    text.expect("the tap").split(':').next().expect("an index").to_owned()
}

/// An edge with one backend, its router with BFD, and a gateway that only writes routes to the kernel.
fn beside_a_daemon() -> (Edge, Frr, EdgeGateway) {
    let edge = Edge::build(1);
    edge.write(&edge.service(1, &[1]));
    let router = Frr::start(edge.lab.directory(), &edge.router, "router", "", &frr_bgpd(&[1], &["bfd"]))
        .expect("FRR starts");
    let gateway = edge.gateway(1, "{kernelRoutes: {}}");
    (edge, router, gateway)
}

/// Stops and restarts the gateway twice: killed, and stopped in order. Each time the router loses the VIP, and gets it
/// again from the daemon that kept running.
fn restart_alone(edge: &Edge, gateway: &mut EdgeGateway, router: &Frr, daemon: &str) {
    let received = |expected: &[u8]| router.next_hops(&prefix(Family::V4, 1)) == hops(expected);
    gateway.wait_until(&format!("the router to receive the VIP from {daemon}"), |_| {
        received(&[1]).then_some(())
    });
    let before = tap(gateway);
    for is_killed in [true, false] {
        gateway.wait_until(&format!("BFD of {daemon}"), |_| {
            let peers = router.show("bfd peers").ok()?;
            peers.as_array()?.iter().any(|peer| peer["status"] == "up").then_some(())
        });
        let ends = Instant::now();
        match is_killed {
            true => gateway.kill(),
            false => gateway.terminate(),
        }
        gateway.wait_until("the router to lose the VIP", |_| received(&[]).then_some(()));
        let how = if is_killed { "killed" } else { "stopped" };
        eprintln!("{daemon}, gateway {how}: the router lost the VIP after {:.2?}", ends.elapsed());
        if !is_killed {
            assert!(gateway.wait().success());
        }
        gateway.launch();
        gateway.wait_until_ready();
        let ready = Instant::now();
        gateway.wait_until(&format!("{daemon} to announce the VIP again"), |_| received(&[1]).then_some(()));
        eprintln!("{daemon}: the router has it again {:.2?} after the gateway was ready", ready.elapsed());
        assert_eq!(tap(gateway), before, "the tap is the same device");
        connect(edge, Family::V4, 1, 0).expect("clients have a route").ping().expect("an answer");
    }
}

#[test]
fn frr_beside_a_gateway_that_restarts_alone_announces_its_vips_again() {
    let _machine = alone();
    let (edge, router, mut gateway) = beside_a_daemon();
    let bgpd = format!(
        "router bgp {GATEWAY_AS}\n bgp router-id 198.51.100.2\n no bgp ebgp-requires-policy\n neighbor {router} remote-as {ROUTER_AS}\n \
         neighbor {router} timers connect 1\n neighbor {router} bfd\n address-family ipv4 unicast\n  redistribute table 179\n \
         exit-address-family\n",
        router = ROUTER[0],
    );
    let local =
        Frr::start(edge.lab.directory(), &gateway.namespace, "local", "ip import-table 179", &bgpd).unwrap();
    restart_alone(&edge, &mut gateway, &router, "FRR");
    drop(local);
}

#[test]
fn bird_beside_a_gateway_that_restarts_alone_announces_its_vips_again() {
    let _machine = alone();
    let (edge, router, mut gateway) = beside_a_daemon();
    let config = format!(
        "router id 198.51.100.2;\nprotocol device {{}}\nprotocol bfd {{ interface \"tg-*\" {{ interval 300 ms; multiplier 3; }}; }}\n\
         protocol kernel {{ kernel table 179; learn; ipv4 {{ import all; export none; }}; }}\n\
         protocol bgp {{ local as {GATEWAY_AS}; neighbor {} as {ROUTER_AS}; bfd on; connect delay time 1; connect retry time 2;\n\
         error wait time 1, 5; ipv4 {{ import none; export all; }}; }}\n",
        ROUTER[0],
    );
    let local = BirdRouter::start(&edge.lab, &gateway.namespace, &config).unwrap();
    restart_alone(&edge, &mut gateway, &router, "BIRD");
    drop(local);
}
