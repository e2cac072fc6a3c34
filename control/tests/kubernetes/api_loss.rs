//! The API server fails in every possible way, and forwarding continues.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use test_apiserver::{Fault, Logged};

use crate::api::Needs;
use crate::needs;
use crate::world::{SEEN, Setting, World, service, slice, text};

fn shop(setting: &Setting) -> World {
    let mut world = World::new();
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    world.start_with("edge-1", setting);
    let gateway = world.gateway("edge-1");
    world.until("a backend", || (gateway.backends("web") == ["10.244.0.1:8080 active"]).then_some(()));
    world
}

#[test]
fn watch_breaks_and_relists() {
    needs!(Needs::Faults, Needs::Requests);
    let world = shop(&Setting::default());
    let gateway = world.gateway("edge-1");
    let vips = gateway.vips("web");
    // The watches break in the middle of an object, and the events that they missed are discarded, so the gateway has
    // to list again.
    world.api.faults().on("watch=", Fault::CutInMidObject);
    world.api.faults().cut_watches();
    world.apply(&slice("web", &["10.244.0.1", "10.244.0.2"]));
    world.api.compact();
    world.api.forget_requests();
    world.api.faults().clear();
    world.until("the endpoint that the watch missed", || (gateway.backends("web").len() == 2).then_some(()));
    assert_eq!(gateway.vips("web"), vips);
    let listed = world.api.requests().iter().any(|request| {
        request.path.ends_with("/endpointslices") && !request.query.contains("watch=") && request.code == 200
    });
    assert!(listed, "after 410 the kind is listed again");
    world.apply(&slice("web", &["10.244.0.2"]));
    world.until("changes to be followed again", || {
        gateway.backends("web").contains(&"10.244.0.2:8080 active".to_string()).then_some(())
    });
}

/// The cluster has no Nodes, Pods with weights or AddressPools.
#[test]
fn kinds_without_objects_are_watched_again_without_a_fault() {
    needs!(Needs::Faults, Needs::Requests);
    let world = shop(&Setting::default());
    let gateway = world.gateway("edge-1");
    world.until("every kind to be watched", || (gateway.source()["connected"] == true).then_some(()));
    world.api.forget_requests();
    world.api.faults().end_watches();
    world.until("Nodes to be watched again", || {
        let is_watch = |request: &Logged| request.path == "/api/v1/nodes" && request.query.contains("watch=");
        world.api.requests().iter().any(is_watch).then_some(())
    });
    world.apply(&slice("web", &["10.244.0.2"]));
    world.until("a change", || {
        gateway.backends("web").contains(&"10.244.0.2:8080 active".to_string()).then_some(())
    });
    let log = world.log("edge-1");
    assert!(!log.contains("is unavailable"), "{log}");
}

#[test]
fn token_expires() {
    let world = shop(&Setting::default());
    let gateway = world.gateway("edge-1");
    world.api.expire_token();
    world.api.end_watches();
    world.until("the loss to be reported", || (gateway.source()["connected"] == false).then_some(()));
    assert_eq!(gateway.backends("web"), ["10.244.0.1:8080 active"]);
    world.until("the reason", || text(&gateway.source()["lastError"]).contains("401").then_some(()));
    world.apply(&slice("web", &["10.244.0.2"]));
    world.renew_token("edge-1");
    world.until("the new token to be used", || {
        gateway.backends("web").contains(&"10.244.0.2:8080 active".to_string()).then_some(())
    });
    world.until("every kind to be watched again", || (gateway.source()["connected"] == true).then_some(()));
    let events = gateway.query("events").expect("events");
    let events = events["items"].as_array().expect("a list").clone();
    let lost: Vec<&Value> = events.iter().filter(|event| event["reason"] == "SourceLost").collect();
    let logged = world.log("edge-1").lines().filter(|line| line.contains("event=\"SourceLost\"")).count();
    assert_eq!((lost.len(), logged), (1, 1), "{events:?}");
    // A connection that ends may be noticed before the token is refused.
    assert!(!text(&lost[0]["fields"]["error"]).is_empty(), "{lost:?}");
    assert_eq!(events.iter().filter(|event| event["reason"] == "SourceConnected").count(), 2, "{events:?}");
}

