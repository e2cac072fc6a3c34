//! The guarantees of the scheme: minimal moves, even shares, weights.

use super::*;

/// Flows by owner before and after a change.
fn moves(before: &Rendezvous, after: &Rendezvous, flows: u64) -> BTreeMap<(BackendId, BackendId), u64> {
    let mut counts = BTreeMap::new();
    for hash in hashes(flows) {
        let pair = (before.owner(hash).unwrap(), after.owner(hash).unwrap());
        if pair.0 != pair.1 {
            *counts.entry(pair).or_default() += 1;
        }
    }
    counts
}

#[test]
fn one_more_and_one_less_move_nothing_else_at_every_size_up_to_300() {
    const FLOWS: u64 = 1_500;
    let (mut moved, mut due, mut between_others, mut collisions) = (0, 0.0, 0, 0);
    for count in 1..=300 {
        let (few, many) = (build(&members(count)), build(&members(count + 1)));
        let newcomer = BackendId::new(count as usize, 0);
        // Swapping the two sets is the step down.
        let moves = moves(&few, &many, FLOWS);
        let others: u64 = moves.iter().filter(|((_, to), _)| *to != newcomer).map(|(_, n)| n).sum();
        let (before, after) = (seats_of(&few), seats_of(&many));
        let displaced = before.iter().filter(|(seat, owner)| after.get(seat) != Some(owner)).count();
        assert!(displaced > 0 || others == 0, "{count} + 1: {others} flows moved between backends that stay");
        assert!(displaced <= 2, "{count} + 1: {displaced} seats changed hands");
        collisions += usize::from(displaced > 0);
        between_others += others;
        moved += moves.values().sum::<u64>();
        due += FLOWS as f64 / f64::from(count + 1);
    }
    let all = FLOWS * 300;
    println!(
        "{moved} of {all} moved, {due:.0} due, {between_others} between others, {collisions} collisions"
    );
    assert!((moved as f64 - due).abs() < 4.0 * due.sqrt(), "{moved} moved, {due} are due");
    assert!(collisions < 15, "{collisions} of 300 steps displaced a seat");
    assert!(between_others * 10_000 < all * 3, "{between_others} of {all} moved between backends that stay");
}

#[test]
fn a_rolling_update_moves_flows_to_newcomers_only() {
    let mut set: Vec<Member> = members(10);
    let mut now = build(&set);
    for n in 0..10 {
        set.push(member(100 + n));
        let grown = build(&set);
        let newcomer = BackendId::new(100 + n as usize, 0);
        assert!(moves(&now, &grown, 4_000).keys().all(|&(_, to)| to == newcomer));
        let leaver = set.remove(0).owner;
        now = build(&set);
        assert!(moves(&grown, &now, 4_000).keys().all(|&(from, _)| from == leaver));
    }
    assert_eq!(seats_of(&now), seats_of(&build(&(100..110).map(member).collect::<Vec<_>>())));
}

/// The number of flows of each member, in the order of owners.
fn shares(rendezvous: &Rendezvous, count: usize, flows: u64) -> Vec<u64> {
    let mut shares = vec![0; count];
    for hash in hashes(flows) {
        shares[rendezvous.owner(hash).unwrap().index()] += 1;
    }
    shares
}

/// The deviation of shares from the weights, in standard deviations of the chi-squared distribution.
fn unevenness(weights: &[u16], flows: u64) -> f64 {
    let shares = shares(&build(&weighted(weights)), weights.len(), flows);
    let sum: f64 = weights.iter().map(|&w| f64::from(w)).sum();
    let due = |weight: u16| flows as f64 * f64::from(weight) / sum;
    let chi: f64 = shares.iter().zip(weights).map(|(&n, &w)| (n as f64 - due(w)).powi(2) / due(w)).sum();
    let freedom = weights.len() as f64 - 1.0;
    (chi - freedom) / (2.0 * freedom).sqrt()
}

#[test]
fn shares_are_even_within_sampling() {
    for count in [2, 3, 5, 10, 16, 17, 50, 100, 193, 300] {
        let off = unevenness(&vec![1; count], 200_000);
        println!("{count} members: {off:.2} standard deviations");
        assert!(off < 4.5, "{count} members: {off} standard deviations");
    }
}

#[test]
fn shares_follow_weights_within_sampling() {
    for weights in
        [vec![1, 2, 3], [1, 2, 3].repeat(10), vec![1, 100], vec![20, 21, 22], [256, 512, 768].repeat(7)]
    {
        let off = unevenness(&weights, 200_000);
        println!("{weights:?}: {off:.2} standard deviations");
        assert!(off < 4.5, "{weights:?}: {off} standard deviations");
    }
}

#[test]
fn the_flows_of_a_backend_that_leaves_are_distributed_evenly() {
    let all = build(&members(11));
    let rest = build(&members(10));
    let gone = BackendId::new(10, 0);
    let moves = moves(&all, &rest, 200_000);
    assert!(moves.keys().all(|&(from, _)| from == gone));
    let mean = moves.values().sum::<u64>() as f64 / 10.0;
    for (&(_, to), &count) in &moves {
        assert!((count as f64 - mean).abs() < 4.5 * mean.sqrt(), "{to:?} got {count} of {mean} due");
    }
}

#[test]
fn one_more_token_takes_its_share_and_no_other() {
    let mut weights = vec![20_u16; 11];
    let before = build(&weighted(&weights));
    weights[4] += 1;
    let after = build(&weighted(&weights));
    let (old, new) = (seats_of(&before), seats_of(&after));
    let displaced = old.iter().filter(|(seat, owner)| new.get(seat) != Some(owner)).count();
    assert!(displaced <= 1);
    let grown = BackendId::new(4, 0);
    let moves = moves(&before, &after, 100_000);
    let to_grown: u64 = moves.iter().filter(|((_, to), _)| *to == grown).map(|(_, n)| n).sum();
    let due = 100_000.0 / 221.0;
    assert!((to_grown as f64 - due).abs() < 4.5 * f64::sqrt(due), "{to_grown} moved, {due} are due");
    let others: u64 = moves.iter().filter(|((_, to), _)| *to != grown).map(|(_, n)| n).sum();
    assert!(displaced > 0 || others == 0);
}

#[test]
fn the_second_seat_map_moves_no_other_flow() {
    // More members never use fewer maps, so bisection finds the largest size with one map.
    let (mut count, mut too_many) = (300, 4_000);
    while too_many - count > 1 {
        let middle = (count + too_many) / 2;
        let fits = build(&members(middle)).seat_maps() == 1;
        *if fits { &mut count } else { &mut too_many } = middle;
    }
    let (before, after) = (build(&members(count)), build(&members(count + 1)));
    assert_eq!((before.seat_maps(), after.seat_maps()), (1, 2));
    let moved: u64 = moves(&before, &after, 100_000).values().sum();
    println!("a second seat map at {} backends: {moved} of 100000 moved", count + 1);
    let due = 100_000.0 / f64::from(count + 1);
    assert!((moved as f64) < due + 4.5 * due.sqrt() + 60.0, "{moved} moved, {due} are due");
}
