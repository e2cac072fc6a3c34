//! Tests of the server as seen by clients other than kubectl: versions, watches, pages, apply, locking, rights, and
//! every switch that injects a fault. They use plain HTTP and a client without any automatic behavior.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use test_apiserver::{ADMIN_TOKEN, Fault, Options, TestApiServer, User};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

/// One client with one token.
struct Client<'a> {
    server: &'a TestApiServer,
    runtime: Runtime,
    token: String,
}

struct Answer {
    code: u16,
    retry_after: Option<String>,
    body: Value,
}

struct Watch<'a> {
    client: &'a Client<'a>,
    body: Incoming,
    buffer: Vec<u8>,
}

/// The end of a watch.
#[derive(Debug, PartialEq)]
enum End {
    InOrder,
    Cut { after_half_an_event: bool },
}

impl<'a> Client<'a> {
    fn new(server: &'a TestApiServer) -> Self {
        Self::with_token(server, ADMIN_TOKEN)
    }

    fn with_token(server: &'a TestApiServer, token: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Self { server, runtime, token: token.into() }
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: String,
    ) -> Result<hyper::Response<Incoming>, ()> {
        let stream = TcpStream::connect(self.server.address()).await.map_err(|_| ())?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|_| ())?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "test")
            .header("authorization", format!("Bearer {}", self.token))
            .header("user-agent", "tester/1.0")
            .header("content-type", kind)
            .body(Full::new(Bytes::from(body)))
            .expect("legal");
        sender.send_request(request).await.map_err(|_| ())
    }

    fn request(&self, method: &str, path: &str, kind: &str, body: &Value) -> Result<Answer, ()> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.runtime.block_on(async {
            let response = self.send(method, path, kind, body).await?;
            let code = response.status().as_u16();
            let header = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
            let retry_after = header.map(Into::into);
            let bytes = response.into_body().collect().await.map_err(|_| ())?.to_bytes();
            Ok(Answer { code, retry_after, body: serde_json::from_slice(&bytes).unwrap_or_default() })
        })
    }

    fn get(&self, path: &str) -> Answer {
        self.request("GET", path, "application/json", &Value::Null).expect("answered")
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        self.request("POST", path, "application/json", body).expect("answered")
    }

    fn put(&self, path: &str, body: &Value) -> Answer {
        self.request("PUT", path, "application/json", body).expect("answered")
    }

    fn apply(&self, path: &str, manager: &str, body: &Value) -> Answer {
        let path = format!("{path}{}fieldManager={manager}", if path.contains('?') { '&' } else { '?' });
        self.request("PATCH", &path, "application/apply-patch+yaml", body).expect("answered")
    }

    fn watch(&self, path: &str) -> Watch<'_> {
        let response = self
            .runtime
            .block_on(self.send("GET", path, "application/json", String::new()))
            .expect("answered");
        assert_eq!(response.status(), 200);
        Watch { client: self, body: response.into_body(), buffer: Vec::new() }
    }
}

impl Watch<'_> {
    fn next(&mut self) -> Result<Value, End> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(serde_json::from_slice(&line).expect("an event"));
            }
            let bound = Duration::from_secs(30);
            let frame =
                self.client.runtime.block_on(async { tokio::time::timeout(bound, self.body.frame()).await });
            match frame.expect("something comes within the bound") {
                Some(Ok(frame)) => self.buffer.extend(frame.into_data().expect("data")),
                Some(Err(_)) => return Err(End::Cut { after_half_an_event: !self.buffer.is_empty() }),
                None => return Err(End::InOrder),
            }
        }
    }

    /// The next event as `TYPE name`.
    fn event(&mut self) -> String {
        let event = self.next().expect("an event");
        let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
        format!("{} {name}", event["type"].as_str().unwrap_or_default()).trim_end().into()
    }
}

fn server() -> TestApiServer {
    TestApiServer::start(Options { tls: false, ..Options::default() }).expect("a free port")
}

fn service(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}})
}

const SERVICES: &str = "/api/v1/namespaces/default/services";

