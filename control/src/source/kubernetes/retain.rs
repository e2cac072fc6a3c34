//! What is shown of one kind of objects: what the API server has, but for what it seems to have lost.
//!
//! [`Retain`] takes what a list and a watch say, in their words, and answers with the keys whose shown object changed.
//! Changes seen by a watch count at once. A list after a loss is different: the API server may be back empty, or back
//! from a backup. An object that is missing there, or older there than it was, is *kept*: shown as it last was, until
//! the API server has it again (at that version or newer), or until the grace time is over. Objects that are new in
//! such a list are shown at once.
//!
//! Versions are `metadata.resourceVersion`, which compare as numbers (KEP-5504); 0 stands for one that does not, and
//! counts as newer than anything. Events that come twice or out of order are told by their versions.
//!
//! Invariant: pure: the clock is an argument, and counts only while the API server answers, so that nothing expires
//! while it is away.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::model::ObjectKey;

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
    pub(super) value: T,
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

/// What a list after a loss came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Relisted {
    /// Keys whose shown object changed.
    pub(super) changed: Vec<ObjectKey>,
    /// Objects that were shown and are not in the list.
    pub(super) vanished: usize,
    /// Objects that were shown and are older in the list.
    pub(super) older: usize,
}

impl<T: Clone + PartialEq> Retain<T> {
    /// Nothing yet. With a grace of zero everything is believed at once.
    pub(super) fn new(grace: Duration) -> Self {
        Self { entries: BTreeMap::new(), kept: BTreeSet::new(), deletions: 0, grace }
    }

    /// The objects that there were before, as they were: of a file.
    pub(super) fn load(&mut self, items: impl IntoIterator<Item = (ObjectKey, Item<T>)>) {
        *self = Self::new(self.grace);
        let entry = |item| Entry { server: Server::Has(item), kept: None };
        self.entries = items.into_iter().map(|(key, item)| (key, entry(item))).collect();
    }

    /// A full list, as of `version`, at `now`.
    pub(super) fn listed(
        &mut self,
        items: impl IntoIterator<Item = (ObjectKey, Item<T>)>,
        version: u64,
        now: Duration,
    ) -> Relisted {
        let mut relisted = Relisted::default();
        let mut before = std::mem::take(&mut self.entries);
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
                    let (item, changed) = settle(shown, item);
                    if changed {
                        relisted.changed.push(key.clone());
                    }
                    Entry { server: Server::Has(item), kept: None }
                }
            };
            self.entries.insert(key, entry);
        }
        for (key, entry) in before {
            let (Some(shown), until) = entry.into_shown(until) else { continue };
            relisted.vanished += 1;
            if self.grace.is_zero() {
                relisted.changed.push(key);
                continue;
            }
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

    /// A watch says that the object was deleted, at `version`. Whether what is shown changed.
    pub(super) fn deleted(&mut self, key: &ObjectKey, version: u64) -> bool {
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
            Some(kept) if version != 0 && version < kept.item.version => false,
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

    /// A watch says that everything up to `version` has been told.
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
    fn shown(&self) -> Option<&Item<T>> {
        match (&self.kept, &self.server) {
            (Some(kept), _) => Some(&kept.item),
            (None, Server::Has(item)) => Some(item),
            (None, Server::Lacks(_)) => None,
        }
    }

    /// What is shown; and until when it is kept, if it has to be: no longer than it was to be kept already.
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

    /// Whether the API server has said something later than this.
    fn is_after(&self, item: &Item<T>) -> bool {
        match self {
            Self::Has(known) => is_older(item, known),
            Self::Lacks(version) => item.version != 0 && item.version <= *version,
        }
    }
}

fn is_older<T>(item: &Item<T>, than: &Item<T>) -> bool {
    item.version != 0 && than.version != 0 && item.version < than.version
}

/// Puts `item` in the place of what was shown; an equal value stays the one that it is. Whether it changed.
fn settle<T: PartialEq>(shown: Option<Item<T>>, item: Item<T>) -> (Item<T>, bool) {
    match shown {
        Some(shown) if shown.value == item.value => {
            (Item { version: item.version, value: shown.value }, false)
        }
        _ => (item, true),
    }
}

#[cfg(test)]
mod tests;
