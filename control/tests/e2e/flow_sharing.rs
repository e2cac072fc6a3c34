//! Two gateways behind a router, with real TCP connections through both. One gateway is killed, and the other one takes
//! over its connections. With `flowSharing` they survive, and clients with session affinity keep their backends. With
//! mismatched keys, which is like no sharing, they break.

use std::fs;
use std::net::SocketAddr;

use tidegate_netlab::addresses::{CLIENT_ADDRESSES, Family, TCP_ECHO_PORT, client, server as server_address};
use tidegate_netlab::client::EchoConnection;
use tidegate_netlab::fleet::addresses::{FleetService, SERVICES};
use tidegate_netlab::fleet::client_processes::ClientProcesses;
use tidegate_netlab::fleet::connections::Tally;
use tidegate_netlab::fleet::{Fleet, FleetPlan, RouterKind};
use tidegate_netlab::manifests::{EndpointSpec, EndpointState, Manifest, PortSpec};
use tidegate_netlab::{server, wait_for};

use crate::world::{APPLIED, alone, beside_others, tidegate};

/// Connections to each Service.
const CONNECTIONS: usize = 48;
/// The port of the Service with session affinity.
const STICKY_PORT: u16 = 7090;

#[test]
fn connections_survive_a_killed_gateway_only_if_gateways_share_flows() {
    let _machine = alone();
    // Clients whose hash selects another backend after the change, in both runs.
    let mut in_flux = 0;
    for is_shared in [false, true] {
        let (tallies, moved) = kill_a_gateway(is_shared, in_flux);
        if is_shared {
            assert_eq!(moved, 0, "a client with affinity got another backend");
        } else {
            assert!(moved > 0, "no client was in flux");
            in_flux = moved;
        }
        for (service, tally) in SERVICES.iter().zip(&tallies) {
            println!("{}, {}: {tally:?}", service.name, if is_shared { "shared" } else { "not shared" });
        }
        for (service, tally) in SERVICES.iter().zip(&tallies) {
            assert_eq!(tally.opened, CONNECTIONS);
            if is_shared {
                assert_eq!(tally.broken, 0, "{}: {tally:?}", service.name);
            }
        }
        // A gateway does not forward packets of a NAT connection without an entry.
        let nat_broken =
            SERVICES.iter().zip(&tallies).filter(|(service, _)| !service.forwarding.starts_with("dsr"));
        for (service, tally) in nat_broken.filter(|_| !is_shared) {
            assert!(tally.broken > 0, "{}: {tally:?}", service.name);
        }
    }
}

/// The Service whose VIP is shared with the one with session affinity. All its packets pass through gateway 1.
fn nat() -> &'static FleetService {
    SERVICES.iter().find(|service| service.is_nat()).expect("there is one")
}

/// Writes the Service with session affinity and these endpoints, and waits until gateway 1 has applied it.
fn write_sticky(fleet: &mut Fleet, endpoints: &[(u8, EndpointState)]) {
    let port = PortSpec::tcp("sticky", STICKY_PORT).to(TCP_ECHO_PORT);
    let mut manifest = Manifest::new("sticky", nat().forwarding, &[nat().vip().ip()], vec![port]);
    manifest.client_ip_affinity = true;
    manifest.annotations.push(nat().shares_its_vip());
    let endpoint = |&(n, state): &(u8, EndpointState)| EndpointSpec {
        state,
        ..EndpointSpec::ready(server_address(Family::V4, n))
    };
    let manifest = manifest.with_endpoints(endpoints.iter().map(endpoint));
    manifest.write(&fleet.directory().join("manifests")).expect("a manifest is written");
    let ready = endpoints.iter().filter(|(_, state)| *state == EndpointState::Ready);
    let ready: Vec<String> = ready.map(|(n, _)| server_address(Family::V4, *n).to_string()).collect();
    let applied = wait_for("gateway 1 to use the backends with affinity", APPLIED, || {
        let text = fleet.gateway_mut(1).query(&["backends"]).ok()?;
        let active: Vec<&str> =
            text.lines().filter(|line| line.contains(" sticky ") && line.contains(" Active ")).collect();
        let is_active = |address: &String| active.iter().any(|line| line.contains(address.as_str()));
        (active.len() == ready.len() && ready.iter().all(is_active)).then_some(())
    });
    applied.unwrap_or_else(|error| panic!("{error:#}: {}", fleet.condition()));
}

