//! The response types of the admin socket, used by the daemon and by the commands.
//!
//! The field names are what `-o json` and `-o yaml` show: an interface. Fields are added, not renamed; counters
//! count since the daemon's start.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use tidegate_policy::pools::PoolUsage;
use tidegate_policy::reconcile::Finding;

pub use super::announce_api::{AnnounceStatus, BgpPeerStatus, BgpStatus, KernelRoutesStatus, WithheldVip};
pub use tidegate_policy::reconcile::view::{
    BackendView, BackendViewState, BackendWhy, HealthState, HealthView, PortRefusal, PortView, RefusalReason,
    ServiceView, VipKind, VipView,
};

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
    /// Every worker runs and applies updates in time, and the neighbour table has room.
    pub healthy: bool,
    /// Every worker has a snapshot, and every interface can carry packets.
    pub ready: bool,
    /// Another gateway of the same name; why this one cannot lead; a state that cannot be published; interfaces and
    /// taps that cannot carry packets; routes of the kernel that cannot be changed; threads that hang; BGP sessions that are down; state that is not on disk and would be lost in a restart. Each with its time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub degraded: Vec<String>,
    /// The fingerprint of `selectionKey`; absent without a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection_key: Option<String>,
    /// The exchange of flows with other gateways; absent without `flowSharing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_sharing: Option<FlowSharingStatus>,
    /// What became of the flows of earlier processes; absent if flow tables end with the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<RestoredStatus>,
    /// Generation of the newest desired state.
    pub generation_desired: u64,
    /// Generation that every worker has.
    pub generation_applied: u64,
    /// Where the objects come from.
    pub source: SourceStatus,
    /// The state of writing to the cluster; absent if the objects come from a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterStatus>,
    /// The announcements of VIPs; absent without `announce.bgp` and `announce.kernelRoutes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announce: Option<AnnounceStatus>,
    /// The groups of VIPs that one of several gateways owns on layer 2: for a Lease its holder, for a VRRP group the state
    /// of this gateway (`master`, `backup`, `fault`, `unknown`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub layer2: BTreeMap<String, String>,
    /// The workers.
    pub workers: Vec<WorkerStatus>,
    /// Durations of the parts of the gateway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latencies: Vec<LatencyStatus>,
    /// The ports.
    pub interfaces: Vec<InterfaceStatus>,
    /// How full the neighbour table is.
    #[serde(default)]
    pub neighbors: NeighborsStatus,
    /// The number of Services that request an address.
    pub services: usize,
    /// The number of Services that wait for one.
    pub services_pending: usize,
    /// Backends that take new flows, over all service ports.
    pub backends_active: usize,
    /// All backends, over all service ports.
    pub backends: usize,
    /// The targets that operators drained.
    pub drained: Vec<String>,
    /// The drain of the gateway itself.
    #[serde(default)]
    pub drain: GatewayDrainStatus,
    /// Requests of objects that were not granted.
    pub findings: Vec<FindingView>,
    /// Objects that are refused because of their errors, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
}

/// What became of the flows of earlier processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestoredStatus {
    /// Whether all workers have restored theirs.
    pub done: bool,
    /// Flows that continue.
    pub flows: u64,
    /// The others, by the reason why not.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub not_restored: BTreeMap<String, u64>,
    /// Tables that are refused as a whole: single damaged ones, and all those of a process, counted as one.
    pub refused_tables: u64,
    /// The longest time that a worker needed, in which it forwarded nothing.
    pub milliseconds: u64,
}

/// The exchange of flows with other gateways.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowSharingStatus {
    /// `flowSharing.mode`.
    pub mode: String,
    /// The fingerprint of `flowSharing.key`.
    pub key: String,
    /// The fingerprint of `flowSharing.acceptKey`; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_key: Option<String>,
    /// Whether the other gateways are found by their `GatewayStatus`, and not configured.
    #[serde(default)]
    pub finds_peers: bool,
    /// The other gateways.
    pub peers: Vec<FlowPeerStatus>,
}

