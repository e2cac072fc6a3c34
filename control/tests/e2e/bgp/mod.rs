//! BGP and kernel routes, with real routers: FRR, GoBGP and BIRD.

mod edge;
mod flood;
mod restart;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

use edge::{Edge, EdgeGateway, GATEWAY_AS, ROUTER, ROUTER_AS, bgp, frr_bgpd, gateway_address};
use tidegate_netlab::addresses::{self as plan, Family, TCP_ECHO_PORT};
use tidegate_netlab::client::EchoConnection;
use tidegate_netlab::gateway::manifests_of;
use tidegate_netlab::manifests::put;
use tidegate_netlab::namespace::output_of;
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::router::{BirdRouter, Frr, GoBgp};
use tidegate_netlab::wait_for;

use crate::events::lines;
use crate::hung::StoppedThread;
use crate::world::{APPLIED, alone};

/// The prefix of a VIP.
fn prefix(family: Family, number: u8) -> String {
    let length = if family == Family::V4 { 32 } else { 128 };
    format!("{}/{length}", plan::routed_vip(family, number))
}

/// The configuration with BFD timers that tolerate a busy machine.
fn slow_bfd(announce: &str) -> String {
    announce.replace("peers:", "bfdInterval: 1s, bfdMultiplier: 5, peers:")
}

/// The next hops that the router should have for VIPs of these gateways.
fn hops(gateways: &[u8]) -> Vec<String> {
    let mut hops: Vec<String> =
        gateways.iter().map(|&n| gateway_address(n, Family::V4).to_string()).collect();
    hops.sort_unstable();
    hops
}

fn wait_for_hops(gateway: &mut EdgeGateway, frr: &Frr, number: u8, expected: &[u8]) {
    let what = format!("the router to have {expected:?} for VIP {number}: {}", frr.log_tail());
    gateway.wait_until(&what, |_| {
        let v4 = frr.next_hops(&prefix(Family::V4, number)) == hops(expected);
        let v6 = frr.next_hops(&prefix(Family::V6, number)).len() == expected.len();
        (v4 && v6).then_some(())
    });
}

/// Opens a connection of the client to a VIP, over the router.
fn connect(edge: &Edge, family: Family, number: u8, client: u8) -> anyhow::Result<EchoConnection> {
    let from = SocketAddr::new(plan::client(family, client), 0);
    EchoConnection::connect(
        edge.lab.client(),
        from,
        SocketAddr::new(plan::routed_vip(family, number), TCP_ECHO_PORT),
    )
}

#[test]
fn frr_gets_the_vips_of_both_families_and_loses_those_without_endpoints() {
    let _machine = alone();
    let edge = Edge::build(1);
    edge.write(&edge.service(1, &[1]));
    edge.write(&edge.service(2, &[]));
    let more = ["bfd", "password ebb-and-flow"];
    let frr = Frr::start(edge.lab.directory(), &edge.router, "router", "", &frr_bgpd(&[1], &more)).unwrap();
    let mut gateway = edge.gateway(1, &slow_bfd(&bgp(", bfd: true, passwordFile: password")));
    gateway.wait_until_established();
    wait_for_hops(&mut gateway, &frr, 1, &[1]);
    for family in Family::BOTH {
        connect(&edge, family, 1, 0).expect("the router sends clients to the gateway").ping().unwrap();
    }
    let status = gateway.wait_until("both prefixes to be sent and BFD to be up", |gateway| {
        let status = gateway.status()?;
        let peer = &status["announce"]["bgp"]["peers"][0];
        let is_complete = peer["sentIpv4"] == 1 && peer["sentIpv6"] == 1 && peer["bfd"] == "Up";
        is_complete.then_some(status)
    });
    let announce = &status["announce"];
    assert_eq!((&announce["announced"], &announce["prefixes"]), (&2.into(), &2.into()), "{announce}");
    let withheld: Vec<&str> =
        announce["withheld"].as_array().unwrap().iter().filter_map(|one| one["reason"].as_str()).collect();
    assert_eq!(withheld, ["no-endpoints"; 2], "{announce}");
    let text = gateway.query(&["status"]).unwrap();
    assert!(text.contains("Established") && text.contains("no-endpoints: 203.0.113.2"), "{text}");
    assert!(frr.next_hops(&prefix(Family::V4, 2)).is_empty());

    edge.write(&edge.service(2, &[1]));
    wait_for_hops(&mut gateway, &frr, 2, &[1]);
    edge.write(&edge.service(1, &[]));
    wait_for_hops(&mut gateway, &frr, 1, &[]);
    assert_eq!(gateway.peer().unwrap()["established"], 1, "routes change without a new session");

    // Routes are withdrawn first: the process still forwards when the router has no route any more.
    let mut open = connect(&edge, Family::V4, 2, 0).unwrap();
    gateway.terminate();
    wait_for_hops(&mut gateway, &frr, 2, &[]);
    assert!(gateway.runs(), "it still forwards");
    edge.lab.client().ip_batch("route add 203.0.113.2/32 via 198.51.100.2").unwrap();
    open.ping().expect("it still forwards");
    let bird = gateway.bird_pid().expect("BIRD runs");
    assert!(gateway.wait().success());
    assert!(!Path::new(&format!("/proc/{bird}")).exists(), "BIRD ends with the gateway");
    let left = gateway.directory.join("tidegate.sock.bird/bird.conf");
    assert!(!left.exists(), "no password is left");
}