/// The backend of a new connection of each client to the Service with session affinity.
fn sticky_backends(fleet: &Fleet) -> Vec<String> {
    let to = SocketAddr::new(nat().vip().ip(), STICKY_PORT);
    let connect = |n| {
        let connection =
            EchoConnection::connect(fleet.client(), SocketAddr::new(client(Family::V4, n), 0), to);
        connection.unwrap_or_else(|error| panic!("client {n}: {error:#}")).answer.backend
    };
    (0..CLIENT_ADDRESSES).map(connect).collect()
}

/// The status of a gateway.
fn status(fleet: &mut Fleet, n: usize) -> serde_json::Value {
    let answer = fleet.gateway_mut(n).query(&["status", "-o", "json"]).expect("a status");
    serde_json::from_str(&answer).expect("JSON")
}

/// The peer in the status of a gateway.
fn peer(status: &serde_json::Value) -> serde_json::Value {
    let peers = status["flowSharing"]["peers"].as_array().cloned().unwrap_or_default();
    peers.into_iter().find(|peer| peer["state"] != "itself").unwrap_or_default()
}

/// Opens connections through both gateways, replaces a backend so that some flows need entries, and kills the first
/// gateway. Returns the fate of the connections, and the number of clients with session affinity that lost a running
/// backend. `in_flux` is the number of those that gateway 2 has to receive.
fn kill_a_gateway(is_shared: bool, in_flux: usize) -> (Vec<Tally>, usize) {
    let sharing = Some(['a', if is_shared { 'a' } else { 'b' }]);
    let plan = FleetPlan {
        gateways: 2,
        servers: 4,
        tidegate: tidegate(),
        flow_entries: 65_536,
        flow_files: false,
        router: RouterKind::Lab,
        sharing,
    };
    let mut fleet = Fleet::start(plan, 3).expect("the fleet is built (needs root and DPDK)");
    let mut connections = ClientProcesses::start(fleet.client(), &tidegate(), 1).expect("the clients start");
    connections.open(&SERVICES.map(|service| service.vip()), CONNECTIONS).expect("connections open");
    let [ready, leaving] = [EndpointState::Ready, EndpointState::Terminating];
    write_sticky(&mut fleet, &[(1, ready), (2, ready), (3, ready)]);
    let homes = sticky_backends(&fleet);
    write_sticky(&mut fleet, &[(1, leaving), (2, ready), (3, ready), (4, ready)]);
    fleet.replace(1, 4).expect("both gateways apply it");
    connections.ping_round().expect("a round of pings");
    let before = connections.tally(SERVICES.len()).expect("the clients answer");
    assert!(before.iter().all(|tally| tally.broken == 0), "{before:?}\n{}", fleet.log_tails(20));

    if is_shared {
        let is_shared_now = wait_for("gateway 1 to send its flows to gateway 2", APPLIED, || {
            let peer = peer(&status(&mut fleet, 1));
            let is_up = peer["state"] == "up" && peer["name"] == "gateway-2";
            // Both gateways list a NAT flow, whichever one it passes through.
            let listed = fleet.gateway_mut(2).query(&["flows", "-o", "json", "--limit", "50000"]).ok()?;
            let listed: serde_json::Value = serde_json::from_str(&listed).ok()?;
            let flows = listed["flows"].as_array()?;
            let of_kind = |kind| flows.iter().filter(|flow| flow["kind"] == kind).count();
            let idle = peer["waiting"] == 0 && peer["unacknowledged"] == 0;
            let is_known = of_kind("nat") >= 2 * CONNECTIONS && of_kind("affinity") >= in_flux;
            (is_up && idle && is_known).then_some(())
        });
        if let Err(error) = is_shared_now {
            panic!("{error:#}: {:#}\n{}", status(&mut fleet, 1), fleet.log_tails(40));
        }
    } else {
        let refused = wait_for("gateway 1 to report why it shares nothing", APPLIED, || {
            let status = status(&mut fleet, 1);
            let degraded = status["degraded"].to_string();
            degraded
                .contains(
                    "192.0.2.4:10358: no session; the last datagram from this peer was rejected: unauthentic",
                )
                .then_some(())
        });
        refused.unwrap_or_else(|error| panic!("{error:#}: {:#}", status(&mut fleet, 1)));
    }

    fleet.take_gateway(1).kill();
    fleet.router().wait_until_used(&[2]).expect("the router has seen it");
    connections.ping_round().expect("a round of pings");
    let tallies = connections.tally(SERVICES.len()).expect("the clients answer");
    if is_shared && tallies.iter().any(|tally| tally.broken > 0) {
        eprintln!("{:#}\n{}", status(&mut fleet, 2), fleet.log_tails(40));
    }
    let stays = |home: &&String| **home != server::name(1);
    let now = sticky_backends(&fleet);
    let moved = homes.iter().zip(&now).filter(|(home, now)| stays(home) && home != now).count();
    (tallies, moved)
}

