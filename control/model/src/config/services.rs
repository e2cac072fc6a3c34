//! `services`: how Services are served, unless their annotations override it.
//!
//! Annotations and this section accept the same values. [`scheduler`], [`table_size`] and others read both.

use std::collections::BTreeSet;
use std::time::Duration;

use ipnet::IpNet;
use tidegate_select::maglev::is_prime;
use tidegate_spec::limits::{MAGLEV_SLOTS_DEFAULT, MAGLEV_SLOTS_MAX};
pub use tidegate_spec::{ForwardingMode, HashInput, MssClamp, NoEndpoints};
use tidegate_spec::{LoadRule, Policy, TunnelOptions};
use tidegate_wire::Named;

use super::tunnels;
use crate::yaml::{Field, Fields, text};

/// The validated `services` section.
#[derive(Debug, Clone, PartialEq)]
pub struct ServicesConfig {
    /// `defaults`.
    pub defaults: ServiceDefaults,
    /// `nodePortAddresses`: the gateway serves node ports on its addresses in these networks.
    pub node_port_addresses: Vec<IpNet>,
    /// `healthCheckNodePortNetworks`: whose hosts health-check node ports answer; all if empty.
    pub health_check_node_port_networks: Vec<IpNet>,
    /// `sourceRangesOtherFamily`: whether clients of a family without source ranges are admitted.
    pub source_ranges_other_family: OtherFamily,
    /// `ownClusterIPs`: whether to serve `clusterIPs` too.
    pub own_cluster_ips: bool,
    /// `podRoutes`: how Pod addresses are reached with target `pod`.
    pub pod_routes: PodRoutes,
    /// `compat`: the load balancers whose annotations are honoured, from [`VENDORS`]. Default none.
    pub compat: BTreeSet<String>,
}

/// The accepted values of `services.compat`. `tencent` is a synonym of `tke`.
pub const VENDORS: [&str; 11] =
    ["alibaba", "aws", "azure", "baidu", "cilium", "gcp", "ibm", "kube-vip", "metallb", "openstack", "tke"];

tidegate_wire::named! {
    /// How Pod addresses are reached.
    pub enum PodRoutes {
        /// Only by `dataplane.routes` and connected networks.
        Route => "route",
        /// Through the InternalIP of the node whose `spec.podCIDRs` contain them.
        Node => "node",
    }
}

/// `services.defaults`.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceDefaults {
    /// `forwarding`: the mode of Services without an annotation for it.
    pub forwarding: ForwardingMode,
    /// `forwardingLocal`; `None`: `fullnat`, with a warning for each such Service.
    pub forwarding_local: Option<ForwardingMode>,
    /// `gueVariant`, `guePort`, `greKey`, `genevePort` and `geneveVni`.
    pub tunnel: TunnelOptions,
    /// `target`: `pod` or `node`. Default `pod`.
    pub target: Target,
    /// `scheduler`: how the backend of a new flow is chosen.
    pub scheduler: Scheduler,
    /// `hash`: the hash input of `rendezvous` and `maglev`, `flow` or `client`. Default `flow`.
    pub hash: HashInput,
    /// `tableSize`: slots of Maglev tables.
    pub table_size: u32,
    /// `drainTimeout`: how long flows of a removed backend continue, 0s to 24h. Default 300s.
    pub drain_timeout: Duration,
    /// `slowStart`: how long a backend that has become ready takes to get its full share.
    pub slow_start: Duration,
    /// `noEndpoints`: `reject` answers with RST or port unreachable, `drop` does not answer. Default `reject`.
    pub no_endpoints: NoEndpoints,
    /// `flowTracking`: which flows get an entry in DSR modes, `always` or `on-change`. Default `always`.
    pub flow_tracking: FlowTracking,
    /// `mssClamp`: `off`, `path` or a number of bytes. Default `off`.
    pub mss_clamp: MssClamp,
}

impl Default for ServiceDefaults {
    fn default() -> Self {
        Self {
            forwarding: ForwardingMode::FullNat,
            forwarding_local: None,
            tunnel: TunnelOptions::default(),
            target: Target::Pod,
            scheduler: Scheduler::Rendezvous,
            hash: HashInput::Flow,
            table_size: MAGLEV_SLOTS_DEFAULT,
            drain_timeout: Duration::from_secs(300),
            slow_start: Duration::ZERO,
            no_endpoints: NoEndpoints::Reject,
            flow_tracking: FlowTracking::Always,
            mss_clamp: MssClamp::Off,
        }
    }
}

