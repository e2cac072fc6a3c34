//! The settings of a gateway and the errors of starting it, as the control plane sees them.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use ipnet::IpNet;
use tidegate_spec::RouteSpec;
use tidegate_spec::limits::FLOW_SHARE_PERCENT;
use tidegate_wire::MacAddr;

use super::error::WorkerPoolError;
use super::threads::OnFailure;
use crate::links::lock::LockError;
use crate::punt::sysctl_guard::SysctlGuardError;
use crate::punt::tap::TapError;
use crate::topology::{Idle, TopologyError};

/// The settings of a gateway: section `dataplane` of the configuration file, validated.
#[derive(Clone)]
pub struct DataplaneConfig {
    /// Dedicated cores, one per worker.
    pub cores: Vec<usize>,
    /// How workers wait.
    pub idle: Idle,
    /// The source of packet memory.
    pub memory: dpdk::Memory,
    /// The maximum number of flows per worker.
    pub flow_entries_per_core: usize,
    /// The percentage of a full flow table that one service may use.
    pub flow_service_percent: u8,
    /// The directory on tmpfs in which flow tables survive a restart; `None` if they don't.
    pub flow_store: Option<PathBuf>,
    /// The ports, indexed by interface.
    pub interfaces: Vec<InterfaceConfig>,
    /// The initial routes, also for the kernel's taps, until the first forwarding state replaces them.
    pub routes: Vec<RouteSpec>,
    /// Whether the kernel gets a tap per interface. Without taps, punted frames are dropped.
    pub taps: bool,
    /// Marks the taps of this gateway; unique on the host. Taps that an earlier process left with this mark are removed
    /// unless an interface still uses them. With `None`, they stay.
    pub tap_mark: Option<String>,
    /// Whether new VIPs are announced on the links (`announce.l2`).
    pub announce: bool,
    /// After a start, other gateways answer for the SNAT addresses because they have the flows, until
    /// [`Ownership::release_snat`] ends that.
    ///
    /// [`Ownership::release_snat`]: tidegate_spec::ownership::Ownership::release_snat
    pub snat_is_released: bool,
    /// Called when a thread of the gateway ends unexpectedly, or a worker or the slow path hangs for good.
    pub on_failure: Option<OnFailure>,
    /// Called when readiness may have changed: an interface or its tap changes state, or a thread hangs or recovers.
    pub on_change: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl std::fmt::Debug for DataplaneConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataplaneConfig")
            .field("cores", &self.cores)
            .field("idle", &self.idle)
            .field("interfaces", &self.interfaces)
            .finish_non_exhaustive()
    }
}

impl Default for DataplaneConfig {
    /// One adaptive worker on core 0, 256 MiB of plain pages, 65,536 flows, and no interfaces, taps or announcements.
    fn default() -> Self {
        Self {
            cores: vec![0],
            idle: Idle::Adaptive,
            memory: dpdk::Memory::NoHuge { mib: 256 },
            flow_entries_per_core: 65_536,
            flow_service_percent: FLOW_SHARE_PERCENT,
            flow_store: None,
            interfaces: Vec::new(),
            routes: Vec::new(),
            taps: true,
            tap_mark: None,
            announce: true,
            snat_is_released: false,
            on_failure: None,
            on_change: None,
        }
    }
}

/// One port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceConfig {
    /// Its name in the configuration.
    pub name: String,
    /// A DPDK vdev with its arguments, or a PCI address.
    pub device: String,
    /// The MAC address to use instead of the device's own.
    pub mac: Option<MacAddr>,
    /// The MTU to use instead of the device's own, in bytes of an IP packet.
    pub mtu: Option<u16>,
    /// The 802.1Q tag of all frames.
    pub vlan: Option<u16>,
    /// Its own addresses with their on-link prefixes.
    pub addresses: Vec<IpNet>,
}

/// One port as started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceState {
    /// Its name in the configuration.
    pub name: String,
    /// DPDK's name of the device.
    pub device: String,
    /// The driver, such as `net_af_packet`.
    pub driver: String,
    /// The MAC address in use.
    pub mac: MacAddr,
    /// Bytes of the largest IP packet.
    pub mtu: u16,
    /// The name of its tap, if any.
    pub tap: Option<String>,
    /// What was negotiated with the device.
    pub negotiated: NegotiatedPort,
}

