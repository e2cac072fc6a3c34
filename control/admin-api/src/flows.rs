//! `flows`.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::traffic::ReasonCount;

/// `GET /v1/flows`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowsAnswer {
    /// The number of flows of each worker.
    pub workers: Vec<WorkerFlows>,
    /// Evicted flows, by reason.
    pub evictions: Vec<ReasonCount>,
    /// The number of new flows that were refused.
    pub refused: u64,
    /// The requested flows, in the requested order.
    #[serde(default)]
    pub flows: Vec<FlowRow>,
    /// Whether there are more flows than the limit.
    #[serde(default)]
    pub more: bool,
    /// Workers that did not answer in time, so their flows are not listed.
    #[serde(default)]
    pub silent_workers: usize,
}

tidegate_spec::named! {
    /// The kind of a flow entry. Sorted by name.
    #[derive(PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum FlowRowKind {
        /// Session affinity: the backend of a client, for all its ports.
        Affinity => "affinity",
        /// One direction: the backend answers the client itself.
        Dsr => "dsr",
        /// Traffic that a backend originates, which leaves with a SNAT address as its source.
        Masquerade => "masquerade",
        /// Both directions.
        Nat => "nat",
    }
}

/// One flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowRow {
    /// Namespace of its Service; empty for a masqueraded flow.
    pub namespace: String,
    /// Name of its Service; empty for a masqueraded flow.
    pub service: String,
    /// Name of the port, or its number; empty for a masqueraded flow.
    pub port_name: String,
    /// `TCP`, `UDP` or `SCTP`; for a masqueraded echo `ICMP`.
    pub protocol: String,
    /// The client; port 0 for affinity, which covers all its ports. For a masqueraded flow, the backend that started
    /// it, with the identifier of an echo as its port.
    pub client: SocketAddr,
    /// The VIP, with the service port. For a masqueraded flow, the external host.
    pub vip: SocketAddr,
    /// The backend of the flow; absent if the backend is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<SocketAddr>,
    /// Forwarding mode, or `masquerade`.
    pub mode: String,
    /// The kind of the entry.
    pub kind: FlowRowKind,
    /// The local address and port: towards the backend in mode `fullnat`, towards the external host for a masqueraded
    /// flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<SocketAddr>,
    /// `opening`, `established`, `closing` or `closed`.
    pub state: String,
    /// Seconds since its last packet.
    pub idle_seconds: u32,
    /// Forwarded packets of both directions that pass through the gateway; absent unless the flow is in the flow log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// The bytes of these packets, from the IP header on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// `POST /v1/delete-flows`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeletedFlowsAnswer {
    /// The number of deleted flows.
    pub deleted: u64,
    /// Workers that did not answer in time. They delete their flows later.
    #[serde(default)]
    pub silent_workers: usize,
}

/// Flows of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerFlows {
    /// Its number.
    pub worker: u8,
    /// The number of flows in its tables.
    pub flows: u64,
    /// The number of flows that fit into its tables.
    pub capacity: u64,
}
