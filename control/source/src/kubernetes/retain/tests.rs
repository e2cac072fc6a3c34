//! Tests of the retained objects, compared with a plain map.

use proptest::prelude::*;

use super::*;

const GRACE: Duration = Duration::from_secs(300);

fn key(n: u8) -> ObjectKey {
    ObjectKey::new("default", format!("o{n}"))
}

/// The writes of a healthy API server, one version after the other.
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

/// An event of a watch: the object, its version, its uid, and its value or `None` for a deletion.
type WatchEvent = (u8, u64, String, Option<u32>);

/// The existing objects: version, value and uid by name.
type OnServer = BTreeMap<u8, (u64, u32, String)>;

/// The uid of an object by its name and the version at which it was created.
type Uid = fn(u8, u64) -> String;

/// Each newly created object has a new uid.
fn new_uid(k: u8, version: u64) -> String {
    format!("{k}-{version}")
}

/// An object always has the same uid.
fn same_uid(k: u8, _: u64) -> String {
    format!("{k}")
}

fn no_uid(_: u8, _: u64) -> String {
    String::new()
}

/// The events of writes from `version` on, and the final state.
fn history(writes: &[Write], version: u64, uid: Uid) -> (Vec<WatchEvent>, OnServer) {
    let mut there = OnServer::new();
    let mut events = Vec::new();
    for (at, write) in (version + 1..).zip(writes) {
        match *write {
            Write::Put(k, v) => {
                let uid = there.get(&k).map_or_else(|| uid(k, at), |(_, _, uid)| uid.clone());
                there.insert(k, (at, v, uid.clone()));
                events.push((k, at, uid, Some(v)));
            }
            Write::Delete(k) => {
                if let Some((_, _, uid)) = there.remove(&k) {
                    events.push((k, at, uid, None));
                }
            }
        }
    }
    (events, there)
}

fn item(version: u64, uid: &str, value: u32) -> Item<u32> {
    Item { version, uid: uid.into(), value }
}

fn apply(retain: &mut Retain<u32>, (k, version, uid, value): &WatchEvent) -> bool {
    match value {
        Some(value) => retain.applied(&key(*k), item(*version, uid, *value)),
        None => retain.deleted(&key(*k), uid, *version),
    }
}

fn current(retain: &Retain<u32>) -> BTreeMap<ObjectKey, u32> {
    retain.all().map(|(key, item)| (key.clone(), item.value)).collect()
}

fn plain(there: &OnServer) -> BTreeMap<ObjectKey, u32> {
    there.iter().map(|(k, (_, v, _))| (key(*k), *v)).collect()
}

