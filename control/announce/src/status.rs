//! The state of the announcements, for `tidegate status` and metrics. Plain values; the daemon gives them their form.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use ipnet::IpNet;
use jiff::Timestamp;

use crate::bird::replies::{Protocols, Session, SessionState};
use crate::decide::{Vip, Withheld};

/// The state of the announcements.
#[derive(Debug, Clone, Default)]
pub struct Status {
    /// Whether anything is configured that announces.
    pub is_configured: bool,
    /// The announced prefixes: the number that is wanted.
    pub prefixes: usize,
    /// The number of announced VIPs.
    pub announced: usize,
    /// The VIPs that are withheld.
    pub withheld: BTreeMap<IpAddr, Withheld>,
    /// The aggregates that are not announced, each with its first address that no pool has.
    pub outside: BTreeMap<IpNet, IpAddr>,
    /// BGP; `None` without `announce.bgp`.
    pub bgp: Option<BgpStatus>,
    /// Routes of the kernel; `None` without `announce.kernelRoutes`.
    pub kernel: Option<KernelStatus>,
    /// When the thread of the announcements had this state; `None` before its first one.
    pub at: Option<Instant>,
}

impl Status {
    /// The number of withheld VIPs, by reason. Each reason once.
    #[must_use]
    pub fn withheld_counts(&self) -> Vec<(Withheld, usize)> {
        let count = |reason| self.withheld.values().filter(|&&one| one == reason).count();
        Withheld::ALL.into_iter().map(|reason| (reason, count(reason))).collect()
    }
}

/// BIRD and its sessions.
#[derive(Debug, Clone, Default)]
pub struct BgpStatus {
    /// Whether BIRD runs and answers.
    pub is_running: bool,
    /// How often it was started again after it had ended.
    pub restarts: u64,
    /// Why it does not run, or does not have the newest configuration yet, if so.
    pub last_error: Option<String>,
    /// The peers, in the order of the configuration.
    pub peers: Vec<PeerStatus>,
}

/// One peer.
#[derive(Debug, Clone)]
pub struct PeerStatus {
    /// Its address.
    pub address: IpAddr,
    /// Its AS.
    pub asn: u32,
    /// The session.
    pub session: Session,
    /// Since when the session is in its state.
    pub since: Timestamp,
    /// The same, independent of changes of the clock.
    pub since_instant: Instant,
    /// How often the session was established since the daemon's start.
    pub established: u64,
    /// With BFD, its state: `Up`, `Down`, `Init`, `AdminDown`; `None` if it is not configured.
    pub bfd: Option<String>,
}

/// The routes of the kernel.
#[derive(Debug, Clone, Default)]
pub struct KernelStatus {
    /// The table.
    pub table: u32,
    /// The protocol number of the routes.
    pub protocol: u8,
    /// The number of routes.
    pub routes: usize,
    /// Why some are missing, if so.
    pub last_error: Option<String>,
}

impl PeerStatus {
    /// A peer of which nothing is known.
    #[must_use]
    pub fn new(address: IpAddr, asn: u32) -> Self {
        Self {
            address,
            asn,
            session: Session::default(),
            since: Timestamp::now(),
            since_instant: Instant::now(),
            established: 0,
            bfd: None,
        }
    }

    /// Whether the session is established.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.session.state == SessionState::Established
    }

    /// Sets what BIRD says about the peer, or that it says nothing.
    pub(crate) fn update(&mut self, protocols: Option<&Protocols>, has_bfd: bool, now: Instant) {
        let protocol = crate::bird::config::protocol_of(self.address);
        let session = protocols.and_then(|all| all.sessions.get(&protocol));
        let session = session.cloned().unwrap_or(Session { state: SessionState::Down, ..Session::default() });
        // A session that ended and began again between two questions has another time.
        if session.state != self.session.state || (self.is_up() && session.since != self.session.since) {
            let (peer, asn, is_up) = (self.address, self.asn, session.state == SessionState::Established);
            if is_up {
                self.established += 1;
                tracing::info!(%peer, asn, "the BGP session is established");
            } else if self.is_up() {
                let reason = session.last_error.as_deref().unwrap_or("unknown");
                tracing::warn!(%peer, asn, reason, "the BGP session ended");
            }
            (self.since, self.since_instant) = (Timestamp::now(), now);
        }
        // BIRD forgets the error when the session is up again. People look for it later.
        let last_error = session.last_error.clone().or_else(|| self.session.last_error.take());
        self.session = Session { last_error, ..session };
        self.bfd = has_bfd.then(|| {
            let state = protocols.and_then(|all| all.bfd.get(&self.address));
            state.cloned().unwrap_or_else(|| "Down".to_owned())
        });
    }
}

/// The VIPs that are withheld.
pub(crate) fn withheld(vips: &BTreeMap<IpAddr, Vip>) -> BTreeMap<IpAddr, Withheld> {
    vips.iter().filter_map(|(&ip, vip)| Some((ip, vip.withheld?))).collect()
}
