//! The desired state for display: the results of `services` and `backends`.
//!
//! Values with serde only, filled by `program`. The admin socket passes them on unchanged, so `-o json` shows the
//! field names.
//!
//! Values that a program may act on are enums, which JSON contains by name. Texts are only for display, and no code
//! reads them.

mod by_name;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use tidegate_model::objects::RouteAttributes;
use tidegate_model::objects::ServiceType;
use tidegate_spec::{ForwardingMode, Protocol};

/// A Service that requests an address from the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceView {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// `spec.type`; `None` for a Service that is refused as a whole, whose type is not known.
    #[serde(rename = "type", with = "by_name::or_empty")]
    pub service_type: Option<ServiceType>,
    /// Its addresses, sorted.
    pub vips: Vec<VipView>,
    /// Why it waits for an address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<String>,
    /// Why none of its ports is programmed, if the reason concerns the whole Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Why the workers do not apply this state yet. They have an older state of the Service, or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unapplied: Option<String>,
    /// The parts of the Service and its EndpointSlices that cannot be used, and ports that no slice has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// One entry for each port on each VIP.
    pub ports: Vec<PortView>,
    /// The forwarding mode of its ports (in JSON, each port contains it); `None` for a Service that is refused as a
    /// whole.
    #[serde(skip)]
    pub mode: Option<ForwardingMode>,
    /// The attributes of the routes to its addresses, from its annotations.
    #[serde(default, skip_serializing_if = "RouteAttributes::is_empty")]
    pub bgp: RouteAttributes,
    /// `creationTimestamp`, RFC 3339. For a Service of a directory, when the gateway first saw it, in replies of the
    /// daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// Since when it has been in its state, RFC 3339, in replies of the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
}

/// One address of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VipView {
    /// The address.
    pub address: IpAddr,
    /// How the Service uses the address.
    #[serde(with = "by_name")]
    pub kind: VipKind,
    /// The pool that assigned it. Empty for [`VipKind::NodePort`] and [`VipKind::ClusterIp`], and if the pool is no
    /// longer known.
    pub pool: String,
    /// Whether and how this gateway announces it, if it is from a pool.
    #[serde(default, skip_serializing_if = "EdgeView::is_default")]
    pub edge: EdgeView,
}

/// Whether and how this gateway announces an address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EdgeView {
    /// Whether the pool's `gatewaySelector` does not select this gateway. The gateway then forwards packets that
    /// arrive, but announces nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub outside_group: bool,
    /// Whether the address is announced with ARP and neighbour discovery, by this gateway or another gateway of the
    /// group.
    pub layer2: bool,
    /// Whether this gateway announces it by BGP, if BGP is configured.
    pub bgp: bool,
    /// The Lease or VRRP group whose owner answers for it; absent if every gateway of the group answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The current owner of that Lease or group, in replies of the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owned_by: Option<String>,
    /// Why this gateway can serve no port of the Service there. It then doesn't answer for the address on layer 2,
    /// unless another Service uses the address too. Absent if it can serve one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unable: Option<String>,
}

impl EdgeView {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl ServiceView {
    /// Whether some port of the Service is not programmed.
    #[must_use]
    pub fn is_refused_in_part(&self) -> bool {
        self.refused.is_some() || self.ports.iter().any(|port| port.refused.is_some())
    }

    /// Whether some programmed port has no active backend.
    #[must_use]
    pub fn lacks_backends(&self) -> bool {
        // A port counts once, over all of its addresses.
        let mut up: BTreeMap<(u16, _), bool> = BTreeMap::new();
        for port in self.ports.iter().filter(|port| port.refused.is_none()) {
            *up.entry((port.port, port.protocol)).or_default() |= port.count(BackendViewState::Active) > 0;
        }
        up.values().any(|up| !up)
    }
}

impl VipView {
    /// Whether it comes from a pool, as a LoadBalancer address or an external IP. Otherwise it is an address that the
    /// gateway or the Service has anyway.
    #[must_use]
    pub fn is_of_pool(&self) -> bool {
        match self.kind {
            VipKind::LoadBalancer | VipKind::ExternalIp => true,
            VipKind::NodePort | VipKind::ClusterIp => false,
        }
    }
}

tidegate_model::named! {
    /// How a Service uses an address.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum VipKind {
        /// A LoadBalancer address. Source ranges apply.
        LoadBalancer => "LoadBalancer",
        /// One of `spec.externalIPs`.
        ExternalIp => "ExternalIP",
        /// An address of the gateway, for a `nodePort`.
        NodePort => "NodePort",
        /// A cluster IP. The internal traffic policy applies.
        ClusterIp => "ClusterIP",
    }
}

