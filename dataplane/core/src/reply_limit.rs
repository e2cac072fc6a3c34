//! A token bucket for the packets that a worker makes itself: resets and ICMP errors.
//!
//! Answering floods would make the gateway a reflector, so answers are bounded per worker
//! ([`REPLIES_PER_SECOND`]); RFC 4443 section 2.4 (f) and RFC 1812 section 4.3.2.8 ask for the same. Echo, ARP
//! and neighbour advertisements are not counted here: they answer one for one and never grow.

use crate::limits::{REPLIES_BURST, REPLIES_PER_SECOND};
use crate::now::Now;

/// Nanoseconds that one answer costs.
const COST_NS: u64 = 1_000_000_000 / REPLIES_PER_SECOND as u64;
/// Nanoseconds that may be saved up.
const SAVED_NS_MAX: u64 = COST_NS * REPLIES_BURST as u64;

/// The bucket, kept as a time: the moment up to which answers are paid for.
#[derive(Debug, Default)]
pub(crate) struct ReplyLimit {
    paid_until: u64,
}

impl ReplyLimit {
    /// Whether one more answer may be sent at this moment; if so it is paid for.
    pub(crate) fn take(&mut self, now: Now) -> bool {
        let floor = now.0.saturating_sub(SAVED_NS_MAX);
        // Captures may claim any time, the last one included.
        let Some(paid) = self.paid_until.max(floor).checked_add(COST_NS) else { return false };
        let allowed = paid <= now.0.max(SAVED_NS_MAX);
        if allowed {
            self.paid_until = paid;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_then_the_rate_holds() {
        for start in [0, 1, 1_000_000_000_000] {
            let mut limit = ReplyLimit::default();
            let passed = (0..10_000).filter(|_| limit.take(Now(start))).count();
            assert_eq!(passed, REPLIES_BURST as usize, "from {start}");
            // One second later, a second's worth, but no more than may be saved.
            let later = Now(start.max(SAVED_NS_MAX) + 1_000_000_000);
            let passed = (0..10_000).filter(|_| limit.take(later)).count();
            assert_eq!(passed, REPLIES_BURST.min(REPLIES_PER_SECOND) as usize);
        }
    }

    #[test]
    fn the_rate_holds_at_the_end_of_time_too() {
        let mut limit = ReplyLimit::default();
        let passed = (0..10_000).filter(|_| limit.take(Now(u64::MAX))).count();
        assert_eq!(passed, REPLIES_BURST as usize);
    }

    #[test]
    fn time_that_stands_still_or_goes_back_gives_nothing() {
        let mut limit = ReplyLimit::default();
        while limit.take(Now(5_000_000_000)) {}
        assert!(!limit.take(Now(5_000_000_000)));
        assert!(!limit.take(Now(4_000_000_000)));
    }
}
