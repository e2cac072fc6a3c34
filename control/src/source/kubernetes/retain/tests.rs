//! Claims about what is kept, against a plain map as the oracle.

use proptest::prelude::*;

use super::*;

const GRACE: Duration = Duration::from_secs(300);

fn key(n: u8) -> ObjectKey {
    ObjectKey::new("default", format!("o{n}"))
}

/// What a healthy API server does, one version after the other.
#[derive(Debug, Clone)]
enum Write {
    Put(u8, u32),
    Delete(u8),
}

fn writes() -> impl Strategy<Value = Vec<Write>> {
    let write = prop_oneof![
        3 => (0_u8..8, any::<u32>()).prop_map(|(k, v)| Write::Put(k, v)),
        1 => (0_u8..8).prop_map(Write::Delete),
    ];
    proptest::collection::vec(write, 0..40)
}

/// An event of a watch: the object, or that it is gone, at a version.
type Told = (u8, u64, Option<u32>);

/// The events of writes from `version` on, and what is there in the end.
fn history(writes: &[Write], version: u64) -> (Vec<Told>, BTreeMap<u8, (u64, u32)>) {
    let mut there = BTreeMap::new();
    let mut events = Vec::new();
    for (at, write) in (version + 1..).zip(writes) {
        match *write {
            Write::Put(k, v) => {
                there.insert(k, (at, v));
                events.push((k, at, Some(v)));
            }
            Write::Delete(k) => {
                if there.remove(&k).is_some() {
                    events.push((k, at, None));
                }
            }
        }
    }
    (events, there)
}

fn tell(retain: &mut Retain<u32>, (k, version, value): Told) -> bool {
    match value {
        Some(value) => retain.applied(&key(k), Item { version, value }),
        None => retain.deleted(&key(k), version),
    }
}

fn shown(retain: &Retain<u32>) -> BTreeMap<ObjectKey, u32> {
    retain.all().map(|(key, item)| (key.clone(), item.value)).collect()
}

fn plain(there: &BTreeMap<u8, (u64, u32)>) -> BTreeMap<ObjectKey, u32> {
    there.iter().map(|(k, (_, v))| (key(*k), *v)).collect()
}

fn list(there: &BTreeMap<u8, (u64, u32)>) -> Vec<(ObjectKey, Item<u32>)> {
    there.iter().map(|(k, (version, value))| (key(*k), Item { version: *version, value: *value })).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_healthy_watch_is_believed_at_once(writes in writes()) {
        let mut retain = Retain::new(GRACE);
        let mut oracle = BTreeMap::new();
        for (k, version, value) in history(&writes, 0).0 {
            let before = shown(&retain);
            let changed = tell(&mut retain, (k, version, value));
            match value {
                Some(value) => oracle.insert(key(k), value),
                None => oracle.remove(&key(k)),
            };
            prop_assert_eq!(shown(&retain), oracle.clone());
            prop_assert_eq!(changed, before != oracle);
        }
        prop_assert_eq!(retain.kept().len(), 0);
    }

    #[test]
    fn events_twice_and_out_of_order_come_to_the_same(writes in writes(), seed in any::<u64>()) {
        let (events, there) = history(&writes, 0);
        let mut twice: Vec<Told> = events.iter().chain(&events).copied().collect();
        let mut random = seed | 1;
        for i in (1..twice.len()).rev() {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            twice.swap(i, usize::try_from(random % (i as u64 + 1)).expect("small"));
        }
        let mut retain = Retain::new(GRACE);
        for event in twice {
            tell(&mut retain, event);
        }
        prop_assert_eq!(shown(&retain), plain(&there));
        retain.bookmark(u64::MAX);
        prop_assert_eq!(shown(&retain), plain(&there));
        prop_assert_eq!(retain.entries.len(), there.len(), "a bookmark clears the memory of deletions");
    }

    #[test]
    fn what_a_server_lost_is_shown_for_the_grace_time_and_no_longer(
        before in writes(),
        other in writes(),
        gap in 0_u64..100,
        ahead in any::<bool>(),
    ) {
        let (events, _) = history(&before, 1000);
        let mut retain = Retain::new(GRACE);
        for event in events {
            tell(&mut retain, event);
        }
        let last = shown(&retain);
        let versions: BTreeMap<_, _> = retain.all().map(|(key, item)| (key.clone(), item.version)).collect();
        // Another history: of a backup, or of a server begun anew, behind or ahead of the one that was seen.
        let (_, server) = history(&other, if ahead { 1000 + gap } else { 1000 - 10 * gap });
        let now = Duration::from_secs(50);
        let relisted = retain.listed(list(&server), 2000, now);
        let after = shown(&retain);
        for (key, value) in &last {
            let (version, listed) = match server.iter().find(|(k, _)| self::key(**k) == *key) {
                Some((_, (version, value))) => (*version, Some(*value)),
                None => (0, None),
            };
            let newer = listed.is_some() && !retain.kept.contains(key);
            prop_assert_eq!(after.get(key), if newer { listed.as_ref() } else { Some(value) });
            prop_assert_eq!(newer, version >= versions[key], "kept if and only if it is older there, or gone");
        }
        for (key, value) in plain(&server) {
            prop_assert!(last.contains_key(&key) || after[&key] == value, "what is new is shown at once");
        }
        prop_assert_eq!(relisted.vanished + relisted.older, retain.kept().len());
        let changed: BTreeSet<_> = relisted.changed.into_iter().collect();
        let differ = |key: &ObjectKey| last.get(key) != after.get(key);
        let keys: BTreeSet<_> = last.keys().chain(after.keys()).filter(|k| differ(k)).cloned().collect();
        prop_assert_eq!(changed, keys);

        prop_assert_eq!(retain.expire(now + GRACE - Duration::from_nanos(1)), vec![]);
        prop_assert_eq!(shown(&retain), after);
        retain.expire(now + GRACE);
        prop_assert_eq!(shown(&retain), plain(&server));
        prop_assert_eq!(retain.deadline(), None);
    }

    #[test]
    fn a_server_that_lags_and_catches_up_is_not_noticed(writes in writes(), behind in 0_usize..40) {
        let (events, there) = history(&writes, 0);
        let mut retain = Retain::new(GRACE);
        for event in &events {
            tell(&mut retain, *event);
        }
        let behind = behind.min(writes.len());
        let (_, old) = history(&writes[..behind], 0);
        retain.listed(list(&old), behind as u64, Duration::ZERO);
        let meanwhile = shown(&retain);
        for (k, v) in plain(&there) {
            prop_assert_eq!(meanwhile.get(&k), Some(&v), "nothing is lost meanwhile");
        }
        for event in events.iter().filter(|(_, version, _)| *version > behind as u64) {
            tell(&mut retain, *event);
        }
        prop_assert_eq!(shown(&retain), plain(&there));
        prop_assert_eq!(retain.kept().len(), 0, "what was kept is there again");
    }
}

