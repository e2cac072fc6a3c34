//! Sends requests to the API server with a time limit, classifies its responses, and applies statuses.

use std::fmt::Debug;
use std::time::Duration;

use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tidegate_model::objects::FINALIZER;
use tidegate_policy::pools::FIELD_MANAGER;
use tidegate_source::kubernetes::{Connector, causes};
use tokio::time::timeout;

use super::counts::Ended;
use super::crd;
use super::queue::Outcome;

/// The response timeout. Together with the renewal deadline it doesn't exceed the Lease duration, so that the last
/// request of a leader ends before the next leader starts.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(4);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error("no response within {} s", RESPONSE_TIMEOUT.as_secs())]
    Timeout,
    #[error("{0}")]
    Unconnected(String),
    #[error("conflict: {0} kept changing while it was being written")]
    Contested(String),
    #[error(
        "the CustomResourceDefinition of {kind} is older than this gateway, so {fields} cannot be written; accepted: \
         {accepted}"
    )]
    OlderDefinition { kind: &'static str, fields: String, accepted: &'static str },
    #[error("{}", shown(.0))]
    Client(#[from] kube::Error),
}

fn shown(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} {}: {}", status.code, status.reason, status.message),
        other => causes(other),
    }
}

impl RequestError {
    /// The HTTP status of a refusal.
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            Self::Client(kube::Error::Api(status)) => Some(status.code),
            _ => None,
        }
    }

    /// Whether the API server doesn't know `ipMode` (introduced in Kubernetes 1.29). It then refuses the whole apply
    /// because of one field that its schema lacks.
    ///
    /// Only the message shows this, because the status has no cause that names the field.
    pub(super) fn is_about_ip_mode(&self) -> bool {
        match self {
            Self::Client(kube::Error::Api(status)) => {
                status.message.contains("ipMode") && status.message.contains("not declared in schema")
            }
            _ => false,
        }
    }

    /// The fields of the applied status that the definition lacks. They make the API server refuse the whole status.
    /// Only the message shows this, as for [`is_about_ip_mode`](Self::is_about_ip_mode).
    fn undeclared_fields(&self) -> Vec<&str> {
        let Self::Client(kube::Error::Api(status)) = self else { return Vec::new() };
        // `.status.gateways: field not declared in schema`, once for each field.
        let before = status.message.split(": field not declared in schema");
        let paths = before.filter_map(|text| text.split_whitespace().last()?.strip_prefix(".status."));
        paths.filter_map(|path| path.split(['.', '[']).next()).collect()
    }

    /// Whether the object was deleted before a new finalizer arrived. API servers refuse that as invalid, with a cause
    /// that names the field (apimachinery, `ValidateNoNewFinalizers`).
    fn is_about_deletion(&self) -> bool {
        match self {
            Self::Client(kube::Error::Api(status)) => {
                let mut causes = status.details.iter().flat_map(|details| &details.causes);
                status.code == 422
                    && causes.any(|cause| {
                        (cause.reason.as_str(), cause.field.as_str())
                            == ("FieldValueForbidden", "metadata.finalizers")
                    })
            }
            _ => false,
        }
    }

    /// The pause that a 429 requests.
    pub(super) fn retry_after(&self) -> Duration {
        let details = match self {
            Self::Client(kube::Error::Api(status)) => status.details.as_ref(),
            _ => None,
        };
        let seconds = details.map_or(0, |details| details.retry_after_seconds);
        Duration::from_secs(u64::from(seconds).max(1))
    }
}

/// Waits for a response with a time limit.
pub(super) async fn within<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, RequestError> {
    match timeout(RESPONSE_TIMEOUT, request).await {
        Ok(response) => Ok(response?),
        Err(_) => Err(RequestError::Timeout),
    }
}

/// Applies our finalizer, or none: an apply removes the fields that we no longer list, and keeps those of other
/// managers. The uid prevents the creation of an object that no longer exists.
pub(super) fn applied_finalizer(
    api_version: &str,
    kind: &str,
    name: &str,
    uid: &str,
    present: bool,
) -> Value {
    let finalizers: &[&str] = if present { &[FINALIZER] } else { &[] };
    json!({
        "apiVersion": api_version, "kind": kind,
        "metadata": {"name": name, "uid": uid, "finalizers": finalizers},
    })
}

/// Sends a request with the current client. If its credentials are refused, the next request uses another client.
pub(super) async fn with_client<T, F: Future<Output = Result<T, RequestError>>>(
    connector: &Connector,
    request: impl FnOnce(Client) -> F,
) -> Result<T, RequestError> {
    let connection =
        timeout(RESPONSE_TIMEOUT, connector.connection()).await.map_err(|_| RequestError::Timeout)?;
    let connection = connection.map_err(|error| RequestError::Unconnected(error.to_string()))?;
    let serial = connection.serial;
    let response = request(connection.client).await;
    if response.as_ref().is_err_and(|error| error.code() == Some(401)) {
        connector.refused(serial).await;
    }
    response
}

/// Applies the status of an object whose definition may be older than this gateway, such as one of our own kinds. If the
/// definition is from an older version, as during an upgrade, only its fields are written. Also returns the fields that
/// were left out.
pub(super) async fn apply_status<K: Clone + DeserializeOwned + Debug>(
    api: &Api<K>,
    name: &str,
    mut object: Value,
) -> Result<(K, Vec<String>), RequestError> {
    let apply = PatchParams::apply(FIELD_MANAGER).force();
    let mut left_out = Vec::new();
    loop {
        let error = match within(api.patch_status(name, &apply, &Patch::Apply(&object))).await {
            Ok(written) => return Ok((written, left_out)),
            Err(error) => error,
        };
        let Some(status) = object["status"].as_object_mut() else { return Err(error) };
        let fields = error.undeclared_fields().into_iter();
        let removed: Vec<String> = fields.filter_map(|field| Some(status.remove_entry(field)?.0)).collect();
        if removed.is_empty() {
            return Err(error);
        }
        left_out.extend(removed);
    }
}

/// What a request's result means for the queue and for the counters.
pub(super) fn classify(result: &Result<(), RequestError>) -> (Outcome, Ended) {
    let error = match result {
        Ok(()) => return (Outcome::Done, Ended::Done),
        Err(error) => error,
    };
    match error.code() {
        // The object was removed, recreated or modified: an update will follow.
        Some(404 | 409) => (Outcome::Superseded, Ended::Conflict),
        _ if error.is_about_deletion() => (Outcome::Superseded, Ended::Conflict),
        Some(429) => (Outcome::Throttled(error.retry_after()), Ended::Throttled),
        _ => (Outcome::Failed, Ended::Failed),
    }
}

/// The status of one of our own kinds, for an apply.
pub(super) fn own_status(kind: &str, name: &str, status: &impl serde::Serialize) -> Value {
    json!({"apiVersion": tidegate_model::config::API_VERSION, "kind": kind, "metadata": {"name": name}, "status": status})
}

/// The `GatewayStatus` object, which must exist before its status can be written.
pub(super) fn gateway(name: &str) -> crd::GatewayStatus {
    crd::GatewayStatus::new(name, crd::GatewayStatusSpec { gateway: name.to_owned() })
}
