//! Captures: reading pcap and pcapng, writing pcap. Used by `replay` on users' files, and by tests.
//!
//! Reads pcap in both byte orders with microseconds or nanoseconds, and pcapng (`ng`). Only Ethernet captures:
//! the pipeline begins at the Ethernet header. What is wrong with a file is said with the offset where it is, and a
//! cut-off file gives its whole packets first. The writer gives the same bytes for the same packets, always.
//!
//! Invariant: whatever the bytes, no panic, and no allocation beyond [`BLOCK_LEN_MAX`] at a time.

mod ng;
#[cfg(test)]
mod tests;

use core::fmt;
use std::io::{self, Read, Write};

/// The longest packet read: what tcpdump and Wireshark allow for Ethernet.
pub const PACKET_LEN_MAX: u32 = 262_144;
/// The longest pcapng block read; blocks of packets are far shorter, those of statistics or secrets may be long.
pub const BLOCK_LEN_MAX: u32 = 16 << 20;

const LINK_TYPE_ETHERNET: u32 = 1;

/// One packet of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Nanoseconds since the epoch. A pcapng simple packet has no time and takes that of the packet before it.
    pub timestamp_ns: u64,
    /// Which interface, as an index into [`Reader::interfaces`]; 0 in pcap, which knows only one.
    pub interface: u32,
    /// Bytes on the wire; more than `data.len()` when the capture cut the packet.
    pub original_len: u32,
    /// The frame, Ethernet header first.
    pub data: Vec<u8>,
}

/// One interface of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// `if_name` of pcapng.
    pub name: Option<String>,
    resolution: Resolution,
    offset_s: i64,
    snap_len: u32,
}

/// What a unit of a timestamp is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resolution {
    /// 10 to the minus n seconds.
    Decimal(u8),
    /// 2 to the minus n seconds.
    Binary(u8),
}

impl Interface {
    fn timestamp_ns(&self, units: u64) -> u64 {
        let units = u128::from(units);
        let ns = match self.resolution {
            Resolution::Decimal(n @ 0..=9) => units * 10u128.pow(u32::from(9 - n)),
            Resolution::Decimal(n) => units / 10u128.checked_pow(u32::from(n - 9)).unwrap_or(u128::MAX),
            Resolution::Binary(n) => (units * 1_000_000_000).checked_shr(u32::from(n)).unwrap_or(0),
        };
        let ns = i128::try_from(ns).unwrap_or(i128::MAX);
        let ns = ns.saturating_add(i128::from(self.offset_s) * 1_000_000_000);
        u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
    }
}

/// What is wrong with a capture, and where.
#[derive(Debug, thiserror::Error)]
#[error("capture, byte {offset}: {fault}")]
pub struct PcapError {
    /// Offset in the file of the record that is at fault.
    pub offset: u64,
    /// What is wrong.
    pub fault: Fault,
}

/// What may be wrong with a capture.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// Neither magic number.
    #[error("not a capture; accepted: pcap and pcapng")]
    NotACapture,
    /// A version we do not know.
    #[error("version {0}.{1}; accepted: pcap 2.x, pcapng 1.0 and 1.2")]
    Version(u16, u16),
    /// Another link type.
    #[error("link type {0}; accepted: 1 (Ethernet)")]
    LinkType(u32),
    /// The file ends inside a record.
    #[error("the file ends inside a {0}")]
    Truncated(&'static str),
    /// A length that cannot be.
    #[error("{what} of {len} bytes; accepted: {accepted}")]
    Length {
        /// Whose length.
        what: &'static str,
        /// As it stands in the file.
        len: u32,
        /// What would do.
        accepted: &'static str,
    },
    /// The two lengths of a pcapng block differ.
    #[error("block length {0} at its beginning, {1} at its end")]
    BlockLengths(u32, u32),
    /// A packet of an interface that was not described.
    #[error("packet of interface {0}, which no block before it describes")]
    UnknownInterface(u32),
    /// The file could not be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endian {
    Little,
    Big,
}

impl Endian {
    fn u16(self, b: [u8; 2]) -> u16 {
        match self {
            Endian::Little => u16::from_le_bytes(b),
            Endian::Big => u16::from_be_bytes(b),
        }
    }

    fn u32(self, b: [u8; 4]) -> u32 {
        match self {
            Endian::Little => u32::from_le_bytes(b),
            Endian::Big => u32::from_be_bytes(b),
        }
    }

