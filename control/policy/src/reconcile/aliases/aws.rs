//! `service.beta.kubernetes.io/aws-load-balancer-*`, with the ranges and defaults of AWS.
//!
//! Pure functions of a value, and of other annotations if its meaning depends on them.

use std::time::Duration;

use tidegate_model::health::Rules;
use tidegate_model::objects::Labels;
use tidegate_model::yaml::text;

use super::super::annotations::key;
use super::value::{AliasValue, boolean, number};

macro_rules! key_of {
    ($rest:literal) => {
        concat!("service.beta.kubernetes.io/aws-load-balancer-", $rest)
    };
}

pub(super) const PREFIX: &str = key_of!("");
pub(super) const PROXY_PROTOCOL: &str = key_of!("proxy-protocol");
pub(super) const DRAINING_ENABLED: &str = key_of!("connection-draining-enabled");
pub(super) const DRAINING_TIMEOUT: &str = key_of!("connection-draining-timeout");
pub(super) const IDLE_TIMEOUT: &str = key_of!("connection-idle-timeout");
pub(super) const HEALTHY_THRESHOLD: &str = key_of!("healthcheck-healthy-threshold");
pub(super) const UNHEALTHY_THRESHOLD: &str = key_of!("healthcheck-unhealthy-threshold");
pub(super) const HEALTH_INTERVAL: &str = key_of!("healthcheck-interval");
pub(super) const HEALTH_TIMEOUT: &str = key_of!("healthcheck-timeout");
pub(super) const HEALTH_PROTOCOL: &str = key_of!("healthcheck-protocol");
pub(super) const HEALTH_PORT: &str = key_of!("healthcheck-port");
pub(super) const HEALTH_PATH: &str = key_of!("healthcheck-path");
pub(super) const TARGET_NODE_LABELS: &str = key_of!("target-node-labels");
pub(super) const TARGET_TYPE: &str = key_of!("nlb-target-type");
pub(super) const INTERNAL: &str = key_of!("internal");
pub(super) const SCHEME: &str = key_of!("scheme");
pub(super) const TYPE: &str = key_of!("type");
pub(super) const TARGET_GROUP: &str = key_of!("target-group-attributes");
pub(super) const PROXY_PORTS: &str = key_of!("proxy-protocol-per-target-group");
pub(super) const CERTIFICATE: &str = key_of!("ssl-cert");
pub(super) const BACKEND_PROTOCOL: &str = key_of!("backend-protocol");
pub(super) const SECURITY_GROUPS: &str = key_of!("security-groups");
pub(super) const PREFIX_LISTS: &str = key_of!("security-group-prefix-lists");
pub(super) const ACCESS_LOG_ENABLED: &str = key_of!("access-log-enabled");
pub(super) const ACCESS_LOG: &str = key_of!("access-log-");
pub(super) const CROSS_ZONE: &str = key_of!("cross-zone-load-balancing-enabled");

const INTERVAL: u32 = 10;
const TIMEOUT: u32 = 5;

/// Sets the defaults of AWS if the Service has any of the AWS health-check annotations: a check every 10 s with a
/// timeout of 5 s, 2 successes to restore a target, and 6 failures to remove it.
pub(in super::super) fn probe_defaults(annotations: &Labels, rules: &mut Rules) {
    let any = [HEALTHY_THRESHOLD, UNHEALTHY_THRESHOLD, HEALTH_INTERVAL, HEALTH_TIMEOUT];
    if !any.iter().any(|key| annotations.contains_key(*key)) {
        return;
    }
    let seconds = |n: u32| Duration::from_secs(u64::from(n));
    rules.interval = seconds(INTERVAL);
    // The default must be shorter than a given interval.
    rules.timeout = seconds(TIMEOUT.min(interval(annotations) - 1));
    rules.healthy_threshold = 2;
    rules.unhealthy_threshold = 6;
}

/// What to write if the health-check defaults are not the intended ones.
pub(in super::super) const ALL_HEALTH_CHECKS: &str = "all of aws-load-balancer-healthcheck-interval, -timeout, \
    -healthy-threshold and -unhealthy-threshold, or none of them";

/// For a Service with a `type` of network load balancer and some but not all of the health-check annotations: the key
/// of `type`, and a note that the defaults of a Classic Load Balancer apply, although a network load balancer of AWS
/// has other defaults.
pub(in super::super) fn classic_defaults(annotations: &Labels) -> Option<(&'static str, String)> {
    let all = [HEALTHY_THRESHOLD, UNHEALTHY_THRESHOLD, HEALTH_INTERVAL, HEALTH_TIMEOUT];
    let written = all.iter().filter(|key| annotations.contains_key(**key)).count();
    let value = annotations.get(TYPE)?.trim();
    if !is_network(annotations) || written == 0 || written == all.len() {
        return None;
    }
    let why = format!(
        "health checks use the defaults of a Classic Load Balancer even with {value:?} \
         (a check every {INTERVAL} s with a timeout of {TIMEOUT} s, 2 successes, 6 failures)"
    );
    Some((TYPE, why))
}

