//! The errors of a capture, with their offsets.

use std::io;

/// An error in a capture, with its offset.
#[derive(Debug, thiserror::Error)]
#[error("capture, byte {offset}: {fault}")]
pub struct PcapError {
    /// The offset of the faulty record in the file.
    pub offset: u64,
    /// The error.
    pub fault: Fault,
}

/// The possible errors in a capture.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The file has no known magic number.
    #[error("not a capture; accepted: pcap and pcapng")]
    NotACapture,
    /// An unsupported version.
    #[error("unsupported version {0}.{1}; accepted: pcap 2.x, pcapng 1.0 and 1.2")]
    Version(u16, u16),
    /// An unsupported link type.
    #[error("unsupported link type {0}; accepted: 1 (Ethernet)")]
    LinkType(u32),
    /// The file ends inside a record.
    #[error("the file ends inside a {0}")]
    Truncated(&'static str),
    /// An invalid length.
    #[error("{what} of {len} bytes; accepted: {accepted}")]
    Length {
        /// The name of the field.
        what: &'static str,
        /// The value in the file.
        len: u32,
        /// The accepted values.
        accepted: &'static str,
    },
    /// The two lengths of a pcapng block differ.
    #[error("the block begins with the length {0} but ends with the length {1}")]
    BlockLengths(u32, u32),
    /// A packet's interface was not described.
    #[error("a packet names interface {0}, but no earlier block describes this interface")]
    UnknownInterface(u32),
    /// The file could not be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}
