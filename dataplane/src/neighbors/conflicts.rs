//! Decides when to defend an address of ours that another station claims, and when to log the claim (RFC 5227 section
//! 2.4).
//!
//! Each claim is counted where it is received. For each address, at most one claim in [`DEFEND_INTERVAL`] is answered
//! by an announcement, and at most one is logged. Two gateways that announce the same VIP on one link therefore don't
//! answer each other forever.
//!
//! A station that claims many addresses, such as a router with proxy ARP for a whole network, must not hide the claims
//! of others. So each of our addresses has an entry per link, and each station has a quota of log lines.
//!
//! Invariant: memory is bounded. While [`REMEMBERED_MAX`] addresses are disputed on a link, claims on further addresses
//! are only counted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::now::Now;
use tidegate_wire::MacAddr;

use super::key::Key;

/// The minimum interval between two defences of an address (RFC 5227 section 1.1).
pub(super) const DEFEND_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of disputed addresses remembered per link, some 6 MB. Only our addresses are recorded, so a gateway
/// with fewer addresses never reaches the maximum.
pub(super) const REMEMBERED_MAX: usize = 65_536;
/// Maximum number of logged claims per station in [`DEFEND_INTERVAL`].
pub(super) const LOGGED_PER_STATION: usize = 16;
/// Maximum number of logged claims per link in [`DEFEND_INTERVAL`], because a station can forge many link addresses.
pub(super) const LOGGED_MAX: usize = 128;

/// Whether a claim is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Logged {
    Yes,
    /// It is logged, but further claims of its station or on its link are not.
    Last,
    /// Not logged: the quota of its station or link is used up.
    No,
}

/// The disputed addresses, by link.
#[derive(Debug, Default)]
pub(super) struct Conflicts(BTreeMap<InterfaceIndex, Disputes>);

impl Conflicts {
    /// If this is the first claim on the address in its interval, returns whether it is logged; it is then also
    /// answered.
    pub(super) fn first(
        &mut self,
        now: Now,
        (interface, address): Key,
        mac: Option<MacAddr>,
    ) -> Option<Logged> {
        let disputes = self.0.entry(interface).or_default();
        disputes.is_first(now, address).then(|| disputes.log.note(now, mac))
    }
}

/// The disputed addresses on one link.
#[derive(Debug, Default)]
struct Disputes {
    until: BTreeMap<IpAddr, Now>,
    by_time: BTreeSet<(Now, IpAddr)>,
    log: Log,
}

impl Disputes {
    fn is_first(&mut self, now: Now, address: IpAddr) -> bool {
        while let Some(&(until, address)) = self.by_time.first()
            && until <= now
        {
            self.by_time.pop_first();
            self.until.remove(&address);
        }
        if self.until.contains_key(&address) || self.until.len() >= REMEMBERED_MAX {
            return false;
        }
        let until = now.plus(DEFEND_INTERVAL);
        self.until.insert(address, until);
        self.by_time.insert((until, address));
        true
    }
}

/// The log lines about one link in the current interval.
#[derive(Debug, Default)]
struct Log {
    until: Now,
    lines: usize,
    /// Each station listed here has logged at least one line.
    by_station: BTreeMap<Option<MacAddr>, usize>,
}

impl Log {
    fn note(&mut self, now: Now, station: Option<MacAddr>) -> Logged {
        if self.until <= now {
            *self = Self { until: now.plus(DEFEND_INTERVAL), ..Self::default() };
        }
        if self.lines >= LOGGED_MAX {
            return Logged::No;
        }
        let of_station = self.by_station.entry(station).or_default();
        if *of_station >= LOGGED_PER_STATION {
            return Logged::No;
        }
        *of_station += 1;
        self.lines += 1;
        let is_last = *of_station == LOGGED_PER_STATION || self.lines == LOGGED_MAX;
        if is_last { Logged::Last } else { Logged::Yes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u32) -> Key {
        (0, IpAddr::from(n.to_be_bytes()))
    }

    fn station(n: u16) -> Option<MacAddr> {
        let [high, low] = n.to_be_bytes();
        Some(MacAddr([2, 0, 0, 0, high, low]))
    }

    #[test]
    fn one_claim_an_interval_is_acted_on_and_memory_is_bounded() {
        let mut conflicts = Conflicts::default();
        for second in 0..100 {
            let first = conflicts.first(Now(second * 1_000_000_000), key(1), station(1));
            assert_eq!(first, (second % 10 == 0).then_some(Logged::Yes), "second {second}");
        }
        let later = Now(1_000_000_000_000);
        let first = (0..100_000).filter(|&n| conflicts.first(later, key(n), station(1)).is_some()).count();
        assert_eq!((first, conflicts.0[&0].by_time.len()), (REMEMBERED_MAX, REMEMBERED_MAX));
    }

    #[test]
    fn a_station_that_claims_thousands_of_addresses_hides_no_claim_of_another() {
        let mut conflicts = Conflicts::default();
        let now = Now(1_000_000_000_000);
        let claims: Vec<_> = (0..10_000).map(|n| conflicts.first(now, key(n), station(1))).collect();
        assert!(claims.iter().all(Option::is_some), "each address is defended");
        let logged = claims.iter().filter(|&&one| one != Some(Logged::No)).count();
        assert_eq!((logged, claims[LOGGED_PER_STATION - 1]), (LOGGED_PER_STATION, Some(Logged::Last)));
        assert_eq!(conflicts.first(now, key(20_000), station(2)), Some(Logged::Yes));
        let later = now.plus(DEFEND_INTERVAL);
        assert_eq!(conflicts.first(later, key(1), station(1)), Some(Logged::Yes), "a new interval");
    }

    #[test]
    fn forged_stations_fill_only_their_links_log_and_addresses_stay_defended() {
        let mut conflicts = Conflicts::default();
        let now = Now(1_000_000_000_000);
        let claims: Vec<_> =
            (0..10_000).map(|n| conflicts.first(now, key(u32::from(n)), station(n))).collect();
        assert!(claims.iter().all(Option::is_some), "each address is defended");
        let logged = claims.iter().filter(|&&one| one != Some(Logged::No)).count();
        assert_eq!((logged, claims[LOGGED_MAX - 1]), (LOGGED_MAX, Some(Logged::Last)));
        assert_eq!(conflicts.0[&0].log.by_station.len(), LOGGED_MAX, "the memory is bounded");
        let elsewhere = (1, key(1).1);
        assert_eq!(conflicts.first(now, elsewhere, station(1)), Some(Logged::Yes));
    }
}