/// A gateway with which flows are exchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowPeerStatus {
    /// Its socket.
    pub address: String,
    /// Its name, once it has answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `up`, `behind`, `connecting`, `other-version`, `absent` for a gateway that was found and has stopped or has no
    /// heartbeat, or `itself` for this gateway's own address.
    pub state: String,
    /// Milliseconds since something was last heard from it; absent if nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_ago_milliseconds: Option<u64>,
    /// Messages about flows that wait to be sent.
    pub waiting: usize,
    /// Batches of messages that it has not acknowledged.
    pub unacknowledged: usize,
    /// The fingerprint of the key that it uses, once it has answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// The source of objects and its state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceStatus {
    /// `directory` or `kubernetes`.
    pub kind: String,
    /// The directory, or the API server.
    pub location: String,
    /// Whether it answers now; a directory always does. While it does not, the last objects stay.
    #[serde(default)]
    pub connected: bool,
    /// Since when that is so, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// When the objects were last known to be those of the source, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sync: Option<String>,
    /// The reason, if it does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Whether the objects are those that were on disk when the gateway started.
    #[serde(default)]
    pub from_disk: bool,
    /// Objects that are kept although the API server lost them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<String>,
    /// When it was last read without error, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_read: Option<String>,
    /// Faults of the last read. While there are any, the last good state stays.
    #[serde(default)]
    pub errors: Vec<String>,
}

/// The state of writing to the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// Whether this gateway leads: it writes the status of Services.
    pub leads: bool,
    /// The name of the leader; absent if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// The number of writes that are waiting.
    pub writes_pending: u64,
    /// The number of failed writes since the start.
    pub writes_failed: u64,
}

/// One worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerStatus {
    /// Its number.
    pub worker: u8,
    /// Its core.
    pub core: usize,
    /// `running`; `hung` if it makes no progress; else the reason why it does not run.
    pub state: String,
    /// The share of time in which it had work, 0 to 1.
    pub busy_ratio: f64,
    /// Cycles per packet over the last measurement interval.
    pub cycles_per_packet: f64,
    /// The number of flows in its tables.
    pub flows: u64,
    /// The pages of its flow tables: `huge pages`, `transparent huge pages` or `4 KiB pages`.
    #[serde(default)]
    pub flow_table_pages: String,
    /// Bytes of its flow tables that have their memory. A table gets it when a Service first needs it.
    #[serde(default)]
    pub flow_table_bytes: u64,
}

/// Durations of one part of the gateway since the start, with an error of at most 4 %.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LatencyStatus {
    /// `worker-turn`: a turn of a worker's loop that had work. `punt-queue`: a frame for the kernel in its queue.
    /// `health-check`: from the start of a check to its result or timeout. `publication`: from the publication of a
    /// snapshot until each worker has applied it.
    pub name: String,
    /// The number of recorded durations.
    pub count: u64,
    /// The median, in microseconds.
    pub p50_us: f64,
    /// The 99th percentile, in microseconds.
    pub p99_us: f64,
    /// The longest, in microseconds.
    pub max_us: f64,
}

/// One port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceStatus {
    /// Its name in the configuration.
    pub name: String,
    /// Its DPDK device.
    pub device: String,
    /// Its link address.
    pub mac: String,
    /// Whether the link is up.
    pub link_up: bool,
    /// The state of the link.
    #[serde(default)]
    pub link: LinkStatus,
    /// The tap that mirrors it for the kernel; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tap: Option<TapStatus>,
    /// What was agreed with its driver.
    #[serde(default)]
    pub port: PortStatus,
    /// Packets received.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
}

/// What was agreed with the driver of a port, and what it counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortStatus {
    /// DPDK's name of the driver.
    pub driver: String,
    /// The largest IP packet, in bytes.
    pub mtu: u16,
    /// The speed of the link in megabits per second; absent if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_mbps: Option<u32>,
    /// Receive queues, and as many transmit queues.
    pub queues: u16,
    /// Descriptors of each receive ring.
    pub rx_descriptors: u16,
    /// Descriptors of each transmit ring.
    pub tx_descriptors: u16,
    /// How packets are distributed to the queues: the protocols whose ports are hashed (`own-key`: with a key other than
    /// the gateway's), `addresses`, `unknown` if the driver does not say, or `one-queue`.
    pub rss: String,
    /// Receive offloads in use, by DPDK's names.
    #[serde(default)]
    pub rx_offloads: Vec<String>,
    /// Transmit offloads in use, by DPDK's names.
    #[serde(default)]
    pub tx_offloads: Vec<String>,
    /// Packets that the NIC received and dropped, because their worker did not take them in time.
    pub rx_missed: u64,
}

