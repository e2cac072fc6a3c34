//! The part of `status` about interfaces, their links and the neighbour table.

use serde::{Deserialize, Serialize};

/// One port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceStatus {
    /// Its name in the configuration.
    pub name: String,
    /// Its DPDK device.
    pub device: String,
    /// Its link address.
    pub mac: String,
    /// Whether the link is up.
    pub link_up: bool,
    /// The state of the link.
    #[serde(default)]
    pub link: LinkStatus,
    /// The tap that mirrors it to the kernel; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tap: Option<TapStatus>,
    /// What its driver supports and counts.
    #[serde(default)]
    pub port: PortStatus,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
}

/// What was negotiated with the driver of a port, and what it counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortStatus {
    /// DPDK's name of the driver.
    pub driver: String,
    /// The largest IP packet, in bytes.
    pub mtu: u16,
    /// The speed of the link in megabits per second; absent if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_mbps: Option<u32>,
    /// Receive queues, and as many transmit queues.
    pub queues: u16,
    /// Descriptors of each receive ring.
    pub rx_descriptors: u16,
    /// Descriptors of each transmit ring.
    pub tx_descriptors: u16,
    /// How packets are distributed to the queues: the protocols whose ports are hashed (`own-key`: with a key other
    /// than the gateway's), `addresses`, `unknown` if the driver does not report it, or `one-queue`.
    pub rss: String,
    /// Receive offloads in use, by DPDK's names.
    #[serde(default)]
    pub rx_offloads: Vec<String>,
    /// Transmit offloads in use, by DPDK's names.
    #[serde(default)]
    pub tx_offloads: Vec<String>,
    /// Packets that the NIC received and dropped because their worker did not fetch them in time.
    pub rx_missed: u64,
}

/// The link of a port or a tap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkStatus {
    /// `up`, `down`, `no-carrier` or `gone`.
    pub state: String,
    /// When the state began, RFC 3339.
    pub since: String,
    /// How often the state has changed since the daemon's start.
    pub transitions: u64,
}

/// A tap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TapStatus {
    /// Its name in the kernel.
    pub name: String,
    /// The state of its link.
    pub link: LinkStatus,
}

/// The usage of the neighbour table. If `next_hops` is `next_hops_max`, there is no capacity for another next hop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NeighborsStatus {
    /// Next hops of backends and routes.
    pub next_hops: usize,
    /// The maximum number of these.
    pub next_hops_max: usize,
    /// Neighbours that are resolved only because packets need them.
    pub on_demand: usize,
    /// The maximum number of these.
    pub on_demand_max: usize,
}

impl NeighborsStatus {
    /// Whether there is no more capacity for next hops of backends or routes.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.next_hops_max > 0 && self.next_hops >= self.next_hops_max
    }

    /// What is missing because the table is full, and what to do.
    #[must_use]
    pub fn shortage(&self) -> Option<String> {
        let Self { next_hops, next_hops_max, .. } = self;
        self.is_full().then(|| {
            format!(
                "the table of next hops is full ({next_hops} of {next_hops_max}), so further on-link backends are \
                 ignored; remove backends, or reach them through routers (dataplane.routes)"
            )
        })
    }
}
