//! The traffic of one flow.

/// Forwarded packets of a flow, of both directions that pass through the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowTraffic {
    /// Packets.
    pub packets: u64,
    /// Their bytes, from the IP header on, as they arrived.
    pub bytes: u64,
}
