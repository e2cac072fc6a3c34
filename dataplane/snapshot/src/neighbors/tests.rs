//! Tests of allocation, concurrent reads and release of entries.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

fn addr(n: u32) -> Addr {
    Addr::v4(n.to_be_bytes())
}

fn mac(n: u64) -> MacAddr {
    mac_of(n)
}

#[test]
fn an_address_is_resolved_goes_stale_and_is_cleared() {
    let table = NeighborTable::with_capacity(4);
    let id = table.intern(0, addr(1)).unwrap();
    assert_eq!((table.mac(id), table.state(id)), (None, NeighborState::Unresolved));
    assert!(table.set_resolved(id, mac(0x0200_0000_0001)));
    assert_eq!(table.state(id), NeighborState::Resolved(mac(0x0200_0000_0001)));
    table.mark_stale(id);
    assert_eq!(table.state(id), NeighborState::Stale(mac(0x0200_0000_0001)));
    assert_eq!(table.mac(id), Some(mac(0x0200_0000_0001)));
    table.forget(id);
    assert_eq!(table.mac(id), None);
    table.mark_stale(id);
    assert_eq!(table.state(id), NeighborState::Unresolved);
}

#[test]
fn answers_do_not_replace_a_static_address() {
    let table = NeighborTable::with_capacity(4);
    let id = table.intern(0, addr(1)).unwrap();
    table.set_resolved(id, mac(1));
    table.set_static(id, mac(2));
    assert!(!table.set_resolved(id, mac(3)));
    table.forget(id);
    table.mark_stale(id);
    assert_eq!(table.state(id), NeighborState::Static(mac(2)));
    table.clear_static(id);
    assert_eq!(table.state(id), NeighborState::Unresolved);
    table.set_resolved(id, mac(4));
    table.clear_static(id);
    assert_eq!(table.mac(id), Some(mac(4)));
}

#[test]
fn the_all_zero_link_address_is_an_address() {
    let table = NeighborTable::with_capacity(1);
    let id = table.intern(0, addr(1)).unwrap();
    table.set_static(id, MacAddr::ZERO);
    assert_eq!(table.mac(id), Some(MacAddr::ZERO));
}

#[test]
fn a_full_table_refuses_the_next_and_keeps_the_others() {
    let table = NeighborTable::with_capacity(3);
    let ids: Vec<_> = (0..3).map(|n| table.intern(0, addr(n)).unwrap()).collect();
    assert_eq!(table.intern(0, addr(3)), Err(TableFull));
    assert_eq!(table.lookup(0, &addr(3)), None);
    assert_eq!(table.intern(0, addr(1)), Ok(ids[1]));
    assert_eq!(table.ids(), ids);
    let usage = Usage { next_hops: 0, next_hops_max: 3, on_demand: 3, on_demand_max: 3 };
    assert_eq!((table.len(), table.usage(), usage.is_full()), (3, usage, true));
}

#[test]
fn an_id_of_another_table_reads_as_unknown() {
    let (small, large) = (NeighborTable::with_capacity(1), NeighborTable::with_capacity(9));
    let ids: Vec<_> = (0..5).map(|n| large.intern(0, addr(n)).unwrap()).collect();
    let id = ids[4];
    assert_eq!((small.mac(id), small.key(id)), (None, None));
    assert!(!small.set_resolved(id, mac(1)));
    small.prefetch(id);
}

proptest! {
    #[test]
    fn finds_what_a_hash_map_finds(keys in proptest::collection::vec((0_u8..3, 0_u32..200), 0..200)) {
        let table = NeighborTable::with_capacity(256);
        let mut oracle = HashMap::new();
        for &(interface, n) in &keys {
            let id = table.intern(interface, addr(n)).unwrap();
            let next = oracle.len();
            prop_assert_eq!(id.index(), *oracle.entry((interface, n)).or_insert(next));
            prop_assert_eq!(table.key(id), Some((interface, addr(n))));
        }
        for interface in 0..3 {
            for n in 0..200 {
                let found = table.lookup(interface, &addr(n)).map(NeighborId::index);
                prop_assert_eq!(found, oracle.get(&(interface, n)).copied());
            }
        }
    }
}

#[test]
fn readers_during_writes_see_whole_keys_and_addresses() {
    // Each link address repeats the host number, so a torn read is detected.
    let link = |n: u32, flip: u64| mac((u64::from(n) << 24 | u64::from(n)) << 4 | flip);
    let (table, done) = (NeighborTable::with_capacity(4_000), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..4_000 {
                let id = table.intern(1, addr(n)).unwrap();
                for flip in 0..8 {
                    table.set_resolved(id, link(n, flip));
                }
                if n % 3 == 0 {
                    table.forget(id);
                }
            }
            done.store(true, Release);
        });
        scope.spawn(|| {
            let mut seen = 0;
            while !done.load(Acquire) || seen == 0 {
                for n in 0..4_000 {
                    let Some(id) = table.lookup(1, &addr(n)) else { continue };
                    assert_eq!(table.key(id), Some((1, addr(n))));
                    if let Some(found) = table.mac(id) {
                        assert!((0..8).any(|flip| found == link(n, flip)), "{found} for host {n}");
                        seen += 1;
                    }
                }
            }
        });
    });
    for n in 0..4_000 {
        let id = table.lookup(1, &addr(n)).unwrap();
        assert_eq!(table.mac(id), (n % 3 != 0).then(|| link(n, 7)));
    }
}

