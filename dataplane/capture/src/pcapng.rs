//! The blocks of pcapng (draft-ietf-opsawg-pcapng): section header, interface description, and the enhanced, simple and
//! old packet blocks. All others are skipped, as the format requires.

use std::io::Read;

use super::error::{Fault, PcapError};
use super::packet::{Interface, Packet, Resolution};
use super::source::{BLOCK_LEN_MAX, Endian, LINK_TYPE_ETHERNET, Source};

/// The block type of a section header. It is a palindrome, so it is equal in both byte orders.
pub(super) const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

const INTERFACE_DESCRIPTION: u32 = 1;
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

const OPTION_END: u16 = 0;
const OPTION_IF_NAME: u16 = 2;
const OPTION_IF_TSRESOL: u16 = 9;
const OPTION_IF_TSOFFSET: u16 = 14;

/// The section being read.
#[derive(Debug)]
pub(super) struct PcapNg {
    endian: Endian,
    /// The interfaces described so far.
    pub(super) interfaces: Vec<Interface>,
    last_timestamp_ns: u64,
}

/// Reads the rest of a section header after its block type. Returns the byte order of the section.
fn section_header<R: Read>(source: &mut Source<R>) -> Result<Endian, PcapError> {
    let len: [u8; 4] = source.array("section header")?;
    let endian = match source.array("section header")? {
        [0x1a, 0x2b, 0x3c, 0x4d] => Endian::Big,
        [0x4d, 0x3c, 0x2b, 0x1a] => Endian::Little,
        _ => return Err(source.fail(Fault::NotACapture)),
    };
    let len = block_len(endian.u32(len), 28, source)?;
    let body = block_body(endian, len, 12, source)?;
    let (major, minor) = (endian.u16([body[0], body[1]]), endian.u16([body[2], body[3]]));
    // The draft says that some programs wrote version 1.2, which must be read as 1.0.
    if major != 1 || !matches!(minor, 0 | 2) {
        return Err(source.fail(Fault::Version(major, minor)));
    }
    Ok(endian)
}

/// Checks the length of a block, which must be at least `min`.
fn block_len<R: Read>(len: u32, min: u32, source: &Source<R>) -> Result<u32, PcapError> {
    if len < min || len > BLOCK_LEN_MAX || !len.is_multiple_of(4) {
        let accepted = "a multiple of 4, enough for the fixed fields of the block, at most 16 MiB";
        return Err(source.fail(Fault::Length { what: "block", len, accepted }));
    }
    Ok(len)
}

/// The rest of a block of length `len` after its first `read` bytes. Checks and removes the second length.
fn block_body<R: Read>(
    endian: Endian,
    len: u32,
    read: u32,
    source: &mut Source<R>,
) -> Result<Vec<u8>, PcapError> {
    let body = source.vec(len - read - 4, "block")?;
    let end = endian.u32(source.array("block")?);
    if end != len {
        return Err(source.fail(Fault::BlockLengths(len, end)));
    }
    Ok(body)
}

/// The first `len` bytes of the rest of a block.
fn packet_data<R: Read>(padded: &[u8], len: u32, source: &Source<R>) -> Result<Vec<u8>, PcapError> {
    source.check_packet_len(len)?;
    match padded.get(..len as usize) {
        Some(data) => Ok(data.to_vec()),
        None => {
            let accepted = "at most the length of its block";
            Err(source.fail(Fault::Length { what: "packet", len, accepted }))
        }
    }
}

impl PcapNg {
    /// Reads the section header at the start of a file, after its block type.
    pub(super) fn begin<R: Read>(source: &mut Source<R>) -> Result<Self, PcapError> {
        Ok(Self { endian: section_header(source)?, interfaces: Vec::new(), last_timestamp_ns: 0 })
    }

