//! Reads and changes objects of a real API server over HTTP with all rights. It replaces the handle of the test API
//! server for [`super::Api`].
//!
//! Objects are applied by server-side apply with the manager `stories` and with force. Fields that the gateway wrote in
//! the meantime are kept, as when an operator applies a manifest again. An edit is a merge patch of the changed fields;
//! the status is patched by its subresource.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_netlab::{Namespace, wait_for};
use tidegate_source::kubernetes::Connector;
use tokio::runtime::Runtime;

/// The field manager of the tests.
const MANAGER: &str = "stories";
/// The maximum time for actions of the server itself: a new definition, the deletion of a namespace.
const SERVED: Duration = Duration::from_secs(120);

/// A client of an API server, with all rights.
#[derive(Debug)]
pub(crate) struct Admin {
    connector: Arc<Connector>,
    runtime: Arc<Runtime>,
}

/// A refused request: status code (0 if there was no answer) and message.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    pub(crate) message: String,
    /// The faults of single fields, as `field: message`.
    pub(crate) causes: Vec<String>,
}

impl Refusal {
    fn of(status: kube::core::Status) -> Self {
        let causes = status.details.map(|details| details.causes).unwrap_or_default();
        let causes = causes.into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        Self { code: status.code, message: status.message, causes }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}: {}", self.code, self.message)
    }
}

impl Admin {
    /// Creates a client with a kubeconfig. It connects from this namespace, or from the namespace of the tests.
    pub(crate) fn new(kubeconfig: &Path, namespace: Option<&Namespace>) -> Self {
        // The threads of a runtime are in the namespace of the thread that builds it, and so are the sockets of their
        // tasks.
        let build = || {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(1).thread_name("stories-api").enable_all().build().expect("a runtime")
        };
        let runtime = Arc::new(namespace.map_or_else(build, |namespace| namespace.enter(build)));
        Self { connector: Arc::new(Connector::new(Some(kubeconfig.to_owned()))), runtime }
    }

    /// The runtime of its connections.
    pub(crate) fn runtime(&self) -> Arc<Runtime> {
        self.runtime.clone()
    }

    /// Sends one request and returns the JSON of its answer.
    pub(crate) fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<Value, Refusal> {
        self.request_with(&[], method, path, body)
    }

