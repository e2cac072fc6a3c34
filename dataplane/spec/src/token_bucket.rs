//! Token buckets: a burst, and then a constant rate.
//!
//! The state of a token bucket is one point in time, in nanoseconds: all tokens that accrued before it are spent. So 0
//! is a full token bucket, and [`unspent`] is the whole arithmetic. [`TokenBucket`] has its own rate. Tables that have
//! one rate for many token buckets store only the time, as a number of one thread or as an atomic of several, and spend
//! by [`Rate`].
//!
//! Written by hand, because `governor` reads a clock, and shares its state by atomics where one thread needs none.
//!
//! Invariant: nothing here reads a clock. In any time t, at most `burst + t * per_second` tokens are spent. If one call
//! spends more than the burst, the bound is the tokens of that call plus `t * per_second`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::now::Now;

/// The time from which tokens are unspent, and how much time that is until `now`, if the tokens of at most `saved_max`
/// are saved. `spent` is the state of the token bucket. Spending tokens moves the first time later by their time.
#[inline]
#[must_use]
pub fn unspent(spent: u64, saved_max: u64, now: Now) -> (u64, u64) {
    let from = spent.max(now.0.saturating_sub(saved_max));
    // Shortly after time 0 a token bucket counts as full.
    (from, now.0.max(saved_max).saturating_sub(from))
}

/// A rate limit on events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Events per second.
    pub per_second: u32,
    /// The burst: events without a pause.
    pub burst: u32,
}

impl Rate {
    /// Spends a token. `spent` is the state of the token bucket before, the result is its state afterwards. `None` if
    /// there is no token now. A rate or burst of 0 counts as 1.
    #[inline]
    #[must_use]
    pub fn spend(self, spent: u64, now: Now) -> Option<u64> {
        let token = self.token();
        let (from, left) = unspent(spent, token.saturating_mul(u64::from(self.burst.max(1))), now);
        (left >= token).then(|| from + token)
    }

    /// Spends a token of this token bucket. Returns whether there was one.
    #[inline]
    pub fn take(self, spent: &mut u64, now: Now) -> bool {
        let after = self.spend(*spent, now);
        *spent = after.unwrap_or(*spent);
        after.is_some()
    }

    /// Spends a token of a token bucket that several threads share. Returns whether there was one.
    #[inline]
    pub fn take_shared(self, spent: &AtomicU64, now: Now) -> bool {
        spent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |spent| self.spend(spent, now)).is_ok()
    }

    /// The time in which a token accrues, in nanoseconds.
    #[inline]
    fn token(self) -> u64 {
        1_000_000_000 / u64::from(self.per_second.max(1))
    }
}

/// A token bucket of one thread.
///
/// ```
/// use tidegate_spec::now::Now;
/// use tidegate_spec::token_bucket::{Rate, TokenBucket};
///
/// let mut tokens = TokenBucket::new(Rate { per_second: 10, burst: 2 });
/// assert!(tokens.take(Now(0)) && tokens.take(Now(0)) && !tokens.take(Now(0)));
/// assert!(tokens.take(tokens.ready_at()));
/// ```
#[derive(Debug, Clone)]
pub struct TokenBucket {
    /// The times in which a token and the burst accrue, in nanoseconds.
    token: u64,
    saved_max: u64,
    spent: u64,
}

