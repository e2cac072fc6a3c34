//! A condition in the schemas of our kinds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A condition (meta/v1 `Condition`), with the bounds of its schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition in CamelCase, such as `Accepted`.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316))]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// Reason for the status, one CamelCase word.
    #[schemars(length(min = 1, max = 1024))]
    pub reason: String,
    /// Message for people.
    #[schemars(length(max = 32768))]
    pub message: String,
    /// Generation of the object that the condition is about.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub observed_generation: i64,
    /// Time at which `status` last changed.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
}

impl From<&tidegate_model::objects::Condition> for Condition {
    fn from(condition: &tidegate_model::objects::Condition) -> Self {
        let tidegate_model::objects::Condition { kind, status, reason, message, .. } = condition.clone();
        let last_transition_time = condition.last_transition.unwrap_or_default().to_string();
        let observed_generation = condition.observed_generation;
        Self { kind, status, reason, message, observed_generation, last_transition_time }
    }
}
