//! Writes to objects of the Gateway API.
//!
//! Their definitions are installed by others, so objects are JSON here. Finalizers and statuses are applied as those of
//! AddressPools are: the API server keeps the owner of each field for the object and for its status separately, so the
//! two applies don't remove each other's fields. `status.parents` of a route is one field that several controllers
//! write; it is read and replaced with a patch that the API server refuses if the route has changed in between.

use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use tidegate_model::objects::gateway_api::{
    API_VERSION, CONTROLLER, GROUP, GatewayAddress, ListenerStatus, RouteKind, RouteParentStatus,
};
use tidegate_model::objects::{Condition, ObjectKey};
use tidegate_policy::pools::FIELD_MANAGER;

use super::crd;
use super::plan::WrittenStatus;
use super::request::{RequestError, applied_finalizer, apply_status, within};

/// How often a patch of a route is repeated if the route changes at the same time.
const ATTEMPTS: usize = 3;

/// The resource of a kind of the Gateway API.
pub(super) fn resource(kind: &str) -> ApiResource {
    let suffix = if kind.ends_with('s') { "es" } else { "s" };
    ApiResource {
        group: GROUP.to_owned(),
        version: "v1".to_owned(),
        api_version: API_VERSION.to_owned(),
        kind: kind.to_owned(),
        plural: format!("{}{suffix}", kind.to_lowercase()),
    }
}

fn api(client: Client, kind: &str, object: &ObjectKey) -> Api<DynamicObject> {
    let resource = resource(kind);
    match object.namespace.as_str() {
        "" => Api::all_with(client, &resource),
        namespace => Api::namespaced_with(client, namespace, &resource),
    }
}

/// Adds our finalizer to a Gateway, or removes it.
pub(super) async fn write_finalizer(
    client: Client,
    gateway: &ObjectKey,
    uid: &str,
    present: bool,
) -> Result<(), RequestError> {
    let patch = applied_finalizer(API_VERSION, "Gateway", &gateway.name, uid, present);
    let apply = PatchParams::apply(FIELD_MANAGER).force();
    within(api(client, "Gateway", gateway).patch(&gateway.name, &apply, &Patch::Apply(patch))).await?;
    Ok(())
}

/// Writes a status.
pub(super) async fn write_status(
    client: Client,
    object: &ObjectKey,
    uid: &str,
    status: &WrittenStatus,
) -> Result<(), RequestError> {
    let kind = status.kind();
    let api = api(client, kind, object);
    let status = match status {
        WrittenStatus::Route(_, ours) => return write_parents(&api, object, uid, ours).await,
        WrittenStatus::GatewayClass(status) => json!({
            "conditions": conditions(&status.conditions),
            "supportedFeatures":
                status.supported_features.iter().map(|name| json!({"name": name})).collect::<Vec<_>>(),
        }),
        WrittenStatus::Gateway(None) | WrittenStatus::ListenerSet(None) => json!({}),
        WrittenStatus::Gateway(Some(status)) => {
            let mut value = json!({
                "conditions": conditions(&status.conditions),
                "listeners": listeners(&status.listeners),
            });
            if !status.addresses.is_empty() {
                value["addresses"] = status.addresses.iter().map(address).collect();
            }
            if let Some(count) = status.attached_listener_sets {
                value["attachedListenerSets"] = count.into();
            }
            value
        }
        WrittenStatus::ListenerSet(Some(status)) => json!({
            "conditions": conditions(&status.conditions),
            "listeners": listeners(&status.listeners),
        }),
    };
    let metadata = json!({"name": object.name, "uid": uid});
    let applied = json!({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "status": status});
    let (_, left_out) = apply_status(&api, &object.name, applied).await?;
    if left_out.is_empty() {
        return Ok(());
    }
    let accepted = "the definitions of Gateway API 1.6 or later";
    Err(RequestError::OlderDefinition { kind, fields: left_out.join(", "), accepted })
}

