//! All changes of objects: create, update, the patches, delete, deletecollection.
//!
//! The steps of a write are in the order of a real server: decode and find unknown fields, separate the status from the
//! rest, set defaults and validate, check versions, record field owners, drop a write that changes nothing, store. A
//! deleted object with finalizers stays until the last finalizer is removed.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::admission::{self, Unknown};
use crate::api::{Api, DEFINITIONS, ok};
use crate::apply::{self, Writer, note_update};
use crate::error::{ApiError, ApiResult};
use crate::event;
use crate::form::Form;
use crate::patch;
use crate::request::{Answer, Request, Target};
use crate::resource::Resource;
use crate::selector::Selector;
use crate::shape::Shape;

impl Api {
    pub(crate) fn create(
        &mut self,
        request: &Request,
        resource: &Resource,
        target: &Target,
    ) -> ApiResult<Answer> {
        let object = event::stored_as(resource, checked_body(request, resource, target)?);
        let unknown = Unknown::of(request)?;
        let version = &object["metadata"]["resourceVersion"];
        if version.as_str().is_some_and(|version| !version.is_empty()) {
            return Err(ApiError::bad_request("resourceVersion should not be set on objects to be created"));
        }
        let (stored, warnings) = self.insert(request, resource, target, object, &Value::Null, unknown)?;
        Ok(answer(request, resource, &stored, 201, warnings))
    }

    pub(crate) fn update(
        &mut self,
        request: &Request,
        resource: &Resource,
        target: &Target,
    ) -> ApiResult<Answer> {
        let object = event::stored_as(resource, checked_body(request, resource, target)?);
        let old = self.read(resource, target)?;
        let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        if version.is_empty() && admission::needs_version(resource) {
            let faults = [(
                "metadata.resourceVersion".into(),
                "Invalid value: 0x0: must be specified for an update".into(),
            )];
            return Err(ApiError::invalid(&resource.group, &resource.kind, &target.name, &faults));
        }
        let unknown = Unknown::of(request)?;
        let (stored, warnings) = self.replace(request, resource, target, &old, object, false, unknown)?;
        Ok(answer(request, resource, &stored, 200, warnings))
    }

    pub(crate) fn patch(
        &mut self,
        request: &Request,
        resource: &Resource,
        target: &Target,
    ) -> ApiResult<Answer> {
        let kind = request.content_type.split(';').next().unwrap_or_default().trim().to_string();
        let patch = request.object()?;
        let old = self.store.get(&resource.storage, &target.namespace, &target.name);
        if kind == "application/apply-patch+yaml" {
            return self.apply(request, resource, target, old.as_ref(), patch);
        }
        let old = old.ok_or_else(|| ApiError::not_found(&resource.group, &resource.plural, &target.name))?;
        let mut object = event::shown_as(resource, &old).into_owned();
        match kind.as_str() {
            "application/json-patch+json" => patch::json_patch(&mut object, patch)?,
            "application/merge-patch+json" => patch::merge_patch(&mut object, &patch),
            "application/strategic-merge-patch+json" if resource.custom.is_none() => {
                patch::strategic(&mut object, &patch, Shape::of(resource));
            }
            _ => {
                return Err(ApiError::unsupported_media_type(
                    "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
                ));
            }
        }
        let object = event::stored_as(resource, object);
        let unknown = Unknown::of(request)?;
        let (stored, warnings) = self.replace(request, resource, target, &old, object, false, unknown)?;
        Ok(answer(request, resource, &stored, 200, warnings))
    }

