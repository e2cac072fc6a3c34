//! A gateway that is a node of the cluster: its HTTP answers to kubelets and to load balancers in front.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::json;

use crate::world::{Setting, World, service, slice};

/// Status and body of `GET path` at a port of the gateway; `None` if nothing listens.
fn get(world: &World, port: u16, path: &str) -> Option<(u16, String)> {
    world.enter_gateway(|| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    })
}

const NODE: &str = "{apiVersion: v1, kind: Node, metadata: {name: a}, spec: {}, status: {addresses: [{type: InternalIP, \
                    address: 10.0.0.11}]}}\n---\n";

/// `web` with policy Local and two endpoints, one of them on node a, the gateway's node.
fn on_node_a() -> World {
    let mut world = World::new();
    let local = "externalTrafficPolicy: Local, healthCheckNodePort: 30500, ports:";
    let elsewhere = slice("web", &["10.244.1.1"]).replace("web-1", "web-2");
    world.apply(
        &(NODE.to_owned() + &service("web").replace("ports:", local) + &on_node("ready: true") + &elsewhere),
    );
    let setting = Setting { document: "node: {name: a}".into(), ..Setting::default() };
    world.start_with("edge-1", &setting);
    world
}

/// The endpoint on node a, with these conditions.
fn on_node(conditions: &str) -> String {
    slice("web", &["10.244.0.1"])
        .replace("conditions: {ready: true}", &format!("nodeName: a, conditions: {{{conditions}}}"))
}

fn until_answer(world: &World, port: u16, path: &str, status: u16, part: &str) {
    world.until(&format!("{status} with {part} of {path} at port {port}"), || {
        get(world, port, path).filter(|(code, body)| *code == status && body.contains(part))
    });
}

#[test]
fn last_local_endpoint_terminates_and_policy_leaves_local() {
    let world = on_node_a();
    until_answer(&world, 30_500, "/", 200, "\"localEndpoints\": 1,");
    world.apply(&on_node("ready: false, serving: true, terminating: true"));
    until_answer(&world, 30_500, "/", 503, "\"localEndpoints\": 0,");
    let gateway = world.gateway("edge-1");
    world.until("it to serve still, because no other endpoint is local", || {
        (gateway.backends("web") == ["10.244.0.1:8080 active"]).then_some(())
    });
    let cluster = |service: &mut serde_json::Value| {
        service["spec"]["externalTrafficPolicy"] = "Cluster".into();
        service["spec"].as_object_mut().expect("a mapping").remove("healthCheckNodePort");
    };
    world.api.edit("v1", "Service", "shop", "web", cluster).expect("legal");
    world.until("the port to close", || get(&world, 30_500, "/").is_none().then_some(()));
}

#[test]
fn node_marked_for_deletion() {
    let world = on_node_a();
    until_answer(&world, 10_001, "/healthz", 200, "\"nodeEligible\":true");
    until_answer(&world, 10_001, "/readyz", 200, "lastUpdated");
    let taint = json!([{"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"}]);
    world.api.edit("v1", "Node", "", "a", |node| node["spec"]["taints"] = taint.clone()).expect("legal");
    until_answer(&world, 10_001, "/healthz", 503, "\"nodeEligible\":false");
    assert_eq!(
        get(&world, 10_001, "/livez").map(|(status, _)| status),
        Some(200),
        "the gateway itself is healthy"
    );
    until_answer(&world, 30_500, "/", 200, "\"serviceProxyHealthy\": true");
    world.api.edit("v1", "Node", "", "a", |node| node["spec"]["taints"] = json!([])).expect("legal");
    until_answer(&world, 10_001, "/healthz", 200, "\"nodeEligible\":true");
}
