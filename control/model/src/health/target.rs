//! The target of a health check and its settings. Services that need the same check of the same endpoint share one
//! target.
//!
//! Values only: `reconcile` creates targets, and the runner checks them. With target `node` there are two more kinds
//! of checks, which Kubernetes answers on nodes: the health-check node port of a Service (policy Local) and
//! kube-proxy's `/healthz` (policy Cluster).
//!
//! Invariant: equal targets are checked once, however many Services need them. Targets of two namespaces are never
//! equal, so one namespace cannot influence when and how endpoints of another namespace are checked.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tidegate_spec::{ForwardingMode, TunnelOptions};
use tidegate_wire::proxy_header::ProxyVersion;

/// The port on which a node's proxy (kube-proxy) answers [`Check::NodeProxy`].
pub const NODE_PROXY_PORT: u16 = 10256;

/// The maximum time that a check by UDP waits for an answer, whatever its timeout. An ICMP "port unreachable" takes
/// one round trip, and waiting longer gives no more information.
pub const UDP_SILENCE_MAX: Duration = Duration::from_secs(5);

/// How often an endpoint is checked, and how many results change its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rules {
    /// The time between two checks.
    pub interval: Duration,
    /// The maximum duration of a check, at most the interval.
    pub timeout: Duration,
    /// The number of consecutive successes that restore a failing target; at least 1.
    pub healthy_threshold: u32,
    /// The number of consecutive failures that remove a passing target; at least 1.
    pub unhealthy_threshold: u32,
    /// Whether a target that flaps needs more results than these thresholds.
    pub damping: bool,
}

impl Default for Rules {
    /// The defaults of `health` in the configuration.
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

/// The kind of a check.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    /// A TCP connection that must be accepted.
    Tcp,
    /// A `GET` over HTTP/1.1 that must be answered with 200 to 399. Redirects are not followed.
    Http {
        /// Path and query.
        path: Arc<str>,
    },
    /// Like [`Self::Http`], over TLS. The certificate is not verified: as with the kubelet's probes, the target is an
    /// address and not a name.
    Https {
        /// Path and query.
        path: Arc<str>,
    },
    /// An empty datagram that must not be answered with port unreachable. Silence is a success, since only the
    /// application could answer anything else. The wait is at most [`UDP_SILENCE_MAX`].
    Udp,
    /// An INIT of SCTP that must be answered with INIT ACK.
    Sctp,
    /// The health-check node port of a Service on a node: it must answer 200, with the node's weight in a header.
    NodeHealthPort,
    /// `/healthz` of the node's proxy: it must answer 200.
    NodeProxy,
}

impl Check {
    /// Whether it needs a TLS handshake.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Https { .. })
    }

    /// Whether an endpoint passes if it does not answer in time.
    #[must_use]
    pub fn passes_in_silence(&self) -> bool {
        matches!(self, Self::Udp)
    }
}

/// How an endpoint is checked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Probe {
    /// The kind of the check.
    pub check: Check,
    /// The interval, the timeout and the thresholds.
    pub rules: Rules,
    /// The version of the PROXY protocol header that the endpoint expects, if any. The header of a check names no
    /// client. Only checks by TCP, HTTP and HTTPS have one.
    pub header: Option<ProxyVersion>,
    /// The namespace that needs the check; it counts towards this namespace's share of all checks. `None` if the
    /// operator needs it, like the check of a node's proxy, which Services of all namespaces share.
    pub namespace: Option<Arc<str>>,
}

impl Probe {
    /// A check for the operator.
    #[must_use]
    pub fn new(check: Check, rules: Rules) -> Self {
        Self { check, rules, header: None, namespace: None }
    }

    /// Adds a header of the PROXY protocol.
    #[must_use]
    pub fn with_header(self, header: Option<ProxyVersion>) -> Self {
        Self { header, ..self }
    }

    /// Assigns the check to a namespace.
    #[must_use]
    pub fn of(self, namespace: &Arc<str>) -> Self {
        Self { namespace: Some(Arc::clone(namespace)), ..self }
    }
}

/// A VIP at which an endpoint is checked as clients use it: packets have the VIP as their destination, and the
/// forwarding mode sends them to the endpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AtVip {
    /// The VIP.
    pub vip: IpAddr,
    /// The mode, a DSR mode.
    pub mode: ForwardingMode,
    /// The options of the mode, if it is a tunnel.
    pub tunnel: TunnelOptions,
}

/// One endpoint with one kind of check. Prints as a URL.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// The endpoint, and the port that is checked.
    pub address: SocketAddr,
    /// The probe. It is shared, since many endpoints are checked in the same way.
    pub probe: Arc<Probe>,
    /// The VIP at which it is checked, if not at its own address.
    pub at_vip: Option<Arc<AtVip>>,
}

impl Target {
    /// The check of an endpoint at its own address.
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

    /// Moves the check to a VIP.
    #[must_use]
    pub fn at(self, vip: Option<&Arc<AtVip>>) -> Self {
        Self { at_vip: vip.cloned(), ..self }
    }

    /// The equivalent check at the endpoint's own address.
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
            Check::Sctp => write!(f, "sctp://{address}"),
            Check::NodeHealthPort => write!(f, "http://{address}/"),
            Check::NodeProxy => write!(f, "http://{address}/healthz"),
        }?;
        if let Some(version) = self.probe.header {
            write!(f, " with PROXY {version}")?;
        }
        match &self.at_vip {
            Some(_) => write!(f, " at {}", self.address.ip()),
            None => Ok(()),
        }
    }
}
