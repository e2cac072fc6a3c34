//! The objects and their history, in memory.
//!
//! There is one version counter for everything, like etcd's revision. Each kind has its objects, ordered by namespace
//! and name, and a log of its changes that watches read. [`Store::compact`] discards the history: watches and list
//! pages from earlier versions get 410. Cloning a [`Store`] is cheap because objects are shared, so a copy is a backup
//! for a restart.
//!
//! Invariant: a stored object is never changed in place, and each change has a higher version than all changes before.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::Value;

/// The namespace (empty for cluster-scoped kinds) and the name.
pub(crate) type Key = (String, String);

/// The maximum number of changes of one kind that are kept for watches.
const LOG_ENTRIES_MAX: usize = 50_000;

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Added,
    Modified,
    Deleted,
}

/// A change, as watches see it.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) version: u64,
    pub(crate) change: Change,
    /// The object after the change. For a deletion, the last state with the version of the deletion.
    pub(crate) object: Arc<Value>,
    /// The object before the change.
    pub(crate) before: Option<Arc<Value>>,
}

/// All objects of one kind.
#[derive(Debug, Clone, Default)]
struct Collection {
    objects: BTreeMap<Key, Arc<Value>>,
    log: VecDeque<Entry>,
    /// Changes up to and including this version have been discarded.
    forgotten: u64,
}

/// All objects.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    version: u64,
    collections: BTreeMap<Arc<str>, Collection>,
    /// The history before this version has been discarded.
    compacted: u64,
}

impl Store {
    pub(crate) fn new(version: u64) -> Self {
        Self { version, collections: BTreeMap::new(), compacted: 0 }
    }

    /// The version of the latest change.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn get(&self, storage: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.collections.get(storage)?.objects.get(&(namespace.into(), name.into())).cloned()
    }

    /// The objects of a kind, sorted by key. An empty `namespace` selects all namespaces.
    pub(crate) fn list(&self, storage: &str, namespace: &str) -> Vec<Arc<Value>> {
        let Some(collection) = self.collections.get(storage) else {
            return Vec::new();
        };
        if namespace.is_empty() {
            return collection.objects.values().cloned().collect();
        }
        collection
            .objects
            .range((namespace.to_string(), String::new())..)
            .take_while(|((one, _), _)| one == namespace)
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// The list as it was at a version. `None` if that version is no longer known.
    pub(crate) fn list_at(&self, storage: &str, namespace: &str, version: u64) -> Option<Vec<Arc<Value>>> {
        let mut then: BTreeMap<Key, Arc<Value>> =
            self.list(storage, namespace).into_iter().map(|object| (key(&object), object)).collect();
        for entry in self.since(storage, version).ok()?.into_iter().rev() {
            let key = key(&entry.object);
            if !namespace.is_empty() && key.0 != namespace {
                continue;
            }
            match entry.before {
                Some(before) => then.insert(key, before),
                None => then.remove(&key),
            };
        }
        Some(then.into_values().collect())
    }

    /// The kinds that have objects in a namespace.
    pub(crate) fn kinds_in(&self, namespace: &str) -> Vec<Arc<str>> {
        let has_any = |collection: &Collection| {
            let mut from = collection.objects.range((namespace.to_string(), String::new())..);
            from.next().is_some_and(|((one, _), _)| one == namespace)
        };
        self.collections
            .iter()
            .filter(|(_, collection)| has_any(collection))
            .map(|(storage, _)| storage.clone())
            .collect()
    }

    /// Stores a new or changed object under the next version, and returns it with that version.
    pub(crate) fn put(&mut self, storage: &Arc<str>, mut object: Value) -> Arc<Value> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let object = Arc::new(object);
        let collection = self.collections.entry(storage.clone()).or_default();
        let before = collection.objects.insert(key(&object), object.clone());
        let change = if before.is_some() { Change::Modified } else { Change::Added };
        collection.record(Entry { version: self.version, change, object: object.clone(), before });
        object
    }

    /// Removes an object.
    pub(crate) fn remove(&mut self, storage: &Arc<str>, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let collection = self.collections.get_mut(storage)?;
        let before = collection.objects.remove(&(namespace.into(), name.into()))?;
        self.version += 1;
        let mut last = Value::clone(&before);
        last["metadata"]["resourceVersion"] = self.version.to_string().into();
        let last = Arc::new(last);
        collection.record(Entry {
            version: self.version,
            change: Change::Deleted,
            object: last.clone(),
            before: Some(before),
        });
        Some(last)
    }

    /// The changes of a kind after a version. If they are no longer complete, returns the oldest known version.
    pub(crate) fn since(&self, storage: &str, version: u64) -> Result<Vec<Entry>, u64> {
        let Some(collection) = self.collections.get(storage) else {
            return if version < self.compacted { Err(self.compacted) } else { Ok(Vec::new()) };
        };
        let forgotten = collection.forgotten.max(self.compacted);
        if version < forgotten {
            return Err(forgotten);
        }
        let from = collection.log.partition_point(|entry| entry.version <= version);
        Ok(collection.log.range(from..).cloned().collect())
    }

    /// Discards the history up to now.
    pub(crate) fn compact(&mut self) {
        self.compacted = self.version;
        self.collections.values_mut().for_each(|collection| collection.log.clear());
    }
}

impl Collection {
    fn record(&mut self, entry: Entry) {
        if self.log.len() == LOG_ENTRIES_MAX
            && let Some(oldest) = self.log.pop_front()
        {
            self.forgotten = oldest.version;
        }
        self.log.push_back(entry);
    }
}

/// The key of an object.
pub(crate) fn key(object: &Value) -> Key {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_string();
    (text("namespace"), text("name"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn history_is_available_from_any_version_until_it_is_compacted() {
        let mut store = Store::new(1);
        let storage: Arc<str> = "services".into();
        let object = json!({"metadata": {"namespace": "a", "name": "x"}});
        let first = store.version();
        store.put(&storage, object.clone());
        let second = store.version();
        store.put(&storage, object);
        store.remove(&storage, "a", "x");
        let changes: Vec<Change> =
            store.since("services", first).expect("kept").iter().map(|one| one.change).collect();
        assert_eq!(changes, [Change::Added, Change::Modified, Change::Deleted]);
        assert_eq!(store.since("services", second).expect("kept").len(), 2);
        store.compact();
        assert_eq!(store.since("services", second).expect_err("compacted"), store.version());
        assert!(store.since("services", store.version()).expect("nothing missed").is_empty());
    }

    #[test]
    fn a_namespace_is_listed_alone_and_in_order() {
        let mut store = Store::new(1);
        let storage: Arc<str> = "services".into();
        for (namespace, name) in [("b", "y"), ("a", "z"), ("b", "x"), ("bb", "w")] {
            store.put(&storage, json!({"metadata": {"namespace": namespace, "name": name}}));
        }
        let names: Vec<Key> = store.list("services", "b").iter().map(|object| key(object)).collect();
        assert_eq!(names, [("b".into(), "x".into()), ("b".into(), "y".into())]);
        assert_eq!(store.list("services", "").len(), 4);
        assert_eq!(store.kinds_in("b"), std::slice::from_ref(&storage));
        assert!(store.kinds_in("c").is_empty());
    }
}
