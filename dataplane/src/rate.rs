//! A token bucket for the work of one thread: frames that it sends or hands over.
//!
//! Pure: the time is an argument. The state is a single point in time: all tokens that accrued before it are spent.
//!
//! Invariant: in any time t, at most `burst + t * per_second` pass. If one call takes more than the burst, the bound is
//! the tokens of that call plus `t * per_second`.

use tidegate_spec::now::Now;

/// A token bucket.
///
/// ```
/// use tidegate_spec::now::Now;
/// use tidegate_dataplane::rate::TokenBucket;
///
/// let mut tokens = TokenBucket::new(10, 2);
/// assert!(tokens.take(Now(0)) && tokens.take(Now(0)) && !tokens.take(Now(0)));
/// assert!(tokens.take(tokens.ready_at()));
/// ```
#[derive(Debug, Clone)]
pub struct TokenBucket {
    cost_ns: u64,
    saved_ns_max: u64,
    paid_until: u64,
}

impl TokenBucket {
    /// A full token bucket: `burst` tokens at once, then `per_second` tokens a second. Neither may be 0.
    #[must_use]
    pub fn new(per_second: u32, burst: u32) -> Self {
        let cost_ns = 1_000_000_000 / u64::from(per_second.max(1));
        Self { cost_ns, saved_ns_max: cost_ns * u64::from(burst.max(1)), paid_until: 0 }
    }

    /// Spends one token if available. Returns whether it did.
    #[inline]
    pub fn take(&mut self, now: Now) -> bool {
        self.take_many(now, 1)
    }

    /// Spends this many tokens if available. Returns whether it did. After a long enough pause, more tokens than the
    /// burst are available.
    #[inline]
    pub fn take_many(&mut self, now: Now, tokens: u32) -> bool {
        let cost = self.cost_ns.saturating_mul(u64::from(tokens));
        let saved_max = self.saved_ns_max.max(cost);
        let floor = now.0.saturating_sub(saved_max);
        let paid = self.paid_until.max(floor).saturating_add(cost);
        // A new token bucket has exactly its burst.
        let allowed = paid <= now.0.max(self.saved_ns_max);
        if allowed {
            self.paid_until = paid;
        }
        allowed
    }

    /// The number of available tokens.
    #[must_use]
    pub fn available(&self, now: Now) -> u64 {
        let saved = now.0.max(self.saved_ns_max).saturating_sub(self.paid_until).min(self.saved_ns_max);
        saved / self.cost_ns.max(1)
    }

    /// The capacity of the token bucket.
    #[must_use]
    pub fn burst(&self) -> u64 {
        self.saved_ns_max / self.cost_ns.max(1)
    }

    /// Whether at least half of the burst is available.
    #[must_use]
    pub fn is_half_full(&self, now: Now) -> bool {
        self.paid_until.saturating_add(self.saved_ns_max / 2) <= now.0.max(self.saved_ns_max)
    }

    /// When [`Self::take`] will next return true.
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
    fn a_burst_passes_then_the_rate_applies_from_any_start() {
        for start in [0, 1, 1_000_000_000_000] {
            let mut tokens = TokenBucket::new(1_000, 50);
            assert_eq!((0..1_000).filter(|_| tokens.take(Now(start))).count(), 50, "from {start}");
            let first = start.max(50_000_000);
            let passed = (0..10_000).filter(|n| tokens.take(Now(first + n * 100_000))).count();
            assert!((950..=1_050).contains(&passed), "{passed} in a second");
        }
    }

    #[test]
    fn it_is_half_full_until_half_of_its_burst_is_spent() {
        for start in [0, 5_000_000_000] {
            let mut tokens = TokenBucket::new(100, 10);
            let spent =
                (0..10).filter(|_| tokens.is_half_full(Now(start)) && tokens.take(Now(start))).count();
            assert_eq!(spent, 6, "from {start}");
            assert!(!tokens.is_half_full(Now(start)) && tokens.take(Now(start)));
        }
    }

    #[test]
    fn more_tokens_than_the_burst_are_available_after_a_pause() {
        for start in [0, 5_000_000_000] {
            let mut tokens = TokenBucket::new(100, 10);
            assert_eq!((tokens.available(Now(start)), tokens.burst()), (10, 10), "from {start}");
            assert!(tokens.take_many(Now(start), 4) && tokens.take_many(Now(start), 6));
            assert!(!tokens.take_many(Now(start), 1) && tokens.available(Now(start)) == 0);
            let spent = start.max(100_000_000);
            assert!(!tokens.take_many(Now(spent + 199_999_999), 20));
            assert!(tokens.take_many(Now(spent + 200_000_000), 20));
            assert!(!tokens.take(Now(spent + 200_000_000)));
        }
        assert!(!TokenBucket::new(100, 10).take_many(Now(0), 20), "it has only its burst at first");
    }

    #[test]
    fn a_token_is_available_at_ready_at_and_not_before() {
        let mut tokens = TokenBucket::new(100, 3);
        for _ in 0..20 {
            let ready = tokens.ready_at();
            assert!(ready.0 == 0 || !tokens.clone().take(Now(ready.0 - 1)));
            assert!(tokens.take(ready));
        }
    }

    #[test]
    fn a_clock_that_goes_back_earns_no_tokens() {
        let mut tokens = TokenBucket::new(10, 1);
        assert!(tokens.take(Now(5_000_000_000)));
        assert!(!tokens.take(Now(5_000_000_000)) && !tokens.take(Now(4_000_000_000)));
    }
}
