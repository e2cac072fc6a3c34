//! Adds objects without HTTP, for the handle of a test. Defaults, validation and versions are the same as over HTTP.
//! The given status is stored, and so are uid and creationTimestamp if they are present. Missing namespaces are
//! created, and the fields have no owners.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::admission::Unknown;
use crate::api::{Api, DEFINITIONS};
use crate::error::{ApiError, ApiResult};
use crate::event;
use crate::resource::Resource;
use crate::service::{self, InUse};
use crate::store::key;

impl Api {
    /// Creates or replaces an object, including its status.
    pub(crate) fn load(&mut self, mut object: Value) -> ApiResult<Arc<Value>> {
        let resource = self.resource_for(&object)?;
        Unknown::Strict.judge(&resource, &mut object)?;
        let object = self.placed(&resource, event::stored_as(&resource, object));
        let (namespace, name) = key(&object);
        let old = self.store.get(&resource.storage, &namespace, &name);
        self.keep(&resource, object, old.as_ref())
    }

    /// Creates many new objects at once. It does not check for unknown fields, and it collects the used cluster IPs and
    /// ports only once.
    pub(crate) fn load_many(&mut self, objects: Vec<Value>) -> ApiResult<()> {
        let mut in_use = InUse::by(self.store.list("services", ""), "", "");
        for service in objects.iter().filter(|object| object["kind"] == "Service") {
            in_use.record(service);
        }
        for object in objects {
            let resource = self.resource_for(&object)?;
            let mut object = self.placed(&resource, event::stored_as(&resource, object));
            if resource.kind == "Service" {
                let given = given_metadata(&object);
                self.new_metadata(&resource, &mut object);
                restore(&mut object, given);
                let name = object["metadata"]["name"].as_str().unwrap_or_default().to_string();
                service::complete(&mut object, None, &mut in_use)
                    .map_err(|faults| ApiError::invalid("", "Service", &name, &faults))?;
                if object["status"].is_null() {
                    object["status"] = json!({"loadBalancer": {}});
                }
                self.store.put(&resource.storage, object);
            } else {
                self.keep(&resource, object, None)?;
            }
        }
        Ok(())
    }

    /// Changes a stored object in any way, including its status and metadata.
    pub(crate) fn edit(
        &mut self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) -> ApiResult<Arc<Value>> {
        let old = self
            .store
            .get(&resource.storage, namespace, name)
            .ok_or_else(|| ApiError::not_found(&resource.group, &resource.plural, name))?;
        let mut object = Value::clone(&old);
        change(&mut object);
        self.keep(resource, object, Some(&old))
    }

    pub(crate) fn load_namespace(&mut self, name: &str) {
        if self.store.get("namespaces", "", name).is_none() {
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            let resource = self.resource_for(&object).expect("a built-in kind");
            // A name that is not a valid label is ignored here; the objects in that namespace are then refused.
            let _ = self.keep(&resource, object, None);
        }
    }

    fn resource_for(&self, object: &Value) -> ApiResult<Resource> {
        let text = |name: &str| object[name].as_str().unwrap_or_default();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        self.resource_of(api_version, kind).cloned().ok_or_else(|| {
            ApiError::bad_request(format!("no matches for kind {kind:?} in version {api_version:?}"))
        })
    }

    fn placed(&mut self, resource: &Resource, mut object: Value) -> Value {
        if resource.namespaced {
            if object["metadata"]["namespace"].is_null() {
                object["metadata"]["namespace"] = "default".into();
            }
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_string();
            self.load_namespace(&namespace);
        }
        object
    }

    fn keep(
        &mut self,
        resource: &Resource,
        mut object: Value,
        old: Option<&Arc<Value>>,
    ) -> ApiResult<Arc<Value>> {
        if let Some(old) = old {
            for name in ["uid", "creationTimestamp", "generation"] {
                if !old["metadata"][name].is_null() {
                    object["metadata"][name] = old["metadata"][name].clone();
                }
            }
            if object["spec"] != old["spec"]
                && let Some(generation) = old["metadata"]["generation"].as_u64()
            {
                object["metadata"]["generation"] = (generation + 1).into();
            }
        }
        let given = given_metadata(&object);
        self.complete(resource, &mut object, old)?;
        restore(&mut object, given);
        let stored = self.store.put(&resource.storage, object);
        if &*resource.storage == DEFINITIONS {
            self.register_definitions();
        }
        let (namespace, name) = key(&stored);
        if stored["metadata"]["deletionTimestamp"].is_string() && crate::write::finalizers(&stored).is_empty()
        {
            self.take_out(resource, &namespace, &name);
        }
        Ok(stored)
    }
}

/// Metadata that a test may set, for example to decide which object is older.
const GIVEN: [&str; 2] = ["uid", "creationTimestamp"];

fn given_metadata(object: &Value) -> [Value; 2] {
    GIVEN.map(|name| object["metadata"][name].clone())
}

fn restore(object: &mut Value, given: [Value; 2]) {
    for (name, value) in GIVEN.into_iter().zip(given) {
        if !value.is_null() {
            object["metadata"][name] = value;
        }
    }
}
