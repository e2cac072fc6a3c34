//! Annotations of other load balancers, and the equivalent annotation of Tidegate for each (`docs/compat.md`).
//!
//! A table of keys, each with a pure function from the value to an [`AliasValue`]. The vendors' own rules (ranges,
//! defaults, spellings of yes and no) are in `aws`, `tke`, `internal` and `refused`. `options` applies the values for
//! the vendors in `services.compat`, and reports every annotation that has no effect.
//!
//! Invariant: a known alias without effect is always reported, unless it requests what the gateway always does.

mod aws;
mod internal;
mod refused;
mod tke;
mod value;

#[cfg(test)]
mod tests;

use tidegate_model::objects::Labels;

use super::annotations::key;

pub(super) use aws::{ALL_HEALTH_CHECKS, classic_defaults, probe_defaults};
pub(super) use value::AliasValue;

#[derive(Clone, Copy)]
pub(super) struct Alias {
    /// The vendor, as in `services.compat`.
    pub(super) vendor: &'static str,
    /// The key. A key that ends in `-`, `.` or `/` stands for all keys with this prefix.
    pub(super) key: &'static str,
    read: Read,
}

/// A function from the value, and the other annotations of the Service, to its meaning.
type Read = for<'a> fn(&'a str, &'a Labels) -> AliasValue<'a>;

impl Alias {
    /// The meaning of a value, together with the other annotations of the Service.
    pub(super) fn read<'a>(&self, value: &'a str, annotations: &'a Labels) -> AliasValue<'a> {
        (self.read)(value.trim(), annotations)
    }
}

/// The known alias that matches an annotation.
pub(super) fn known(annotation: &str) -> Option<&'static Alias> {
    ALIASES.iter().find(|a| {
        if a.key.ends_with(['-', '.', '/']) { annotation.starts_with(a.key) } else { annotation == a.key }
    })
}

/// Whether an annotation limits the bandwidth to clients.
pub(super) fn limits_replies(annotation: &str) -> bool {
    annotation == tke::BANDWIDTH
}

const fn alias(vendor: &'static str, key: &'static str, read: Read) -> Alias {
    Alias { vendor, key, read }
}

