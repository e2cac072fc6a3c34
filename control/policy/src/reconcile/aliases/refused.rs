//! Annotations that the gateway can't implement and must not ignore: they restrict who reaches a Service, or change
//! what its backends receive.
//!
//! Without the annotation, a Service that only some clients may reach would be open to all, and backends that rely on
//! a load balancer that terminates TLS or passes on the client's address would misbehave. So none of the Service's
//! ports is programmed.

use tidegate_model::objects::Labels;

use super::super::annotations::key;
use super::value::AliasValue::{self, Nothing, Ours, Refused};

const NO_LIMIT: &str = "spec.loadBalancerSourceRanges instead of this annotation";
const NO_TLS: &str = "backends that terminate TLS themselves, without this annotation";

/// Looks up a word in a table. Any other word is invalid; the message then lists the words that aren't refused.
fn one_of<'a>(value: &str, words: &[(&'static str, AliasValue<'a>)]) -> AliasValue<'a> {
    match words.iter().find(|(word, _)| *word == value) {
        Some((_, meaning)) => meaning.clone(),
        None => {
            let accepted = words.iter().filter(|(_, meaning)| !matches!(meaning, Refused(..)));
            let accepted: Vec<&str> = accepted.map(|(word, _)| *word).collect();
            AliasValue::InvalidPort(accepted.join(", ").into())
        }
    }
}

/// Any non-empty value restricts the clients.
pub(super) fn limits_clients<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    if value.is_empty() { Nothing } else { limit() }
}

fn limit() -> AliasValue<'static> {
    Refused("it restricts the clients of the Service in a way that the gateway does not support", NO_LIMIT)
}

/// Cilium: whether `spec.loadBalancerSourceRanges` lists the clients to refuse.
pub(super) fn source_ranges_policy<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    let denies = Refused(
        "source ranges that deny clients are not supported",
        "allow, with the ranges of admitted clients in spec.loadBalancerSourceRanges",
    );
    one_of(value, &[("allow", Nothing), ("deny", denies)])
}

/// Alibaba: whether an access list of clients applies.
pub(super) fn acl_status<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    one_of(value, &[("off", Nothing), ("on", limit())])
}

/// A certificate with which the load balancer terminates TLS.
pub(super) fn certificate<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    if value.is_empty() { Nothing } else { ends_tls() }
}

fn ends_tls() -> AliasValue<'static> {
    Refused("the gateway does not terminate TLS, and the backends may expect plain text", NO_TLS)
}

/// AWS: the protocol between the load balancer and the backends.
pub(super) fn backend_protocol<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    let other =
        || Refused("the gateway forwards what clients send: it adds neither TLS nor HTTP headers", "tcp");
    let others = ["http", "https", "ssl", "tls"].map(|word| (word, other()));
    one_of(value, &[&[("tcp", Nothing)], &others[..]].concat())
}

/// Alibaba: `https:443,tcp:80`.
pub(super) fn protocol_ports<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    let protocols =
        || value.split(',').map(|item| item.split_once(':').map_or("", |(protocol, _)| protocol.trim()));
    if protocols().all(|protocol| matches!(protocol, "tcp" | "udp")) {
        Nothing
    } else if protocols().all(|protocol| matches!(protocol, "tcp" | "udp" | "http" | "https")) {
        ends_tls()
    } else {
        AliasValue::InvalidPort("protocols and ports such as tcp:80,udp:53".into())
    }
}

/// OpenStack: whether backends receive the client's address in an HTTP header.
pub(super) fn forwarded_for<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    let wanted = Refused(
        "the gateway adds no HTTP headers",
        "a forwarding mode that keeps the client's address, or tidegate.dev/proxy-protocol, instead of this annotation",
    );
    one_of(value, &[("false", Nothing), ("true", wanted)])
}

/// OpenStack: the version of the PROXY protocol; `true` means version 1.
pub(super) fn openstack_proxy_protocol<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    let version = |version: &'static str| Ours(key::PROXY_PROTOCOL, version.into());
    one_of(
        value,
        &[("true", version("v1")), ("v1", version("v1")), ("v2", version("v2")), ("false", Nothing)],
    )
}

/// Alibaba: version 2 of the PROXY protocol.
pub(super) fn alibaba_proxy_protocol<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    one_of(value, &[("on", Ours(key::PROXY_PROTOCOL, "v2".into())), ("off", Nothing)])
}

/// IBM: a list of features. IBM doesn't document which version of the PROXY protocol its load balancers send.
pub(super) fn ibm_features<'a>(value: &'a str, annotations: &'a Labels) -> AliasValue<'a> {
    let has_feature = value.split(',').any(|feature| feature.trim() == "proxy-protocol");
    if !has_feature {
        AliasValue::Ignored("it is not supported".into(), "tidegate.dev/ annotations")
    } else if annotations.contains_key(key::PROXY_PROTOCOL) {
        Nothing
    } else {
        Refused("it does not name a version of the PROXY protocol", "tidegate.dev/proxy-protocol in addition")
    }
}
