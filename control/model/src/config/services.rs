//! `services`: how Services are served, unless their annotations override it.
//!
//! Annotations and this section accept the same values. [`forwarding`], [`target`], [`scheduler`] and [`table_size`]
//! read both, and distinguish values that are not supported yet from unknown ones.

use std::collections::BTreeSet;
use std::time::Duration;

use ipnet::IpNet;
use tidegate_select::maglev::is_prime;
use tidegate_spec::limits::{MAGLEV_SLOTS_DEFAULT, MAGLEV_SLOTS_MAX};
pub use tidegate_spec::{ForwardingMode, HashInput, MssClamp, NoEndpoints};
use tidegate_spec::{LoadRule, Policy, TunnelOptions};

use super::section::{scalar_text, section};
use super::tunnels;
use crate::yaml::{Field, Fields, text};

/// The validated `services` section.
#[derive(Debug, Clone, PartialEq)]
pub struct ServicesConfig {
    /// `defaults`.
    pub defaults: ServiceDefaults,
    /// `nodePortAddresses`: networks. The gateway's addresses in them serve node ports and health-check node ports.
    /// Default none: no node ports, and health-check node ports on all addresses.
    pub node_port_addresses: Vec<IpNet>,
    /// `healthCheckNodePortNetworks`: the networks whose hosts get answers from health-check node ports, in addition
    /// to loopback addresses. Default none: all hosts.
    pub health_check_node_port_networks: Vec<IpNet>,
    /// `sourceRangesOtherFamily`: on a dual-stack VIP, whether to admit clients of a family that
    /// `loadBalancerSourceRanges` does not contain. Default `deny`.
    pub source_ranges_other_family: OtherFamily,
    /// `ownClusterIPs`: whether to serve `clusterIPs` too. The operator must route the service network to the
    /// gateway. Default `false`.
    pub own_cluster_ips: bool,
    /// `podRoutes`: how Pod addresses are reached with target `pod`: by the gateway's own routes (`route`), or
    /// through the node whose `spec.podCIDRs` contain them (`node`). Default `route`.
    pub pod_routes: PodRoutes,
    /// `compat`: the load balancers whose annotations are honoured, from [`VENDORS`]. Default none.
    pub compat: BTreeSet<String>,
}

/// The accepted values of `services.compat`. `tencent` is a synonym of `tke`.
pub const VENDORS: [&str; 11] =
    ["alibaba", "aws", "azure", "baidu", "cilium", "gcp", "ibm", "kube-vip", "metallb", "openstack", "tke"];

/// How Pod addresses are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodRoutes {
    /// Only by `dataplane.routes` and connected networks.
    Route,
    /// Through the InternalIP of the node whose `spec.podCIDRs` contain them.
    Node,
}

/// `services.defaults`.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceDefaults {
    /// `forwarding`: `dsr-l2`, `dsr-ipip`, `dsr-gue`, `dsr-gre`, `dsr-geneve`, `dsr-dscp`, `nat` or `fullnat`. Default
    /// `fullnat`.
    pub forwarding: ForwardingMode,
    /// `forwardingLocal`: the mode that replaces `fullnat` for Services with `externalTrafficPolicy: Local`, which
    /// requires clients' addresses: a DSR mode or `nat`, depending on how the backends are prepared, or `fullnat` if
    /// the addresses aren't needed. Default none: `fullnat`, with a warning for each such Service.
    pub forwarding_local: Option<ForwardingMode>,
    /// `gueVariant` (0 or 1, default 1), `guePort` (default 6080), `greKey` (default none), `genevePort` (default
    /// 6081) and `geneveVni` (default 0): the options of `dsr-gue`, `dsr-gre` and `dsr-geneve`.
    pub tunnel: TunnelOptions,
    /// `target`: `pod` or `node`. Default `pod`.
    pub target: Target,
    /// `scheduler`: how the backend of a new flow is chosen, `rendezvous`, `maglev`, `wrr`, `lc`, `sed`, `nq`, `sh` or
    /// `dh`. Default `rendezvous`.
    pub scheduler: Scheduler,
    /// `hash`: the hash input of `rendezvous` and `maglev`, `flow` or `client`. Default `flow`.
    pub hash: HashInput,
    /// `tableSize`: slots of Maglev tables, a prime from 251 to 655373. It has no effect on Services with a scheduler
    /// other than `maglev`. Default `65537`.
    pub table_size: u32,
    /// `drainTimeout`: how long flows of a removed backend continue, 0s to 24h. Default 300s.
    pub drain_timeout: Duration,
    /// `slowStart`: how long a backend that has become ready takes to get its full share, 0s or 10s to 1h. Default
    /// 0s: at once.
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

