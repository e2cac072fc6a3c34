//! What is wrong with a capture, and where.

use std::io;

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
        /// The value in the file.
        len: u32,
        /// The accepted values.
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