    fn apply(
        &mut self,
        request: &Request,
        resource: &Resource,
        target: &Target,
        old: Option<&Arc<Value>>,
        mut applied: Value,
    ) -> ApiResult<Answer> {
        if request.param("fieldManager").is_empty() {
            let faults = [("fieldManager".into(), "Required value: is required for apply patch".into())];
            return Err(ApiError::invalid("meta.k8s.io", "PatchOptions", "", &faults));
        }
        check_identity(&mut applied, resource, target)?;
        if applied["metadata"]["managedFields"].as_array().is_some_and(|list| !list.is_empty()) {
            return Err(ApiError::bad_request("metadata.managedFields must be nil"));
        }
        let mut unknown = admission::drop_unknown(resource, &mut applied)?;
        if !self.features.ip_mode {
            unknown.extend(ip_mode(resource, &applied));
        }
        if let Some(path) = unknown.first() {
            let name = if target.namespace.is_empty() {
                target.name.clone()
            } else {
                format!("{}/{}", target.namespace, target.name)
            };
            return Err(ApiError::server(
                500,
                format!(
                    "failed to create typed patch object ({name}; {}, Kind={}): .{path}: field not declared in schema",
                    resource.api_version(),
                    resource.kind
                ),
            ));
        }
        let mut applied = event::stored_as(resource, applied);
        let requested = applied["metadata"]["resourceVersion"].take();
        applied["metadata"].as_object_mut().map(|metadata| metadata.remove("resourceVersion"));
        restrict_to_subresource(resource, target, &mut applied);
        let Some(old) = old else {
            if !target.subresource.is_empty() {
                return Err(ApiError::not_found(&resource.group, &resource.plural, &target.name));
            }
            self.authorise(&request.user, "create", &Target { name: String::new(), ..target.clone() })?;
            let merged = apply::apply(resource, &Value::Null, &applied, &writer(request, target), false)?;
            let (stored, warnings) =
                self.insert(request, resource, target, applied, &merged, Unknown::Ignore)?;
            return Ok(answer(request, resource, &stored, 201, warnings));
        };
        let mut merged =
            apply::apply(resource, old, &applied, &writer(request, target), request.flag("force"))?;
        if !requested.is_null() {
            merged["metadata"]["resourceVersion"] = requested;
        }
        let (stored, warnings) =
            self.replace(request, resource, target, old, merged, true, Unknown::Ignore)?;
        Ok(answer(request, resource, &stored, 200, warnings))
    }

    /// Stores a new object. `merged` is null, or the result of an apply with its owners.
    fn insert(
        &mut self,
        request: &Request,
        resource: &Resource,
        target: &Target,
        mut object: Value,
        merged: &Value,
        unknown: Unknown,
    ) -> ApiResult<(Arc<Value>, Vec<String>)> {
        if resource.is_terminating() {
            return Err(ApiError::definition_terminating());
        }
        let metadata = &mut object["metadata"];
        if metadata["name"].as_str().unwrap_or_default().is_empty()
            && let Some(prefix) = metadata["generateName"].as_str()
        {
            metadata["name"] = format!("{prefix}{}", admission::suffix(self.store.version())).into();
        }
        if resource.namespaced {
            metadata["namespace"] = target.namespace.clone().into();
        } else {
            metadata.as_object_mut().map(|metadata| metadata.remove("namespace"));
        }
        let name = metadata["name"].as_str().unwrap_or_default().to_string();
        self.check_namespace(resource, target, &name)?;
        if self.store.get(&resource.storage, &target.namespace, &name).is_some() {
            return Err(ApiError::already_exists(&resource.group, &resource.plural, &name));
        }
        let warnings = unknown.judge(resource, &mut object)?;
        // A new object has only the initial status of its kind. Nodes are created with their status.
        if resource.status && resource.kind != "Node" {
            object.as_object_mut().map(|object| object.remove("status"));
        }
        self.complete(resource, &mut object, None)?;
        if merged.is_null() {
            note_update(resource, &Value::Null, &mut object, &writer(request, target));
        } else {
            object["metadata"]["managedFields"] = merged["metadata"]["managedFields"].clone();
        }
        if dry_run(request)? {
            return Ok((Arc::new(object), warnings));
        }
        let stored = self.store.put(&resource.storage, object);
        self.after_write(resource);
        Ok((stored, warnings))
    }

