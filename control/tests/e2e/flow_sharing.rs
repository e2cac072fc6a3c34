//! Two gateways behind a router, with real TCP connections through both: one gateway is killed, and the other one takes its
//! connections over. With `flowSharing` they live; with keys that differ, which is as without it, they break.

use crate::world::{APPLIED, alone, tidegate};
use tidegate::netlab::fleet::addresses::SERVICES;
use tidegate::netlab::fleet::connections::Tally;
use tidegate::netlab::fleet::holders::Holders;
use tidegate::netlab::fleet::{Fleet, FleetPlan};
use tidegate::netlab::wait_for;

/// Connections to each Service.
const CONNECTIONS: usize = 48;

#[test]
fn connections_live_when_their_gateway_is_killed_if_gateways_share_flows_and_break_if_not() {
    let _turn = alone();
    for is_shared in [false, true] {
        let tallies = kill_a_gateway(is_shared);
        for (service, tally) in SERVICES.iter().zip(&tallies) {
            println!("{}, {}: {tally:?}", service.name, if is_shared { "shared" } else { "not shared" });
        }
        for (service, tally) in SERVICES.iter().zip(&tallies) {
            assert_eq!(tally.opened, CONNECTIONS);
            if is_shared {
                assert_eq!(tally.broken, 0, "{}: {tally:?}", service.name);
            }
        }
        // Without an entry, a gateway sends no packet of a NAT connection on.
        let nat_broken =
            SERVICES.iter().zip(&tallies).filter(|(service, _)| !service.forwarding.starts_with("dsr"));
        for (service, tally) in nat_broken.filter(|_| !is_shared) {
            assert!(tally.broken > 0, "{}: {tally:?}", service.name);
        }
    }
}

/// Opens connections through both gateways, replaces a backend so that flows are in flux, and kills the first gateway.
fn kill_a_gateway(is_shared: bool) -> Vec<Tally> {
    let sharing = Some(['a', if is_shared { 'a' } else { 'b' }]);
    let plan = FleetPlan { servers: 4, tidegate: tidegate(), flow_entries: 65_536, bgp: false, sharing };
    let mut fleet = Fleet::start(plan, 3).expect("the fleet stands (needs root and DPDK)");
    let mut connections = Holders::start(fleet.client(), &tidegate(), 1).expect("the clients start");
    connections.open(&SERVICES.map(|service| service.vip()), CONNECTIONS).expect("connections open");
    fleet.replace(1, 4).expect("both gateways apply it");
    connections.settle().expect("a round of pings");
    let before = connections.tally(SERVICES.len()).expect("the clients answer");
    assert!(before.iter().all(|tally| tally.broken == 0), "{before:?}\n{}", fleet.log_tails(20));

    let status = |fleet: &mut Fleet, n: usize| -> serde_json::Value {
        let answer = fleet.gateway_mut(n).ask(&["status", "-o", "json"]).expect("a status");
        serde_json::from_str(&answer).expect("JSON")
    };
    let peer = |status: &serde_json::Value| {
        let peers = status["flowSharing"]["peers"].as_array().cloned().unwrap_or_default();
        peers.into_iter().find(|peer| peer["state"] != "itself").unwrap_or_default()
    };
    if is_shared {
        let is_told = wait_for("gateway 1 to tell gateway 2 of its flows", APPLIED, || {
            let peer = peer(&status(&mut fleet, 1));
            let is_up = peer["state"] == "up" && peer["name"] == "gateway-2";
            // Both gateways list a NAT flow, whichever of them it passes through.
            let listed = fleet.gateway_mut(2).ask(&["flows", "-o", "json", "--limit", "50000"]).ok()?;
            let listed: serde_json::Value = serde_json::from_str(&listed).ok()?;
            let flows = listed["flows"].as_array()?;
            let of_nat = flows.iter().filter(|flow| flow["kind"] == "nat").count();
            let idle = peer["waiting"] == 0 && peer["unacknowledged"] == 0;
            (is_up && idle && of_nat >= 2 * CONNECTIONS).then_some(())
        });
        if let Err(error) = is_told {
            panic!("{error:#}: {:#}\n{}", status(&mut fleet, 1), fleet.log_tails(40));
        }
    } else {
        let refused = wait_for("gateway 1 to say why it shares nothing", APPLIED, || {
            let status = status(&mut fleet, 1);
            let degraded = status["degraded"].to_string();
            degraded
                .contains("192.0.2.4:10358: no session; its last datagram was rejected: unauthentic")
                .then_some(())
        });
        refused.unwrap_or_else(|error| panic!("{error:#}: {:#}", status(&mut fleet, 1)));
    }

    fleet.take_gateway(1).kill();
    fleet.router().wait_until_used(&[2]).expect("the router has seen it");
    connections.settle().expect("a round of pings");
    let tallies = connections.tally(SERVICES.len()).expect("the clients answer");
    if is_shared && tallies.iter().any(|tally| tally.broken > 0) {
        eprintln!("{:#}\n{}", status(&mut fleet, 2), fleet.log_tails(40));
    }
    tallies
}
