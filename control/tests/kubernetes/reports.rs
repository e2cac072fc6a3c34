//! The reports about a gateway are correct even if it cannot do its work, if it is gone, or if another gateway has its
//! name.

use std::fs;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use test_apiserver::Options;

use crate::api::Needs;
use crate::needs;
use crate::world::{SEEN, Setting, World, service, slice, text};

fn shop_in(mut world: World) -> World {
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    world.start("edge-1");
    world.until("the conditions", || (condition(&world, "web", "Programmed").0 == "True").then_some(()));
    world
}

fn shop() -> World {
    shop_in(World::new())
}

/// The status and message of one of our conditions.
fn condition(world: &World, name: &str, kind: &str) -> (String, String) {
    let service = world.api.get("v1", "Service", "shop", name).unwrap_or_default();
    of(&service["status"]["conditions"], &format!("tidegate.dev/{kind}"))
}

fn of(conditions: &Value, kind: &str) -> (String, String) {
    let all = conditions.as_array().cloned().unwrap_or_default();
    let one = all.into_iter().find(|one| one["type"] == kind).unwrap_or_default();
    (text(&one["status"]), text(&one["message"]))
}

fn gateway_status(world: &World, name: &str) -> Value {
    let status = world.api.get("tidegate.dev/v1alpha1", "GatewayStatus", "", name);
    status.unwrap_or_default()["status"].clone()
}

#[test]
fn a_failed_publication_is_reported_and_unhealthy_after_a_minute() {
    let mut world = shop();
    assert_eq!(world.http(10_001, "/healthz").map(|(code, _)| code), Some(200));
    // More routes than the tables can store: the dataplane refuses the whole state.
    let many: Vec<String> = (0..66_000)
        .map(|n| {
            format!("{{to: \"10.{}.{}.{}/32\", via: \"192.0.2.254\"}}", n / 65_536, n / 256 % 256, n % 256)
        })
        .collect();
    let since = Instant::now();
    let more = format!("routes: [{}, ", many.join(", "));
    world.reconfigure("edge-1", |config| config.replacen("routes: [", &more, 1));
    let status = |world: &World| world.gateway("edge-1").query("status").unwrap_or_default();
    let why = world.until("it to be in the status", || {
        let degraded = status(&world)["degraded"].as_array().cloned().unwrap_or_default();
        degraded.iter().map(text).find(|why| why.contains("publishing the latest state has failed"))
    });
    assert!(why.contains("routes; accepted: at most 65536"), "{why}");
    // The new Service is not forwarded, and its status does not claim it. The old one is still forwarded.
    world.apply(&(service("new") + &slice("new", &["10.244.0.2"])));
    world.until("the new one to report it", || {
        let (status, message) = condition(&world, "new", "Programmed");
        (status == "False" && message.contains("cannot be published")).then_some(())
    });
    assert!(
        text(&world.gateway("edge-1").service("new")["unapplied"])
            .contains("publishing the latest state has failed")
    );
    assert_eq!(condition(&world, "web", "Programmed").0, "True");
    world.until("it to be a condition of the gateway", || {
        let (status, message) = of(&gateway_status(&world, "edge-1")["conditions"], "Published");
        (status == "False" && message.contains("routes")).then_some(())
    });
    world.until("what is not programmed to be listed", || {
        let listed = gateway_status(&world, "edge-1")["notProgrammed"].clone();
        (listed == serde_json::json!(["shop/new"])).then_some(())
    });
    let metrics = world.http(9_001, "/metrics").expect("the page").1;
    let failures = metrics.lines().find(|line| line.starts_with("tidegate_publish_failures_total "));
    assert!(failures.is_some_and(|line| !line.ends_with(" 0")), "{failures:?}");
    world.within(Duration::from_secs(90), "healthz to report it", || {
        world.http(10_001, "/healthz").filter(|(code, _)| *code == 503)
    });
    assert!(since.elapsed() >= Duration::from_secs(60), "not before a minute is over");

    world.reconfigure("edge-1", |config| config.replacen(&more, "routes: [", 1));
    world.until("everything to be healthy again", || {
        let is_well = condition(&world, "new", "Programmed").0 == "True"
            && world.http(10_001, "/healthz").is_some_and(|(code, _)| code == 200)
            && status(&world)["degraded"].is_null();
        is_well.then_some(())
    });
}