#[test]
fn a_token_bound_to_a_secret_is_refused_after_the_secret_is_deleted() {
    let server = server();
    let account = "{apiVersion: v1, kind: ServiceAccount, metadata: {name: gateway, namespace: shop}}\n---\n";
    let secret = "{apiVersion: v1, kind: Secret, metadata: {name: lease-of-life, namespace: shop}}";
    server.apply(&format!("{account}{secret}")).expect("legal");
    let admin = Client::new(&server);
    let token = |spec: Value| {
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let answer = admin.post("/api/v1/namespaces/shop/serviceaccounts/gateway/token", &request);
        answer.body["status"]["token"].as_str().expect("a token").to_owned()
    };
    let bound =
        token(json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Secret", "name": "lease-of-life"}}));
    let free = token(json!({}));
    let code = |token: &str| Client::with_token(&server, token).get("/api").code;
    assert_eq!((code(&bound), code(&free)), (200, 200));
    assert!(server.delete("v1", "Secret", "shop", "lease-of-life"));
    assert_eq!((code(&bound), code(&free)), (401, 200));
}

#[test]
fn a_watch_from_a_list_misses_nothing_and_repeats_nothing() {
    let server = server();
    let client = Client::new(&server);
    client.post(SERVICES, &service("a"));
    let version = client.get("/api/v1/services").body["metadata"]["resourceVersion"].clone();
    client.post(SERVICES, &service("b"));
    let mut watch =
        client.watch(&format!("/api/v1/services?watch=true&resourceVersion={}", version.as_str().unwrap()));
    assert_eq!(watch.event(), "ADDED b");
    server
        .edit("v1", "Service", "default", "a", |one| one["metadata"]["labels"] = json!({"x": "y"}))
        .unwrap();
    assert_eq!(watch.event(), "MODIFIED a");
    assert!(server.delete("v1", "Service", "default", "b"));
    assert_eq!(watch.event(), "DELETED b");
    server.faults().end_watches();
    assert_eq!(watch.next(), Err(End::InOrder));
}

#[test]
fn ending_all_watches_also_ends_a_watch_that_is_just_starting() {
    let server = server();
    let client = Client::new(&server);
    server.faults().on_next(1, "watch=true", Fault::Slow(Duration::from_millis(300)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            server.faults().on("watch=true", Fault::ServerError(403));
            server.faults().end_watches();
        });
        let request = client.send("GET", "/api/v1/services?watch=true", "application/json", String::new());
        let response = client.runtime.block_on(request).expect("answered");
        // On a very busy machine the request arrives after the end of the watches, and is refused.
        if response.status() == 200 {
            let mut watch = Watch { client: &client, body: response.into_body(), buffer: Vec::new() };
            assert_eq!(watch.next(), Err(End::InOrder));
        }
    });
}

#[test]
fn a_selector_adds_and_deletes_objects_that_start_or_stop_matching() {
    let server = server();
    let client = Client::new(&server);
    let mut watch = client.watch("/api/v1/services?watch=true&labelSelector=tier%3Dfront");
    client.post(SERVICES, &service("a"));
    let label = |value: &str| {
        server
            .edit("v1", "Service", "default", "a", |one| one["metadata"]["labels"] = json!({"tier": value}))
            .unwrap();
    };
    label("front");
    assert_eq!(watch.event(), "ADDED a");
    label("back");
    assert_eq!(watch.event(), "DELETED a");
}

#[test]
fn compacted_history_is_gone_for_watches_and_pages() {
    let server = server();
    let client = Client::new(&server);
    for name in ["a", "b", "c"] {
        client.post(SERVICES, &service(name));
    }
    let page = client.get("/api/v1/services?limit=2").body;
    assert_eq!(page["items"].as_array().unwrap().len(), 2);
    assert_eq!(page["metadata"]["remainingItemCount"], 1);
    let token = page["metadata"]["continue"].as_str().unwrap().to_string();
    client.post(SERVICES, &service("d"));
    let rest = client.get(&format!("/api/v1/services?limit=2&continue={token}")).body;
    let names: Vec<&Value> =
        rest["items"].as_array().unwrap().iter().map(|one| &one["metadata"]["name"]).collect();
    assert_eq!(names, ["c"], "pages are of one version");
    assert!(rest["metadata"]["continue"].is_null());
    let old = rest["metadata"]["resourceVersion"].as_str().unwrap().to_string();
    server.compact();
    let gone = client.get(&format!("/api/v1/services?limit=2&continue={token}"));
    assert_eq!((gone.code, gone.body["reason"].as_str()), (410, Some("Expired")));
    let mut watch = client.watch(&format!("/api/v1/services?watch=true&resourceVersion={old}"));
    let event = watch.next().unwrap();
    assert_eq!((event["type"].as_str(), &event["object"]["code"]), (Some("ERROR"), &json!(410)));
    assert_eq!(watch.next(), Err(End::InOrder));
}

