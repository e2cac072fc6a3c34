//! Annotations of other load balancers: which are known, and which mean one of ours (kubernetes.md, section 8).
//!
//! Aliases take effect only for the vendors in `services.compat`. A known one without effect is never passed
//! over in silence: `options` warns and names it.

use super::options::key;

/// What a known alias means here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The same as this annotation of ours.
    Same(&'static str),
    /// Not reachable from the internet: choosing a public address on its own would be unsafe.
    Internal,
    /// Known, and not supported yet.
    Unsupported,
}

/// A known annotation of another balancer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Alias {
    /// As in `services.compat`.
    pub(super) vendor: &'static str,
    /// The key; one that ends in `-` or `.` or `/` stands for all that begin with it.
    pub(super) key: &'static str,
    pub(super) meaning: Meaning,
}

const fn alias(vendor: &'static str, key: &'static str, meaning: Meaning) -> Alias {
    Alias { vendor, key, meaning }
}

/// Exact keys before the prefixes that contain them.
const ALIASES: &[Alias] = &[
    alias("metallb", "metallb.io/loadBalancerIPs", Meaning::Same(key::LOAD_BALANCER_IPS)),
    alias("metallb", "metallb.io/address-pool", Meaning::Same(key::ADDRESS_POOL)),
    alias("metallb", "metallb.io/allow-shared-ip", Meaning::Same(key::ALLOW_SHARED_IP)),
    alias("metallb", "metallb.universe.tf/loadBalancerIPs", Meaning::Same(key::LOAD_BALANCER_IPS)),
    alias("metallb", "metallb.universe.tf/address-pool", Meaning::Same(key::ADDRESS_POOL)),
    alias("metallb", "metallb.universe.tf/allow-shared-ip", Meaning::Same(key::ALLOW_SHARED_IP)),
    alias("cilium", "lbipam.cilium.io/ips", Meaning::Same(key::LOAD_BALANCER_IPS)),
    alias("cilium", "lbipam.cilium.io/sharing-key", Meaning::Same(key::ALLOW_SHARED_IP)),
    alias("cilium", "lbipam.cilium.io/", Meaning::Unsupported),
    alias("kube-vip", "kube-vip.io/loadbalancerIPs", Meaning::Same(key::LOAD_BALANCER_IPS)),
    alias("kube-vip", "kube-vip.io/", Meaning::Unsupported),
    alias("aws", "service.beta.kubernetes.io/aws-load-balancer-internal", Meaning::Internal),
    alias("aws", "service.beta.kubernetes.io/aws-load-balancer-", Meaning::Unsupported),
    alias("tke", "service.kubernetes.io/qcloud-loadbalancer-internal-subnetid", Meaning::Internal),
    alias("tke", "service.kubernetes.io/qcloud-loadbalancer-", Meaning::Unsupported),
    alias("tke", "service.kubernetes.io/local-svc-only-bind-node-with-pod", Meaning::Unsupported),
    alias("gcp", "cloud.google.com/load-balancer-type", Meaning::Internal),
    alias("gcp", "networking.gke.io/load-balancer-type", Meaning::Internal),
    alias("azure", "service.beta.kubernetes.io/azure-load-balancer-internal", Meaning::Internal),
    alias("azure", "service.beta.kubernetes.io/azure-load-balancer-", Meaning::Unsupported),
    alias("ibm", "service.kubernetes.io/ibm-load-balancer-cloud-provider-ip-type", Meaning::Internal),
    alias("openstack", "service.beta.kubernetes.io/openstack-internal-load-balancer", Meaning::Internal),
    alias("baidu", "service.beta.kubernetes.io/cce-load-balancer-internal-vpc", Meaning::Internal),
    alias("alibaba", "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-address-type", Meaning::Internal),
    alias("alibaba", "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-", Meaning::Unsupported),
];

/// The alias that an annotation is, if it is a known one.
pub(super) fn known(annotation: &str) -> Option<&'static Alias> {
    ALIASES.iter().find(|a| {
        if a.key.ends_with(['-', '/']) { annotation.starts_with(a.key) } else { annotation == a.key }
    })
}

/// Whether the value of an [`Meaning::Internal`] alias asks for an internal address.
pub(super) fn asks_internal(alias: &Alias, value: &str) -> bool {
    match alias.vendor {
        "gcp" => value.eq_ignore_ascii_case("internal"),
        "ibm" => value == "private",
        "alibaba" => value == "intranet",
        // Tencent's names a subnet; any subnet is an internal one.
        "tke" => !value.is_empty(),
        // AWS took the CIDR 0.0.0.0/0 for yes.
        _ => !matches!(value, "" | "false"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exact_key_is_found_before_the_prefix_that_contains_it() {
        let meaning = |k| known(k).map(|a| a.meaning);
        assert_eq!(meaning("service.beta.kubernetes.io/aws-load-balancer-internal"), Some(Meaning::Internal));
        assert_eq!(meaning("service.beta.kubernetes.io/aws-load-balancer-type"), Some(Meaning::Unsupported));
        assert_eq!(meaning("lbipam.cilium.io/ips"), Some(Meaning::Same(key::LOAD_BALANCER_IPS)));
        assert_eq!(meaning("kubectl.kubernetes.io/last-applied-configuration"), None);
    }

    #[test]
    fn all_eight_spellings_of_internal_are_told_from_their_negation() {
        for (key, yes, no) in [
            ("cloud.google.com/load-balancer-type", "Internal", "External"),
            ("service.beta.kubernetes.io/aws-load-balancer-internal", "true", "false"),
            ("service.beta.kubernetes.io/azure-load-balancer-internal", "true", "false"),
            ("service.kubernetes.io/ibm-load-balancer-cloud-provider-ip-type", "private", "public"),
            ("service.beta.kubernetes.io/openstack-internal-load-balancer", "true", "false"),
            ("service.beta.kubernetes.io/cce-load-balancer-internal-vpc", "true", "false"),
            ("service.kubernetes.io/qcloud-loadbalancer-internal-subnetid", "subnet-1", ""),
            ("service.beta.kubernetes.io/alibaba-cloud-loadbalancer-address-type", "intranet", "internet"),
        ] {
            let alias = known(key).expect("a known alias");
            assert_eq!(alias.meaning, Meaning::Internal, "{key}");
            assert!(asks_internal(alias, yes) && !asks_internal(alias, no), "{key}");
        }
    }
}