/// The link of a port or a tap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkStatus {
    /// `up`, `down`, `no-carrier` or `gone`.
    pub state: String,
    /// The start of the state, RFC 3339.
    pub since: String,
    /// How often the state has changed since the start.
    pub transitions: u64,
}

/// A tap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TapStatus {
    /// Its name in the kernel.
    pub name: String,
    /// The state of its link.
    pub link: LinkStatus,
}

/// The usage of the neighbour table. If `used` is `max`, there is no room for another next hop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NeighborsStatus {
    /// Next hops of backends and routes.
    pub next_hops: usize,
    /// The maximum number of these.
    pub next_hops_max: usize,
    /// Neighbours that only packets requested.
    pub on_demand: usize,
    /// The maximum number of these.
    pub on_demand_max: usize,
}

impl NeighborsStatus {
    /// Whether there is no more room for next hops of backends or routes.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.next_hops_max > 0 && self.next_hops >= self.next_hops_max
    }

    /// What lacks because the table is full, and what to do.
    #[must_use]
    pub fn shortage(&self) -> Option<String> {
        let Self { next_hops, next_hops_max, .. } = self;
        self.is_full().then(|| {
            format!(
                "the table of next hops is full ({next_hops} of {next_hops_max}): further backends on the links of \
                 the gateway are left out; remove such backends, or reach them through routers (dataplane.routes)"
            )
        })
    }
}

/// The reason of the finding for a latest configuration with errors.
pub const CONFIGURATION_REFUSED: &str = "ConfigurationRefused";

/// Requests of objects that were not granted.
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
    /// The fault.
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

/// `GET /v1/services`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicesAnswer {
    /// Services that request an address, sorted by namespace and name.
    pub services: Vec<ServiceView>,
    /// Their requests that were not granted.
    pub findings: Vec<FindingView>,
}

/// `GET /v1/backends`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendsAnswer {
    /// One row for each backend of each port on each VIP.
    pub backends: Vec<BackendRow>,
}

/// A backend of a service port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendRow {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub service: String,
    /// Name of the port, or its number.
    pub port_name: String,
    /// The VIP.
    pub vip: IpAddr,
    /// Port number on the VIP.
    pub service_port: u16,
    /// `TCP` or `UDP`.
    pub protocol: String,
    /// The backend.
    pub backend: BackendView,
    /// Its state in the packet path.
    #[serde(flatten)]
    pub forwarding: BackendForwarding,
}

/// The state of a backend of a service port in the packet path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendForwarding {
    /// The number of new flows that were sent to it; absent if it is in no snapshot yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
    /// The path MTU of its tunnel in bytes, outer header included, as a router reported it; absent if
    /// none was reported in the last ten minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_mtu: Option<u16>,
    /// The number of workers that have set it aside because it refused or ignored new connections; absent if none has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_aside_workers: Option<usize>,
}

impl BackendRow {
    /// The rows of services, in their order; `forwarding` is called for each, with (VIP, protocol, port) and backend.
    pub fn of_services(
        services: &[impl std::borrow::Borrow<ServiceView>],
        forwarding: impl Fn(&PortView, &BackendView) -> BackendForwarding,
    ) -> Vec<Self> {
        let mut rows = Vec::new();
        for service in services.iter().map(std::borrow::Borrow::borrow) {
            for port in &service.ports {
                rows.extend(port.backends.iter().map(|backend| Self {
                    namespace: service.namespace.clone(),
                    service: service.name.clone(),
                    port_name: port.name.clone(),
                    vip: port.vip,
                    service_port: port.port,
                    protocol: port.protocol.to_string(),
                    backend: backend.clone(),
                    forwarding: forwarding(port, backend),
                }));
            }
        }
        rows
    }
}

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
    /// The requested flows, sorted by Service, VIP and client.
    #[serde(default)]
    pub flows: Vec<FlowRow>,
    /// Whether there are more flows than the limit.
    #[serde(default)]
    pub more: bool,
    /// Workers that did not answer in time, so their flows are not listed.
    #[serde(default)]
    pub silent_workers: usize,
}

