//! The fields (TLVs) that follow the addresses in a header of the PROXY protocol version 2 (haproxy.org,
//! `proxy-protocol.txt` of 2020/03/05, section 2.2).
//!
//! Like the header, they are a pure function of the connection, so they can be written again for a retransmission.
//! Their length depends only on which of them are present.

use arrayvec::ArrayString;

use super::proxy_header::ProxyHeader;

/// `PP2_TYPE_CRC32C` (section 2.2.3).
const TYPE_CRC32C: u8 = 0x03;
/// `PP2_TYPE_UNIQUE_ID` (section 2.2.5).
const TYPE_UNIQUE_ID: u8 = 0x05;

/// `PP2_TYPE_NOOP` (section 2.2.4): padding.
const TYPE_NOOP: u8 = 0x04;
/// The type and subtype with which AWS load balancers report the VPC endpoint that a client used: `PP2_TYPE_AWS` and
/// `PP2_SUBTYPE_AWS_VPCE_ID` (AWS guide for network load balancers).
const TYPE_AWS: u8 = 0xea;
const SUBTYPE_AWS_VPCE_ID: u8 = 0x01;

/// Bytes of the type and the length of a TLV.
const TLV_HEADER_LEN: usize = 3;
/// Bytes of a checksum.
const CRC32C_LEN: usize = 4;
/// Bytes before the addresses: signature, version and command, family and transport, length.
const FIXED_LEN: usize = 16;

/// Maximum length of a [`VpceId`]: the length of an AWS identifier, on which [`LEN_MAX`](super::proxy_header::LEN_MAX)
/// is based.
pub const VPCE_ID_MAX: usize = 22;

/// The text of the TLV for a VPC endpoint, such as `vpce-08d2bf15fac5001c9`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VpceId(ArrayString<VPCE_ID_MAX>);

impl VpceId {
    /// A text of 1 to [`VPCE_ID_MAX`] visible ASCII characters; `None` for other texts.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let is_sound = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        ArrayString::from(text).ok().filter(|_| is_sound).map(Self)
    }

    /// The text. It is empty by default.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The bytes that identify a connection.
pub type UniqueId = [u8; 16];

/// Which TLVs a header has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ProxyTlvs(u8);

impl ProxyTlvs {
    /// No TLV.
    pub const NONE: Self = Self(0);
    /// An identifier of the connection.
    pub const UNIQUE_ID: Self = Self(1);
    /// A checksum of the header.
    pub const CRC32C: Self = Self(2);
    /// A [`VpceId`] followed by padding. The text of a Service may change while connections are being established, so
    /// the total length is constant.
    pub const VPCE_ID: Self = Self(4);