impl Default for ServicesConfig {
    fn default() -> Self {
        Self {
            defaults: ServiceDefaults::default(),
            node_port_addresses: Vec::new(),
            health_check_node_port_networks: Vec::new(),
            source_ranges_other_family: OtherFamily::Deny,
            own_cluster_ips: false,
            pod_routes: PodRoutes::Route,
            compat: BTreeSet::new(),
        }
    }
}

tidegate_wire::named! {
    /// Whether packets are sent to endpoints or to nodes.
    pub enum Target {
        /// The endpoint.
        Pod => "pod",
        /// The nodes of the cluster, whose proxies forward to the endpoints.
        Node => "node",
    }
}

/// How a backend is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheduler {
    /// Rendezvous with seats: a function of the backends that take new flows, without a table.
    Rendezvous,
    /// The table of the Maglev paper, of a fixed size.
    Maglev,
    /// Weighted round robin, separately on each worker.
    WeightedRoundRobin,
    /// By the loads of the backends.
    Loads(LoadRule),
    /// Rendezvous with seats, by the client's address.
    SourceHash,
    /// Rendezvous with seats, by the VIP.
    DestinationHash,
}

impl Scheduler {
    /// The scheduler of a snapshot, with tables of this size.
    #[must_use]
    pub fn with_table(self, slots: u32) -> tidegate_spec::Scheduler {
        match self {
            Self::Rendezvous => tidegate_spec::Scheduler::Rendezvous,
            Self::Maglev => tidegate_spec::Scheduler::Maglev { slots },
            Self::WeightedRoundRobin => tidegate_spec::Scheduler::WeightedRoundRobin,
            Self::Loads(rule) => tidegate_spec::Scheduler::Loads(rule),
            Self::SourceHash => tidegate_spec::Scheduler::SourceHash,
            Self::DestinationHash => tidegate_spec::Scheduler::DestinationHash,
        }
    }

    /// The name in configuration and annotations.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.with_table(0).as_str()
    }
}

tidegate_wire::named! {
    /// Which flows get an entry in DSR modes.
    pub enum FlowTracking {
        /// All.
        Always => "always",
        /// Flows whose backend would change, for some time after a change of the backends.
        OnChange => "on-change",
    }
}

tidegate_wire::named! {
    /// How clients are treated whose address family has no source range.
    pub enum OtherFamily {
        /// No client is admitted.
        Deny => "deny",
        /// All clients are admitted.
        Allow => "allow",
    }
}

/// The values that [`scheduler`] accepts.
pub const SCHEDULER_ACCEPTED: &str = "rendezvous, maglev, wrr, lc, sed, nq, sh, dh";
/// The number of slots of the smallest Maglev table.
const TABLE_SIZE_MIN: u32 = 251;

/// Reads a scheduler.
pub fn scheduler(word: &str) -> Option<Scheduler> {
    use Scheduler::{DestinationHash, Loads, Maglev, Rendezvous, SourceHash, WeightedRoundRobin};
    let loads = [LoadRule::LeastConnections, LoadRule::ShortestDelay, LoadRule::NeverQueue].map(Loads);
    let all = [Rendezvous, Maglev, WeightedRoundRobin, SourceHash, DestinationHash].into_iter().chain(loads);
    all.into_iter().find(|scheduler| scheduler.as_str() == word)
}

/// Reads a table size: a prime within the limits.
///
/// # Errors
/// The accepted values, with the primes next to the given number.
pub fn table_size(word: &str) -> Result<u32, String> {
    let range = TABLE_SIZE_MIN..=MAGLEV_SLOTS_MAX;
    let number = word.parse().ok();
    if let Some(size) = number.filter(|&size| range.contains(&size) && is_prime(size)) {
        return Ok(size);
    }
    let number = number.unwrap_or(MAGLEV_SLOTS_DEFAULT).clamp(*range.start(), *range.end());
    let below = (*range.start()..=number).rev().find(|&size| is_prime(size));
    let above = (number..=*range.end()).find(|&size| is_prime(size));
    let mut near: Vec<String> = below.into_iter().chain(above).map(|size| size.to_string()).collect();
    near.dedup();
    Err(format!("a prime from {TABLE_SIZE_MIN} to {MAGLEV_SLOTS_MAX} such as {}", near.join(" or ")))
}

/// The values that [`slow_start`] accepts.
pub const SLOW_START_ACCEPTED: &str = "0s, or a duration from 10s to 1h such as 30s or 5m";

