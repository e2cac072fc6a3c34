//! What the checks examine: the machine, the network, the configuration, and the running gateway.

use tidegate_admin_api::Status;
use tidegate_model::config::{GatewayConfig, Interface};

use crate::machine::Machine;
use crate::network::Network;

/// What is checked.
pub(crate) struct Subject<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) network: &'a Network,
    /// The configuration, or the defaults if there is none.
    pub(crate) config: &'a GatewayConfig,
    /// The status of the gateway that runs on this machine.
    pub(crate) gateway: Option<&'a Status>,
}

/// What a device string names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Device<'a> {
    /// A device that the kernel keeps.
    Kernel(&'a str),
    /// A NIC that DPDK drives.
    Pci(&'a str),
    /// A virtual device without a device of this machine.
    Virtual,
}

impl<'a> Device<'a> {
    pub(super) fn of(interface: &'a Interface) -> Self {
        let mut parts = interface.device.split(',');
        let first = parts.next().unwrap_or_default();
        if !first.starts_with("net_") && first.contains(':') {
            return Self::Pci(first);
        }
        parts.find_map(|part| part.strip_prefix("iface=")).map_or(Self::Virtual, Self::Kernel)
    }
}

impl Subject<'_> {
    pub(super) fn interfaces(&self) -> &[Interface] {
        &self.config.dataplane.network.interfaces
    }

    /// The interfaces that share a device with the kernel (`net_af_packet`).
    pub(super) fn packet_sockets(&self) -> impl Iterator<Item = (&Interface, &str)> {
        let with_device = self.interfaces().iter().filter(|one| one.device.starts_with("net_af_packet"));
        with_device.filter_map(|one| match Device::of(one) {
            Device::Kernel(name) => Some((one, name)),
            _ => None,
        })
    }

    pub(super) fn pci(&self) -> impl Iterator<Item = (&Interface, &str)> {
        self.interfaces().iter().filter_map(|one| match Device::of(one) {
            Device::Pci(address) => Some((one, address)),
            _ => None,
        })
    }

    /// The process whose limits and files count: the running gateway, or one that this user would start.
    pub(super) fn process(&self) -> String {
        self.gateway.map_or_else(|| "proc/self".to_owned(), |gateway| format!("proc/{}", gateway.pid))
    }
}
