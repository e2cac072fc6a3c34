//! A token bucket for the work of one thread: frames that it sends or hands over.
//!
//! Pure: the time is an argument. The state is one time, the moment up to which the tokens are spent.
//!
//! Invariant: in any time t no more than `burst + t * per_second` pass; if one call takes more than the burst, its tokens
//! count instead of the burst.

use tidegate_spec::now::Now;

/// A token bucket.
///
/// ```
/// use tidegate_spec::now::Now;
/// use tidegate_dataplane::rate::Bucket;
///
/// let mut bucket = Bucket::new(10, 2);
/// assert!(bucket.take(Now(0)) && bucket.take(Now(0)) && !bucket.take(Now(0)));
/// assert!(bucket.take(bucket.ready_at()));
/// ```
#[derive(Debug, Clone)]
pub struct Bucket {
    cost_ns: u64,
    saved_ns_max: u64,
    paid_until: u64,
}

impl Bucket {
    /// A full bucket: `burst` tokens at once, then `per_second` tokens a second. Neither may be 0.
    #[must_use]
    pub fn new(per_second: u32, burst: u32) -> Self {
        let cost_ns = 1_000_000_000 / u64::from(per_second.max(1));
        Self { cost_ns, saved_ns_max: cost_ns * u64::from(burst.max(1)), paid_until: 0 }
    }

    /// Whether one more token is available now; if so, it is spent.
    #[inline]
    pub fn take(&mut self, now: Now) -> bool {
        self.take_many(now, 1)
    }

    /// Whether this many tokens are available now; if so, they are spent. More tokens than the burst are available when
    /// the bucket has been unused for as long as they take to come.
    #[inline]
    pub fn take_many(&mut self, now: Now, tokens: u32) -> bool {
        let cost = self.cost_ns.saturating_mul(u64::from(tokens));
        let saved_max = self.saved_ns_max.max(cost);
        let floor = now.0.saturating_sub(saved_max);
        let paid = self.paid_until.max(floor).saturating_add(cost);
        // A new bucket has its burst, and no more.
        let allowed = paid <= now.0.max(self.saved_ns_max);
        if allowed {
            self.paid_until = paid;
        }
        allowed
    }

    /// The number of tokens that are available now.
    #[must_use]
    pub fn available(&self, now: Now) -> u64 {
        let saved = now.0.max(self.saved_ns_max).saturating_sub(self.paid_until).min(self.saved_ns_max);
        saved / self.cost_ns.max(1)
    }

    /// The number of tokens of a full bucket.
    #[must_use]
    pub fn burst(&self) -> u64 {
        self.saved_ns_max / self.cost_ns.max(1)
    }

    /// Whether half of the burst, or more, is available now.
    #[must_use]
    pub fn is_half_full(&self, now: Now) -> bool {
        self.paid_until.saturating_add(self.saved_ns_max / 2) <= now.0.max(self.saved_ns_max)
    }

    /// The first moment at which [`Self::take`] returns true.
    #[must_use]
    pub fn ready_at(&self) -> Now {
        let paid = self.paid_until.saturating_add(self.cost_ns);
        Now(if paid <= self.saved_ns_max { 0 } else { paid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_then_the_rate_holds_from_any_start() {
        for start in [0, 1, 1_000_000_000_000] {
            let mut bucket = Bucket::new(1_000, 50);
            assert_eq!((0..1_000).filter(|_| bucket.take(Now(start))).count(), 50, "from {start}");
            let first = start.max(50_000_000);
            let passed = (0..10_000).filter(|n| bucket.take(Now(first + n * 100_000))).count();
            assert!((950..=1_050).contains(&passed), "{passed} in a second");
        }
    }

    #[test]
    fn it_is_half_full_until_half_of_its_burst_is_spent() {
        for start in [0, 5_000_000_000] {
            let mut bucket = Bucket::new(100, 10);
            let spent =
                (0..10).filter(|_| bucket.is_half_full(Now(start)) && bucket.take(Now(start))).count();
            assert_eq!(spent, 6, "from {start}");
            assert!(!bucket.is_half_full(Now(start)) && bucket.take(Now(start)));
        }
    }

    #[test]
    fn many_tokens_at_once_count_as_many_and_more_than_the_burst_come_after_a_pause() {
        for start in [0, 5_000_000_000] {
            let mut bucket = Bucket::new(100, 10);
            assert_eq!((bucket.available(Now(start)), bucket.burst()), (10, 10), "from {start}");
            assert!(bucket.take_many(Now(start), 4) && bucket.take_many(Now(start), 6));
            assert!(!bucket.take_many(Now(start), 1) && bucket.available(Now(start)) == 0);
            let spent = start.max(100_000_000);
            assert!(!bucket.take_many(Now(spent + 199_999_999), 20));
            assert!(bucket.take_many(Now(spent + 200_000_000), 20));
            assert!(!bucket.take(Now(spent + 200_000_000)));
        }
        assert!(!Bucket::new(100, 10).take_many(Now(0), 20), "it has only its burst at first");
    }

    #[test]
    fn it_is_ready_when_it_says_so_and_not_before() {
        let mut bucket = Bucket::new(100, 3);
        for _ in 0..20 {
            let ready = bucket.ready_at();
            assert!(ready.0 == 0 || !bucket.clone().take(Now(ready.0 - 1)));
            assert!(bucket.take(ready));
        }
    }

    #[test]
    fn time_that_goes_back_gives_nothing() {
        let mut bucket = Bucket::new(10, 1);
        assert!(bucket.take(Now(5_000_000_000)));
        assert!(!bucket.take(Now(5_000_000_000)) && !bucket.take(Now(4_000_000_000)));
    }
}
