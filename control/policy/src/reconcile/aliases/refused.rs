//! Annotations that the gateway cannot follow and must not ignore: they limit who reaches a Service, or change what its
//! backends get.
//!
//! A Service that was written to be reachable by a few clients, or whose backends rely on a balancer that ends TLS or names
//! the client, would be open or confused without that. So none of its ports is programmed.

use tidegate_model::objects::Labels;

use super::super::annotations::key;
use super::value::AliasValue;

const NO_LIMIT: &str = "spec.loadBalancerSourceRanges instead of the annotation";
const NO_TLS: &str = "backends that end TLS themselves, and no annotation";

/// Any value except none limits the clients.
pub(super) fn limits_clients<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    if value.is_empty() { AliasValue::Nothing } else { limit() }
}

fn limit() -> AliasValue<'static> {
    AliasValue::Refused(
        "it limits the clients of the Service in a way that the gateway does not know",
        NO_LIMIT,
    )
}

/// Cilium: whether `spec.loadBalancerSourceRanges` lists the clients that are refused.
pub(super) fn source_ranges_policy<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    match value {
        "allow" => AliasValue::Nothing,
        "deny" => AliasValue::Refused(
            "source ranges that deny are not known",
            "allow, and the ranges of clients that are admitted in spec.loadBalancerSourceRanges",
        ),
        _ => AliasValue::InvalidPort("allow".into()),
    }
}

/// Alibaba: whether a list of clients applies.
pub(super) fn acl_status<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    match value {
        "off" => AliasValue::Nothing,
        "on" => limit(),
        _ => AliasValue::InvalidPort("off".into()),
    }
}

/// A certificate with which the balancer ends TLS.
pub(super) fn certificate<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    if value.is_empty() { AliasValue::Nothing } else { ends_tls() }
}

fn ends_tls() -> AliasValue<'static> {
    AliasValue::Refused("the gateway passes TLS on to backends, which may expect plain text", NO_TLS)
}

/// AWS: what the balancer and the backends speak.
pub(super) fn backend_protocol<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    match value {
        "tcp" => AliasValue::Nothing,
        "http" | "https" | "ssl" | "tls" => AliasValue::Refused(
            "the gateway passes on what clients send: it adds no TLS and no header of HTTP for backends",
            "tcp",
        ),
        _ => AliasValue::InvalidPort("tcp".into()),
    }
}

/// Alibaba: `https:443,tcp:80`.
pub(super) fn protocol_ports<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    let protocols =
        || value.split(',').map(|item| item.split_once(':').map_or("", |(protocol, _)| protocol.trim()));
    if protocols().all(|protocol| matches!(protocol, "tcp" | "udp")) {
        AliasValue::Nothing
    } else if protocols().all(|protocol| matches!(protocol, "tcp" | "udp" | "http" | "https")) {
        ends_tls()
    } else {
        AliasValue::InvalidPort("protocols and ports such as tcp:80,udp:53".into())
    }
}

/// OpenStack: whether backends get the client's address in a header of HTTP.
pub(super) fn forwarded_for<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    match value {
        "false" => AliasValue::Nothing,
        "true" => AliasValue::Refused(
            "the gateway adds no header of HTTP",
            "a forwarding mode that keeps the client's address, or tidegate.dev/proxy-protocol, and no annotation",
        ),
        _ => AliasValue::InvalidPort("true, false".into()),
    }
}

/// OpenStack: the version of the PROXY protocol; `true` is version 1.
pub(super) fn openstack_proxy_protocol<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    match value {
        "false" => AliasValue::Nothing,
        "true" | "v1" => AliasValue::Ours(key::PROXY_PROTOCOL, "v1".into()),
        "v2" => AliasValue::Ours(key::PROXY_PROTOCOL, "v2".into()),
        _ => AliasValue::InvalidPort("true, v1, v2, false".into()),
    }
}

/// Alibaba: version 2 of the PROXY protocol.
pub(super) fn alibaba_proxy_protocol<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    match value {
        "off" => AliasValue::Nothing,
        "on" => AliasValue::Ours(key::PROXY_PROTOCOL, "v2".into()),
        _ => AliasValue::InvalidPort("on, off".into()),
    }
}

/// IBM: features, separated by commas. Which version of the PROXY protocol its balancers send is not said there.
pub(super) fn ibm_features<'a>(value: &'a str, annotations: &'a Labels) -> AliasValue<'a> {
    let asks = value.split(',').any(|feature| feature.trim() == "proxy-protocol");
    if !asks {
        AliasValue::Ignored("it is not supported".into(), "annotations of tidegate.dev/")
    } else if annotations.contains_key(key::PROXY_PROTOCOL) {
        AliasValue::Nothing
    } else {
        AliasValue::Refused(
            "it does not say which version of the PROXY protocol",
            "tidegate.dev/proxy-protocol beside it",
        )
    }
}
