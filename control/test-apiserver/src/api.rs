//! The API without HTTP: it handles a request and returns an answer. Routing, authorization and reads are here; `write`
//! changes objects. The server locks the API for each request, so requests are processed in sequence, like versions.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::access::{Attempt, User, allows, allows_path, bound_token};
use crate::discovery;
use crate::error::{ApiError, ApiResult};
use crate::event;
use crate::form::Form;
use crate::request::{Answer, Request, Target, WatchOrder, target};
use crate::resource::{Resource, built_in, custom};
use crate::selector::Selector;
use crate::store::{Store, key};

/// The state behind the API.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) store: Store,
    pub(crate) resources: Vec<Resource>,
    pub(crate) features: Features,
}

/// The features that were added in later versions of Kubernetes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Features {
    /// `sendInitialEvents`.
    pub(crate) watch_list: bool,
    /// `ipMode` in the status of Services.
    pub(crate) ip_mode: bool,
    /// The namespace `kube-system` is stored in an etcd with its own version counter.
    pub(crate) namespaces_apart: bool,
}

/// The storage name of CustomResourceDefinitions.
pub(crate) const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

impl Api {
    /// Creates a new cluster with the namespaces that every cluster has.
    pub(crate) fn new(features: Features, version: u64) -> Self {
        let mut api = Self { store: Store::new(version), resources: built_in(), features };
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            api.load_namespace(name);
        }
        api
    }

    /// Replaces all objects.
    pub(crate) fn replace_store(&mut self, store: Store) {
        self.store = store;
        self.register_definitions();
    }

    /// Registers the kinds of the stored CustomResourceDefinitions, and removes all others.
    pub(crate) fn register_definitions(&mut self) {
        self.resources = built_in();
        for definition in self.store.list(DEFINITIONS, "") {
            self.resources.extend(custom(&definition).unwrap_or_default());
        }
    }

    pub(crate) fn resource(&self, group: &str, version: &str, plural: &str) -> Option<&Resource> {
        self.resources.iter().find(|one| one.group == group && one.version == version && one.plural == plural)
    }

    /// The resource with this `apiVersion` and `kind`.
    pub(crate) fn resource_of(&self, api_version: &str, kind: &str) -> Option<&Resource> {
        self.resources.iter().find(|one| one.api_version() == api_version && one.kind == kind)
    }

    /// Answers a request.
    pub(crate) fn handle(&mut self, request: &Request) -> ApiResult<Answer> {
        let Some(target) = target(&request.path) else {
            return self.handle_path(request);
        };
        if target.group == "authorization.k8s.io" {
            return self.review(request, &target);
        }
        let resource = self
            .resource(&target.group, &target.version, &target.plural)
            .cloned()
            .ok_or_else(ApiError::no_such_path)?;
        let verb = verb(request, &target)?;
        self.authorise(&request.user, verb, &target)?;
        let known_subresource = target.subresource.is_empty()
            || (target.subresource == "status" && resource.status)
            || (target.subresource == "finalize" && resource.kind == "Namespace")
            || (target.subresource == "token" && resource.kind == "ServiceAccount" && verb == "create");
        if !known_subresource
            || (resource.namespaced && target.namespace.is_empty() && !target.name.is_empty())
        {
            return Err(ApiError::no_such_path());
        }
        match verb {
            "get" => {
                let object = self.read(&resource, &target)?;
                Ok(ok(Form::of(&request.accept).object(&event::shown_as(&resource, &object))))
            }
            "list" => self.list(request, &resource, &target),
            "watch" => self.watch(request, &resource, &target),
            "create" if target.subresource == "token" => self.token(request, &resource, &target),
            "create" => self.create(request, &resource, &target),
            "update" => self.update(request, &resource, &target),
            "patch" => self.patch(request, &resource, &target),
            "delete" => self.delete(request, &resource, &target),
            _ => self.delete_collection(request, &resource, &target),
        }
    }

    /// Returns 403 with the wording of Kubernetes unless the user is authorised.
    pub(crate) fn authorise(&self, user: &User, verb: &str, target: &Target) -> ApiResult<()> {
        let plural = match target.subresource.as_str() {
            "" => target.plural.clone(),
            subresource => format!("{}/{subresource}", target.plural),
        };
        // A request for a namespace by name is authorized in that namespace.
        let namespace = if target.plural == "namespaces" { &target.name } else { &target.namespace };
        let attempt =
            Attempt { verb, group: &target.group, resource: &plural, namespace, name: &target.name };
        if allows(&self.store, user, &attempt) {
            return Ok(());
        }
        let scope = match namespace.as_str() {
            "" => "at the cluster scope".to_string(),
            namespace => format!("in the namespace {namespace:?}"),
        };
        let why = format!(
            "User {:?} cannot {verb} resource {plural:?} in API group {:?} {scope}",
            user.name, target.group
        );
        Err(ApiError::forbidden(&target.group, &target.plural, &target.name, &why))
    }

    pub(crate) fn read(&self, resource: &Resource, target: &Target) -> ApiResult<std::sync::Arc<Value>> {
        self.store
            .get(&resource.storage, &target.namespace, &target.name)
            .ok_or_else(|| ApiError::not_found(&resource.group, &resource.plural, &target.name))
    }

    fn handle_path(&self, request: &Request) -> ApiResult<Answer> {
        let verb = request.method.to_lowercase();
        if !allows_path(&request.user, &verb, &request.path) {
            return Err(ApiError::forbidden_path(&request.user.name, &verb, &request.path));
        }
        match request.path.as_str() {
            "/healthz" | "/livez" | "/readyz" => {
                Ok(Answer::Bytes("text/plain; charset=utf-8", b"ok".to_vec()))
            }
            path => discovery::answer(path, &self.resources).map(ok).ok_or_else(ApiError::no_such_path),
        }
    }

    /// Answers access reviews: of the user's own rights, or of another user's.
    fn review(&self, request: &Request, target: &Target) -> ApiResult<Answer> {
        if target.plural.is_empty() || request.method != "POST" {
            return discovery::answer(&request.path, &self.resources)
                .map(ok)
                .ok_or_else(ApiError::no_such_path);
        }
        let mut review = request.object()?;
        let user = match target.plural.as_str() {
            "selfsubjectaccessreviews" => request.user.clone(),
            "subjectaccessreviews" => {
                self.authorise(&request.user, "create", target)?;
                User::named(review["spec"]["user"].as_str().unwrap_or_default())
            }
            _ => return Err(ApiError::no_such_path()),
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        let requested = &review["spec"]["resourceAttributes"];
        let allowed = if requested.is_object() {
            let resource = match text(&requested["subresource"]).as_str() {
                "" => text(&requested["resource"]),
                subresource => format!("{}/{subresource}", text(&requested["resource"])),
            };
            let attempt = Attempt {
                verb: &text(&requested["verb"]),
                group: &text(&requested["group"]),
                resource: &resource,
                namespace: &text(&requested["namespace"]),
                name: &text(&requested["name"]),
            };
            allows(&self.store, &user, &attempt)
        } else {
            let path = &review["spec"]["nonResourceAttributes"];
            allows_path(&user, &text(&path["verb"]), &text(&path["path"]))
        };
        review["status"] = json!({"allowed": allowed});
        Ok(Answer::Object { code: 201, body: review, warnings: Vec::new() })
    }

    /// Issues a token for a ServiceAccount. The token itself names its account (see `access`).
    fn token(&self, request: &Request, resource: &Resource, target: &Target) -> ApiResult<Answer> {
        self.read(resource, target)?;
        let mut body = request.object()?;
        let seconds = body["spec"]["expirationSeconds"].as_i64().unwrap_or(3600).max(600);
        let expires = Timestamp::now() + SignedDuration::from_secs(seconds);
        let bound = &body["spec"]["boundObjectRef"];
        let secret = bound["name"].as_str().filter(|_| bound["kind"] == "Secret");
        let token = bound_token(&target.namespace, &target.name, expires.as_second(), secret);
        body["status"] =
            json!({"token": token, "expirationTimestamp": expires.strftime("%FT%TZ").to_string()});
        Ok(Answer::Object { code: 201, body, warnings: Vec::new() })
    }

    fn list(&self, request: &Request, resource: &Resource, target: &Target) -> ApiResult<Answer> {
        let selector =
            Selector::parse(request.param("labelSelector"), request.param("fieldSelector"), &resource.kind)?;
        let current = self.store.version();
        let requested = version_param(request)?;
        if requested > current {
            return Err(ApiError::resource_version_too_large(requested, current));
        }
        let token = request.param("continue");
        let (at, after) = if token.is_empty() {
            let exact = request.param("resourceVersionMatch") == "Exact";
            (if exact { requested } else { current }, None)
        } else {
            let (version, after) =
                read_token(token).ok_or_else(|| ApiError::bad_request("continue key is not valid"))?;
            (version, Some(after))
        };
        let objects = self.store.list_at(&resource.storage, &target.namespace, at).ok_or_else(|| {
            ApiError::gone(
                "The provided continue parameter is too old to display a consistent list result. You can start a new \
                 list without the continue parameter.",
            )
        })?;
        let matching: Vec<_> = objects
            .into_iter()
            .filter(|object| after.as_ref().is_none_or(|after| key(object) > *after))
            .filter(|object| selector.matches(object))
            .collect();
        let limit = request.param("limit").parse().ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
        let page = &matching[..limit.min(matching.len())];
        let is_apart = self.features.namespaces_apart
            && resource.plural == "namespaces"
            && request.param("fieldSelector") == "metadata.name=kube-system";
        let at_shown = if is_apart { 1 } else { at };
        let mut metadata = json!({"resourceVersion": at_shown.to_string()});
        if let Some(last) = page.last().filter(|_| page.len() < matching.len()) {
            let (namespace, name) = key(last);
            metadata["continue"] = format!("{at}:{namespace}/{name}").into();
            if selector.is_empty() {
                metadata["remainingItemCount"] = (matching.len() - page.len()).into();
            }
        }
        let form = Form::of(&request.accept);
        if form != Form::Whole || event::is_new_style(resource) {
            let items: Vec<Value> =
                page.iter().map(|object| event::shown_as(resource, object).into_owned()).collect();
            return Ok(ok(form.list(resource, &items, &metadata)));
        }
        // Lists are large, so they are written without copying the objects.
        let mut bytes = form.list(resource, &[], &metadata).to_string().into_bytes();
        let tail =
            bytes.iter().rposition(|byte| *byte == b'[').map_or(Vec::new(), |at| bytes.split_off(at + 1));
        for (index, object) in page.iter().enumerate() {
            if index > 0 {
                bytes.push(b',');
            }
            let whole = event::shown_as(resource, object);
            serde_json::to_writer(&mut bytes, whole.as_ref()).expect("writing to memory");
        }
        bytes.extend(tail);
        Ok(Answer::Bytes("application/json", bytes))
    }

    fn watch(&self, request: &Request, resource: &Resource, target: &Target) -> ApiResult<Answer> {
        let mut fields = request.param("fieldSelector").to_string();
        if !target.name.is_empty() {
            fields = format!("metadata.name={}", target.name);
        }
        let selector = Selector::parse(request.param("labelSelector"), &fields, &resource.kind)?;
        let wants_initial = request.flag("sendInitialEvents");
        if wants_initial && !self.features.watch_list {
            let faults = [(
                "sendInitialEvents".to_string(),
                "Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
                    .to_string(),
            )];
            return Err(ApiError::invalid("meta.k8s.io", "ListOptions", "", &faults));
        }
        let requested = version_param(request)?;
        let from_state = wants_initial || requested == 0;
        if wants_initial && requested > self.store.version() {
            return Err(ApiError::resource_version_too_large(requested, self.store.version()));
        }
        let mut initial = Vec::new();
        if from_state {
            initial = self.store.list(&resource.storage, &target.namespace);
            initial.retain(|object| selector.matches(object));
        }
        // A real server draws a random value between half an hour and an hour. This server always uses the same value.
        let seconds = request.param("timeoutSeconds").parse().unwrap_or(1_800);
        Ok(Answer::Watch(Box::new(WatchOrder {
            resource: resource.clone(),
            namespace: target.namespace.clone(),
            selector,
            form: Form::of(&request.accept),
            since: if from_state { self.store.version() } else { requested },
            initial,
            mark_initial_end: wants_initial,
            bookmarks: request.flag("allowWatchBookmarks"),
            timeout: Duration::from_secs(seconds),
        })))
    }
}

