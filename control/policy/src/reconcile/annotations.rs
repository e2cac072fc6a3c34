//! The names of our annotations, and the field path of an annotation in its object.

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::yaml::text;

pub(super) mod key {
    pub(crate) const FORWARDING: &str = "tidegate.dev/forwarding";
    pub(crate) const GUE_VARIANT: &str = "tidegate.dev/gue-variant";
    pub(crate) const GUE_PORT: &str = "tidegate.dev/gue-port";
    pub(crate) const GRE_KEY: &str = "tidegate.dev/gre-key";
    pub(crate) const DSCP: &str = "tidegate.dev/dscp";
    pub(crate) const GENEVE_PORT: &str = "tidegate.dev/geneve-port";
    pub(crate) const GENEVE_VNI: &str = "tidegate.dev/geneve-vni";
    pub(crate) const TARGET: &str = "tidegate.dev/target";
    pub(crate) const SCHEDULER: &str = "tidegate.dev/scheduler";
    pub(crate) const HASH: &str = "tidegate.dev/hash";
    pub(crate) const TABLE_SIZE: &str = "tidegate.dev/table-size";
    /// Requests addresses: one IPv4 address, one IPv6 address, or both separated by a comma.
    pub const LOAD_BALANCER_IPS: &str = "tidegate.dev/load-balancer-ips";
    pub(crate) const ADDRESS_POOL: &str = "tidegate.dev/address-pool";
    pub(crate) const ALLOW_SHARED_IP: &str = "tidegate.dev/allow-shared-ip";
    pub(crate) const DRAIN_TIMEOUT: &str = "tidegate.dev/drain-timeout";
    pub(crate) const IDLE_TIMEOUT_TCP: &str = "tidegate.dev/idle-timeout-tcp";
    pub(crate) const IDLE_TIMEOUT_UDP: &str = "tidegate.dev/idle-timeout-udp";
    pub(crate) const IDLE_TIMEOUT_SCTP: &str = "tidegate.dev/idle-timeout-sctp";
    pub(crate) const HEALTH_PROTOCOL: &str = "tidegate.dev/health-check-protocol";
    pub(crate) const HEALTH_PORT: &str = "tidegate.dev/health-check-port";
    pub(crate) const HEALTH_PATH: &str = "tidegate.dev/health-check-path";
    pub(crate) const HEALTH_INTERVAL: &str = "tidegate.dev/health-check-interval";
    pub(crate) const HEALTH_TIMEOUT: &str = "tidegate.dev/health-check-timeout";
    pub(crate) const HEALTHY_THRESHOLD: &str = "tidegate.dev/health-check-healthy-threshold";
    pub(crate) const UNHEALTHY_THRESHOLD: &str = "tidegate.dev/health-check-unhealthy-threshold";
    pub(crate) const PASSIVE_HEALTH: &str = "tidegate.dev/passive-health";
    pub(crate) const FLOW_TRACKING: &str = "tidegate.dev/flow-tracking";
    pub(crate) const FLOW_LOG: &str = "tidegate.dev/flow-log";
    pub(crate) const MSS_CLAMP: &str = "tidegate.dev/mss-clamp";
    pub(crate) const SYN_COOKIES: &str = "tidegate.dev/syn-cookies";
    pub(crate) const SLOW_START: &str = "tidegate.dev/slow-start";
    pub(crate) const PROXY_PROTOCOL: &str = "tidegate.dev/proxy-protocol";
    pub(crate) const PROXY_TLVS: &str = "tidegate.dev/proxy-protocol-tlvs";
    pub(crate) const MAX_BANDWIDTH: &str = "tidegate.dev/max-bandwidth";
    pub(crate) const MAX_CONNECTION_RATE: &str = "tidegate.dev/max-connection-rate";
    pub(crate) const MAX_CONNECTIONS: &str = "tidegate.dev/max-connections";
    pub(crate) const BACKEND_NODE_SELECTOR: &str = "tidegate.dev/backend-node-selector";
    pub(crate) const BGP_COMMUNITIES: &str = "tidegate.dev/bgp-communities";
    pub(crate) const BGP_LOCAL_PREF: &str = "tidegate.dev/bgp-local-pref";
    pub(crate) const BGP_MED: &str = "tidegate.dev/bgp-med";
    pub(crate) const BGP_PREPENDS: &str = "tidegate.dev/bgp-prepends";
    pub(crate) const WEIGHT: &str = "tidegate.dev/weight";

