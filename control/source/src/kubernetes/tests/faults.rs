//! Tests of API servers that misbehave: the state that the source reports during and after the fault.

use test_apiserver::Fault;
use tidegate_model::shared_map::differences;

use super::*;

#[tokio::test]
async fn nothing_is_published_before_every_kind_was_listed() {
    let world = World::new();
    world.apply_web();
    world.server.faults().on("/apis/discovery.k8s.io/v1/endpointslices", Fault::ServerError(503));
    let source = world.start();
    let state = until_state(&source, "failures", |state| state.failures >= 3).await;
    assert!(
        !state.connected
            && state.last_error.is_some_and(|why| why.contains("endpointslices") && why.contains("503"))
    );
    assert!(world.server.requests().iter().any(|r| r.path == "/api/v1/services" && r.code == 200));
    assert_eq!(source.updates().borrow().revision, 0);
    world.server.faults().clear();
    let update = until(&source, "objects", |_| true).await;
    assert_eq!(endpoints(&update, "web-1"), ["10.0.1.1"]);
    assert!(service(&update, "web").is_some());
}

#[tokio::test]
async fn changes_arrive_and_unchanged_objects_keep_their_allocation() {
    let world = World::new();
    world.apply_web();
    world.server.apply(&manifest("api", "10.0.2.1")).expect("legal");
    let source = world.start();
    let before = until(&source, "both Services", |u| u.objects.services.len() == 2).await;
    world.server.apply(&slice("web", "10.0.1.9")).expect("legal");
    let after = until(&source, "the change", |u| endpoints(u, "web-1") == ["10.0.1.9"]).await;
    let same =
        |name| Arc::ptr_eq(service(&before, name).expect("there"), service(&after, name).expect("there"));
    assert!(same("web") && same("api"));
    let changed = differences(&before.objects.endpoint_slices, &after.objects.endpoint_slices);
    assert_eq!(changed.map(|d| d.key.clone()).collect::<Vec<_>>(), [key("web-1")]);
    world.server.delete("v1", "Service", "shop", "api");
    let gone = until(&source, "the deletion", |u| service(u, "api").is_none()).await;
    assert!(
        gone.report.is_empty(),
        "a deletion from a healthy watch takes effect immediately: {}",
        gone.report
    );
}

#[tokio::test]
async fn irrelevant_changes_of_status_and_annotations_are_no_update() {
    let world = World::new();
    world.apply_web();
    world.server.apply("{apiVersion: v1, kind: Node, metadata: {name: n1}}").expect("legal");
    let source = world.start();
    let before = until(&source, "the Node", |u| u.objects.nodes.len() == 1).await;
    let beat = |node: &mut serde_json::Value| {
        node["status"]["conditions"] = serde_json::json!([{"type": "Ready", "status": "True"}]);
    };
    world.server.edit("v1", "Node", "", "n1", beat).expect("legal");
    world.server.apply(&slice("web", "10.0.1.9")).expect("legal");
    let after = until(&source, "the change", |u| endpoints(u, "web-1") == ["10.0.1.9"]).await;
    assert!(before.objects.nodes.ptr_eq(&after.objects.nodes));
}

#[tokio::test]
async fn slices_of_other_proxies_are_ignored_and_all_services_are_seen() {
    let world = World::new();
    world.apply_web();
    let labelled = |label: &str| {
        let text = manifest("other", "10.0.3.1");
        text.replace(
            "{name: other, namespace: shop}",
            &format!("{{name: other, namespace: shop, labels: {{{label}: x}}}}"),
        )
        .replace("labels: {kubernetes", "labels: {service.kubernetes.io/headless: '', kubernetes")
    };
    world.server.apply(&labelled("service.kubernetes.io/service-proxy-name")).expect("legal");
    let source = world.start();
    let update = until(&source, "objects", |_| true).await;
    assert_eq!((update.objects.services.len(), update.objects.endpoint_slices.len()), (2, 1));
}

#[tokio::test]
async fn a_service_with_the_label_of_another_proxy_is_not_deleted() {
    let world = World::new();
    world.apply_web();
    let source = world.start();
    until(&source, "the Service", |u| service(u, "web").is_some()).await;
    let label = |object: &mut serde_json::Value| {
        object["metadata"]["labels"]["service.kubernetes.io/service-proxy-name"] = "other".into();
    };
    world.server.edit("v1", "Service", "shop", "web", label).expect("legal");
    let is_labelled = |u: &SourceUpdate| service(u, "web").is_some_and(|s| s.not_for_proxies().is_some());
    until(&source, "the label", is_labelled).await;
}