#[test]
fn bookmarks_and_initial_events_are_sent_on_request() {
    let options = Options { tls: false, bookmark_interval: Duration::from_millis(20), ..Options::default() };
    let server = TestApiServer::start(options).expect("a free port");
    let client = Client::new(&server);
    client.post(SERVICES, &service("a"));
    let mut watch = client.watch(
        "/api/v1/services?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
    );
    assert_eq!(watch.event(), "ADDED a");
    let mark = watch.next().unwrap();
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    let bookmark = watch.next().unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["metadata"]["resourceVersion"], server.resource_version().to_string());
    let old = TestApiServer::start(Options { tls: false, watch_list: false, ..Options::default() }).unwrap();
    let refused = Client::new(&old).get("/api/v1/services?watch=true&sendInitialEvents=true");
    assert_eq!(refused.code, 422);
}

#[test]
fn a_future_version_gets_no_list_and_a_silent_watch() {
    let server = server();
    let client = Client::new(&server);
    let older = server.snapshot();
    for name in ["a", "b", "c"] {
        client.post(SERVICES, &service(name));
    }
    let future = server.resource_version();
    server.restart_from(&older).unwrap();
    let refused =
        client.get(&format!("/api/v1/services?resourceVersion={future}&resourceVersionMatch=NotOlderThan"));
    assert_eq!(refused.code, 504);
    assert_eq!(refused.body["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    let mut watch = client.watch(&format!("/api/v1/services?watch=true&resourceVersion={future}"));
    for name in ["d", "e", "f", "g"] {
        client.post(SERVICES, &service(name));
    }
    assert_eq!(watch.event(), "ADDED g", "what is not newer than requested is not sent");
}

#[test]
fn only_one_client_acquires_a_lease() {
    let server = server();
    let client = Client::new(&server);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "x"},
        "spec": {"holderIdentity": "one", "leaseDurationSeconds": 15}});
    let made = client.post(leases, &lease).body;
    assert_eq!(client.post(leases, &lease).body["reason"], "AlreadyExists");
    let take = |owner: &str| {
        let mut lease = made.clone();
        lease["spec"]["holderIdentity"] = owner.into();
        client.put(&format!("{leases}/x"), &lease)
    };
    assert_eq!(take("two").code, 200);
    let late = take("three");
    assert_eq!((late.code, late.body["reason"].as_str()), (409, Some("Conflict")));
    let unconditional = client.put(&format!("{leases}/x"), &lease);
    assert_eq!(unconditional.code, 422);
    assert_eq!(client.get(&format!("{leases}/x")).body["spec"]["holderIdentity"], "two");
}

