//! The objects of one kind that the gateway uses: those of the API server, and those that the server seems to have
//! lost.
//!
//! [`Retain`] receives lists and watch events, and returns the keys whose object changed. Changes from a watch take
//! effect immediately. A list after a loss is different: the API server may have returned empty or from a backup. An
//! object that is missing there, or older than before, is *kept*: the last known version stays in use until the API
//! server has it again (at that version or newer, or recreated with another uid), or until the grace time is over. New
//! objects in such a list are used immediately.
//!
//! If a list continues the known history ([`Continuity`]; usually after a watch that expired on a healthy API server),
//! missing objects count as deleted, unless most objects are missing or any is older than before. In the first list
//! after a start that is newer than the disk, all missing objects count as deleted.
//!
//! Versions are `metadata.resourceVersion`, compared as numbers (KEP-5504). 0 stands for a version that isn't a number,
//! and counts as newer than any other. Versions also detect events that arrive twice or out of order. Versions from
//! before and after a loss are compared only if both objects have the same uid.
//!
//! Invariant: pure. The clock is an argument, and advances only while the API server responds, so that nothing expires
//! while it is away.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidegate_model::objects::ObjectKey;

/// The maximum number of remembered deletions, which identify late events about deleted objects. Bookmarks clear them.
const DELETIONS_MAX: usize = 16_384;

/// The objects of one kind.
#[derive(Debug)]
pub(super) struct Retain<T> {
    entries: BTreeMap<ObjectKey, Entry<T>>,
    /// The keys of entries with a kept object.
    kept: BTreeSet<ObjectKey>,
    /// The number of entries that only record a deletion.
    deletions: usize,
    /// The objects that last counted as deleted because a list lacked them, and when that was.
    missed: (Duration, Vec<(ObjectKey, Item<T>)>),
    grace: Duration,
}

/// An object at a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item<T> {
    pub(super) version: u64,
    /// `metadata.uid`. An object that is recreated under the same name has a different one. Empty if unknown.
    pub(super) uid: Box<str>,
    pub(super) value: T,
}

/// Whether a list continues the received history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Continuity {
    /// It does, as far as can be determined.
    Continues,
    /// It is from the same cluster, and newer than the objects on disk when the gateway started. All missing objects
    /// count as deleted, however many there are.
    Newer,
    /// It may come from a server that returned empty, or from a backup.
    Unknown,
}

#[derive(Debug)]
struct Entry<T> {
    server: Server<T>,
    kept: Option<Kept<T>>,
}

/// The state of an object on the API server.
#[derive(Debug)]
enum Server<T> {
    Has(Item<T>),
    /// The object does not exist at this version.
    Lacks(u64),
}

#[derive(Debug)]
struct Kept<T> {
    item: Item<T>,
    until: Duration,
}

/// The effect of a list after a loss.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Relisted {
    /// Keys whose published object changed.
    pub(super) changed: Vec<ObjectKey>,
    /// The number of objects that are kept although they are missing in the list.
    pub(super) vanished: usize,
    /// The number of objects that are kept although the list contains an older version.
    pub(super) older: usize,
    /// The number of objects that were recreated under the same name.
    pub(super) recreated: usize,
    /// The number of objects that are missing in the list and were removed.
    pub(super) deleted: usize,
}

impl<T: Clone + PartialEq> Retain<T> {
    /// An empty set. With a grace of zero, missing objects immediately count as deleted.
    pub(super) fn new(grace: Duration) -> Self {
        Self {
            entries: BTreeMap::new(),
            kept: BTreeSet::new(),
            deletions: 0,
            missed: (Duration::ZERO, Vec::new()),
            grace,
        }
    }

    /// Loads earlier objects from a file. Those that the API server had lost have a remaining time.
    pub(super) fn load(&mut self, items: impl IntoIterator<Item = (ObjectKey, Item<T>, Option<Duration>)>) {
        *self = Self::new(self.grace);
        for (key, item, left) in items {
            let entry = match left {
                None => Entry { server: Server::Has(item), kept: None },
                Some(left) => {
                    self.kept.insert(key.clone());
                    let until = left.min(self.grace);
                    Entry { server: Server::Lacks(0), kept: Some(Kept { item, until }) }
                }
            };
            self.entries.insert(key, entry);
        }
    }

