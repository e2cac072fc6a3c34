//! The objects of one kind that the gateway uses: those of the API server, and those that the server seems to have
//! lost.
//!
//! [`Retain`] receives lists and watch events, and returns the keys whose object changed. Changes from a watch take
//! effect at once. A list after a loss is different: the API server may have returned empty or from a backup. An
//! object that is missing there, or older than before, is *kept*: the last known version stays in use until the API
//! server has it again (at that version or newer, or created again with another uid), or until the grace time is
//! over. New objects in such a list are used at once. If a list continues the known history ([`Continuity`]; a watch
//! that expired on a healthy API server), missing objects count as deleted, unless most of them are missing. In the
//! first list after a start that is newer than the disk, all missing objects count as deleted.
//!
//! Versions are `metadata.resourceVersion`, compared as numbers (KEP-5504); 0 stands for a version that is not a
//! number, and counts as newer than any other. Versions also detect events that arrive twice or out of order.
//! Versions from before and after a loss are compared only if both objects have the same uid.
//!
//! Invariant: pure: the clock is an argument, and advances only while the API server answers, so that nothing expires
//! while it is away.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidegate_model::objects::ObjectKey;

/// Deletions remembered, to tell a late event about what was deleted. Bookmarks clear them.
const DELETIONS_MAX: usize = 16_384;

/// See the module.
#[derive(Debug)]
pub(super) struct Retain<T> {
    entries: BTreeMap<ObjectKey, Entry<T>>,
    /// The entries that have something kept.
    kept: BTreeSet<ObjectKey>,
    /// How many entries are only the memory of a deletion.
    deletions: usize,
    grace: Duration,
}

/// An object at a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item<T> {
    pub(super) version: u64,
    /// `metadata.uid`: of two objects of one name the later has another. Empty where it is not known.
    pub(super) uid: Box<str>,
    pub(super) value: T,
}

/// Whether a list is of the history that was seen so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Continuity {
    /// It is, by all that can be told.
    GoesOn,
    /// It is of the same cluster, and newer than the objects on disk when the gateway started: all missing objects
    /// count as deleted, however many they are.
    Newer,
    /// It may be of a server that is back empty, or from a backup.
    Unknown,
}

#[derive(Debug)]
struct Entry<T> {
    server: Server<T>,
    kept: Option<Kept<T>>,
}

/// What the API server says.
#[derive(Debug)]
enum Server<T> {
    Has(Item<T>),
    /// Not there, as of this version.
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
    /// Keys whose shown object changed.
    pub(super) changed: Vec<ObjectKey>,
    /// Objects that are kept though they are not in the list.
    pub(super) vanished: usize,
    /// Objects that are kept though the list has them, older.
    pub(super) older: usize,
    /// Objects that are another one of the same name now.
    pub(super) recreated: usize,
    /// Objects that are not in the list, and shown no more.
    pub(super) deleted: usize,
}

impl<T: Clone + PartialEq> Retain<T> {
    /// Empty. With a grace of zero, missing objects count as deleted at once.
    pub(super) fn new(grace: Duration) -> Self {
        Self { entries: BTreeMap::new(), kept: BTreeSet::new(), deletions: 0, grace }
    }

    /// The objects that there were before, as they were: of a file. Some were only kept, for this long still.
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

    /// A full list, as of `version`, at `now`.
    pub(super) fn listed(
        &mut self,
        items: impl IntoIterator<Item = (ObjectKey, Item<T>)>,
        version: u64,
        continuity: Continuity,
        now: Duration,
    ) -> Relisted {
        let mut relisted = Relisted::default();
        let mut before = std::mem::take(&mut self.entries);
        let had = before.values().filter(|entry| entry.is_only_there()).count();
        let until = now + self.grace;
        self.kept.clear();
        self.deletions = 0;
        for (key, item) in items {
            let (shown, until) = before.remove(&key).map_or((None, until), |entry| entry.into_shown(until));
            let entry = match shown {
                Some(shown) if is_older(&item, &shown) && !self.grace.is_zero() => {
                    relisted.older += 1;
                    self.kept.insert(key.clone());
                    Entry { server: Server::Has(item), kept: Some(Kept { item: shown, until }) }
                }
                shown => {
                    relisted.recreated += usize::from(shown.as_ref().is_some_and(|s| is_another(&item, s)));
                    let (item, changed) = settle(shown, item);
                    if changed {
                        relisted.changed.push(key.clone());
                    }
                    Entry { server: Server::Has(item), kept: None }
                }
            };
            self.entries.insert(key, entry);
        }
        let lost = before.values().filter(|entry| entry.is_only_there()).count();
        let is_believed = match continuity {
            // Whoever deletes most of what there is does so while somebody watches; a half-empty server does not.
            Continuity::GoesOn => lost * 2 <= had,
            // Nobody watched while the gateway was not running.
            Continuity::Newer => true,
            Continuity::Unknown => false,
        };
        let is_believed = is_believed && relisted.older == 0;
        for (key, entry) in before {
            let is_deletion = self.grace.is_zero() || is_believed && entry.is_only_there();
            let (Some(shown), until) = entry.into_shown(until) else { continue };
            if is_deletion {
                relisted.deleted += 1;
                relisted.changed.push(key);
                continue;
            }
            relisted.vanished += 1;
            self.kept.insert(key.clone());
            let kept = Some(Kept { item: shown, until });
            self.entries.insert(key, Entry { server: Server::Lacks(version), kept });
        }
        relisted
    }