#[tokio::test]
async fn all_pages_of_a_list_are_read() {
    let world = World::new();
    let service = |n: usize| {
        serde_json::json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("s{n}"), "namespace": "default"},
            "spec": {"ports": [{"port": 80}]}
        })
    };
    world.server.load((0..1200).map(service).collect()).expect("legal");
    let source = world.start();
    let update = until(&source, "objects", |_| true).await;
    assert!(update.objects.services.len() >= 1200, "{}", update.objects.services.len());
    let pages = world
        .server
        .requests()
        .iter()
        .filter(|r| r.path == "/api/v1/services" && r.query.contains("continue="))
        .count();
    assert_eq!(pages, 2);
}

#[tokio::test]
async fn a_broken_watch_resumes_where_it_was() {
    let world = World::new();
    world.apply_web();
    let source = world.start();
    until(&source, "objects", |_| true).await;
    until_state(&source, "a connection", |s| s.connected).await;
    world.server.forget_requests();
    world.server.faults().cut_watches();
    world.server.apply(&slice("web", "10.0.1.9")).expect("legal");
    until(&source, "the change", |u| endpoints(u, "web-1") == ["10.0.1.9"]).await;
    until_state(&source, "a connection", |s| s.connected).await;
    let requests = world.server.requests();
    // A list with one object reports the current version of the kind.
    let lists = requests.iter().filter(|r| r.query.contains("limit=500")).count();
    assert_eq!(lists, 0, "no list is needed");
}

#[tokio::test]
async fn a_watch_that_ends_normally_reports_nothing() {
    let world = World::new();
    world.apply_web();
    let source = world.start_tuned(Tuning { watch_min: Duration::ZERO, ..quick() });
    until_state(&source, "a connection", |s| s.connected).await;
    world.server.faults().end_watches();
    world.server.apply(&slice("web", "10.0.1.9")).expect("legal");
    until(&source, "the change", |u| endpoints(u, "web-1") == ["10.0.1.9"]).await;
    assert_eq!(source.state().borrow().failures, 0);
}

#[tokio::test]
async fn a_kind_without_objects_resumes_its_watch_without_a_list() {
    let world = World::new();
    let source = world.start();
    until_state(&source, "a connection", |s| s.connected).await;
    world.server.forget_requests();
    world.server.restart().expect("the test server accepts it");
    eventually("the watch of Nodes to be resumed", || {
        world.server.requests().iter().any(|r| r.path == "/api/v1/nodes" && r.query.contains("watch=true"))
    })
    .await;
    let state = until_state(&source, "a connection", |s| s.connected).await;
    assert!(source.updates().borrow().objects.nodes.is_empty() && state.last_error.is_none(), "{state:?}");
    let requests = world.server.requests();
    let lists = requests.iter().filter(|r| r.query.contains("limit=500")).map(|r| &r.path);
    // The definitions of AddressPool and of the Gateway API are not installed, so only a list shows whether they exist.
    let has_definition =
        |path: &&String| !path.ends_with("/addresspools") && !path.contains("/gateway.networking");
    let lists: Vec<&String> = lists.filter(has_definition).collect();
    assert_eq!(lists, Vec::<&String>::new());
}

#[tokio::test]
async fn an_expired_version_leads_to_a_list_without_loss() {
    let world = World::new();
    world.apply_web();
    let source = world.start();
    until_state(&source, "a connection", |s| s.connected).await;
    world.server.refuse_connections(true).expect("the test server accepts it");
    until_state(&source, "the loss", |s| !s.connected).await;
    world.server.apply(&manifest("api", "10.0.2.1")).expect("legal");
    world.server.compact();
    world.server.refuse_connections(false).expect("the test server accepts it");
    let update = until(&source, "the object created meanwhile", |u| service(u, "api").is_some()).await;
    assert!(service(&update, "web").is_some());
    let state = until_state(&source, "a connection", |s| s.connected).await;
    assert_eq!((state.last_error, state.kept.len()), (None, 0));
}

#[tokio::test]
async fn a_silent_connection_is_detected() {
    let world = World::new();
    world.apply_web();
    let source = world.start();
    until_state(&source, "a connection", |s| s.connected).await;
    world.server.faults().silence_watches(true);
    world.server.apply(&slice("web", "10.0.1.9")).expect("legal");
    until(&source, "the change, by a list", |u| endpoints(u, "web-1") == ["10.0.1.9"]).await;
    assert!(source.state().borrow().failures >= 2);
}

#[tokio::test]
async fn the_source_recovers_from_429_server_errors_and_truncated_lists() {
    let world = World::new();
    world.apply_web();
    let faults = world.server.faults();
    faults.on_next(1, "/api/v1/services", Fault::TooManyRequests(1));
    faults.on_next(2, "/api/v1/nodes", Fault::ServerError(500));
    faults.on_next(1, "/apis/discovery.k8s.io/v1/endpointslices", Fault::CutInMidObject);
    faults.on_next(1, "/api/v1/namespaces", Fault::Unauthorized);
    let source = world.start();
    let update = until(&source, "objects", |_| true).await;
    assert_eq!(endpoints(&update, "web-1"), ["10.0.1.1"]);
    let state = until_state(&source, "a connection", |s| s.connected).await;
    assert!(state.failures >= 5, "{state:?}");
}

