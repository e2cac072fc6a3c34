//! Reports from workers to the resolver: one bounded queue per kind, so that a flood of one kind leaves capacity for
//! the others.
//!
//! Wanted neighbours are reported for packets that wait for a next hop, sightings and claims for ARP and neighbour
//! discovery packets. A worker forwards a repeated report only once in [`REPEATED_AFTER`], so packets to a dead next
//! hop don't fill a queue.
//!
//! Invariant: no thread waits here, and nothing is allocated after the start. If a queue is full, the report is counted
//! and dropped; the next packet repeats it.

use std::time::Duration;

use crossbeam::queue::ArrayQueue;
use tidegate_pipeline::pipeline::NeighborEvent;
use tidegate_spec::now::Now;
use tidegate_structures::hash::key_hash;

/// Maximum number of queued reports of wanted neighbours.
pub const WANTED_MAX: usize = 4096;
/// Maximum number of queued sightings.
pub const SEEN_MAX: usize = 4096;
/// Maximum number of queued claims of our addresses.
pub const CLAIMED_MAX: usize = 256;
/// A report is repeated after this time.
pub const REPEATED_AFTER: Duration = Duration::from_millis(20);
/// The number of reports that a worker remembers.
const REMEMBERED: usize = 1024;

/// The queues of all workers.
#[derive(Debug)]
pub struct NeighborReports {
    /// [`NeighborEvent::Wanted`].
    pub wanted: ArrayQueue<NeighborEvent>,
    /// [`NeighborEvent::Seen`].
    pub seen: ArrayQueue<NeighborEvent>,
    /// [`NeighborEvent::Conflict`].
    pub claimed: ArrayQueue<NeighborEvent>,
}

impl Default for NeighborReports {
    fn default() -> Self {
        Self {
            wanted: ArrayQueue::new(WANTED_MAX),
            seen: ArrayQueue::new(SEEN_MAX),
            claimed: ArrayQueue::new(CLAIMED_MAX),
        }
    }
}

impl NeighborReports {
    /// Queues a report. Returns false if its queue is full.
    pub fn report(&self, event: NeighborEvent) -> bool {
        let queue = match event {
            NeighborEvent::Wanted { .. } => &self.wanted,
            NeighborEvent::Seen { .. } => &self.seen,
            NeighborEvent::Conflict { .. } => &self.claimed,
        };
        queue.push(event).is_ok()
    }
}

/// The latest reports of one worker, indexed by a hash of the neighbour.
#[derive(Debug)]
pub struct Recent(Box<[Option<(NeighborEvent, Now)>]>);

impl Default for Recent {
    fn default() -> Self {
        Self(vec![None; REMEMBERED].into())
    }
}

impl Recent {
    /// Records a report. Returns whether it is new or old enough to be repeated.
    pub fn is_new(&mut self, now: Now, event: NeighborEvent) -> bool {
        // A station may claim an address of ours with many link addresses. That counts as one report, so that it
        // doesn't fill the queue.
        let event = match event {
            NeighborEvent::Conflict { interface, addr, .. } => {
                NeighborEvent::Conflict { interface, addr, mac: None }
            }
            other => other,
        };
        let (NeighborEvent::Wanted { interface, addr }
        | NeighborEvent::Seen { interface, addr, .. }
        | NeighborEvent::Conflict { interface, addr, .. }) = event;
        // The remainder is below `REMEMBERED`.
        let at = key_hash(&addr, interface, 0) as usize % REMEMBERED;
        let is_repeated =
            self.0[at].is_some_and(|(last, when)| last == event && now < when.plus(REPEATED_AFTER));
        if !is_repeated {
            self.0[at] = Some((event, now));
        }
        !is_repeated
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_pipeline::pipeline::Sighting;
    use tidegate_wire::{Addr, MacAddr};

    fn wanted(n: u32) -> NeighborEvent {
        NeighborEvent::Wanted { interface: 0, addr: Addr::v4(n.to_be_bytes()) }
    }

    #[test]
    fn equal_reports_are_rate_limited_and_new_ones_pass_at_once() {
        let mut recent = Recent::default();
        let moved = |last| NeighborEvent::Seen {
            interface: 0,
            addr: Addr::v4([192, 0, 2, 1]),
            mac: Some(MacAddr([2, 0, 0, 0, 0, last])),
            how: Sighting::Request,
        };
        assert!(recent.is_new(Now(0), wanted(1)) && !recent.is_new(Now(1), wanted(1)));
        assert!(recent.is_new(Now(0).plus(REPEATED_AFTER), wanted(1)));
        assert!(
            recent.is_new(Now(5), moved(1))
                && recent.is_new(Now(6), moved(2))
                && !recent.is_new(Now(7), moved(2))
        );
    }

    #[test]
    fn claims_of_one_address_by_many_link_addresses_are_one_report() {
        let mut recent = Recent::default();
        let claim = |addr, mac| NeighborEvent::Conflict {
            interface: 0,
            addr: Addr::v4([192, 0, 2, addr]),
            mac: Some(MacAddr([2, 0, 0, 0, 0, mac])),
        };
        assert_eq!((0..=255).filter(|&mac| recent.is_new(Now(1), claim(1, mac))).count(), 1);
        assert!(recent.is_new(Now(1), claim(2, 1)), "another address");
        assert!(recent.is_new(Now(1).plus(REPEATED_AFTER), claim(1, 9)));
    }

    #[test]
    fn a_flood_of_one_kind_leaves_the_queues_of_the_others_empty() {
        let reports = NeighborReports::default();
        let seen = |n: u32| NeighborEvent::Seen {
            interface: 0,
            addr: Addr::v4(n.to_be_bytes()),
            mac: None,
            how: Sighting::Request,
        };
        let recent = (0..100_000).filter(|&n| reports.report(seen(n))).count();
        assert_eq!(recent, SEEN_MAX);
        assert!(reports.report(wanted(1)));
        assert_eq!(reports.wanted.pop(), Some(wanted(1)));
    }
}
