//! A token bucket that several workers share, for rates of more than a unit per nanosecond: the time that units take is
//! computed exactly, not unit by unit as in [`tidegate_spec::token_bucket`].

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_spec::now::Now;
use tidegate_spec::token_bucket::unspent;

/// The rate and capacity of a token bucket. A unit is a byte or a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refill {
    /// Units per second, at least 1 and at most 2^34.
    pub(crate) per_second: u64,
    /// The capacity: at most the units of one second, or 2^20.
    pub(crate) burst: u64,
}

impl Refill {
    /// The units that a worker takes at once: the units of one millisecond. So each worker accesses the shared token
    /// bucket at most a thousand times a second.
    pub(crate) fn share(self) -> u64 {
        (self.per_second / 1_000).max(1)
    }

    /// The time in which this many units arrive, in nanoseconds, rounded up.
    fn nanos(self, units: u64) -> u64 {
        let nanos = (u128::from(units) * 1_000_000_000).div_ceil(u128::from(self.per_second.max(1)));
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    /// The units that arrive in this time, rounded down.
    fn units(self, nanos: u64) -> u64 {
        let units = u128::from(nanos) * u128::from(self.per_second) / 1_000_000_000;
        u64::try_from(units).unwrap_or(u64::MAX)
    }
}

/// A token bucket, stored as the time up to which its tokens are spent. A new one is full.
#[derive(Debug, Default)]
pub(crate) struct SharedBucket(AtomicU64);

impl SharedBucket {
    /// Takes at most `wanted` units, but at least `needed` or none. Returns the number taken.
    pub(crate) fn take(&self, refill: Refill, needed: u64, wanted: u64, now: Now) -> u64 {
        let saved_max = refill.nanos(refill.burst);
        let mut units = 0;
        // An exchange fails only if another worker has taken units, so some worker always makes progress.
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |spent| {
            let (from, left) = unspent(spent, saved_max, now);
            units = wanted.max(needed).min(refill.units(left));
            // These units cost at most what is left, so the sum is at most `now` or the burst.
            (units >= needed).then(|| from.saturating_add(refill.nanos(units)))
        });
        if taken.is_ok() { units } else { 0 }
    }

    /// Whether this many units are available.
    pub(crate) fn has(&self, refill: Refill, units: u64, now: Now) -> bool {
        refill.units(unspent(self.0.load(Ordering::Relaxed), refill.nanos(refill.burst), now).1) >= units
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_token_bucket_yields_its_burst_and_then_its_rate() {
        for per_second in [1_u64, 7, 1_000, 125_000, 250_000_000, 12_500_000_000] {
            let refill = Refill { per_second, burst: per_second };
            for start in [0, 1_700_000_000 * SECOND] {
                let bucket = SharedBucket::default();
                assert_eq!(bucket.take(refill, per_second, per_second, Now(start)), per_second);
                assert_eq!(bucket.take(refill, 1, 1, Now(start)), 0, "{per_second}");
            }
            let (bucket, mut taken) = (SharedBucket::default(), 0);
            // Ten seconds, in steps of a third of a millisecond.
            for step in 0..=30_000 {
                let now = Now(100 * SECOND + step * SECOND / 3_000);
                while let units @ 1.. = bucket.take(refill, 1, refill.share(), now) {
                    taken += units;
                }
            }
            let expected = 11 * per_second;
            assert!(taken <= expected, "{taken} of {expected}");
            // Each of the 40,000 calls may lose the units of a nanosecond.
            assert!(taken + 1 + per_second / 10_000 >= expected, "{taken} of {expected}");
        }
    }

    #[test]
    fn two_threads_together_take_no_more_than_the_token_bucket_has() {
        let refill = Refill { per_second: 1_000_000, burst: 1_000_000 };
        let bucket = SharedBucket::default();
        let take_all = || {
            let mut taken = 0;
            loop {
                match bucket.take(refill, 1, refill.share(), Now(5 * SECOND)) {
                    0 => return taken,
                    units => taken += units,
                }
            }
        };
        let (one, other): (u64, u64) = std::thread::scope(|scope| {
            let (one, other) = (scope.spawn(take_all), scope.spawn(take_all));
            (one.join().unwrap(), other.join().unwrap())
        });
        assert_eq!(one + other, 1_000_000);
    }

    #[test]
    fn time_that_stops_or_goes_back_adds_no_tokens() {
        let refill = Refill { per_second: 10, burst: 10 };
        let bucket = SharedBucket::default();
        assert_eq!(bucket.take(refill, 10, 10, Now(u64::MAX)), 10);
        for now in [u64::MAX, 5, 0] {
            assert_eq!(bucket.take(refill, 1, 1, Now(now)), 0);
        }
    }
}
