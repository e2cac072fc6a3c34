//! Other stations that claim one of our addresses: when to defend it, and when to log it (RFC 5227 section 2.4).
//!
//! Each claim is counted where it is received. This file decides which of them is answered by an announcement and
//! which is logged: at most one of each for an address in [`DEFEND_INTERVAL`]. So two gateways that announce the same
//! VIP on one link do not answer each other without end: the second claim within the interval gets no answer.
//!
//! Invariant: the memory is bounded; while [`REMEMBERED_MAX`] addresses are in dispute, further ones are only
//! counted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidegate_core::now::Now;

use super::key::Key;

/// The minimum interval between two defences of an address (RFC 5227 section 1.1).
pub(super) const DEFEND_INTERVAL: Duration = Duration::from_secs(10);
/// The maximum number of addresses in dispute that are remembered.
pub(super) const REMEMBERED_MAX: usize = 256;

/// The addresses in dispute.
#[derive(Debug, Default)]
pub(super) struct Conflicts {
    until: BTreeMap<Key, Now>,
    by_time: BTreeSet<(Now, Key)>,
}

impl Conflicts {
    /// Whether this claim is the first one in its interval, which is answered or logged.
    pub(super) fn is_first(&mut self, now: Now, key: Key) -> bool {
        while let Some(&(until, key)) = self.by_time.first()
            && until <= now
        {
            self.by_time.pop_first();
            self.until.remove(&key);
        }
        if self.until.contains_key(&key) || self.until.len() >= REMEMBERED_MAX {
            return false;
        }
        let until = now.plus(DEFEND_INTERVAL);
        self.until.insert(key, until);
        self.by_time.insert((until, key));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    #[test]
    fn one_claim_an_interval_is_acted_on_and_memory_is_bounded() {
        let mut conflicts = Conflicts::default();
        let key = |n: u32| (0, IpAddr::from(n.to_be_bytes()));
        for second in 0..100 {
            let first = conflicts.is_first(Now(second * 1_000_000_000), key(1));
            assert_eq!(first, second % 10 == 0, "second {second}");
        }
        let later = Now(1_000_000_000_000);
        let first = (0..10_000).filter(|&n| conflicts.is_first(later, key(n))).count();
        assert_eq!((first, conflicts.by_time.len()), (REMEMBERED_MAX, REMEMBERED_MAX));
    }
}
