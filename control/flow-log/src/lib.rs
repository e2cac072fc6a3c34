//! The flow log: takes the records of logged flows from the workers, and writes them as JSON lines to a file and as
//! IPFIX (RFC 7011) to a collector.
//!
//! [`Writer::run`] is the body of a thread. It takes the records several times a second, finds their names, and writes
//! them. `docs/flow-log.md` describes both formats.
//!
//! May depend on: `tidegate-conntrack` (records), `tidegate-spec`, `tidegate-wire`. May not: the dataplane, an API
//! server or the configuration.
//!
//! Invariant: a slow or broken output costs records, which are counted by reason, and never delays a packet or the
//! daemon. Memory and the size of the file are bounded.
#![deny(unsafe_code)]

mod collector;
mod file;
mod flow;
mod ipfix;
mod json;
mod names;
mod writer;

pub use flow::{Ports, ServicePort};
pub use writer::{Clock, Config, Counts, FileConfig, IpfixConfig, Lost, Stop, Stopper, Writer, stop_pair};
