//! Compares the map with [`BTreeMap`] over random edits and copies.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

fn whole(map: &SharedMap<u16, u8>) -> BTreeMap<u16, u8> {
    map.iter().map(|(k, v)| (*k, *v)).collect()
}

fn edit(map: &mut SharedMap<u16, u8>, model: &mut BTreeMap<u16, u8>, key: u16, value: Option<u8>) {
    match value {
        Some(value) => assert_eq!(map.insert(key, value), model.insert(key, value)),
        None => assert_eq!(map.remove(&key), model.remove(&key)),
    }
}

proptest! {
    #[test]
    fn it_contains_what_a_btree_map_contains(
        first in proptest::collection::vec((0_u16..2_000, any::<u8>()), 0..1_500),
        edits in proptest::collection::vec((0_u16..2_000, proptest::option::of(any::<u8>())), 0..400),
    ) {
        let mut model: BTreeMap<u16, u8> = first.iter().copied().collect();
        let mut map: SharedMap<u16, u8> = first.into_iter().collect();
        prop_assert_eq!(&whole(&map), &model);
        for (key, value) in edits {
            edit(&mut map, &mut model, key, value);
        }
        prop_assert_eq!(&whole(&map), &model);
        prop_assert_eq!(map.len(), model.len());
        prop_assert!(map.iter().rev().eq(model.iter().rev()));
        prop_assert!((0..2_000).all(|key| map.get(&key) == model.get(&key)));
        prop_assert_eq!(map.iter().len(), model.len());
    }

    #[test]
    fn a_copy_stays_as_it_was_and_the_difference_is_what_was_edited(
        first in proptest::collection::vec((0_u16..1_000, any::<u8>()), 0..800),
        edits in proptest::collection::vec((0_u16..1_000, proptest::option::of(any::<u8>())), 0..60),
    ) {
        let before: SharedMap<u16, u8> = first.into_iter().collect();
        let (mut after, kept) = (before.clone(), whole(&before));
        let mut model = kept.clone();
        for (key, value) in edits {
            edit(&mut after, &mut model, key, value);
        }
        prop_assert_eq!(&whole(&before), &kept);
        let differing: Vec<(u16, Option<u8>, Option<u8>)> =
            differences(&before, &after).map(|d| (*d.key, d.before.copied(), d.after.copied())).collect();
        let expected: Vec<(u16, Option<u8>, Option<u8>)> = (0..1_000)
            .map(|key| (key, kept.get(&key).copied(), model.get(&key).copied()))
            .filter(|(_, a, b)| a != b)
            .collect();
        prop_assert_eq!(differing, expected);
        prop_assert_eq!(before == after, kept == model);
        let rebuilt: SharedMap<u16, u8> = model.into_iter().collect();
        prop_assert!(rebuilt == after, "how it was built is ignored by equality");
    }

    #[test]
    fn front_and_back_meet_in_the_middle(count in 0_usize..300, ends in proptest::collection::vec(any::<bool>(), 300)) {
        let map: SharedMap<u16, u8> = (0..count).map(|n| (n as u16, 0)).collect();
        let mut iter = map.iter();
        let mut seen: Vec<u16> = Vec::new();
        for from_back in ends {
            let next = if from_back { iter.next_back() } else { iter.next() };
            seen.extend(next.map(|(key, _)| *key));
        }
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..count as u16).collect::<Vec<_>>());
    }
}

#[test]
fn an_edit_copies_few_pairs_of_a_map_that_has_copies() {
    let before: SharedMap<u32, Arc<u8>> = (0..10_000_u32).map(|n| (n, Arc::new(0_u8))).collect();
    let mut after = before.clone();
    after.insert(5_000, Arc::new(1));
    after.remove(&7_000);
    // A pair that both maps share is stored once.
    let copied = before.values().filter(|value| Arc::strong_count(value) > 1).count();
    assert!(copied < 200, "{copied} of {}", before.len());
}

#[test]
fn the_last_of_equal_keys_counts() {
    let map: SharedMap<&str, u8> = [("a", 1), ("b", 2), ("a", 3)].into_iter().collect();
    assert_eq!((map["a"], map.len()), (3, 2));
}
