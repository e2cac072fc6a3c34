//! `reload`.

use serde::{Deserialize, Serialize};

/// `POST /v1/reload`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReloadAnswer {
    /// Whether the new configuration is in use; otherwise the last good state stays.
    pub accepted: bool,
    /// The errors, one per line, as `check` prints them.
    pub report: Vec<String>,
}