#[test]
fn status_is_written_at_its_own_endpoint_only_and_by_its_owner() {
    let server = server();
    let client = Client::new(&server);
    let mut web = service("web");
    web["spec"]["type"] = "LoadBalancer".into();
    client.post(SERVICES, &web);
    let path = format!("{SERVICES}/web");
    let status = |ip: &str| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "spec": {"externalIPs": ["192.0.2.9"]},
            "status": {"loadBalancer": {"ingress": [{"ip": ip}]}}})
    };
    let plain = client.apply(&path, "gateway", &status("203.0.113.1")).body;
    assert!(plain["status"]["loadBalancer"]["ingress"].is_null(), "the main endpoint leaves status alone");
    let written = client.apply(&format!("{path}/status"), "gateway", &status("203.0.113.1")).body;
    assert_eq!(written["status"]["loadBalancer"]["ingress"][0]["ip"], "203.0.113.1");
    let again = client.apply(&format!("{path}/status"), "gateway", &status("203.0.113.1")).body;
    assert_eq!(
        again["metadata"]["resourceVersion"], written["metadata"]["resourceVersion"],
        "a write without a change is not stored"
    );
    let conflict = client.apply(&format!("{path}/status"), "other", &status("203.0.113.2"));
    assert_eq!(conflict.code, 409);
    assert_eq!(
        conflict.body["message"],
        "Apply failed with 1 conflict: conflict with \"gateway\" with subresource \"status\" using v1: \
         .status.loadBalancer.ingress"
    );
    let forced = client.apply(&format!("{path}/status?force=true"), "other", &status("203.0.113.2"));
    assert_eq!(forced.body["status"]["loadBalancer"]["ingress"][0]["ip"], "203.0.113.2");
    // If the only owner gives up a field, it is removed.
    let given_up = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}});
    let left = client.apply(&format!("{path}/status"), "other", &given_up).body;
    assert!(left["status"]["loadBalancer"]["ingress"].is_null());
    assert_eq!(left["spec"]["externalIPs"], json!(["192.0.2.9"]));
    let unknown =
        client.apply(&path, "x", &json!({"apiVersion": "v1", "kind": "Service", "spec": {"typo": 1}}));
    assert!(unknown.body["message"].as_str().unwrap().contains(".spec.typo: field not declared in schema"));
    let not_balancer = json!({"apiVersion": "v1", "kind": "Service", "spec": {"type": "ClusterIP"}});
    let changed = client.apply(&format!("{path}?force=true"), "x", &not_balancer);
    assert_eq!(changed.code, 200);
    let refused = client.apply(&format!("{path}/status"), "gateway", &status("203.0.113.1"));
    assert!(
        refused.body["message"]
            .as_str()
            .unwrap()
            .contains("may only be used when `spec.type` is \"LoadBalancer\"")
    );
}