#[test]
fn comes_back_empty() {
    needs!(Needs::LostObjects);
    let world = shop(&Setting::default());
    let gateway = world.gateway("edge-1");
    let vips = gateway.vips("web");
    world.api.restart_empty();
    world.install_again();
    world.until("what is kept to be reported", || {
        gateway.source()["kept"].as_array().is_some_and(|kept| !kept.is_empty()).then_some(())
    });
    world.until("every kind to be watched", || (gateway.source()["connected"] == true).then_some(()));
    assert_eq!(gateway.vips("web"), vips);
    assert_eq!(gateway.backends("web"), ["10.244.0.1:8080 active"]);
    // New objects in the cluster are served immediately, beside the retained ones.
    world.apply(&(service("api") + &slice("api", &["10.244.0.7"])));
    world.until("the new Service", || (gateway.backends("api") == ["10.244.0.7:8080 active"]).then_some(()));
    assert_eq!(gateway.vips("web"), vips);
    assert_ne!(gateway.vips("api"), vips, "a retained address is not assigned to another Service");
}

/// The cluster is created again from its manifests, object by object. Each object has a new uid.
#[test]
fn comes_back_empty_and_recreated_services_get_their_old_addresses() {
    needs!(Needs::LostObjects);
    let mut world = World::new();
    let names = ["web", "api", "db"];
    let manifest = |name: &str| service(name) + &slice(name, &["10.244.0.1"]);
    names.iter().for_each(|name| world.apply(&manifest(name)));
    world.start("edge-1");
    let gateway = world.gateway("edge-1");
    let status = |name: &str| {
        let service = world.api.get("v1", "Service", "shop", name).unwrap_or_default();
        text(&service["status"]["loadBalancer"]["ingress"][0]["ip"])
    };
    let had: Vec<String> = names
        .iter()
        .map(|name| world.until("an address", || Some(status(name)).filter(|address| !address.is_empty())))
        .collect();
    let is_served = || {
        for (name, address) in names.iter().zip(&had) {
            assert_eq!(gateway.vips(name), [address.as_str()], "{name} within the grace time");
            assert_eq!(gateway.backends(name), ["10.244.0.1:8080 active"], "{name} within the grace time");
        }
    };
    let kept = || gateway.source()["kept"].to_string();
    world.until("all to be served", || {
        names.iter().all(|name| !gateway.backends(name).is_empty()).then_some(())
    });
    world.api.restart_empty();
    world.install_again();
    world.until("what is kept to be reported", || {
        is_served();
        (kept().contains("3 Service objects") && kept().contains("3 EndpointSlice objects")).then_some(())
    });
    // Another Service requests a retained address before its owner is back: the last one, which the others could not
    // get by chance.
    let thief = service("thief").replace(
        "name: thief,",
        &format!("name: thief, annotations: {{tidegate.dev/load-balancer-ips: {}}},", had[2]),
    );
    world.apply(&thief);
    for (at, name) in names.iter().enumerate() {
        world.apply(&manifest(name));
        world.until("the status to be written again", || {
            is_served();
            (status(name) == had[at]).then_some(())
        });
        let left = names.len() - 1 - at;
        world.until("one fewer to be kept", || {
            is_served();
            let is_reported = |kind: &str| kept().contains(&format!("{left} {kind} objects"));
            (left == 0 || is_reported("Service") && is_reported("EndpointSlice")).then_some(())
        });
    }
    world.until("nothing to be kept", || {
        is_served();
        (!kept().contains("Service objects") && !kept().contains("EndpointSlice objects")).then_some(())
    });
    assert_eq!(status("thief"), "", "a Service keeps its address");
}

#[test]
fn changes_before_sigterm_survive_a_boot_without_api_server() {
    let mut world = shop(&Setting::default());
    world.until("the objects to be on disk", || world.has_state("edge-1").then_some(()));
    // The endpoint is added before the next write to the disk.
    world.apply(&slice("web", &["10.244.0.1", "10.244.0.8"]));
    let gateway = world.gateway("edge-1");
    world.until("the change", || (gateway.backends("web").len() == 2).then_some(()));
    world.end("edge-1", Signal::TERM, SEEN).expect("it ends");
    world.api.refuse_connections(true);
    world.start_again("edge-1");
    let gateway = world.gateway("edge-1");
    world.until("the change, from the disk", || (gateway.backends("web").len() == 2).then_some(()));
    assert_eq!(gateway.vips("web").len(), 1);
}

