//! Log-linear histograms of durations: one writer records values in a few instructions, any thread reads them.
//!
//! Each value below 64 has its own histogram bucket; above that, every power of two is divided into 32 histogram
//! buckets of equal width. The caller chooses the unit: nanoseconds, or cycles of the time stamp counter.
//!
//! Invariant: the bounds of a histogram bucket differ by less than 1/32 of any value in it ([`RELATIVE_ERROR_MAX`]).
//! Recording takes no lock and allocates nothing. A reading is consistent while values are recorded, except that its
//! sum may include a value that its count doesn't, or the reverse.

use std::fmt::{self, Debug, Formatter};

use crate::counter::Counter;

/// Bits that choose a histogram bucket within a power of two.
const SUB_BITS: u32 = 5;
/// Bits of the greatest value that is distinguished: 18 minutes in nanoseconds.
const VALUE_BITS: u32 = 40;
const BUCKETS: usize = ((VALUE_BITS - SUB_BITS + 1) << SUB_BITS) as usize;

/// The greatest value. Greater ones are counted as this one.
pub const VALUE_MAX: u64 = (1 << VALUE_BITS) - 1;
/// The maximum relative difference between a recorded value and the bounds of its histogram bucket.
pub const RELATIVE_ERROR_MAX: f64 = 1.0 / (1 << SUB_BITS) as f64;

/// The durations that one writer records. 9 KiB, but a writer with similar durations uses only a few cache lines.
pub struct Recorder {
    sum: Counter,
    buckets: [Counter; BUCKETS],
}

impl Default for Recorder {
    fn default() -> Self {
        Self { sum: Counter::default(), buckets: std::array::from_fn(|_| Counter::default()) }
    }
}

impl Debug for Recorder {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.read().fmt(f)
    }
}

impl Recorder {
    /// Counts a duration. Only the writer that owns the recorder may call this.
    #[inline]
    pub fn record(&self, value: u64) {
        self.sum.add(value);
        self.buckets[bucket_of(value)].add(1);
    }

    /// The sum of all durations.
    #[inline]
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum.value()
    }

    /// A copy of the recorded durations.
    #[must_use]
    pub fn read(&self) -> Durations {
        let count = |(n, bucket): (usize, &Counter)| (greatest_of(n), bucket.value());
        let buckets = self.buckets.iter().enumerate().map(count).filter(|&(_, count)| count > 0).collect();
        Durations { buckets, sum: self.sum() }
    }
}

/// A copy of recorded durations.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Durations {
    buckets: Vec<(u64, u64)>,
    sum: u64,
}

impl Durations {
    /// The non-empty histogram buckets, ascending: (the greatest value in the bucket's range, the number of values in
    /// it).
    #[must_use]
    pub fn buckets(&self) -> &[(u64, u64)] {
        &self.buckets
    }

    /// The sum of all values, exact.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The number of recorded values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|&(_, count)| count).sum()
    }

    /// Converts the durations to another unit. `convert` must be monotonic.
    #[must_use]
    pub fn convert(mut self, convert: impl Fn(u64) -> u64) -> Self {
        self.buckets.iter_mut().for_each(|(value, _)| *value = convert(*value));
        self.sum = convert(self.sum);
        self
    }
}

/// The index of the histogram bucket of a value. It needs no branch: below 64 the shift is 0.
#[inline]
fn bucket_of(value: u64) -> usize {
    let value = value.min(VALUE_MAX);
    let shift = (u64::BITS - 1 - SUB_BITS) - (value | 1 << SUB_BITS).leading_zeros();
    ((shift << SUB_BITS) as usize) + (value >> shift) as usize
}

/// The greatest value that a histogram bucket counts.
fn greatest_of(bucket: usize) -> u64 {
    let shift = (bucket >> SUB_BITS).saturating_sub(1);
    let part = (bucket - (shift << SUB_BITS)) as u64;
    ((part + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_buckets_cover_all_values_without_a_gap() {
        let mut least = 0;
        for bucket in 0..BUCKETS {
            let greatest = greatest_of(bucket);
            assert!(greatest >= least, "histogram bucket {bucket}");
            assert_eq!((bucket_of(least), bucket_of(greatest)), (bucket, bucket));
            least = greatest + 1;
        }
        assert_eq!(least, VALUE_MAX + 1);
    }

    #[test]
    fn a_value_beyond_the_last_bucket_counts_there_and_in_full_in_the_sum() {
        let recorder = Recorder::default();
        recorder.record(u64::MAX / 2);
        recorder.record(VALUE_MAX);
        let read = recorder.read();
        assert_eq!(read.buckets(), [(VALUE_MAX, 2)]);
        assert_eq!((read.count(), read.sum()), (2, u64::MAX / 2 + VALUE_MAX));
    }

    #[test]
    fn counts_never_decrease_while_values_are_recorded() {
        let recorder = Recorder::default();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (0..200_000).for_each(|n| recorder.record(n % 1000)));
            let mut last = 0;
            while !writer.is_finished() {
                let count = recorder.read().count();
                assert!(count >= last);
                last = count;
            }
        });
        assert_eq!(recorder.read().count(), 200_000);
    }

    proptest! {
        #[test]
        fn the_bound_of_a_value_is_less_than_one_thirty_second_above_it(
            value in 0..=VALUE_MAX, bits in 0..VALUE_BITS,
        ) {
            // Record equally many values of each magnitude.
            let value = value >> bits;
            let recorder = Recorder::default();
            recorder.record(value);
            let read = recorder.read();
            prop_assert_eq!((read.count(), read.sum()), (1, value));
            let bound = read.buckets()[0].0;
            prop_assert!(bound >= value);
            prop_assert!((bound - value) as f64 <= value as f64 * RELATIVE_ERROR_MAX, "{} {}", value, bound);
        }
    }
}
