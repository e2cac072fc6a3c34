//! The desired forwarding state in plain values: the control plane's input to the dataplane.
//!
//! `reconcile` (crate `tidegate-policy`) computes a [`SnapshotSpec`] from configuration, services and health;
//! `Snapshot::compile` (crate `tidegate-snapshot`) compiles it to tables. The packet path doesn't read it.
//!
//! Invariant: the same set of services and backends gives an equal spec. Equal specs compile to tables that make the
//! same decisions, regardless of the order of services and backends: `compile` sorts by stable identity.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tidegate_wire::encapsulation::{Encapsulation, GENEVE_PORT, GUE_PORT, GueVariant, ServiceIdentity, Vni};
use tidegate_wire::proxy_header::ProxyVersion;
use tidegate_wire::proxy_tlvs::{ProxyTlvs, VpceId};

use super::load_rule::LoadRule;
use super::network::{NetworkSpec, SynCookies};
use super::passive_health::PassiveHealth;
use super::service_limits::ServiceLimits;
use super::shared::Shared;
use crate::ownership::Layer2;

/// Everything that workers need to forward packets, before it is compiled to tables.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SnapshotSpec {
    /// Increases by one with every published state. Shown as `tidegate_snapshot_generation`.
    pub generation: u64,
    /// The gateway's own network. If it is unchanged, it is shared with the previous spec.
    pub network: Shared<NetworkSpec>,
    /// The service ports, in any order. Unchanged ones are shared with the previous spec.
    pub services: Vec<SharedService>,
}

impl SnapshotSpec {
    /// Whether both specs request the same state. Generations are ignored.
    #[must_use]
    pub fn is_equivalent(&self, other: &Self) -> bool {
        self.network == other.network && self.services == other.services
    }
}

tidegate_wire::named! {
    /// Transport protocol of a service port.
    #[derive(PartialOrd, Ord, Hash)]
    #[repr(u8)]
    pub enum Protocol {
        /// RFC 9293, protocol number 6.
        Tcp = 6 => "TCP",
        /// RFC 768, protocol number 17.
        Udp = 17 => "UDP",
        /// RFC 9260, protocol number 132.
        Sctp = 132 => "SCTP",
    }
}

impl Protocol {
    /// The IANA protocol number.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The protocol of an IANA number, if a service may have it.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            132 => Some(Self::Sctp),
            _ => None,
        }
    }
}

tidegate_wire::named! {
    /// How packets of a service reach the backend.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum ForwardingMode {
        /// Direct server return on one link: only the MAC address changes.
        DsrL2 => "dsr-l2",
        /// Direct server return through an IP-in-IP tunnel (RFC 2003, 2473, 4213). Inner and outer family may differ.
        DsrIpip => "dsr-ipip",
        /// Direct server return through a tunnel over UDP, generic UDP encapsulation (draft-ietf-intarea-gue). Inner and
        /// outer family may differ.
        DsrGue => "dsr-gue",
        /// Direct server return through a GRE tunnel (RFC 2784, RFC 2890). Inner and outer family may differ.
        DsrGre => "dsr-gre",
        /// Direct server return through a Geneve tunnel (RFC 8926) whose option identifies the Service. Inner and outer
        /// family may differ.
        DsrGeneve => "dsr-geneve",
        /// Direct server return without another header: the destination becomes the backend, and the DSCP (RFC 2474)
        /// identifies the VIP.
        DsrDscp => "dsr-dscp",
        /// Destination NAT. The client's address stays, and replies return through the gateway.
        Nat => "nat",
        /// Destination and source NAT. Replies return to a SNAT address of the gateway.
        FullNat => "fullnat",
    }
}

impl ForwardingMode {
    /// Whether the backend answers the client directly, so that the gateway sees one direction only.
    #[must_use]
    pub fn is_dsr(self) -> bool {
        matches!(self, Self::DsrL2 | Self::DsrDscp) || self.is_tunnel()
    }

    /// Whether the packet's addresses are rewritten towards the backend.
    #[must_use]
    pub fn changes_addresses(self) -> bool {
        matches!(self, Self::DsrDscp | Self::Nat | Self::FullNat)
    }

