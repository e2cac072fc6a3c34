//! The inputs of one page, as plain values.

use jiff::Timestamp;
use tidegate_admin_api::GatewayDrainState;
use tidegate_announce::decide::Withheld;
use tidegate_dataplane::gateway::{BackendFlowStats, InterfaceLink, PortReport, ServiceStats, Stats};
use tidegate_events::Reason;
use tidegate_health::CheckLoad;
use tidegate_policy::pools::PoolUsage;
use tidegate_policy::reconcile::Finding;
use tidegate_policy::reconcile::view::ServiceView;
use tidegate_snapshot::service_limits::LimitedService;
use tidegate_source::{SourceState, StaleFile};

use super::latency::Latencies;
use super::process::Process;
use super::timings::Timings;

/// The inputs of one page.
#[derive(Debug, Clone, Copy)]
pub struct Sample<'a> {
    /// What runs.
    pub build: BuildSample<'a>,
    /// The dataplane.
    pub dataplane: DataplaneSample<'a>,
    /// The last round.
    pub round: RoundSample<'a>,
    /// Publications to the workers.
    pub publication: PublicationSample<'a>,
    /// Health checks.
    pub checks: CheckSample<'a>,
    /// The state of the gateway.
    pub gateway: GatewaySample<'a>,
    /// Durations of loop iterations of workers, waits of frames for the kernel, health checks and publications.
    pub latencies: &'a Latencies,
    /// Flow sharing; `None` omits its families.
    pub flow_sharing: Option<&'a FlowSharingSample>,
    /// The flow log; `None` omits its families.
    pub flow_log: Option<&'a FlowLogSample>,
    /// The log.
    pub log: LogSample<'a>,
    /// The state of the source.
    pub source: &'a SourceState,
    /// When the credentials for the API server expire; `None` if they don't, or if there is no API server.
    pub credentials_expire: Option<Timestamp>,
    /// Writes to the cluster; `None` omits its families.
    pub cluster: Option<tidegate_cluster::Reading>,
    /// The announcements; `None` omits their families.
    pub announce: Option<AnnounceSample<'a>>,
    /// Ownership of VIPs on layer 2; `None` omits its families.
    pub layer2: Option<Layer2Counts>,
    /// The process itself; `None` omits its families.
    pub process: Option<&'a Process>,
    /// Whether there are series for each backend: the product of backends and service ports can be large.
    pub per_backend: bool,
}

/// What runs.
#[derive(Debug, Clone, Copy)]
pub struct BuildSample<'a> {
    /// The version of the binary.
    pub version: &'a str,
    /// The commit that was built.
    pub commit: &'a str,
    /// The version of DPDK, as `rte_version()` returns it.
    pub dpdk: &'a str,
    /// `metadata.name` of the configuration.
    pub gateway: &'a str,
}

/// The state of the gateway.
#[derive(Debug, Clone, Copy)]
pub struct GatewaySample<'a> {
    /// The state of the drain of the gateway.
    pub drain: GatewayDrainState,
    /// Whether the gateway is ready, as for `/readyz`.
    pub ready: bool,
    /// The number of faults that `tidegate status` shows as DEGRADED.
    pub degraded: usize,
    /// Whether the latest configuration is not in use.
    pub configuration_refused: bool,
    /// Kinds of state that a restart would lose, each with whether it is missing on disk.
    pub unsaved: &'a [(&'static str, bool)],
    /// Comparisons of incremental results: (layer, made, found different), each layer once.
    pub comparisons: &'a [(&'static str, u64, u64)],
}

/// Suppressed and lost log lines.
#[derive(Debug, Clone, Copy)]
pub struct LogSample<'a> {
    /// Suppressed lines about faults of objects.
    pub suppressed: u64,
    /// Lines that standard error did not accept.
    pub lost: u64,
    /// Recorded events, each reason once.
    pub events: &'a [(Reason, u64)],
}

