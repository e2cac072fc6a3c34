//! `health`: how backends are checked, unless annotations of a Service override it.
//!
//! Annotations and this section accept the same values; [`health_protocol`] and [`health_path`] read both.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tidegate_spec::PassiveHealth;

use super::passive_health;
use super::section::section;
use super::services::Word;
use crate::health::Rules;
use crate::yaml::{Field, Fields, text};

/// The validated `health` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthConfig {
    /// `protocol`: `tcp`, `http`, `https`, `udp` (for UDP ports; TCP ports use `tcp`), `sctp` (for SCTP ports; TCP
    /// ports use `tcp`), or `none`. SCTP ports use `sctp` except with `none`. Default `tcp`.
    pub protocol: HealthProtocol,
    /// `path`: the path that `http` and `https` request. Default `/`.
    pub path: Arc<str>,
    /// `interval`: between checks of one backend, 100ms to 1h, default 2s. `timeout`: of one check, 10ms to `interval`,
    /// default 1s, or a shorter `interval`. `healthyThreshold`: consecutive successes that restore a backend, 1 to 100,
    /// default 2. `unhealthyThreshold`: consecutive failures that remove it, 1 to 100, default 3. `damping`: whether a
    /// backend whose state changes more than 4 times within 60 checks needs more consecutive checks, default `true`.
    pub rules: Rules,
    /// `failOpen`: whether failures are ignored if all checked backends of a service port fail at once. Default
    /// `true`: Kubernetes reports them as ready, so the check or the gateway's path to them is the more likely fault,
    /// and a backend that may answer is better than none.
    pub fail_open: bool,
    /// `dsrDestination`: where backends in DSR modes are checked. `vip`: at the VIP, like clients' packets, so that a
    /// backend without the VIP is detected. `backend`: at their own addresses. Default `vip`.
    pub dsr_destination: DsrDestination,
    /// `intervalMin`: the shortest interval that a Service may request by annotation, 100ms to 1h, default 100ms.
    pub interval_min: Duration,
    /// `timeoutMax`: the longest timeout that a Service may request by annotation, 10ms to 1h, default 1m.
    pub timeout_max: Duration,
    /// `allowedNetworks`: endpoints outside these networks are not checked, since a Service's owner may write any
    /// address to an EndpointSlice. Default none. With `source.directory`, whose objects belong to the operator, all
    /// networks are then allowed. With `source.kubernetes`, the networks of backends are allowed: the links of
    /// `dataplane.interfaces`, the destinations of `dataplane.routes` except default routes, and, for an endpoint on
    /// a node of the cluster, this node's InternalIPs and `spec.podCIDRs`. Nodes themselves (target `node`) are
    /// always checked.
    pub allowed_networks: Option<Vec<IpNet>>,
    /// `passive`: the reaction to new connections that backends refuse or ignore. `failures`: the number of consecutive
    /// failures that excludes a backend, 0 (never) to 100, default 3. `retries`: the number of other backends to try
    /// for a refused connection, 0 to 3, default 2. `setAside`: how long a backend is excluded, 1s to 1h, default 10s.
    /// `maxShare`: the maximum percentage of a port's backends that may be excluded, default 50.
    pub passive: PassiveHealth,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self {
            protocol: HealthProtocol::Tcp,
            path: "/".into(),
            rules: Rules::default(),
            fail_open: true,
            dsr_destination: DsrDestination::Vip,
            interval_min: *HEALTH_INTERVAL.start(),
            timeout_max: Duration::from_secs(60),
            allowed_networks: None,
            passive: PassiveHealth::default(),
        }
    }
}

/// Where backends in DSR modes are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DsrDestination {
    /// At the VIP.
    Vip,
    /// At their own addresses.
    Backend,
}

/// The kind of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthProtocol {
    /// A TCP connection that must be accepted.
    Tcp,
    /// A GET that must be answered with 200 to 399.
    Http,
    /// Like [`Self::Http`], over TLS with any certificate.
    Https,
    /// A datagram that must not be answered with port unreachable.
    Udp,
    /// An INIT that must be answered with INIT ACK.
    Sctp,
    /// No check.
    None,
}

/// The values that [`health_protocol`] accepts.
pub const HEALTH_PROTOCOL_ACCEPTED: &str = "tcp, http, https, udp, sctp, none";
/// The values that [`health_path`] accepts.
pub const HEALTH_PATH_ACCEPTED: &str = "a path such as /healthz, at most 1024 bytes";
/// The accepted interval between checks.
pub const HEALTH_INTERVAL: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);
/// The accepted timeout of a check, which is also limited by the interval.
pub const HEALTH_TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(3600);
/// The accepted number of consecutive checks.
pub const HEALTH_THRESHOLD: RangeInclusive<u32> = 1..=100;

/// Reads the protocol of a check.
pub fn health_protocol(word: &str) -> Word<HealthProtocol> {
    match word {
        "tcp" => Word::Known(HealthProtocol::Tcp),
        "http" => Word::Known(HealthProtocol::Http),
        "https" => Word::Known(HealthProtocol::Https),
        "udp" => Word::Known(HealthProtocol::Udp),
        "none" => Word::Known(HealthProtocol::None),
        "sctp" => Word::Known(HealthProtocol::Sctp),
        "grpc" | "http2" | "icmp" => Word::NotYet,
        _ => Word::Unknown,
    }
}