    /// Whether the packet travels inside another IP packet. Such a mode crosses families, and needs `tunnelSource`.
    #[must_use]
    pub fn is_tunnel(self) -> bool {
        matches!(self, Self::DsrIpip | Self::DsrGue | Self::DsrGre | Self::DsrGeneve)
    }

    /// The headers behind the outer IP header; `None` for a mode without an outer header.
    #[must_use]
    pub fn encapsulation(self, options: &TunnelOptions) -> Option<Encapsulation> {
        match self {
            Self::DsrIpip => Some(Encapsulation::Ip),
            Self::DsrGue => Some(Encapsulation::Gue { variant: options.gue_variant, port: options.gue_port }),
            Self::DsrGre => Some(Encapsulation::Gre { key: options.gre_key }),
            Self::DsrGeneve => Some(Encapsulation::Geneve {
                port: options.geneve_port,
                vni: options.geneve_vni,
                service: options.geneve_service,
            }),
            Self::DsrL2 | Self::DsrDscp | Self::Nat | Self::FullNat => None,
        }
    }
}

/// Options of the tunnel modes and of `dsr-dscp`. Each mode reads its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TunnelOptions {
    /// `gueVariant`.
    pub gue_variant: GueVariant,
    /// `guePort`: the UDP destination port, not 0.
    pub gue_port: u16,
    /// `greKey`.
    pub gre_key: Option<u32>,
    /// `genevePort`: the UDP destination port, not 0.
    pub geneve_port: u16,
    /// `geneveVni`.
    pub geneve_vni: Vni,
    /// The identity of the Service. It is computed from the Service's name, not configured, and set with
    /// [`ForwardingMode::DsrGeneve`] only.
    pub geneve_service: ServiceIdentity,
    /// The DSCP that identifies the VIP with [`ForwardingMode::DsrDscp`], 1 to 63; 0 with the other modes.
    pub dscp: u8,
}

impl Default for TunnelOptions {
    fn default() -> Self {
        Self {
            gue_variant: GueVariant::Direct,
            gue_port: GUE_PORT,
            gre_key: None,
            geneve_port: GENEVE_PORT,
            geneve_vni: Vni::default(),
            geneve_service: ServiceIdentity::default(),
            dscp: 0,
        }
    }
}

/// The answer to a client of a service port without backends (`noEndpoints`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NoEndpoints {
    /// A TCP RST or ICMP port unreachable, rate limited.
    #[default]
    Reject,
    /// No answer. This also applies to `externalTrafficPolicy: Local` if all endpoints are on other nodes.
    Drop,
    /// Answered like a port that isn't served: the Service was removed, and only its known flows continue. Its VIP is
    /// not an address of the gateway.
    Unserved,
}

/// How a service chooses the backend of a new flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scheduler {
    /// Seat rendezvous: `tidegate_select::rendezvous`.
    #[default]
    Rendezvous,
    /// The table of the Maglev paper: `tidegate_select::maglev`.
    Maglev {
        /// The size: a prime, at most [`limits::MAGLEV_SLOTS_MAX`](crate::limits::MAGLEV_SLOTS_MAX). It is configured
        /// and does not follow the number of backends.
        slots: u32,
    },
    /// Weighted round robin of each worker: `tidegate_select::round_robin`.
    WeightedRoundRobin,
    /// By the loads of the backends: `tidegate_select::loads`.
    Loads(LoadRule),
    /// Seat rendezvous by the client's address alone.
    SourceHash,
    /// Seat rendezvous by the VIP alone.
    DestinationHash,
}

impl Scheduler {
    /// Whether it compares the loads of the backends.
    #[must_use]
    pub fn compares_loads(self) -> bool {
        matches!(self, Self::Loads(_))
    }

    /// The name in configuration and annotations.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rendezvous => "rendezvous",
            Self::Maglev { .. } => "maglev",
            Self::WeightedRoundRobin => "wrr",
            Self::Loads(rule) => rule.as_str(),
            Self::SourceHash => "sh",
            Self::DestinationHash => "dh",
        }
    }
}