/// The announcements.
#[derive(Debug, Clone, Copy)]
pub struct AnnounceSample<'a> {
    /// Their state.
    pub status: &'a tidegate_announce::status::Status,
    /// The number of withheld VIPs for each reason.
    pub withheld: &'a [(Withheld, usize)],
}

/// Flow sharing.
#[derive(Debug, Clone)]
pub struct FlowSharingSample {
    /// The peers: address, whether flows are shared with it, messages waiting for it, and seconds since it last sent
    /// something.
    pub peers: Vec<(String, bool, usize, Option<f64>)>,
    /// Datagrams sent, resent, and accepted.
    pub datagrams: (u64, u64, u64),
    /// Rejected datagrams, by reason.
    pub rejected: Vec<(&'static str, u64)>,
    /// Messages about flows from other gateways, by result.
    pub results: Vec<(&'static str, u64)>,
    /// Messages about flows that were lost because a queue was full, by queue.
    pub lost: [(&'static str, u64); 2],
}

/// The counters of the dataplane.
#[derive(Debug, Clone, Copy)]
pub struct DataplaneSample<'a> {
    /// Names by interface index; an interface without a name is identified by its index.
    pub interfaces: &'a [String],
    /// Their links and taps, by interface index.
    pub links: &'a [InterfaceLink],
    /// The latest reports of the drivers of their ports, by interface index.
    pub ports: &'a [PortReport],
    /// The counters of the dataplane.
    pub stats: &'a Stats,
    /// The counters of the services of the published snapshot.
    pub services: &'a [ServiceStats],
    /// The Services of the published snapshot that have limits.
    pub limited: &'a [LimitedService],
    /// Local ports of `fullnat` in use, by SNAT address and backend.
    pub backend_flows: &'a [BackendFlowStats],
    /// (Total, free), from `Dataplane::buffers`.
    pub packet_buffers: (u32, u32),
}

/// The result of the last round.
#[derive(Debug, Clone, Copy)]
pub struct RoundSample<'a> {
    /// The Services of its [`Outcome`](tidegate_policy::reconcile::Outcome), for the states of their backends.
    pub services: &'a [std::sync::Arc<ServiceView>],
    /// Its findings.
    pub findings: &'a [Finding],
    /// Findings of this gateway alone.
    pub own_findings: &'a [Finding],
    /// Its pools.
    pub pools: &'a [PoolUsage],
    /// Files whose last good state is kept.
    pub stale_files: &'a [StaleFile],
    /// EndpointSlices whose endpoints are ignored because they exceed a limit.
    pub slices_left_out: usize,
}

/// Publications of desired states.
#[derive(Debug, Clone, Copy)]
pub struct PublicationSample<'a> {
    /// The generations of the latest snapshot, and of the one that every worker has applied.
    pub generations: Generations,
    /// Desired states that could not be published.
    pub failures: u64,
    /// How long updates took.
    pub timings: &'a Timings,
}

/// Health checks.
#[derive(Debug, Clone, Copy)]
pub struct CheckSample<'a> {
    /// Checks by result, each result once.
    pub results: &'a [(&'static str, u64)],
    /// The number of checks and targets.
    pub load: CheckLoad,
}

/// Groups of VIPs that one of several gateways owns on layer 2.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Layer2Counts {
    /// Groups that this gateway owns now.
    pub owned: u64,
    /// Groups that it may own.
    pub groups: u64,
    /// How often this gateway has become the owner of a group by a Lease.
    pub taken: u64,
    /// Failed requests for Leases.
    pub failures: u64,
}

/// Generations of snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Generations {
    /// The generation of the latest snapshot.
    pub desired: u64,
    /// The lowest generation that a worker still uses.
    pub applied: u64,
}

/// The flow log.
#[derive(Debug)]
pub struct FlowLogSample {
    /// Records that were taken from the workers, by event.
    pub records: [(&'static str, u64); 2],
    /// Lost records, by reason.
    pub lost: [(tidegate_flow_log::Lost, u64); tidegate_flow_log::Lost::COUNT],
}
