//! Tests of the source as a whole with the test API server. This file contains their common setup.

mod definitions;
mod disk;
mod equality;
mod faults;
mod gateway_api;
mod slices;

use std::sync::Arc;
use std::time::Duration;

use test_apiserver::{Options, TestApiServer};
use tidegate_model::objects::{ObjectKey, Service};

use super::tuning::SaveTimes;
use super::*;

/// The maximum of every wait in a test. It only detects failures.
const PATIENCE: Duration = Duration::from_secs(30);

/// Short waits, so that faults are detected soon, but long enough for a busy machine.
pub(super) fn quick() -> Tuning {
    Tuning {
        response: Duration::from_secs(5),
        silence: Duration::from_millis(1500),
        watch_min: Duration::from_millis(50),
        backoff_first: Duration::from_millis(20),
        backoff_max: Duration::from_millis(200),
        boot_wait: Duration::from_millis(300),
        save: SaveTimes {
            delay: Duration::from_millis(10),
            interval: Duration::from_millis(20),
            confirm_interval: Duration::from_millis(50),
        },
        refit: Duration::from_millis(50),
        ..Tuning::default()
    }
}

/// A source, its API server, and a directory for its files.
pub(super) struct World {
    pub(super) server: TestApiServer,
    pub(super) config: KubernetesConfig,
    pub(super) directory: tempfile::TempDir,
}

impl World {
    pub(super) fn new() -> Self {
        Self::with(Options { bookmark_interval: Duration::from_millis(200), ..Options::default() })
    }

    pub(super) fn with(options: Options) -> Self {
        let server = TestApiServer::start(options).expect("a free port");
        let directory = tempfile::tempdir().expect("a directory");
        let kubeconfig = server.kubeconfig(directory.path()).expect("the file is writable");
        let state_directory = Some(directory.path().join("state"));
        let config =
            KubernetesConfig { kubeconfig: Some(kubeconfig), state_directory, ..KubernetesConfig::default() };
        Self { server, config, directory }
    }

    pub(super) fn start(&self) -> KubernetesSource {
        self.start_tuned(quick())
    }

    pub(super) fn start_tuned(&self, tuning: Tuning) -> KubernetesSource {
        KubernetesSource::start_with(&self.config, "edge", tuning)
    }

    /// A Service of type LoadBalancer with one endpoint, in the namespace `shop`.
    pub(super) fn apply_web(&self) {
        self.server.apply(&manifest("web", "10.0.1.1")).expect("legal");
    }
}

/// A Service in the namespace `shop` and its slice with one endpoint.
pub(super) fn manifest(name: &str, endpoint: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec:\n  type: LoadBalancer\n  loadBalancerClass: tidegate.dev/gateway\n  ports: [{{port: 80, targetPort: 8080}}]\n\
         ---\n{}",
        slice(name, endpoint)
    )
}

/// A slice with one endpoint.
pub(super) fn slice(name: &str, endpoint: &str) -> String {
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: {name}-1, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}\n\
         addressType: IPv4\nports: [{{port: 8080}}]\nendpoints: [{{addresses: [{endpoint}]}}]\n"
    )
}

pub(super) fn key(name: &str) -> ObjectKey {
    ObjectKey::new("shop", name)
}

pub(super) fn service<'a>(update: &'a SourceUpdate, name: &str) -> Option<&'a Arc<Service>> {
    update.objects.services.get(&key(name))
}

/// Addresses of all endpoints of a slice.
pub(super) fn endpoints(update: &SourceUpdate, slice: &str) -> Vec<String> {
    let slice = update.objects.endpoint_slices.get(&key(slice));
    let endpoints = slice.iter().flat_map(|s| &s.endpoints);
    endpoints.filter_map(|e| e.address).map(|ip| ip.to_string()).collect()
}

/// Waits for the first update that `done` accepts.
pub(super) async fn until(
    source: &KubernetesSource,
    what: &str,
    done: impl Fn(&SourceUpdate) -> bool,
) -> SourceUpdate {
    let mut updates = source.updates();
    let state = source.state();
    let waited = timeout(PATIENCE, updates.wait_for(|update| update.revision > 0 && done(update))).await;
    match waited {
        Ok(Ok(update)) => update.clone(),
        Ok(Err(_)) => panic!("the source ended before {what}"),
        Err(_) => panic!("never: {what}; {:?}; {:?}", state.borrow(), source.updates().borrow()),
    }
}

/// Waits for the first state that `done` accepts.
pub(super) async fn until_state(
    source: &KubernetesSource,
    what: &str,
    done: impl Fn(&SourceState) -> bool,
) -> SourceState {
    let mut states = source.state();
    let waited = timeout(PATIENCE, states.wait_for(done)).await;
    match waited {
        Ok(Ok(state)) => state.clone(),
        Ok(Err(_)) => panic!("the source ended before {what}"),
        Err(_) => panic!("never: {what}; {:?}", source.state().borrow()),
    }
}

/// Polls until `done` returns true.
pub(super) async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
