//! Annotations of Tencent's TKE.

use tidegate_model::objects::Labels;

use super::super::annotations::key;
use super::value::{AliasValue, boolean, number};

pub(super) const PREFIX: &str = "service.kubernetes.io/qcloud-loadbalancer-";
pub(super) const BACKENDS_LABEL: &str = "service.kubernetes.io/qcloud-loadbalancer-backends-label";
pub(super) const ONLY_NODES_WITH_PODS: &str = "service.kubernetes.io/local-svc-only-bind-node-with-pod";
pub(super) const BANDWIDTH: &str = "service.kubernetes.io/qcloud-loadbalancer-internet-max-bandwidth-out";
pub(super) const INTERNAL_SUBNET: &str = "service.kubernetes.io/qcloud-loadbalancer-internal-subnetid";

/// A label selector for the nodes that are backends.
pub(super) fn backends_label<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    AliasValue::Ours(key::BACKEND_NODE_SELECTOR, value.into())
}

/// With policy Local, only nodes with endpoints are backends.
pub(super) fn only_nodes_with_pods<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    match boolean(value) {
        Some(true) => AliasValue::Nothing,
        Some(false) => AliasValue::Ignored(
            "with externalTrafficPolicy Local, only nodes with endpoints are backends; other nodes drop the packets"
                .into(),
            "true, or externalTrafficPolicy: Cluster",
        ),
        None => AliasValue::Invalid("true, false".into()),
    }
}

/// Mbit/s, 1 to 2000. An invalid value refuses the ports: without a limit, the link that it protects would be
/// unprotected.
pub(super) fn bandwidth<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    match number(value, &(1..=2000)) {
        Some(megabits) => AliasValue::Ours(key::MAX_BANDWIDTH, format!("{megabits}M").into()),
        None => AliasValue::InvalidPort("a whole number of Mbit/s, 1 to 2000".into()),
    }
}