    fn u64(self, b: [u8; 8]) -> u64 {
        match self {
            Endian::Little => u64::from_le_bytes(b),
            Endian::Big => u64::from_be_bytes(b),
        }
    }
}

/// Bytes with the offset of the next one and of the record being read.
struct Source<R> {
    inner: R,
    next: u64,
    record: u64,
}

impl<R: Read> Source<R> {
    fn fail(&self, fault: Fault) -> PcapError {
        PcapError { offset: self.record, fault }
    }

    /// Fills `buf`; the number of bytes read is short only at the end of the file.
    fn fill(&mut self, buf: &mut [u8]) -> Result<usize, PcapError> {
        let mut done = 0;
        while done < buf.len() {
            match self.inner.read(&mut buf[done..]) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.fail(Fault::Io(e))),
            }
        }
        self.next += done as u64;
        Ok(done)
    }

    /// `None` when the file ends before the first byte: the record does not exist.
    fn record_start<const N: usize>(&mut self, what: &'static str) -> Result<Option<[u8; N]>, PcapError> {
        self.record = self.next;
        let mut buf = [0; N];
        match self.fill(&mut buf)? {
            0 => Ok(None),
            n if n == N => Ok(Some(buf)),
            _ => Err(self.fail(Fault::Truncated(what))),
        }
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], PcapError> {
        let mut buf = [0; N];
        if self.fill(&mut buf)? == N { Ok(buf) } else { Err(self.fail(Fault::Truncated(what))) }
    }

    fn vec(&mut self, len: u32, what: &'static str) -> Result<Vec<u8>, PcapError> {
        let mut buf = vec![0; len as usize];
        if self.fill(&mut buf)? == buf.len() { Ok(buf) } else { Err(self.fail(Fault::Truncated(what))) }
    }
}

/// Which of the two formats.
#[derive(Clone, Copy, Debug)]
enum Format {
    Pcap,
    Ng,
}

/// Reads the packets of a capture in order.
///
/// # Examples
/// ```
/// use tidegate_core::testing::{Builder, pcap};
/// let frame = Builder::udp("192.0.2.1:1024", "203.0.113.5:53").build();
/// let mut writer = pcap::Writer::new(Vec::new())?;
/// writer.write(1_000, &frame)?;
/// let file = writer.finish()?;
/// for packet in pcap::Reader::new(&file[..])? {
///     assert_eq!(packet?.data, frame);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Reader<R> {
    source: Source<R>,
    format: Format,
    endian: Endian,
    interfaces: Vec<Interface>,
    last_timestamp_ns: u64,
}

impl<R: Read> Reader<R> {
    /// Reads the header of the file. Hand in something buffered.
    ///
    /// # Errors
    /// [`PcapError`] when this is not a capture of Ethernet frames.
    pub fn new(inner: R) -> Result<Reader<R>, PcapError> {
        let mut source = Source { inner, next: 0, record: 0 };
        let Some(magic) = source.record_start::<4>("file header")? else {
            return Err(source.fail(Fault::NotACapture));
        };
        let mut reader = Reader {
            source,
            format: Format::Pcap,
            endian: Endian::Little,
            interfaces: Vec::new(),
            last_timestamp_ns: 0,
        };
        let digits = match magic {
            [0xd4, 0xc3, 0xb2, 0xa1] => 6,
            [0x4d, 0x3c, 0xb2, 0xa1] => 9,
            [0xa1, 0xb2, 0xc3, 0xd4] => {
                reader.endian = Endian::Big;
                6
            }
            [0xa1, 0xb2, 0x3c, 0x4d] => {
                reader.endian = Endian::Big;
                9
            }
            ng::SECTION_HEADER => {
                reader.format = Format::Ng;
                reader.section_header()?;
                return Ok(reader);
            }
            _ => return Err(reader.source.fail(Fault::NotACapture)),
        };
        reader.pcap_header(digits)?;
        Ok(reader)
    }

    /// The interfaces described so far; pcapng may describe more as it goes on.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// The next packet, `None` at the end of the file.
    ///
    /// # Errors
    /// [`PcapError`]; reading on after one makes no sense.
    pub fn next_packet(&mut self) -> Result<Option<Packet>, PcapError> {
        match self.format {
            Format::Pcap => self.pcap_packet(),
            Format::Ng => self.ng_packet(),
        }
    }