tidegate_wire::named! {
    /// The input of the hash that chooses a backend (`hash`). It has an effect with [`Scheduler::Rendezvous`] and
    /// [`Scheduler::Maglev`], and none with client affinity, which always has [`HashInput::Client`].
    #[derive(Default)]
    pub enum HashInput {
        /// The 5-tuple.
        #[default]
        Flow => "flow",
        /// The client's address: all its connections, to all ports of the Service, reach the same backend.
        Client => "client",
    }
}

/// Options of a scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChoiceOptions {
    /// `hash`.
    pub hash: HashInput,
    /// The backends that have just become ready and take only a part of their flows (`slowStart`). It has no effect if
    /// no other backend takes new flows, or if flows are tracked on change.
    pub warming: Arc<[Warming]>,
}

/// The number of steps in which a backend warms up.
pub const WARM_UP_STEPS: u8 = 10;

/// A backend that is warming up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Warming {
    /// Address of the backend.
    pub address: IpAddr,
    /// Port of the backend.
    pub port: u16,
    /// The part of its flows that it takes, in [`WARM_UP_STEPS`]ths: at least 1, and less than all.
    pub step: u8,
}

/// How the gateway limits the maximum segment size that a SYN names (`mssClamp`, RFC 6691).
///
/// It applies to the client's SYN in tunnel and NAT modes, and to the backend's SYN ACK in NAT modes. Option values
/// within the limit stay, and a SYN without the option gets none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MssClamp {
    /// SYNs stay as they are.
    #[default]
    Off,
    /// To fit the link on which the SYN arrived and the path on which it leaves.
    Path,
    /// To this number of bytes, or to what `Path` allows if that is less.
    AtMost(u16),
}

impl MssClamp {
    /// The limit as a number: 0 for none, and the largest number for the path alone.
    #[must_use]
    pub fn limit(self) -> u16 {
        match self {
            Self::Off => 0,
            Self::Path => u16::MAX,
            Self::AtMost(limit) => limit,
        }
    }
}

/// Which flows of a service in a DSR mode are tracked (`flowTracking`).
///
/// `OnChange` has an effect with TCP and UDP, [`Scheduler::Rendezvous`] and no client affinity. Other services are
/// tracked always.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum FlowTracking {
    /// All flows.
    #[default]
    Always,
    /// Flows whose owner changed recently. The list contains the backends with a recently changed weight, by address
    /// and port.
    OnChange(Arc<[FormerWeight]>),
    /// All flows, but one that began before a recent change may have no entry here, and its first packet goes to its
    /// former owner. Either the tracking was `OnChange` until recently, or another gateway has the flow and shares only
    /// newer ones.
    AlwaysAfter(Arc<[FormerWeight]>),
}

/// The weight of a backend before a recent change (`tidegate_select::rendezvous::WeightHistory`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormerWeight {
    /// Address of the backend.
    pub address: IpAddr,
    /// Port of the backend.
    pub port: u16,
    /// The weight with which it took new flows; 0 if it took none.
    pub weight: u16,
}

/// (VIP, protocol, port): the key that packets are matched on, and the stable identity of a service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// The virtual address.
    pub vip: IpAddr,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Destination port in host order; never 0.
    pub port: u16,
}

impl std::fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.protocol, std::net::SocketAddr::new(self.vip, self.port))
    }
}

/// A short hash of the Service that owns a service port, never 0, for records that outlive the process.
#[must_use]
pub fn owner_mark(namespace: &str, name: &str) -> u32 {
    [b"/", name.as_bytes()]
        .into_iter()
        .fold(crc32c::crc32c(namespace.as_bytes()), crc32c::crc32c_append)
        .max(1)
}