#[test]
fn an_empty_server_takes_nothing_away_until_the_grace_time_is_over() {
    let mut retain = Retain::new(GRACE);
    retain.listed([(key(1), Item { version: 7, value: 1 })], 9, Duration::ZERO);
    let relisted = retain.listed([], 1, Duration::from_secs(10));
    assert_eq!(relisted, Relisted { changed: vec![], vanished: 1, older: 0 });
    assert_eq!(retain.shown(&key(1)), Some(&1));
    assert_eq!(retain.deadline(), Some(Duration::from_secs(310)));
    // A second list within the grace time does not begin it anew.
    retain.listed([], 1, Duration::from_secs(100));
    assert_eq!(retain.deadline(), Some(Duration::from_secs(310)));
    assert_eq!(retain.expire(Duration::from_secs(310)), [key(1)]);
    assert_eq!(retain.shown(&key(1)), None);
}

#[test]
fn a_deletion_that_a_watch_tells_ends_what_was_kept() {
    let mut retain = Retain::new(GRACE);
    retain.listed([(key(1), Item { version: 7, value: 1 })], 9, Duration::ZERO);
    retain.listed([], 12, Duration::from_secs(10));
    assert!(retain.deleted(&key(1), 13));
    assert_eq!((retain.shown(&key(1)), retain.deadline()), (None, None));
}

#[test]
fn without_a_grace_time_every_list_is_believed() {
    let mut retain = Retain::new(Duration::ZERO);
    retain.listed(
        [(key(1), Item { version: 7, value: 1 }), (key(2), Item { version: 8, value: 2 })],
        9,
        Duration::ZERO,
    );
    let relisted = retain.listed([(key(2), Item { version: 5, value: 3 })], 6, Duration::ZERO);
    assert_eq!(relisted.changed, [key(2), key(1)]);
    assert_eq!((retain.shown(&key(1)), retain.shown(&key(2))), (None, Some(&3)));
}

#[test]
fn an_equal_object_stays_the_one_that_it_is() {
    use std::sync::Arc;
    let mut retain = Retain::new(GRACE);
    let first = Arc::new(5);
    retain.listed([(key(1), Item { version: 7, value: first.clone() })], 9, Duration::ZERO);
    assert!(!retain.applied(&key(1), Item { version: 10, value: Arc::new(5) }));
    retain.listed([(key(1), Item { version: 11, value: Arc::new(5) })], 12, Duration::ZERO);
    assert!(retain.shown(&key(1)).is_some_and(|now| Arc::ptr_eq(now, &first)));
}
