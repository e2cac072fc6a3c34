//! The description of a fleet: its hosts, its router and options.

use std::path::PathBuf;

/// Who sets the routes of the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterKind {
    /// The lab, according to which gateways are ready. It also sets the servers' default route.
    Lab,
    /// FRR, to which the gateways announce their VIPs by BGP with BFD.
    Frr,
    /// GoBGP, which has no BFD. The lab copies its routes to the kernel, because GoBGP 3.10 cannot do so through the
    /// zebra of FRR 8.4.
    GoBgp,
}

/// The options of a fleet.
#[derive(Clone, Debug)]
pub struct FleetPlan {
    /// Gateways, numbered from 1: two or three.
    pub gateways: usize,
    /// Servers, numbered from 1.
    pub servers: u8,
    /// The `tidegate` binary.
    pub tidegate: PathBuf,
    /// Entries of each flow table.
    pub flow_entries: u32,
    /// Flow tables outlive the processes of the gateways.
    pub flow_files: bool,
    /// The hexadecimal digit that fills `flowSharing.key` of the first gateway, and of the others; `None` disables flow
    /// sharing.
    pub sharing: Option<[char; 2]>,
    /// Who sets the routes of the router.
    pub router: RouterKind,
}