/// The kind of a flow entry. Sorted by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlowRowKind {
    /// Session affinity: the backend of a client, for all its ports.
    Affinity,
    /// One direction: the backend answers the client itself.
    Dsr,
    /// Traffic that a backend originates, which leaves with a SNAT address as its source.
    Masquerade,
    /// Both directions.
    Nat,
}

impl FlowRowKind {
    /// The name, as in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Affinity => "affinity",
            Self::Dsr => "dsr",
            Self::Masquerade => "masquerade",
            Self::Nat => "nat",
        }
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
    /// The client; port 0 for affinity, which covers all its ports. For a masqueraded flow the backend that began it,
    /// with the identifier of an echo as its port.
    pub client: SocketAddr,
    /// The VIP, with the service port. For a masqueraded flow the host outside.
    pub vip: SocketAddr,
    /// The backend of the flow; absent if the backend is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<SocketAddr>,
    /// Forwarding mode, or `masquerade`.
    pub mode: String,
    /// The kind of the entry.
    pub kind: FlowRowKind,
    /// The local address and port towards the backend, in mode `fullnat`; of a masqueraded flow, towards the host outside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<SocketAddr>,
    /// `opening`, `established`, `closing` or `closed`.
    pub state: String,
    /// Seconds since its last packet.
    pub idle_seconds: u32,
}

/// Flows of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerFlows {
    /// Its number.
    pub worker: u8,
    /// The number of flows in its tables.
    pub flows: u64,
    /// The number of flows that it has room for.
    pub capacity: u64,
}

/// `POST /v1/watch`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchAnswer {
    /// The number of the watch, for `watched` and `unwatch`.
    pub id: u64,
    /// The names of the interfaces, in the order of the configuration.
    pub interfaces: Vec<String>,
}

/// `GET /v1/watched`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchedAnswer {
    /// Packets since the last request, those of each worker in their order.
    pub packets: Vec<WatchedRow>,
    /// Packets since the start that matched and are not shown, because they were not requested in time.
    pub lost: u64,
}

/// A packet and what became of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchedRow {
    /// Nanoseconds since 1970-01-01 00:00 UTC.
    pub timestamp_ns: u64,
    /// The worker that decided.
    pub worker: u8,
    /// The interface that received it.
    pub interface: String,
    /// `TCP`, `UDP`, `SCTP`, `ICMP`, `ICMPv6`, `ARP`, or the number of another protocol; absent if it is not IP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// The source: an address, with the port if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The destination, in the same format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// `transmit`, `punt` or `drop`.
    pub verdict: String,
    /// The reason, as in `replay --json`.
    pub reason: String,
    /// Whether it is held until its next hop or its first fragment is known. It is shown again when that is known;
    /// otherwise this verdict applies.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits: bool,
    /// The service port that it belongs to, as `namespace/name:port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The address of the service port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vip: Option<IpAddr>,
    /// The backend that it goes to or comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<SocketAddr>,
    /// The forwarding mode of the service port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// `new`, `known` or `none`.
    pub flow: String,
    /// The frame as it was received.
    pub received: WatchedFrame,
    /// The frame as it was sent, with the interface; absent if it was not sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<SentFrame>,
}

/// A frame.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchedFrame {
    /// Its length.
    pub length: usize,
    /// Its first bytes, in hexadecimal digits.
    pub hex: String,
}

/// A frame that was sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SentFrame {
    /// The interface.
    pub interface: String,
    /// The frame. One that does not fit its link is sent in pieces; this is the whole frame.
    #[serde(flatten)]
    pub frame: WatchedFrame,
}

/// `POST /v1/unwatch`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnwatchAnswer {
    /// Packets that matched and were not shown.
    pub lost: u64,
}

/// `GET /v1/traffic`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrafficAnswer {
    /// The service ports, with what they forwarded since the start.
    pub services: Vec<ServiceTraffic>,
}

