//! What a port is configured with.

use crate::flow::RssConfig;

/// How to set a port up.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Number of receive queues, and of transmit queues.
    pub queues: u16,
    /// Descriptors in each receive ring; adjusted to what the device takes.
    pub rx_descriptors: u16,
    /// Descriptors in each transmit ring; adjusted to what the device takes.
    pub tx_descriptors: u16,
    /// Bytes of an IP packet. None leaves it: for a vdev on a kernel interface, what that has.
    pub mtu: Option<u16>,
    /// The address to take over, where the device lets itself be given one.
    pub mac: Option<[u8; 6]>,
    /// Receive frames for any address.
    pub promiscuous: bool,
    /// Receive frames for any multicast group (neighbour solicitations go to such).
    pub all_multicast: bool,
    /// How to deal frames to several queues, where the device can be told.
    pub rss: RssConfig,
    /// Have the device verify checksums where it can ([`crate::Mbuf::ip_checksum`], `l4_checksum`).
    pub verify_checksums: bool,
    /// Have the device take 802.1Q tags out of frames where it can ([`crate::Mbuf::stripped_vlan`]).
    pub strip_vlan: bool,
}

impl Default for PortConfig {
    /// One queue of 1,024 descriptors each way, all multicast, RSS over addresses and ports, no offload.
    fn default() -> Self {
        Self {
            queues: 1,
            rx_descriptors: 1024,
            tx_descriptors: 1024,
            mtu: None,
            mac: None,
            promiscuous: false,
            all_multicast: true,
            rss: RssConfig::default(),
            verify_checksums: false,
            strip_vlan: false,
        }
    }
}
