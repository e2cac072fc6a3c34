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

/// The state of the drain of the gateway itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GatewayDrainState {
    /// No drain is requested.
    #[default]
    Serving,
    /// The gateway announces nothing, and packets still arrive or arrived a short time ago.
    Draining,
    /// No more packets arrive.
    Drained,
}

impl GatewayDrainState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Serving, Self::Draining, Self::Drained];

    /// The name, as in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Draining => "draining",
            Self::Drained => "drained",
        }
    }
}

/// Who requests a drain of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrainRequester {
    /// `tidegate drain --gateway`.
    Command,
    /// The annotation `tidegate.dev/drain` of the gateway's `GatewayStatus`.
    Annotation,
    /// SIGTERM or SIGINT.
    Signal,
}

impl DrainRequester {
    /// Every requester, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Command, Self::Annotation, Self::Signal];

    /// The name, as in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Annotation => "annotation",
            Self::Signal => "signal",
        }
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