#[test]
fn comes_back_empty_and_is_believed_after_the_grace() {
    needs!(Needs::LostObjects);
    let setting = Setting { source: "    apiLossGrace: 1s".into(), ..Setting::default() };
    let world = shop(&setting);
    let gateway = world.gateway("edge-1");
    world.api.restart_empty();
    world.install_again();
    world.until("the VIP to go", || gateway.vips("web").is_empty().then_some(()));
    // The cluster is created again from its manifests.
    world.apply(&(service("web") + &slice("web", &["10.244.0.7"])));
    world.until("the new endpoint", || {
        gateway.backends("web").contains(&"10.244.0.7:8080 active".to_string()).then_some(())
    });
}

#[test]
fn comes_back_older() {
    needs!(Needs::LostObjects);
    let world = shop(&Setting::default());
    let gateway = world.gateway("edge-1");
    let older = world.api.snapshot();
    world.apply(
        &(service("new") + &slice("new", &["10.244.1.1"]) + &slice("web", &["10.244.0.1", "10.244.0.2"])),
    );
    world.until("the new Service", || (gateway.backends("new") == ["10.244.1.1:8080 active"]).then_some(()));
    world.until("the second endpoint", || (gateway.backends("web").len() == 2).then_some(()));
    // Real clusters change all the time, so a backup is many versions old.
    for number in 0..1_000 {
        world.apply(&format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: busy}}, data: {{n: \"{number}\"}}}}"
        ));
    }
    world.api.restart_from(&older);
    world.until("what is kept to be reported", || {
        gateway.source()["kept"].as_array().is_some_and(|kept| !kept.is_empty()).then_some(())
    });
    assert_eq!(gateway.vips("new").len(), 1);
    assert_eq!(gateway.backends("new"), ["10.244.1.1:8080 active"]);
    assert!(gateway.backends("web").contains(&"10.244.0.1:8080 active".to_string()));
    // Changes of the older state are followed.
    world.apply(&(service("more") + &slice("more", &["10.244.2.1"])));
    world.until("a Service created after the loss", || (gateway.vips("more").len() == 1).then_some(()));
}

/// The server soon writes more than it lost, and is started twice within two minutes: to take the copy, and to restore
/// it.
#[test]
fn comes_back_a_little_older_and_a_service_stays_with_its_endpoints() {
    needs!(Needs::LostObjects);
    let world = shop(&Setting::default());
    let gateway = world.gateway("edge-1");
    world.apply(
        &(service("api") + &slice("api", &["10.244.2.1"]) + &service("db") + &slice("db", &["10.244.3.1"])),
    );
    world.until("the Services", || (gateway.backends("db") == ["10.244.3.1:8080 active"]).then_some(()));
    let older = world.api.snapshot();
    world.apply(&(service("new") + &slice("new", &["10.244.1.1"])));
    world.until("the new Service", || (gateway.backends("new") == ["10.244.1.1:8080 active"]).then_some(()));
    let vips = gateway.vips("new");
    world.api.restart_from(&older);
    for number in 0..100 {
        world.apply(&format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: busy}}, data: {{n: \"{number}\"}}}}"
        ));
    }
    world.api.lose_history();
    let kept = || gateway.source()["kept"].to_string();
    world.until("both to be kept", || {
        let kept = kept();
        // The copy is older than the status of the others.
        (kept.contains(" Service objects") && kept.contains("1 EndpointSlice objects")).then_some(())
    });
    world.until("every kind to be watched", || (gateway.source()["connected"] == true).then_some(()));
    assert_eq!(gateway.backends("new"), ["10.244.1.1:8080 active"]);
    assert_eq!(gateway.vips("new"), vips);
    assert_eq!(gateway.backends("web"), ["10.244.0.1:8080 active"]);
}