#[test]
fn unsaved_state_is_reported_by_status_metrics_and_drain() {
    let world = shop();
    let gateway = world.gateway("edge-1");
    let state = world.directory().join("edge-1").join("state");
    world.until("the first save", || state.join("edge-1.objects.jsonl").exists().then_some(()));
    // Every save writes to these files first.
    let blocks = ["edge-1.objects.jsonl.new", "edge-1.drained.new"].map(|name| state.join(name));
    blocks.iter().for_each(|block| world.until("no save to be in progress", || fs::create_dir(block).ok()));
    let (done, warned) = gateway.drain("10.244.0.1:8080");
    assert!(done.contains("drained"), "{done}");
    assert!(
        warned.contains("a restart would end these drains") && warned.contains("edge-1.drained"),
        "{warned}"
    );
    world.apply(&slice("web", &["10.244.0.2"]));
    let degraded = || {
        let degraded = gateway.query("status").unwrap_or_default()["degraded"].clone();
        degraded.as_array().into_iter().flatten().map(text).collect::<Vec<_>>()
    };
    let unsaved = |what: &str| {
        let line = format!("tidegate_state_unsaved{{state=\"{what}\"}} 1");
        world.http(9_001, "/metrics").is_some_and(|(_, page)| page.contains(&line))
    };
    world.until("both to be reported", || {
        let lines = degraded();
        let contains = |what: &str| lines.iter().any(|one| one.contains(what));
        let shown = contains("objects have not been saved to disk since")
            && contains("a restart would end these drains");
        (shown && unsaved("objects") && unsaved("drained")).then_some(())
    });
    blocks.iter().for_each(|block| fs::remove_dir(block).expect("ours"));
    world.within(2 * SEEN, "both to be saved", || degraded().is_empty().then_some(()));
    assert!(!unsaved("objects") && !unsaved("drained"));
    let drained = fs::read_to_string(state.join("edge-1.drained")).unwrap_or_default();
    assert_eq!(drained, "10.244.0.1:8080\n");
}

#[test]
fn a_gateway_without_a_heartbeat_is_unknown_after_40_s_and_no_leader() {
    let mut world = shop();
    world.start("edge-2");
    world.until("the second to write its status", || {
        (of(&gateway_status(&world, "edge-2")["conditions"], "Ready").0 == "True").then_some(())
    });
    world.end("edge-1", Signal::KILL, SEEN).expect("it ends");
    let bound = Duration::from_secs(100);
    world.within(bound, "the dead one to be marked", || {
        let status = gateway_status(&world, "edge-1");
        let ready = of(&status["conditions"], "Ready");
        (ready.0 == "Unknown" && status["leader"] == false && ready.1.contains("no heartbeat")).then_some(())
    });
    assert_eq!(of(&gateway_status(&world, "edge-2")["conditions"], "Ready").0, "True");
}

#[test]
fn a_second_gateway_with_the_same_name_refuses_to_lead_and_exits() {
    let mut world = shop();
    let duplicate = Setting { called: Some("edge-1".into()), ..Setting::default() };
    world.start_with("duplicate", &duplicate);
    assert_eq!(world.exit_code("duplicate", Duration::from_secs(90)), Some(3));
    world.until("the first to have the condition", || {
        let (status, message) = of(&gateway_status(&world, "edge-1")["conditions"], "NameUnique");
        (status == "False" && message.contains("192.0.2.2")).then_some(())
    });
    // Its status was never mixed with that of the second one.
    let addresses = text(&gateway_status(&world, "edge-1")["addresses"][0]);
    assert_eq!(addresses, "192.0.2.1");
    assert_eq!(world.gateway("edge-1").query("status").unwrap_or_default()["cluster"]["leads"], true);
}

