//! The order of picks in a Maglev table: exact, without comparing fractions.
//!
//! Pick number `n` of a class of weight `w` is at `(2 * n + 1) / (2 * w)` on a common time scale. So shares are rounded
//! to nearest, and a common factor of all weights changes nothing. Of two classes at the same time, the heavier one
//! comes first. All picks that a table can need are listed as words and sorted by distribution: with 1,000 different
//! weights a heap took four times as long as filling the table. Only [`fill`](super::fill) calls it.
//!
//! Invariant: picks are in the order of their exact fractions (tested against a model that compares them).

/// The backends of one weight, which pick together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Class {
    /// The weight, above 0.
    pub(super) weight: u16,
    /// The number of its backends.
    pub(super) members: u32,
}

/// The picks of a table, in order.
///
/// A pick is a word: the upper bits are its time in units of 2^-34, rounded down; the lower bits are the position of
/// its class. Times of different fractions are at least 2^-33 apart, because weights have 16 bits, so they differ when
/// rounded. Both fit into 64 bits: `n` classes have weights of at least `n * n / 2` in total, so time ends by
/// `2 * size / (n * n)`.
#[derive(Debug)]
pub(super) struct Order {
    picks: Vec<u64>,
    class_bits: u32,
}

const UNIT_BITS: u32 = 34;
/// The mean number of picks in each part that is sorted by comparison.
const SORTED_BY_COMPARISON: usize = 16;

impl Order {
    /// Enough picks to fill `size` slots. `classes` are sorted by descending weight.
    pub(super) fn new(classes: &[Class], size: u32) -> Self {
        let class_bits = classes.len().next_power_of_two().ilog2();
        let (members, weights) = classes.iter().fold((0, 0), |(members, weights), class| {
            let of_class = u64::from(class.members);
            (members + of_class, weights + of_class * u64::from(class.weight))
        });
        // Until time t, a class picks `weight * t` times, rounded to nearest: at most half a pick less.
        let wanted = u64::from(size) + members.div_ceil(2);
        let mut picks = Vec::new();
        for (at, class) in (0_u64..).zip(classes) {
            let weight = u64::from(class.weight);
            let count = weight * wanted / weights + 2;
            // The quotient and the remainder of the time, which grows by one whole unit divided by the weight.
            let (whole, part) = ((1 << UNIT_BITS) / weight, (1 << UNIT_BITS) % weight);
            let half = 1 << (UNIT_BITS - 1);
            let (mut time, mut rest) = (half / weight, half % weight);
            picks.extend((0..count).map(|_| {
                let pick = time << class_bits | at;
                let carry = u64::from(rest + part >= weight);
                time += whole + carry;
                rest = rest + part - weight * carry;
                pick
            }));
        }
        let picks = if classes.len() > 1 { sorted(&picks) } else { picks };
        Self { picks, class_bits }
    }

    /// The position of the class of each pick.
    pub(super) fn classes(&self) -> impl Iterator<Item = usize> {
        let mask = (1 << self.class_bits) - 1;
        self.picks.iter().map(move |pick| (pick & mask) as usize)
    }
}

/// Sorts words: distributes them by their upper bits, which are spread nearly evenly, then sorts each part.
fn sorted(words: &[u64]) -> Vec<u64> {
    let most = words.iter().copied().max().unwrap_or_default();
    let parts = (words.len() / SORTED_BY_COMPARISON).next_power_of_two();
    let shift = (u64::BITS - most.leading_zeros()).saturating_sub(parts.ilog2());
    let part = |word: u64| (word >> shift) as usize;
    // The index at which the next word of each part is written; after the last word, the end of the part.
    let mut next_of = vec![0_u32; part(most) + 2];
    words.iter().for_each(|&word| next_of[part(word) + 1] += 1);
    for at in 1..next_of.len() {
        next_of[at] += next_of[at - 1];
    }
    let mut sorted = vec![0; words.len()];
    for &word in words {
        let next = &mut next_of[part(word)];
        sorted[*next as usize] = word;
        *next += 1;
    }
    let mut from = 0;
    for &to in &next_of {
        sorted[from..to as usize].sort_unstable();
        from = to as usize;
    }
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cmp::Ordering;
    use std::collections::BTreeMap;
    use tidegate_spec::limits::MAGLEV_SLOTS_MAX;

    fn classes(weights: &[u16]) -> Vec<Class> {
        let mut members = BTreeMap::new();
        weights.iter().for_each(|&weight| *members.entry(weight).or_insert(0) += 1);
        members.into_iter().rev().map(|(weight, members)| Class { weight, members }).collect()
    }

    /// The class whose next pick is the earliest, as long as slots are free.
    fn plain(classes: &[Class], size: u32) -> Vec<usize> {
        let (mut picks, mut order, mut left) = (vec![0_u64; classes.len()], Vec::new(), i64::from(size));
        while left > 0 {
            let earlier = |&a: &usize, &b: &usize| -> Ordering {
                let time = |class: usize, other: usize| {
                    u128::from(2 * picks[class] + 1) * u128::from(classes[other].weight)
                };
                time(a, b).cmp(&time(b, a)).then(classes[b].weight.cmp(&classes[a].weight))
            };
            let next = (0..classes.len()).min_by(earlier).expect("a class");
            picks[next] += 1;
            left -= i64::from(classes[next].members);
            order.push(next);
        }
        order
    }

    fn assert_exact(weights: &[u16], size: u32) {
        let classes = classes(weights);
        let plain = plain(&classes, size);
        let order = Order::new(&classes, size);
        assert!(order.classes().count() >= plain.len(), "{weights:?} {size}");
        assert!(order.classes().zip(&plain).all(|(is, &plain)| is == plain), "{weights:?} {size}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn picks_are_in_the_order_of_exact_fractions(
            weights in proptest::collection::vec(prop_oneof![1_u16..12, 1_u16.., 65_500_u16..], 1..60),
            size in 2_u32..3_000,
        ) {
            assert_exact(&weights, size);
        }
    }

    #[test]
    fn the_largest_weights_and_tables_are_ordered_exactly() {
        assert_exact(&[1], MAGLEV_SLOTS_MAX);
        assert_exact(&[1, 2], MAGLEV_SLOTS_MAX);
        assert_exact(&[u16::MAX, u16::MAX - 1, 1], MAGLEV_SLOTS_MAX);
        let all: Vec<u16> = (u16::MAX - 500..=u16::MAX).collect();
        assert_exact(&all, 65_537);
    }

    #[test]
    fn as_many_classes_as_there_are_weights_fit_into_words() {
        let weights: Vec<u16> = (1..u16::MAX).collect();
        let classes = classes(&weights);
        let order = Order::new(&classes, MAGLEV_SLOTS_MAX);
        assert!(order.picks.is_sorted() && order.picks.len() >= MAGLEV_SLOTS_MAX as usize);
        assert_eq!(order.classes().next(), Some(0), "the heaviest is first");
    }
}