#[tokio::test]
async fn duplicate_and_reordered_events_do_not_change_the_result() {
    let world = World::new();
    world.apply_web();
    let source = world.start();
    until_state(&source, "a connection", |s| s.connected).await;
    world.server.faults().duplicate_events(true);
    world.server.faults().reorder_events(true);
    for n in 1..10 {
        world.server.apply(&slice("web", &format!("10.0.1.{n}"))).expect("legal");
    }
    until(&source, "some of it", |u| endpoints(u, "web-1") != ["10.0.1.1"]).await;
    world.server.apply(&slice("web", "10.0.1.200")).expect("legal");
    world.server.faults().clear();
    until(&source, "the last", |u| endpoints(u, "web-1") == ["10.0.1.200"]).await;
    // Events that are still in flight no longer have an effect.
    world.server.apply(&manifest("api", "10.0.2.1")).expect("legal");
    let update = until(&source, "another", |u| service(u, "api").is_some()).await;
    assert_eq!(endpoints(&update, "web-1"), ["10.0.1.200"]);
}

#[tokio::test]
async fn an_empty_api_server_removes_nothing_within_the_grace_time() {
    let world = World::new();
    world.apply_web();
    let source = world.start();
    until_state(&source, "a connection", |s| s.connected).await;
    world.server.restart_empty().expect("the test server accepts it");
    until_state(&source, "kept objects", |s| {
        let kept = |kind| s.kept.iter().any(|k| k.kind == kind);
        s.connected && kept("Service") && kept("EndpointSlice")
    })
    .await;
    let text = |u: &SourceUpdate| u.report.to_string();
    let update =
        until(&source, "the report", |u| text(u).contains("Service objects that the API server lost")).await;
    assert!(text(&update).contains("shop/web"), "{}", update.report);
    assert!(service(&update, "web").is_some());
    assert_eq!(endpoints(&update, "web-1"), ["10.0.1.1"]);
    // New objects are used in addition to the kept ones.
    world.server.apply(&manifest("api", "10.0.2.1")).expect("legal");
    let update = until(&source, "the new object", |u| service(u, "api").is_some()).await;
    assert!(service(&update, "web").is_some());
}

#[tokio::test]
async fn objects_recreated_on_an_empty_server_are_used_immediately() {
    let world = World::new();
    world.apply_web();
    world.server.apply(&manifest("api", "10.0.2.1")).expect("legal");
    let source = world.start();
    let before = until(&source, "both Services", |u| u.objects.services.len() == 2).await;
    until_state(&source, "a connection", |s| s.connected).await;
    world.server.restart_empty().expect("the test server accepts it");
    until_state(&source, "kept objects", |s| s.connected && s.kept.iter().any(|k| k.kind == "Service")).await;
    world.server.apply(&manifest("web", "10.0.1.9").replace("port: 80,", "port: 81,")).expect("legal");
    let uid = |update: &SourceUpdate, name: &str| service(update, name).map(|s| s.meta.uid.clone());
    let update = until(&source, "the new Service", |u| uid(u, "web") != uid(&before, "web")).await;
    assert_eq!(service(&update, "web").expect("there").ports[0].port.get(), 81);
    let update = until(&source, "its endpoints", |u| endpoints(u, "web-1") == ["10.0.1.9"]).await;
    assert_eq!(uid(&update, "api"), uid(&before, "api"));
    assert_eq!(endpoints(&update, "api-1"), ["10.0.2.1"]);
    let counts = |s: &SourceState| s.kept.iter().find(|k| k.kind == "Service").map(|k| k.count);
    until_state(&source, "that one less is kept", |s| counts(s) == Some(1)).await;
    // An object that is deleted there is deleted.
    world.server.delete("v1", "Service", "shop", "web");
    until(&source, "the deletion", |u| service(u, "web").is_none() && service(u, "api").is_some()).await;
}

#[tokio::test]
async fn deletions_missed_by_an_expired_watch_take_effect_immediately() {
    let world = World::new();
    world.apply_web();
    world
        .server
        .apply(&(manifest("api", "10.0.2.1") + "---\n" + &manifest("db", "10.0.3.1")))
        .expect("legal");
    let source = world.start();
    until_state(&source, "a connection", |s| s.connected).await;
    world.server.refuse_connections(true).expect("the test server accepts it");
    until_state(&source, "the loss", |s| !s.connected).await;
    world.server.delete("v1", "Service", "shop", "web");
    world.server.delete("discovery.k8s.io/v1", "EndpointSlice", "shop", "web-1");
    world.server.compact();
    world.server.refuse_connections(false).expect("the test server accepts it");
    let gone = |u: &SourceUpdate| service(u, "web").is_none() && endpoints(u, "web-1").is_empty();
    let update = until(&source, "the deletions", gone).await;
    assert!(update.report.is_empty() && update.objects.services.len() == 2, "{}", update.report);
}