#[test]
fn service_defaults_are_those_of_an_api_server() {
    let server = server();
    let client = Client::new(&server);
    let mut web = service("web");
    web["spec"] = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "sessionAffinity": "ClientIP",
        "ipFamilyPolicy": "PreferDualStack", "ports": [{"port": 53, "protocol": "UDP"}]});
    let spec = client.post(SERVICES, &web).body["spec"].clone();
    assert_eq!(spec["ports"], json!([{"port": 53, "protocol": "UDP", "targetPort": 53, "nodePort": 30000}]));
    assert_eq!(spec["healthCheckNodePort"], 30000, "node ports are counted by protocol");
    assert_eq!(spec["sessionAffinityConfig"], json!({"clientIP": {"timeoutSeconds": 10800}}));
    assert_eq!(spec["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(spec["clusterIPs"], json!(["10.96.0.1", "fd00:10:96::2"]));
    assert_eq!(
        (&spec["internalTrafficPolicy"], &spec["allocateLoadBalancerNodePorts"]),
        (&json!("Cluster"), &json!(true))
    );
    let unnamed = json!({"ports": [{"port": 1}, {"port": 2}]});
    let mut bad = service("bad");
    bad["spec"] = unnamed;
    let refused = client.post(SERVICES, &bad);
    assert_eq!(refused.code, 422);
    assert_eq!(refused.body["details"]["causes"][0]["field"], "spec.ports[0].name");
    server.delete("v1", "Service", "default", "web");
    assert_eq!(client.post(SERVICES, &service("next")).body["spec"]["clusterIP"], "10.96.0.1", "given back");
}

#[test]
fn requests_fail_as_configured_and_are_logged() {
    let server = server();
    let client = Client::new(&server);
    server.faults().on_next(1, "/services", Fault::TooManyRequests(7));
    let throttled = client.get("/api/v1/services");
    assert_eq!((throttled.code, throttled.retry_after.as_deref()), (429, Some("7")));
    server.faults().on_next(1, "", Fault::ServerError(503));
    assert_eq!(client.get("/api/v1/services").body["reason"], "ServiceUnavailable");
    server.faults().on_next(1, "", Fault::CutInMidObject);
    assert!(client.request("GET", "/api/v1/services", "application/json", &Value::Null).is_err());
    server.faults().on("", Fault::Unauthorized);
    assert_eq!(client.get("/api/v1/services").code, 401);
    server.faults().clear();
    assert_eq!(client.get("/api/v1/services").code, 200);
    server.refuse_connections(true).unwrap();
    assert!(client.request("GET", "/version", "application/json", &Value::Null).is_err());
    server.refuse_connections(false).unwrap();
    assert_eq!(client.get("/version").body["minor"], "33");
    let log = server.requests();
    let codes: Vec<u16> = log.iter().map(|request| request.code).collect();
    assert_eq!(codes, [429, 503, 200, 401, 200, 200]);
    assert_eq!((log[0].user.as_str(), log[0].field_manager.as_str()), ("kubernetes-admin", "tester"));
}

#[test]
fn watches_are_silenced_cut_duplicated_and_reordered() {
    let server = server();
    let client = Client::new(&server);
    let mut watch = client.watch("/api/v1/services?watch=true");
    server.faults().silence_watches(true);
    client.post(SERVICES, &service("a"));
    client.post(SERVICES, &service("b"));
    server.faults().duplicate_events(true);
    server.faults().reorder_events(true);
    server.faults().silence_watches(false);
    let events: Vec<String> = (0..4).map(|_| watch.event()).collect();
    assert_eq!(events, ["ADDED b", "ADDED b", "ADDED a", "ADDED a"]);
    server.faults().cut_watches();
    assert_eq!(watch.next(), Err(End::Cut { after_half_an_event: true }));
}

#[test]
fn restores_of_a_backup_and_an_empty_cluster_are_exact() {
    let server = server();
    let client = Client::new(&server);
    client.post(SERVICES, &service("a"));
    let older = server.snapshot();
    let uid = client.get(&format!("{SERVICES}/a")).body["metadata"]["uid"].clone();
    client.post(SERVICES, &service("b"));
    let newest = server.resource_version();
    server.restart_from(&older).unwrap();
    assert!(server.resource_version() < newest);
    assert_eq!(client.get(&format!("{SERVICES}/b")).code, 404);
    assert_eq!(client.get(&format!("{SERVICES}/a")).body["metadata"]["uid"], uid);
    let kube_system = client.get("/api/v1/namespaces/kube-system").body["metadata"]["uid"].clone();
    server.restart_empty().unwrap();
    assert!(server.resource_version() < 100);
    assert_eq!(client.get(&format!("{SERVICES}/a")).code, 404);
    assert_ne!(client.get("/api/v1/namespaces/kube-system").body["metadata"]["uid"], kube_system);
}

#[test]
fn rights_are_those_of_the_stored_roles() {
    let server = server();
    server.add_token("t", User::named("jane"));
    let client = Client::with_token(&server, "t");
    let refused = client.post(SERVICES, &service("a"));
    assert_eq!(
        refused.body["message"],
        "services is forbidden: User \"jane\" cannot create resource \"services\" in API group \"\" in the namespace \
         \"default\""
    );
    server
        .apply(
            "
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: maker, namespace: default}
rules: [{apiGroups: [''], resources: [services], verbs: [create]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: maker, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: maker}
subjects: [{kind: User, name: jane, apiGroup: rbac.authorization.k8s.io}]
",
        )
        .unwrap();
    assert_eq!(client.post(SERVICES, &service("a")).code, 201);
    assert_eq!(client.get("/api/v1/services").code, 403, "a Role does not reach the cluster scope");
    let status = client.apply(&format!("{SERVICES}/a/status"), "x", &service("a"));
    assert!(status.body["message"].as_str().unwrap().contains("cannot patch resource \"services/status\""));
}

#[test]
fn ten_thousand_services_and_their_slices_are_loaded_and_listed() {
    let server = server();
    let mut objects = Vec::new();
    for number in 0..10_000 {
        objects.push(service(&format!("s{number}")));
    }
    for number in 0..1_000 {
        let endpoints: Vec<Value> = (0..100)
            .map(|one| json!({"addresses": [format!("10.{}.{}.{one}", number / 250, number % 250)]}))
            .collect();
        objects.push(
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": format!("e{number}"), "namespace": "default"}, "endpoints": endpoints,
            "ports": [{"port": 80}]}),
        );
    }
    server.load(objects).unwrap();
    let client = Client::new(&server);
    assert_eq!(client.get("/api/v1/services").body["items"].as_array().unwrap().len(), 10_000);
    let page = client.get("/apis/discovery.k8s.io/v1/endpointslices?limit=500").body;
    assert_eq!(page["metadata"]["remainingItemCount"], 500);
    let addresses: std::collections::BTreeSet<String> =
        server.list("v1", "Service", "").iter().map(|one| one["spec"]["clusterIP"].to_string()).collect();
    assert_eq!(addresses.len(), 10_000);
}
