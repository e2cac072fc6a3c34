//! The bytes of a capture, with byte order, offsets and limits, for pcap and pcapng.

use std::io::{self, Read};

use super::error::{Fault, PcapError};

/// The maximum length of a packet, as in tcpdump and Wireshark for Ethernet.
pub const PACKET_LEN_MAX: u32 = 262_144;
/// The maximum length of a pcapng block. Packet blocks are far shorter; blocks with statistics or secrets may be long.
pub const BLOCK_LEN_MAX: u32 = 16 << 20;

/// The link type of Ethernet in both formats.
pub(super) const LINK_TYPE_ETHERNET: u32 = 1;

/// The byte order of a file or section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endian {
    Little,
    Big,
}

impl Endian {
    pub(super) fn u16(self, b: [u8; 2]) -> u16 {
        match self {
            Endian::Little => u16::from_le_bytes(b),
            Endian::Big => u16::from_be_bytes(b),
        }
    }

    pub(super) fn u32(self, b: [u8; 4]) -> u32 {
        match self {
            Endian::Little => u32::from_le_bytes(b),
            Endian::Big => u32::from_be_bytes(b),
        }
    }

    pub(super) fn u64(self, b: [u8; 8]) -> u64 {
        match self {
            Endian::Little => u64::from_le_bytes(b),
            Endian::Big => u64::from_be_bytes(b),
        }
    }
}

/// The bytes of a capture, with the offsets of the next byte and of the current record.
pub(super) struct Source<R> {
    inner: R,
    pub(super) next: u64,
    record: u64,
}

impl<R: Read> Source<R> {
    pub(super) fn new(inner: R) -> Self {
        Self { inner, next: 0, record: 0 }
    }

    /// The error `fault` in the current record.
    pub(super) fn fail(&self, fault: Fault) -> PcapError {
        PcapError { offset: self.record, fault }
    }

    /// Fills `buf`. Returns the number of bytes read, which is less than `buf.len()` only at the end of the file.
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

    /// Reads the start of a record. `None` if the file ends before the record.
    pub(super) fn record_start<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<Option<[u8; N]>, PcapError> {
        self.record = self.next;
        let mut buf = [0; N];
        match self.fill(&mut buf)? {
            0 => Ok(None),
            n if n == N => Ok(Some(buf)),
            _ => Err(self.fail(Fault::Truncated(what))),
        }
    }

    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], PcapError> {
        let mut buf = [0; N];
        if self.fill(&mut buf)? == N { Ok(buf) } else { Err(self.fail(Fault::Truncated(what))) }
    }

    pub(super) fn vec(&mut self, len: u32, what: &'static str) -> Result<Vec<u8>, PcapError> {
        let mut buf = vec![0; len as usize];
        if self.fill(&mut buf)? == buf.len() { Ok(buf) } else { Err(self.fail(Fault::Truncated(what))) }
    }

    /// Returns an error for a packet of more than [`PACKET_LEN_MAX`] bytes.
    pub(super) fn check_packet_len(&self, len: u32) -> Result<(), PcapError> {
        if len > PACKET_LEN_MAX {
            let fault = Fault::Length { what: "packet", len, accepted: "at most 262144 bytes" };
            return Err(self.fail(fault));
        }
        Ok(())
    }
}