#[tokio::test]
async fn a_server_without_any_endpoints_removes_none() {
    let world = World::new();
    world.apply_web();
    world.server.apply(&manifest("api", "10.0.2.1")).expect("legal");
    let source = world.start();
    until_state(&source, "a connection", |s| s.connected).await;
    world.server.refuse_connections(true).expect("the test server accepts it");
    until_state(&source, "the loss", |s| !s.connected).await;
    for name in ["web-1", "api-1"] {
        world.server.delete("discovery.k8s.io/v1", "EndpointSlice", "shop", name);
    }
    world.server.compact();
    world.server.refuse_connections(false).expect("the test server accepts it");
    let kept = |s: &SourceState| s.kept.iter().map(|k| (k.kind, k.count)).collect::<Vec<_>>();
    until_state(&source, "kept objects", |s| s.connected && kept(s) == [("EndpointSlice", 2)]).await;
    let update = source.updates().borrow().clone();
    assert_eq!(endpoints(&update, "web-1"), ["10.0.1.1"]);
    assert_eq!(endpoints(&update, "api-1"), ["10.0.2.1"]);
}

#[tokio::test]
async fn consecutive_faults_share_one_grace_time_and_remove_nothing() {
    let world = World::new();
    world.apply_web();
    world.server.apply(&manifest("api", "10.0.2.1")).expect("legal");
    let backup = world.server.snapshot();
    world.server.apply(&slice("web", "10.0.1.9")).expect("legal");
    let source = world.start();
    until_state(&source, "a connection", |s| s.connected).await;
    let kept = |s: &SourceState, kind| s.kept.iter().find(|k| k.kind == kind).map(|k| k.count);
    world.server.restart_empty().expect("the test server accepts it");
    let state =
        until_state(&source, "kept objects", |s| s.connected && kept(s, "EndpointSlice") == Some(2)).await;
    let first = state.kept.iter().find(|k| k.kind == "EndpointSlice").expect("kept").until;
    // Empty, then older, then with errors and 410, then empty again.
    world.server.restart_from(&backup).expect("the test server accepts it");
    until_state(&source, "only what is older", |s| s.connected && kept(s, "EndpointSlice") == Some(1)).await;
    assert_eq!(endpoints(&source.updates().borrow(), "web-1"), ["10.0.1.9"]);
    world.server.faults().on_next(3, "/endpointslices", Fault::ServerError(500));
    world.server.faults().cut_watches();
    world.server.compact();
    world.server.restart_empty().expect("the test server accepts it");
    let state =
        until_state(&source, "all kept", |s| s.connected && kept(s, "EndpointSlice") == Some(2)).await;
    let update = source.updates().borrow().clone();
    assert_eq!(
        (endpoints(&update, "web-1"), endpoints(&update, "api-1")),
        (vec!["10.0.1.9".to_owned()], vec!["10.0.2.1".to_owned()])
    );
    let again = state.kept.iter().find(|k| k.kind == "EndpointSlice").expect("kept").until;
    let outage = jiff::SignedDuration::from_secs(20);
    assert!(again < first + outage, "the first loss still expires at its original time: {first} {again}");
}

#[tokio::test]
async fn revoked_permissions_for_one_kind_affect_no_other() {
    let world = World::new();
    world.apply_web();
    let source = world.start();
    until_state(&source, "a connection", |s| s.connected).await;
    world.server.faults().on("/apis/discovery.k8s.io/v1/endpointslices", Fault::ServerError(403));
    world.server.faults().end_watches();
    let denied = |s: &SourceState| s.last_error.as_ref().is_some_and(|why| why.contains("403"));
    let state = until_state(&source, "the refusal", denied).await;
    assert!(state.last_error.is_some_and(|why| why.contains("endpointslices")));
    assert_eq!(endpoints(&source.updates().borrow(), "web-1"), ["10.0.1.1"]);
    // The other kinds are still followed.
    world.server.apply(&manifest("api", "10.0.2.1")).expect("legal");
    until(&source, "another Service", |u| service(u, "api").is_some()).await;
}