/// Whether the Service requests a network load balancer from AWS.
fn is_network(annotations: &Labels) -> bool {
    let kind = annotations.get(TYPE).map(|kind| kind.trim());
    matches!(kind, Some("nlb" | "nlb-ip" | "external"))
}

/// The interval in seconds, at least 5.
fn interval(annotations: &Labels) -> u32 {
    let written = annotations.get(HEALTH_INTERVAL).and_then(|v| number(v.trim(), &(5..=300)));
    written.unwrap_or(INTERVAL)
}

pub(super) fn proxy_protocol<'a>(value: &'a str, annotations: &'a Labels) -> AliasValue<'a> {
    match value {
        // Network load balancers of AWS send version 2, Classic Load Balancers version 1.
        "*" if is_network(annotations) => AliasValue::Ours(key::PROXY_PROTOCOL, "v2".into()),
        "*" => AliasValue::Ours(key::PROXY_PROTOCOL, "v1".into()),
        // Backends that expect the header would treat the client's first bytes as the header.
        _ => AliasValue::InvalidPort("\"*\"".into()),
    }
}

/// Reads `key=value,key=value`. Backends rely on most of these attributes, so no port is programmed if one is
/// unreadable.
pub(super) fn target_group<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    let pair = |pair: &'a str| pair.split_once('=').map(|(k, v)| (k.trim(), v.trim()));
    let Some(pairs) = value.split(',').map(pair).collect::<Option<Vec<_>>>() else {
        return AliasValue::InvalidPort(
            "attributes separated by commas, such as proxy_protocol_v2.enabled=true".into(),
        );
    };
    let is_sticky = pairs.contains(&("stickiness.enabled", "true"));
    AliasValue::Several(pairs.into_iter().map(|(key, value)| attribute(key, value, is_sticky)).collect())
}

fn attribute<'a>(attribute: &'a str, value: &'a str, is_sticky: bool) -> AliasValue<'a> {
    const FLAG: &str = "true or false, as in proxy_protocol_v2.enabled=true";
    match (attribute, boolean(value)) {
        ("proxy_protocol_v2.enabled", Some(true)) => AliasValue::Ours(key::PROXY_PROTOCOL, "v2".into()),
        ("preserve_client_ip.enabled", Some(true)) => AliasValue::ClientAddress,
        // All connections of a client go to one target.
        ("stickiness.enabled", Some(true)) => AliasValue::Ours(key::HASH, "client".into()),
        ("proxy_protocol_v2.enabled" | "preserve_client_ip.enabled" | "stickiness.enabled", Some(false)) => {
            AliasValue::Nothing
        }
        ("proxy_protocol_v2.enabled" | "preserve_client_ip.enabled" | "stickiness.enabled", None) => {
            AliasValue::InvalidPort(FLAG.into())
        }
        ("stickiness.type", _) if !is_sticky || value == "source_ip" => AliasValue::Nothing,
        ("stickiness.type", _) => AliasValue::InvalidPort("stickiness.type=source_ip".into()),
        ("deregistration_delay.timeout_seconds", _) => seconds(key::DRAIN_TIMEOUT, value, 0, 3600),
        _ => AliasValue::Ignored(
            format!("the attribute {} is not supported", text::shown(attribute)).into(),
            "tidegate.dev/ annotations",
        ),
    }
}

/// Refuses to limit the PROXY protocol to some ports, unless `tidegate.dev/proxy-protocol` is given.
pub(super) fn proxy_ports<'a>(_: &'a str, annotations: &'a Labels) -> AliasValue<'a> {
    if annotations.contains_key(key::PROXY_PROTOCOL) {
        return AliasValue::Nothing;
    }
    AliasValue::Refused(
        "the PROXY protocol applies to all ports of a Service or to none",
        "tidegate.dev/proxy-protocol, and another Service for the ports without the PROXY protocol",
    )
}

pub(super) fn draining_enabled<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    match boolean(value) {
        Some(true) => AliasValue::Nothing,
        Some(false) => AliasValue::Ours(key::DRAIN_TIMEOUT, "0s".into()),
        None => AliasValue::Invalid("true, false".into()),
    }
}

