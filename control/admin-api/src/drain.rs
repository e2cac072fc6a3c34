//! Drains of backends, of nodes, and of the gateway itself.

use serde::{Deserialize, Serialize};

/// `POST /v1/drain` and `POST /v1/undrain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainAnswer {
    /// The target that was drained or undrained.
    pub target: String,
    /// The number of backends of service ports that it covers.
    pub backends: usize,
    /// All drained targets.
    pub drained: Vec<String>,
    /// Why a restart of the gateway would lose this drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_kept: Option<String>,
}

tidegate_spec::named! {
    /// The state of the drain of the gateway itself.
    #[derive(Default, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum GatewayDrainState {
        /// No drain is requested.
        #[default]
        Serving => "serving",
        /// The gateway announces nothing, and packets still arrive or arrived a short time ago.
        Draining => "draining",
        /// No more packets arrive.
        Drained => "drained",
    }
}

tidegate_spec::named! {
    /// Who requests a drain of the gateway.
    #[derive(Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum DrainRequester {
        /// `tidegate drain --gateway`.
        Command => "command",
        /// The annotation `tidegate.dev/drain` of the gateway's `GatewayStatus`.
        Annotation => "annotation",
        /// SIGTERM or SIGINT.
        Signal => "signal",
    }
}

/// The drain of the gateway itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayDrainStatus {
    /// Its state.
    pub state: GatewayDrainState,
    /// Who requests it; empty while the gateway serves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by: Vec<DrainRequester>,
    /// When it began, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// The number of flows in the tables; 0 while the gateway serves.
    #[serde(default)]
    pub flows: u64,
    /// Packets per second that still arrive for VIPs or as replies of backends; 0 while the gateway serves.
    #[serde(default)]
    pub packets_per_second: f64,
    /// When the last of these arrived, RFC 3339; absent if none has arrived since the drain started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_packet: Option<String>,
    /// The gateway is drained after this many seconds without such a packet (`drain.quiet`).
    #[serde(default)]
    pub quiet_seconds: u64,
}

/// `POST /v1/drain?gateway=true` and `POST /v1/undrain?gateway=true`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayDrainAnswer {
    /// `metadata.name` of the gateway.
    pub gateway: String,
    /// The state of its drain.
    pub drain: GatewayDrainStatus,
    /// Why a restart of the gateway would lose this drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_kept: Option<String>,
}