#[test]
fn two_gateways_share_clients_and_bfd_detects_a_killed_one() {
    let _machine = alone();
    let edge = Edge::build(2);
    edge.write(&edge.service(1, &[1, 2]));
    let frr =
        Frr::start(edge.lab.directory(), &edge.router, "router", "", &frr_bgpd(&[1, 2], &["bfd"])).unwrap();
    let mut gateways = [1, 2].map(|n| edge.gateway(n, &bgp(", bfd: true")));
    let [first, second] = &mut gateways;
    first.wait_until_established();
    second.wait_until_established();
    wait_for_hops(first, &frr, 1, &[1, 2]);
    // The router spreads connections by their ports.
    let mut open: Vec<EchoConnection> = Vec::new();
    let uses_both = |open: &[EchoConnection]| {
        let seen: std::collections::BTreeSet<_> =
            open.iter().map(|connection| connection.answer.client.ip()).collect();
        seen.len() == 2
    };
    first.wait_until("clients at both gateways", |_| {
        open.extend(connect(&edge, Family::V4, 1, 1).ok());
        uses_both(&open).then_some(())
    });
    first.wait_until("BFD to be up on both sides", |gateway| (gateway.peer()?["bfd"] == "Up").then_some(()));
    let bird = first.bird_pid().expect("BIRD runs");
    first.kill();
    wait_for_hops(second, &frr, 1, &[2]);
    second.wait_until("the killed gateway's BIRD to be gone", |_| {
        (!Path::new(&format!("/proc/{bird}")).exists()).then_some(())
    });
    for n in 0..20 {
        connect(&edge, Family::BOTH[n % 2], 1, 2)
            .expect("the other gateway serves all clients")
            .ping()
            .unwrap();
    }
    // A gateway that starts again is used again.
    first.launch();
    first.wait_until_ready();
    first.wait_until_established();
    wait_for_hops(first, &frr, 1, &[1, 2]);
}

#[test]
fn a_gateway_with_a_hung_worker_withdraws_its_routes_and_then_exits() {
    let _machine = alone();
    let edge = Edge::build(1);
    edge.write(&edge.service(1, &[1]));
    // Without BFD, so that only the withdrawal informs the router.
    let frr = Frr::start(edge.lab.directory(), &edge.router, "router", "", &frr_bgpd(&[1], &[])).unwrap();
    let mut gateway = edge.gateway_with(1, 2, &bgp(""));
    gateway.wait_until_established();
    wait_for_hops(&mut gateway, &frr, 1, &[1]);
    // The session may be on either worker.
    for worker in ["tg-worker-0", "tg-worker-1"] {
        let stopped = StoppedThread::stop(gateway.pid(), worker);
        let since = Instant::now();
        wait_for_hops(&mut gateway, &frr, 1, &[]);
        println!("{worker} stopped: the router has no route {:?} later", since.elapsed());
        let status = gateway.status().expect("the daemon answers");
        let number = usize::from(worker.ends_with('1'));
        assert_eq!((&status["ready"], &status["workers"][number]["state"]), (&false.into(), &"hung".into()));
        let text = gateway.query(&["status"]).unwrap();
        let expected = format!("worker {number} hangs: its packets are lost, since ");
        assert!(text.contains(&expected) && text.contains("not-forwarding: "), "{text}");
        drop(stopped);
        wait_for_hops(&mut gateway, &frr, 1, &[1]);
    }
    let metrics = gateway.metrics();
    assert!(metrics.contains("tidegate_thread_hangs_total{thread=\"worker 0\"} 1\n"), "{metrics}");
    assert_eq!(gateway.peer().unwrap()["established"], 1, "withdrawn within the session");
    let stopped = StoppedThread::stop(gateway.pid(), "tg-worker-1");
    let status = format!("/proc/{}/status", gateway.pid());
    gateway.wait_until("its end", |_| {
        std::fs::read_to_string(&status).is_ok_and(|text| text.contains("State:\tZ")).then_some(())
    });
    // The thread has ended too, and the process exits when it is no longer traced.
    drop(stopped);
    assert!(!gateway.wait().success(), "a supervisor restarts it");
    let log = gateway.log();
    assert!(log.contains("worker 1 failed: it has made no progress for 5 s"), "{log}");
}

