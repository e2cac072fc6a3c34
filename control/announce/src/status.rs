//! The state of the announcements, for `tidegate status` and metrics, as plain values that the daemon formats.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use jiff::civil::DateTime;
use jiff::{SignedDuration, Timestamp};
use tidegate_events::{Event, Field, ObjectKind, Reason};

use crate::bird::replies::{Protocols, Session, SessionState};
use crate::decide::{Vip, Withheld};

/// A connection attempt counts as unanswered after this time. An error explains a state only if the state began at most
/// this long after the error.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// The tolerance for BIRD's times, which are in whole seconds, and for slewed clocks.
const SINCE_TOLERANCE: Duration = Duration::from_secs(2);

/// The state of the announcements.
#[derive(Debug, Clone, Default)]
pub struct Status {
    /// Whether any announcement is configured.
    pub is_configured: bool,
    /// The number of announced prefixes.
    pub prefixes: usize,
    /// The number of announced VIPs: those sent to a BGP peer or present in the kernel's table.
    pub announced: usize,
    /// The number of VIPs that should be announced but are neither sent nor in the kernel's table yet.
    pub unsent: usize,
    /// The VIPs that are withheld.
    pub withheld: BTreeMap<IpAddr, Withheld>,
    /// The aggregates that are not announced because they contain no address of any pool.
    pub outside: BTreeSet<IpNet>,
    /// BGP; `None` without `announce.bgp`.
    pub bgp: Option<BgpStatus>,
    /// Kernel routes; `None` without `announce.kernelRoutes`.
    pub kernel: Option<KernelStatus>,
    /// When the announcer reported this state; `None` before its first report.
    pub at: Option<Instant>,
}

impl Status {
    /// The number of withheld VIPs, by reason. Lists every reason once.
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
    /// How often it was restarted after it had exited.
    pub restarts: u64,
    /// Why it does not run or has not loaded the latest configuration, if so.
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
    /// When the session entered its current state.
    pub since: Timestamp,
    /// Like `since`, but independent of changes of the clock.
    pub since_instant: Instant,
    /// How often the session was established since the daemon's start.
    pub established: u64,
    /// The BFD state, if configured: `Up`, `Down`, `Init` or `AdminDown`.
    pub bfd: Option<String>,
    /// When the session's last error happened, if that can be derived.
    error_at: Option<Instant>,
    /// When BIRD was last queried, by both clocks.
    queried: (Timestamp, Instant),
}

/// The kernel routes.
#[derive(Debug, Clone, Default)]
pub struct KernelStatus {
    /// The table.
    pub table: u32,
    /// The protocol number of the routes.
    pub protocol: u8,
    /// The number of routes.
    pub routes: usize,
    /// Why some are missing, if any are.
    pub last_error: Option<String>,
}

impl PeerStatus {
    /// A peer about which nothing is known.
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
            error_at: None,
            queried: (Timestamp::now(), Instant::now()),
        }
    }

    /// Whether the session is established.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.session.state == SessionState::Established
    }

    /// Updates the state from BIRD's reply; `None` if BIRD did not reply.
    pub(crate) fn update(&mut self, protocols: Option<&Protocols>, has_bfd: bool, now: Instant) {
        let protocol = crate::bird::config::protocol_of(self.address);
        let session = protocols.and_then(|all| all.sessions.get(&protocol));
        let session = session.cloned().unwrap_or(Session { state: SessionState::Down, ..Session::default() });
        let wall = Timestamp::now();
        let is_other = self.is_up() && !self.is_same_session(&session, wall, now);
        self.queried = (wall, now);
        let has_changed = session.state != self.session.state;
        if has_changed || is_other {
            let (peer, asn, is_up) = (self.address, self.asn, session.state == SessionState::Established);
            if is_up {
                self.established += 1;
                record(Reason::BgpUp, peer, asn, "BGP session established", "");
            } else if self.is_up() {
                let reason = session.last_error.as_deref().unwrap_or("unknown");
                record(Reason::BgpDown, peer, asn, "BGP session ended", reason);
            }
            (self.since, self.since_instant) = (Timestamp::now(), now);
        }
        let fails = has_changed && matches!(session.state, SessionState::Idle | SessionState::Active);
        let is_new = session.last_error != self.session.last_error;
        if session.last_error.is_some() && (fails || is_new) {
            self.error_at = Some(now);
        }
        // BIRD forgets the error when the session is up again, but operators look for it later.
        let last_error = session.last_error.clone().or_else(|| self.session.last_error.take());
        self.session = Session { last_error, ..session };
        let bfd = has_bfd.then(|| {
            let state = protocols.and_then(|all| all.bfd.get(&self.address));
            state.cloned().unwrap_or_else(|| "Down".to_owned())
        });
        match (is_bfd_up(self.bfd.as_deref()), is_bfd_up(bfd.as_deref())) {
            (false, true) => record(Reason::BfdUp, self.address, self.asn, "BFD is up", ""),
            (true, false) if has_bfd => {
                record(
                    Reason::BfdDown,
                    self.address,
                    self.asn,
                    "BFD is down",
                    bfd.as_deref().unwrap_or_default(),
                );
            }
            _ => {}
        }
        self.bfd = bfd;
    }
}

fn is_bfd_up(state: Option<&str>) -> bool {
    state == Some("Up")
}

/// Records a change of a session with a peer.
fn record(reason: Reason, peer: IpAddr, asn: u32, message: &str, why: &str) {
    let event = Event::new(reason, ObjectKind::Peer, &peer.to_string(), message);
    tidegate_events::record(event.number(Field::Asn, asn.into()).text(Field::Reason, why));
}

