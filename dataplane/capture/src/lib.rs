//! Captures: reads and writes pcap and pcapng. `replay` reads users' files with it, and `capture` writes some.
//!
//! Reads pcap in both byte orders with microseconds or nanoseconds, and pcapng with any number of interfaces. Only
//! Ethernet captures: the pipeline begins at the Ethernet header. An error holds the offset of the record at fault, and
//! a cut-off file gives its whole packets first. The writer gives the same bytes for the same packets, always.
//!
//! Invariant: whatever the bytes, no panic, and no allocation beyond [`BLOCK_LEN_MAX`] at a time.
//!
//! Kept by hand: of the crates for this, pcap-file 2.0 ignores `if_tsresol`, its pre-release 3.0.0-rc.3 rejects an
//! interface whose name is not UTF-8, and pcap-parser 0.17 refuses every binary `if_tsresol` and reads `if_tsoffset` as
//! little endian in files of either byte order.
//!
//! May depend on: nothing of Tidegate.
#![deny(unsafe_code)]

mod error;
mod packet;
mod pcap;
mod pcapng;
mod pcapng_writer;
mod reader;
mod source;
#[cfg(test)]
mod tests;
mod writer;

pub use error::{Fault, PcapError};
pub use packet::{Interface, Packet};
pub use pcapng_writer::{Captured, Direction, PcapngWriter};
pub use reader::Reader;
pub use source::{BLOCK_LEN_MAX, PACKET_LEN_MAX};
pub use writer::Writer;