#[test]
fn a_wrong_password_and_a_flapping_peer_are_reported_and_recovered_from() {
    let _machine = alone();
    let edge = Edge::build(1);
    edge.write(&edge.service(1, &[1]));
    let more = ["password another-one"];
    let mut frr =
        Frr::start(edge.lab.directory(), &edge.router, "router", "", &frr_bgpd(&[1], &more)).unwrap();
    let mut gateway = edge.gateway(1, &bgp(", passwordFile: password, holdTime: 9s"));
    let status = gateway.wait_until("the status to report that the session is down", |gateway| {
        let text = gateway.query(&["status"]).ok()?;
        text.contains("DEGRADED:    BGP session with 198.51.100.254: ").then_some(text)
    });
    assert!(!status.contains("ebb-and-flow") && !gateway.log().contains("ebb-and-flow"), "{status}");
    assert!(frr.next_hops(&prefix(Family::V4, 1)).is_empty());
    let metrics = gateway.query(&["metrics"]).unwrap();
    assert!(metrics.contains("tidegate_bgp_session_up{peer=\"198.51.100.254\"} 0"), "{metrics}");

    let peer = gateway_address(1, Family::V4);
    let right = format!("neighbor {peer} password ebb-and-flow");
    frr.vtysh(&["configure terminal", &format!("router bgp {ROUTER_AS}"), &right]).unwrap();
    gateway.wait_until_established();
    wait_for_hops(&mut gateway, &frr, 1, &[1]);

    frr.kill_bgpd();
    gateway.wait_until("the session to end", |gateway| (gateway.peer()?["up"] == false).then_some(()));
    frr = {
        drop(frr);
        let more = ["password ebb-and-flow"];
        Frr::start(edge.lab.directory(), &edge.router, "router", "", &frr_bgpd(&[1], &more)).unwrap()
    };
    gateway.wait_until_established();
    wait_for_hops(&mut gateway, &frr, 1, &[1]);
    assert!(gateway.peer().unwrap()["established"].as_u64() >= Some(2));
    assert_eq!(gateway.status().unwrap()["ready"], true, "a failed session does not stop forwarding");

    // BIRD is restarted if it dies.
    let bird = gateway.bird_pid().expect("BIRD runs");
    let pid = rustix::process::Pid::from_raw(bird.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    gateway.wait_until("another BIRD", |gateway| {
        (gateway.status()?["announce"]["bgp"]["restarts"] == 1 && gateway.peer()?["up"] == true).then_some(())
    });
    wait_for_hops(&mut gateway, &frr, 1, &[1]);
    let events = gateway.query(&["events", "-o", "json"]).unwrap();
    let events: serde_json::Value = serde_json::from_str(&events).unwrap();
    let events = events["items"].as_array().unwrap();
    let count = |reason: &str| events.iter().filter(|event| event["reason"] == reason).count();
    let logged = gateway.log();
    let [failed, ended] = ["BirdFailed", "BgpDown"].map(|why| (count(why), lines(&logged, why)));
    assert_eq!(failed, (1, 1), "{events:?}");
    assert!(ended.0 >= 2 && ended.0 == ended.1, "{events:?}");
}

#[test]
fn a_session_starts_when_the_port_that_bird_needs_becomes_free() {
    let _machine = alone();
    let edge = Edge::build(1);
    edge.write(&edge.service(1, &[1]));
    let peer = gateway_address(1, Family::V4);
    let config = format!(
        "router id {router};\nprotocol device {{ }}\nprotocol bgp of_edge {{ local {router} as {ROUTER_AS}; neighbor {peer} as {GATEWAY_AS}; \
         direct; passive; ipv4 {{ import all; export none; }}; ipv6 {{ import all; export none; }}; }}\n",
        router = ROUTER[0],
    );
    let _router = BirdRouter::start(&edge.lab, &edge.router, &config).unwrap();
    let script =
        "import socket, time\ns = socket.socket()\ns.bind(('0.0.0.0', 179))\ns.listen()\ntime.sleep(600)";
    let listener =
        LabProcess::start(edge.lab.gateway(), edge.lab.directory(), "listener", "python3", &["-c", script]);
    let mut listener = listener.unwrap();
    let listens = || {
        let mut ss = edge.lab.gateway().command("ss");
        output_of(ss.args(["-ltn"])).is_ok_and(|text| text.contains("0.0.0.0:179 "))
    };
    wait_for("another program to have the port", APPLIED, || listens().then_some(())).unwrap();
    let mut gateway = edge.gateway(1, &bgp(""));
    gateway.wait_until("the status to report why there is no session", |gateway| {
        gateway.query(&["status"]).ok()?.contains("No listening socket").then_some(())
    });
    listener.kill();
    gateway.wait_until_established();
}

#[test]
fn gobgp_gets_the_configured_attributes_and_aggregates_without_one_vip() {
    let _machine = alone();
    let edge = Edge::build(1);
    let mut service = edge.service(1, &[1]);
    service.annotations.push(("tidegate.dev/bgp-communities", "64512:9".to_owned()));
    service.annotations.push(("tidegate.dev/bgp-med", "77".to_owned()));
    edge.write(&service);
    for number in [17, 18] {
        edge.write(&edge.service(number, &[1]));
    }
    let config = format!(
        "[global.config]\nas = {ROUTER_AS}\nrouter-id = \"{router}\"\n[[neighbors]]\n[neighbors.config]\nneighbor-address = \"{peer}\"\n\
         peer-as = {GATEWAY_AS}\n[neighbors.transport.config]\npassive-mode = true\n[[neighbors.afi-safis]]\n[neighbors.afi-safis.config]\nafi-safi-name = \"ipv4-unicast\"\n\
         [[neighbors.afi-safis]]\n[neighbors.afi-safis.config]\nafi-safi-name = \"ipv6-unicast\"\n",
        router = ROUTER[0],
        peer = gateway_address(1, Family::V4),
    );
    let gobgp = GoBgp::start(edge.lab.directory(), &edge.router, &config).unwrap();
    let mut gateway = edge.gateway(1, &bgp(", communities: [no-export], prepends: 1"));
    gateway.wait_until_established();
    let rib = |family: &str| gobgp.query(&["global", "rib", "-a", family]).unwrap_or_default();
    let line = gateway.wait_until("GoBGP to have the VIP", |_| {
        rib("ipv4").lines().find(|line| line.contains("203.0.113.1/32")).map(str::to_owned)
    });
    for part in ["64512 64512", "{Med: 77}", "64512:9", "no-export"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    gateway.wait_until("GoBGP to have IPv6", |_| rib("ipv6").contains("2001:db8:1::1/128").then_some(()));

    // Aggregates are added by a reload; the session stays up.
    gateway.configure(&bgp(""), ", bgp: {communities: [\"64512:5\"], med: 5, aggregationLength: 28}");
    gateway.reload();
    let line = gateway.wait_until("the aggregates", |_| {
        let rib = rib("ipv4");
        let has = rib.contains("203.0.113.16/28") && !rib.contains("/32");
        has.then(|| rib.lines().find(|line| line.contains("203.0.113.16/28")).map(str::to_owned)).flatten()
    });
    assert!(line.contains("64512:5") && line.contains("{Med: 5}"), "{line}");
    edge.write(&edge.service(17, &[]));
    gateway.wait_until("one VIP to be withheld", |gateway| {
        let status = gateway.status()?;
        (status["announce"]["withheld"].as_array()?.len() == 2).then_some(())
    });
    assert!(rib("ipv4").contains("203.0.113.16/28"), "the other VIP keeps the aggregate");
    edge.write(&edge.service(18, &[]));
    gateway.wait_until("the aggregate to be withdrawn", |_| {
        (!rib("ipv4").contains("203.0.113.16/28")).then_some(())
    });
    assert_eq!(gateway.peer().unwrap()["established"], 1, "one session through all of it");
}

#[test]
fn ten_thousand_vips_reach_a_bird_and_one_change_does_not_send_them_again() {
    let _machine = alone();
    let edge = Edge::build(1);
    let services: Vec<String> = (0..100)
        .map(|n| {
            let ips: Vec<String> = (0..100).map(|i| format!("10.{}.{n}.{i}", 128)).collect();
            format!(
                "apiVersion: v1\nkind: Service\nmetadata: {{name: many-{n}, namespace: lab}}\nspec: {{ports: [{{name: a, port: 80}}], clusterIP: 10.96.1.{n}, \
                 externalIPs: [{}]}}\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: many-{n}, namespace: lab, \
                 labels: {{kubernetes.io/service-name: many-{n}}}}}\naddressType: IPv4\nports: [{{name: a, port: 80}}]\n\
                 endpoints: [{{addresses: [{}], conditions: {{ready: true}}}}]\n",
                ips.join(", "),
                plan::server(Family::V4, 1),
            )
        })
        .collect();
    put(&manifests_of(&edge.lab), "many.yaml", &services.join("---\n")).unwrap();
    let peer = gateway_address(1, Family::V4);
    let config = format!(
        "router id {router};\nprotocol device {{ }}\nprotocol bgp of_edge {{ local {router} as {GATEWAY_AS}; neighbor {peer} as {GATEWAY_AS}; \
         direct; passive; ipv4 {{ import all; export none; }}; ipv6 {{ import all; export none; }}; }}\n",
        router = ROUTER[0],
    );
    let bird = BirdRouter::start(&edge.lab, &edge.router, &config).unwrap();
    // Both sides have the same AS.
    let announce = bgp(", localPref: 250").replace(&ROUTER_AS.to_string(), &GATEWAY_AS.to_string());
    let mut gateway = edge.gateway(1, &announce);
    let count = || {
        let text = bird.query("show route count").unwrap_or_default();
        text.lines().find(|line| line.contains("master4"))?.split(' ').next()?.parse::<usize>().ok()
    };
    gateway.wait_until("10,000 routes", |_| (count() == Some(10_000)).then_some(()));
    let one = bird.query("show route all 10.128.7.7/32").unwrap();
    assert!(one.contains("BGP.local_pref: 250") && one.contains("BGP.next_hop: 198.51.100.2"), "{one}");
    let updates = || {
        let text = bird.query("show protocols all of_edge").unwrap_or_default();
        let line = text.lines().find(|line| line.contains("Import updates"))?.to_owned();
        line.split_whitespace().nth(2)?.parse::<u64>().ok()
    };
    let before = updates().unwrap();
    put(&manifests_of(&edge.lab), "many.yaml", &services[..99].join("---\n")).unwrap();
    gateway.wait_until("9,900 routes", |_| (count() == Some(9_900)).then_some(()));
    assert_eq!(updates(), Some(before), "only withdrawals were sent");
    // The gateway polls BIRD's counters at intervals.
    gateway.wait_until("the counters in the status", |gateway| {
        let state = gateway.status()?;
        let sent = &state["announce"]["bgp"]["peers"][0]["sentIpv4"];
        (state["announce"]["prefixes"] == 9_900 && *sent == 9_900).then_some(())
    });
}

#[test]
fn with_graceful_restart_the_router_keeps_the_routes_while_bird_restarts() {
    let _machine = alone();
    let edge = Edge::build(1);
    edge.write(&edge.service(1, &[1]));
    let more = ["graceful-restart-helper"];
    let frr = Frr::start(edge.lab.directory(), &edge.router, "router", "", &frr_bgpd(&[1], &more)).unwrap();
    let mut gateway = edge.gateway(1, &bgp(", gracefulRestart: true"));
    gateway.wait_until_established();
    wait_for_hops(&mut gateway, &frr, 1, &[1]);
    let bird = gateway.bird_pid().expect("BIRD runs");
    let pid = rustix::process::Pid::from_raw(bird.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    gateway.wait_until("another session", |gateway| {
        assert_eq!(frr.next_hops(&prefix(Family::V4, 1)), hops(&[1]), "the route stays");
        (gateway.peer()?["established"] == 2).then_some(())
    });
    connect(&edge, Family::V4, 1, 0).expect("clients have a route").ping().unwrap();
    // An orderly stop is not a restart: the routes are withdrawn immediately.
    gateway.terminate();
    wait_for_hops(&mut gateway, &frr, 1, &[]);
    assert!(gateway.wait().success());
}

#[test]
fn an_frr_beside_the_gateway_redistributes_the_routes_of_the_kernel() {
    let _machine = alone();
    let edge = Edge::build(1);
    edge.write(&edge.service(1, &[1]));
    let frr = Frr::start(edge.lab.directory(), &edge.router, "router", "", &frr_bgpd(&[1], &[])).unwrap();
    let stale = "route add blackhole 203.0.113.99/32 table 179 proto 179";
    let foreign = "route add blackhole 203.0.113.98/32 table 179 proto 4";
    edge.lab.gateway().ip_batch(&format!("{stale}\n{foreign}")).unwrap();
    let mut gateway = edge.gateway(1, "{kernelRoutes: {}}");
    let bgpd = format!(
        "router bgp {GATEWAY_AS}\n bgp router-id 198.51.100.2\n no bgp ebgp-requires-policy\n neighbor {router} remote-as {ROUTER_AS}\n \
         neighbor {router} timers connect 1\n address-family ipv4 unicast\n  redistribute table 179\n exit-address-family\n",
        router = ROUTER[0],
    );
    let local =
        Frr::start(edge.lab.directory(), &gateway.namespace, "local", "ip import-table 179", &bgpd).unwrap();
    let received = |number| frr.next_hops(&prefix(Family::V4, number)) == hops(&[1]);
    gateway.wait_until("the router to receive the VIP from FRR", |_| received(1).then_some(()));
    connect(&edge, Family::V4, 1, 0).expect("clients have a route").ping().unwrap();
    let table = |gateway: &EdgeGateway, family: &str| {
        let mut ip = gateway.namespace.command("ip");
        let text = tidegate_netlab::namespace::output_of(ip.args([family, "route", "show", "table", "179"]));
        text.unwrap_or_default()
    };
    let v4 = table(&gateway, "-4");
    assert!(!v4.contains("203.0.113.99"), "a stale route is removed: {v4}");
    assert!(v4.contains("203.0.113.98"), "a route of another program is not: {v4}");
    assert!(table(&gateway, "-6").contains("2001:db8:1::1"));
    // Routes that another program deletes are restored, even while the route of another VIP cannot be added.
    let taken = "blackhole 203.0.113.2/32 table 179 proto 4";
    gateway.namespace.ip_batch(&format!("route add {taken}")).unwrap();
    edge.write(&edge.service(2, &[1]));
    gateway.wait_until("the fault of the route that another program has", |gateway| {
        let status = gateway.status()?;
        let degraded = status["degraded"].as_array()?;
        let is_about = |why: &str| why.contains("203.0.113.2/32: another program already has a route");
        degraded.iter().filter_map(serde_json::Value::as_str).any(is_about).then_some(())
    });
    gateway.namespace.ip_batch("route del blackhole 203.0.113.1/32 table 179").unwrap();
    gateway.wait_until("the route to be restored", |gateway| {
        table(gateway, "-4").contains("203.0.113.1 ").then_some(())
    });
    edge.write(&edge.service(1, &[]));
    gateway.wait_until("the router to lose the VIP", |_| (!received(1)).then_some(()));
    edge.write(&edge.service(1, &[1]));
    gateway.wait_until("the router to receive it again", |_| received(1).then_some(()));
    gateway.terminate();
    gateway.wait_until("the route to be withdrawn", |gateway| {
        (!table(gateway, "-4").contains("203.0.113.1 ")).then_some(())
    });
    assert!(gateway.wait().success());
    assert!(table(&gateway, "-4").contains("203.0.113.98"));
    drop(local);
}
