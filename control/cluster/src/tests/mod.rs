//! Tests over real HTTP with the test API server: the resulting Services, events, Leases and statuses when one or two
//! gateways read and write. A gateway here is the daemon without its dataplane.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use test_apiserver::{Fault, Options, TestApiServer};
use tidegate_model::config::KubernetesConfig;
use tidegate_model::health::Verdicts;
use tidegate_model::objects::Pool;
use tidegate_policy::gateway_api::GatewayApi;
use tidegate_policy::reconcile::{Input, Memory, Outcome, Reconciler, Settings};
use tidegate_source::kubernetes::KubernetesSource;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::plan::{DrainPhase, Forwarding, Observation};
use super::{ClusterWriter, ReleaseTracker, crd};

/// The maximum wait for any event. Usually it takes 100 ms.
const PATIENCE: Duration = Duration::from_secs(30);

struct Cluster {
    server: TestApiServer,
    directory: TempDir,
}

impl Cluster {
    fn new() -> Self {
        Self::with(Options { bookmark_interval: Duration::from_secs(2), ..Options::default() })
    }

    fn with(options: Options) -> Self {
        // Gateways report their progress after bookmarks, so bookmarks are frequent.
        let server = TestApiServer::start(options).expect("a free loopback port");
        for (_, definition) in crd::manifests() {
            server.apply(&definition).expect("our definitions are valid");
        }
        // The namespace of the Lease.
        let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: tidegate-system}}";
        server.apply(namespace).expect("legal");
        let cluster = Self { server, directory: tempfile::tempdir().expect("a directory") };
        cluster.server.kubeconfig(cluster.directory.path()).expect("a file");
        cluster
    }

    fn service(&self, name: &str, more: &Value) {
        let mut service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {
                "type": "LoadBalancer", "loadBalancerClass": "tidegate.dev/gateway",
                "ports": [{"name": "http", "port": 80, "targetPort": 8080}]
            }
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            service["metadata"][key.as_str()] = value.clone();
        }
        self.server.put(service).expect("a valid Service");
    }

    /// Changes the annotation that requests an address.
    fn request_address(&self, name: &str, address: &str) {
        let edit = |service: &mut Value| {
            service["metadata"]["annotations"]["tidegate.dev/load-balancer-ips"] = json!(address);
        };
        self.server.edit("v1", "Service", "shop", name, edit).expect("a valid change");
    }

    fn status_of(&self, gateway: &str) -> Value {
        let status = self.server.get("tidegate.dev/v1alpha1", "GatewayStatus", "", gateway);
        status.unwrap_or_default()["status"].clone()
    }

    fn condition(&self, name: &str, kind: &str) -> Value {
        let conditions = self.get(name)["status"]["conditions"].clone();
        let all = conditions.as_array().cloned().unwrap_or_default();
        all.into_iter().find(|c| c["type"] == format!("tidegate.dev/{kind}")).unwrap_or_default()
    }

    fn get(&self, name: &str) -> Value {
        self.server.get("v1", "Service", "shop", name).unwrap_or_default()
    }

    fn ingress(&self, name: &str) -> Option<String> {
        self.get(name)["status"]["loadBalancer"]["ingress"][0]["ip"].as_str().map(str::to_owned)
    }

    fn events(&self, about: &str) -> BTreeSet<String> {
        let events = self.server.list("events.k8s.io/v1", "Event", "");
        let about = events.iter().filter(|e| e["regarding"]["name"] == about);
        about.filter_map(|e| e["reason"].as_str().map(str::to_owned)).collect()
    }

    fn gateway(&self, name: &str) -> Gateway {
        self.gateway_with(name, settings())
    }

    fn gateway_with(&self, name: &str, settings: Settings) -> Gateway {
        let config = KubernetesConfig {
            kubeconfig: Some(self.directory.path().join("kubeconfig")),
            state_directory: None,
            ..KubernetesConfig::default()
        };
        let source = KubernetesSource::start(&config, name);
        let (namespace, refresh) = (&config.lease_namespace, source.refresh());
        let writer =
            ClusterWriter::start(&source.connector(), name, None, namespace, source.state(), refresh);
        let (rounds, last) = watch::channel(None);
        let mut updates = source.updates();
        let mut peers = writer.peer_releases();
        let writer = Arc::new(writer);
        let offers = Arc::clone(&writer);
        let (set_stuck, mut released) = watch::channel(false);
        let task = tokio::spawn(async move {
            let (mut reconciler, mut memory) = (Reconciler::default(), Memory::default());
            let mut gateway_api = GatewayApi::default();
            let (mut generation, mut past) = (0, ReleaseTracker::default());
            loop {
                if released.wait_for(|is_stuck| !is_stuck).await.is_err() {
                    return;
                }
                let update = updates.borrow_and_update().clone();
                let peers_now = peers.borrow_and_update().clone();
                if update.revision > 0 {
                    generation += 1;
                    let objects = gateway_api.derive(&update.objects);
                    past.observe(&objects.services, &memory.allocations, update.version, &peers_now);
                    let settings = Settings {
                        authority: past.authority(&peers_now),
                        other_gateways: Arc::clone(&peers_now.addresses),
                        ..settings.clone()
                    };
                    let outcome = reconciler.reconcile(&Input {
                        settings: &settings,
                        objects: &objects,
                        verdicts: &Verdicts::default(),
                        drained: &BTreeSet::new(),
                        memory: &memory,
                        generation,
                        now: Duration::from_secs(generation),
                    });
                    memory = outcome.memory.clone();
                    let outcome = Arc::new(outcome);
                    rounds.send_replace(Some(Arc::clone(&outcome)));
                    offers.offer(Observation {
                        objects,
                        gateway_states: Arc::clone(gateway_api.states()),
                        version: update.version,
                        outcome,
                        comparisons: 0,
                        decides: peers_now.leads,
                        waits_for: past.waits_for(&peers_now),
                        own_labels: Default::default(),
                        own_addresses: settings.network.own_addresses(),
                        own_flow_sharing: None,
                        forwarding: Forwarding {
                            generation_desired: generation,
                            generation_applied: generation,
                            version_applied: update.version,
                            keeps_services: update.keeps_services,
                            unapplied: Arc::default(),
                            publish_failure: None,
                            ready: true,
                            links_lost: Vec::new(),
                            hung: Vec::new(),
                            drain: DrainPhase::Serving,
                            drain_message: String::new(),
                        },
                        source_connected: true,
                        lease_holders: Arc::default(),
                        own_findings: Vec::new(),
                    });
                }
                tokio::select! {
                    Ok(()) = updates.changed() => {}
                    Ok(()) = peers.changed() => {}
                    else => return,
                }
            }
        });
        Gateway { _source: source, writer, last, set_stuck, task: task.abort_handle() }
    }
}

