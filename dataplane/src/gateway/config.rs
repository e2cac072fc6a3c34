//! The settings of a gateway, and the errors of its start: the control plane's side of the facade.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tidegate_core::limits::FLOW_SHARE_PERCENT;
use tidegate_core::wire::MacAddr;

use super::error::WorkerPoolError;
use super::worker_handle::OnFailure;
use crate::links::lock::LockError;
use crate::punt::sysctl_guard::SysctlGuardError;
use crate::punt::tap::TapError;
use crate::topology::{Idle, TopologyError};

/// A gateway, as configuration has it: the section `dataplane` of the configuration file, validated.
#[derive(Clone)]
pub struct DataplaneConfig {
    /// Dedicated cores, one worker each.
    pub cores: Vec<usize>,
    /// How workers wait.
    pub idle: Idle,
    /// Where packet memory comes from.
    pub memory: dpdk::Memory,
    /// Flows that each worker remembers.
    pub flow_entries_per_core: usize,
    /// What one service may have of a full flow table, in percent.
    pub flow_service_percent: u8,
    /// The ports; the position is the interface index.
    pub interfaces: Vec<InterfaceConfig>,
    /// Routes to begin with, for the kernel's side too, until the first forwarding state brings its own.
    pub routes: Vec<(IpNet, IpAddr)>,
    /// Whether the kernel gets a tap for each interface. Without, what is punted is dropped.
    pub taps: bool,
    /// Tell the links about new VIPs (`announce.l2`).
    pub announce: bool,
    /// Called, on the failing thread, when a worker ends unasked.
    pub on_failure: Option<OnFailure>,
    /// Called when an interface or its tap changes its state.
    pub on_link_change: Option<Arc<dyn Fn() + Send + Sync>>,
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
    /// One adaptive worker on core 0, 256 MiB of plain pages, 65,536 flows, no interface, taps and announcements.
    fn default() -> Self {
        Self {
            cores: vec![0],
            idle: Idle::Adaptive,
            memory: dpdk::Memory::NoHuge { mib: 256 },
            flow_entries_per_core: 65_536,
            flow_service_percent: FLOW_SHARE_PERCENT,
            interfaces: Vec::new(),
            routes: Vec::new(),
            taps: true,
            announce: true,
            on_failure: None,
            on_link_change: None,
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
    /// The address to take over; the device's own without.
    pub mac: Option<MacAddr>,
    /// Bytes of an IP packet; the device's own without.
    pub mtu: Option<u16>,
    /// 802.1Q tag of all frames.
    pub vlan: Option<u16>,
    /// Own addresses with their on-link prefixes.
    pub addresses: Vec<IpNet>,
}

/// One port, as it turned out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceState {
    /// Its name in the configuration.
    pub name: String,
    /// DPDK's name of the device.
    pub device: String,
    /// The driver, such as `net_af_packet`.
    pub driver: String,
    /// The address in use.
    pub mac: MacAddr,
    /// Bytes of the largest IP packet.
    pub mtu: u16,
    /// The kernel's mirror, when there is one.
    pub tap: Option<String>,
}

/// Why a gateway did not start. Whatever was begun has been undone.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Cores and queues do not fit; each fault on a line of its own.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Topology(Vec<TopologyError>),
    /// DPDK did not start.
    #[error(transparent)]
    Eal(#[from] dpdk::EalError),
    /// No packet memory.
    #[error(transparent)]
    Pool(#[from] dpdk::PoolError),
    /// A port.
    #[error("interface {interface:?}: {source}")]
    Port {
        /// The interface's name.
        interface: String,
        /// What is wrong.
        source: dpdk::PortError,
    },
    /// Another gateway has the device.
    #[error("interface {interface:?}: {why}")]
    Lock {
        /// The interface's name.
        interface: String,
        /// Who has it.
        why: LockError,
    },
    /// The kernel does not tell about its interfaces.
    #[error("cannot watch the links: {0}")]
    Watch(io::Error),
    /// A tag that cannot be.
    #[error("interface {interface:?}: vlan {vlan}; accepted: 1 to 4094")]
    Vlan {
        /// The interface's name.
        interface: String,
        /// What was given.
        vlan: u16,
    },
    /// The kernel's side.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// The kernel's own ear on the port.
    #[error(transparent)]
    SysctlGuard(#[from] SysctlGuardError),
    /// The threads.
    #[error(transparent)]
    WorkerPool(#[from] WorkerPoolError),
}