/// What was negotiated with the device when the port was started.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NegotiatedPort {
    /// Receive queues, and as many transmit queues: one of each per worker.
    pub queues: u16,
    /// Descriptors of each receive ring.
    pub rx_descriptors: u16,
    /// Descriptors of each transmit ring.
    pub tx_descriptors: u16,
    /// Receive offloads, by DPDK's names.
    pub rx_offloads: Vec<String>,
    /// Transmit offloads, by DPDK's names.
    pub tx_offloads: Vec<String>,
    /// How it distributes packets to its queues.
    pub rss: RssReport,
}

/// How a port distributes packets to its queues, as its driver reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RssReport {
    /// It has one queue.
    #[default]
    OneQueue,
    /// The driver doesn't report it.
    Unknown,
    /// By a Toeplitz hash of addresses and ports.
    Hash {
        /// Whether it uses the key of the gateway instead of its own.
        gateway_key: bool,
        /// Whether TCP and UDP ports are hashed, in both families.
        tcp_udp: bool,
        /// Whether SCTP ports are hashed, in both families.
        sctp: bool,
    },
}

impl std::fmt::Display for RssReport {
    /// The value in `status -o wide`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OneQueue => f.write_str("one-queue"),
            Self::Unknown => f.write_str("unknown"),
            Self::Hash { gateway_key, tcp_udp, sctp } => {
                let protocols = match (tcp_udp, sctp) {
                    (true, true) => "tcp,udp,sctp",
                    (true, false) => "tcp,udp",
                    (false, true) => "sctp",
                    (false, false) => "addresses",
                };
                write!(f, "{protocols}{}", if *gateway_key { "" } else { ",own-key" })
            }
        }
    }
}

/// Why a gateway did not start. All earlier steps have been undone.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Cores and queues don't match. Each error is on a separate line.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Topology(Vec<TopologyError>),
    /// DPDK did not start.
    #[error(transparent)]
    Eal(#[from] dpdk::EalError),
    /// There is no packet memory.
    #[error(transparent)]
    Pool(#[from] dpdk::PoolError),
    /// A port could not be started.
    #[error("interface {interface:?}: {source}")]
    Port {
        /// The interface's name.
        interface: String,
        /// The error.
        source: dpdk::PortError,
    },
    /// There are not enough free hugepages.
    #[error(
        "too few hugepages: {free} MiB are free, and dataplane.memory.sizeMiB is {mib}; accepted: \
         dataplane.memory: {{hugepages: false}}, or more hugepages (sysctl vm.nr_hugepages={})",
        .mib.div_ceil(2)
    )]
    Hugepages {
        /// The free ones of all sizes, in MiB.
        free: u64,
        /// The requested memory in MiB.
        mib: u32,
    },
    /// A packet socket could not be opened, because its rings exceed the limit on locked memory.
    #[error(
        "interface {interface:?}: memlock limit (RLIMIT_MEMLOCK) is {} KiB, needs {needed} MiB: packet sockets lock 64 MiB for each \
         queue and direction; accepted: LimitMEMLOCK=infinity in the unit, `ulimit -l unlimited`, or the capability CAP_IPC_LOCK",
        .limit >> 10
    )]
    LockedMemory {
        /// The interface's name.
        interface: String,
        /// The limit in bytes.
        limit: u64,
        /// What all packet sockets of the gateway lock, in MiB.
        needed: u64,
    },
    /// The kernel has no such device.
    #[error("interface {device} does not exist (dataplane.interfaces: {interface}); accepted: {}", .existing.join(", "))]
    NoDevice {
        /// The interface's name.
        interface: String,
        /// The name in the device string.
        device: String,
        /// The devices of the network namespace.
        existing: Vec<String>,
    },
    /// Another gateway uses the device.
    #[error("interface {interface:?}: {why}")]
    Lock {
        /// The interface's name.
        interface: String,
        /// The reason, with the owner if known.
        why: LockError,
    },
    /// Changes of the kernel's interfaces, or the workers, can't be monitored.
    #[error("cannot watch links and workers: {0}")]
    Watch(io::Error),
    /// An 802.1Q tag is invalid.
    #[error("interface {interface:?}: vlan {vlan}; accepted: 1 to 4094")]
    Vlan {
        /// The interface's name.
        interface: String,
        /// The given tag.
        vlan: u16,
    },
    /// A tap could not be created.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// The kernel could not be silenced on the port's interface.
    #[error(transparent)]
    SysctlGuard(#[from] SysctlGuardError),
    /// A thread could not be started.
    #[error(transparent)]
    WorkerPool(#[from] WorkerPoolError),
}
