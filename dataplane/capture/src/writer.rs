//! Writes pcap.

use std::io::{self, Write};

use super::source::{LINK_TYPE_ETHERNET, PACKET_LEN_MAX};

/// Writes Ethernet frames as little-endian pcap with nanosecond timestamps.
#[derive(Debug)]
pub struct Writer<W> {
    inner: W,
}

impl<W: Write> Writer<W> {
    /// Writes the header of the file.
    ///
    /// # Errors
    /// The write to `inner` failed.
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
    /// `InvalidInput` for times after the year 2106 and for frames longer than [`PACKET_LEN_MAX`]; otherwise the error
    /// of `inner`.
    pub fn write(&mut self, timestamp_ns: u64, frame: &[u8]) -> io::Result<()> {
        let refuse = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        let seconds = u32::try_from(timestamp_ns / 1_000_000_000)
            .map_err(|_| refuse("the pcap format cannot store times after the year 2106"))?;
        let len = u32::try_from(frame.len())
            .ok()
            .filter(|len| *len <= PACKET_LEN_MAX)
            .ok_or_else(|| refuse("the frame exceeds the maximum length in a capture"))?;
        // The conversion is exact, because the remainder is below 10^9.
        let nanoseconds = (timestamp_ns % 1_000_000_000) as u32;
        let mut header = [0; 16];
        for (at, word) in [seconds, nanoseconds, len, len].into_iter().enumerate() {
            header[at * 4..at * 4 + 4].copy_from_slice(&word.to_le_bytes());
        }
        self.inner.write_all(&header)?;
        self.inner.write_all(frame)
    }

    /// Flushes and returns the inner writer.
    ///
    /// # Errors
    /// The write to `inner` failed.
    pub fn finish(mut self) -> io::Result<W> {
        self.inner.flush()?;
        Ok(self.inner)
    }
}
