//! UDP (RFC 768): writes the header of a tunnel over UDP. Reading is in `transport`.

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;

/// A UDP header to be written, without checksum, which may be omitted over IPv4 (RFC 768).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpHeader {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Header and payload in bytes.
    pub len: u16,
}

impl UdpHeader {
    /// The 8 bytes.
    #[inline]
    pub fn bytes(&self) -> [u8; HEADER_LEN] {
        let [a, b] = self.src_port.to_be_bytes();
        let [c, d] = self.dst_port.to_be_bytes();
        let [e, f] = self.len.to_be_bytes();
        [a, b, c, d, e, f, 0, 0]
    }
}