/// One service port on one VIP.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceSpec {
    /// The key that packets are matched on.
    pub key: ServiceKey,
    /// Kubernetes namespace, for display and metrics.
    pub namespace: String,
    /// Kubernetes name of the Service.
    pub name: String,
    /// Name of the port, or its number in decimal if it has none.
    pub port_name: String,
    /// How packets reach the backends.
    pub mode: ForwardingMode,
    /// Options of the mode, if it is a tunnel or `dsr-dscp`.
    pub tunnel: TunnelOptions,
    /// How the backend of a new flow is chosen.
    pub scheduler: Scheduler,
    /// Options of the scheduler.
    pub choice: ChoiceOptions,
    /// Which flows are tracked, in DSR modes.
    pub flow_tracking: FlowTracking,
    /// `sessionAffinity: ClientIP` with its timeout (1 s to 86,400 s); `None` spreads by 5-tuple.
    pub affinity: Option<Duration>,
    /// The answer to a client when no backend takes new flows.
    pub no_endpoints: NoEndpoints,
    /// The share of new flows that are answered like those of a service without backends, in parts per million, at most
    /// [`REJECTED_PPM_MAX`](super::limits::REJECTED_PPM_MAX). The 5-tuple decides, before affinity and the scheduler. Known flows are served. Each
    /// flow then has an entry, whatever `flow_tracking` says.
    pub rejected_ppm: u32,
    /// How the segment size in SYNs is limited. It has no effect on other protocols or with `dsr-l2`.
    pub mss_clamp: MssClamp,
    /// Idle time after which an established TCP flow is removed.
    pub idle_timeout_tcp: Duration,
    /// Idle time after which a UDP flow is removed.
    pub idle_timeout_udp: Duration,
    /// Idle time after which an established SCTP flow is removed.
    pub idle_timeout_sctp: Duration,
    /// The admitted clients, by prefix; `None` admits all. If the list has no prefix of a family, no client of that
    /// family is admitted. New flows are checked, and known flows are checked after a change.
    pub source_ranges: Option<Arc<[IpNet]>>,
    /// The limits of the whole Service, equal on all its ports.
    pub limits: ServiceLimits,
    /// The version of the PROXY protocol whose header carries the client's addresses to the backend. Only modes that
    /// translate can add it; version 1 is for TCP only.
    pub proxy_protocol: Option<ProxyVersion>,
    /// The TLVs of that header, with version 2. The identifier of a connection is for TCP only.
    pub proxy_tlvs: ProxyTlvs,
    /// The text of [`ProxyTlvs::VPCE_ID`].
    pub vpce_id: VpceId,
    /// When its new TCP connections are answered with SYN cookies, in modes that translate; `None` for the gateway's
    /// default ([`Policy::syn_cookies`](super::Policy::syn_cookies)).
    pub syn_cookies: Option<SynCookies>,
    /// How to react if backends refuse or ignore new TCP connections in `nat` and `fullnat`; `None` for no reaction.
    pub passive_health: Option<PassiveHealth>,
    /// The begin and end of one in this many of its flows are logged; `None` for none. Each flow then has an entry,
    /// whatever `flow_tracking` says.
    pub flow_log: Option<NonZeroU16>,
    /// How the link address of the VIP is answered, and whether a new VIP is announced on the links.
    pub layer2: Layer2,
    /// Backends in any order; (address, port) unique.
    pub backends: Vec<BackendSpec>,
}

impl ServiceSpec {
    /// `namespace/name:port`, the spelling used by `replay`, `explain` and the tables of the CLI.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{}/{}:{}", self.namespace, self.name, self.port_name)
    }
}

/// A [`ServiceSpec`] that specs of several generations share.
pub type SharedService = Shared<ServiceSpec>;

/// One backend of a service port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendSpec {
    /// Address of the endpoint (target `pod`) or of its node (target `node`).
    pub address: IpAddr,
    /// Port on the backend. DSR modes require the port of the service.
    pub port: u16,
    /// Share of new flows relative to the others. A backend with 0 takes none.
    pub weight: u16,
    /// Whether it takes new flows, keeps old ones, or neither.
    pub state: BackendState,
}

/// The packets that a backend may receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BackendState {
    /// New flows and known flows.
    Active,
    /// No new flows. Known flows of every protocol stay (the endpoint terminates, or the operator drains it).
    Draining,
    /// No new flows. Known TCP and SCTP flows stay until the drain ends; UDP flows move to a live backend with their
    /// next packet (the backend failed its health checks, or was removed).
    Down,
}