    /// Stores a changed object, or returns the old one if nothing changed.
    #[allow(clippy::too_many_arguments, reason = "every kind of change passes through here")]
    fn replace(
        &mut self,
        request: &Request,
        resource: &Resource,
        target: &Target,
        old: &Arc<Value>,
        mut new: Value,
        is_apply: bool,
        unknown: Unknown,
    ) -> ApiResult<(Arc<Value>, Vec<String>)> {
        let conflict = |why: &str| ApiError::conflict(&resource.group, &resource.plural, &target.name, why);
        let requested = new["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        if !requested.is_empty() && old["metadata"]["resourceVersion"] != requested {
            return Err(conflict(
                "the object has been modified; please apply your changes to the latest version and try again",
            ));
        }
        let (uid, old_uid) = (&new["metadata"]["uid"], &old["metadata"]["uid"]);
        if uid.is_string() && uid != old_uid {
            return Err(conflict(&format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {old_uid}"
            )));
        }
        let warnings = unknown.judge(resource, &mut new)?;
        keep_what_is_not_written(resource, target, old, &mut new);
        check_finalizers(resource, target, old, &new)?;
        self.complete(resource, &mut new, Some(old))?;
        if !is_apply {
            note_update(resource, old, &mut new, &writer(request, target));
        }
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
        if new == **old {
            return Ok((old.clone(), warnings));
        }
        if dry_run(request)? {
            return Ok((Arc::new(new), warnings));
        }
        let stored = self.store.put(&resource.storage, new);
        if stored["metadata"]["deletionTimestamp"].is_string() && finalizers(&stored).is_empty() {
            self.take_out(resource, &target.namespace, &target.name);
        }
        self.after_write(resource);
        Ok((stored, warnings))
    }

    pub(crate) fn delete(
        &mut self,
        request: &Request,
        resource: &Resource,
        target: &Target,
    ) -> ApiResult<Answer> {
        let old = self.read(resource, target)?;
        let options = if request.body.is_empty() { Value::Null } else { request.object()? };
        for (name, what) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
            let (requested, is) = (&options["preconditions"][name], &old["metadata"][name]);
            if requested.is_string() && requested != is {
                let why = format!(
                    "Precondition failed: {what} in precondition: {}, {what} in object meta: {}",
                    requested.as_str().unwrap_or_default(),
                    is.as_str().unwrap_or_default()
                );
                return Err(ApiError::conflict(&resource.group, &resource.plural, &target.name, &why));
            }
        }
        if dry_run(request)? || options["dryRun"].as_array().is_some_and(|list| !list.is_empty()) {
            return Ok(ok(deleted_status(resource, &old)));
        }
        Ok(match self.mark_deleted(resource, &target.namespace, &target.name) {
            Some(waiting) => answer(request, resource, &waiting, 200, Vec::new()),
            None => ok(deleted_status(resource, &old)),
        })
    }

    pub(crate) fn delete_collection(
        &mut self,
        request: &Request,
        resource: &Resource,
        target: &Target,
    ) -> ApiResult<Answer> {
        let selector =
            Selector::parse(request.param("labelSelector"), request.param("fieldSelector"), &resource.kind)?;
        let mut objects = self.store.list(&resource.storage, &target.namespace);
        objects.retain(|object| selector.matches(object));
        if !dry_run(request)? {
            for object in &objects {
                let (namespace, name) = crate::store::key(object);
                self.mark_deleted(resource, &namespace, &name);
            }
        }
        let metadata = json!({"resourceVersion": self.store.version().to_string()});
        let items: Vec<Value> =
            objects.iter().map(|object| event::shown_as(resource, object).into_owned()).collect();
        Ok(ok(Form::of(&request.accept).list(resource, &items, &metadata)))
    }

    /// Deletes an object. If it has finalizers, marks it as deleted and returns it.
    pub(crate) fn mark_deleted(
        &mut self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Option<Arc<Value>> {
        let old = self.store.get(&resource.storage, namespace, name)?;
        match resource.kind.as_str() {
            "Namespace" => self.empty_namespace(name),
            "CustomResourceDefinition" => self.drop_custom_objects(name),
            _ => {}
        }
        let is_finalized = !finalizers(&old).is_empty()
            || (resource.kind == "Namespace" && !self.store.kinds_in(name).is_empty())
            || (resource.kind == "CustomResourceDefinition" && !self.store.list(name, "").is_empty());
        if !is_finalized {
            self.take_out(resource, namespace, name);
            self.after_write(resource);
            return None;
        }
        if old["metadata"]["deletionTimestamp"].is_string() {
            return Some(old);
        }
        let mut marked = Value::clone(&old);
        marked["metadata"]["deletionTimestamp"] = admission::now().into();
        marked["metadata"]["deletionGracePeriodSeconds"] = 0.into();
        if let Some(generation) = marked["metadata"]["generation"].as_u64() {
            marked["metadata"]["generation"] = (generation + 1).into();
        }
        if resource.kind == "Namespace" {
            marked["status"]["phase"] = "Terminating".into();
        }
        let marked = self.store.put(&resource.storage, marked);
        self.after_write(resource);
        Some(marked)
    }

    pub(crate) fn take_out(&mut self, resource: &Resource, namespace: &str, name: &str) {
        self.store.remove(&resource.storage, namespace, name);
        if resource.custom.is_some() {
            self.reap_definition(&resource.storage);
        }
        if !namespace.is_empty() {
            self.reap_namespace(namespace);
        }
    }

    /// Removes a terminating namespace after its last object is gone.
    fn reap_namespace(&mut self, name: &str) {
        let Some(namespace) = self.store.get("namespaces", "", name) else { return };
        let terminating = namespace["metadata"]["deletionTimestamp"].is_string();
        if terminating && self.store.kinds_in(name).is_empty() && finalizers(&namespace).is_empty() {
            self.store.remove(&"namespaces".into(), "", name);
        }
    }

    fn empty_namespace(&mut self, namespace: &str) {
        for storage in self.store.kinds_in(namespace) {
            let Some(resource) = self.resources.iter().find(|one| one.storage == storage).cloned() else {
                continue;
            };
            for object in self.store.list(&storage, namespace) {
                let (_, name) = crate::store::key(&object);
                self.mark_deleted(&resource, namespace, &name);
            }
        }
    }

    /// Deletes all objects of a definition. Objects with finalizers delay its removal.
    fn drop_custom_objects(&mut self, definition: &str) {
        let Some(resource) = self.resources.iter().find(|one| *one.storage == *definition).cloned() else {
            return;
        };
        for object in self.store.list(definition, "") {
            let (namespace, name) = crate::store::key(&object);
            self.mark_deleted(&resource, &namespace, &name);
        }
    }

    /// Removes a terminating definition after its last object is gone.
    fn reap_definition(&mut self, name: &str) {
        let Some(definition) = self.store.get(DEFINITIONS, "", name) else { return };
        let terminating = definition["metadata"]["deletionTimestamp"].is_string();
        if terminating && self.store.list(name, "").is_empty() && finalizers(&definition).is_empty() {
            self.store.remove(&DEFINITIONS.into(), "", name);
            self.register_definitions();
        }
    }

    pub(crate) fn after_write(&mut self, resource: &Resource) {
        if resource.kind == "CustomResourceDefinition" {
            self.register_definitions();
        }
    }

    fn check_namespace(&self, resource: &Resource, target: &Target, name: &str) -> ApiResult<()> {
        if !resource.namespaced {
            return Ok(());
        }
        match self.store.get("namespaces", "", &target.namespace) {
            None => Err(ApiError::not_found("", "namespaces", &target.namespace)),
            Some(namespace) if namespace["metadata"]["deletionTimestamp"].is_string() => Err(
                ApiError::namespace_terminating(&resource.group, &resource.plural, name, &target.namespace),
            ),
            Some(_) => Ok(()),
        }
    }
}