fn list(there: &OnServer) -> Vec<(ObjectKey, Item<u32>)> {
    there.iter().map(|(k, (version, value, uid))| (key(*k), item(*version, uid, *value))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn events_of_a_healthy_watch_take_effect_immediately(writes in writes()) {
        let mut retain = Retain::new(GRACE);
        let mut oracle = BTreeMap::new();
        for event in history(&writes, 0, new_uid).0 {
            let before = current(&retain);
            let changed = apply(&mut retain, &event);
            match event {
                (k, _, _, Some(value)) => oracle.insert(key(k), value),
                (k, _, _, None) => oracle.remove(&key(k)),
            };
            prop_assert_eq!(current(&retain), oracle.clone());
            prop_assert_eq!(changed, before != oracle);
        }
        prop_assert_eq!(retain.kept().len(), 0);
    }

    #[test]
    fn duplicate_and_reordered_events_do_not_change_the_result(writes in writes(), seed in any::<u64>()) {
        let (events, there) = history(&writes, 0, new_uid);
        let mut twice: Vec<WatchEvent> = events.iter().chain(&events).cloned().collect();
        let mut random = seed | 1;
        for i in (1..twice.len()).rev() {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            twice.swap(i, usize::try_from(random % (i as u64 + 1)).expect("small"));
        }
        let mut retain = Retain::new(GRACE);
        for event in &twice {
            apply(&mut retain, event);
        }
        prop_assert_eq!(current(&retain), plain(&there));
        retain.bookmark(u64::MAX);
        prop_assert_eq!(current(&retain), plain(&there));
        prop_assert_eq!(retain.entries.len(), there.len(), "a bookmark clears the memory of deletions");
    }

    #[test]
    fn lost_objects_are_kept_for_the_grace_time_and_no_longer(
        before in writes(),
        other in writes(),
        gap in 0_u64..100,
        ahead in any::<bool>(),
        uid in prop_oneof![Just(same_uid as Uid), Just(no_uid as Uid)],
    ) {
        let (events, _) = history(&before, 1000, uid);
        let mut retain = Retain::new(GRACE);
        for event in &events {
            apply(&mut retain, event);
        }
        let last = current(&retain);
        let versions: BTreeMap<_, _> = retain.all().map(|(key, item)| (key.clone(), item.version)).collect();
        // Another history: of a backup, or of a new server, behind or ahead of the known one.
        let (_, server) = history(&other, if ahead { 1000 + gap } else { 1000 - 10 * gap }, uid);
        let now = Duration::from_secs(50);
        let relisted = retain.listed(list(&server), 2000, Continuity::Unknown, now);
        let after = current(&retain);
        for (key, value) in &last {
            let (version, listed) = match server.iter().find(|(k, _)| self::key(**k) == *key) {
                Some((_, (version, value, _))) => (*version, Some(*value)),
                None => (0, None),
            };
            let newer = listed.is_some() && !retain.kept.contains(key);
            prop_assert_eq!(after.get(key), if newer { listed.as_ref() } else { Some(value) });
            prop_assert_eq!(newer, version >= versions[key], "kept if and only if it is older or missing there");
        }
        for (key, value) in plain(&server) {
            prop_assert!(last.contains_key(&key) || after[&key] == value, "a new object is used immediately");
        }
        prop_assert_eq!(relisted.vanished + relisted.older, retain.kept().len());
        let changed: BTreeSet<_> = relisted.changed.into_iter().collect();
        let differ = |key: &ObjectKey| last.get(key) != after.get(key);
        let keys: BTreeSet<_> = last.keys().chain(after.keys()).filter(|k| differ(k)).cloned().collect();
        prop_assert_eq!(changed, keys);

        prop_assert_eq!(retain.expire(now + GRACE - Duration::from_nanos(1)), vec![]);
        prop_assert_eq!(current(&retain), after);
        retain.expire(now + GRACE);
        prop_assert_eq!(current(&retain), plain(&server));
        prop_assert_eq!(retain.deadline(), None);
    }

    #[test]
    fn recreated_objects_are_used_immediately_and_the_rest_is_kept(
        before in writes(),
        other in writes(),
        later in writes(),
    ) {
        let mut retain = Retain::new(GRACE);
        for event in &history(&before, 1000, new_uid).0 {
            apply(&mut retain, event);
        }
        let last = current(&retain);
        // A new cluster has other uids, and its versions start at the beginning.
        let (_, listed) = history(&other, 0, new_uid);
        let now = Duration::from_secs(50);
        let relisted = retain.listed(list(&listed), 40, Continuity::Unknown, now);
        let mut expected = last.clone();
        expected.extend(plain(&listed));
        prop_assert_eq!(current(&retain), expected.clone());
        prop_assert_eq!(relisted.recreated, listed.keys().filter(|k| last.contains_key(&key(**k))).count());
        prop_assert_eq!((relisted.older, relisted.deleted), (0, 0));
        // The events of its watch count like those of any server.
        let touched: BTreeSet<u8> = listed.keys().copied().collect();
        let later: Vec<Write> = later
            .into_iter()
            .filter(|write| match write { Write::Put(k, _) | Write::Delete(k) => !touched.contains(k) })
            .collect();
        for event in &history(&later, 40, new_uid).0 {
            apply(&mut retain, event);
            match event {
                (k, _, _, Some(value)) => expected.insert(key(*k), *value),
                (k, _, _, None) => expected.remove(&key(*k)),
            };
            prop_assert_eq!(current(&retain), expected.clone());
        }
        for key in retain.kept().map(|(key, _)| key) {
            prop_assert_eq!(expected.get(key), last.get(key));
        }
    }

    #[test]
    fn a_list_that_continues_the_history_is_trusted_unless_it_lacks_most(writes in writes(), missed in writes()) {
        let mut all = writes.clone();
        all.extend(missed);
        let (events, _) = history(&writes, 0, new_uid);
        let (_, server) = history(&all, 0, new_uid);
        let mut retain = Retain::new(GRACE);
        for event in &events {
            apply(&mut retain, event);
        }
        let last = current(&retain);
        let relisted = retain.listed(list(&server), 100, Continuity::Continues, Duration::ZERO);
        let lost = last.keys().filter(|key| !plain(&server).contains_key(*key)).count();
        if lost * 2 <= last.len() {
            prop_assert_eq!(current(&retain), plain(&server));
            prop_assert_eq!((relisted.deleted, relisted.vanished, retain.kept().len()), (lost, 0, 0));
        } else {
            prop_assert_eq!((relisted.deleted, relisted.vanished, retain.kept().len()), (0, lost, lost));
        }
    }

    #[test]
    fn a_server_that_lags_and_catches_up_changes_nothing(writes in writes(), behind in 0_usize..40) {
        let (events, there) = history(&writes, 0, same_uid);
        let mut retain = Retain::new(GRACE);
        for event in &events {
            apply(&mut retain, event);
        }
        let behind = behind.min(writes.len());
        let (_, old) = history(&writes[..behind], 0, same_uid);
        retain.listed(list(&old), behind as u64, Continuity::Unknown, Duration::ZERO);
        let meanwhile = current(&retain);
        for (k, v) in plain(&there) {
            prop_assert_eq!(meanwhile.get(&k), Some(&v), "nothing is lost meanwhile");
        }
        for event in events.iter().filter(|(_, version, _, _)| *version > behind as u64) {
            apply(&mut retain, event);
        }
        prop_assert_eq!(current(&retain), plain(&there));
        prop_assert_eq!(retain.kept().len(), 0, "kept objects are back");
    }
}

/// The objects 1, 2, ... at these versions, with the uid `a`.
fn retain_with(versions: &[u64]) -> Retain<u32> {
    let mut retain = Retain::new(GRACE);
    let items = (1..).zip(versions).map(|(k, version)| (key(k), item(*version, "a", u32::from(k))));
    retain.listed(items.collect::<Vec<_>>(), 9, Continuity::Unknown, Duration::ZERO);
    retain
}

#[test]
fn an_empty_server_removes_nothing_until_the_grace_time_is_over() {
    let mut retain = retain_with(&[7]);
    let relisted = retain.listed([], 1, Continuity::Unknown, Duration::from_secs(10));
    assert_eq!(relisted, Relisted { vanished: 1, ..Relisted::default() });
    assert_eq!(retain.current(&key(1)), Some(&1));
    assert_eq!(retain.deadline(), Some(Duration::from_secs(310)));
    // A second list within the grace time neither restarts nor ends the grace time.
    retain.listed([], 1, Continuity::Continues, Duration::from_secs(100));
    assert_eq!(retain.deadline(), Some(Duration::from_secs(310)));
    assert_eq!(retain.expire(Duration::from_secs(310)), [key(1)]);
    assert_eq!(retain.current(&key(1)), None);
}

#[test]
fn objects_kept_before_a_restart_are_kept_for_the_remaining_time() {
    let mut retain = retain_with(&[7, 8]);
    retain.listed([(key(2), item(8, "a", 2))], 9, Continuity::Unknown, Duration::from_secs(10));
    let saved: Vec<_> =
        retain.remaining(Duration::from_secs(60)).map(|(i, left)| (i.clone(), left)).collect();
    assert_eq!(saved, [(item(7, "a", 1), Some(Duration::from_secs(250))), (item(8, "a", 2), None)]);
    let mut after = Retain::new(GRACE);
    after.load(saved.into_iter().zip(1..).map(|((item, left), k)| (key(k), item, left)));
    assert_eq!((after.current(&key(1)), after.kept().len()), (Some(&1), 1));
    // The clock of the new process has run for 5 s.
    after.listed([(key(2), item(8, "a", 2))], 12, Continuity::Continues, Duration::from_secs(5));
    assert_eq!(after.deadline(), Some(Duration::from_secs(250)));
    assert_eq!(after.expire(Duration::from_secs(250)), [key(1)]);
}

#[test]
fn a_deletion_from_a_watch_ends_a_kept_object() {
    let mut retain = retain_with(&[7]);
    retain.listed([], 12, Continuity::Unknown, Duration::from_secs(10));
    assert!(retain.deleted(&key(1), "a", 13));
    assert_eq!((retain.current(&key(1)), retain.deadline()), (None, None));
}

#[test]
fn a_deletion_with_another_uid_shows_that_the_kept_object_is_gone() {
    let mut retain = retain_with(&[7]);
    retain.listed([], 1, Continuity::Unknown, Duration::ZERO);
    assert!(!retain.deleted(&key(1), "a", 3), "a late event about a kept object");
    assert!(retain.deleted(&key(1), "b", 4));
    assert!(!retain.applied(&key(1), item(2, "b", 5)), "a late event about a deleted object");
    assert_eq!(retain.current(&key(1)), None);
}

#[test]
fn a_list_with_an_older_object_is_not_trusted_at_all() {
    let mut retain = retain_with(&[7, 8, 9, 9]);
    let items = [(key(1), item(6, "a", 6)), (key(2), item(8, "a", 2)), (key(3), item(9, "a", 3))];
    let relisted = retain.listed(items, 20, Continuity::Continues, Duration::ZERO);
    assert_eq!(relisted, Relisted { vanished: 1, older: 1, ..Relisted::default() });
}

#[test]
fn without_a_grace_time_every_list_is_trusted() {
    let mut retain = Retain::new(Duration::ZERO);
    let items = [(key(1), item(7, "a", 1)), (key(2), item(8, "a", 2))];
    retain.listed(items, 9, Continuity::Unknown, Duration::ZERO);
    let relisted = retain.listed([(key(2), item(5, "a", 3))], 6, Continuity::Unknown, Duration::ZERO);
    assert_eq!(relisted.changed, [key(2), key(1)]);
    assert_eq!((retain.current(&key(1)), retain.current(&key(2))), (None, Some(&3)));
}

#[test]
fn an_equal_object_keeps_its_allocation() {
    use std::sync::Arc;
    let mut retain = Retain::new(GRACE);
    let first = Arc::new(5);
    let item = |version: u64, value: Arc<u32>| Item { version, uid: "a".into(), value };
    retain.listed([(key(1), item(7, first.clone()))], 9, Continuity::Unknown, Duration::ZERO);
    assert!(!retain.applied(&key(1), item(10, Arc::new(5))));
    retain.listed([(key(1), item(11, Arc::new(5)))], 12, Continuity::Unknown, Duration::ZERO);
    assert!(retain.current(&key(1)).is_some_and(|now| Arc::ptr_eq(now, &first)));
}

#[test]
fn objects_missing_in_a_list_can_be_recalled_for_a_while() {
    let item = |version, value: u32| Item { version, uid: Box::default(), value };
    let seconds = Duration::from_secs;
    let all = || (0..6).map(|n| (key(n), item(u64::from(n) + 1, u32::from(n))));
    let lacking = || all().filter(|(key, _)| ![self::key(4), self::key(5)].contains(key));
    let mut retain = Retain::new(GRACE);
    retain.listed(all(), 10, Continuity::Unknown, Duration::ZERO);
    let relisted = retain.listed(lacking(), 20, Continuity::Continues, seconds(50));
    assert_eq!((relisted.deleted, retain.current(&key(4))), (2, None));
    assert!(retain.applied(&key(5), item(21, 55)));
    assert_eq!(retain.recall(seconds(10), seconds(60)), [key(4)]);
    assert_eq!((retain.current(&key(4)), retain.current(&key(5))), (Some(&4), Some(&55)));
    // The next list of the other history does not have it either.
    assert_eq!(retain.listed(lacking(), 15, Continuity::Unknown, seconds(61)).vanished, 2);
    assert_eq!(retain.expire(seconds(60) + GRACE), [key(4)]);

    let mut retain = Retain::new(GRACE);
    retain.listed(all(), 10, Continuity::Unknown, Duration::ZERO);
    retain.listed(lacking(), 20, Continuity::Continues, seconds(50));
    assert_eq!(retain.recall(seconds(51), seconds(171)), [], "deleted too long ago");
}