#[tokio::test]
async fn an_api_server_that_was_away_for_long_is_listed_again() {
    let world = World::new();
    world.apply_web();
    let source = world.start_tuned(Tuning { resume_max: Duration::ZERO, ..quick() });
    until_state(&source, "a connection", |s| s.connected).await;
    world.server.refuse_connections(true).expect("the test server accepts it");
    until_state(&source, "the loss", |s| !s.connected).await;
    world.server.forget_requests();
    world.server.refuse_connections(false).expect("the test server accepts it");
    until_state(&source, "a connection", |s| s.connected).await;
    let requests = world.server.requests();
    let is_list = |path: &str| requests.iter().any(|r| r.path == path && r.query.contains("limit="));
    assert!(is_list("/api/v1/services") && is_list("/apis/discovery.k8s.io/v1/endpointslices"));
}

#[tokio::test]
async fn deletions_during_a_long_loss_count_if_the_past_is_available() {
    for has_past in [true, false] {
        let world = World::new();
        world.apply_web();
        world.server.apply(&manifest("api", "10.0.2.1")).expect("legal");
        let source = world.start_tuned(Tuning { resume_max: Duration::ZERO, ..quick() });
        until_state(&source, "a connection", |s| s.connected).await;
        until(&source, "both Services", |u| service(u, "web").is_some() && service(u, "api").is_some()).await;
        world.server.refuse_connections(true).expect("the test server accepts it");
        until_state(&source, "the loss", |s| !s.connected).await;
        // The newest object of each kind.
        world.server.delete("v1", "Service", "shop", "api");
        world.server.delete("discovery.k8s.io/v1", "EndpointSlice", "shop", "api-1");
        if !has_past {
            world.server.compact();
        }
        world.server.refuse_connections(false).expect("the test server accepts it");
        if has_past {
            until(&source, "the deletion", |u| service(u, "api").is_none()).await;
            until_state(&source, "a connection", |s| s.connected && s.kept.is_empty()).await;
        } else {
            until_state(&source, "kept objects", |s| s.connected && !s.kept.is_empty()).await;
            assert!(service(&source.updates().borrow(), "api").is_some(), "it may be lost");
        }
    }
}

#[tokio::test]
async fn an_empty_api_server_is_trusted_after_the_grace_time() {
    let mut world = World::new();
    world.config.api_loss_grace = Duration::from_millis(400);
    world.apply_web();
    let source = world.start();
    until_state(&source, "a connection", |s| s.connected).await;
    world.server.restart_empty().expect("the test server accepts it");
    let update =
        until(&source, "the end", |u| service(u, "web").is_none() && endpoints(u, "web-1").is_empty()).await;
    until_state(&source, "nothing kept", |s| s.kept.is_empty()).await;
    let last = source.updates().borrow().clone();
    assert!(last.report.is_empty() && last.revision >= update.revision, "{}", last.report);
}

#[tokio::test]
async fn a_restored_api_server_reverts_nothing_within_the_grace_time() {
    let world = World::new();
    world.apply_web();
    let backup = world.server.snapshot();
    world.server.apply(&slice("web", "10.0.1.9")).expect("legal");
    world.server.apply(&manifest("api", "10.0.2.1")).expect("legal");
    let source = world.start();
    until_state(&source, "a connection", |s| s.connected).await;
    world.server.restart_from(&backup).expect("the test server accepts it");
    until_state(&source, "kept objects", |s| {
        let count = |kind| s.kept.iter().find(|k| k.kind == kind).map(|k| k.count);
        (count("Service"), count("EndpointSlice")) == (Some(1), Some(2))
    })
    .await;
    let update = source.updates().borrow().clone();
    assert!(service(&update, "api").is_some());
    assert_eq!(endpoints(&update, "web-1"), ["10.0.1.9"]);
}

/// Writes objects without any watch of the gateway reporting it.
fn write_more(world: &World, count: usize) {
    for n in 0..count {
        let map =
            format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: busy}}, data: {{n: \"{n}\"}}}}");
        world.server.apply(&map).expect("legal");
    }
}

