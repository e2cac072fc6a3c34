//! How many new flows each source prefix may begin per second: `protection.newConnections`.
//!
//! All workers share one table of token buckets, which only packets that begin a flow read. So the limit of a source
//! doesn't depend on how RSS distributes its connections. The table has a fixed size, [`SOURCE_RATES_MAX`] prefixes. A
//! secret hash selects a set of four entries for a prefix. If others use all four, the new prefix replaces the one that
//! has used least of its rate; a prefix without an entry has its full burst. So a flood from many prefixes neither
//! displaces the prefix that floods most nor causes refusals for other prefixes.
//!
//! Concurrent workers count all flows of one prefix. Only if two prefixes are inserted into one entry concurrently, one
//! flow too few or too many may be counted.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_spec::SourceRate;
use tidegate_spec::limits::SOURCE_RATES_MAX;
use tidegate_spec::now::Now;
use tidegate_spec::token_bucket::Rate;
use tidegate_structures::hash::keyed_hash;
use tidegate_wire::Addr;

/// Prefixes that share a cache line.
const PREFIXES_PER_BUCKET: usize = 4;
const BUCKETS: usize = SOURCE_RATES_MAX / PREFIXES_PER_BUCKET;
const _: () = assert!(BUCKETS.is_power_of_two());

/// Four prefixes: their hashes (0 for none), and the times up to which their tokens are spent.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Bucket {
    tags: [AtomicU64; PREFIXES_PER_BUCKET],
    spent: [AtomicU64; PREFIXES_PER_BUCKET],
}

/// The rate, and the token buckets that all workers share.
#[derive(Debug)]
pub struct SourceRates {
    pub(crate) rate: SourceRate,
    buckets: Box<[Bucket]>,
}

impl SourceRates {
    /// A table for this rate.
    pub fn new(rate: SourceRate) -> Self {
        Self { rate, buckets: std::iter::repeat_with(Bucket::default).take(BUCKETS).collect() }
    }

    /// Whether a source may begin one more flow; if so, it is counted. All workers need the same `secret`.
    pub fn take(&self, source: &Addr, secret: u64, now: Now) -> bool {
        let (prefix, family) = self.rate.prefix(source);
        let tag = keyed_hash(prefix, secret ^ family) | 1;
        // The upper bits keep the index below the number of sets.
        let bucket = &self.buckets[(tag >> (u64::BITS - BUCKETS.ilog2())) as usize];
        let rate = Rate { per_second: self.rate.per_second, burst: self.rate.burst };
        rate.take_shared(&bucket.spent[bucket.entry(tag)], now)
    }
}

impl Bucket {
    /// The entry of a prefix. A prefix without an entry replaces the one that has spent least.
    fn entry(&self, tag: u64) -> usize {
        if let Some(known) = self.tags.iter().position(|known| known.load(Ordering::Relaxed) == tag) {
            return known;
        }
        let spent = |entry: &usize| self.spent[*entry].load(Ordering::Relaxed);
        let least = (0..PREFIXES_PER_BUCKET).min_by_key(spent).unwrap_or(0);
        self.tags[least].store(tag, Ordering::Relaxed);
        self.spent[least].store(0, Ordering::Relaxed);
        least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: SourceRate = SourceRate { per_second: 10, burst: 20, v4_len: 24, v6_len: 56 };
    const NOW: Now = Now(1_000_000_000_000);

    fn passed(rates: &SourceRates, source: &Addr, now: Now) -> usize {
        (0..100).filter(|_| rates.take(source, 7, now)).count()
    }

    fn addr(text: &str) -> Addr {
        text.parse::<std::net::IpAddr>().unwrap().into()
    }

    #[test]
    fn each_prefix_has_its_own_burst_and_rate() {
        let rates = SourceRates::new(RATE);
        assert_eq!(passed(&rates, &addr("198.51.100.7"), NOW), 20);
        assert_eq!(passed(&rates, &addr("198.51.100.200"), NOW), 0, "of the same /24");
        assert_eq!(passed(&rates, &addr("198.51.101.7"), NOW), 20);
        assert_eq!(passed(&rates, &addr("2001:db8:0:100::1"), NOW), 20);
        assert_eq!(passed(&rates, &addr("2001:db8:0:1ff::2"), NOW), 0, "of the same /56");
        assert_eq!(passed(&rates, &addr("2001:db8:0:200::1"), NOW), 20);
        let later = Now(NOW.0 + 500_000_000);
        assert_eq!(passed(&rates, &addr("198.51.100.7"), later), 5);
        assert_eq!(passed(&rates, &addr("198.51.100.7"), Now(NOW.0 + 3_600_000_000_000)), 20);
    }

    #[test]
    fn prefixes_have_any_length_down_to_the_whole_family() {
        for (v4_len, v6_len, v4_same, v6_same) in
            [(32, 64, false, false), (0, 0, true, true), (8, 32, true, true)]
        {
            let rates = SourceRates::new(SourceRate { v4_len, v6_len, ..RATE });
            passed(&rates, &addr("10.1.2.3"), NOW);
            passed(&rates, &addr("2001:db8:1::1"), NOW);
            assert_eq!(passed(&rates, &addr("10.200.2.3"), NOW) == 0, v4_same, "/{v4_len}");
            assert_eq!(passed(&rates, &addr("2001:db8:2::1"), NOW) == 0, v6_same, "/{v6_len}");
            assert_eq!(passed(&rates, &addr("2001:db8:1::2"), NOW), 0, "one /64 is one prefix");
        }
    }

    #[test]
    fn a_flood_of_prefixes_neither_displaces_the_worst_nor_refuses_others() {
        let rates = SourceRates::new(RATE);
        let flooder = addr("198.51.100.7");
        let (mut now, mut flooded, mut others) = (NOW, 0, 0);
        passed(&rates, &flooder, now);
        // Ten times as many prefixes as entries, in two seconds.
        for n in 0..10 * SOURCE_RATES_MAX as u64 {
            now = Now(NOW.0 + n * 2_000_000_000 / (10 * SOURCE_RATES_MAX as u64));
            let [_, _, _, _, a, b, c, d] = (0x0100_0000_u64 + (n << 8)).to_be_bytes();
            others += usize::from(rates.take(&Addr::v4([a, b, c, d]), 7, now));
            flooded += usize::from(rates.take(&flooder, 7, now));
        }
        assert_eq!(others, 10 * SOURCE_RATES_MAX, "each has begun one flow");
        assert!((19..=21).contains(&flooded), "{flooded}: its rate for two seconds");
    }

    #[test]
    fn two_workers_admit_the_burst_of_a_prefix_once() {
        let rates = SourceRates::new(SourceRate { burst: 10_000, ..RATE });
        // The prefix is inserted before the workers start.
        assert!(rates.take(&addr("198.51.100.7"), 7, NOW));
        let count = || (0..10_000).filter(|_| rates.take(&addr("198.51.100.7"), 7, NOW)).count();
        let (one, other) = std::thread::scope(|scope| {
            let (one, other) = (scope.spawn(count), scope.spawn(count));
            (one.join().unwrap(), other.join().unwrap())
        });
        assert_eq!(one + other, 9_999);
    }

    #[test]
    fn the_rate_applies_at_both_ends_of_time() {
        let rates = SourceRates::new(RATE);
        for now in [Now(0), Now(u64::MAX), Now(5)] {
            assert!(passed(&rates, &addr("198.51.100.7"), now) <= 20);
        }
    }
}