pub(super) fn draining_timeout<'a>(value: &'a str, annotations: &'a Labels) -> AliasValue<'a> {
    if annotations.get(DRAINING_ENABLED).map(|v| v.trim()) != Some("true") {
        let why = "aws-load-balancer-connection-draining-enabled is not \"true\"";
        return AliasValue::Ignored(
            why.into(),
            "aws-load-balancer-connection-draining-enabled: true in addition, or no annotation",
        );
    }
    seconds(key::DRAIN_TIMEOUT, value, 1, 3600)
}

pub(super) fn idle_timeout<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    seconds(key::IDLE_TIMEOUT_TCP, value, 1, 4000)
}

pub(super) fn healthy_threshold<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    threshold(key::HEALTHY_THRESHOLD, value)
}

pub(super) fn unhealthy_threshold<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    threshold(key::UNHEALTHY_THRESHOLD, value)
}

fn threshold<'a>(ours: &'static str, value: &'a str) -> AliasValue<'a> {
    match number(value, &(2..=10)) {
        Some(_) => AliasValue::Ours(ours, value.into()),
        None => AliasValue::Invalid("a number from 2 to 10".into()),
    }
}

pub(super) fn health_interval<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    seconds(key::HEALTH_INTERVAL, value, 5, 300)
}

pub(super) fn health_timeout<'a>(value: &'a str, annotations: &'a Labels) -> AliasValue<'a> {
    let interval = interval(annotations);
    match number(value, &(2..=60)) {
        Some(timeout) if timeout < interval => {
            AliasValue::Ours(key::HEALTH_TIMEOUT, format!("{timeout}s").into())
        }
        _ => AliasValue::Invalid(
            format!("a number of seconds from 2 to 60, less than the interval of {interval} s").into(),
        ),
    }
}

pub(super) fn health_protocol<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    AliasValue::Ours(key::HEALTH_PROTOCOL, value.to_ascii_lowercase().into())
}

pub(super) fn health_port<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    // The endpoint's own port.
    if value == "traffic-port" {
        AliasValue::Nothing
    } else {
        AliasValue::Ours(key::HEALTH_PORT, value.into())
    }
}

pub(super) fn health_path<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    AliasValue::Ours(key::HEALTH_PATH, value.into())
}

/// Reads `key=value,key=value`, which is also a valid selector.
pub(super) fn target_node_labels<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    let pair = |p: &str| p.split_once('=').is_some_and(|(k, v)| !k.trim().is_empty() && !v.contains('='));
    if value.split(',').all(pair) {
        AliasValue::Ours(key::BACKEND_NODE_SELECTOR, value.into())
    } else {
        AliasValue::InvalidPort("labels of nodes such as disk=ssd,zone=a".into())
    }
}

pub(super) fn target_type<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    match value {
        "ip" => AliasValue::Ours(key::TARGET, "pod".into()),
        "instance" => AliasValue::Ours(key::TARGET, "node".into()),
        _ => AliasValue::Invalid("ip, instance".into()),
    }
}

/// The gateway is a network load balancer.
pub(super) fn balancer_type<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    match value {
        "nlb" | "external" => AliasValue::Nothing,
        "nlb-ip" => AliasValue::Ours(key::TARGET, "pod".into()),
        _ => AliasValue::Invalid("nlb, nlb-ip, external".into()),
    }
}

/// The log of flows. AWS logs requests, which only a proxy sees.
pub(super) fn access_log_enabled<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    match boolean(value) {
        Some(true) => AliasValue::Ours(key::FLOW_LOG, "true".into()),
        Some(false) => AliasValue::Ours(key::FLOW_LOG, "false".into()),
        None => AliasValue::Invalid("true, false".into()),
    }
}

pub(super) fn access_log<'a>(_: &'a str, _: &'a Labels) -> AliasValue<'a> {
    AliasValue::Ignored(
        "flowLog in the configuration of the gateway decides where and when the log is written".into(),
        "flowLog.file, flowLog.ipfix",
    )
}

pub(super) fn cross_zone<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    match boolean(value) {
        // Every ready endpoint takes flows, unless all of them have hints.
        Some(true) => AliasValue::Nothing,
        Some(false) => AliasValue::Ignored(
            "the hints of EndpointSlices decide whether flows stay in a zone".into(),
            "spec.trafficDistribution: PreferClose",
        ),
        None => AliasValue::Invalid("true, false".into()),
    }
}

fn seconds(ours: &'static str, value: &str, min: u32, max: u32) -> AliasValue<'static> {
    match number(value, &(min..=max)) {
        Some(n) => AliasValue::Ours(ours, format!("{n}s").into()),
        None => AliasValue::Invalid(format!("a number of seconds from {min} to {max}").into()),
    }
}