#[tokio::test]
async fn a_restored_server_with_many_new_writes_reverts_nothing() {
    let all = ["a Service created", "an endpoint changed", "a Service deleted"];
    // A watch can't be resumed at a restarted API server.
    for (last, expires) in all.map(|last| (last, false)).into_iter().chain(all.map(|last| (last, true))) {
        // Without bookmarks, the source doesn't know the newest version.
        let world = World::with(Options::default());
        world.apply_web();
        world.server.apply(&manifest("api", "10.0.2.1")).expect("legal");
        let backup = world.server.snapshot();
        // The pause before the next attempt is long enough for more writes.
        let tuning = Tuning {
            explanation: Duration::from_millis(300),
            silence: Duration::from_secs(60),
            backoff_first: Duration::from_millis(500),
            ..quick()
        };
        let source = world.start_tuned(tuning);
        until_state(&source, "a connection", |s| s.connected).await;
        match last {
            "a Service created" => drop(world.server.apply(&manifest("db", "10.0.3.1")).expect("legal")),
            "an endpoint changed" => drop(world.server.apply(&slice("web", "10.0.1.9")).expect("legal")),
            _ => drop(world.server.delete("v1", "Service", "shop", "api")),
        }
        let followed = |u: &SourceUpdate| match last {
            "a Service created" => service(u, "db").is_some() && endpoints(u, "db-1") == ["10.0.3.1"],
            "an endpoint changed" => endpoints(u, "web-1") == ["10.0.1.9"],
            _ => service(u, "api").is_none(),
        };
        until(&source, "the change that is lost afterwards", followed).await;
        world.server.restart_from(&backup).expect("the test server accepts it");
        write_more(&world, 100);
        if expires {
            world.server.compact();
        }
        if last == "a Service deleted" {
            // The backup contains it. It was not reported since then, so it is new.
            until(&source, "the Service of the backup", |u| service(u, "api").is_some()).await;
            continue;
        }
        let kept = |s: &SourceState, kind| s.kept.iter().find(|k| k.kind == kind).map(|k| k.count);
        until_state(&source, last, |s| {
            s.connected
                && kept(s, "EndpointSlice") == Some(1)
                && (last == "an endpoint changed" || kept(s, "Service") == Some(1))
        })
        .await;
        assert!(followed(&source.updates().borrow()), "{last}");
    }
}

#[tokio::test]
async fn a_kept_service_keeps_its_endpoints_although_other_slices_changed() {
    for expires in [false, true] {
        let world = World::with(Options::default());
        world.apply_web();
        world.server.apply(&manifest("api", "10.0.2.1")).expect("legal");
        world.server.apply(&manifest("db", "10.0.3.1")).expect("legal");
        let backup = world.server.snapshot();
        let tuning = Tuning {
            explanation: Duration::from_millis(300),
            silence: Duration::from_secs(60),
            backoff_first: Duration::from_millis(500),
            ..quick()
        };
        let source = world.start_tuned(tuning);
        until_state(&source, "a connection", |s| s.connected).await;
        let new = manifest("new", "10.0.4.1");
        let (new, _) = new.split_once("---").expect("a Service and a slice");
        for text in [&slice("new", "10.0.4.1"), &slice("web", "10.0.1.2"), new] {
            world.server.apply(text).expect("legal");
        }
        until(&source, "the change that is lost afterwards", |u| {
            service(u, "new").is_some() && endpoints(u, "web-1") == ["10.0.1.2"]
        })
        .await;
        world.server.restart_from(&backup).expect("the test server accepts it");
        write_more(&world, 100);
        // The newest change of the slices seems to be explained.
        world.server.apply(&slice("web", "10.0.1.3")).expect("legal");
        if expires {
            world.server.compact();
        }
        let kept = |s: &SourceState, kind| s.kept.iter().find(|k| k.kind == kind).map(|k| k.count);
        until_state(&source, "kept objects", |s| {
            s.connected && (kept(s, "Service"), kept(s, "EndpointSlice")) == (Some(1), Some(1))
        })
        .await;
        let update = until(&source, "the change", |u| endpoints(u, "web-1") == ["10.0.1.3"]).await;
        assert!(service(&update, "new").is_some(), "expires: {expires}");
        assert_eq!(endpoints(&update, "new-1"), ["10.0.4.1"], "expires: {expires}");
    }
}

#[tokio::test]
async fn a_change_explained_by_the_watch_needs_no_list() {
    let world = World::with(Options::default());
    world.apply_web();
    world.server.apply(&manifest("api", "10.0.2.1")).expect("legal");
    let explanation = Duration::from_millis(300);
    let source = world.start_tuned(Tuning { explanation, silence: Duration::from_secs(60), ..quick() });
    until_state(&source, "a connection", |s| s.connected).await;
    world.server.refuse_connections(true).expect("the test server accepts it");
    until_state(&source, "the loss", |s| !s.connected).await;
    // The newest change of each kind.
    world.server.delete("v1", "Service", "shop", "api");
    world.server.apply(&slice("api", "10.0.2.9")).expect("legal");
    world.server.forget_requests();
    world.server.refuse_connections(false).expect("the test server accepts it");
    until(&source, "both changes", |u| service(u, "api").is_none() && endpoints(u, "api-1") == ["10.0.2.9"])
        .await;
    tokio::time::sleep(2 * explanation).await;
    let requests = world.server.requests();
    let lists = requests.iter().filter(|r| r.query.contains("limit=500")).map(|r| &r.path);
    assert_eq!(lists.collect::<Vec<_>>(), Vec::<&String>::new());
    assert!(source.state().borrow().kept.is_empty());
}