/// Exact keys come before prefixes that also match them.
pub(super) const ALIASES: &[Alias] = &[
    alias("metallb", "metallb.io/loadBalancerIPs", addresses),
    alias("metallb", "metallb.io/address-pool", pool),
    alias("metallb", "metallb.io/allow-shared-ip", shared),
    alias("metallb", "metallb.io/", unsupported),
    alias("metallb", "metallb.universe.tf/loadBalancerIPs", addresses),
    alias("metallb", "metallb.universe.tf/address-pool", pool),
    alias("metallb", "metallb.universe.tf/allow-shared-ip", shared),
    alias("metallb", "metallb.universe.tf/", unsupported),
    alias("cilium", "lbipam.cilium.io/ips", addresses),
    alias("cilium", "lbipam.cilium.io/sharing-key", shared),
    alias("cilium", "lbipam.cilium.io/sharing-cross-namespace", across_namespaces),
    alias("cilium", "lbipam.cilium.io/", unsupported),
    alias("cilium", "io.cilium/lb-ipam-ips", addresses),
    alias("cilium", "io.cilium/lb-ipam-sharing-key", shared),
    alias("cilium", "io.cilium/lb-ipam-sharing-cross-namespace", across_namespaces),
    alias("cilium", "io.cilium/lb-ipam-", unsupported),
    alias("cilium", "service.cilium.io/src-ranges-policy", refused::source_ranges_policy),
    alias("cilium", "service.cilium.io/", unsupported),
    alias("kube-vip", "kube-vip.io/loadbalancerIPs", addresses),
    alias("kube-vip", "kube-vip.io/", unsupported),
    alias("aws", aws::PROXY_PROTOCOL, aws::proxy_protocol),
    alias("aws", aws::DRAINING_ENABLED, aws::draining_enabled),
    alias("aws", aws::DRAINING_TIMEOUT, aws::draining_timeout),
    alias("aws", aws::IDLE_TIMEOUT, aws::idle_timeout),
    alias("aws", aws::HEALTHY_THRESHOLD, aws::healthy_threshold),
    alias("aws", aws::UNHEALTHY_THRESHOLD, aws::unhealthy_threshold),
    alias("aws", aws::HEALTH_INTERVAL, aws::health_interval),
    alias("aws", aws::HEALTH_TIMEOUT, aws::health_timeout),
    alias("aws", aws::HEALTH_PROTOCOL, aws::health_protocol),
    alias("aws", aws::HEALTH_PORT, aws::health_port),
    alias("aws", aws::HEALTH_PATH, aws::health_path),
    alias("aws", aws::TARGET_NODE_LABELS, aws::target_node_labels),
    alias("aws", aws::TARGET_TYPE, aws::target_type),
    alias("aws", aws::INTERNAL, internal::aws),
    alias("aws", aws::SCHEME, internal::aws_scheme),
    alias("aws", aws::TYPE, aws::balancer_type),
    alias("aws", aws::TARGET_GROUP, aws::target_group),
    alias("aws", aws::PROXY_PORTS, aws::proxy_ports),
    alias("aws", aws::CERTIFICATE, refused::certificate),
    alias("aws", aws::BACKEND_PROTOCOL, refused::backend_protocol),
    alias("aws", aws::SECURITY_GROUPS, refused::limits_clients),
    alias("aws", aws::PREFIX_LISTS, refused::limits_clients),
    alias("aws", aws::ACCESS_LOG_ENABLED, aws::access_log_enabled),
    alias("aws", aws::ACCESS_LOG, aws::access_log),
    alias("aws", aws::CROSS_ZONE, aws::cross_zone),
    alias("aws", aws::PREFIX, unsupported),
    alias("tke", tke::BACKENDS_LABEL, tke::backends_label),
    alias("tke", tke::ONLY_NODES_WITH_PODS, tke::only_nodes_with_pods),
    alias("tke", tke::BANDWIDTH, tke::bandwidth),
    alias("tke", tke::INTERNAL_SUBNET, internal::tke),
    alias("tke", tke::PREFIX, unsupported),
    alias("gcp", "cloud.google.com/load-balancer-type", internal::gcp),
    alias("gcp", "networking.gke.io/load-balancer-type", internal::gcp),
    alias("gcp", "networking.gke.io/load-balancer-", unsupported),
    alias("azure", "service.beta.kubernetes.io/azure-load-balancer-internal", internal::yes_or_no),
    alias("azure", "service.beta.kubernetes.io/azure-allowed-ip-ranges", refused::limits_clients),
    alias("azure", "service.beta.kubernetes.io/azure-allowed-service-tags", refused::limits_clients),
    alias("azure", "service.beta.kubernetes.io/azure-", unsupported),
    alias("ibm", "service.kubernetes.io/ibm-load-balancer-cloud-provider-ip-type", internal::ibm),
    alias(
        "ibm",
        "service.kubernetes.io/ibm-load-balancer-cloud-provider-enable-features",
        refused::ibm_features,
    ),
    alias("ibm", "service.kubernetes.io/ibm-load-balancer-", unsupported),
    alias("openstack", "service.beta.kubernetes.io/openstack-internal-load-balancer", internal::yes_or_no),
    alias("openstack", "loadbalancer.openstack.org/proxy-protocol", refused::openstack_proxy_protocol),
    alias("openstack", "loadbalancer.openstack.org/x-forwarded-for", refused::forwarded_for),
    alias("openstack", "loadbalancer.openstack.org/default-tls-container-ref", refused::certificate),
    alias("openstack", "loadbalancer.openstack.org/", unsupported),
    alias("baidu", "service.beta.kubernetes.io/cce-load-balancer-internal-vpc", internal::yes_or_no),
    alias("baidu", "service.beta.kubernetes.io/cce-", unsupported),
    alias("alibaba", "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-address-type", internal::alibaba),
    alias(
        "alibaba",
        "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-proxy-protocol",
        refused::alibaba_proxy_protocol,
    ),
    alias("alibaba", "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-acl-status", refused::acl_status),
    alias("alibaba", "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-cert-id", refused::certificate),
    alias(
        "alibaba",
        "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-protocol-port",
        refused::protocol_ports,
    ),
    alias("alibaba", "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-", unsupported),
];

fn addresses<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    AliasValue::Ours(key::LOAD_BALANCER_IPS, value.into())
}

fn pool<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    AliasValue::Ours(key::ADDRESS_POOL, value.into())
}

fn shared<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    AliasValue::Ours(key::ALLOW_SHARED_IP, value.into())
}

/// A Service must not decide on its own that others may share its address, so the pool decides for all of them.
fn across_namespaces<'a>(_: &'a str, _: &'a Labels) -> AliasValue<'a> {
    AliasValue::Ignored(
        "the pool decides whether Services of several namespaces share an address".into(),
        "shareAcrossNamespaces: true in the pool, instead of this annotation",
    )
}

fn unsupported<'a>(_: &'a str, _: &'a Labels) -> AliasValue<'a> {
    AliasValue::Ignored("it is not supported".into(), "tidegate.dev/ annotations")
}
