//! The kinds of the Gateway API: their definitions appear and disappear, and their objects outlive an outage.

use test_apiserver::Fault;
use tidegate_model::config::GatewayApi;
use tidegate_model::objects::EndpointIndex;

use super::*;
use crate::directory::DirectorySource;

/// One object of each kind.
const OBJECTS: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: t}
spec: {controllerName: tidegate.dev/gateway}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: g, namespace: shop, uid: g, finalizers: [tidegate.dev/cleanup]}
spec: {gatewayClassName: t, addresses: [{value: 203.0.113.5}], listeners: [{name: a, port: 53, protocol: UDP}]}
status: {addresses: [{type: IPAddress, value: 203.0.113.5}], conditions: [{type: Accepted, status: 'True'}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: l, namespace: shop}
spec: {parentRef: {name: g}, listeners: [{name: b, port: 80, protocol: TCP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: r, namespace: shop}
spec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: s, port: 80}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: UDPRoute
metadata: {name: r, namespace: shop}
spec: {parentRefs: [{name: g, sectionName: a}], rules: [{backendRefs: [{name: s, port: 53, weight: 0}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: r, namespace: shop}
spec: {from: [{group: gateway.networking.k8s.io, kind: TCPRoute, namespace: ns}], to: [{group: '', kind: Service}]}
";

const API_VERSION: &str = "gateway.networking.k8s.io/v1";

const KINDS: [&str; 6] = ["GatewayClass", "Gateway", "ListenerSet", "TCPRoute", "UDPRoute", "ReferenceGrant"];

/// Short intervals of requests for absent definitions.
fn impatient() -> Tuning {
    Tuning { absent_gateway_api: Duration::from_millis(100), ..quick() }
}

fn apply(world: &World) {
    world.server.define_gateway_api().expect("legal");
    world.server.apply(OBJECTS).expect("legal");
}

/// How many of the six kinds have an object.
fn count(objects: &Objects) -> usize {
    [
        objects.gateway_classes.len(),
        objects.gateways.len(),
        objects.listener_sets.len(),
        objects.tcp_routes.len(),
        objects.udp_routes.len(),
        objects.reference_grants.len(),
    ]
    .into_iter()
    .filter(|count| *count == 1)
    .count()
}

fn has_all(update: &SourceUpdate) -> bool {
    count(&update.objects) == 6
}

#[tokio::test]
async fn definitions_may_be_installed_and_deleted_while_the_gateway_runs() {
    let world = World::new();
    let source = world.start_tuned(impatient());
    let update = until(&source, "the first state", |_| true).await;
    assert_eq!((count(&update.objects), update.report.len()), (0, 0));
    until_state(&source, "a connection", |s| s.connected && s.last_error.is_none()).await;
    apply(&world);
    let update = until(&source, "all objects", has_all).await;
    let gateway = &update.objects.gateways[&key("g")];
    assert_eq!((gateway.status.addresses.len(), gateway.finalizers.len()), (1, 1));
    assert!(gateway.version.0 > 0);
    let release = |gateway: &mut serde_json::Value| gateway["metadata"]["finalizers"] = serde_json::json!([]);
    world.server.edit(API_VERSION, "Gateway", "shop", "g", release).expect("legal");
    // An API server deletes the objects before the definition. An object whose deletion was missed would be kept.
    for kind in KINDS {
        for object in world.server.list(API_VERSION, kind, "") {
            let text = |key| object["metadata"][key].as_str().unwrap_or_default();
            world.server.delete(API_VERSION, kind, text("namespace"), text("name"));
        }
    }
    until(&source, "no objects", |u| count(&u.objects) == 0).await;
    world.server.remove_gateway_api();
    world.server.faults().end_watches();
    until_state(&source, "a connection", |s| s.connected && s.last_error.is_none()).await;
    apply(&world);
    until(&source, "all objects again", has_all).await;
    until_state(&source, "nothing to report", |s| s.connected && s.last_error.is_none()).await;
    assert!(source.updates().borrow().report.is_empty());
}

/// The requests for objects of the Gateway API.
fn requests(world: &World) -> usize {
    let is_of_gateway_api = |request: &String| request.contains("gateway.networking.k8s.io");
    world.server.requests().iter().map(|request| format!("{request:?}")).filter(is_of_gateway_api).count()
}

#[tokio::test]
async fn absent_definitions_cost_one_request_for_each_kind() {
    let world = World::new();
    let source = world.start_tuned(Tuning { absent_gateway_api: Duration::from_secs(3600), ..quick() });
    until_state(&source, "a connection", |s| s.connected).await;
    assert_eq!(requests(&world), 6);
}

#[tokio::test]
async fn a_missing_definition_is_an_error_if_the_gateway_api_is_required() {
    let mut world = World::new();
    world.config.gateway_api = GatewayApi::Required;
    let source = world.start_tuned(impatient());
    let what = "the API server has no definition of TCPRoute, and gatewayApi.enabled is true";
    let lacks = |report: &Report| report.errors().any(|error| error.what == what);
    until(&source, "the error", |u| lacks(&u.report)).await;
    until_state(&source, "the error", |s| s.connected && s.last_error.is_some()).await;
    let config = world.config.clone();
    let (_, report) = tokio::task::spawn_blocking(move || load(&config, "edge")).await.expect("it ends");
    assert!(lacks(&report), "{report}");
    apply(&world);
    until(&source, "no error", |u| has_all(u) && u.report.is_empty()).await;
    until_state(&source, "no error", |s| s.connected && s.last_error.is_none()).await;
}

#[tokio::test]
async fn older_definitions_are_reported_once_there_is_a_class_of_ours() {
    let world = World::new();
    world.server.define_gateway_api().expect("legal");
    for plural in ["listenersets", "tcproutes", "udproutes"] {
        let name = format!("{plural}.gateway.networking.k8s.io");
        world.server.delete("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", &name);
    }
    let source = world.start_tuned(impatient());
    let class = |controller: &str| {
        let yaml = format!(
            "apiVersion: {API_VERSION}\nkind: GatewayClass\nmetadata: {{name: t}}\nspec: {{controllerName: {controller}}}\n"
        );
        world.server.apply(&yaml).expect("legal");
    };
    class("example.com/other");
    let has_class = |u: &SourceUpdate, controller: &str| {
        u.objects.gateway_classes.get("t").is_some_and(|class| class.controller == controller)
    };
    let other = until(&source, "another class", |u| has_class(u, "example.com/other")).await;
    assert!(other.report.is_empty(), "{}", other.report);
    world.server.delete(API_VERSION, "GatewayClass", "", "t");
    class("tidegate.dev/gateway");
    let ours = until(&source, "our class", |u| has_class(u, "tidegate.dev/gateway")).await;
    let what = "the definitions of the Gateway API are incomplete or older than 1.6: the API server has no version v1 of \
                ListenerSet, TCPRoute, UDPRoute";
    assert!(ours.report.iter().map(|fault| fault.what.as_str()).eq([what]), "{}", ours.report);
    until_state(&source, "the report", |s| s.connected && s.last_error.as_deref() == Some(what)).await;
    world.server.define_gateway_api().expect("legal");
    until(&source, "nothing to report", |u| u.report.is_empty()).await;
    until_state(&source, "nothing to report", |s| s.connected && s.last_error.is_none()).await;
}

#[tokio::test]
async fn nothing_is_requested_or_read_if_the_gateway_api_is_disabled() {
    let mut world = World::new();
    apply(&world);
    world.config.gateway_api = GatewayApi::Disabled;
    world.server.forget_requests();
    let source = world.start();
    until_state(&source, "a connection", |s| s.connected).await;
    let update = until(&source, "the first state", |_| true).await;
    assert_eq!(count(&update.objects), 0);
    assert_eq!(requests(&world), 0);

    let files = tempfile::tempdir().expect("a directory");
    std::fs::write(files.path().join("a.yaml"), OBJECTS).expect("ours");
    let (objects, report) = DirectorySource::load_within(files.path(), 1, GatewayApi::Disabled);
    assert_eq!((count(&objects), report.len(), report.has_errors()), (0, 6, false));
    let hint = "kind UDPRoute: gatewayApi.enabled is false; accepted: gatewayApi.enabled: auto or true";
    assert!(report.to_string().contains(hint), "{report}");
}

#[tokio::test]
async fn objects_lost_in_an_outage_are_kept_and_survive_a_restart() {
    let world = World::new();
    world.server.define_gateway_api().expect("legal");
    let backup = world.server.snapshot();
    world.server.apply(OBJECTS).expect("legal");
    let source = world.start();
    let before = until(&source, "all objects", has_all).await;
    until_state(&source, "a connection", |s| s.connected).await;
    world.server.restart_from(&backup).expect("the test server accepts it");
    // The Namespace is kept, too.
    let kept = |s: &SourceState| s.connected && s.kept.len() == 7;
    until_state(&source, "kept objects", kept).await;
    let update =
        until(&source, "the report", |u| u.report.to_string().contains("Gateway objects that")).await;
    assert!(update.keeps_services, "a kept Gateway may have addresses that were released");
    assert_eq!(update.objects.gateways, before.objects.gateways);
    assert_eq!(update.objects.udp_routes, before.objects.udp_routes);
    source.save().await;
    drop(source);
    let source = world.start();
    let update = until(&source, "the objects on disk", has_all).await;
    assert_eq!(update.objects.gateways, before.objects.gateways);
    until_state(&source, "kept objects", kept).await;
}

/// The other gateways count what was released in a version as withdrawn.
#[tokio::test]
async fn the_version_does_not_advance_while_gateways_are_not_watched() {
    let world = World::new();
    apply(&world);
    let source = world.start();
    until(&source, "all objects", has_all).await;
    world.server.faults().on("/apis/gateway.networking.k8s.io/v1/gateways", Fault::ServerError(503));
    world.server.faults().cut_watches();
    let names_gateways = |error: &String| error.contains("/gateways");
    until_state(&source, "the fault", |s| s.last_error.as_ref().is_some_and(names_gateways)).await;
    let before = until(&source, "an update", |_| true).await.version;
    world.apply_web();
    let update = until(&source, "the Service", |u| u.objects.services.len() == 1).await;
    assert_eq!(update.version, before);
    world.server.faults().clear();
    until(&source, "the version", |u| u.version > before).await;
}

#[tokio::test]
async fn gateways_that_may_not_be_read_are_unknown_if_they_are_defined() {
    let world = World::new();
    world.server.faults().on("/apis/gateway.networking.k8s.io/v1/", Fault::ServerError(403));
    let source = world.start_tuned(impatient());
    let update = until(&source, "the first state", |_| true).await;
    assert_eq!((update.gateways_unknown, update.report.len()), (false, 0), "there are none");
    drop(source);
    let world = World::new();
    world.server.faults().on("/apis/gateway.networking.k8s.io/v1/", Fault::ServerError(403));
    apply(&world);
    let source = world.start_tuned(impatient());
    let update = until(&source, "the first state", |_| true).await;
    assert!(update.gateways_unknown);
    assert!(update.report.to_string().contains("Gateway objects cannot be read"), "{}", update.report);
    world.server.faults().clear();
    until(&source, "all objects", |u| has_all(u) && !u.gateways_unknown).await;
    world.server.faults().on("/apis/gateway.networking.k8s.io/v1/", Fault::ServerError(403));
    world.server.faults().end_watches();
    let update = until(&source, "the loss", |u| !u.report.is_empty()).await;
    assert!(has_all(&update) && !update.gateways_unknown, "the last ones are known");
}

#[tokio::test]
async fn both_sources_give_equal_objects() {
    let world = World::new();
    apply(&world);
    let source = world.start();
    let update = until(&source, "all objects", has_all).await;
    // An API server adds uid, generation and the time of creation.
    let mut text = String::new();
    for kind in KINDS {
        for object in world.server.list(API_VERSION, kind, "") {
            text.push_str(&format!("---\n{object}\n"));
        }
    }
    let files = tempfile::tempdir().expect("a directory");
    std::fs::write(files.path().join("a.yaml"), text).expect("ours");
    let (objects, report) = DirectorySource::load(files.path());
    assert!(report.is_empty(), "{report}");
    assert_eq!(count(&objects), 6);
    assert_eq!(objects.gateway_classes, update.objects.gateway_classes);
    assert_eq!(objects.gateways, update.objects.gateways);
    assert_eq!(objects.listener_sets, update.objects.listener_sets);
    assert_eq!(objects.tcp_routes, update.objects.tcp_routes);
    assert_eq!(objects.udp_routes, update.objects.udp_routes);
    assert_eq!(objects.reference_grants, update.objects.reference_grants);
}

/// A headless Service, without its slice.
fn headless(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{clusterIP: None, ports: [{{port: 80, targetPort: 8080}}]}}\n"
    )
}

/// A slice with the label of headless Services.
fn headless_slice(name: &str, endpoint: &str) -> String {
    slice(name, endpoint).replace("labels: {", "labels: {service.kubernetes.io/headless: '', ")
}

/// The names of the slices.
fn slices(objects: &Objects) -> Vec<&str> {
    objects.endpoint_slices.keys().map(|key| key.name.as_str()).collect()
}

#[tokio::test]
async fn slices_of_headless_services_are_read_for_routes() {
    let world = World::new();
    world.apply_web();
    world.server.apply(&headless_slice("web", "10.0.1.9").replace("web-1", "web-2")).expect("legal");
    world.server.apply(&headless("db")).expect("legal");
    world.server.apply(&headless_slice("db", "10.0.2.1")).expect("legal");
    world.server.apply(&headless_slice("late", "10.0.3.1")).expect("legal");
    let source = world.start();
    let update = until(&source, "the first state", |_| true).await;
    assert_eq!(slices(&update.objects), ["db-1", "web-1"]);
    let index = EndpointIndex::new(&update.objects);
    let resolved = index.resolve(service(&update, "db").expect("it exists"));
    assert_eq!(resolved.ports[0].endpoints.len(), 1);
    let config = world.config.clone();
    let (once, _) = tokio::task::spawn_blocking(move || load(&config, "edge")).await.expect("it ends");
    assert_eq!(slices(&once), ["db-1", "web-1"]);

    world.server.apply(&headless("late")).expect("legal");
    let is_read = |u: &SourceUpdate| endpoints(u, "late-1") == ["10.0.3.1"];
    until(&source, "the slice of a Service that was created later", is_read).await;
    world.server.delete("v1", "Service", "shop", "late");
    until(&source, "the slice to be unused", |u| slices(&u.objects) == ["db-1", "web-1"]).await;
    source.save().await;
    drop(source);

    // Without routes, nothing uses them, not even those on disk.
    let disabled = KubernetesConfig { gateway_api: GatewayApi::Disabled, ..world.config.clone() };
    world.server.forget_requests();
    let source = KubernetesSource::start_with(&disabled, "edge", quick());
    until_state(&source, "a connection", |s| s.connected).await;
    let update = until(&source, "a state", |_| true).await;
    assert_eq!((slices(&update.objects), update.report.len()), (vec!["web-1"], 0));
    let requests = world.server.requests();
    let mut of_slices = requests.iter().filter(|request| request.path.ends_with("/endpointslices"));
    assert!(of_slices.all(|request| request.query.contains("headless")));
}

#[test]
fn slices_of_headless_services_are_read_from_a_directory_for_routes() {
    let files = tempfile::tempdir().expect("a directory");
    let text = [
        manifest("web", "10.0.1.1"),
        headless_slice("web", "10.0.1.9").replace("web-1", "web-2"),
        headless("db"),
        headless_slice("db", "10.0.2.1"),
    ];
    std::fs::write(files.path().join("objects.yaml"), text.join("---\n")).expect("a file");
    let read = |gateway_api| DirectorySource::load_within(files.path(), 512, gateway_api);
    let (objects, report) = read(GatewayApi::Auto);
    assert_eq!((slices(&objects), report.len()), (vec!["db-1", "web-1"], 0), "{report}");
    let (objects, report) = read(GatewayApi::Disabled);
    assert_eq!((slices(&objects), report.len()), (vec!["web-1"], 0), "{report}");
}
