//! Values from an independent program that implements the definition in `docs/selection.md`. Gateways must agree on
//! them: a change here moves connections when only some gateways are upgraded.

use super::*;

const HASHES: [u64; 6] =
    [0, u64::MAX, 0xd944_0146_8047_b96c, 0x279a_4933_d775_a07d, 0xbada_3ddb_cf75_a1b2, 0x50f8_8211_ace9_0903];

fn host(n: u8, weight: u16) -> Member {
    let identity = Identity::of_port(Addr::v4([10, 0, 0, n]), 80, 6);
    Member { identity, weight, owner: BackendId::new(n.into(), 0) }
}

fn chosen(members: &[Member]) -> Vec<(u16, u16, u16, usize)> {
    let rendezvous = build(members);
    let chosen_seat = |&hash: &u64| {
        let chosen_seat = rendezvous.chosen_seat(hash).unwrap();
        (chosen_seat.seat_map, chosen_seat.seat, chosen_seat.rank, chosen_seat.owner.index())
    };
    HASHES.iter().map(chosen_seat).collect()
}

#[test]
fn the_version_is_that_of_these_values() {
    assert_eq!(VERSION, 1, "a new version has its own golden values");
}

#[test]
fn identities_hash_as_defined() {
    let v6 = "2001:db8::10".parse::<std::net::Ipv6Addr>().unwrap();
    assert_eq!(Identity::of_port(Addr::v4([10, 0, 0, 1]), 80, 6).hash(), 0xf90f_8d1e_20a8_72c2);
    assert_eq!(Identity::of_port(v6.into(), 443, 17).hash(), 0x3c7f_ccfd_bc3a_7fa3);
    assert_eq!(Identity::of_address(Addr::v4([10, 0, 0, 1]), 3).hash(), 0x7f00_1c0b_2852_6245);
}

#[test]
fn three_backends_have_seats_and_are_chosen_as_defined() {
    let members = [host(1, 1), host(2, 2), host(3, 3)];
    let seats: Vec<_> =
        seats_of(&build(&members)).into_iter().map(|((_, seat), owner)| (seat, owner.index())).collect();
    assert_eq!(seats, [(432, 3), (1240, 2), (3844, 2), (4492, 3), (5358, 1), (5489, 3)]);
    let expected = [
        (0, 5358, 804, 1),
        (0, 1240, 589, 2),
        (0, 4492, 2930, 3),
        (0, 5489, 2543, 3),
        (0, 432, 1145, 3),
        (0, 432, 262, 3),
    ];
    assert_eq!(chosen(&members), expected);
}

#[test]
fn twelve_thousand_seats_fill_three_maps_as_defined() {
    let members = [host(1, 4000), host(2, 5000), host(3, 3000)];
    let in_map = |n| build(&members).seats().filter(|&(seat_map, ..)| seat_map == n).count();
    assert_eq!([0, 1, 2, 3].map(in_map), [7967, 4002, 31, 0]);
    let expected =
        [(0, 0, 0, 1), (0, 2119, 0, 3), (1, 6267, 0, 1), (1, 3779, 1, 1), (1, 5362, 0, 2), (0, 5154, 0, 1)];
    assert_eq!(chosen(&members), expected);
}

#[test]
fn the_steps_of_time_are_those_of_the_definition() {
    use super::exponential::STEPS;
    let weighted: u64 = (1..).zip(STEPS).map(|(n, step): (u64, u32)| n * u64::from(step)).sum();
    assert_eq!((STEPS[0], STEPS[1023], weighted), (7_994_992, 512, 0x40_2003_61fd));
}