impl PeerStatus {
    /// Whether the reply is about the same session as the previous one. A session that ended and started again in
    /// between has another start time. BIRD reports it by the wall clock, which may have been adjusted.
    fn is_same_session(&self, session: &Session, wall: Timestamp, now: Instant) -> bool {
        let (before, after) = (self.session.since.parse::<DateTime>(), session.since.parse::<DateTime>());
        let (Ok(before), Ok(after)) = (before, after) else { return self.session.since == session.since };
        let (wall_before, queried) = self.queried;
        let passed = now.saturating_duration_since(queried);
        let Ok(passed) = SignedDuration::try_from(passed) else { return false };
        let set_by = wall.duration_since(wall_before) - passed;
        let moved = after.duration_since(before);
        (moved - set_by).unsigned_abs() < SINCE_TOLERANCE
    }

    /// Why the session is not established, for people. An error from before the current state explains nothing.
    #[must_use]
    pub fn why_down(&self, now: Instant) -> Option<String> {
        let in_state = now.saturating_duration_since(self.since_instant);
        if self.session.state == SessionState::Connect && in_state >= CONNECT_MAX {
            return Some(match self.bfd.as_deref() {
                Some("Up") => {
                    "BFD is up, but BGP does not answer: the password differs, or the port is closed".to_owned()
                }
                _ => {
                    "the peer does not answer: it can't be reached, the password differs, or its BGP port is closed"
                        .to_owned()
                }
            });
        }
        let is_recent = self.error_at.is_some_and(|at| at + CONNECT_MAX >= self.since_instant);
        self.session.last_error.clone().filter(|_| is_recent)
    }
}

/// For IPv4 and IPv6: whether routes were sent to a peer, or all routes are in the kernel.
pub(crate) fn reached(peers: &[PeerStatus], kernel_has_all: bool) -> [bool; 2] {
    [0, 1].map(|family| {
        kernel_has_all || peers.iter().any(|peer| peer.is_up() && peer.session.sent[family] > 0)
    })
}

/// The VIPs that are withheld.
pub(crate) fn withheld(vips: &BTreeMap<IpAddr, Vip>) -> BTreeMap<IpAddr, Withheld> {
    vips.iter().filter_map(|(&ip, vip)| Some((ip, vip.withheld?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protocols(state: SessionState, since: &str, last_error: Option<&str>) -> Protocols {
        let session = Session {
            state,
            since: since.to_owned(),
            last_error: last_error.map(str::to_owned),
            ..Session::default()
        };
        Protocols { sessions: [("peer_192_0_2_1".to_owned(), session)].into(), ..Protocols::default() }
    }

    fn peer() -> PeerStatus {
        PeerStatus::new("192.0.2.1".parse().unwrap(), 64_512)
    }

    #[test]
    fn a_step_of_the_wall_clock_is_not_a_new_session() {
        let (mut peer, now) = (peer(), Instant::now());
        let up = |since| protocols(SessionState::Established, since, None);
        peer.update(Some(&up("2026-11-26 10:00:00")), false, now);
        assert_eq!(peer.established, 1);
        // The clock was set forward by an hour since the last query.
        peer.queried.0 -= SignedDuration::from_hours(1);
        peer.update(Some(&up("2026-11-26 11:00:00")), false, now);
        assert_eq!((peer.established, peer.since_instant), (1, now));
        // BIRD rounds times.
        peer.update(Some(&up("2026-11-26 11:00:01")), false, now);
        assert_eq!(peer.established, 1);
        peer.update(Some(&up("2026-11-26 11:05:00")), false, now);
        assert_eq!(peer.established, 2, "it ended and started again between two queries");
    }

    #[test]
    fn an_old_error_does_not_explain_the_current_state() {
        let (mut peer, begun) = (peer(), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        let error = Some("Received: Bad peer AS");
        let states = [
            (0, SessionState::OpenSent, None),
            (1, SessionState::Idle, error),
            (61, SessionState::Connect, error),
        ];
        for (seconds, state, why) in states {
            peer.update(Some(&protocols(state, "2026-11-26 10:00:00", why)), true, at(seconds));
            let expected = if state == SessionState::Idle { error } else { None };
            assert_eq!(peer.why_down(at(seconds)).as_deref(), expected, "{state:?}");
        }
        let hint = |peer: &PeerStatus| peer.why_down(at(71)).expect("a hint");
        assert!(hint(&peer).starts_with("the peer does not answer"), "{}", hint(&peer));
        peer.bfd = Some("Up".to_owned());
        assert!(hint(&peer).starts_with("BFD is up"), "{}", hint(&peer));
        // Each refused attempt is a new error.
        let refused = Some("Socket: Connection refused");
        for seconds in [80, 90, 100] {
            for state in [SessionState::Active, SessionState::Connect] {
                peer.update(Some(&protocols(state, "2026-11-26 10:00:00", refused)), true, at(seconds));
                assert_eq!(peer.why_down(at(seconds)).as_deref(), refused, "{state:?}");
            }
        }
    }

    #[test]
    fn a_family_reached_a_peer_only_if_its_session_sent_routes() {
        let mut one = peer();
        one.session.sent = [5, 0];
        assert_eq!(reached(&[one.clone()], false), [false; 2], "the session is down");
        one.session.state = SessionState::Established;
        assert_eq!(reached(&[peer(), one], false), [true, false]);
        assert_eq!((reached(&[], false), reached(&[], true)), ([false; 2], [true; 2]));
    }
}