    /// A watch says that the object was added or modified. Whether what is shown changed.
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
        let (item, changed) = settle(kept.or(server.item()), item);
        entry.server = Server::Has(item);
        changed
    }

    /// A watch says that the object of this uid was deleted, at `version`. Whether what is shown changed.
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
        let had = matches!(entry.server, Server::Has(_));
        entry.server = Server::Lacks(version);
        match &entry.kept {
            // Of another object it tells that the kept one was replaced before.
            Some(kept) if version != 0 && version < kept.item.version && !differ(uid, &kept.item.uid) => {
                false
            }
            Some(_) => {
                entry.kept = None;
                self.kept.remove(key);
                self.deletion();
                true
            }
            None if had => {
                self.deletion();
                true
            }
            None => false,
        }
    }

    /// Records a bookmark: everything up to `version` has been received.
    pub(super) fn bookmark(&mut self, version: u64) {
        if self.deletions > 0 {
            self.forget_deletions(version);
        }
    }

    /// Ends what was kept long enough; the keys whose shown object changed by that.
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

    /// Puts what `edit` makes of it in the place of the value, of the version that is shown and of the API server's.
    pub(super) fn edit(&mut self, key: &ObjectKey, edit: impl Fn(&T) -> T) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if let Server::Has(item) = &mut entry.server {
            item.value = edit(&item.value);
        }
        if let Some(kept) = &mut entry.kept {
            kept.item.value = edit(&kept.item.value);
        }
    }

    /// When [`expire`](Self::expire) has something to do next.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.kept().map(|(_, until)| until).min()
    }

    /// What is kept, and until when.
    pub(super) fn kept(&self) -> impl ExactSizeIterator<Item = (&ObjectKey, Duration)> {
        let until = |key| self.entries[key].kept.as_ref().map_or(Duration::ZERO, |kept| kept.until);
        self.kept.iter().map(move |key| (key, until(key)))
    }

    /// The object to go by.
    pub(super) fn shown(&self, key: &ObjectKey) -> Option<&T> {
        self.entries.get(key).and_then(Entry::shown).map(|item| &item.value)
    }

    /// All objects to go by.
    pub(super) fn all(&self) -> impl Iterator<Item = (&ObjectKey, &Item<T>)> {
        self.entries.iter().filter_map(|(key, entry)| Some((key, entry.shown()?)))
    }

    /// All objects to go by, and of those that are kept for how long still: what [`load`](Self::load) takes.
    pub(super) fn remaining(&self, now: Duration) -> impl Iterator<Item = (&Item<T>, Option<Duration>)> {
        let left = move |kept: &Kept<T>| kept.until.saturating_sub(now);
        self.entries.values().filter_map(move |entry| Some((entry.shown()?, entry.kept.as_ref().map(left))))
    }

    fn deletion(&mut self) {
        self.deletions += 1;
        if self.deletions > DELETIONS_MAX {
            self.forget_deletions(u64::MAX);
        }
    }

    fn forget_deletions(&mut self, up_to: u64) {
        self.entries.retain(|_, entry| {
            entry.kept.is_some() || !matches!(entry.server, Server::Lacks(version) if version <= up_to)
        });
        let left = self.entries.values().filter(|e| e.kept.is_none() && matches!(e.server, Server::Lacks(_)));
        self.deletions = left.count();
    }
}

impl<T> Entry<T> {
    /// Whether the shown object is the last one of the API server.
    fn is_only_there(&self) -> bool {
        self.kept.is_none() && matches!(self.server, Server::Has(_))
    }

    fn shown(&self) -> Option<&Item<T>> {
        match (&self.kept, &self.server) {
            (Some(kept), _) => Some(&kept.item),
            (None, Server::Has(item)) => Some(item),
            (None, Server::Lacks(_)) => None,
        }
    }

    /// The shown object, and until when it is kept if it must be kept: no longer than it was already to be kept.
    fn into_shown(self, until: Duration) -> (Option<Item<T>>, Duration) {
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

    /// Whether the API server has said something later than this: of the same history, so the uid is no matter.
    fn is_after(&self, item: &Item<T>) -> bool {
        match self {
            Self::Has(known) => item.version != 0 && item.version < known.version,
            Self::Lacks(version) => item.version != 0 && item.version <= *version,
        }
    }
}

/// Whether it is the same object, as it was earlier.
fn is_older<T>(item: &Item<T>, than: &Item<T>) -> bool {
    item.version != 0 && item.version < than.version && !is_another(item, than)
}

/// Whether it was created again under the name of the other.
fn is_another<T>(item: &Item<T>, than: &Item<T>) -> bool {
    differ(&item.uid, &than.uid)
}

fn differ(uid: &str, other: &str) -> bool {
    !uid.is_empty() && !other.is_empty() && uid != other
}

/// Puts `item` in the place of what was shown; an equal value stays the one that it is. Whether it changed.
fn settle<T: PartialEq>(shown: Option<Item<T>>, item: Item<T>) -> (Item<T>, bool) {
    match shown {
        Some(shown) if shown.value == item.value => (Item { value: shown.value, ..item }, false),
        _ => (item, true),
    }
}

#[cfg(test)]
mod tests;