/// A gateway without its dataplane.
struct Gateway {
    _source: KubernetesSource,
    writer: Arc<ClusterWriter>,
    last: watch::Receiver<Option<Arc<Outcome>>>,
    set_stuck: watch::Sender<bool>,
    task: AbortHandle,
}

impl Gateway {
    fn leads(&self) -> bool {
        self.writer.counts().read().leads
    }

    /// The VIPs that it serves.
    fn vips(&self) -> Vec<String> {
        let last = self.last.borrow();
        let services = last.iter().flat_map(|outcome| &outcome.services);
        services.flat_map(|service| &service.vips).map(|vip| vip.address.to_string()).collect()
    }

    /// Simulates stuck workers: the gateway keeps forwarding as before, whatever it reads, and reports that.
    fn set_stuck(&self, is_stuck: bool) {
        self.set_stuck.send_replace(is_stuck);
    }

    async fn shut_down(self) {
        self.writer.shut_down().await;
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn settings() -> Settings {
    settings_of("203.0.113.0/29")
}

fn settings_of(range: &str) -> Settings {
    let range: ipnet::IpNet = range.parse().expect("a network");
    let pool = Pool { external_ips: true, ..Pool::new("public", vec![range.into()]) };
    let snat: IpAddr = "192.0.2.3".parse().expect("an address");
    let mut settings = Settings { pools: vec![pool], ..Settings::default() };
    settings.claims.unclassed = false;
    settings.network.snat_addresses = vec![snat];
    settings
}

mod releases;
mod terms;

/// The installed permissions suffice for all writes: these tests have no others.
#[tokio::test]
async fn the_permissions_of_the_base_suffice_to_lead_and_to_write() {
    let cluster = Cluster::new();
    let base = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/kubernetes/base");
    for file in ["namespace.yaml", "rbac.yaml"] {
        let text = std::fs::read_to_string(format!("{base}/{file}")).expect("a manifest");
        cluster.server.apply(&text).expect("legal");
    }
    let token = cluster.server.service_account_token("tidegate-system", "tidegate");
    cluster.server.kubeconfig_for(cluster.directory.path(), &token).expect("a file");
    let gateway = cluster.gateway("edge-1");
    cluster.service("web", &json!({}));
    until("an address", || cluster.ingress("web").is_some()).await;
    until("its events", || has_events(&cluster.events("web"), &["IPAllocated", "EnsuredLoadBalancer"])).await;
    assert!(cluster.server.delete("v1", "Service", "shop", "web"));
    until("it is released", || cluster.get("web").is_null()).await;
    let refused = cluster.server.requests().into_iter().filter(|request| request.code == 403);
    assert_eq!(refused.map(|request| request.path).collect::<Vec<_>>(), [] as [String; 0]);
    gateway.shut_down().await;
}

/// Polls until the condition is met.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let polled = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, polled).await.unwrap_or_else(|_| panic!("did not happen in time: {what}"));
}

fn has_events(seen: &BTreeSet<String>, wanted: &[&str]) -> bool {
    wanted.iter().all(|reason| seen.contains(*reason))
}

#[tokio::test]
async fn a_service_gets_an_address_conditions_and_events() {
    let cluster = Cluster::new();
    cluster.service("web", &json!({"annotations": {"tidegate.dev/table-size": "many"}}));
    let gateway = cluster.gateway("edge-1");
    until("an address", || cluster.ingress("web").is_some()).await;
    until("its events", || {
        let wanted = ["EnsuringLoadBalancer", "IPAllocated", "EnsuredLoadBalancer", "InvalidValue"];
        has_events(&cluster.events("web"), &wanted)
    })
    .await;
    let service = cluster.get("web");
    assert_eq!(service["metadata"]["finalizers"], json!(["tidegate.dev/cleanup"]));
    assert_eq!(service["status"]["loadBalancer"]["ingress"][0]["ipMode"], "Proxy");
    assert_eq!(Some(gateway.vips()), cluster.ingress("web").map(|ip| vec![ip]));
    let condition = |kind: &str| {
        let conditions = cluster.get("web")["status"]["conditions"].clone();
        let all = conditions.as_array().cloned().unwrap_or_default();
        all.into_iter().find(|c| c["type"] == format!("tidegate.dev/{kind}")).unwrap_or_default()["status"]
            .clone()
    };
    let shown = ["Allocated", "Programmed", "Healthy", "Conflicted"].map(condition);
    assert_eq!(shown, ["True", "True", "False", "False"], "no endpoint yet");
    let lease = cluster.server.get("coordination.k8s.io/v1", "Lease", "tidegate-system", "tidegate");
    let holder = lease.unwrap_or_default()["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
    assert!(holder.starts_with("edge-1_"), "{holder}");
    until("its own status", || {
        let status =
            cluster.server.get("tidegate.dev/v1alpha1", "GatewayStatus", "", "edge-1").unwrap_or_default();
        status["status"]["leader"] == true && status["status"]["vipCount"] == 1
    })
    .await;
}

#[tokio::test]
async fn a_completed_write_is_not_repeated() {
    let cluster = Cluster::new();
    cluster.service("web", &json!({}));
    let gateway = cluster.gateway("edge-1");
    let writes = |name: &str| {
        let of = format!("/services/{name}");
        let all = cluster.server.requests().into_iter();
        all.filter(|r| r.method != "GET" && r.path.contains(&of)).map(|r| r.body).collect::<Vec<_>>()
    };
    // On a busy machine this takes several steps.
    let has_event = |name: &str| {
        let is_programmed = |body: &String| {
            let body: Value = serde_json::from_str(body).unwrap_or_default();
            let conditions = body["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|c| c["type"] == "tidegate.dev/Programmed" && c["status"] == "True")
        };
        writes(name).iter().any(is_programmed)
    };
    until("an address in use", || has_event("web")).await;
    let version = cluster.get("web")["metadata"]["resourceVersion"].clone();
    cluster.server.forget_requests();
    cluster.service("other", &json!({}));
    until("another round", || has_event("other")).await;
    assert_eq!(cluster.get("web")["metadata"]["resourceVersion"], version);
    assert_eq!(writes("web"), [] as [&str; 0]);
    drop(gateway);
}

#[tokio::test]
async fn two_gateways_maintain_one_status() {
    let cluster = Cluster::new();
    let one = cluster.gateway("edge-1");
    until("a leader", || one.leads()).await;
    let two = cluster.gateway("edge-2");
    cluster.service("web", &json!({}));
    cluster.service("db", &json!({}));
    until("two addresses on both", || one.vips().len() == 2 && two.vips() == one.vips()).await;
    assert!(one.leads() && !two.leads());
    let mut written: Vec<String> = ["web", "db"].iter().filter_map(|name| cluster.ingress(name)).collect();
    let mut served = two.vips();
    written.sort();
    served.sort();
    assert_eq!(written, served);
    let [(_, by_two), ..] = two.writer.counts().read().writes;
    assert_eq!(by_two, 0, "a follower writes nothing");
}

#[tokio::test]
async fn a_deleted_service_is_released_when_both_gateways_have_withdrawn_it() {
    let cluster = Cluster::new();
    let (one, two) = (cluster.gateway("edge-1"), cluster.gateway("edge-2"));
    cluster.service("web", &json!({}));
    until("an address on both", || one.vips().len() == 1 && two.vips() == one.vips()).await;
    until("both have reported it", || {
        ["edge-1", "edge-2"].iter().all(|name| {
            let status = cluster.server.get("tidegate.dev/v1alpha1", "GatewayStatus", "", name);
            status.unwrap_or_default()["status"]["vipCount"] == 1
        })
    })
    .await;
    assert!(cluster.server.delete("v1", "Service", "shop", "web"));
    until("it is gone", || cluster.get("web").is_null()).await;
    assert!(one.vips().is_empty() && two.vips().is_empty());
    until("the event is written", || cluster.events("web").contains("DeletedLoadBalancer")).await;
}

#[tokio::test]
async fn leader_loses_lease_and_writes_nothing_more() {
    let cluster = Cluster::new();
    let one = cluster.gateway("edge-1");
    until("a leader", || one.leads()).await;
    cluster
        .server
        .edit("coordination.k8s.io/v1", "Lease", "tidegate-system", "tidegate", |lease| {
            lease["spec"]["holderIdentity"] = json!("somebody-else");
        })
        .expect("the Lease exists");
    until("it follows", || !one.leads()).await;
    cluster.service("web", &json!({}));
    until("it has seen the Service", || {
        one.last.borrow().as_ref().is_some_and(|outcome| outcome.services.len() == 1)
    })
    .await;
    assert_eq!(cluster.get("web")["metadata"]["finalizers"], Value::Null);
    let [(_, written), ..] = one.writer.counts().read().writes;
    assert_eq!((written, one.vips()), (0, vec![]), "it assigns no address itself");
}

#[tokio::test]
async fn a_leader_that_shuts_down_hands_over_and_the_address_stays() {
    let cluster = Cluster::new();
    let one = cluster.gateway("edge-1");
    cluster.service("web", &json!({}));
    until("an address", || cluster.ingress("web").is_some()).await;
    let address = cluster.ingress("web");
    let two = cluster.gateway("edge-2");
    until("the second serves it", || !two.vips().is_empty()).await;
    one.shut_down().await;
    until("the second leads", || two.leads()).await;
    cluster.service("db", &json!({}));
    until("it assigns addresses", || cluster.ingress("db").is_some()).await;
    assert_eq!(cluster.ingress("web"), address, "the new leader adopts the status");
    let left = cluster.server.get("tidegate.dev/v1alpha1", "GatewayStatus", "", "edge-1").unwrap_or_default();
    assert_eq!((&left["status"]["stopped"], &left["status"]["vipCount"]), (&json!(true), &json!(0)));
}

#[tokio::test]
async fn class_removed_clears_the_status() {
    let cluster = Cluster::new();
    let gateway = cluster.gateway("edge-1");
    cluster.service("web", &json!({}));
    until("an address", || cluster.ingress("web").is_some()).await;
    cluster
        .server
        .edit("v1", "Service", "shop", "web", |service| {
            service["spec"]["type"] = json!("ClusterIP");
            // An API server also clears the status.
            service["status"]["loadBalancer"] = json!({});
            if let Some(spec) = service["spec"].as_object_mut() {
                let of_type = ["loadBalancerClass", "externalTrafficPolicy", "allocateLoadBalancerNodePorts"];
                of_type.iter().for_each(|field| drop(spec.remove(*field)));
            }
        })
        .expect("a valid change");
    until("it is released", || {
        let service = cluster.get("web");
        service["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty)
            && service["status"]["conditions"].as_array().is_none_or(Vec::is_empty)
    })
    .await;
    assert_eq!((cluster.ingress("web"), gateway.vips()), (None, vec![]));
}

#[tokio::test]
async fn an_api_server_without_ip_mode_gets_the_address_without_it() {
    let cluster = Cluster::with(Options {
        ip_mode: false,
        bookmark_interval: Duration::from_secs(2),
        ..Options::default()
    });
    cluster.service("web", &json!({}));
    let gateway = cluster.gateway("edge-1");
    until("an address", || cluster.ingress("web").is_some()).await;
    let ingress = cluster.get("web")["status"]["loadBalancer"]["ingress"][0].clone();
    assert!(ingress["ipMode"].is_null(), "{ingress}");
    // The writer remembers this: the next write succeeds at the first attempt.
    cluster.server.forget_requests();
    cluster.service("db", &json!({}));
    until("an address", || cluster.ingress("db").is_some()).await;
    let refused = cluster.server.requests().iter().filter(|request| request.code == 500).count();
    assert_eq!((refused, gateway.vips().len()), (0, 2));
}

#[tokio::test]
async fn writes_recover_from_refusals_and_errors_of_the_api_server() {
    let cluster = Cluster::new();
    cluster.server.faults().on_next(2, "/services/web", Fault::ServerError(503));
    cluster.server.faults().on_next(1, "/services/web", Fault::TooManyRequests(1));
    let gateway = cluster.gateway("edge-1");
    cluster.service("web", &json!({}));
    until("an address", || cluster.ingress("web").is_some()).await;
    let writes = gateway.writer.counts().read().writes;
    assert_eq!(writes[2..], [("throttled", 1), ("failure", 2)], "{writes:?}");
}

#[tokio::test]
async fn shutdown_does_not_wait_for_an_unreachable_api_server() {
    let cluster = Cluster::new();
    let gateway = cluster.gateway("edge-1");
    until("a leader", || gateway.leads()).await;
    cluster.server.faults().on("", Fault::Hang);
    cluster.service("web", &json!({}));
    let left = tokio::time::timeout(Duration::from_secs(3), gateway.shut_down()).await;
    assert!(left.is_ok(), "SIGTERM ends in under 3 s with the API server unreachable");
}

#[tokio::test]
async fn an_address_pool_object_is_a_pool_and_reports_its_usage() {
    let cluster = Cluster::new();
    cluster
        .server
        .apply(
            "{apiVersion: tidegate.dev/v1alpha1, kind: AddressPool, metadata: {name: extra}, \
             spec: {addresses: [198.51.100.0/30], autoAssign: false}}",
        )
        .expect("legal");
    let _gateway = cluster.gateway("edge-1");
    cluster.service("web", &json!({"annotations": {"tidegate.dev/address-pool": "extra"}}));
    until("an address of it", || cluster.ingress("web").is_some_and(|ip| ip.starts_with("198.51.100.")))
        .await;
    until("its counts", || {
        let pool =
            cluster.server.get("tidegate.dev/v1alpha1", "AddressPool", "", "extra").unwrap_or_default();
        let status = &pool["status"];
        (&status["total"], &status["used"], &status["available"]) == (&json!(4), &json!(1), &json!(3))
            && status["conditions"].as_array().is_some_and(|all| all.len() == 3)
            && pool["metadata"]["finalizers"] == json!(["tidegate.dev/cleanup"])
    })
    .await;
}

#[tokio::test]
async fn conditions_of_a_gateway_are_about_the_generation_of_its_object() {
    let cluster = Cluster::new();
    let _gateway = cluster.gateway("edge-1");
    let get =
        || cluster.server.get("tidegate.dev/v1alpha1", "GatewayStatus", "", "edge-1").unwrap_or_default();
    // `kubectl wait` ignores a condition whose `observedGeneration` is lower.
    let all_observe = |generation: u64| {
        let object = get();
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        object["metadata"]["generation"] == generation
            && conditions.len() == 7
            && conditions.iter().all(|condition| condition["observedGeneration"] == generation)
    };
    until("a first status", || get()["status"].is_object()).await;
    assert!(all_observe(1), "{}", get());
    let edit = |object: &mut Value| object["spec"]["gateway"] = json!("edge-one");
    cluster.server.edit("tidegate.dev/v1alpha1", "GatewayStatus", "", "edge-1", edit).expect("legal");
    until("the new generation", || all_observe(2)).await;
}

#[tokio::test]
async fn with_older_definitions_only_the_missing_fields_are_left_out() {
    let cluster = Cluster::new();
    for (_, definition) in crd::definitions() {
        let mut older = serde_json::to_value(definition).expect("JSON");
        let status = &mut older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
        let fields = status["properties"].as_object_mut().expect("it has fields");
        for newer in [
            "gateways",
            "gatewaySummary",
            "addressSummary",
            "flowSharingAddress",
            "labels",
            "notProgrammed",
            "withoutBackends",
        ] {
            fields.remove(newer);
        }
        cluster.server.put(older).expect("a valid definition");
    }
    let pool = "{apiVersion: tidegate.dev/v1alpha1, kind: AddressPool, metadata: {name: extra}, spec: {addresses: \
                [198.51.100.0/30]}}";
    cluster.server.apply(pool).expect("legal");
    let _gateway = cluster.gateway("edge-1");
    let status = || {
        let pool = cluster.server.get("tidegate.dev/v1alpha1", "AddressPool", "", "extra");
        pool.unwrap_or_default()["status"].clone()
    };
    until("the status of the pool", || status()["total"] == 4).await;
    until("the status of the gateway", || cluster.status_of("edge-1")["leader"] == true).await;
    assert!(status()["gateways"].is_null() && cluster.status_of("edge-1")["labels"].is_null());
    // Nothing else changes when the definition is upgraded.
    for (_, definition) in crd::manifests() {
        cluster.server.apply(&definition).expect("our definitions are valid");
    }
    until("the newer field", || status()["gateways"] == json!(["edge-1"])).await;
}