    /// Sends one request with headers.
    pub(crate) fn request_with(
        &self,
        headers: &[(&str, &str)],
        method: &str,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<Value, Refusal> {
        let mut request = hyper::Request::builder().method(method).uri(path);
        let kind = body.map(|(kind, _)| ("content-type", kind));
        for (name, value) in headers.iter().copied().chain(kind) {
            request = request.header(name, value);
        }
        let text = body.map_or_else(Vec::new, |(_, body)| body.to_string().into_bytes());
        let request = request.body(text).expect("paths of the tests are URLs");
        let connector = self.connector.clone();
        let refused = |code: u16, message: String| Refusal { code, message, causes: Vec::new() };
        let work = async move {
            let connection = connector.connection().await.map_err(|e| refused(0, e.to_string()))?;
            let response = connection.client.request::<Value>(request);
            match tokio::time::timeout(SERVED, response).await {
                Ok(Ok(answer)) => Ok(answer),
                Ok(Err(kube::Error::Api(status))) => Err(Refusal::of(*status)),
                Ok(Err(error)) => Err(refused(0, format!("{error:?}"))),
                Err(_) => Err(refused(0, format!("no answer within {SERVED:?}"))),
            }
        };
        let running = self.runtime.spawn(work);
        self.runtime.block_on(running).expect("requests do not panic")
    }

    /// Creates or changes the objects of a YAML text, including their status. Missing namespaces are created.
    pub(crate) fn apply(&self, yaml: &str) -> Result<Vec<Value>, String> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).map_err(|error| error.to_string())?;
        let documents = documents.into_iter().filter(|document| !document.is_null());
        documents.map(|document| self.put(document).map_err(|refusal| refusal.to_string())).collect()
    }

    fn put(&self, mut object: Value) -> Result<Value, Refusal> {
        let status = object.as_object_mut().and_then(|object| object.remove("status"));
        let place = ObjectPath::of(&object);
        if !place.namespace.is_empty() {
            self.make_namespace(&place.namespace)?;
        }
        let query = format!("?fieldManager={MANAGER}&force=true");
        let apply = |path: String, object: &Value| {
            self.request("PATCH", &path, Some(("application/apply-patch+yaml", object)))
        };
        let mut stored = apply(format!("{}{query}", place.path()), &object)?;
        if let Some(status) = status {
            let with_status = json!({
                "apiVersion": object["apiVersion"], "kind": object["kind"],
                "metadata": {"name": place.name, "namespace": object["metadata"]["namespace"]}, "status": status,
            });
            stored = apply(format!("{}/status{query}", place.path()), &without_nulls(with_status))?;
        }
        if place.kind == "CustomResourceDefinition" {
            self.await_definition(&place);
        }
        Ok(stored)
    }

    /// Waits until a kind can be used, which is some time after its definition is stored.
    fn await_definition(&self, place: &ObjectPath) {
        let is_served = || {
            let definition = self.request("GET", &place.path(), None).ok()?;
            let conditions = definition["status"]["conditions"].as_array()?.clone();
            conditions.iter().find(|one| one["type"] == "Established" && one["status"] == "True")?;
            let spec = &definition["spec"];
            let text = |value: &Value| value.as_str().map(str::to_owned);
            let (group, plural) = (text(&spec["group"])?, text(&spec["names"]["plural"])?);
            let version = text(&spec["versions"][0]["name"])?;
            self.request("GET", &format!("/apis/{group}/{version}/{plural}"), None).ok()
        };
        wait_for("the definition to be served", SERVED, is_served).unwrap_or_else(|e| panic!("{e:#}"));
    }

    fn make_namespace(&self, name: &str) -> Result<(), Refusal> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        match self.request("POST", "/api/v1/namespaces", Some(("application/json", &namespace))) {
            Ok(_) => Ok(()),
            Err(refusal) if refusal.code == 409 => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }

    /// An object; `None` if it or its kind does not exist.
    pub(crate) fn get(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let place = ObjectPath::new(api_version, kind, namespace, name);
        match self.with_retries("GET", &place.path()) {
            Ok(object) => Some(object),
            Err(refusal) if refusal.code == 404 => None,
            Err(refusal) => panic!("{}: {refusal}", place.path()),
        }
    }

    /// The objects of a kind. An empty `namespace` selects all namespaces. Empty if the kind does not exist.
    pub(crate) fn list(&self, api_version: &str, kind: &str, namespace: &str) -> Vec<Value> {
        let place = ObjectPath::new(api_version, kind, namespace, "");
        let list = match self.with_retries("GET", &place.path()) {
            Ok(list) => list,
            Err(refusal) if refusal.code == 404 => return Vec::new(),
            Err(refusal) => panic!("{}: {refusal}", place.path()),
        };
        let mut items = list["items"].as_array().cloned().unwrap_or_default();
        for item in &mut items {
            (item["apiVersion"], item["kind"]) = (api_version.into(), kind.into());
        }
        items
    }

    /// Sends a read request. Retries if the connection breaks, because the tests stop servers and break connections.
    fn with_retries(&self, method: &str, path: &str) -> Result<Value, Refusal> {
        let mut last = None;
        let answered = wait_for("an answer", SERVED, || match self.request(method, path, None) {
            Err(refusal) if refusal.code == 0 || refusal.code >= 500 || refusal.code == 429 => {
                last = Some(refusal);
                std::thread::sleep(Duration::from_millis(200));
                None
            }
            answer => Some(answer),
        });
        answered.unwrap_or_else(|_| Err(last.expect("it was requested")))
    }

    /// Changes an object in any way and returns the stored result. The first entry of changed `managedFields` is the
    /// manager.
    pub(crate) fn edit(
        &self,
        at: (&str, &str, &str, &str),
        change: impl FnOnce(&mut Value),
    ) -> Result<Value, String> {
        let (api_version, kind, namespace, name) = at;
        let place = ObjectPath::new(api_version, kind, namespace, name);
        let before = self.get(api_version, kind, namespace, name).ok_or("there is no such object")?;
        let mut after = before.clone();
        change(&mut after);
        let manager = after["metadata"]["managedFields"][0]["manager"].as_str().map(str::to_owned);
        let is_managed = after["metadata"]["managedFields"] != before["metadata"]["managedFields"];
        let manager = manager.filter(|_| is_managed).unwrap_or_else(|| MANAGER.into());
        after["metadata"]["managedFields"] = before["metadata"]["managedFields"].clone();
        let mut patch = merge_patch(&before, &after).unwrap_or_else(|| json!({}));
        let status = patch.as_object_mut().and_then(|patch| patch.remove("status"));
        let mut stored = before;
        let parts = [("", Some(patch).filter(|patch| *patch != json!({}))), ("/status", status)];
        for (subresource, patch) in parts {
            let Some(mut patch) = patch else { continue };
            if !subresource.is_empty() {
                patch = json!({ "status": patch });
            }
            let path = format!("{}{subresource}?fieldManager={manager}", place.path());
            let sent = self.request("PATCH", &path, Some(("application/merge-patch+json", &patch)));
            stored = sent.map_err(|refusal| refusal.to_string())?;
        }
        Ok(stored)
    }

    /// Deletes an object; finalizers delay the deletion. Returns whether the object existed.
    pub(crate) fn delete(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> bool {
        let place = ObjectPath::new(api_version, kind, namespace, name);
        match self.request("DELETE", &place.path(), None) {
            Ok(_) => true,
            Err(refusal) if refusal.code == 404 => false,
            Err(refusal) => panic!("{}: {refusal}", place.path()),
        }
    }

    /// Creates a token of a ServiceAccount for an hour. If a Secret is given, the token is valid only while the Secret
    /// exists.
    pub(crate) fn token(&self, namespace: &str, account: &str, secret: Option<&str>) -> String {
        let mut spec = json!({"expirationSeconds": 3600});
        if let Some(secret) = secret {
            spec["boundObjectRef"] = json!({"apiVersion": "v1", "kind": "Secret", "name": secret});
        }
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let answer = self.request("POST", &path, Some(("application/json", &request)));
        let answer = answer.unwrap_or_else(|refusal| panic!("{path}: {refusal}"));
        answer["status"]["token"].as_str().expect("a token").to_owned()
    }
}

