//! The target of a health check and its settings. Services that need the same check of the same endpoint share one
//! target.
//!
//! Values only: `reconcile` creates targets, the runner checks them. With target `node` there are two more kinds of
//! checks, which Kubernetes answers on nodes: the health-check node port of a Service (policy Local) and kube-proxy's
//! `/healthz` (policy Cluster).
//!
//! Invariant: equal targets are checked once, whichever Services need them. Targets of two namespaces are never
//! equal, so one namespace cannot influence when and how endpoints of another are checked.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::snapshot::ForwardingMode;

/// Where the proxy of a node (kube-proxy) answers [`Check::NodeProxy`].
pub const NODE_PROXY_PORT: u16 = 10256;

/// How long a check by UDP waits for an answer at most, whatever its timeout. Port unreachable takes a round trip, and a
/// longer silence says nothing more.
pub const UDP_SILENCE_MAX: Duration = Duration::from_secs(5);

/// How often an endpoint is asked, and how many answers decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rules {
    /// From one check to the next.
    pub interval: Duration,
    /// A check that takes longer has failed; at most the interval.
    pub timeout: Duration,
    /// Successes in a row that bring a failing target back; at least 1.
    pub healthy_threshold: u32,
    /// Failures in a row that take a passing target out; at least 1.
    pub unhealthy_threshold: u32,
    /// Whether a target that flaps needs more than these thresholds.
    pub damping: bool,
}

impl Default for Rules {
    /// The defaults of the configuration's `health`.
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(2),
            timeout: Duration::from_secs(1),
            healthy_threshold: 2,
            unhealthy_threshold: 3,
            damping: true,
        }
    }
}

/// What is asked of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    /// A TCP connection that is accepted.
    Tcp,
    /// `GET` by HTTP/1.1 that is answered with 200 to 399; redirections are not followed.
    Http {
        /// Path and query.
        path: Arc<str>,
    },
    /// The same by TLS. The certificate is not verified: as with the kubelet's probes, the address is what is meant.
    Https {
        /// Path and query.
        path: Arc<str>,
    },
    /// An empty datagram that is not answered with port unreachable. Silence is good: only the application could
    /// say more. It is waited for [`UDP_SILENCE_MAX`] at most.
    Udp,
    /// The health-check node port of a Service on a node: 200, and the node's weight in a header.
    NodeHealthPort,
    /// `/healthz` of the node's proxy: 200.
    NodeProxy,
}

impl Check {
    /// Whether it costs a TLS handshake.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Https { .. })
    }

    /// Whether an endpoint that says nothing in time passes.
    #[must_use]
    pub fn passes_in_silence(&self) -> bool {
        matches!(self, Self::Udp)
    }
}

/// How an endpoint is checked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Probe {
    /// What is asked.
    pub check: Check,
    /// How often, and how many answers decide.
    pub rules: Rules,
    /// The namespace that wants it: the check counts towards this namespace's share of all checks. None: the operator
    /// wants it, as the check of a node's proxy, which the Services of all namespaces have in common.
    pub namespace: Option<Arc<str>>,
}

impl Probe {
    /// A check that the operator wants.
    #[must_use]
    pub fn new(check: Check, rules: Rules) -> Self {
        Self { check, rules, namespace: None }
    }

    /// The same check, wanted by a namespace.
    #[must_use]
    pub fn of(self, namespace: &Arc<str>) -> Self {
        Self { namespace: Some(Arc::clone(namespace)), ..self }
    }
}

/// A VIP that an endpoint is asked at, as clients ask it: their packets keep the VIP as destination, and are brought to the
/// endpoint by the forwarding mode.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AtVip {
    /// The VIP.
    pub vip: IpAddr,
    /// A mode of direct server return.
    pub mode: ForwardingMode,
}

/// One endpoint with one way of checking it. Prints as a URL.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// The endpoint, and the port that is asked.
    pub address: SocketAddr,
    /// How; shared, since many endpoints are checked alike.
    pub probe: Arc<Probe>,
    /// The VIP at which it is asked, if not at its own address.
    pub at_vip: Option<Arc<AtVip>>,
}

impl Target {
    /// The check of an address.
    ///
    /// ```
    /// use tidegate_model::health::{Check, Probe, Rules, Target};
    /// let probe = Probe::new(Check::Https { path: "/readyz".into() }, Rules::default());
    /// let target = Target::new("192.0.2.7:6443".parse().unwrap(), &probe.into());
    /// assert_eq!(target.to_string(), "https://192.0.2.7:6443/readyz");
    /// ```
    #[must_use]
    pub fn new(address: SocketAddr, probe: &Arc<Probe>) -> Self {
        Self { address, probe: Arc::clone(probe), at_vip: None }
    }

    /// The same check at a VIP.
    #[must_use]
    pub fn at(self, vip: Option<&Arc<AtVip>>) -> Self {
        Self { at_vip: vip.cloned(), ..self }
    }

    /// The same check at the endpoint's own address.
    #[must_use]
    pub fn at_own_address(&self) -> Self {
        Self { at_vip: None, ..self.clone() }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut address = self.address;
        if let Some(at) = &self.at_vip {
            address.set_ip(at.vip);
        }
        match &self.probe.check {
            Check::Tcp => write!(f, "tcp://{address}"),
            Check::Http { path } => write!(f, "http://{address}{path}"),
            Check::Https { path } => write!(f, "https://{address}{path}"),
            Check::Udp => write!(f, "udp://{address}"),
            Check::NodeHealthPort => write!(f, "http://{address}/"),
            Check::NodeProxy => write!(f, "http://{address}/healthz"),
        }?;
        match &self.at_vip {
            Some(_) => write!(f, " at {}", self.address.ip()),
            None => Ok(()),
        }
    }
}
