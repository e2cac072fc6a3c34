//! Health-check node ports: their answers match those of kube-proxy byte for byte, and change at the right times.

use tidegate_netlab::addresses::{self as plan, Family};
use tidegate_netlab::manifests::EndpointState;
use tidegate_netlab::modes::{ModePath, all_paths, manifests};
use tidegate_netlab::{GatewayOptions, Namespace, wait_for};

use crate::http::{self, Answer};
use crate::world::{APPLIED, World, assert_alive, beside_others};

const PORT: u16 = 31_111;

#[test]
fn health_check_node_port_returns_503_without_a_ready_endpoint() {
    let _machine = beside_others();
    let path: ModePath = all_paths().into_iter().find(|path| path.forwarding == "fullnat").unwrap();
    let mut services = manifests(&[1, 2]);
    let service = services.iter_mut().find(|service| service.name == path.service).unwrap();
    service.health_check_node_port = Some(PORT);
    // One family only, so that there are two distinct addresses.
    service.endpoints.retain(|endpoint| endpoint.address.is_ipv4());
    service.vips.retain(std::net::IpAddr::is_ipv4);
    let mut service = service.clone();
    let world = World::start(2, GatewayOptions::default(), std::slice::from_ref(&service));
    let mut open = vec![(path, world.wait_until_served(path))];

    let inside = world.lab.gateway();
    let ready = wait_for("two local endpoints", APPLIED, || {
        request(inside, "127.0.0.1").filter(|a| weight(a) == "2")
    });
    assert_answer(&ready.unwrap(), 200, 2);
    // A load balancer in front of the gateway sends its request over the network, through the gateway's port and tap.
    let outside = wait_for("an answer over the network", APPLIED, || {
        request(world.lab.client(), plan::GATEWAY_FOR_CLIENTS[0])
    });
    assert_answer(&outside.unwrap(), 200, 2);

    let serving = open[0].1.answer.backend.clone();
    let last: u8 = serving.trim_start_matches("backend-").parse().unwrap();
    let other = plan::server(Family::V4, 3 - last);
    service.endpoint_mut(other).state = EndpointState::NotReady;
    world.write(std::slice::from_ref(&service));
    let one =
        wait_for("one local endpoint", APPLIED, || request(inside, "127.0.0.1").filter(|a| weight(a) == "1"));
    assert_answer(&one.unwrap(), 200, 1);

    service.endpoint_mut(plan::server(Family::V4, last)).state = EndpointState::Terminating;
    world.write(std::slice::from_ref(&service));
    let none =
        wait_for("no local endpoint", APPLIED, || request(inside, "127.0.0.1").filter(|a| weight(a) == "0"));
    assert_answer(&none.unwrap(), 503, 0);
    assert_alive("while its backend terminates", &mut open);
}

#[test]
fn health_check_node_port_answers_only_configured_networks_and_loopback() {
    let _machine = beside_others();
    let path: ModePath = all_paths().into_iter().find(|path| path.forwarding == "fullnat").unwrap();
    let mut service = manifests(&[1, 2]).into_iter().find(|service| service.name == path.service).unwrap();
    service.health_check_node_port = Some(PORT);
    let options = GatewayOptions {
        health_port_networks: vec![plan::SERVER_PREFIX[0].to_owned()],
        ..GatewayOptions::default()
    };
    let world = World::start(2, options, std::slice::from_ref(&service));
    let local = wait_for("an answer on the loopback", APPLIED, || request(world.lab.gateway(), "127.0.0.1"));
    assert_eq!(local.unwrap().status, 200);
    let inside = wait_for("an answer in the network", APPLIED, || {
        request(world.lab.server(1).namespace(), plan::GATEWAY_FOR_SERVERS[0])
    });
    assert_eq!(inside.unwrap().status, 200);
    // The port is open here too, but nothing is read or answered.
    assert!(request(world.lab.client(), plan::GATEWAY_FOR_CLIENTS[0]).is_none());
}

fn assert_answer(answer: &Answer, status: u16, endpoints: u32) {
    assert_eq!(answer.status, status);
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(answer.headers["x-content-type-options"], "nosniff");
    assert_eq!(weight(answer), endpoints.to_string());
    assert_eq!(
        answer.body,
        format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": \"lab\",\n\t\t\"name\": \"fullnat\"\n\t}},\n\t\
             \"localEndpoints\": {endpoints},\n\t\"serviceProxyHealthy\": true\n}}"
        )
    );
}

fn weight(answer: &Answer) -> &str {
    answer.headers.get("x-load-balancing-endpoint-weight").map_or("", String::as_str)
}

/// Every path and method has the same answer. This uses GET with an arbitrary path.
fn request(from: &Namespace, host: &str) -> Option<Answer> {
    http::get(from, &format!("http://{host}:{PORT}/any/path"), 2)
}
