//! A token bucket: it allows a burst, and then a constant rate.

use std::time::Duration;

use tokio::time::Instant;

/// A token bucket. Time is an argument.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    interval: Duration,
    burst: u32,
    /// When the token bucket will be full again. Each token taken moves it later by one interval.
    spent_until: Option<Instant>,
}

impl TokenBucket {
    /// A full token bucket of `burst` tokens that gains one per `interval`.
    pub fn new(burst: u32, interval: Duration) -> Self {
        Self { interval, burst, spent_until: None }
    }

    /// Sets the interval. The number of tokens doesn't change.
    pub fn set_interval(&mut self, interval: Duration, now: Instant) {
        if let Some(until) = self.spent_until.filter(|until| *until > now) {
            let taken = (until - now).as_secs_f64() / self.interval.as_secs_f64();
            self.spent_until = Some(now + interval.mul_f64(taken));
        }
        self.interval = interval;
    }

    /// Takes a token. If there is none, the error is the time of the next one.
    pub fn take(&mut self, now: Instant) -> Result<(), Instant> {
        let from = self.spent_until.map_or(now, |until| until.max(now));
        let full = self.interval * self.burst;
        let until = from + self.interval;
        if until > now + full {
            return Err(until - full);
        }
        self.spent_until = Some(until);
        Ok(())
    }

    /// Whether the token bucket is full, so that it need not be stored.
    pub fn is_full(&self, now: Instant) -> bool {
        self.spent_until.is_none_or(|until| until <= now)
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
