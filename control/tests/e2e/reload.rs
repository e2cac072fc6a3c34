//! SIGHUP changes routes: traffic and health checks use the new next hop, and refused routes change nothing.

use std::fs;
use std::net::SocketAddr;

use tidegate_netlab::addresses::{self as plan, Family, TCP_ECHO_PORT, UDP_ECHO_PORT, client};
use tidegate_netlab::client::udp_request;
use tidegate_netlab::gateway::config_of;
use tidegate_netlab::manifests::{Manifest, PortSpec};
use tidegate_netlab::modes::ModePath;
use tidegate_netlab::{Gateway, GatewayOptions};

use crate::nodes::{self, POD_TCP_ECHO_PORT, POD_UDP_ECHO_PORT, Pod, Return};
use crate::world::{World, assert_alive, beside_others, lab_with};

/// The server with the Pod, and the two servers that are next hops to it.
const HOME: u8 = 3;
const FIRST: u8 = 1;
const SECOND: u8 = 2;

#[test]
fn sighup_moves_traffic_and_checks_and_refused_routes_change_nothing() {
    let _machine = beside_others();
    let lab = lab_with(3, Vec::new());
    let pods = nodes::start(&lab, &[0, 0, 1], Return::Gateway);
    let services: Vec<Manifest> = ["nat", "fullnat"].map(|mode| service(mode, &pods[0])).into();
    let options = GatewayOptions { routes: routes(FIRST).to_vec(), ..GatewayOptions::default() };
    let mut world = World::over(lab, options.clone(), &services, "");
    forward(&world, SECOND, false);
    let mut open = Vec::new();
    for path in paths() {
        open.push((path, world.wait_until_served(path)));
    }
    assert_alive("over the first next hop", &mut open);

    // An invalid prefix, and a next hop that is not on a link: each is reported with its line, and nothing changes.
    let ([v4, v6], [no_prefix, off_link]) = (routes(SECOND), ["10.244.3.0/33", "192.168.77.7"]);
    let refused = [
        (vec![(no_prefix.to_owned(), v4.1), v6.clone()], no_prefix),
        (vec![v6.clone(), (v4.0.clone(), off_link.parse().unwrap())], off_link),
    ];
    for (routes, what) in refused {
        reload(&mut world, &GatewayOptions { routes, ..options.clone() });
        let text = fs::read_to_string(config_of(&world.lab)).unwrap();
        let line = 1 + text.lines().position(|line| line.contains(what)).expect("it is written");
        let place = format!("gateway.yaml:{line}:");
        world.wait_until(&format!("{place} in the log"), || {
            let log = world.gateway().log();
            log.lines().any(|line| line.contains(&place) && line.contains("ERROR")).then_some(())
        });
        assert_alive(&format!("with the route of {what} refused"), &mut open);
        let is_named = |world: &World| {
            let status = world.gateway().query(&["status"]).unwrap();
            status.lines().any(|line| line.contains("ConfigurationRefused") && line.contains(&place))
        };
        world.wait_until("a status that names it", || is_named(&world).then_some(()));
        assert_eq!(world.gateway().metric("tidegate_configuration_refused", &[]).unwrap(), 1.0);
        for path in paths() {
            open.push((path, world.connect(path, 1).unwrap()));
        }
    }

    forward(&world, SECOND, true);
    reload(&mut world, &GatewayOptions { routes: routes(SECOND).to_vec(), ..options });
    world.wait_until("the reload", || world.gateway().log().contains("configuration reloaded").then_some(()));
    assert_eq!(world.gateway().metric("tidegate_configuration_refused", &[]).unwrap(), 0.0);
    assert!(!world.gateway().query(&["status"]).unwrap().contains("ConfigurationRefused"));
    // From now on, the first server forwards nothing.
    forward(&world, FIRST, false);
    for path in paths() {
        open.push((path, world.wait_until_served(path)));
        let source = SocketAddr::new(client(path.family, 2), 0);
        udp_request(world.lab.client(), source, path.udp_echo(), "over the second?").unwrap();
    }
    assert_alive("over the second next hop", &mut open);
    // Health checks use the kernel's routes, which follow the configuration.
    let good = || world.gateway().metric("tidegate_health_checks_total", &["result=\"success\""]).unwrap();
    let before = good();
    world.wait_until("checks by the second next hop", || (good() >= before + 8.0).then_some(()));
    for path in paths() {
        let ports = world.ports_at(path.vip).unwrap();
        let backends = ports.iter().flat_map(|port| port["backends"].as_array().unwrap());
        let failing = backends.filter(|backend| backend["health"]["state"] == "failing").count();
        assert_eq!(failing, 0, "{} {}", path.label(), path.family);
    }
}

/// The routes to the Pod's networks, in both families.
fn routes(via: u8) -> [(String, std::net::IpAddr); 2] {
    Family::BOTH.map(|family| (nodes::pod_cidr(family, HOME), plan::server(family, via)))
}

fn reload(world: &mut World, options: &GatewayOptions) {
    Gateway::configure(&world.lab, options).expect("configuration written");
    world.gateway_mut().reload();
}

/// Sets whether a server forwards packets.
fn forward(world: &World, server: u8, on: bool) {
    let on = if on { "1" } else { "0" };
    let settings = [("ipv4/conf/all/forwarding", on), ("ipv6/conf/all/forwarding", on)];
    world.lab.server(server).namespace().sysctls(&settings).expect("forwarding");
}

fn service(mode: &'static str, pod: &Pod) -> Manifest {
    let ports = vec![
        PortSpec::tcp("tcp-echo", TCP_ECHO_PORT).to(POD_TCP_ECHO_PORT),
        PortSpec::udp("echo", UDP_ECHO_PORT).to(POD_UDP_ECHO_PORT),
    ];
    let vips = Family::BOTH.map(|family| vip(mode, family));
    Manifest::new(mode, mode, &vips, ports).with_endpoints(pod.endpoints())
}

fn vip(mode: &str, family: Family) -> std::net::IpAddr {
    plan::routed_vip(family, if mode == "nat" { 41 } else { 42 })
}

fn paths() -> Vec<ModePath> {
    let path = |forwarding: &'static str, family| ModePath {
        service: forwarding,
        forwarding,
        family,
        backends: family,
        vip: vip(forwarding, family),
    };
    ["nat", "fullnat"].into_iter().flat_map(|mode| Family::BOTH.map(|family| path(mode, family))).collect()
}