    /// The TLVs of `self` and `other`.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The TLVs of `self` that `other` does not have.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether it has all TLVs of `other`.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The TLVs in one byte.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The TLVs encoded by [`Self::bits`]. Unknown bits are ignored.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & (Self::UNIQUE_ID.0 | Self::CRC32C.0 | Self::VPCE_ID.0))
    }

    /// The names in annotations, in the order of the header.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let all = [(Self::UNIQUE_ID, "unique-id"), (Self::VPCE_ID, "vpce-id"), (Self::CRC32C, "crc32c")];
        all.into_iter().filter(move |(tlv, _)| self.has(*tlv)).map(|(_, name)| name)
    }

    /// Bytes of the TLVs.
    #[must_use]
    pub fn len(self) -> usize {
        let id = if self.has(Self::UNIQUE_ID) { TLV_HEADER_LEN + size_of::<UniqueId>() } else { 0 };
        let sum = if self.has(Self::CRC32C) { TLV_HEADER_LEN + CRC32C_LEN } else { 0 };
        let vpce = if self.has(Self::VPCE_ID) { 2 * TLV_HEADER_LEN + 1 + VPCE_ID_MAX } else { 0 };
        id + vpce + sum
    }

    /// Whether there are no TLVs.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }

    /// Appends the TLVs to a version 2 header without any, and updates the length in the header. Such a header has at
    /// most 52 bytes, so the TLVs fit.
    pub fn append(self, header: &mut ProxyHeader, id: &UniqueId, vpce: &VpceId) {
        let mut put = |bytes: &[u8]| {
            let fits = header.try_extend_from_slice(bytes);
            debug_assert!(fits.is_ok(), "the TLVs fit after the longest version 2 header");
        };
        if self.has(Self::UNIQUE_ID) {
            put(&[TYPE_UNIQUE_ID, 0, size_of::<UniqueId>() as u8]);
            put(id);
        }
        if self.has(Self::VPCE_ID) {
            let text = vpce.as_str().as_bytes();
            put(&[TYPE_AWS, 0, 1 + text.len() as u8, SUBTYPE_AWS_VPCE_ID]);
            put(text);
            let padding = VPCE_ID_MAX - text.len();
            put(&[TYPE_NOOP, 0, padding as u8]);
            put(&[0; VPCE_ID_MAX][..padding]);
        }
        if self.has(Self::CRC32C) {
            // The checksum covers the whole header, with its own field set to zero.
            put(&[TYPE_CRC32C, 0, CRC32C_LEN as u8, 0, 0, 0, 0]);
        }
        let len = header.len().saturating_sub(FIXED_LEN) as u16;
        if let Some(field) = header.get_mut(FIXED_LEN - 2..FIXED_LEN) {
            field.copy_from_slice(&len.to_be_bytes());
        }
        if self.has(Self::CRC32C) {
            let sum = crc32c::crc32c(header);
            if let Some(field) = header.last_chunk_mut::<CRC32C_LEN>() {
                *field = sum.to_be_bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::headers::proto;
    use super::super::proxy_header::{LEN_MAX, ProxyVersion, proxy_header};
    use super::super::rewrite::Endpoint;
    use super::*;
    use std::net::SocketAddr;

    fn header(client: &str, vip: &str, tlvs: ProxyTlvs) -> ProxyHeader {
        header_with(client, vip, tlvs, "vpce-08d2bf15fac5001c9")
    }

    fn header_with(client: &str, vip: &str, tlvs: ProxyTlvs, vpce: &str) -> ProxyHeader {
        let end = |text: &str| {
            let at: SocketAddr = text.parse().unwrap();
            Endpoint { addr: at.ip().into(), port: at.port() }
        };
        let mut header = proxy_header(ProxyVersion::V2, proto::TCP, end(client), end(vip));
        tlvs.append(&mut header, b"0123456789abcdef", &VpceId::new(vpce).unwrap());
        header
    }

    #[test]
    fn tlvs_follow_the_addresses_and_count_in_the_length() {
        let plain = header("192.0.2.202:12345", "10.0.42.7:7", ProxyTlvs::NONE);
        assert_eq!((plain.len(), &plain[14..16]), (28, &[0, 12][..]));
        let id = header("192.0.2.202:12345", "10.0.42.7:7", ProxyTlvs::UNIQUE_ID);
        assert_eq!((id.len(), &id[14..16]), (28 + 19, &[0, 31][..]));
        assert_eq!(id[16..28], plain[16..28]);
        assert_eq!(id[28..], *b"\x05\0\x100123456789abcdef");
    }

    #[test]
    fn the_checksum_covers_the_header_with_zeros_in_its_own_field() {
        let two = ProxyTlvs::CRC32C.and(ProxyTlvs::UNIQUE_ID);
        for tlvs in [ProxyTlvs::CRC32C, two, two.and(ProxyTlvs::VPCE_ID)] {
            let mut header = header("[2001:db8::7]:40000", "[2001:db8:1::5]:80", tlvs);
            assert_eq!(header.len(), 52 + tlvs.len());
            assert_eq!(header.len() == LEN_MAX, tlvs.has(ProxyTlvs::VPCE_ID));
            let at = header.len() - 4;
            assert_eq!(header[at - 3..at], [3, 0, 4]);
            let sum = u32::from_be_bytes(header[at..].try_into().unwrap());
            header[at..].fill(0);
            assert_eq!(sum, bitwise_crc32c(&header));
        }
        // RFC 3720 appendix B.4: 32 bytes of zeros.
        assert_eq!(bitwise_crc32c(&[0; 32]).swap_bytes(), 0xaa36_918a);
    }

    /// The plain loop over bits, with the reflected polynomial of RFC 3720.
    fn bitwise_crc32c(bytes: &[u8]) -> u32 {
        let step = |crc: u32, _| if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ 0x82f6_3b78 };
        !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
    }

    #[test]
    fn a_byte_keeps_which_tlvs_there_are() {
        for bits in 0..8 {
            let tlvs = ProxyTlvs::from_bits(bits);
            assert_eq!(tlvs.bits(), bits);
            assert_eq!(tlvs.is_empty(), bits == 0);
            assert!(!tlvs.without(ProxyTlvs::UNIQUE_ID).has(ProxyTlvs::UNIQUE_ID));
        }
        assert_eq!(
            ProxyTlvs::from_bits(0xff).names().collect::<Vec<_>>(),
            ["unique-id", "vpce-id", "crc32c"]
        );
    }

    #[test]
    fn the_endpoint_of_a_cloud_has_the_same_length_with_every_text() {
        let text = "vpce-08d2bf15fac5001c9";
        let (client, vip) = ("192.0.2.202:12345", "10.0.42.7:7");
        let header = header_with(client, vip, ProxyTlvs::VPCE_ID, text);
        assert_eq!((header.len(), &header[14..16]), (28 + 29, &[0, 12 + 29][..]));
        assert_eq!(header[28..], *[b"\xea\0\x17\x01", text.as_bytes(), b"\x04\0\0"].concat());
        let short = header_with(client, vip, ProxyTlvs::VPCE_ID, "a");
        assert_eq!(short.len(), header.len());
        assert_eq!(short[28..36], *b"\xea\0\x02\x01a\x04\0\x15");
        assert_eq!(short[36..], [0; 21]);
    }

    #[test]
    fn a_text_for_the_endpoint_of_a_cloud_is_short_visible_ascii() {
        let longest = "v".repeat(VPCE_ID_MAX);
        assert_eq!(VpceId::new(&longest).unwrap().as_str(), longest);
        for text in ["", " ", "a b", "\u{fc}", "a\n", &"v".repeat(VPCE_ID_MAX + 1)] {
            assert_eq!(VpceId::new(text), None, "{text:?}");
        }
    }
}
