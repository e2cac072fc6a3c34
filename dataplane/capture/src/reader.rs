//! Reads captures in either format.

use core::fmt;
use std::io::Read;

use super::error::{Fault, PcapError};
use super::packet::{Interface, Packet};
use super::pcap::Pcap;
use super::pcapng::{PcapNg, SECTION_HEADER};
use super::source::Source;

/// The format, and the state needed to interpret its packets.
#[derive(Debug)]
enum Format {
    Pcap(Pcap),
    PcapNg(PcapNg),
}

/// Reads the packets of a capture in order.
///
/// # Examples
/// ```
/// let frame = [0; 60];
/// let mut writer = tidegate_capture::Writer::new(Vec::new())?;
/// writer.write(1_000, &frame)?;
/// let file = writer.finish()?;
/// for packet in tidegate_capture::Reader::new(&file[..])? {
///     assert_eq!(packet?.data, frame);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Reader<R> {
    source: Source<R>,
    format: Format,
}

impl<R: Read> Reader<R> {
    /// Reads the header of the file. The source should be buffered.
    ///
    /// # Errors
    /// [`PcapError`] if this is not a capture of Ethernet frames.
    pub fn new(inner: R) -> Result<Reader<R>, PcapError> {
        let mut source = Source::new(inner);
        let format = match source.record_start::<4>("file header")? {
            None => return Err(source.fail(Fault::NotACapture)),
            Some(SECTION_HEADER) => Format::PcapNg(PcapNg::begin(&mut source)?),
            Some(magic) => Format::Pcap(Pcap::begin(magic, &mut source)?),
        };
        Ok(Reader { source, format })
    }

    /// The next packet; `None` at the end of the file.
    ///
    /// # Errors
    /// [`PcapError`]. Don't read any further after an error.
    pub fn next_packet(&mut self) -> Result<Option<Packet>, PcapError> {
        match &mut self.format {
            Format::Pcap(pcap) => pcap.next_packet(&mut self.source),
            Format::PcapNg(section) => section.next_packet(&mut self.source),
        }
    }
}

impl<R> Reader<R> {
    /// The interfaces described so far. Later blocks of pcapng may describe more.
    pub fn interfaces(&self) -> &[Interface] {
        match &self.format {
            Format::Pcap(pcap) => std::slice::from_ref(&pcap.interface),
            Format::PcapNg(section) => &section.interfaces,
        }
    }
}

impl<R> fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("format", &self.format)
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
