//! Writes pcapng (draft-ietf-opsawg-pcapng): one section, any number of interfaces, and a comment per packet.
//!
//! `tidegate capture` writes its files with it. This crate's reader and Wireshark can read them.

use std::io::{self, Write};

use super::source::{LINK_TYPE_ETHERNET, PACKET_LEN_MAX};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

const OPTION_END: u16 = 0;
const OPTION_COMMENT: u16 = 1;
const OPTION_IF_NAME: u16 = 2;
const OPTION_EPB_FLAGS: u16 = 2;
const OPTION_IF_TSRESOL: u16 = 9;
const OPTION_SHB_USERAPPL: u16 = 4;

/// Whether a packet was received or sent (`epb_flags`, bits 0 and 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Received.
    Inbound = 1,
    /// Sent.
    Outbound = 2,
}

/// One packet of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Captured<'a> {
    /// The index of the packet's interface in the list passed to the writer.
    pub interface: u32,
    /// Nanoseconds since 1970-01-01 00:00 UTC.
    pub timestamp_ns: u64,
    /// Whether the packet was received or sent.
    pub direction: Direction,
    /// The first bytes of the frame, at most [`PACKET_LEN_MAX`].
    pub bytes: &'a [u8],
    /// The length of the whole frame.
    pub len: u32,
    /// A comment for readers; empty for none.
    pub comment: &'a str,
}

/// Writes Ethernet frames as little-endian pcapng with nanosecond timestamps.
#[derive(Debug)]
pub struct PcapngWriter<W> {
    inner: W,
    interfaces: u32,
}

impl<W: Write> PcapngWriter<W> {
    /// Writes the header of the section, with the name of the program, and the interfaces.
    ///
    /// # Errors
    /// The write to `inner` failed.
    pub fn new(inner: W, program: &str, interfaces: &[&str]) -> io::Result<Self> {
        let mut body = Vec::new();
        body.extend(0x1a2b_3c4d_u32.to_le_bytes());
        body.extend(1_u16.to_le_bytes());
        body.extend(0_u16.to_le_bytes());
        // The length of the section is unknown.
        body.extend(u64::MAX.to_le_bytes());
        option(&mut body, OPTION_SHB_USERAPPL, program.as_bytes());
        option(&mut body, OPTION_END, &[]);
        let mut writer = Self { inner, interfaces: 0 };
        writer.block(SECTION_HEADER, &body)?;
        for name in interfaces {
            body.clear();
            body.extend((LINK_TYPE_ETHERNET as u16).to_le_bytes());
            body.extend(0_u16.to_le_bytes());
            body.extend(PACKET_LEN_MAX.to_le_bytes());
            option(&mut body, OPTION_IF_NAME, name.as_bytes());
            option(&mut body, OPTION_IF_TSRESOL, &[9]);
            option(&mut body, OPTION_END, &[]);
            writer.block(INTERFACE_DESCRIPTION, &body)?;
            writer.interfaces += 1;
        }
        Ok(writer)
    }

    /// Writes one packet.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown interface or more than [`PACKET_LEN_MAX`] bytes; otherwise the error of `inner`.
    pub fn write(&mut self, packet: &Captured<'_>) -> io::Result<()> {
        let refuse = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        if packet.interface >= self.interfaces {
            return Err(refuse("the capture has no such interface"));
        }
        let len = u32::try_from(packet.bytes.len())
            .ok()
            .filter(|len| *len <= PACKET_LEN_MAX)
            .ok_or_else(|| refuse("the frame exceeds the maximum length in a capture"))?;
        let mut body = Vec::with_capacity(packet.bytes.len() + packet.comment.len() + 64);
        let time = packet.timestamp_ns;
        // The upper half of the timestamp comes first.
        for word in [packet.interface, (time >> 32) as u32, time as u32, len, packet.len.max(len)] {
            body.extend(word.to_le_bytes());
        }
        body.extend(packet.bytes);
        pad(&mut body);
        // An option has a 16-bit length.
        let comment = &packet.comment.as_bytes()[..packet.comment.len().min(usize::from(u16::MAX))];
        if !comment.is_empty() {
            option(&mut body, OPTION_COMMENT, comment);
        }
        option(&mut body, OPTION_EPB_FLAGS, &(packet.direction as u32).to_le_bytes());
        option(&mut body, OPTION_END, &[]);
        self.block(ENHANCED_PACKET, &body)
    }

    /// Flushes the inner writer, so that readers of the file see all packets written so far.
    ///
    /// # Errors
    /// The write to `inner` failed.
    pub fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }

    /// Flushes and returns the inner writer.
    ///
    /// # Errors
    /// The write to `inner` failed.
    pub fn finish(mut self) -> io::Result<W> {
        self.inner.flush()?;
        Ok(self.inner)
    }

    /// A block: type, length, body, and the length again.
    fn block(&mut self, kind: u32, body: &[u8]) -> io::Result<()> {
        let len = u32::try_from(body.len() + 12).expect("a frame and its options are below 4 GiB");
        self.inner.write_all(&kind.to_le_bytes())?;
        self.inner.write_all(&len.to_le_bytes())?;
        self.inner.write_all(body)?;
        self.inner.write_all(&len.to_le_bytes())
    }
}

/// Adds an option of at most 65,535 bytes.
fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let len = u16::try_from(value.len()).expect("the caller has truncated the value");
    body.extend(code.to_le_bytes());
    body.extend(len.to_le_bytes());
    body.extend(value);
    pad(body);
}

/// Pads to four bytes, the alignment of everything in a block.
fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::super::Reader;
    use super::*;

    fn packet(bytes: &[u8]) -> Captured<'_> {
        Captured {
            interface: 1,
            timestamp_ns: 1_900_000_000_123_456_789,
            direction: Direction::Outbound,
            bytes,
            len: 1_514,
            comment: "verdict=drop reason=no_flow",
        }
    }

    #[test]
    fn packets_are_read_back_with_their_time_and_interface() {
        for len in 0..9 {
            let bytes: Vec<u8> = (0..len).collect();
            let mut writer = PcapngWriter::new(Vec::new(), "tidegate", &["uplink", "backends"]).unwrap();
            writer.write(&packet(&bytes)).unwrap();
            writer.write(&Captured { interface: 0, comment: "", ..packet(b"other") }).unwrap();
            let file = writer.finish().unwrap();
            assert!(file.windows(27).any(|at| at == b"verdict=drop reason=no_flow"));
            let mut reader = Reader::new(&file[..]).unwrap();
            let read = reader.next_packet().unwrap().unwrap();
            assert_eq!((read.interface, read.timestamp_ns), (1, 1_900_000_000_123_456_789));
            assert_eq!(read.data, bytes);
            let read = reader.next_packet().unwrap().unwrap();
            assert_eq!((read.interface, &read.data[..]), (0, &b"other"[..]));
            assert!(reader.next_packet().unwrap().is_none());
        }
    }

    #[test]
    fn a_packet_that_a_file_cannot_have_is_refused() {
        let mut writer = PcapngWriter::new(Vec::new(), "tidegate", &["uplink"]).unwrap();
        assert_eq!(writer.write(&packet(b"x")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let long = vec![0; PACKET_LEN_MAX as usize + 1];
        let long = Captured { interface: 0, ..packet(&long) };
        assert_eq!(writer.write(&long).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let comment = "x".repeat(70_000);
        writer.write(&Captured { interface: 0, comment: &comment, ..packet(b"x") }).unwrap();
        let file = writer.finish().unwrap();
        assert!(Reader::new(&file[..]).unwrap().next_packet().unwrap().is_some());
    }
}
