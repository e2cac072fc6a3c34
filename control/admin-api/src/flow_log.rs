//! The part of `status` about the flow log.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The flow log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowLogStatus {
    /// Where it is written.
    pub outputs: Vec<String>,
    /// Begins and ends of flows since the start.
    pub records: u64,
    /// Records that are missing in it since the start, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lost: BTreeMap<String, u64>,
    /// Why outputs fail now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<String>,
}