#[test]
fn a_silent_partition_and_its_end_are_detected() {
    let world = shop();
    let gateway = world.gateway("edge-1");
    world.until("it to be connected", || (gateway.source()["connected"] == true).then_some(()));
    // Connections are not refused, but no data arrives.
    world.api.hang(true);
    // The limit is twenty seconds; the rest is for a busy machine.
    world.within(Duration::from_secs(45), "the loss to be reported", || {
        (gateway.source()["connected"] == false).then_some(())
    });
    assert_eq!(gateway.backends("web"), ["10.244.0.1:8080 active"]);
    world.api.hang(false);
    world.apply(&slice("web", &["10.244.0.2"]));
    world.within(Duration::from_secs(60), "changes to be followed again", || {
        gateway.backends("web").contains(&"10.244.0.2:8080 active".to_string()).then_some(())
    });
}

#[test]
fn kinds_in_another_etcd_are_watched_without_repeated_lists() {
    needs!(Needs::ServerOptions, Needs::Faults, Needs::Requests);
    let options = Options { namespaces_apart: true, ..Options::default() };
    let world = shop_in(World::with(options));
    world.api.faults().end_watches();
    world.api.forget_requests();
    let gateway = world.gateway("edge-1");
    for n in 2..6 {
        let address = format!("10.244.0.{n}");
        world.apply(&slice("web", &[&address]));
        let row = format!("{address}:8080 active");
        world.until("the change to be followed", || gateway.backends("web").contains(&row).then_some(()));
        world.api.faults().end_watches();
    }
    let lists = world.api.requests().into_iter().filter(|request| {
        request.path.ends_with("/endpointslices")
            && !request.query.contains("watch=")
            && !request.query.contains("limit=1&")
            && !request.query.ends_with("limit=1")
    });
    assert_eq!(lists.count(), 0, "a watch that ends is resumed where it was");
}

#[test]
fn every_request_names_the_gateway() {
    needs!(Needs::Requests);
    let world = shop();
    let unknown = world.api.requests().into_iter().filter(|request| {
        request.user.contains("tidegate") && !request.field_manager.starts_with("tidegate")
    });
    assert_eq!(unknown.map(|request| request.path).collect::<Vec<_>>(), [] as [String; 0]);
}

#[test]
fn health_check_node_ports_are_left_to_kube_proxy() {
    let local = "externalTrafficPolicy: Local, healthCheckNodePort: 30501, ports:";
    let mut world = World::new();
    let node = "{apiVersion: v1, kind: Node, metadata: {name: a}, spec: {}, status: {addresses: [{type: InternalIP, \
                address: 10.0.0.11}]}}\n---\n";
    world.apply(&(node.to_owned() + &service("web").replace("ports:", local)));
    let setting = Setting { document: "node: {name: a}".into(), ..Setting::default() };
    world.start_with("edge-1", &setting);
    world.until("the port", || world.http(30_501, "/"));
    // A node can be drained before it has endpoints.
    let (done, _) = world.gateway("edge-1").drain("a");
    assert!(done.contains("node/a drained (currently no backend of any Service)"), "{done}");
    let (_, refused) = world.gateway("edge-1").drain("b");
    assert!(refused.contains("no backend or node b"), "{refused}");
    // The proxy starts after the gateway.
    let proxy = world.enter_gateway(|| TcpListener::bind("127.0.0.1:10256")).expect("the port is free");
    world.until("the port to be closed", || {
        world.enter_gateway(|| TcpListener::bind("0.0.0.0:30501")).ok().map(drop)
    });
    assert!(world.log("edge-1").contains("which serves the health-check node ports"));
    drop(proxy);
    world.until("the port to be served again", || world.http(30_501, "/"));
}