/// Returns 200 with an object.
pub(crate) fn ok(body: Value) -> Answer {
    Answer::Object { code: 200, body, warnings: Vec::new() }
}

fn verb(request: &Request, target: &Target) -> ApiResult<&'static str> {
    let watch = request.flag("watch");
    Ok(match (request.method.as_str(), target.name.is_empty()) {
        ("GET", _) if watch => "watch",
        ("GET", false) => "get",
        ("GET", true) => "list",
        ("POST", true) => "create",
        // A POST to a subresource.
        ("POST", false) if !target.subresource.is_empty() => "create",
        ("PUT", false) => "update",
        ("PATCH", false) => "patch",
        ("DELETE", false) => "delete",
        ("DELETE", true) => "deletecollection",
        _ => return Err(ApiError::method_not_allowed()),
    })
}

fn version_param(request: &Request) -> ApiResult<u64> {
    match request.param("resourceVersion") {
        "" => Ok(0),
        text => text.parse().map_err(|_| {
            ApiError::bad_request(format!(
                "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: invalid syntax"
            ))
        }),
    }
}

fn read_token(token: &str) -> Option<(u64, (String, String))> {
    let (version, key) = token.split_once(':')?;
    let (namespace, name) = key.split_once('/')?;
    Some((version.parse().ok()?, (namespace.into(), name.into())))
}
