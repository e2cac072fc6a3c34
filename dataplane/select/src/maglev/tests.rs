//! Tests of Maglev tables: balance, churn, weights, order and sharing.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use tidegate_spec::limits::MAGLEV_SLOTS_MAX;
use tidegate_wire::Addr;

use super::*;

fn members(weights: &[u16]) -> Vec<Member> {
    let member = |(n, &weight): (usize, &u16)| {
        let n = u16::try_from(n).unwrap().to_be_bytes();
        Member { address: Addr::v4([10, 0, n[0], n[1]]), weight }
    };
    weights.iter().enumerate().map(member).collect()
}

fn equal(count: usize) -> Vec<Member> {
    members(&vec![1; count])
}

/// The ratio of the largest to the average share of a table, and the percentage of slots that change their owner when
/// backend `gone` is removed: of all slots, and of the slots of remaining backends.
fn balance_and_churn(count: usize, size: u32, gone: usize) -> (f64, f64, f64) {
    let mut members = equal(count);
    let before = build(&members, size);
    let largest = *shares(&before, count).iter().max().unwrap();
    members[gone].weight = 0;
    let after = build(&members, size);
    let changed = |from_live: bool| {
        let moved = |(was, is): &(&u16, &u16)| was != is && (!from_live || usize::from(**was) != gone);
        before.iter().zip(after.iter()).filter(moved).count() as f64 / f64::from(size)
    };
    (f64::from(largest) / (f64::from(size) / count as f64), changed(false), changed(true))
}

#[test]
fn balance_and_churn_are_those_of_the_design() {
    let (balance, moved, from_live) = balance_and_churn(100, 65_537, 42);
    assert!(balance < 1.0015, "balance {balance}");
    assert!(moved < 0.020 && from_live < 0.010, "removing one of 100 moves {moved}, {from_live} from others");
    let (balance, moved, from_live) = balance_and_churn(1_000, 65_537, 42);
    assert!(balance < 1.0072, "balance {balance}");
    assert!(
        moved < 0.010 && from_live < 0.009,
        "removing one of 1000 moves {moved}, {from_live} from others"
    );
    println!("1000 backends, 65537 slots: {balance:.4} {moved:.4} {from_live:.4}");
}

#[test]
fn primes_are_distinguished_from_composites() {
    let primes: Vec<u32> = (0..60).filter(|&n| is_prime(n)).collect();
    assert_eq!(primes, [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59]);
    assert!(!is_prime(65_535) && is_prime(4_294_967_291) && !is_prime(u32::MAX));
}

#[test]
fn a_backend_without_weight_has_a_position_and_no_slot() {
    let table = build(&members(&[1, 0, 1]), 1_009);
    let shares = shares(&table, 3);
    assert_eq!((shares[1], shares[0] + shares[2]), (0, 1_009));
    assert!(build(&members(&[0, 0]), 1_009).is_empty());
    assert!(build(&[], 1_009).is_empty());
}

#[test]
fn a_backend_that_drains_leaves_the_positions_of_the_others() {
    let all = build(&members(&[1, 1, 1, 1]), 4_093);
    let drained = build(&members(&[1, 0, 1, 1]), 4_093);
    let kept = all.iter().zip(drained.iter()).filter(|(was, is)| **was != 1 && was == is).count();
    assert!(kept > 3_000, "{kept} of 3069 slots stay");
}

#[test]
fn equal_addresses_walk_differently() {
    let address = Addr::v4([10, 0, 0, 1]);
    let table = build(&[Member { address, weight: 1 }; 3], 2_039);
    assert!(shares(&table, 3).iter().all(|&share| (679..=680).contains(&share)));
}

