//! The records of pcap (draft-ietf-opsawg-pcap): a file header, then packets.

use std::io::Read;

use super::error::{Fault, PcapError};
use super::packet::{Interface, Packet, Resolution};
use super::source::{Endian, LINK_TYPE_ETHERNET, Source};

/// The contents of a file header.
#[derive(Debug)]
pub(super) struct Pcap {
    endian: Endian,
    /// The only interface.
    pub(super) interface: Interface,
}

/// The byte order and resolution of a file that starts with `magic`; `None` if it is not pcap.
fn kind(magic: [u8; 4]) -> Option<(Endian, Resolution)> {
    match magic {
        [0xd4, 0xc3, 0xb2, 0xa1] => Some((Endian::Little, Resolution::Decimal(6))),
        [0x4d, 0x3c, 0xb2, 0xa1] => Some((Endian::Little, Resolution::Decimal(9))),
        [0xa1, 0xb2, 0xc3, 0xd4] => Some((Endian::Big, Resolution::Decimal(6))),
        [0xa1, 0xb2, 0x3c, 0x4d] => Some((Endian::Big, Resolution::Decimal(9))),
        _ => None,
    }
}

impl Pcap {
    /// Reads the rest of the file header after `magic`, its first four bytes.
    pub(super) fn begin<R: Read>(magic: [u8; 4], source: &mut Source<R>) -> Result<Self, PcapError> {
        let Some((endian, resolution)) = kind(magic) else { return Err(source.fail(Fault::NotACapture)) };
        let h: [u8; 20] = source.array("file header")?;
        let (major, minor) = (endian.u16([h[0], h[1]]), endian.u16([h[2], h[3]]));
        if major != 2 {
            return Err(source.fail(Fault::Version(major, minor)));
        }
        // The upper bits describe a frame check sequence (draft-ietf-opsawg-pcap, section 4).
        let link_type = endian.u32([h[16], h[17], h[18], h[19]]) & 0xffff;
        if link_type != LINK_TYPE_ETHERNET {
            return Err(source.fail(Fault::LinkType(link_type)));
        }
        let interface = Interface { name: None, resolution, offset_s: 0, snap_len: 0 };
        Ok(Self { endian, interface })
    }

    /// The next packet; `None` at the end of the file.
    pub(super) fn next_packet<R: Read>(&self, source: &mut Source<R>) -> Result<Option<Packet>, PcapError> {
        let Some(h) = source.record_start::<16>("packet header")? else { return Ok(None) };
        let [seconds, fraction, len, original_len] =
            [0, 4, 8, 12].map(|at| self.endian.u32([h[at], h[at + 1], h[at + 2], h[at + 3]]));
        source.check_packet_len(len)?;
        let data = source.vec(len, "packet")?;
        let timestamp_ns = u64::from(seconds) * 1_000_000_000 + self.interface.timestamp_ns(fraction.into());
        Ok(Some(Packet { timestamp_ns, interface: 0, original_len, data }))
    }
}