    /// The annotations that are valid on a Service.
    pub(crate) const ON_SERVICE: &[&str] = &[
        FORWARDING,
        GUE_VARIANT,
        GUE_PORT,
        GRE_KEY,
        DSCP,
        GENEVE_PORT,
        GENEVE_VNI,
        TARGET,
        SCHEDULER,
        HASH,
        TABLE_SIZE,
        LOAD_BALANCER_IPS,
        ADDRESS_POOL,
        ALLOW_SHARED_IP,
        DRAIN_TIMEOUT,
        IDLE_TIMEOUT_TCP,
        IDLE_TIMEOUT_UDP,
        IDLE_TIMEOUT_SCTP,
        HEALTH_PROTOCOL,
        HEALTH_PORT,
        HEALTH_PATH,
        HEALTH_INTERVAL,
        HEALTH_TIMEOUT,
        HEALTHY_THRESHOLD,
        UNHEALTHY_THRESHOLD,
        PASSIVE_HEALTH,
        FLOW_TRACKING,
        FLOW_LOG,
        MSS_CLAMP,
        SYN_COOKIES,
        SLOW_START,
        PROXY_PROTOCOL,
        PROXY_TLVS,
        MAX_BANDWIDTH,
        MAX_CONNECTION_RATE,
        MAX_CONNECTIONS,
        BACKEND_NODE_SELECTOR,
        BGP_COMMUNITIES,
        BGP_LOCAL_PREF,
        BGP_MED,
        BGP_PREPENDS,
    ];
}

/// The annotations of Services that request an edge.
pub mod edge_key {
    /// The Secrets with the certificates.
    pub const TLS_SECRET: &str = "tidegate.dev/tls-secret";
    /// The ports with TLS.
    pub const TLS_PORTS: &str = "tidegate.dev/tls-ports";
    /// What clients may negotiate.
    pub const TLS_POLICY: &str = "tidegate.dev/tls-policy";
    /// What backends receive.
    pub const BACKEND_PROTOCOL: &str = "tidegate.dev/backend-protocol";
    /// What happens to forwarded headers.
    pub const FORWARDED_HEADERS: &str = "tidegate.dev/forwarded-headers";
    /// Whether port 80 is redirected.
    pub const REDIRECT_HTTPS: &str = "tidegate.dev/redirect-https";
    /// All of them.
    pub const ALL: [&str; 6] =
        [TLS_SECRET, TLS_PORTS, TLS_POLICY, BACKEND_PROTOCOL, FORWARDED_HEADERS, REDIRECT_HTTPS];
}

pub(super) fn annotation_field(annotation: &str) -> String {
    format!("metadata.annotations[{annotation}]")
}

/// Reports an unknown annotation with our prefix, and suggests the name that was probably meant.
pub(super) fn unknown(annotation: &str) -> Diagnostic {
    const PREFIX: &str = "tidegate.dev/";
    let what = format!("annotation {annotation} is not known");
    let names: Vec<&str> = key::ON_SERVICE.iter().filter_map(|key| key.strip_prefix(PREFIX)).collect();
    let name = annotation.strip_prefix(PREFIX).unwrap_or(annotation);
    match text::nearest(name, &names).first() {
        Some(meant) => Diagnostic::warning(format!("{what}; did you mean {PREFIX}{meant}?")),
        None => Diagnostic::warning(what).accepting(key::ON_SERVICE.join(", ")),
    }
}
