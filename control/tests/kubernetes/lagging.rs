//! A Service's status names the gateways that do not follow its changes, and only those.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::layer2::relayed;
use crate::world::{Setting, World, service, slice, text};

/// `STATUS REASON: MESSAGE` of the condition `Programmed`.
fn programmed(world: &World, name: &str) -> String {
    let service = world.api.get("v1", "Service", "shop", name).unwrap_or_default();
    let conditions = service["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let one = conditions.into_iter().find(|one| one["type"] == "tidegate.dev/Programmed");
    let one = one.unwrap_or_default();
    format!("{} {}: {}", text(&one["status"]), text(&one["reason"]), text(&one["message"]))
}

fn version(world: &World, name: &str) -> String {
    let service = world.api.get("v1", "Service", "shop", name).unwrap_or_default();
    text(&service["metadata"]["resourceVersion"])
}

/// Services `web` and `db` on the leader edge-1 and on edge-2, which has this kubeconfig.
fn two(kubeconfig: impl FnOnce(&World) -> Option<String>) -> World {
    let mut world = World::new();
    for (name, address) in [("web", "10.244.0.1"), ("db", "10.244.0.2")] {
        world.apply(&(service(name) + &slice(name, &[address])));
    }
    world.start("edge-1");
    world.until("the addresses", || {
        ["web", "db"].iter().all(|name| programmed(&world, name).starts_with("True")).then_some(())
    });
    let kubeconfig = kubeconfig(&world);
    world.start_with("edge-2", &Setting { kubeconfig, ..Setting::default() });
    // The leader has seen that the other gateway is ready and up to date.
    world.until("a second gateway", || {
        let other = world.api.get("tidegate.dev/v1alpha1", "GatewayStatus", "", "edge-2")?;
        let conditions = other["status"]["conditions"].as_array()?;
        let ready = conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True");
        (ready && other["status"]["services"] == 2).then_some(())
    });
    world
}

/// Adds a port to `web`.
fn add_port(world: &World, port: u16) {
    let add = |service: &mut Value| {
        let ports = service["spec"]["ports"].as_array_mut().expect("it has ports");
        ports.push(json!({"name": format!("p{port}"), "port": port, "protocol": "TCP"}));
    };
    world.api.edit("v1", "Service", "shop", "web", add).expect("legal");
}

/// Waits until `web` names edge-2 as lagging, for this change alone.
fn until_lagging(world: &World, db: &str) {
    world.until("the gateway to be named", || {
        let condition = programmed(world, "web");
        let is_named = condition.starts_with("False GatewayLagging: ")
            && condition
                .contains("on 1 of 2 gateways; not on edge-2, which has not confirmed the last change")
            && condition.contains("silent for more than ");
        is_named.then_some(())
    });
    world.until("an event", || {
        let events = world.api.list("v1", "Event", "shop");
        let is_about = |event: &Value| {
            event["reason"] == "SyncLoadBalancerFailed"
                && text(&event["message"]).contains("edge-2, which has not confirmed")
        };
        events.iter().any(is_about).then_some(())
    });
    assert_eq!(version(world, "db"), db, "a Service that has not changed is not written");
}

fn until_served_by_both(world: &World, port: u16) {
    world.until("the port on both gateways", || {
        let has_port = |gateway: &str| {
            let service = world.gateway(gateway).service("web");
            let ports = service["ports"].as_array().cloned().unwrap_or_default();
            ports.iter().any(|one| one["port"] == port)
        };
        (has_port("edge-1") && has_port("edge-2")).then_some(())
    });
    world.until("it to be reported", || {
        programmed(world, "web").starts_with("True Programmed: ").then_some(())
    });
    assert!(!programmed(world, "web").contains("edge-2"), "{}", programmed(world, "web"));
}

#[test]
fn a_gateway_without_its_management_link_is_reported_as_lagging() {
    let cut = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&cut);
    let world = two(move |world| Some(relayed(world, flag)));
    let db = version(&world, "db");
    cut.store(true, Ordering::Relaxed);
    add_port(&world, 81);
    until_lagging(&world, &db);
    cut.store(false, Ordering::Relaxed);
    until_served_by_both(&world, 81);
    // A gateway that follows is not named, although it confirms the change slightly later.
    add_port(&world, 82);
    until_served_by_both(&world, 82);
}

#[test]
fn a_stopped_gateway_is_reported_until_it_counts_as_dead() {
    let mut world = two(|_| None);
    let db = version(&world, "db");
    world.signal("edge-2", Signal::STOP);
    add_port(&world, 81);
    until_lagging(&world, &db);
    // After 40 s without a heartbeat its status is unknown, and it is not counted.
    world.until("it to be dead", || programmed(&world, "web").starts_with("True Programmed: ").then_some(()));
    world.signal("edge-2", Signal::CONT);
    until_served_by_both(&world, 81);
}