    /// Applies a full list, at `version` and the time `now`.
    pub(super) fn listed(
        &mut self,
        items: impl IntoIterator<Item = (ObjectKey, Item<T>)>,
        version: u64,
        continuity: Continuity,
        now: Duration,
    ) -> Relisted {
        let mut relisted = Relisted::default();
        let mut before = std::mem::take(&mut self.entries);
        let count_before = before.values().filter(|entry| entry.is_current()).count();
        let until = now + self.grace;
        self.kept.clear();
        self.deletions = 0;
        for (key, item) in items {
            let (current, until) =
                before.remove(&key).map_or((None, until), |entry| entry.into_current(until));
            let entry = match current {
                Some(current) if is_older(&item, &current) && !self.grace.is_zero() => {
                    relisted.older += 1;
                    self.kept.insert(key.clone());
                    Entry { server: Server::Has(item), kept: Some(Kept { item: current, until }) }
                }
                current => {
                    relisted.recreated += usize::from(current.as_ref().is_some_and(|s| is_another(&item, s)));
                    let (item, changed) = replace(current, item);
                    if changed {
                        relisted.changed.push(key.clone());
                    }
                    Entry { server: Server::Has(item), kept: None }
                }
            };
            self.entries.insert(key, entry);
        }
        let lost = before.values().filter(|entry| entry.is_current()).count();
        let trusts_list = match continuity {
            // Deletions of most objects happen while a watch is connected. If most are missing, the server has probably
            // lost them.
            Continuity::Continues => lost * 2 <= count_before,
            // The gateway was not running, so it had no watch that would have reported deletions.
            Continuity::Newer => true,
            Continuity::Unknown => false,
        };
        let trusts_list = trusts_list && relisted.older == 0;
        let mut missed = Vec::new();
        for (key, entry) in before {
            let is_deletion = self.grace.is_zero() || trusts_list && entry.is_current();
            let (Some(current), until) = entry.into_current(until) else { continue };
            if is_deletion {
                relisted.deleted += 1;
                missed.push((key.clone(), current));
                relisted.changed.push(key);
                continue;
            }
            relisted.vanished += 1;
            self.kept.insert(key.clone());
            let kept = Some(Kept { item: current, until });
            self.entries.insert(key, Entry { server: Server::Lacks(version), kept });
        }
        // After a start, nothing proves that the missing objects ever existed on this API server.
        self.missed = (now, if continuity == Continuity::Continues { missed } else { Vec::new() });
        relisted
    }

    /// Restores the objects that were counted as deleted since `from` because a list lacked them: it turned out that
    /// the API server lost a part of its history. Returns the keys whose published object changed.
    pub(super) fn recall(&mut self, from: Duration, now: Duration) -> Vec<ObjectKey> {
        let (at, missed) = std::mem::take(&mut self.missed);
        let mut changed = Vec::new();
        for (key, item) in missed.into_iter().filter(|_| at >= from && !self.grace.is_zero()) {
            // A newer object with this name takes precedence.
            if self.entries.contains_key(&key) {
                continue;
            }
            let kept = Some(Kept { item, until: now + self.grace });
            self.entries.insert(key.clone(), Entry { server: Server::Lacks(0), kept });
            self.kept.insert(key.clone());
            changed.push(key);
        }
        changed
    }

    /// Applies a watch event for an added or modified object. Returns whether the published object changed.
    pub(super) fn applied(&mut self, key: &ObjectKey, item: Item<T>) -> bool {
        let Some(entry) = self.entries.get_mut(key) else {
            self.entries.insert(key.clone(), Entry { server: Server::Has(item), kept: None });
            return true;
        };
        if entry.server.is_after(&item) {
            return false;
        }
        if entry.kept.as_ref().is_some_and(|kept| is_older(&item, &kept.item)) {
            entry.server = Server::Has(item);
            return false;
        }
        self.kept.remove(key);
        let kept = entry.kept.take().map(|kept| kept.item);
        let server = std::mem::replace(&mut entry.server, Server::Lacks(0));
        let was_deletion = kept.is_none() && matches!(server, Server::Lacks(_));
        self.deletions -= usize::from(was_deletion);
        let (item, changed) = replace(kept.or(server.item()), item);
        entry.server = Server::Has(item);
        changed
    }

    /// Applies a watch event for the deletion of the object with this uid, at `version`. Returns whether the published
    /// object changed.
    pub(super) fn deleted(&mut self, key: &ObjectKey, uid: &str, version: u64) -> bool {
        let Some(entry) = self.entries.get_mut(key) else {
            self.entries.insert(key.clone(), Entry { server: Server::Lacks(version), kept: None });
            self.deletion();
            return false;
        };
        let known = match &entry.server {
            Server::Has(item) => item.version,
            Server::Lacks(known) => *known,
        };
        if version != 0 && version < known {
            return false;
        }
        let existed = matches!(entry.server, Server::Has(_));
        entry.server = Server::Lacks(version);
        match &entry.kept {
            // A deletion of the same object before the kept version is outdated. One with another uid shows that the
            // kept object was replaced.
            Some(kept) if version != 0 && version < kept.item.version && !differ(uid, &kept.item.uid) => {
                false
            }
            Some(_) => {
                entry.kept = None;
                self.kept.remove(key);
                self.deletion();
                true
            }
            None if existed => {
                self.deletion();
                true
            }
            None => false,
        }
    }

    /// Records a bookmark: everything up to `version` has been received.
    pub(super) fn bookmark(&mut self, version: u64) {
        if self.deletions > 0 {
            self.remove_deletions(version);
        }
    }