#[test]
fn a_tiny_table_fills() {
    assert_eq!(*build(&equal(1), 2), [0, 0]);
    let table = build(&equal(5), 2);
    assert!(table.iter().all(|&position| position < 5) && table[0] != table[1]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn weights_are_kept_within_the_stated_bound(weights in proptest::collection::vec(0_u16..200, 1..60)) {
        let size = 32_749;
        let sum: f64 = weights.iter().map(|&w| f64::from(w)).sum();
        prop_assume!(sum > 0.0);
        let taking_part = weights.iter().filter(|&&w| w > 0).count() as f64;
        let shares = shares(&build(&members(&weights), size), weights.len());
        prop_assert_eq!(shares.iter().sum::<u32>(), size);
        for (&share, &weight) in shares.iter().zip(&weights) {
            let fair = f64::from(size) * f64::from(weight) / sum;
            let bound = 1.0 + taking_part * f64::from(weight) / sum;
            prop_assert!((f64::from(share) - fair).abs() <= bound, "weight {} has {}, fair is {}", weight, share, fair);
        }
    }

    #[test]
    fn a_common_factor_of_all_weights_changes_nothing(weights in proptest::collection::vec(0_u16..50, 1..20), factor in 1_u16..1000) {
        let scaled: Vec<u16> = weights.iter().map(|weight| weight * factor).collect();
        prop_assert_eq!(build(&members(&weights), 2_039), build(&members(&scaled), 2_039));
        let tables = Tables::default();
        let first = tables.table(members(&weights), 2_039);
        let second = tables.table(members(&scaled), 2_039);
        prop_assert!(Arc::ptr_eq(&first, &second));
    }

    #[test]
    fn equal_weights_share_within_one_slot(count in 1_usize..300, size in 0_usize..5) {
        let shares = shares(&build(&equal(count), [1_009, 2_039, 4_093, 8_191, 16_381][size]), count);
        prop_assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
    }
}

#[test]
fn the_table_is_that_of_the_paper() {
    for (backends, size) in
        [(1, 2), (3, 3), (5, 13), (7, 1_009), (60, 1_009), (300, 2_039), (1_009, 1_009), (40, 65_537)]
    {
        let members = equal(backends);
        assert_eq!(*build(&members, size), paper(&members, size), "{backends} backends, {size} slots");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_weighted_table_is_that_of_a_plain_loop(
        weights in proptest::collection::vec(prop_oneof![0_u16..4, 0_u16..100, any::<u16>()], 1..80),
        size in prop_oneof![Just(2_u32), Just(13), Just(101), Just(1_009), Just(4_093)],
    ) {
        let members = members(&weights);
        prop_assert_eq!(&*build(&members, size), &*plain(&members, size));
    }
}

/// The loop of the paper with weights: the next pick is always the earliest by exact fractions, and a walk tries one
/// slot after the other.
fn plain(members: &[Member], size: u32) -> Vec<u16> {
    let hashes = |member: &Member| tidegate_structures::hash::identity_hashes(&member.address, 0);
    let scale = tidegate_structures::hash::scale;
    let mut walks: Vec<(u64, u64)> = members
        .iter()
        .map(hashes)
        .map(|(at, step)| (scale(at, size).into(), u64::from(scale(step, size - 1)) + 1))
        .collect();
    let (mut owners, mut picks) = (vec![NO_BACKEND; size as usize], vec![0_u64; members.len()]);
    if members.iter().all(|member| member.weight == 0) {
        return Vec::new();
    }
    for _ in 0..size {
        let earlier = |&a: &usize, &b: &usize| {
            let [of_a, of_b] = [a, b].map(|at| u64::from(members[at].weight));
            let (time_a, time_b) = ((2 * picks[a] + 1) * of_b, (2 * picks[b] + 1) * of_a);
            time_a.cmp(&time_b).then(of_b.cmp(&of_a)).then(a.cmp(&b))
        };
        let takes_part = |&at: &usize| members[at].weight > 0;
        let next = (0..members.len()).filter(takes_part).min_by(earlier).expect("a member has a weight");
        picks[next] += 1;
        let (at, step) = &mut walks[next];
        while owners[*at as usize] != NO_BACKEND {
            *at = (*at + *step) % u64::from(size);
        }
        owners[*at as usize] = next as u16;
    }
    owners
}

/// The pseudo code of the paper for equal weights, with remainders.
fn paper(members: &[Member], size: u32) -> Vec<u16> {
    let scale = |hash, len| u64::from(tidegate_structures::hash::scale(hash, len));
    let walks: Vec<(u64, u64)> = members
        .iter()
        .map(|member| {
            let (offset, skip) = tidegate_structures::hash::identity_hashes(&member.address, 0);
            (scale(offset, size), scale(skip, size - 1) + 1)
        })
        .collect();
    let permutation = |i: usize, j: u64| ((walks[i].0 + j * walks[i].1) % u64::from(size)) as usize;
    let (mut entry, mut next, mut filled) = (vec![NO_BACKEND; size as usize], vec![0; members.len()], 0);
    loop {
        for (i, next) in next.iter_mut().enumerate() {
            let mut c = permutation(i, *next);
            while entry[c] != NO_BACKEND {
                *next += 1;
                c = permutation(i, *next);
            }
            entry[c] = i as u16;
            *next += 1;
            filled += 1;
            if filled == size {
                return entry;
            }
        }
    }
}

#[test]
fn a_golden_table_is_reproduced() {
    // These values are from an independent program. A change here moves connections when only some gateways are
    // upgraded.
    let table = build(&members(&[1, 2, 3]), 13);
    assert_eq!(*table, [2, 1, 2, 0, 2, 2, 1, 0, 1, 2, 2, 2, 1]);
}

#[test]
fn wildly_uneven_weights_cost_no_more_than_the_slots() {
    let mut weights = vec![1; 10_000];
    weights[17] = u16::MAX;
    let started = Instant::now();
    let table = build(&members(&weights), MAGLEV_SLOTS_MAX);
    println!("one of 65535 among 9999 of 1, {MAGLEV_SLOTS_MAX} slots: {:?}", started.elapsed());
    let share = f64::from(shares(&table, weights.len())[17]) / f64::from(MAGLEV_SLOTS_MAX);
    assert!((share - 65_535.0 / 75_534.0).abs() < 0.02, "share {share}");
}

#[test]
fn prints_how_long_tables_take() {
    for (backends, size) in [(10, 8_191), (100, 65_537), (1_000, 65_537), (1_000, 655_373), (10_000, 655_373)]
    {
        let members = equal(backends);
        let mut best = Duration::MAX;
        for _ in 0..5 {
            let started = Instant::now();
            let table = build(&members, size);
            best = best.min(started.elapsed());
            assert!(table.iter().all(|&position| usize::from(position) < backends));
        }
        println!("{backends} backends, {size} slots: {best:?}");
    }
}
