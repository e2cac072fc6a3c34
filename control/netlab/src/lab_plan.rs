//! The description of a lab: its hosts and options.

use std::net::IpAddr;
use std::path::PathBuf;

/// The parts of a lab.
#[derive(Clone, Debug)]
pub struct LabPlan {
    /// The number of servers, which are numbered from 1.
    pub servers: u8,
    /// The VIPs that servers have on their loopback.
    pub vips: Vec<IpAddr>,
    /// The `tidegate` binary.
    pub tidegate: PathBuf,
}