fn answer(
    request: &Request,
    resource: &Resource,
    object: &Value,
    code: u16,
    warnings: Vec<String>,
) -> Answer {
    Answer::Object {
        code,
        body: Form::of(&request.accept).object(&event::shown_as(resource, object)),
        warnings,
    }
}

fn writer(request: &Request, target: &Target) -> Writer {
    Writer {
        manager: request.manager().into(),
        subresource: target.subresource.clone(),
        now: admission::now(),
    }
}

fn dry_run(request: &Request) -> ApiResult<bool> {
    match request.param("dryRun") {
        "" => Ok(false),
        "All" => Ok(true),
        other => Err(ApiError::bad_request(format!(
            "dryRun: Unsupported value: {other:?}: supported values: \"All\""
        ))),
    }
}

pub(crate) fn finalizers(object: &Value) -> Vec<&str> {
    object["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn deleted_status(resource: &Resource, object: &Value) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": {
            "name": object["metadata"]["name"], "group": resource.group, "kind": resource.plural,
            "uid": object["metadata"]["uid"],
        },
    })
}

fn checked_body(request: &Request, resource: &Resource, target: &Target) -> ApiResult<Value> {
    let mut object = request.object()?;
    check_identity(&mut object, resource, target)?;
    Ok(object)
}