/// An object's path in the API.
pub(crate) struct ObjectPath {
    api_version: String,
    kind: String,
    namespace: String,
    name: String,
}

/// Cluster-scoped kinds that the tests use.
const OF_THE_CLUSTER: [&str; 12] = [
    "AddressPool",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "FlowSchema",
    "GatewayClass",
    "GatewayStatus",
    "Namespace",
    "Node",
    "PriorityLevelConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

impl ObjectPath {
    /// An empty name selects all objects.
    pub(crate) fn new(api_version: &str, kind: &str, namespace: &str, name: &str) -> Self {
        let namespace = if OF_THE_CLUSTER.contains(&kind) { "" } else { namespace };
        let [api_version, kind, namespace, name] = [api_version, kind, namespace, name].map(str::to_owned);
        Self { api_version, kind, namespace, name }
    }

    fn of(object: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
        let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        Self::new(&api_version, &kind, namespace, &text(&object["metadata"]["name"]))
    }

    pub(crate) fn path(&self) -> String {
        let root = if self.api_version.contains('/') { "apis" } else { "api" };
        let singular = self.kind.to_lowercase();
        let plural = match singular.strip_suffix('y') {
            Some(stem) if !stem.ends_with('a') => format!("{stem}ies"),
            None if singular.ends_with('s') => format!("{singular}es"),
            _ => format!("{singular}s"),
        };
        let namespace = match self.namespace.as_str() {
            "" => String::new(),
            namespace => format!("namespaces/{namespace}/"),
        };
        let name = if self.name.is_empty() { String::new() } else { format!("/{}", self.name) };
        format!("/{root}/{}/{namespace}{plural}{name}", self.api_version)
    }
}

fn without_nulls(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|_, value| !value.is_null());
    }
    object
}

/// The merge patch (RFC 7396) from one value to another; `None` if they are equal.
fn merge_patch(before: &Value, after: &Value) -> Option<Value> {
    if before == after {
        return None;
    }
    let (Value::Object(old), Value::Object(new)) = (before, after) else { return Some(after.clone()) };
    let mut patch = serde_json::Map::new();
    for (key, value) in new {
        let difference = old.get(key).map_or_else(|| Some(value.clone()), |was| merge_patch(was, value));
        patch.extend(difference.map(|difference| (key.clone(), difference)));
    }
    patch.extend(old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null)));
    Some(Value::Object(patch))
}

#[test]
fn an_edit_becomes_a_patch_of_what_it_changed() {
    let before = json!({"spec": {"type": "ClusterIP", "ports": [1], "class": "x"}, "status": {"a": 1}});
    let after = json!({"spec": {"type": "LoadBalancer", "ports": [1]}, "status": {"a": 1, "b": []}});
    let patch = json!({"spec": {"type": "LoadBalancer", "class": null}, "status": {"b": []}});
    assert_eq!(merge_patch(&before, &after), Some(patch));
    assert_eq!(merge_patch(&before, &before), None);
}

#[test]
fn paths_of_kinds_are_those_of_the_api() {
    let path = |version: &str, kind: &str, name: &str| ObjectPath::new(version, kind, "shop", name).path();
    assert_eq!(path("v1", "Service", "web"), "/api/v1/namespaces/shop/services/web");
    assert_eq!(path("v1", "Node", ""), "/api/v1/nodes");
    let admission = "admissionregistration.k8s.io/v1";
    assert_eq!(
        path(admission, "ValidatingAdmissionPolicy", ""),
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    );
    assert_eq!(
        path("tidegate.dev/v1alpha1", "GatewayStatus", "edge-1"),
        "/apis/tidegate.dev/v1alpha1/gatewaystatuses/edge-1"
    );
}