impl TokenBucket {
    /// A full token bucket: the burst at once, then the tokens of each second. Neither may be 0.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        Self::with_interval(Duration::from_nanos(rate.token()), rate.burst)
    }

    /// A full token bucket of `burst` tokens that gains one per `interval`. Neither may be 0.
    #[must_use]
    pub fn with_interval(interval: Duration, burst: u32) -> Self {
        let token = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1);
        Self { token, saved_max: token.saturating_mul(u64::from(burst.max(1))), spent: 0 }
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
        let cost = self.token.saturating_mul(u64::from(tokens));
        let after = unspent(self.spent, self.saved_max.max(cost), now).0.saturating_add(cost);
        // A new token bucket has exactly its burst.
        let allowed = after <= now.0.max(self.saved_max);
        if allowed {
            self.spent = after;
        }
        allowed
    }

    /// The number of available tokens.
    #[must_use]
    pub fn available(&self, now: Now) -> u64 {
        unspent(self.spent, self.saved_max, now).1 / self.token
    }

    /// The capacity of the token bucket.
    #[must_use]
    pub fn burst(&self) -> u64 {
        self.saved_max / self.token
    }

    /// Whether at least half of the burst is available.
    #[must_use]
    pub fn is_half_full(&self, now: Now) -> bool {
        unspent(self.spent, self.saved_max, now).1 >= self.saved_max / 2
    }

    /// Whether the whole burst is available, so that the token bucket need not be stored.
    #[must_use]
    pub fn is_full(&self, now: Now) -> bool {
        unspent(self.spent, self.saved_max, now).1 >= self.saved_max
    }

    /// Sets the time in which a token accrues. The number of tokens doesn't change.
    pub fn set_interval(&mut self, interval: Duration, now: Now) {
        let missing = self.saved_max.saturating_sub(unspent(self.spent, self.saved_max, now).1);
        let missing = missing as f64 / self.token as f64;
        *self = Self::with_interval(interval, u32::try_from(self.burst()).unwrap_or(u32::MAX));
        let empty_since = now.0.saturating_sub(self.saved_max);
        self.spent = empty_since.saturating_add((missing * self.token as f64) as u64);
    }

    /// When [`Self::take`] will next return true.
    #[must_use]
    pub fn ready_at(&self) -> Now {
        let ready = self.spent.saturating_add(self.token);
        Now(if ready <= self.saved_max { 0 } else { ready })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_then_the_rate_applies_from_any_start() {
        for start in [0, 1, 1_000_000_000_000] {
            let mut tokens = TokenBucket::new(Rate { per_second: 1_000, burst: 50 });
            assert_eq!((0..1_000).filter(|_| tokens.take(Now(start))).count(), 50, "from {start}");
            let first = start.max(50_000_000);
            let passed = (0..10_000).filter(|n| tokens.take(Now(first + n * 100_000))).count();
            assert!((950..=1_050).contains(&passed), "{passed} in a second");
        }
    }

    #[test]
    fn it_is_half_full_until_half_of_its_burst_is_spent() {
        for start in [0, 5_000_000_000] {
            let mut tokens = TokenBucket::new(Rate { per_second: 100, burst: 10 });
            let spent =
                (0..10).filter(|_| tokens.is_half_full(Now(start)) && tokens.take(Now(start))).count();
            assert_eq!(spent, 6, "from {start}");
            assert!(!tokens.is_half_full(Now(start)) && tokens.take(Now(start)));
        }
    }

    #[test]
    fn more_tokens_than_the_burst_are_available_after_a_pause() {
        for start in [0, 5_000_000_000] {
            let mut tokens = TokenBucket::new(Rate { per_second: 100, burst: 10 });
            assert_eq!((tokens.available(Now(start)), tokens.burst()), (10, 10), "from {start}");
            assert!(tokens.take_many(Now(start), 4) && tokens.take_many(Now(start), 6));
            assert!(!tokens.take_many(Now(start), 1) && tokens.available(Now(start)) == 0);
            let spent = start.max(100_000_000);
            assert!(!tokens.take_many(Now(spent + 199_999_999), 20));
            assert!(tokens.take_many(Now(spent + 200_000_000), 20));
            assert!(!tokens.take(Now(spent + 200_000_000)));
        }
        assert!(
            !TokenBucket::new(Rate { per_second: 100, burst: 10 }).take_many(Now(0), 20),
            "it has only its burst at first"
        );
    }

    #[test]
    fn a_token_is_available_at_ready_at_and_not_before() {
        let mut tokens = TokenBucket::new(Rate { per_second: 100, burst: 3 });
        for _ in 0..20 {
            let ready = tokens.ready_at();
            assert!(ready.0 == 0 || !tokens.clone().take(Now(ready.0 - 1)));
            assert!(tokens.take(ready));
        }
    }

    #[test]
    fn a_clock_that_goes_back_earns_no_tokens() {
        let mut tokens = TokenBucket::new(Rate { per_second: 10, burst: 1 });
        assert!(tokens.take(Now(5_000_000_000)));
        assert!(!tokens.take(Now(5_000_000_000)) && !tokens.take(Now(4_000_000_000)));
    }

    #[test]
    fn a_new_interval_keeps_the_number_of_tokens() {
        let ms = Duration::from_millis;
        let (mut tokens, now) = (TokenBucket::with_interval(ms(20), 10), Now(5_000_000_000));
        assert!(tokens.take_many(now, 4));
        tokens.set_interval(ms(2), now);
        assert_eq!((tokens.available(now), tokens.burst(), tokens.is_full(now)), (6, 10, false));
        assert!(!tokens.is_full(now.plus(ms(7))) && tokens.is_full(now.plus(ms(8))));
    }
}
