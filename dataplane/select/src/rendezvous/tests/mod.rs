//! Compares the seats and look-ups with a simple implementation of the definition, and tests the guarantees of the
//! scheme.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tidegate_structures::hash::mix;
use tidegate_wire::Addr;

use super::seat_maps::{Time, hash_of};
use super::seats::Seated;
use super::*;

mod golden;
mod promises;

/// A member by number, of weight 1.
fn member(n: u32) -> Member {
    let [_, a, b, c] = n.to_be_bytes();
    let identity = Identity::of_port(Addr::v4([10, a, b, c]), 80, 6);
    Member { identity, weight: 1, owner: BackendId::new(n as usize, 0) }
}

fn members(count: u32) -> Vec<Member> {
    (0..count).map(member).collect()
}

fn weighted(weights: &[u16]) -> Vec<Member> {
    (0..).zip(weights).map(|(n, &weight)| Member { weight, ..member(n) }).collect()
}

fn build(members: &[Member]) -> Rendezvous {
    let built = Rendezvous::build(members);
    assert_eq!(built.divisor, 1);
    built.rendezvous
}

/// The seats by the definition: each token proposes, a seat keeps the highest token, and the loser proposes again.
fn proposals(members: &[Member]) -> BTreeMap<(usize, u16), BackendId> {
    let mut seats = BTreeMap::<(usize, u16), (u64, Identity, u64, BackendId)>::new();
    for member in members {
        for k in 0..u64::from(member.weight) {
            let token = mix(member.identity.hash().wrapping_add(k.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
            let mut proposal = Some((token, member.identity, 0, member.owner));
            while let Some((token, identity, n, owner)) = proposal {
                let seat = (n as usize / 4, (mix(token.wrapping_add(n)) >> 51) as u16);
                let mine = (token, identity, n, owner);
                proposal = match seats.get(&seat).copied() {
                    None => {
                        seats.insert(seat, mine);
                        None
                    }
                    Some(other) if (other.0, identity) > (token, other.1) => {
                        Some((token, identity, n + 1, owner))
                    }
                    Some(other) => {
                        seats.insert(seat, mine);
                        Some((other.0, other.1, other.2 + 1, other.3))
                    }
                };
            }
        }
    }
    seats.into_iter().map(|(seat, (.., owner))| (seat, owner)).collect()
}

fn seats_of(rendezvous: &Rendezvous) -> BTreeMap<(usize, u16), BackendId> {
    rendezvous.seats().map(|(seat_map, seat, owner)| ((seat_map.into(), seat), owner)).collect()
}

/// The result by the definition: the earliest of all seats.
fn earliest(seats: &BTreeMap<(usize, u16), BackendId>, hash: u64) -> Option<ChosenSeat> {
    let mut first = BTreeMap::<usize, ChosenSeat>::new();
    for (&(seat_map, seat), &owner) in seats {
        let n = u16::try_from(seat_map).unwrap();
        let rank = Order::new(hash_of(hash, n)).rank(seat);
        let chosen_seat = ChosenSeat { seat_map: n, seat, rank, owner };
        let seats = first.entry(seat_map).or_insert(chosen_seat);
        if rank < seats.rank {
            *seats = chosen_seat;
        }
    }
    let time = |chosen_seat: &ChosenSeat| Time::of(hash_of(hash, chosen_seat.seat_map), chosen_seat.rank);
    first
        .into_values()
        .min_by_key(|chosen_seat| (time(chosen_seat), std::cmp::Reverse(hash_of(hash, chosen_seat.seat_map))))
}

fn hashes(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(|n| mix(n ^ 0x5EED << 32))
}

#[test]
fn scan_and_walk_find_the_smallest_rank_at_every_size() {
    for count in (1..=300).chain([511, 512, 1_000, 1_500]) {
        let seated: Seated = seats::assign(&members(count), 1).remove(0);
        let seat_map = SeatMap::new(&seated);
        let whole = build(&members(count));
        for hash in hashes(40) {
            let order = Order::new(hash);
            let (rank, seat, owner) = seated
                .iter()
                .map(|&(seat, owner)| (order.rank(seat), seat, owner))
                .min()
                .expect("there is a seat");
            assert_eq!(seat_map.first(&order), Some((rank, seat)), "{count} seats, {hash:#x}");
            assert_eq!(seat_map.owner(seat), owner);
            assert_eq!(whole.owner(hash), Some(owner), "{count} seats, {hash:#x}");
            assert_eq!(whole.chosen_seat(hash), Some(ChosenSeat { seat_map: 0, seat, rank, owner }));
        }
    }
}

#[test]
fn a_scan_of_any_width_answers_like_a_walk() {
    for count in 1..=SCAN_SEATS_MAX as u32 {
        let seated: Seated = seats::assign(&members(count), 1).remove(0);
        let (scan, seat_map) = (Scan::<8>::new(&seated), SeatMap::new(&seated));
        assert_eq!(scan.seats(), seated);
        for hash in hashes(20) {
            let order = Order::new(hash);
            let walked = seat_map.first(&order).map(|(_, seat)| seat_map.owner(seat));
            assert_eq!(Some(scan.owner(&order)), walked, "{count} seats, {hash:#x}");
        }
    }
}

#[test]
fn owner_where_ignores_unwanted_members() {
    let sizes = [vec![1; 2], vec![1; 10], vec![1; 70], vec![1; 300], vec![3, 1, 200], vec![600; 16]];
    for weights in sizes {
        let all = weighted(&weights);
        let whole = build(&all);
        let gone = |owner: BackendId| owner.index() % 3 == 1;
        let rest: Vec<_> = all.iter().filter(|member| !gone(member.owner)).copied().collect();
        let without = build(&rest);
        for hash in hashes(60) {
            assert_eq!(whole.owner_where(hash, |_| true), whole.owner(hash), "{} members", all.len());
            let found = whole.owner_where(hash, |owner| !gone(owner));
            // Members that leave free seats that others tried before, so a few flows have other owners.
            assert!(found.is_some_and(|owner| !gone(owner)), "{} members", all.len());
            if weights.len() <= 10 {
                assert_eq!(found, without.owner(hash), "{} members", all.len());
            }
        }
        assert_eq!(whole.owner_where(7, |_| false), None);
    }
}

#[test]
fn several_seat_maps_choose_the_earliest_time() {
    for weights in [vec![600_u16; 10], vec![256, 512, 768, 256, 512, 768, 4_000, 4_000], vec![u16::MAX, 1]] {
        let rendezvous = build(&weighted(&weights));
        let seats = seats_of(&rendezvous);
        assert!(rendezvous.seat_maps() > 1, "{weights:?}");
        assert_eq!(seats.len(), weights.iter().map(|&w| usize::from(w)).sum::<usize>());
        for hash in hashes(30) {
            assert_eq!(rendezvous.chosen_seat(hash), earliest(&seats, hash), "{weights:?}, {hash:#x}");
            assert_eq!(
                rendezvous.owner(hash),
                rendezvous.chosen_seat(hash).map(|chosen_seat| chosen_seat.owner)
            );
        }
    }
}

#[test]
fn an_empty_set_has_no_seat() {
    for members in [vec![], weighted(&[0, 0])] {
        let rendezvous = build(&members);
        assert!(rendezvous.is_empty());
        assert_eq!((rendezvous.owner(7), rendezvous.chosen_seat(7), rendezvous.seat_maps()), (None, None, 0));
    }
}

#[test]
fn members_of_one_address_have_seats_of_their_own() {
    let address = Addr::v4([10, 0, 0, 1]);
    let named = |n: u16, identity| Member { identity, weight: 1, owner: BackendId::new(n.into(), 0) };
    let by_port: Vec<_> = (0..300).map(|n| named(n, Identity::of_port(address, n + 1, 6))).collect();
    let by_number: Vec<_> = (0..300).map(|n| named(n, Identity::of_address(address, u32::from(n)))).collect();
    for members in [by_port, by_number] {
        let seats = seats_of(&build(&members));
        assert_eq!(seats.values().collect::<BTreeSet<_>>().len(), 300);
        assert!(seats.keys().all(|&(seat_map, _)| seat_map == 0), "one map is enough");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn seats_are_those_of_proposals_whatever_the_order_of_members(
        weights in proptest::collection::vec(0_u16..400, 0..40),
        shuffle in any::<u64>(),
    ) {
        let mut members = weighted(&weights);
        let seats = seats_of(&build(&members));
        prop_assert_eq!(&seats, &proposals(&members));
        members.sort_by_key(|member| mix(u64::from(member.owner.raw()) ^ shuffle));
        prop_assert_eq!(&seats, &seats_of(&build(&members)));
        prop_assert_eq!(&seats, &proposals(&members));
    }

    #[test]
    fn the_result_is_that_of_the_definition(
        weights in proptest::collection::vec(0_u16..1_000, 0..30),
        flows in proptest::collection::vec(any::<u64>(), 20),
    ) {
        let rendezvous = build(&weighted(&weights));
        let seats = seats_of(&rendezvous);
        for hash in flows {
            prop_assert_eq!(rendezvous.chosen_seat(hash), earliest(&seats, hash));
            prop_assert_eq!(rendezvous.owner(hash), rendezvous.chosen_seat(hash).map(|chosen_seat| chosen_seat.owner));
        }
    }
}

#[test]
fn members_of_equal_hash_have_separate_seats() {
    // No two identities with equal hashes are known, so the test uses the same identity twice.
    let duplicate = Member { owner: BackendId::new(9, 0), ..member(0) };
    let seats = seats_of(&build(&[member(0), duplicate]));
    assert_eq!(seats.len(), 2);
}

#[test]
fn the_most_seats_fit_the_maps_and_more_are_divided() {
    let max = u32::try_from(tidegate_spec::limits::RENDEZVOUS_SEATS_MAX).unwrap();
    let fullest = weighted(&[50_000; 10]);
    let built = Rendezvous::build(&fullest);
    assert_eq!((built.divisor, built.rendezvous.seats().count()), (1, max as usize));
    assert!(built.rendezvous.seat_maps() <= tidegate_spec::limits::RENDEZVOUS_SEAT_MAPS_MAX);

    let mut more = vec![u16::MAX; 30];
    more.push(1);
    let built = Rendezvous::build(&weighted(&more));
    assert_eq!(built.divisor, 4);
    let seats = seats_of(&built.rendezvous);
    assert!(seats.len() <= max as usize);
    let of = |n: usize| seats.values().filter(|owner| owner.index() == n).count();
    assert_eq!((of(0), of(29), of(30)), (16_384, 16_384, 1), "the lightest keeps a seat");
}