/// Replaces our parents in the status of a route. Those of other controllers stay as they are.
async fn write_parents(
    api: &Api<DynamicObject>,
    route: &ObjectKey,
    uid: &str,
    ours: &[RouteParentStatus],
) -> Result<(), RequestError> {
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    for _ in 0..ATTEMPTS {
        let stored = within(api.get(&route.name)).await?;
        // An update with the other object will follow.
        if stored.metadata.uid.as_deref() != Some(uid) {
            return Ok(());
        }
        let mut parents = others(&stored.data);
        parents.extend(ours.iter().map(parent));
        let version = stored.metadata.resource_version;
        let patch =
            json!({"metadata": {"uid": uid, "resourceVersion": version}, "status": {"parents": parents}});
        match within(api.patch_status(&route.name, &params, &Patch::Merge(patch))).await {
            Ok(_) => return Ok(()),
            Err(error) if error.code() == Some(409) => {}
            Err(error) => return Err(error),
        }
    }
    Err(RequestError::Contested(route.to_string()))
}

/// The parents in the status of a route that other controllers wrote.
pub(super) fn others(route: &Value) -> Vec<Value> {
    let parents = route["status"]["parents"].as_array().into_iter().flatten();
    parents.filter(|parent| parent["controllerName"] != CONTROLLER).cloned().collect()
}

fn parent(status: &RouteParentStatus) -> Value {
    let parent = &status.parent;
    let mut reference = json!({"group": parent.group, "kind": parent.kind, "name": parent.name});
    if let Some(namespace) = &parent.namespace {
        reference["namespace"] = namespace.as_str().into();
    }
    if let Some(name) = &parent.section_name {
        reference["sectionName"] = name.as_str().into();
    }
    if let Some(port) = parent.port {
        reference["port"] = port.get().into();
    }
    json!({
        "parentRef": reference,
        "controllerName": status.controller,
        "conditions": conditions(&status.conditions),
    })
}

fn conditions(conditions: &[Condition]) -> Vec<crd::Condition> {
    conditions.iter().map(crd::Condition::from).collect()
}

fn address(address: &GatewayAddress) -> Value {
    json!({"type": address.kind, "value": address.value})
}

fn listeners(listeners: &[ListenerStatus]) -> Vec<Value> {
    let kind = |kind: &RouteKind| json!({"group": kind.group, "kind": kind.kind});
    let listener = |listener: &ListenerStatus| {
        json!({
            "name": listener.name,
            "supportedKinds": listener.supported_kinds.iter().map(kind).collect::<Vec<_>>(),
            "attachedRoutes": listener.attached_routes,
            "conditions": conditions(&listener.conditions),
        })
    };
    listeners.iter().map(listener).collect()
}

#[cfg(test)]
mod tests {
    use test_apiserver::{Options, TestApiServer};
    use tidegate_model::objects::gateway_api::{GatewayStatus, ParentRef};
    use tidegate_model::objects::{FINALIZER, Protocol};
    use tidegate_source::kubernetes::Connector;

    use super::*;
    use crate::plan::Write;
    use crate::request::with_client;
    use crate::write_request::send;

    struct World {
        server: TestApiServer,
        connector: Connector,
        _directory: tempfile::TempDir,
    }

    impl World {
        fn new() -> Self {
            let server = TestApiServer::start(Options::default()).expect("a free loopback port");
            server.define_gateway_api().expect("valid definitions");
            let directory = tempfile::tempdir().expect("a directory");
            let connector = Connector::new(Some(server.kubeconfig(directory.path()).expect("a file")));
            Self { server, connector, _directory: directory }
        }

        /// Stores an object of namespace `shop`, and returns its uid.
        fn put(&self, kind: &str, name: &str, mut object: Value) -> String {
            object["apiVersion"] = API_VERSION.into();
            object["kind"] = kind.into();
            object["metadata"]["name"] = name.into();
            object["metadata"]["namespace"] = "shop".into();
            let stored = self.server.put(object).expect("a valid object");
            stored[0]["metadata"]["uid"].as_str().expect("a server sets it").to_owned()
        }

        fn get(&self, kind: &str, name: &str) -> Value {
            self.server.get(API_VERSION, kind, "shop", name).expect("it exists")
        }

