//! The counters of a port: the totals of `rte_eth_stats`.
//!
//! Not here: counters of single queues, which newer DPDK releases removed from that struct, and Tidegate's own
//! counters.

use dpdk_sys as sys;

/// Totals since the port started or its counters were reset. A value that the driver doesn't count is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Frames received (`ipackets`).
    pub rx_packets: u64,
    /// Frames sent (`opackets`).
    pub tx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Frames lost because they were not received in time (`imissed`).
    pub rx_missed: u64,
    /// Received frames with errors.
    pub rx_errors: u64,
    /// Frames that could not be sent.
    pub tx_errors: u64,
    /// Frames lost because the pool had no mbuf (`rx_nombuf`).
    pub rx_no_mbuf: u64,
}

impl From<&sys::rte_eth_stats> for PortStats {
    fn from(raw: &sys::rte_eth_stats) -> Self {
        Self {
            rx_packets: raw.ipackets,
            tx_packets: raw.opackets,
            rx_bytes: raw.ibytes,
            tx_bytes: raw.obytes,
            rx_missed: raw.imissed,
            rx_errors: raw.ierrors,
            tx_errors: raw.oerrors,
            rx_no_mbuf: raw.rx_nombuf,
        }
    }
}
