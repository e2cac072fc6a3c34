//! Requests of objects that were not granted.

use serde::{Deserialize, Serialize};
use tidegate_policy::reconcile::Finding;

/// The reason of the finding that the latest configuration has errors.
pub const CONFIGURATION_REFUSED: &str = "ConfigurationRefused";

/// A request of an object that was not granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FindingView {
    /// `namespace/name` of the object.
    pub object: String,
    /// The name of the event: `ExternalIPDenied`, ...
    pub reason: String,
    /// `error` or `warning`.
    pub severity: String,
    /// `path:line:column`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What would be accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted: Option<String>,
}

impl From<&Finding> for FindingView {
    fn from(finding: &Finding) -> Self {
        let diagnostic = &finding.diagnostic;
        Self {
            object: finding.object.to_string(),
            reason: finding.reason.to_string(),
            severity: diagnostic.severity.to_string(),
            location: diagnostic.location.as_ref().map(ToString::to_string),
            message: diagnostic.what.clone(),
            accepted: diagnostic.accepted.clone(),
        }
    }
}