#[test]
fn an_unused_next_hop_releases_its_entry_and_its_address() {
    let table = NeighborTable::with_capacity(2);
    for n in 0..100_000 {
        let id = table.intern(0, addr(n)).expect("the others have been released");
        assert_eq!(table.mac(id), None, "the address of the previous neighbour is cleared");
        table.set_resolved(id, mac(u64::from(n)));
        assert_eq!(table.resolve(0, &addr(n)), Some(mac(u64::from(n))));
        table.release(0, &addr(n));
        assert_eq!((table.lookup(0, &addr(n)), table.key(id), table.mac(id)), (None, None, None));
    }
    assert!(table.is_empty());
}

#[test]
fn packets_and_backends_have_separate_capacities() {
    let table = NeighborTable::with_capacity(2);
    let mut references = table.references();
    for n in 0..2 {
        table.intern(0, addr(n)).unwrap();
        references.intern(0, addr(10 + n)).unwrap();
    }
    assert_eq!((table.intern(0, addr(2)), references.intern(0, addr(12))), (Err(TableFull), Err(TableFull)));
    assert_eq!(references.intern(0, addr(0)), Err(TableFull), "it would exceed the capacity for backends");
    assert!(table.intern(0, addr(10)).is_ok(), "the snapshot has allocated its entry");
    drop(references);
    assert_eq!(table.lookup(0, &addr(11)), None);
    assert!(table.lookup(0, &addr(10)).is_some(), "the resolver still refers to it");
    assert_eq!(table.usage().next_hops, 0);
}

#[test]
fn an_entry_is_free_only_without_references() {
    let table = NeighborTable::with_capacity(4);
    let (mut old, mut new) = (table.references(), table.references());
    let id = old.intern(0, addr(1)).unwrap();
    assert_eq!((old.intern(0, addr(1)), new.intern(0, addr(1))), (Ok(id), Ok(id)));
    new.share(id);
    table.intern(0, addr(1)).unwrap();
    table.set_resolved(id, mac(1));
    drop(old);
    assert_eq!(table.mac(id), Some(mac(1)));
    table.release(0, &addr(1));
    assert_eq!((table.key(id), table.mac(id)), (Some((0, addr(1))), None));
    drop(new);
    assert_eq!(table.lookup(0, &addr(1)), None);
}

#[test]
fn a_release_leaves_the_address_that_configuration_gives() {
    let table = NeighborTable::with_capacity(4);
    let mut references = table.references();
    let id = references.intern(0, addr(1)).unwrap();
    table.intern(0, addr(1)).unwrap();
    table.set_static(id, mac(1));
    table.release(0, &addr(1));
    assert_eq!(table.state(id), NeighborState::Static(mac(1)));
}

#[test]
fn only_what_packets_resolve_counts_as_used() {
    let table = NeighborTable::with_capacity(4);
    let id = table.intern(0, addr(1)).unwrap();
    assert_eq!((table.resolve(0, &addr(1)), table.peek(0, &addr(1))), (None, Some(None)));
    table.set_resolved(id, mac(1));
    assert_eq!((table.peek(0, &addr(1)), table.peek(0, &addr(2))), (Some(Some(mac(1))), None));
    assert!(!table.take_use(0, &addr(1)), "no packet has resolved it");
    assert_eq!(table.resolve(0, &addr(1)), Some(mac(1)));
    table.set_resolved(id, mac(2));
    assert_eq!(table.state(id), NeighborState::Resolved(mac(2)), "the used bit is no state");
    assert!(table.take_use(0, &addr(1)) && !table.take_use(0, &addr(1)));
    table.forget(id);
    assert_eq!(table.mac(id), None);
}

proptest! {
    #[test]
    fn finds_what_a_hash_map_finds_while_entries_are_released(
        moves in proptest::collection::vec((any::<bool>(), 0_u32..40), 0..400),
    ) {
        // Few entries for many keys cause long runs in the index. Every removal has to keep them intact.
        let table = NeighborTable::with_capacity(12);
        let mut oracle = HashMap::new();
        for (comes, n) in moves {
            if comes {
                let full = oracle.len() == 12 && !oracle.contains_key(&n);
                match table.intern(0, addr(n)) {
                    Ok(id) => {
                        prop_assert!(!full);
                        prop_assert_eq!(id, *oracle.entry(n).or_insert(id));
                    }
                    Err(TableFull) => prop_assert!(full),
                }
            } else {
                table.release(0, &addr(n));
                oracle.remove(&n);
            }
            prop_assert_eq!(table.len(), oracle.len());
            for n in 0..40 {
                prop_assert_eq!(table.lookup(0, &addr(n)), oracle.get(&n).copied());
            }
        }
    }
}

#[test]
fn a_reader_during_reuse_sees_its_neighbour_or_none() {
    // Each link address identifies its host. There are four entries for many hosts, so entries are soon reused.
    let (table, done) = (NeighborTable::with_capacity(8), AtomicBool::new(false));
    for n in 0..4 {
        let id = table.intern(1, addr(n)).unwrap();
        table.set_resolved(id, mac(u64::from(n)));
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..40_000_u32 {
                let n = 4 + round % 61;
                let id = table.intern(1, addr(n)).unwrap();
                table.set_resolved(id, mac(u64::from(n)));
                table.release(1, &addr(4 + round.wrapping_sub(3) % 61));
            }
            done.store(true, Release);
        });
        scope.spawn(|| {
            while !done.load(Acquire) {
                for n in 0..65 {
                    let found = table.resolve(1, &addr(n));
                    assert!(found.is_none_or(|found| found == mac(u64::from(n))), "{found:?} for host {n}");
                    assert!(n >= 4 || found.is_some(), "host {n} stays all the time");
                }
            }
        });
    });
}
