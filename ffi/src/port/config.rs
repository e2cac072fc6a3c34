//! The configuration of a port.

use crate::flow::RssConfig;

/// How to configure a port.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Number of receive queues, and of transmit queues.
    pub queues: u16,
    /// Descriptors in each receive ring, adjusted to the limits of the device.
    pub rx_descriptors: u16,
    /// Descriptors in each transmit ring, adjusted to the limits of the device.
    pub tx_descriptors: u16,
    /// The MTU in bytes of an IP packet. `None` leaves it unchanged; a vdev on a kernel interface then has the
    /// interface's MTU.
    pub mtu: Option<u16>,
    /// The address to set, if the device supports it.
    pub mac: Option<[u8; 6]>,
    /// Whether to receive frames for any address.
    pub promiscuous: bool,
    /// Whether to receive frames for any multicast group (neighbour solicitations use such groups).
    pub all_multicast: bool,
    /// How to distribute frames to several queues, if the device supports it.
    pub rss: RssConfig,
    /// Whether the device verifies checksums if it can ([`crate::Mbuf::ip_checksum`], `l4_checksum`).
    pub verify_checksums: bool,
    /// Whether the device removes 802.1Q tags if it can ([`crate::Mbuf::stripped_vlan`]).
    pub strip_vlan: bool,
    /// Whether frames of several segments can be sent ([`crate::Mbuf::is_contiguous`]). If false, some drivers send
    /// faster, but may send only the first segment of such a frame.
    pub send_segments: bool,
    /// Whether the device returns sent mbufs to the pool of the port without checking each (`MBUF_FAST_FREE`), if it
    /// can. This is used only while the process has no other pool, and no other pool can then be created.
    pub fast_free: bool,
}

impl Default for PortConfig {
    /// One queue of 1,024 descriptors in each direction, all multicast, RSS over addresses and ports, no offload except
    /// segments.
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
            send_segments: true,
            fast_free: false,
        }
    }
}
