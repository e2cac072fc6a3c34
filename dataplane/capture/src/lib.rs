//! Reads and writes captures in pcap and pcapng. `replay` reads users' files, and `capture` writes files.
//!
//! Reads pcap in both byte orders, with microseconds or nanoseconds, and pcapng with any number of interfaces. It reads
//! only Ethernet captures, since the pipeline starts at the Ethernet header. An error contains the offset of the faulty
//! record, and a truncated file yields its complete packets before the error. Writing is deterministic: equal packets
//! give equal bytes.
//!
//! Invariant: no input causes a panic, or an allocation beyond [`BLOCK_LEN_MAX`] at a time.
//!
//! This isn't based on an existing crate, because pcap-file 2.0 ignores `if_tsresol`, its pre-release 3.0.0-rc.3
//! rejects interface names that are not UTF-8, and pcap-parser 0.17 refuses every binary `if_tsresol` and reads
//! `if_tsoffset` as little endian in files of either byte order.
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