#[test]
fn the_key_of_a_fleet_is_changed_by_reloads_and_sessions_return_each_time() {
    let _machine = beside_others();
    let plan = FleetPlan {
        gateways: 2,
        servers: 1,
        tidegate: tidegate(),
        flow_entries: 4_096,
        flow_files: false,
        router: RouterKind::Lab,
        sharing: Some(['a', 'a']),
    };
    let mut fleet = Fleet::start(plan, 1).expect("the fleet is built (needs root and DPDK)");
    let processes = [1, 2].map(|n| fleet.gateway_mut(n).pid());
    let (old, none) = keys(&status(&mut fleet, 1));
    assert_eq!(none, None);
    // As in docs/flow-sharing.md: each step on one gateway after the other.
    let [accepted, changed, forgotten] =
        [('a', Some('b')), ('b', Some('a')), ('b', None)].map(|(own, accepted)| {
            let [first, second] = [1, 2].map(|n| change_keys(&mut fleet, n, own, accepted));
            assert_eq!(first, second);
            first
        });
    let new = accepted.1.clone().expect("the accepted key is shown");
    assert_ne!(new, old);
    assert_eq!(accepted, (old.clone(), Some(new.clone())));
    assert_eq!(changed, (new.clone(), Some(old)));
    assert_eq!(forgotten, (new, None));
    assert_eq!([1, 2].map(|n| fleet.gateway_mut(n).pid()), processes);
    assert!([1, 2].into_iter().all(|n| fleet.gateway_mut(n).runs()));
}

/// The fingerprints of a gateway's key, and of the additional key that it accepts.
fn keys(status: &serde_json::Value) -> (String, Option<String>) {
    let text = |name: &str| status["flowSharing"][name].as_str().map(str::to_owned);
    (text("key").expect("it shares flows"), text("acceptedKey"))
}

/// Gives a gateway other keys, each of one hexadecimal digit, by a reload. Waits until a new session uses them and the
/// other gateway shows the key. Returns their fingerprints.
fn change_keys(fleet: &mut Fleet, n: usize, own: char, accepted: Option<char>) -> (String, Option<String>) {
    let before = keys(&status(fleet, n));
    let path = fleet.directory().join(format!("gateway-{n}/gateway.yaml"));
    let text = fs::read_to_string(&path).expect("the configuration");
    let (rest, _) = text.split_once(", key: ").expect("it ends with the keys");
    let key = |digit: char| format!("{{value: \"{}\"}}", digit.to_string().repeat(64));
    let accepted = accepted.map(|digit| format!(", acceptKey: {}", key(digit))).unwrap_or_default();
    fs::write(&path, format!("{rest}, key: {}{accepted}}}\n", key(own))).expect("written");
    fleet.gateway_mut(n).reload();
    let changed = wait_for(&format!("a session by the new keys of gateway {n}"), APPLIED, || {
        let [here, there] = [n, 3 - n].map(|n| status(fleet, n));
        let now = keys(&here);
        let is_up = [&here, &there].map(|status| peer(status)["state"] == "up") == [true; 2];
        let is_named = peer(&there)["key"] == now.0.as_str();
        // The status shows a peer's key if it is the other one.
        let shown = fleet.gateway_mut(3 - n).query(&["status"]).ok()?;
        let is_shown = keys(&there).0 == now.0 || shown.contains(&format!(", key {}", now.0));
        (now != before && is_up && is_named && is_shown).then_some(now)
    });
    changed.unwrap_or_else(|error| panic!("{error:#}\n{}", fleet.condition()))
}