/// Whether packets are sent to endpoints or to nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The endpoint.
    Pod,
    /// The nodes of the cluster, whose proxies forward to the endpoints.
    Node,
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

/// Which flows get an entry in DSR modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowTracking {
    /// All.
    Always,
    /// Flows whose backend would change, for some time after a change of the backends.
    OnChange,
}

/// How clients are treated whose address family has no source range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherFamily {
    /// No client is admitted.
    Deny,
    /// All clients are admitted.
    Allow,
}

/// The meaning of a word in the configuration or in an annotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word<T> {
    /// A supported value.
    Known(T),
    /// A valid value that is not supported yet.
    NotYet,
    /// An unknown value.
    Unknown,
}

/// The values that [`forwarding`] accepts.
pub const FORWARDING_ACCEPTED: &str =
    "dsr-l2, dsr-ipip, dsr-gue, dsr-gre, dsr-geneve, dsr-dscp, nat, fullnat";
/// The values that [`target`] accepts.
pub const TARGET_ACCEPTED: &str = "pod, node";
/// The values that [`scheduler`] accepts.
pub const SCHEDULER_ACCEPTED: &str = "rendezvous, maglev, wrr, lc, sed, nq, sh, dh";
/// The number of slots of the smallest Maglev table.
const TABLE_SIZE_MIN: u32 = 251;

/// Reads a forwarding mode.
pub fn forwarding(word: &str) -> Word<ForwardingMode> {
    match word {
        "dsr-l2" => Word::Known(ForwardingMode::DsrL2),
        "dsr-ipip" => Word::Known(ForwardingMode::DsrIpip),
        "dsr-gue" => Word::Known(ForwardingMode::DsrGue),
        "dsr-gre" => Word::Known(ForwardingMode::DsrGre),
        "dsr-geneve" => Word::Known(ForwardingMode::DsrGeneve),
        "dsr-dscp" => Word::Known(ForwardingMode::DsrDscp),
        "nat" => Word::Known(ForwardingMode::Nat),
        "fullnat" => Word::Known(ForwardingMode::FullNat),
        _ => Word::Unknown,
    }
}

/// Reads a target.
pub fn target(word: &str) -> Word<Target> {
    match word {
        "pod" => Word::Known(Target::Pod),
        "node" => Word::Known(Target::Node),
        _ => Word::Unknown,
    }
}