    /// Removes kept objects whose time is over. Returns the keys whose published object changed.
    pub(super) fn expire(&mut self, now: Duration) -> Vec<ObjectKey> {
        let due = |key: &&ObjectKey| self.entries[*key].kept.as_ref().is_some_and(|kept| kept.until <= now);
        let due: Vec<ObjectKey> = self.kept.iter().filter(due).cloned().collect();
        let mut changed = Vec::new();
        for key in due {
            self.kept.remove(&key);
            let entry = self.entries.get_mut(&key).expect("what is kept has an entry");
            let kept = entry.kept.take().expect("it was due");
            let same = match &entry.server {
                Server::Has(item) => item.value == kept.item.value,
                Server::Lacks(_) => {
                    self.deletions += 1;
                    false
                }
            };
            if !same {
                changed.push(key);
            }
        }
        changed
    }

    /// Replaces the value with the result of `edit`, both in the published object and in the API server's.
    pub(super) fn edit(&mut self, key: &ObjectKey, edit: impl Fn(&T) -> T) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if let Server::Has(item) = &mut entry.server {
            item.value = edit(&item.value);
        }
        if let Some(kept) = &mut entry.kept {
            kept.item.value = edit(&kept.item.value);
        }
    }

    /// When [`expire`](Self::expire) is due next.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.kept().map(|(_, until)| until).min()
    }

    /// The kept objects, each with the end of its time.
    pub(super) fn kept(&self) -> impl ExactSizeIterator<Item = (&ObjectKey, Duration)> {
        let until = |key| self.entries[key].kept.as_ref().map_or(Duration::ZERO, |kept| kept.until);
        self.kept.iter().map(move |key| (key, until(key)))
    }

    /// The object in use.
    pub(super) fn current(&self, key: &ObjectKey) -> Option<&T> {
        self.entries.get(key).and_then(Entry::current).map(|item| &item.value)
    }

    /// All objects in use.
    pub(super) fn all(&self) -> impl Iterator<Item = (&ObjectKey, &Item<T>)> {
        self.entries.iter().filter_map(|(key, entry)| Some((key, entry.current()?)))
    }

    /// All objects in use, with the remaining time of kept ones: the input of [`load`](Self::load).
    pub(super) fn remaining(&self, now: Duration) -> impl Iterator<Item = (&Item<T>, Option<Duration>)> {
        let left = move |kept: &Kept<T>| kept.until.saturating_sub(now);
        self.entries.values().filter_map(move |entry| Some((entry.current()?, entry.kept.as_ref().map(left))))
    }

    fn deletion(&mut self) {
        self.deletions += 1;
        if self.deletions > DELETIONS_MAX {
            self.remove_deletions(u64::MAX);
        }
    }

    fn remove_deletions(&mut self, up_to: u64) {
        self.entries.retain(|_, entry| {
            entry.kept.is_some() || !matches!(entry.server, Server::Lacks(version) if version <= up_to)
        });
        let left = self.entries.values().filter(|e| e.kept.is_none() && matches!(e.server, Server::Lacks(_)));
        self.deletions = left.count();
    }
}

impl<T> Entry<T> {
    /// Whether the object in use is the current one of the API server.
    fn is_current(&self) -> bool {
        self.kept.is_none() && matches!(self.server, Server::Has(_))
    }

    fn current(&self) -> Option<&Item<T>> {
        match (&self.kept, &self.server) {
            (Some(kept), _) => Some(&kept.item),
            (None, Server::Has(item)) => Some(item),
            (None, Server::Lacks(_)) => None,
        }
    }

    /// The object in use, and the time until which to keep it: `until`, unless the object is already kept.
    fn into_current(self, until: Duration) -> (Option<Item<T>>, Duration) {
        match self.kept {
            Some(kept) => (Some(kept.item), kept.until),
            None => (self.server.item(), until),
        }
    }
}

impl<T> Server<T> {
    fn item(self) -> Option<Item<T>> {
        match self {
            Self::Has(item) => Some(item),
            Self::Lacks(_) => None,
        }
    }

    /// Whether the API server has reported a later state than this one. Both are from the same history, so the uid
    /// doesn't matter.
    fn is_after(&self, item: &Item<T>) -> bool {
        match self {
            Self::Has(known) => item.version != 0 && item.version < known.version,
            Self::Lacks(version) => item.version != 0 && item.version <= *version,
        }
    }
}

/// Whether it is an earlier version of the same object.
fn is_older<T>(item: &Item<T>, than: &Item<T>) -> bool {
    item.version != 0 && item.version < than.version && !is_another(item, than)
}

/// Whether it was recreated under the name of the other object.
fn is_another<T>(item: &Item<T>, than: &Item<T>) -> bool {
    differ(&item.uid, &than.uid)
}

fn differ(uid: &str, other: &str) -> bool {
    !uid.is_empty() && !other.is_empty() && uid != other
}

/// Replaces the object in use with `item`. An equal value keeps its allocation. Returns whether the value changed.
fn replace<T: PartialEq>(current: Option<Item<T>>, item: Item<T>) -> (Item<T>, bool) {
    match current {
        Some(current) if current.value == item.value => (Item { value: current.value, ..item }, false),
        _ => (item, true),
    }
}

#[cfg(test)]
mod tests;