    fn pcap_header(&mut self, digits: u8) -> Result<(), PcapError> {
        let h: [u8; 20] = self.source.array("file header")?;
        let e = self.endian;
        let (major, minor) = (e.u16([h[0], h[1]]), e.u16([h[2], h[3]]));
        if major != 2 {
            return Err(self.source.fail(Fault::Version(major, minor)));
        }
        // The upper bits tell of a frame check sequence (draft-ietf-opsawg-pcap, section 4).
        let link_type = e.u32([h[16], h[17], h[18], h[19]]) & 0xffff;
        if link_type != LINK_TYPE_ETHERNET {
            return Err(self.source.fail(Fault::LinkType(link_type)));
        }
        let resolution = Resolution::Decimal(digits);
        self.interfaces.push(Interface { name: None, resolution, offset_s: 0, snap_len: 0 });
        Ok(())
    }

    fn pcap_packet(&mut self) -> Result<Option<Packet>, PcapError> {
        let Some(h) = self.source.record_start::<16>("packet header")? else { return Ok(None) };
        let e = self.endian;
        let [seconds, fraction, len, original_len] =
            [0, 4, 8, 12].map(|at| e.u32([h[at], h[at + 1], h[at + 2], h[at + 3]]));
        self.check_packet_len(len)?;
        let data = self.source.vec(len, "packet")?;
        let scale = if self.interfaces[0].resolution == Resolution::Decimal(9) { 1 } else { 1_000 };
        let timestamp_ns = u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * scale;
        Ok(Some(Packet { timestamp_ns, interface: 0, original_len, data }))
    }

    fn check_packet_len(&self, len: u32) -> Result<(), PcapError> {
        if len > PACKET_LEN_MAX {
            let fault = Fault::Length { what: "packet", len, accepted: "at most 262144" };
            return Err(self.source.fail(fault));
        }
        Ok(())
    }
}

impl<R> fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("format", &self.format)
            .field("interfaces", &self.interfaces)
            .field("offset", &self.source.next)
            .finish_non_exhaustive()
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Packet, PcapError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_packet().transpose()
    }
}

/// Writes pcap with nanoseconds, little endian, Ethernet.
#[derive(Debug)]
pub struct Writer<W> {
    inner: W,
}

impl<W: Write> Writer<W> {
    /// Writes the header of the file.
    ///
    /// # Errors
    /// What `inner` says.
    pub fn new(mut inner: W) -> io::Result<Writer<W>> {
        let mut header = Vec::with_capacity(24);
        header.extend(0xa1b2_3c4du32.to_le_bytes());
        header.extend(2u16.to_le_bytes());
        header.extend(4u16.to_le_bytes());
        header.extend([0; 8]);
        header.extend(PACKET_LEN_MAX.to_le_bytes());
        header.extend(LINK_TYPE_ETHERNET.to_le_bytes());
        inner.write_all(&header)?;
        Ok(Writer { inner })
    }

    /// Writes one whole frame.
    ///
    /// # Errors
    /// `InvalidInput` for times past the year 2106 and frames longer than [`PACKET_LEN_MAX`]; what `inner` says.
    pub fn write(&mut self, timestamp_ns: u64, frame: &[u8]) -> io::Result<()> {
        let refuse = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        let seconds = u32::try_from(timestamp_ns / 1_000_000_000)
            .map_err(|_| refuse("pcap has no times past the year 2106"))?;
        let len = u32::try_from(frame.len())
            .ok()
            .filter(|len| *len <= PACKET_LEN_MAX)
            .ok_or_else(|| refuse("the frame is longer than a capture may hold"))?;
        // Fits: the remainder is below 10 to the 9.
        let nanoseconds = (timestamp_ns % 1_000_000_000) as u32;
        let mut header = [0; 16];
        for (at, word) in [seconds, nanoseconds, len, len].into_iter().enumerate() {
            header[at * 4..at * 4 + 4].copy_from_slice(&word.to_le_bytes());
        }
        self.inner.write_all(&header)?;
        self.inner.write_all(frame)
    }

    /// Flushes and hands back what was written to.
    ///
    /// # Errors
    /// What `inner` says.
    pub fn finish(mut self) -> io::Result<W> {
        self.inner.flush()?;
        Ok(self.inner)
    }
}
