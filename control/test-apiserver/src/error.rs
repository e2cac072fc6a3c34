//! The errors that an API server returns: a `Status` object and its HTTP code.
//!
//! The messages are those of Kubernetes (apimachinery `pkg/api/errors`), because clients match them and tests assert
//! them. Every layer creates errors, and `server` converts them to responses.

use serde_json::{Value, json};

/// An error response.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    /// HTTP status.
    pub(crate) code: u16,
    /// `Status.reason`.
    pub(crate) reason: &'static str,
    /// `Status.message`.
    pub(crate) message: String,
    /// `Status.details`, an object or null.
    pub(crate) details: Value,
}

/// The result of a request.
pub(crate) type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    fn new(code: u16, reason: &'static str, message: String) -> Self {
        Self { code, reason, message, details: Value::Null }
    }

    fn of(mut self, group: &str, kind: &str, name: &str) -> Self {
        let mut details = json!({"kind": kind});
        if !group.is_empty() {
            details["group"] = group.into();
        }
        if !name.is_empty() {
            details["name"] = name.into();
        }
        self.details = details;
        self
    }

    /// 404 for a missing object.
    pub(crate) fn not_found(group: &str, plural: &str, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", qualified(group, plural));
        Self::new(404, "NotFound", message).of(group, plural, name)
    }

    /// 404 for a path that belongs to no resource.
    pub(crate) fn no_such_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource".into())
    }

    /// 409 for a create of an object that exists.
    pub(crate) fn already_exists(group: &str, plural: &str, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", qualified(group, plural));
        Self::new(409, "AlreadyExists", message).of(group, plural, name)
    }

    /// 409 from optimistic locking.
    pub(crate) fn conflict(group: &str, plural: &str, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} \"{name}\": {why}", qualified(group, plural));
        Self::new(409, "Conflict", message).of(group, plural, name)
    }

    /// 409 from server-side apply, with one cause per field: (manager, field).
    pub(crate) fn apply_conflict(conflicts: &[(String, String)]) -> Self {
        let mut lines: Vec<String> = Vec::new();
        let mut causes = Vec::new();
        for (manager, field) in conflicts {
            lines.push(format!("conflict with {manager}: {field}"));
            causes.push(json!({
                "reason": "FieldManagerConflict",
                "message": format!("conflict with {manager}"),
                "field": field,
            }));
        }
        let plural = if conflicts.len() == 1 { "" } else { "s" };
        let mut error = Self::new(
            409,
            "Conflict",
            format!("Apply failed with {} conflict{plural}: {}", conflicts.len(), lines.join("; ")),
        );
        error.details = json!({"causes": causes});
        error
    }

    /// 422 with one cause per fault: (field, message).
    pub(crate) fn invalid(group: &str, kind: &str, name: &str, faults: &[(String, String)]) -> Self {
        let words: Vec<String> = faults.iter().map(|(f, m)| format!("{f}: {m}")).collect();
        let listed = if words.len() == 1 { words[0].clone() } else { format!("[{}]", words.join(", ")) };
        let message = format!("{} \"{name}\" is invalid: {listed}", qualified(group, kind));
        let mut error = Self::new(422, "Invalid", message).of(group, kind, name);
        error.details["causes"] = faults
            .iter()
            .map(
                |(field, message)| json!({"reason": "FieldValueInvalid", "message": message, "field": field}),
            )
            .collect();
        error
    }

    /// 400.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message.into())
    }

    /// 401.
    pub(crate) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized".into())
    }

    /// 403. `why` follows the colon.
    pub(crate) fn forbidden(group: &str, plural: &str, name: &str, why: &str) -> Self {
        let subject = if name.is_empty() {
            qualified(group, plural)
        } else {
            format!("{} \"{name}\"", qualified(group, plural))
        };
        Self::new(403, "Forbidden", format!("{subject} is forbidden: {why}")).of(group, plural, name)
    }

    /// 403 for a path that is not a resource.
    pub(crate) fn forbidden_path(user: &str, verb: &str, path: &str) -> Self {
        Self::new(403, "Forbidden", format!("forbidden: User \"{user}\" cannot {verb} path \"{path}\""))
    }

    /// 403 because the namespace is being deleted.
    pub(crate) fn namespace_terminating(group: &str, plural: &str, name: &str, namespace: &str) -> Self {
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut error = Self::forbidden(group, plural, name, &why);
        error.details["causes"] = json!([{
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        }]);
        error
    }

    /// 405.
    pub(crate) fn method_not_allowed() -> Self {
        Self::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource".into(),
        )
    }

    /// 405 because the definition of the kind is being deleted.
    pub(crate) fn definition_terminating() -> Self {
        let why = "create not allowed while custom resource definition is terminating";
        Self::new(405, "MethodNotAllowed", why.into())
    }

    /// 410: the requested version has been compacted.
    pub(crate) fn gone(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message.into())
    }

    /// 415 with the accepted types.
    pub(crate) fn unsupported_media_type(accepted: &str) -> Self {
        Self::new(
            415,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: {accepted}"
            ),
        )
    }

    /// 429. The server adds the header from `details.retryAfterSeconds`.
    pub(crate) fn too_many_requests(retry_after_seconds: u32) -> Self {
        let mut error = Self::new(
            429,
            "TooManyRequests",
            "the server has received too many requests and has asked us to try again later".into(),
        );
        error.details = json!({"retryAfterSeconds": retry_after_seconds});
        error
    }

    /// 504: this server has not reached the requested version.
    pub(crate) fn resource_version_too_large(requested: u64, current: u64) -> Self {
        let mut error = Self::new(
            504,
            "Timeout",
            format!("Timeout: Too large resource version: {requested}, current: {current}"),
        );
        error.details = json!({
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        });
        error
    }

    /// A 5xx error.
    pub(crate) fn server(code: u16, message: impl Into<String>) -> Self {
        let reason = match code {
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "InternalError",
        };
        Self::new(code, reason, message.into())
    }

    /// The `Status` object.
    pub(crate) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }
}

/// The name of a resource or kind in messages: `services`, or `leases.coordination.k8s.io`.
pub(crate) fn qualified(group: &str, name: &str) -> String {
    if group.is_empty() { name.into() } else { format!("{name}.{group}") }
}