/// Reads the duration of a slow start. Each step publishes a new forwarding state, so steps below a second would only
/// be expensive.
pub fn slow_start(word: &str) -> Option<Duration> {
    let range = Duration::from_secs(10)..=Duration::from_secs(3600);
    text::duration(word).filter(|time| time.is_zero() || range.contains(time))
}

/// The values that [`mss_clamp`] accepts.
pub const MSS_CLAMP_ACCEPTED: &str = "off, path, or a number of bytes from 536 to 65495";

/// Reads a limit for the segment size of SYNs: from the smallest that every host accepts to the largest in an IPv4
/// packet.
pub fn mss_clamp(word: &str) -> Option<MssClamp> {
    match word {
        "off" => Some(MssClamp::Off),
        "path" => Some(MssClamp::Path),
        number => {
            let number = number.parse().ok().filter(|number| (536..=65_495).contains(number));
            number.map(MssClamp::AtMost)
        }
    }
}

/// Reads the section. `unservedPorts` goes to the policy, to which `dataplane` also contributes.
pub(super) fn decode(parent: &Fields<'_>, policy: &mut Policy) -> ServicesConfig {
    let mut config = ServicesConfig::default();
    parent.section("services", |fields| {
        fields.section("defaults", |defaults| decode_defaults(defaults, &mut config.defaults));
        config.node_port_addresses = fields.each("nodePortAddresses", Field::network);
        config.health_check_node_port_networks = fields.each("healthCheckNodePortNetworks", Field::network);
        fields.set("ownClusterIPs", &mut config.own_cluster_ips, Field::boolean);
        let unserved = [("reject", true), ("drop", false)];
        fields.set("unservedPorts", &mut policy.reject_unserved_ports, |f| f.one_of(&unserved));
        fields.set("podRoutes", &mut config.pod_routes, Field::named);
        fields.set("sourceRangesOtherFamily", &mut config.source_ranges_other_family, Field::named);
        config.compat = fields.each("compat", compat).into_iter().collect();
    });
    config
}

fn decode_defaults(fields: &Fields<'_>, defaults: &mut ServiceDefaults) {
    fields.set("forwarding", &mut defaults.forwarding, name);
    defaults.forwarding_local = fields.read("forwardingLocal", name);
    tunnels::decode(fields, &mut defaults.tunnel);
    fields.set("target", &mut defaults.target, name);
    fields.set("scheduler", &mut defaults.scheduler, |f| word(f, scheduler, SCHEDULER_ACCEPTED));
    fields.set("hash", &mut defaults.hash, name);
    fields.set("tableSize", &mut defaults.table_size, |f| {
        let size = table_size(f.as_written().unwrap_or_default());
        size.map_err(|accepted| f.error(format_args!("{} is not accepted", f.node.describe()), accepted)).ok()
    });
    let day = Duration::from_secs(24 * 3600);
    fields.set("drainTimeout", &mut defaults.drain_timeout, |f| f.duration(Duration::ZERO..=day));
    let slow_start = |f: &Field<'_>| f.parsed_as_written(slow_start, SLOW_START_ACCEPTED);
    fields.set("slowStart", &mut defaults.slow_start, slow_start);
    let choices = [("reject", NoEndpoints::Reject), ("drop", NoEndpoints::Drop)];
    fields.set("noEndpoints", &mut defaults.no_endpoints, |f| f.one_of(&choices));
    fields.set("flowTracking", &mut defaults.flow_tracking, name);
    fields.set("mssClamp", &mut defaults.mss_clamp, |f| f.parsed_as_written(mss_clamp, MSS_CLAMP_ACCEPTED));
}

/// Reads a name. The error for another word contains the nearest name.
fn name<T: Named>(field: &Field<'_>) -> Option<T> {
    word(field, T::named, &text::names::<T>())
}

/// Reads a word. The error for another word contains the nearest of `accepted`.
fn word<T>(field: &Field<'_>, read: impl Fn(&str) -> Option<T>, accepted: &str) -> Option<T> {
    let written = field.string()?;
    let value = read(written);
    if value.is_none() {
        let near = text::nearest(written, &accepted.split(", ").collect::<Vec<_>>()).join(", ");
        let hint = if near.is_empty() { String::new() } else { format!(" (nearest: {near})") };
        field.error(format_args!("{written:?} is not known{hint}"), accepted);
    }
    value
}

/// Reads a vendor. `tencent` is a synonym.
fn compat(field: &Field<'_>) -> Option<String> {
    let vendor = |written: &str| if written == "tencent" { "tke" } else { written }.to_owned();
    word(field, |written| Some(vendor(written)).filter(|one| VENDORS.contains(&&**one)), &VENDORS.join(", "))
}