#[tokio::test]
async fn nothing_expires_while_the_api_server_is_away() {
    let mut world = World::new();
    world.config.api_loss_grace = Duration::from_millis(300);
    world.apply_web();
    let source = world.start();
    until_state(&source, "a connection", |s| s.connected).await;
    world.server.refuse_connections(true).expect("the test server accepts it");
    let failures = until_state(&source, "the loss", |s| !s.connected).await.failures;
    until_state(&source, "attempts for longer than the grace time", |s| {
        s.failures > failures + 10 && s.since.duration_until(Timestamp::now()).as_millis() > 600
    })
    .await;
    assert!(service(&source.updates().borrow(), "web").is_some());
}

#[tokio::test]
async fn an_expired_token_stops_nothing_and_a_new_one_is_used() {
    let world = World::new();
    world.apply_web();
    let kubeconfig = |token: &str| {
        world.server.add_token(token, test_apiserver::User::admin());
        world.server.kubeconfig_for(world.directory.path(), token).expect("it can be written");
    };
    kubeconfig("first");
    let source = world.start();
    until_state(&source, "a connection", |s| s.connected).await;
    world.server.expire_token("first");
    world.server.restart().expect("the test server accepts it");
    let state =
        until_state(&source, "a refusal", |s| s.last_error.as_ref().is_some_and(|why| why.contains("401")))
            .await;
    assert!(!state.connected);
    assert!(service(&source.updates().borrow(), "web").is_some());
    kubeconfig("second");
    until_state(&source, "a connection", |s| s.connected).await;
    world.server.apply(&slice("web", "10.0.1.9")).expect("legal");
    until(&source, "the change", |u| endpoints(u, "web-1") == ["10.0.1.9"]).await;
}

#[tokio::test]
async fn a_new_token_found_by_one_task_ends_the_pauses_of_all() {
    let world = World::new();
    world.apply_web();
    let kubeconfig = |token: &str| {
        world.server.add_token(token, test_apiserver::User::admin());
        world.server.kubeconfig_for(world.directory.path(), token).expect("it can be written");
    };
    kubeconfig("first");
    let long = Duration::from_secs(600);
    let source = world.start_tuned(Tuning { backoff_first: long, backoff_max: long, ..quick() });
    until_state(&source, "a connection", |s| s.connected).await;
    world.server.expire_token("first");
    world.server.restart().expect("the test server accepts it");
    until_state(&source, "the loss", |s| !s.connected).await;
    let (connector, state, end) = (source.connector(), source.state(), Instant::now() + PATIENCE);
    // Repeat, because a task that has not paused yet does not receive it.
    for n in 0.. {
        kubeconfig(&format!("second-{n}"));
        connector.connection().await.expect("the kubeconfig is valid");
        if state.borrow().connected {
            break;
        }
        assert!(Instant::now() < end, "{:?}", state.borrow());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_refused_until_configured() {
    let bookmark_interval = Duration::from_millis(200);
    let world = World::with(Options { tls: true, bookmark_interval, ..Options::default() });
    world.apply_web();
    let source = world.start();
    until_state(&source, "a connection", |s| s.connected).await;
    world.server.renew_certificate().expect("a key");
    let state = until_state(&source, "a refusal", |s| !s.connected && s.last_error.is_some()).await;
    assert!(state.last_error.as_ref().is_some_and(|why| why.contains("/")), "{state:?}");
    world.server.kubeconfig(world.directory.path()).expect("it can be written");
    until_state(&source, "a connection", |s| s.connected).await;
}

#[tokio::test]
async fn a_missing_kubeconfig_is_reported_and_used_once_it_exists() {
    let world = World::new();
    world.apply_web();
    let path = world.config.kubeconfig.clone().expect("it is configured");
    let text = std::fs::read(&path).expect("the file exists");
    std::fs::remove_file(&path).expect("the file exists");
    let source = world.start();
    let state = until_state(&source, "an error", |s| s.last_error.is_some()).await;
    let shown = path.display().to_string();
    assert!(state.last_error.as_ref().is_some_and(|why| why.contains(&shown)), "{state:?}");
    std::fs::write(&path, text).expect("it can be written");
    until(&source, "objects", |u| service(u, "web").is_some()).await;
}

#[tokio::test]
async fn weights_of_pods_arrive_and_other_pods_do_not() {
    let mut world = World::new();
    world.config.pod_weights = true;
    let pod = |name: &str, annotation: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, annotations: {{{annotation}}}}}, \
             spec: {{containers: [{{name: a, image: b}}]}}}}"
        )
    };
    world.server.apply(&pod("light", "tidegate.dev/weight: '2'")).expect("legal");
    world.server.apply(&pod("plain", "a: b")).expect("legal");
    let source = world.start();
    let update = until(&source, "objects", |_| true).await;
    assert_eq!(update.objects.pods.keys().collect::<Vec<_>>(), [&key("light")]);
    world.server.apply(&pod("light", "a: b")).expect("legal");
    world.server.apply(&pod("plain", "tidegate.dev/weight: '3'")).expect("legal");
    until(&source, "the other", |u| u.objects.pods.keys().eq([&key("plain")])).await;
}