/// Checks that kind, name and namespace in the body are absent or match the path.
fn check_identity(object: &mut Value, resource: &Resource, target: &Target) -> ApiResult<()> {
    if !object.is_object() {
        return Err(ApiError::bad_request("the object provided is unrecognized: not an object"));
    }
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    let api_version = resource.api_version();
    if object["kind"].is_null() && object["apiVersion"].is_null() {
        object["kind"] = resource.kind.clone().into();
        object["apiVersion"] = api_version.clone().into();
    }
    if object["kind"] != resource.kind.as_str() || object["apiVersion"] != api_version.as_str() {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({}, Kind={}) does not match the expected API version ({api_version}, Kind={})",
            object["apiVersion"].as_str().unwrap_or_default(),
            object["kind"].as_str().unwrap_or_default(),
            resource.kind
        )));
    }
    let metadata = &mut object["metadata"];
    match metadata["namespace"].as_str().unwrap_or_default() {
        "" if resource.namespaced => metadata["namespace"] = target.namespace.clone().into(),
        namespace if resource.namespaced && namespace != target.namespace => {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        _ => {}
    }
    if !target.name.is_empty() {
        match metadata["name"].as_str().unwrap_or_default() {
            "" => metadata["name"] = target.name.clone().into(),
            name if name != target.name => {
                return Err(ApiError::bad_request(format!(
                    "the name of the object ({name}) does not match the name on the URL ({})",
                    target.name
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Keeps only the parts of an applied configuration that its endpoint writes.
fn restrict_to_subresource(resource: &Resource, target: &Target, applied: &mut Value) {
    let custom = resource.custom.is_some();
    let Some(map) = applied.as_object_mut() else { return };
    if target.subresource == "status" {
        map.retain(|name, _| matches!(name.as_str(), "apiVersion" | "kind" | "metadata" | "status"));
        if custom && let Some(metadata) = map.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.retain(|name, _| matches!(name.as_str(), "name" | "namespace"));
        }
    } else if resource.status {
        map.remove("status");
    }
}

/// Restores in `new` the parts that this endpoint does not write, and the parts that no client writes.
fn keep_what_is_not_written(resource: &Resource, target: &Target, old: &Value, new: &mut Value) {
    let put_back = |object: &mut Value, from: &Value, name: &str| match &from[name] {
        Value::Null => {
            object.as_object_mut().map(|object| object.remove(name));
        }
        value => object[name] = value.clone(),
    };
    if target.subresource == "status" {
        let names: Vec<String> =
            new.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
        let old_names: Vec<String> =
            old.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
        for name in names.iter().chain(&old_names) {
            if !matches!(name.as_str(), "status" | "metadata") {
                put_back(new, old, name);
            }
        }
        if resource.custom.is_some() {
            let owners = new["metadata"]["managedFields"].take();
            new["metadata"] = old["metadata"].clone();
            new["metadata"]["managedFields"] = owners;
        }
    } else if resource.status {
        put_back(new, old, "status");
    }
    for name in [
        "uid",
        "creationTimestamp",
        "generation",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "namespace",
        "name",
        "generateName",
    ] {
        put_back(&mut new["metadata"], &old["metadata"], name);
    }
    let differs = |name: &String| !matches!(name.as_str(), "metadata" | "status") && old[name] != new[name];
    let changed = new.as_object().into_iter().flatten().any(|(name, _)| differs(name))
        || old.as_object().into_iter().flatten().any(|(name, _)| differs(name));
    if changed && let Some(generation) = old["metadata"]["generation"].as_u64() {
        new["metadata"]["generation"] = (generation + 1).into();
    }
}

/// Refuses new finalizers on an object that is being deleted.
fn check_finalizers(resource: &Resource, target: &Target, old: &Value, new: &Value) -> ApiResult<()> {
    if old["metadata"]["deletionTimestamp"].is_null() {
        return Ok(());
    }
    let before = finalizers(old);
    let added: Vec<&str> = finalizers(new).into_iter().filter(|one| !before.contains(one)).collect();
    if added.is_empty() {
        return Ok(());
    }
    let words = format!(
        "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
        added.iter().map(|one| format!("{one:?}")).collect::<Vec<_>>().join(", ")
    );
    let fault = [("metadata.finalizers".into(), words)];
    let mut error = ApiError::invalid(&resource.group, &resource.kind, &target.name, &fault);
    error.details["causes"][0]["reason"] = "FieldValueForbidden".into();
    Err(error)
}

/// The path of an `ipMode` in a Service, if there is one.
fn ip_mode(resource: &Resource, object: &Value) -> Option<String> {
    let ingress =
        object["status"]["loadBalancer"]["ingress"].as_array().filter(|_| resource.kind == "Service")?;
    let at = ingress.iter().position(|one| !one["ipMode"].is_null())?;
    Some(format!("status.loadBalancer.ingress[{at}].ipMode"))
}
