//! What is checked and how: the key that Services which want the same check of the same endpoint share.
//!
//! Values only; `reconcile` makes targets, the runner checks them. Target node has two checks of its own, those
//! that a node answers for Kubernetes: the health-check node port of a Service (policy Local) and the proxy's
//! `/healthz` (policy Cluster).
//!
//! Invariant: equal targets are one check, whichever Services ask for it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Where the proxy of a node (kube-proxy) answers [`Check::NodeProxy`].
pub const NODE_PROXY_PORT: u16 = 10256;

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
    /// say more.
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
}

/// One endpoint with one way of checking it. Prints as a URL.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// Where to connect to.
    pub address: SocketAddr,
    /// How; shared, since many endpoints are checked alike.
    pub probe: Arc<Probe>,
}

impl Target {
    /// The check of an address.
    ///
    /// ```
    /// use tidegate::health::{Check, Probe, Rules, Target};
    /// let probe = Probe { check: Check::Https { path: "/readyz".into() }, rules: Rules::default() };
    /// let target = Target::new("192.0.2.7:6443".parse().unwrap(), &probe.into());
    /// assert_eq!(target.to_string(), "https://192.0.2.7:6443/readyz");
    /// ```
    #[must_use]
    pub fn new(address: SocketAddr, probe: &Arc<Probe>) -> Self {
        Self { address, probe: Arc::clone(probe) }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address;
        match &self.probe.check {
            Check::Tcp => write!(f, "tcp://{address}"),
            Check::Http { path } => write!(f, "http://{address}{path}"),
            Check::Https { path } => write!(f, "https://{address}{path}"),
            Check::Udp => write!(f, "udp://{address}"),
            Check::NodeHealthPort => write!(f, "http://{address}/"),
            Check::NodeProxy => write!(f, "http://{address}/healthz"),
        }
    }
}