#[tokio::test]
async fn pods_are_not_requested_unless_their_weights_are() {
    let world = World::new();
    world.apply_web();
    let source = world.start();
    until_state(&source, "a connection", |s| s.connected).await;
    assert!(world.server.requests().iter().all(|request| !request.path.contains("pods")));
}

const POOL_DEFINITION: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/kubernetes/crds/tidegate.dev_addresspools.yaml");

#[tokio::test]
async fn a_forbidden_optional_kind_is_reported_without_delaying_the_start() {
    for (path, kind) in [("/api/v1/pods", "Pod"), ("/apis/tidegate.dev/v1alpha1/addresspools", "AddressPool")]
    {
        let mut world = World::new();
        world.config.pod_weights = true;
        world.apply_web();
        world.server.apply(&std::fs::read_to_string(POOL_DEFINITION).expect("a definition")).expect("legal");
        world.server.faults().on(path, Fault::ServerError(403));
        let source = world.start_tuned(Tuning { absent: Duration::from_millis(100), ..quick() });
        let update = until(&source, "objects", |u| service(u, "web").is_some()).await;
        let text =
            |u: &SourceUpdate| u.report.to_string().contains(&format!("{kind} objects cannot be read"));
        assert!(text(&update), "{}", update.report);
        let state = until_state(&source, "a connection for all others", |s| s.connected).await;
        assert!(state.failures > 0);
        // It is used once the request is allowed.
        world.server.faults().clear();
        until(&source, "the right", |u| !text(u)).await;
    }
}

#[tokio::test]
async fn an_optional_kind_that_is_forbidden_later_keeps_its_objects() {
    let mut world = World::new();
    world.config.pod_weights = true;
    world.apply_web();
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: light, namespace: shop, annotations: {tidegate.dev/weight: \
               '2'}}, spec: {containers: [{name: a, image: b}]}}";
    world.server.apply(pod).expect("legal");
    let source = world.start();
    until(&source, "the Pod", |u| u.objects.pods.len() == 1).await;
    world.server.faults().on("/api/v1/pods", Fault::ServerError(403));
    world.server.faults().end_watches();
    let text = |u: &SourceUpdate| u.report.to_string().contains("Pod objects cannot be read");
    let update = until(&source, "the report", text).await;
    assert_eq!(update.objects.pods.len(), 1);
    until_state(&source, "a connection for all others", |s| s.connected).await;
}

#[test]
fn dropping_the_source_waits_for_no_api_server() {
    let world = World::new();
    world.server.faults().on("/", Fault::Hang);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let source = runtime.block_on(async { world.start_tuned(Tuning::default()) });
    runtime.block_on(eventually("a request without a response", || world.server.faults().met() > 0));
    let began = Instant::now();
    drop(source);
    drop(runtime);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[tokio::test]
async fn pools_whose_definition_is_removed_stay_and_are_reported() {
    const POOLS: &str = "/apis/tidegate.dev/v1alpha1/addresspools";
    let world = World::new();
    let tuning = Tuning { absent: Duration::from_millis(100), ..quick() };
    let pool = "apiVersion: tidegate.dev/v1alpha1\nkind: AddressPool\nmetadata: {name: public}\nspec: {addresses: \
                [203.0.113.0/28]}\n";
    world.server.apply(&std::fs::read_to_string(POOL_DEFINITION).expect("a definition")).expect("legal");
    world.server.apply(pool).expect("legal");
    world.apply_web();
    let has_pool = |u: &SourceUpdate| u.objects.address_pools.contains_key("public");
    let lost = |s: &SourceState| {
        !s.connected && s.last_error.as_ref().is_some_and(|e| e.contains("no longer has a definition"))
    };
    let source = world.start_tuned(tuning);
    until(&source, "the pool", has_pool).await;
    world.server.faults().on(POOLS, Fault::ServerError(404));
    world.server.faults().end_watches();
    until_state(&source, "the loss", lost).await;
    world.server.apply(&manifest("api", "10.0.2.1")).expect("legal");
    let update = until(&source, "the other kinds", |u| service(u, "api").is_some()).await;
    assert!(has_pool(&update));
    source.save().await;
    drop(source);
    // After a start, the pool is on disk, and the definition is still missing.
    let source = world.start_tuned(tuning);
    let update = until(&source, "objects", |u| service(u, "api").is_some()).await;
    assert!(has_pool(&update));
    until_state(&source, "the loss", lost).await;
    world.server.faults().clear();
    until_state(&source, "a connection", |s| s.connected).await;
    assert!(has_pool(&source.updates().borrow()));
}