#[test]
fn api_server_gone_at_boot() {
    let mut world = shop(&Setting::default());
    let vips = world.gateway("edge-1").vips("web");
    world.until("the objects to be on disk", || world.has_state("edge-1").then_some(()));
    world.end("edge-1", Signal::TERM, SEEN).expect("it ends");
    world.api.refuse_connections(true);
    world.start_again("edge-1");
    let gateway = world.gateway("edge-1");
    world.until("the last snapshot from the disk", || {
        (gateway.backends("web") == ["10.244.0.1:8080 active"]).then_some(())
    });
    assert_eq!(gateway.vips("web"), vips);
    assert_eq!(gateway.source()["fromDisk"], true);
    assert_eq!(gateway.source()["connected"], false);
    world.apply(&slice("web", &["10.244.0.1", "10.244.0.5"]));
    world.api.refuse_connections(false);
    world.until("the API server to be followed again", || (gateway.backends("web").len() == 2).then_some(()));
    world.until("the disk state to be obsolete", || (gateway.source()["fromDisk"] == false).then_some(()));
}

#[test]
fn sigterm_with_api_server_unreachable() {
    // The limit is 3 s if nothing is draining. The rest is for a busy machine. Hanging requests take longer.
    const PROMISED: Duration = Duration::from_secs(9);
    let mut world = shop(&Setting::default());
    world.api.hang(true);
    world.api.end_watches();
    world.end("edge-1", Signal::TERM, PROMISED).expect("it ends in time when requests hang");

    world.api.hang(false);
    world.start_again("edge-1");
    world.api.refuse_connections(true);
    let gateway = world.gateway("edge-1");
    world.until("the loss to be reported", || (gateway.source()["connected"] == false).then_some(()));
    world.end("edge-1", Signal::TERM, PROMISED).expect("it ends in time when connections are refused");
}

#[test]
fn duplicate_and_reordered_events_end_in_the_last_state() {
    needs!(Needs::Faults);
    let world = shop(&Setting::default());
    let gateway = world.gateway("edge-1");
    world.api.faults().duplicate_events(true);
    world.api.faults().reorder_events(true);
    world.apply(&slice("web", &["10.244.0.1", "10.244.0.2"]));
    world.apply(&slice("web", &["10.244.0.3"]));
    world.until("the last of the duplicate and reordered events", || {
        gateway.backends("web").contains(&"10.244.0.3:8080 active".to_string()).then_some(())
    });
}

#[test]
fn the_gateway_recovers_from_throttling_and_errors() {
    needs!(Needs::Faults);
    let world = shop(&Setting::default());
    let gateway = world.gateway("edge-1");
    world.api.faults().on_next(4, "/services", Fault::TooManyRequests(1));
    world.api.faults().on_next(4, "/endpointslices", Fault::ServerError(503));
    world.api.faults().end_watches();
    world.apply(&slice("web", &["10.244.0.2"]));
    world.until("the change after the errors", || {
        gateway.backends("web").contains(&"10.244.0.2:8080 active".to_string()).then_some(())
    });
    assert_eq!(gateway.vips("web").len(), 1);
}

#[test]
fn an_answer_about_one_kind_is_not_logged_as_a_lost_server() {
    needs!(Needs::Faults);
    let world = shop(&Setting::default());
    let gateway = world.gateway("edge-1");
    let is_connected = || (gateway.source()["connected"] == true).then_some(());
    world.until("every kind to be watched", is_connected);
    for (path, fault, code) in [
        ("/api/v1/nodes", Fault::ServerError(404), "404"),
        ("/api/v1/namespaces?", Fault::TooManyRequests(1), "429"),
    ] {
        world.api.faults().on(path, fault);
        world.api.faults().end_watches();
        // The number may also be part of the server's port.
        let is_named =
            |line: &str| line.contains("cannot provide the objects of one kind") && line.contains(code);
        world.until("the answer in the log", || world.log("edge-1").lines().any(is_named).then_some(()));
        assert!(!world.log("edge-1").contains("is unavailable"), "{}", world.log("edge-1"));
        world.api.faults().clear();
        world.until("every kind to be watched again", is_connected);
    }
}