/// Reads a path with its query, as it is written to the request line.
pub fn health_path(text: &str) -> Option<Arc<str>> {
    let well_formed = text.starts_with('/') && !text.contains('#') && text.len() <= 1024;
    (well_formed && text.parse::<http::uri::PathAndQuery>().is_ok()).then(|| text.into())
}

/// Reads a limit on the requests of Services.
fn limit(fields: &Fields<'_>, key: &'static str, range: RangeInclusive<Duration>) -> Option<Duration> {
    fields.get(key).and_then(|field| field.duration(range))
}

pub(super) fn decode(parent: &Fields<'_>) -> HealthConfig {
    let mut config = HealthConfig::default();
    section(parent, "health", |fields| {
        let rules = &mut config.rules;
        let (interval, timeout) = (fields.get("interval"), fields.get("timeout"));
        if let Some(value) = interval.as_ref().and_then(|f| f.duration(HEALTH_INTERVAL)) {
            rules.interval = value;
        }
        if let Some(value) = timeout.as_ref().and_then(|f| f.duration(HEALTH_TIMEOUT)) {
            rules.timeout = value;
        }
        config.interval_min = limit(fields, "intervalMin", HEALTH_INTERVAL).unwrap_or(config.interval_min);
        config.timeout_max = limit(fields, "timeoutMax", HEALTH_TIMEOUT).unwrap_or(config.timeout_max);
        // A default must respect the configured limits and the configured interval.
        if interval.is_none() {
            rules.interval = rules.interval.max(config.interval_min);
        }
        if timeout.is_none() {
            rules.timeout = rules.timeout.min(config.timeout_max).min(rules.interval);
        }
        let shown = text::show_duration;
        if let Some(field) = interval.as_ref().filter(|_| rules.interval < config.interval_min) {
            let min = shown(config.interval_min);
            let what = format_args!("interval {} is shorter than intervalMin {min}", shown(rules.interval));
            field.error(what, format!("an interval of at least {min}"));
        }
        if let Some(field) = timeout.as_ref().filter(|_| rules.timeout > config.timeout_max) {
            let max = shown(config.timeout_max);
            let what = format_args!("timeout {} is longer than timeoutMax {max}", shown(rules.timeout));
            field.error(what, format!("a timeout of at most {max}"));
        }
        if let Some(field) = timeout.as_ref().filter(|_| rules.timeout > rules.interval) {
            let [timeout, interval] = [rules.timeout, rules.interval].map(text::show_duration);
            let what = format_args!("timeout {timeout} is longer than interval {interval}");
            field.error(what, format!("a timeout of at most the interval, {interval}"));
        }
        let thresholds = i64::from(*HEALTH_THRESHOLD.start())..=i64::from(*HEALTH_THRESHOLD.end());
        let threshold = |key| {
            let number = fields.get(key).and_then(|f| f.integer(thresholds.clone()));
            number.and_then(|n| u32::try_from(n).ok())
        };
        rules.healthy_threshold = threshold("healthyThreshold").unwrap_or(rules.healthy_threshold);
        rules.unhealthy_threshold = threshold("unhealthyThreshold").unwrap_or(rules.unhealthy_threshold);
        let choices = [("vip", DsrDestination::Vip), ("backend", DsrDestination::Backend)];
        let destination = fields.get("dsrDestination").and_then(|f| f.one_of(&choices));
        config.dsr_destination = destination.unwrap_or(config.dsr_destination);
        if fields.get("allowedNetworks").is_some() {
            let networks = fields.items("allowedNetworks");
            config.allowed_networks = Some(networks.iter().filter_map(Field::network).collect());
        }
        config.passive = passive_health::decode(fields);
        rules.damping = fields.get("damping").and_then(|f| f.boolean()).unwrap_or(rules.damping);
        config.fail_open = fields.get("failOpen").and_then(|f| f.boolean()).unwrap_or(config.fail_open);
        if let Some(field) = fields.get("protocol")
            && let Some(word) = field.string()
        {
            match health_protocol(word) {
                Word::Known(protocol) => config.protocol = protocol,
                Word::NotYet => {
                    field.error(format_args!("{word} is not supported yet"), HEALTH_PROTOCOL_ACCEPTED);
                }
                Word::Unknown => {
                    field.error(format_args!("the text {word:?} is not accepted"), HEALTH_PROTOCOL_ACCEPTED);
                }
            }
        }
        if let Some(field) = fields.get("path") {
            config.path = field.parsed(health_path, HEALTH_PATH_ACCEPTED).unwrap_or(config.path.clone());
            if !matches!(config.protocol, HealthProtocol::Http | HealthProtocol::Https) {
                // Services may choose http by annotation and then use this path.
                field
                    .warning("path has an effect only with protocol http or https", "protocol http or https");
            }
        }
        Some(())
    });
    config
}