/// What one service port forwarded since the daemon's start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceTraffic {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub service: String,
    /// Name of the port, or its number.
    pub port_name: String,
    /// The VIP, with the service port.
    pub vip: SocketAddr,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// New flows that were sent to backends.
    pub connections: u64,
}

/// A count for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasonCount {
    /// The reason, as in metrics.
    pub reason: String,
    /// The number of occurrences.
    pub count: u64,
}

/// `GET /v1/drops`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DropsAnswer {
    /// Every reason, including those with a count of 0.
    pub drops: Vec<ReasonCount>,
    /// Frames handed to the kernel, by reason.
    pub punts: Vec<ReasonCount>,
}

/// `GET /v1/pools`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolsAnswer {
    /// The pools of the configuration in its order, then AddressPools by name, then removed pools that are still in
    /// use.
    pub pools: Vec<PoolView>,
}

/// The usage of a pool. Counts above 2^64 - 1 are shown as that.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolView {
    /// Its name.
    pub name: String,
    /// The number of its addresses.
    pub total: u64,
    /// Addresses held by Services, with those that are no longer in the pool.
    pub assigned: u64,
    /// Addresses that can still be assigned.
    pub free: u64,
    /// Whether it is disabled.
    pub disabled: bool,
    /// Of the assigned addresses, those that are no longer in the pool.
    #[serde(default)]
    pub outside: u64,
    /// The number of Services that hold addresses from it.
    #[serde(default)]
    pub users: usize,
    /// The first of them, `namespace/name`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub some_users: Vec<String>,
    /// Whether the pool no longer exists, but Services still hold addresses from it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
    /// The selector of the gateways that announce its addresses, in the form of `kubectl -l`; empty for all gateways.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub gateways: String,
    /// How they announce them: `l2`, `bgp`.
    #[serde(default)]
    pub announce: Vec<String>,
    /// `AddressPool/NAME` for a pool from an object; absent for pools of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
}

impl From<&PoolUsage> for PoolView {
    fn from(usage: &PoolUsage) -> Self {
        let shown = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
        Self {
            name: usage.pool.clone(),
            total: shown(usage.total),
            assigned: shown(usage.assigned.saturating_add(usage.outside)),
            free: shown(usage.free()),
            disabled: usage.disabled,
            outside: shown(usage.outside),
            users: usage.users,
            some_users: usage.some_users.iter().map(ToString::to_string).collect(),
            removed: usage.removed,
            gateways: usage.gateway_selector.to_string(),
            announce: [(usage.announce.l2, "l2"), (usage.announce.bgp, "bgp")]
                .into_iter()
                .filter(|(is_announced, _)| *is_announced)
                .map(|(_, way)| way.to_owned())
                .collect(),
            object: None,
        }
    }
}

/// `POST /v1/drain` and `POST /v1/undrain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainAnswer {
    /// The target that was drained or undrained.
    pub target: String,
    /// The number of backends of service ports that it covers now.
    pub backends: usize,
    /// All drained targets.
    pub drained: Vec<String>,
    /// Why a restart of the gateway would lose this.
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
    /// The gateway announces nothing, and packets still come, or came a short time ago.
    Draining,
    /// No packet comes any more.
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
    /// Packets for VIPs and replies of backends that come now, in a second; 0 while the gateway serves.
    #[serde(default)]
    pub packets_per_second: f64,
    /// When the last of these came, RFC 3339; absent if none has come since the beginning of the drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_packet: Option<String>,
    /// The gateway is drained when none has come for this number of seconds (`drain.quiet`).
    #[serde(default)]
    pub quiet_seconds: u64,
}

/// `POST /v1/drain?gateway=true` and `POST /v1/undrain?gateway=true`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayDrainAnswer {
    /// `metadata.name` of the gateway.
    pub gateway: String,
    /// Its drain.
    pub drain: GatewayDrainStatus,
    /// Why a restart of the gateway would lose this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_kept: Option<String>,
}

/// `POST /v1/reload`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReloadAnswer {
    /// Whether the new configuration is in use; otherwise the last good state stays.
    pub accepted: bool,
    /// The faults, one per line as `check` prints them.
    pub report: Vec<String>,
}

/// The body of every answer with a status other than 200.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorAnswer {
    /// The fault, and what would be accepted.
    pub error: String,
}