    /// The next packet; `None` at the end of the file.
    pub(super) fn next_packet<R: Read>(
        &mut self,
        source: &mut Source<R>,
    ) -> Result<Option<Packet>, PcapError> {
        while let Some(kind) = source.record_start::<4>("block")? {
            if kind == SECTION_HEADER {
                self.endian = section_header(source)?;
                // Interface numbers are relative to the section.
                self.interfaces.clear();
                continue;
            }
            let kind = self.endian.u32(kind);
            let body_min = match kind {
                INTERFACE_DESCRIPTION => 8,
                SIMPLE_PACKET => 4,
                OLD_PACKET | ENHANCED_PACKET => 20,
                _ => 0,
            };
            let len = self.endian.u32(source.array("block")?);
            let len = block_len(len, body_min + 12, source)?;
            let body = block_body(self.endian, len, 8, source)?;
            match kind {
                INTERFACE_DESCRIPTION => {
                    let interface = self.interface_description(&body, source)?;
                    self.interfaces.push(interface);
                }
                SIMPLE_PACKET => return self.simple_packet(&body, source).map(Some),
                OLD_PACKET | ENHANCED_PACKET => {
                    return self.timed_packet(&body, kind == OLD_PACKET, source).map(Some);
                }
                _ => {}
            }
        }
        Ok(None)
    }

    fn word(&self, body: &[u8], at: usize) -> u32 {
        self.endian.u32([body[at], body[at + 1], body[at + 2], body[at + 3]])
    }

    /// Reads an interface description. `body` has at least the 8 bytes of the fixed part.
    fn interface_description<R: Read>(
        &self,
        body: &[u8],
        source: &Source<R>,
    ) -> Result<Interface, PcapError> {
        let link_type = u32::from(self.endian.u16([body[0], body[1]]));
        if link_type != LINK_TYPE_ETHERNET {
            return Err(source.fail(Fault::LinkType(link_type)));
        }
        let mut interface = Interface {
            name: None,
            resolution: Resolution::Decimal(6),
            offset_s: 0,
            snap_len: self.word(body, 4),
        };
        let mut options = &body[8..];
        while let Some((head, rest)) = options.split_first_chunk::<4>() {
            let code = self.endian.u16([head[0], head[1]]);
            let len = usize::from(self.endian.u16([head[2], head[3]]));
            if code == OPTION_END {
                break;
            }
            let Some(value) = rest.get(..len) else {
                return Err(source.fail(Fault::Truncated("interface option")));
            };
            match (code, value) {
                (OPTION_IF_NAME, name) => {
                    interface.name = Some(String::from_utf8_lossy(name).trim_end_matches('\0').to_owned());
                }
                (OPTION_IF_TSRESOL, [n @ 0..=0x7f]) => interface.resolution = Resolution::Decimal(*n),
                (OPTION_IF_TSRESOL, [n]) => interface.resolution = Resolution::Binary(n & 0x7f),
                (OPTION_IF_TSOFFSET, v) => {
                    if let Ok(v) = <[u8; 8]>::try_from(v) {
                        interface.offset_s = self.endian.u64(v).cast_signed();
                    }
                }
                _ => {}
            }
            options = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        }
        Ok(interface)
    }

    /// Reads an enhanced or old packet block, which differ in the first word. `body` has at least 20 bytes.
    fn timed_packet<R: Read>(
        &mut self,
        body: &[u8],
        old: bool,
        source: &Source<R>,
    ) -> Result<Packet, PcapError> {
        let interface = if old { u32::from(self.endian.u16([body[0], body[1]])) } else { self.word(body, 0) };
        let Some(description) = self.interfaces.get(interface as usize) else {
            return Err(source.fail(Fault::UnknownInterface(interface)));
        };
        let units = u64::from(self.word(body, 4)) << 32 | u64::from(self.word(body, 8));
        let timestamp_ns = description.timestamp_ns(units);
        self.last_timestamp_ns = timestamp_ns;
        let len = self.word(body, 12);
        let data = packet_data(&body[20..], len, source)?;
        Ok(Packet { timestamp_ns, interface, original_len: self.word(body, 16), data })
    }

    /// Reads a simple packet block, which always belongs to interface 0. `body` has at least 4 bytes.
    fn simple_packet<R: Read>(&self, body: &[u8], source: &Source<R>) -> Result<Packet, PcapError> {
        let Some(description) = self.interfaces.first() else {
            return Err(source.fail(Fault::UnknownInterface(0)));
        };
        let original_len = self.word(body, 0);
        let snap_len = if description.snap_len == 0 { u32::MAX } else { description.snap_len };
        let data = packet_data(&body[4..], original_len.min(snap_len), source)?;
        Ok(Packet { timestamp_ns: self.last_timestamp_ns, interface: 0, original_len, data })
    }
}
