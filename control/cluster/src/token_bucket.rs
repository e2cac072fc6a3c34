//! The token bucket of [`tidegate_spec::token_bucket`] with the clock of Tokio.

use std::time::Duration;

use tidegate_spec::now::Now;
use tidegate_spec::token_bucket;
use tokio::time::Instant;

/// The time of the first use. Any token bucket is full by then.
const START: Duration = Duration::from_secs(86_400);

/// A token bucket. Time is an argument.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    tokens: token_bucket::TokenBucket,
    first_use: Option<Instant>,
}

impl TokenBucket {
    /// A full token bucket of `burst` tokens that gains one per `interval`.
    pub fn new(burst: u32, interval: Duration) -> Self {
        Self { tokens: token_bucket::TokenBucket::with_interval(interval, burst), first_use: None }
    }

    /// Sets the interval. The number of tokens doesn't change.
    pub fn set_interval(&mut self, interval: Duration, now: Instant) {
        let now = self.time(now);
        self.tokens.set_interval(interval, now);
    }

    /// Takes a token. If there is none, the error is the time of the next one.
    pub fn take(&mut self, now: Instant) -> Result<(), Instant> {
        self.first_use.get_or_insert(now);
        let time = self.time(now);
        if self.tokens.take(time) { Ok(()) } else { Err(now + self.tokens.ready_at().since(time)) }
    }

    /// Whether the token bucket is full, so that it need not be stored.
    pub fn is_full(&self, now: Instant) -> bool {
        self.tokens.is_full(self.time(now))
    }

    fn time(&self, now: Instant) -> Now {
        let first_use = self.first_use.unwrap_or(now);
        Now(0).plus(START + now.saturating_duration_since(first_use))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_followed_by_a_steady_rate_and_idle_time_refills_it() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut bucket = TokenBucket::new(3, Duration::from_millis(20));
        for _ in 0..3 {
            assert_eq!(bucket.take(start), Ok(()));
        }
        assert_eq!(bucket.take(start), Err(at(20)));
        assert_eq!(bucket.take(at(20)), Ok(()));
        assert_eq!(bucket.take(at(39)), Err(at(40)));
        assert!(!bucket.is_full(at(79)) && bucket.is_full(at(80)));
        assert_eq!((0..9).filter(|_| bucket.take(at(1000)).is_ok()).count(), 3);
    }
}
