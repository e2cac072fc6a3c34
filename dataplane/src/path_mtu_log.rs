//! Logs the path MTUs of tunnels that were reduced or have expired.
//!
//! Workers record them ([`tidegate_snapshot::path_mtu`]) but write no log. The slow path compares the table with its
//! previous state immediately after a change, and then not again for [`PAUSE`]. So routers, or an attacker who forges
//! their errors, can't fill the log. Changes that are undone within the pause are not logged.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use tidegate_snapshot::path_mtu::PathMtus;
use tidegate_spec::now::Now;

/// The minimum interval between two reports.
pub const PAUSE: Duration = Duration::from_secs(10);
/// Maximum number of backends named in one report. The rest is counted.
pub const NAMED_MAX: usize = 8;

/// A change of the path MTU to a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A router reported this MTU, which is smaller than before.
    Reduced {
        /// The backend's address.
        backend: IpAddr,
        /// Bytes of the largest packet, including the outer header.
        mtu: u16,
    },
    /// The entry has expired, and the MTU of the link applies again.
    Expired {
        /// The backend's address.
        backend: IpAddr,
    },
}

/// The path MTUs that have been logged.
#[derive(Debug, Default)]
pub struct PathMtuLog {
    /// The MTU and its expiry, by backend.
    logged: BTreeMap<IpAddr, (u16, Now)>,
    /// [`PathMtus::recorded`] at the last check.
    reductions: u64,
    /// The earliest expiry of the logged MTUs.
    first_end: Option<Now>,
    not_before: Now,
}

impl PathMtuLog {
    /// Logs the changes.
    pub fn log(&mut self, now: Now, paths: &PathMtus) {
        let changes = self.changes(now, paths);
        for change in changes.iter().take(NAMED_MAX) {
            match change {
                Change::Reduced { backend, mtu } => tracing::info!(
                    %backend,
                    mtu,
                    "a router reported a smaller path MTU to a backend: larger packets are fragmented, or answered with an ICMP error"
                ),
                Change::Expired { backend } => {
                    tracing::info!(%backend, "a path MTU expired: the MTU of the link applies again");
                }
            }
        }
        if changes.len() > NAMED_MAX {
            let more = changes.len() - NAMED_MAX;
            tracing::info!(
                more,
                "the path MTU changed for more backends: run `tidegate backends -o wide` to list all"
            );
        }
    }

    /// The changes since the last report; empty within [`PAUSE`] after one.
    pub fn changes(&mut self, now: Now, paths: &PathMtus) -> Vec<Change> {
        // Read before the table: changes in between are reported at the next check.
        let reductions = paths.recorded();
        let has_changes = reductions != self.reductions || self.first_end.is_some_and(|end| end <= now);
        if !has_changes || now < self.not_before {
            return Vec::new();
        }
        let known: BTreeMap<IpAddr, (u16, Now)> =
            paths.known(now).map(|path| (path.backend.ip(), (path.mtu, path.ends))).collect();
        let is_new = |&(backend, found): &(&IpAddr, &(u16, Now))| self.logged.get(backend) != Some(found);
        let new = known.iter().filter(is_new).map(|(&backend, &(mtu, _))| Change::Reduced { backend, mtu });
        // An evicted entry has not expired; a later ICMP error records it again.
        let is_over =
            |&(backend, &(_, end)): &(&IpAddr, &(u16, Now))| end <= now && !known.contains_key(backend);
        let over = self.logged.iter().filter(is_over).map(|(&backend, _)| Change::Expired { backend });
        let changes: Vec<Change> = new.chain(over).collect();
        self.first_end = known.values().map(|&(_, end)| end).min();
        (self.logged, self.reductions) = (known, reductions);
        if !changes.is_empty() {
            self.not_before = now.plus(PAUSE);
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use tidegate_snapshot::path_mtu::LIFETIME;
    use tidegate_wire::Addr;

    use super::*;

    fn addr(n: u8) -> Addr {
        Addr::v4([192, 0, 2, n])
    }

    fn reductions(n: u8, mtu: u16) -> Change {
        Change::Reduced { backend: addr(n).ip(), mtu }
    }

    const NOW: Now = Now(5_000_000_000);

    #[test]
    fn a_reduced_or_expired_path_mtu_is_logged_once_and_a_burst_together() {
        let (paths, mut log) = (PathMtus::default(), PathMtuLog::default());
        assert_eq!(log.changes(NOW, &paths), []);
        paths.record(addr(1), 1400, NOW);
        assert_eq!(log.changes(NOW, &paths), [reductions(1, 1400)]);
        assert_eq!(log.changes(NOW.plus(PAUSE), &paths), [], "logged once");
        // Recorded within the pause, but late enough that the pause is over.
        let later = NOW.plus(PAUSE * 2);
        paths.record(addr(2), 1300, later);
        assert_eq!(log.changes(later, &paths), [reductions(2, 1300)]);
        paths.record(addr(1), 1380, later);
        paths.record(addr(1), 1350, later);
        paths.record(addr(3), 1200, later);
        assert_eq!(log.changes(later.plus(PAUSE / 2), &paths), [], "not so soon");
        assert_eq!(log.changes(later.plus(PAUSE), &paths), [reductions(1, 1350), reductions(3, 1200)]);
        let end = later.plus(LIFETIME);
        assert_eq!(log.changes(Now(end.0 - 1), &paths), []);
        let expired: Vec<_> = (1..=3).map(|n| Change::Expired { backend: addr(n).ip() }).collect();
        assert_eq!(log.changes(end, &paths), expired);
        assert_eq!(log.changes(end.plus(PAUSE), &paths), []);
        paths.record(addr(1), 1350, end.plus(PAUSE));
        assert_eq!(
            log.changes(end.plus(PAUSE), &paths),
            [reductions(1, 1350)],
            "the same value counts as new by then"
        );
    }
}