/// One port of a Service on one VIP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortView {
    /// The VIP.
    pub vip: IpAddr,
    /// The port's name, or its number.
    pub name: String,
    /// Port number.
    pub port: u16,
    /// Transport protocol.
    #[serde(with = "by_name")]
    pub protocol: Protocol,
    /// Forwarding mode.
    #[serde(with = "by_name")]
    pub mode: ForwardingMode,
    /// `appProtocol`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
    /// Why it is not programmed; absent if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<PortRefusal>,
    /// Whether all its backends fail their checks, so that none is excluded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fail_open: bool,
    /// Why it has no backend, if its traffic policy is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// For a listener of a Gateway: its route, such as `TCPRoute shop/web`; absent if no route is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// The share of new flows that is rejected because backends of the route are invalid or have no endpoints, in parts
    /// per million; absent if it is 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rejected_ppm: u32,
    /// Its backends, sorted by address and port.
    pub backends: Vec<BackendView>,
}

impl PortView {
    /// The number of backends in a state.
    #[must_use]
    pub fn count(&self, state: BackendViewState) -> usize {
        self.backends.iter().filter(|b| b.state == state).count()
    }
}

/// Why a port is not programmed. In JSON, only its message is present.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct PortRefusal {
    /// The kind of refusal, which determines the condition and event for the port.
    pub reason: RefusalReason,
    /// The text for display.
    pub message: String,
}

impl PortRefusal {
    /// A refusal with its text for display.
    pub(crate) fn new(reason: RefusalReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

impl fmt::Display for PortRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<PortRefusal> for String {
    fn from(refusal: PortRefusal) -> Self {
        refusal.message
    }
}

/// JSON does not contain the reason. A value that is read from JSON is only for display, and has
/// [`RefusalReason::NotProgrammed`].
impl From<String> for PortRefusal {
    fn from(message: String) -> Self {
        Self { reason: RefusalReason::NotProgrammed, message }
    }
}

/// The kinds of refusals of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RefusalReason {
    /// The Service requests something that the gateway does not support.
    NotSupported,
    /// Another Service has the port on the address.
    Conflict,
    /// Any other reason.
    NotProgrammed,
}

/// One backend of a service port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendView {
    /// Address.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// Share relative to the others.
    pub weight: u16,
    /// Its state.
    pub state: BackendViewState,
    /// The reason for that state.
    pub why: BackendWhy,
    /// With `slowStart`: the percentage of its share of flows that it takes now; absent if it takes all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_up_percent: Option<u8>,
    /// Its node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Its zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The Pod, `namespace/name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The results of the gateway's checks.
    #[serde(default)]
    pub health: HealthView,
}

/// The results of the gateway's checks of a backend.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthView {
    /// Whether it passes.
    pub state: HealthState,
    /// Why it fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// How often its thresholds were raised because it flaps, from 0 to 3.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub damping: u8,
}

fn is_zero<N: Copy + Into<u64>>(n: &N) -> bool {
    (*n).into() == 0
}

/// Whether a backend passes its checks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HealthState {
    /// It has no check.
    #[default]
    Unchecked,
    /// It passes, or was not checked yet.
    Passing,
    /// It fails.
    Failing,
}

/// [`BackendState`](tidegate_spec::BackendState) for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendViewState {
    /// Takes new flows.
    Active,
    /// Keeps its existing flows.
    Draining,
    /// Keeps only TCP flows.
    Down,
}

/// The reason for the state of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendWhy {
    /// Ready and passing its checks.
    Ready,
    /// Terminating, and chosen because no other backend is ready.
    TerminatingChosen,
    /// Terminating, and still serving.
    Terminating,
    /// Not ready, or terminating and no longer serving.
    NotReady,
    /// Its health check fails.
    Unhealthy,
    /// Its health check fails, as do all others, so no backend is excluded.
    FailOpen,
    /// Drained by the operator.
    Drained,
    /// Weight 0.
    WeightZero,
    /// Ready, but topology hints name another zone.
    OtherZone,
    /// Ready, but topology hints name another node.
    OtherNode,
    /// No longer listed; kept until the drain timeout.
    Removed,
    /// The gateway has no capacity for its next hop, so no worker uses it.
    NoNextHop,
}
