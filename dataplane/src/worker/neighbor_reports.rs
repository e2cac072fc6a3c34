//! Reports from workers to the resolver: bounded queues, one for each kind, so that a flood of one kind leaves room
//! for the others.
//!
//! Wanted neighbours are reported for packets that wait for a next hop, sightings and claims for ARP and neighbour
//! discovery packets. A worker passes a repeated report on only once in [`REPEATED_AFTER`], so packets to a next hop
//! that does not answer do not fill a queue.
//!
//! Invariant: no thread waits here, and nothing is allocated after the start. A report without room is counted and
//! lost; the next packet repeats it.

use std::time::Duration;

use crossbeam::queue::ArrayQueue;
use tidegate_pipeline::pipeline::NeighborEvent;
use tidegate_spec::now::Now;
use tidegate_structures::hash::key_hash;

/// Wanted neighbours that may wait for the resolver.
pub const WANTED_MAX: usize = 4096;
/// Sightings that may wait for the resolver.
pub const SEEN_MAX: usize = 4096;
/// Claims of our addresses that may wait for the resolver.
pub const CLAIMED_MAX: usize = 256;
/// An equal report is passed on again after this time.
pub const REPEATED_AFTER: Duration = Duration::from_millis(20);
/// The number of reports that one worker remembers.
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
    /// Passes a report on. Returns false if its queue is full.
    pub fn report(&self, event: NeighborEvent) -> bool {
        let queue = match event {
            NeighborEvent::Wanted { .. } => &self.wanted,
            NeighborEvent::Seen { .. } => &self.seen,
            NeighborEvent::Conflict { .. } => &self.claimed,
        };
        queue.push(event).is_ok()
    }
}

/// The last reports of one worker, by a hash of the neighbour.
#[derive(Debug)]
pub struct Recent(Box<[Option<(NeighborEvent, Now)>]>);

impl Default for Recent {
    fn default() -> Self {
        Self(vec![None; REMEMBERED].into())
    }
}

impl Recent {
    /// Whether this report was not made recently. The call records it.
    pub fn is_new(&mut self, now: Now, event: NeighborEvent) -> bool {
        // A station may claim one address of ours by many link addresses. That is one report, so that it does not fill the
        // queue.
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
    fn equal_news_is_told_once_in_a_while_and_other_news_at_once() {
        let mut told = Recent::default();
        let moved = |last| NeighborEvent::Seen {
            interface: 0,
            addr: Addr::v4([192, 0, 2, 1]),
            mac: Some(MacAddr([2, 0, 0, 0, 0, last])),
            how: Sighting::Request,
        };
        assert!(told.is_new(Now(0), wanted(1)) && !told.is_new(Now(1), wanted(1)));
        assert!(told.is_new(Now(0).plus(REPEATED_AFTER), wanted(1)));
        assert!(
            told.is_new(Now(5), moved(1)) && told.is_new(Now(6), moved(2)) && !told.is_new(Now(7), moved(2))
        );
    }

    #[test]
    fn claims_of_one_address_by_many_link_addresses_are_one_report() {
        let mut told = Recent::default();
        let claim = |addr, mac| NeighborEvent::Conflict {
            interface: 0,
            addr: Addr::v4([192, 0, 2, addr]),
            mac: Some(MacAddr([2, 0, 0, 0, 0, mac])),
        };
        assert_eq!((0..=255).filter(|&mac| told.is_new(Now(1), claim(1, mac))).count(), 1);
        assert!(told.is_new(Now(1), claim(2, 1)), "another address");
        assert!(told.is_new(Now(1).plus(REPEATED_AFTER), claim(1, 9)));
    }

    #[test]
    fn a_flood_of_one_kind_leaves_the_queues_of_the_others_empty() {
        let news = NeighborReports::default();
        let seen = |n: u32| NeighborEvent::Seen {
            interface: 0,
            addr: Addr::v4(n.to_be_bytes()),
            mac: None,
            how: Sighting::Request,
        };
        let told = (0..100_000).filter(|&n| news.report(seen(n))).count();
        assert_eq!(told, SEEN_MAX);
        assert!(news.report(wanted(1)));
        assert_eq!(news.wanted.pop(), Some(wanted(1)));
    }
}
