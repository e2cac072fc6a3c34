//! Lists and watches of a real API server: pages, bookmarks, compacted history, request limits, and watches of a
//! deleted account.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::wait_for;

use crate::api::{Admin, Needs, ObjectPath};
use crate::needs;
use crate::world::{World, deploy, service, slice, text};

const FLOW_CONTROL: &str = "flowcontrol.apiserver.k8s.io/v1";

fn shop() -> World {
    let mut world = World::new();
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    world.start("edge-1");
    let gateway = world.gateway("edge-1");
    world.until("a backend", || (gateway.backends("web").len() == 1).then_some(()));
    world.until("every kind to be watched", || (gateway.source()["connected"] == true).then_some(()));
    world
}

/// Waits until the gateway follows a change.
fn follows(world: &World, address: &str) {
    world.apply(&slice("web", &[address]));
    let gateway = world.gateway("edge-1");
    let row = format!("{address}:8080 active");
    world.until("the change to be followed", || gateway.backends("web").contains(&row).then_some(()));
}

fn post(admin: &Admin, object: &Value, namespace: &str) -> Value {
    let place = ObjectPath::new(&text(&object["apiVersion"]), &text(&object["kind"]), namespace, "");
    let made = admin.request("POST", &place.path(), Some(("application/json", object)));
    made.unwrap_or_else(|refusal| panic!("{}: {refusal}", place.path()))
}

#[test]
fn objects_are_listed_in_pages_and_none_is_missing() {
    needs!(Needs::RealServer, Needs::Requests);
    let mut world = World::new();
    world.apply("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}");
    for n in 0..620 {
        let spec = json!({"clusterIP": "None", "ports": [{"port": 80}]});
        let name = format!("s{n:03}");
        post(
            world.api.admin(),
            &json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}),
            "shop",
        );
    }
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    world.start("edge-1");
    let gateway = world.gateway("edge-1");
    world.until("the last Service of the last page", || (gateway.backends("web").len() == 1).then_some(()));
    let requests = world.api.requests();
    let lists = requests.iter().filter(|one| one.path == "/api/v1/services" && one.user.contains("tidegate"));
    let pages: Vec<&str> =
        lists.map(|one| one.query.as_str()).filter(|query| query.contains("limit=500")).collect();
    assert!(pages.len() >= 2 && pages[1].contains("continue="), "{pages:?}");
}

#[test]
fn bookmarks_advance_a_kind_in_which_nothing_changes() {
    needs!(Needs::RealServer, Needs::Requests);
    let world = shop();
    let watches = world.api.requests().into_iter().filter(|one| one.query.contains("watch=true"));
    assert!(
        watches
            .filter(|one| one.user.contains("tidegate"))
            .all(|one| one.query.contains("allowWatchBookmarks=true"))
    );
    // The version of an object that gateways don't read. Only bookmarks advance Services to it.
    let other = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}});
    let other = post(world.api.admin(), &other, "shop");
    let version = |text: &Value| text.as_str().and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
    let wanted = version(&other["metadata"]["resourceVersion"]);
    world.until("the applied version of Services to pass it", || {
        let gateway = world.api.get("tidegate.dev/v1alpha1", "GatewayStatus", "", "edge-1")?;
        (version(&gateway["status"]["appliedResourceVersion"]) >= wanted).then_some(())
    });
}

#[test]
fn a_gateway_lists_again_after_the_history_was_compacted() {
    needs!(Needs::DiscardedHistory, Needs::Requests);
    let world = shop();
    let vips = world.gateway("edge-1").vips("web");
    world.api.refuse_connections(true);
    // The watch misses the new Service and the removal of the old endpoint.
    world.apply(&(service("new") + &slice("new", &["10.244.0.9"]) + &slice("web", &["10.244.0.2"])));
    world.api.forget_requests();
    world.api.restart_without_history();
    let gateway = world.gateway("edge-1");
    world.until("what was missed", || {
        let is_there = |row: &str| gateway.backends("web").contains(&row.to_owned());
        (is_there("10.244.0.2:8080 active") && gateway.backends("new") == ["10.244.0.9:8080 active"])
            .then_some(())
    });
    assert_eq!(gateway.vips("web"), vips);
    world.until("every kind to be watched", || (gateway.source()["connected"] == true).then_some(()));
    let requests = world.api.requests();
    let listed = |kind: &str| {
        requests
            .iter()
            .any(|one| one.path.ends_with(kind) && one.query.contains("limit=500") && one.code == 200)
    };
    assert!(listed("/services") && listed("/endpointslices"), "{requests:#?}");
    follows(&world, "10.244.0.3");
}

