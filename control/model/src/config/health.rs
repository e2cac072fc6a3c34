//! `health`: how backends are checked, unless annotations of a Service override it.
//!
//! Annotations and this section accept the same values; [`health_path`] reads both.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tidegate_spec::PassiveHealth;

use super::passive_health;
use crate::health::Rules;
use crate::yaml::{Field, Fields, text};

/// The validated `health` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthConfig {
    /// `protocol`. `udp` and `sctp` are for ports of these protocols; TCP ports then use `tcp`. SCTP ports use `sctp`
    /// except with `none`.
    pub protocol: HealthProtocol,
    /// `path`: the path that `http` and `https` request. Default `/`.
    pub path: Arc<str>,
    /// `interval`, `timeout`, `healthyThreshold`, `unhealthyThreshold` and `damping`.
    pub rules: Rules,
    /// `failOpen`. Kubernetes reports the backends as ready, so the check or the path to them is the more likely fault.
    pub fail_open: bool,
    /// `dsrDestination`: where backends in DSR modes are checked.
    pub dsr_destination: DsrDestination,
    /// `intervalMin`: the shortest interval that a Service may request by annotation, 100ms to 1h, default 100ms.
    pub interval_min: Duration,
    /// `timeoutMax`: the longest timeout that a Service may request by annotation, 10ms to 1h, default 1m.
    pub timeout_max: Duration,
    /// `allowedNetworks`: a Service's owner may write any address to an EndpointSlice; `None` for the default. Nodes
    /// themselves (target `node`) are always checked.
    pub allowed_networks: Option<Vec<IpNet>>,
    /// `passive`: the reaction to new connections that backends refuse or ignore.
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

tidegate_wire::named! {
    /// Where backends in DSR modes are checked.
    pub enum DsrDestination {
        /// At the VIP.
        Vip => "vip",
        /// At their own addresses.
        Backend => "backend",
    }
}

tidegate_wire::named! {
    /// The kind of a check.
    pub enum HealthProtocol {
        /// A TCP connection that must be accepted.
        Tcp => "tcp",
        /// A GET that must be answered with 200 to 399.
        Http => "http",
        /// Like [`Self::Http`], over TLS with any certificate.
        Https => "https",
        /// A datagram that must not be answered with port unreachable.
        Udp => "udp",
        /// An INIT that must be answered with INIT ACK.
        Sctp => "sctp",
        /// No check.
        None => "none",
    }
}

/// Protocols of checks that are not supported yet.
pub const HEALTH_PROTOCOLS_LATER: [&str; 3] = ["grpc", "http2", "icmp"];
/// The values that [`health_path`] accepts.
pub const HEALTH_PATH_ACCEPTED: &str = "a path such as /healthz, at most 1024 bytes";
/// The accepted interval between checks.
pub const HEALTH_INTERVAL: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);
/// The accepted timeout of a check, which is also limited by the interval.
pub const HEALTH_TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(3600);
/// The accepted number of consecutive checks.
pub const HEALTH_THRESHOLD: RangeInclusive<u32> = 1..=100;

/// Reads a path with its query, as it is written to the request line.
pub fn health_path(text: &str) -> Option<Arc<str>> {
    let well_formed = text.starts_with('/') && !text.contains('#') && text.len() <= 1024;
    (well_formed && text.parse::<http::uri::PathAndQuery>().is_ok()).then(|| text.into())
}

pub(super) fn decode(parent: &Fields<'_>) -> HealthConfig {
    let mut config = HealthConfig::default();
    parent.section("health", |fields| {
        let rules = &mut config.rules;
        let (interval, timeout) = (fields.get("interval"), fields.get("timeout"));
        fields.set("interval", &mut rules.interval, |f| f.duration(HEALTH_INTERVAL));
        fields.set("timeout", &mut rules.timeout, |f| f.duration(HEALTH_TIMEOUT));
        fields.set("intervalMin", &mut config.interval_min, |f| f.duration(HEALTH_INTERVAL));
        fields.set("timeoutMax", &mut config.timeout_max, |f| f.duration(HEALTH_TIMEOUT));
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
        fields.set("healthyThreshold", &mut rules.healthy_threshold, |f| f.integer(HEALTH_THRESHOLD));
        fields.set("unhealthyThreshold", &mut rules.unhealthy_threshold, |f| f.integer(HEALTH_THRESHOLD));
        fields.set("dsrDestination", &mut config.dsr_destination, Field::named);
        config.allowed_networks =
            fields.get("allowedNetworks").map(|_| fields.each("allowedNetworks", Field::network));
        config.passive = passive_health::decode(fields);
        fields.set("damping", &mut rules.damping, Field::boolean);
        fields.set("failOpen", &mut config.fail_open, Field::boolean);
        fields.set("protocol", &mut config.protocol, |field| {
            let word = field.string()?;
            if HEALTH_PROTOCOLS_LATER.contains(&word) {
                let accepted = text::names::<HealthProtocol>();
                field.error(format_args!("{word} is not supported yet"), accepted);
                return None;
            }
            field.named()
        });
        if let Some(field) = fields.get("path") {
            config.path = field.parsed(health_path, HEALTH_PATH_ACCEPTED).unwrap_or(config.path.clone());
            if !matches!(config.protocol, HealthProtocol::Http | HealthProtocol::Https) {
                // Services may choose http by annotation and then use this path.
                field
                    .warning("path has an effect only with protocol http or https", "protocol http or https");
            }
        }
    });
    config
}
