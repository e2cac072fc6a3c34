//! The part of `status` about announcements.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// How VIPs are announced, by BGP and by kernel routes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AnnounceStatus {
    /// The number of announced VIPs: those sent to a BGP peer or present in the kernel's table.
    pub announced: usize,
    /// The number of VIPs that should be announced but are neither sent nor in the kernel's table yet.
    #[serde(default)]
    pub unsent: usize,
    /// The number of announced prefixes. An aggregate counts once.
    pub prefixes: usize,
    /// VIPs that are not announced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub withheld: Vec<WithheldVip>,
    /// BGP; absent without `announce.bgp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bgp: Option<BgpStatus>,
    /// Kernel routes; absent without `announce.kernelRoutes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_routes: Option<KernelRoutesStatus>,
}

/// A VIP that is not announced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WithheldVip {
    /// The VIP.
    pub vip: IpAddr,
    /// `leaving`, `draining`, `not-forwarding`, `catching-up`, `not-served`, `not-programmed`, `not-applied`, `no-endpoints` or
    /// `flapping`.
    pub reason: String,
}

/// BIRD and its sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BgpStatus {
    /// Whether BIRD runs and answers.
    pub running: bool,
    /// How often BIRD was restarted after it had exited.
    pub restarts: u64,
    /// The last failure of BIRD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The peers, in the order of the configuration.
    pub peers: Vec<BgpPeerStatus>,
}

/// One BGP peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BgpPeerStatus {
    /// Its address.
    pub address: IpAddr,
    /// Its AS.
    pub asn: u32,
    /// Whether the session is established.
    pub up: bool,
    /// The state of the session, as in RFC 4271, or `Down` if BIRD does not run.
    pub state: String,
    /// Since when, RFC 3339.
    pub since: String,
    /// Seconds since then.
    pub since_seconds: u64,
    /// How often the session was established since the daemon's start.
    pub established: u64,
    /// IPv4 prefixes that were sent.
    pub sent_ipv4: u64,
    /// IPv6 prefixes that were sent.
    pub sent_ipv6: u64,
    /// The agreed hold time, in seconds; absent while the session is not established.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_seconds: Option<u64>,
    /// The state of BFD (`Up`, `Down`, `Init`, `AdminDown`); absent if it is not configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bfd: Option<String>,
    /// Why the session last ended or did not start, in BIRD's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// Kernel routes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelRoutesStatus {
    /// The routing table.
    pub table: u32,
    /// The protocol number of the routes.
    pub protocol: u8,
    /// The number of routes in the table.
    pub routes: usize,
    /// Why some routes are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}