#[test]
fn a_gateway_that_the_server_limits_keeps_forwarding_and_recovers() {
    needs!(Needs::RealServer, Needs::Requests);
    let world = shop();
    let gateway = world.gateway("edge-1");
    let vips = gateway.vips("web");
    // A priority level without seats admits one request at a time and refuses the others with 429.
    let level = json!({
        "apiVersion": FLOW_CONTROL, "kind": "PriorityLevelConfiguration", "metadata": {"name": "tidegate-none"},
        "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 0, "lendablePercent": 0,
            "borrowingLimitPercent": 0, "limitResponse": {"type": "Reject"}}},
    });
    let subject =
        json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "tidegate-system", "name": "*"}});
    let all = json!(["*"]);
    let schema = json!({
        "apiVersion": FLOW_CONTROL, "kind": "FlowSchema", "metadata": {"name": "tidegate-none"},
        "spec": {
            "priorityLevelConfiguration": {"name": "tidegate-none"}, "matchingPrecedence": 2,
            "rules": [{
                "subjects": [subject],
                "resourceRules": [{"verbs": all, "apiGroups": all, "resources": all, "namespaces": all, "clusterScope": true}],
                "nonResourceRules": [{"verbs": all, "nonResourceURLs": all}],
            }],
        },
    });
    post(world.api.admin(), &level, "");
    post(world.api.admin(), &schema, "");
    world.api.forget_requests();
    let limited = || {
        let requests = world.api.requests().into_iter();
        requests.filter(|one| one.user.contains("tidegate") && one.code == 429).count()
    };
    // After a restart, the gateway lists or watches all kinds at once.
    world.until("requests to be refused", || {
        world.api.restart();
        wait_for("a refusal", Duration::from_secs(10), || (limited() > 0).then_some(())).ok()
    });
    assert_eq!((gateway.vips("web"), gateway.backends("web").len()), (vips.clone(), 1));
    world.until("every kind to be watched", || (gateway.source()["connected"] == true).then_some(()));
    follows(&world, "10.244.0.2");
    let many = limited();
    assert!(many < 500, "no storm of requests: {many}");
    for kind in ["FlowSchema", "PriorityLevelConfiguration"] {
        assert!(world.api.delete(FLOW_CONTROL, kind, "", "tidegate-none"));
    }
    follows(&world, "10.244.0.3");
    assert_eq!(gateway.vips("web"), vips);
}

/// `deploy/README.md` states what a thief can still read, and for how long.
#[test]
fn deleting_an_account_ends_its_requests_and_not_its_watches() {
    needs!(Needs::RealServer, Needs::NoNodes);
    let world = World::new();
    world.apply(
        &std::fs::read_to_string(deploy().join("kubernetes/off-cluster/gateways.yaml")).expect("readable"),
    );
    world.apply("{apiVersion: v1, kind: ServiceAccount, metadata: {name: tidegate-edge-1, namespace: tidegate-system}}");
    let token = world.api.admin().token("tidegate-system", "tidegate-edge-1", None);
    let url = |rest: &str| format!("https://{}/api/v1/services{rest}", world.api.address());
    let header = format!("Authorization: Bearer {token}");
    let start = |name: &str, rest: &str, more: &[&str]| {
        let url = url(rest);
        let words = [&["-sS", "-k", "-H", header.as_str()], more, &[url.as_str()]].concat();
        LabProcess::start(world.namespace(), world.directory(), name, "curl", &words).expect("curl runs")
    };
    let watch = start("watch", "?watch=true&timeoutSeconds=86400", &["-N"]);
    world.apply(&service("before"));
    world.until("the watch to run", || watch.log().contains("\"before\"").then_some(()));
    assert!(world.api.delete("v1", "ServiceAccount", "tidegate-system", "tidegate-edge-1"));
    let mut count = 0;
    world.until("requests to be refused", || {
        count += 1;
        let mut once = start(&format!("list-{count}"), "?limit=1", &[]);
        once.wait(Duration::from_secs(20)).expect("it ends");
        once.log().contains("Unauthorized").then_some(())
    });
    world.apply(&service("after"));
    world.until("the watch to continue", || watch.log().contains("\"after\"").then_some(()));
    // The README's advice: end the connection, and the thief cannot reconnect.
    world.api.restart();
    let mut watch = watch;
    watch.wait(Duration::from_secs(60)).expect("its connection ended");
}