/// Reads a scheduler.
pub fn scheduler(word: &str) -> Word<Scheduler> {
    match word {
        "rendezvous" => Word::Known(Scheduler::Rendezvous),
        "maglev" => Word::Known(Scheduler::Maglev),
        "wrr" => Word::Known(Scheduler::WeightedRoundRobin),
        "lc" => Word::Known(Scheduler::Loads(LoadRule::LeastConnections)),
        "sed" => Word::Known(Scheduler::Loads(LoadRule::ShortestDelay)),
        "nq" => Word::Known(Scheduler::Loads(LoadRule::NeverQueue)),
        "sh" => Word::Known(Scheduler::SourceHash),
        "dh" => Word::Known(Scheduler::DestinationHash),
        _ => Word::Unknown,
    }
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

/// The values that [`flow_tracking`] accepts.
pub const FLOW_TRACKING_ACCEPTED: &str = "always, on-change";

/// Reads which flows get an entry.
pub fn flow_tracking(word: &str) -> Word<FlowTracking> {
    match word {
        "always" => Word::Known(FlowTracking::Always),
        "on-change" => Word::Known(FlowTracking::OnChange),
        _ => Word::Unknown,
    }
}

/// The values that [`hash_input`] accepts.
pub const HASH_ACCEPTED: &str = "flow, client";

/// Reads the hash input for the choice of a backend.
pub fn hash_input(word: &str) -> Word<HashInput> {
    match word {
        "flow" => Word::Known(HashInput::Flow),
        "client" => Word::Known(HashInput::Client),
        _ => Word::Unknown,
    }
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
    section(parent, "services", |fields| {
        section(fields, "defaults", |defaults| {
            decode_defaults(defaults, &mut config.defaults);
            Some(())
        });
        config.node_port_addresses =
            fields.items("nodePortAddresses").iter().filter_map(Field::network).collect();
        config.health_check_node_port_networks =
            fields.items("healthCheckNodePortNetworks").iter().filter_map(Field::network).collect();
        config.own_cluster_ips = fields.get("ownClusterIPs").and_then(|f| f.boolean()).unwrap_or(false);
        let unserved =
            fields.get("unservedPorts").and_then(|f| f.one_of(&[("reject", true), ("drop", false)]));
        policy.reject_unserved_ports = unserved.unwrap_or(policy.reject_unserved_ports);
        let choices = [("route", PodRoutes::Route), ("node", PodRoutes::Node)];
        let routes = fields.get("podRoutes").and_then(|f| f.one_of(&choices));
        config.pod_routes = routes.unwrap_or(PodRoutes::Route);
        let choices = [("deny", OtherFamily::Deny), ("allow", OtherFamily::Allow)];
        let other = fields.get("sourceRangesOtherFamily").and_then(|f| f.one_of(&choices));
        config.source_ranges_other_family = other.unwrap_or(OtherFamily::Deny);
        config.compat = fields.items("compat").iter().filter_map(compat).collect();
        Some(())
    });
    config
}

fn decode_defaults(fields: &Fields<'_>, defaults: &mut ServiceDefaults) {
    if let Some(mode) = word(fields.get("forwarding"), forwarding, FORWARDING_ACCEPTED) {
        defaults.forwarding = mode;
    }
    defaults.forwarding_local = word(fields.get("forwardingLocal"), forwarding, FORWARDING_ACCEPTED);
    tunnels::decode(fields, &mut defaults.tunnel);
    if let Some(value) = word(fields.get("target"), target, TARGET_ACCEPTED) {
        defaults.target = value;
    }
    if let Some(value) = word(fields.get("scheduler"), scheduler, SCHEDULER_ACCEPTED) {
        defaults.scheduler = value;
    }
    if let Some(value) = word(fields.get("hash"), hash_input, HASH_ACCEPTED) {
        defaults.hash = value;
    }
    if let Some(field) = fields.get("tableSize") {
        let written = scalar_text(field.node).unwrap_or_default();
        match table_size(written) {
            Ok(size) => defaults.table_size = size,
            Err(accepted) => {
                field.error(format_args!("{} is not accepted", field.node.describe()), accepted);
            }
        }
    }
    let day = Duration::from_secs(24 * 3600);
    if let Some(timeout) = fields.get("drainTimeout").and_then(|f| f.duration(Duration::ZERO..=day)) {
        defaults.drain_timeout = timeout;
    }
    if let Some(field) = fields.get("slowStart") {
        match slow_start(scalar_text(field.node).unwrap_or_default()) {
            Some(time) => defaults.slow_start = time,
            None => {
                field.error(format_args!("{} is not accepted", field.node.describe()), SLOW_START_ACCEPTED);
            }
        }
    }
    let choices = [("reject", NoEndpoints::Reject), ("drop", NoEndpoints::Drop)];
    if let Some(value) = fields.get("noEndpoints").and_then(|f| f.one_of(&choices)) {
        defaults.no_endpoints = value;
    }
    if let Some(value) = word(fields.get("flowTracking"), flow_tracking, FLOW_TRACKING_ACCEPTED) {
        defaults.flow_tracking = value;
    }
    if let Some(field) = fields.get("mssClamp") {
        match mss_clamp(scalar_text(field.node).unwrap_or_default()) {
            Some(clamp) => defaults.mss_clamp = clamp,
            None => {
                let what = format_args!("{} is not accepted", field.node.describe());
                field.error(what, MSS_CLAMP_ACCEPTED);
            }
        }
    }
}

/// Reads a word, with a separate error for a word that is not supported yet.
fn word<T>(field: Option<Field<'_>>, read: impl Fn(&str) -> Word<T>, accepted: &str) -> Option<T> {
    let field = field?;
    let written = field.string()?;
    match read(written) {
        Word::Known(value) => Some(value),
        Word::NotYet => {
            field.error(format_args!("{written} is not supported yet"), accepted);
            None
        }
        Word::Unknown => {
            let near = text::nearest(written, &accepted.split(", ").collect::<Vec<_>>()).join(", ");
            let hint = if near.is_empty() { String::new() } else { format!(" (nearest: {near})") };
            field.error(format_args!("{written:?} is not known{hint}"), accepted);
            None
        }
    }
}

fn compat(field: &Field<'_>) -> Option<String> {
    const SYNONYM: (&str, &str) = ("tencent", "tke");
    let written = field.string()?;
    let vendor = if written == SYNONYM.0 { SYNONYM.1 } else { written };
    if VENDORS.contains(&vendor) {
        return Some(vendor.to_owned());
    }
    let near = text::nearest(written, &VENDORS).join(", ");
    let hint = if near.is_empty() { String::new() } else { format!(" (nearest: {near})") };
    field.error(format_args!("{written:?} is not known{hint}"), VENDORS.join(", "));
    None
}
