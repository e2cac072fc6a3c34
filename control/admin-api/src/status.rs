//! `status`: the gateway as a whole.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::announce::AnnounceStatus;
use super::drain::GatewayDrainStatus;
use super::findings::FindingView;
use super::flow_log::FlowLogStatus;
use super::flow_sharing::FlowSharingStatus;
use super::interfaces::{InterfaceStatus, NeighborsStatus};
use super::workers::{LatencyStatus, WorkerStatus};

/// `GET /v1/status`.
// Flat, because each field is a field of `status -o json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// `metadata.name` of the configuration.
    pub name: String,
    /// Version of the binary.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// When the daemon started, RFC 3339.
    pub started: String,
    /// Seconds since then.
    pub uptime_seconds: u64,
    /// Every worker runs and applies updates in time, and the neighbour table is not full.
    pub healthy: bool,
    /// Every worker has a snapshot, and every interface can carry packets.
    pub ready: bool,
    /// Why the gateway is degraded, each with its time: another gateway with this name; why this one cannot lead; a
    /// state that cannot be published; interfaces and taps that cannot carry packets; kernel routes that cannot be
    /// changed; hung threads; BGP sessions that are down; state that is not on disk and would be lost in a restart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub degraded: Vec<String>,
    /// The fingerprint of `selectionKey`; absent without a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection_key: Option<String>,
    /// How flows are shared with other gateways; absent without `flowSharing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_sharing: Option<FlowSharingStatus>,
    /// The flow log; absent without an output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_log: Option<FlowLogStatus>,
    /// What happened to the flows of earlier processes; absent if flow tables end with the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<RestoredStatus>,
    /// Generation of the latest desired state.
    pub generation_desired: u64,
    /// Generation that every worker has applied.
    pub generation_applied: u64,
    /// Where the objects are read from.
    pub source: SourceStatus,
    /// The state of writing to the cluster; absent if the objects come from a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterStatus>,
    /// How VIPs are announced; absent without `announce.bgp` and `announce.kernelRoutes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announce: Option<AnnounceStatus>,
    /// The groups of VIPs that one of several gateways owns on layer 2, with the holder of the Lease or the state of
    /// this gateway in the VRRP group (`master`, `backup`, `fault`, `unknown`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub layer2: BTreeMap<String, String>,
    /// The workers.
    pub workers: Vec<WorkerStatus>,
    /// Durations recorded by each part of the gateway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latencies: Vec<LatencyStatus>,
    /// The ports.
    pub interfaces: Vec<InterfaceStatus>,
    /// How full the neighbour table is.
    #[serde(default)]
    pub neighbors: NeighborsStatus,
    /// The number of Services that request an address.
    pub services: usize,
    /// The number of Services that wait for an address.
    pub services_pending: usize,
    /// Backends that accept new flows, over all service ports.
    pub backends_active: usize,
    /// All backends, over all service ports.
    pub backends: usize,
    /// The targets that operators have drained.
    pub drained: Vec<String>,
    /// The drain of the gateway itself.
    #[serde(default)]
    pub drain: GatewayDrainStatus,
    /// Requests of objects that were not granted.
    pub findings: Vec<FindingView>,
    /// Objects that are refused because of errors, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
}

/// What happened to the flows of earlier processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestoredStatus {
    /// Whether all workers have restored their flows.
    pub done: bool,
    /// Flows that continue.
    pub flows: u64,
    /// The number of other flows, by the reason why they were not restored.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub not_restored: BTreeMap<String, u64>,
    /// Tables that were refused as a whole: single damaged ones, and all tables of a process, counted as one.
    pub refused_tables: u64,
    /// The longest time that a worker needed, during which it forwarded nothing.
    pub milliseconds: u64,
}

/// The source of objects and its state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceStatus {
    /// `directory` or `kubernetes`.
    pub kind: String,
    /// The directory, or the API server.
    pub location: String,
    /// Whether it answers; always true for a directory. While it does not, the last objects are kept.
    #[serde(default)]
    pub connected: bool,
    /// When it started or stopped answering, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// When the objects were last known to be up to date, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sync: Option<String>,
    /// Why it does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Whether the objects are those saved on disk when the gateway started.
    #[serde(default)]
    pub from_disk: bool,
    /// Objects that are kept although the API server lost them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<String>,
    /// When it was last read without error, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_read: Option<String>,
    /// Errors of the last read. While there are any, the last good state is kept.
    #[serde(default)]
    pub errors: Vec<String>,
}

/// The state of writing to the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// Whether this gateway is the leader, which writes the status of Services.
    pub leads: bool,
    /// The name of the leader; absent if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// The number of writes that are waiting.
    pub writes_pending: u64,
    /// The number of failed writes since the start.
    pub writes_failed: u64,
}
