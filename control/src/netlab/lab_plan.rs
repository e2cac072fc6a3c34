//! The description of a lab: its hosts and options.

use std::net::IpAddr;
use std::path::PathBuf;

/// What to build.
#[derive(Clone, Debug)]
pub struct LabPlan {
    /// How many servers, numbered from 1.
    pub servers: u8,
    /// The VIPs that servers take packets for on their loopback.
    pub vips: Vec<IpAddr>,
    /// The `tidegate` binary, for the lab's own tools and for the gateway.
    pub tidegate: PathBuf,
}
