//! Floods at the full rate of one core end neither a BGP session nor its BFD: neither packets of the same ports from
//! other sources, nor any other packets for the gateway or a VIP.

use tidegate_netlab::addresses::{self as plan, Family, TCP_ECHO_PORT};
use tidegate_netlab::flood::{Attacker, Kind, Limits, Target, set_priority};
use tidegate_netlab::router::Frr;

use super::edge::{Edge, bgp, frr_bgpd, gateway_address};
use super::{connect, prefix, wait_for_hops};
use crate::floods::setup::{Counters, GATEWAY_PRIORITY, LATE_MAX, seconds};
use crate::world::alone;

/// The ports of BGP, and of single-hop BFD.
const ROUTING: (u16, u16) = (179, 3784);

#[test]
fn a_session_with_bfd_outlives_floods_of_its_ports_and_of_everything_else() {
    let _machine = alone();
    let edge = Edge::build(1);
    edge.write(&edge.service(1, &[1]));
    let bgpd = frr_bgpd(&[1], &["bfd", "bfd profile patient"]);
    let frr = Frr::start(edge.lab.directory(), &edge.router, "router", "", &bgpd).unwrap();
    // While other programs use the worker's CPU, the kernel drops frames of each kind before the gateway sees them.
    // Both sides send many BFD packets within the detection time, so a session is lost only if the gateway prefers
    // other packets.
    frr.vtysh(&["configure terminal", "bfd", "profile patient", "detect-multiplier 20"]).unwrap();
    let announce = bgp(", bfd: true").replace("peers:", "bfdMultiplier: 20, peers:");
    let mut gateway = edge.gateway(1, &announce);
    set_priority(gateway.pid(), GATEWAY_PRIORITY).expect("priority of the gateway");
    gateway.wait_until_established();
    wait_for_hops(&mut gateway, &frr, 1, &[1]);
    gateway.wait_until("BFD to be up", |gateway| (gateway.peer()?["bfd"] == "Up").then_some(()));
    let mut open = connect(&edge, Family::V4, 1, 0).expect("the router sends clients to the gateway");

    let attacker = Attacker::join(&edge.lab).expect("a TAP device");
    let own =
        Family::BOTH.map(|family| Target { vip: gateway_address(1, family), tcp: ROUTING.0, udp: ROUTING.1 });
    let vips = Family::BOTH.map(|family| {
        let vip = plan::routed_vip(family, 1);
        Target { vip, tcp: TCP_ECHO_PORT, udp: TCP_ECHO_PORT }
    });
    for (kind, targets) in [
        (Kind::Syn, &own),
        (Kind::UdpOne, &own),
        (Kind::Echo, &own),
        (Kind::Neighbors, &own),
        (Kind::Syn, &vips),
        (Kind::TtlOne, &vips),
    ] {
        let flood = attacker.flood(kind, targets, Limits::full_rate(seconds(3, 30)));
        let sent = flood.finish().expect("frames are sent");
        let peer = gateway.peer().expect("the daemon answers");
        println!("{kind:?} at {}: {:.0} frames a second; {peer}", targets[0].vip, sent.rate());
    }

    // A session that had ended would be counted again, and BFD would have ended it.
    let peer = gateway.peer().expect("the daemon answers");
    assert_eq!((&peer["established"], &peer["up"]), (&1.into(), &true.into()), "{peer}");
    gateway.wait_until("BFD to be up", |gateway| (gateway.peer()?["bfd"] == "Up").then_some(()));
    assert_eq!(frr.next_hops(&prefix(Family::V4, 1)).len(), 1, "{}", frr.log_tail());
    open.ping_late(LATE_MAX).expect("a connection survives the flood");
    let counters = Counters::of(&gateway.metrics());
    let punts = |class: &str| counters.sum("tidegate_punts_by_class_total{", &format!("class=\"{class}\""));
    assert!(
        punts("routing") > 0.0 && punts("session") > 0.0,
        "other sources and the peer are in different classes"
    );
}
