//! The configuration of a port.

use crate::flow::RssConfig;

/// How to set a port up.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Number of receive queues, and of transmit queues.
    pub queues: u16,
    /// Descriptors in each receive ring, adjusted to the limits of the device.
    pub rx_descriptors: u16,
    /// Descriptors in each transmit ring, adjusted to the limits of the device.
    pub tx_descriptors: u16,
    /// The MTU in bytes of an IP packet. `None` leaves it unchanged: for a vdev on a kernel interface, that of the
    /// interface.
    pub mtu: Option<u16>,
    /// The address to set, if the device supports it.
    pub mac: Option<[u8; 6]>,
    /// Receive frames for any address.
    pub promiscuous: bool,
    /// Receive frames for any multicast group (neighbour solicitations go to such groups).
    pub all_multicast: bool,
    /// How to distribute frames to several queues, if the device supports it.
    pub rss: RssConfig,
    /// Let the device verify checksums if it can ([`crate::Mbuf::ip_checksum`], `l4_checksum`).
    pub verify_checksums: bool,
    /// Let the device remove 802.1Q tags from frames if it can ([`crate::Mbuf::stripped_vlan`]).
    pub strip_vlan: bool,
    /// Let frames of several segments be sent ([`crate::Mbuf::is_contiguous`]). Without it, some drivers send faster, and of
    /// such a frame only the first segment may be sent.
    pub send_segments: bool,
    /// Let the device return sent mbufs to the pool of the port without looking at each (`MBUF_FAST_FREE`), if it can.
    /// It is granted only while there is no other pool in the process, and no other can then be created.
    pub fast_free: bool,
}

impl Default for PortConfig {
    /// One queue of 1,024 descriptors each way, all multicast, RSS over addresses and ports, no offload except segments.
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
