//! `health`: how backends are probed.

use std::time::Duration;

use super::section;
use crate::yaml::{Fields, text};

/// The validated `health` section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthConfig {
    /// `interval`: between probes of one backend, 100ms to 1h. Default 2s.
    pub interval: Duration,
    /// `timeout`: of one probe, 10ms to `interval`. Default 1s.
    pub timeout: Duration,
    /// `healthyThreshold`: probes in a row that bring a backend in, 1 to 100. Default 2.
    pub healthy_threshold: u32,
    /// `unhealthyThreshold`: probes in a row that take it out, 1 to 100. Default 3.
    pub unhealthy_threshold: u32,
    /// `protocol`: `tcp`. Default `tcp`.
    pub protocol: HealthProtocol,
}

/// What a probe is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthProtocol {
    /// A TCP connection that is accepted.
    Tcp,
}

pub(super) fn decode(parent: &Fields<'_>) -> HealthConfig {
    let mut config = HealthConfig {
        interval: Duration::from_secs(2),
        timeout: Duration::from_secs(1),
        healthy_threshold: 2,
        unhealthy_threshold: 3,
        protocol: HealthProtocol::Tcp,
    };
    section(parent, "health", |fields| {
        let (interval, timeout) = (fields.get("interval"), fields.get("timeout"));
        let hour = Duration::from_secs(3600);
        if let Some(value) = interval.as_ref().and_then(|f| f.duration(Duration::from_millis(100)..=hour)) {
            config.interval = value;
        }
        if let Some(value) = timeout.as_ref().and_then(|f| f.duration(Duration::from_millis(10)..=hour)) {
            config.timeout = value;
        }
        if config.timeout > config.interval
            && let Some(field) = timeout.as_ref().or(interval.as_ref())
        {
            let [timeout, interval] = [config.timeout, config.interval].map(text::show_duration);
            let what = format_args!("timeout {timeout} is longer than interval {interval}");
            field.error(what, format!("a timeout of at most the interval, {interval}"));
        }
        let threshold =
            |key| fields.get(key).and_then(|f| f.integer(1..=100)).and_then(|n| u32::try_from(n).ok());
        config.healthy_threshold = threshold("healthyThreshold").unwrap_or(config.healthy_threshold);
        config.unhealthy_threshold = threshold("unhealthyThreshold").unwrap_or(config.unhealthy_threshold);
        if let Some(field) = fields.get("protocol") {
            const NOT_YET: [&str; 6] = ["http", "https", "grpc", "udp", "sctp", "icmp"];
            match field.string() {
                Some(word) if NOT_YET.contains(&word) => {
                    field.error(format_args!("{word} is not supported yet"), "tcp");
                }
                Some(_) => {
                    config.protocol =
                        field.one_of(&[("tcp", HealthProtocol::Tcp)]).unwrap_or(config.protocol);
                }
                None => {}
            }
        }
        Some(())
    });
    config
}
