//! Log-linear histograms of durations: one writer records values in a few instructions, any thread reads them.
//!
//! Each value below 64 has its own histogram bucket; above that, every power of two is divided into 32 histogram
//! buckets of equal width. The caller chooses the unit: nanoseconds, or cycles of the time stamp counter.
//!
//! Invariant: the bounds of a histogram bucket differ by less than 1/32 of any value in it ([`RELATIVE_ERROR_MAX`]).
//! Recording takes no lock and allocates nothing. A reading is consistent while values are recorded, except that its
//! sum may include a value that its count doesn't, or the reverse.

use std::collections::BTreeMap;
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

    /// The number of values up to this one. Values of its histogram bucket count, so some may be greater by 1/32.
    #[must_use]
    pub fn count_up_to(&self, value: u64) -> u64 {
        let greatest = greatest_of(bucket_of(value));
        self.buckets.iter().take_while(|(value, _)| *value <= greatest).map(|&(_, count)| count).sum()
    }

    /// The value that this fraction of all values does not exceed, rounded up to the bound of its histogram bucket; 0
    /// without values. `part` is from 0 to 1.
    #[must_use]
    pub fn quantile(&self, part: f64) -> u64 {
        let mut rank = ((self.count() as f64 * part).ceil() as u64).max(1);
        let found = self.buckets.iter().find(|(_, count)| {
            let is_here = rank <= *count;
            rank = rank.saturating_sub(*count);
            is_here
        });
        found.map_or(0, |(value, _)| *value)
    }

    /// The values of several writers, in the same unit.
    #[must_use]
    pub fn merged<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let (mut buckets, mut sum) = (BTreeMap::<u64, u64>::new(), 0_u64);
        for one in all {
            one.buckets.iter().for_each(|&(value, count)| *buckets.entry(value).or_default() += count);
            sum = sum.saturating_add(one.sum);
        }
        Self { buckets: buckets.into_iter().collect(), sum }
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
    fn a_value_on_a_bound_counts_as_up_to_it() {
        let recorder = Recorder::default();
        [9, 10, 11, 100, 101].into_iter().for_each(|ms| recorder.record(ms * 1_000_000));
        let read = recorder.read();
        assert_eq!([10, 100].map(|ms| read.count_up_to(ms * 1_000_000)), [2, 4]);
        assert_eq!((read.count(), read.sum()), (5, 231_000_000));
    }

    fn recorded(values: impl IntoIterator<Item = u64>) -> Durations {
        let recorder = Recorder::default();
        values.into_iter().for_each(|one| recorder.record(one));
        recorder.read()
    }

    fn is_near(shown: u64, exact: u64) -> bool {
        (0.99 * exact as f64..=1.04 * exact as f64).contains(&(shown as f64))
    }

    #[test]
    fn quantiles_of_two_writers_are_merged_within_four_percent() {
        // A thousand values of 1,000 to 1,000,000, divided between two writers.
        let of = |odd: u64| recorded((1..=1000).filter(move |n| n % 2 == odd).map(|n| n * 1000));
        let merged = Durations::merged([&of(0), &of(1)]);
        assert_eq!((merged.count(), merged.sum()), (1000, 500_500_000));
        for (part, exact) in [(0.5, 500_000), (0.99, 990_000), (1.0, 1_000_000)] {
            assert!(is_near(merged.quantile(part), exact), "{part}: {}", merged.quantile(part));
        }
    }

    #[test]
    fn every_magnitude_is_shown_within_four_percent() {
        for shift in 0..40 {
            let value = 0xfe_dcba_9876 >> shift;
            let merged = Durations::merged([&recorded([value])]);
            assert!(is_near(merged.quantile(1.0), value), "{value} is shown as {}", merged.quantile(1.0));
        }
    }

    #[test]
    fn without_values_everything_is_zero() {
        let none = Durations::merged([]);
        assert_eq!(
            (none.count(), none.quantile(0.99), none.quantile(1.0), none.count_up_to(9)),
            (0, 0, 0, 0)
        );
    }

    #[test]
    fn cumulative_counts_end_with_what_is_within_the_last_bound() {
        let read = recorded([500, 1_500, 1_500, 3_000_000, 9_000_000_000]);
        let bounds = [1_000, 2_000, 2_000_000, 5_000_000, 100_000_000];
        assert_eq!(bounds.map(|bound| read.count_up_to(bound)), [1, 3, 3, 4, 4]);
        assert_eq!((read.count(), read.sum()), (5, 9_003_003_500));
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