        async fn send(&self, write: Write) {
            with_client(&self.connector, |client| send(client, write)).await.expect("a valid write");
        }
    }

    fn accepted() -> Condition {
        Condition {
            kind: "Accepted".into(),
            status: "True".into(),
            reason: "Accepted".into(),
            message: String::new(),
            observed_generation: 1,
            last_transition: Some(jiff::Timestamp::UNIX_EPOCH),
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn finalizer_and_status_of_a_gateway_are_written_independently() {
        let world = World::new();
        let theirs =
            json!({"metadata": {"finalizers": ["example.com/finalizer"]}, "spec": {"gatewayClassName": "t"}});
        let uid = world.put("Gateway", "edge", theirs);
        let finalizer = |present| Write::Finalizer {
            service: ObjectKey::of_gateway("shop", "edge"),
            uid: uid.clone(),
            present,
        };
        world.send(finalizer(true)).await;
        let finalizers = world.get("Gateway", "edge")["metadata"]["finalizers"].clone();
        let all: Vec<&str> = finalizers.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        assert!(all.contains(&"example.com/finalizer") && all.contains(&FINALIZER), "{all:?}");
        let address = GatewayAddress { kind: "IPAddress".into(), value: "203.0.113.1".into() };
        let status = GatewayStatus {
            addresses: vec![address],
            conditions: vec![accepted()],
            listeners: Vec::new(),
            attached_listener_sets: Some(0),
        };
        let written = |status| Write::GatewayApiStatus {
            object: ObjectKey::new("shop", "edge"),
            uid: uid.clone(),
            status: WrittenStatus::Gateway(status),
        };
        world.send(written(Some(status))).await;
        world.send(finalizer(true)).await;
        let edge = world.get("Gateway", "edge");
        assert_eq!(edge["status"]["addresses"], json!([{"type": "IPAddress", "value": "203.0.113.1"}]));
        assert_eq!(edge["status"]["conditions"][0]["type"], "Accepted");
        assert_eq!(edge["spec"], json!({"gatewayClassName": "t"}));
        world.send(written(None)).await;
        let edge = world.get("Gateway", "edge");
        assert!(edge["status"]["addresses"].is_null() && edge["status"]["conditions"].is_null(), "{edge}");
        assert_eq!(edge["metadata"]["finalizers"], finalizers);
        world.send(finalizer(false)).await;
        assert_eq!(world.get("Gateway", "edge")["metadata"]["finalizers"], json!(["example.com/finalizer"]));
        world.send(finalizer(true)).await;
        assert_eq!(world.get("Gateway", "edge")["metadata"]["finalizers"], finalizers);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn parents_of_other_controllers_are_written_back_as_they_are() {
        let world = World::new();
        // A field that a later version of the definition may have.
        let theirs =
            json!({"controllerName": "example.com/other", "parentRef": {"name": "theirs"}, "later": 1});
        let ours_before = json!({"controllerName": CONTROLLER, "parentRef": {"name": "old"}});
        let uid = world.put("TCPRoute", "web", json!({"status": {"parents": [ours_before, theirs]}}));
        let parent = ParentRef {
            group: GROUP.into(),
            kind: "Gateway".into(),
            name: "edge".into(),
            section_name: Some("tcp".into()),
            ..ParentRef::default()
        };
        let ours = RouteParentStatus { parent, controller: CONTROLLER.into(), conditions: vec![accepted()] };
        let written = |ours| Write::GatewayApiStatus {
            object: ObjectKey::new("shop", "web"),
            uid: uid.clone(),
            status: WrittenStatus::Route(Protocol::Tcp, ours),
        };
        world.send(written(vec![ours])).await;
        let parents = world.get("TCPRoute", "web")["status"]["parents"].clone();
        assert_eq!((&parents[0], parents.as_array().map(Vec::len)), (&theirs, Some(2)));
        let reference = json!({"group": GROUP, "kind": "Gateway", "name": "edge", "sectionName": "tcp"});
        assert_eq!(parents[1]["parentRef"], reference);
        world.send(written(Vec::new())).await;
        assert_eq!(world.get("TCPRoute", "web")["status"]["parents"], json!([theirs]));
    }
}
