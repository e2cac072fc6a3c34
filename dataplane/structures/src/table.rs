//! A table that the packet path reads, and of which a revision changes a few items.
//!
//! The items are contiguous, so packets index it like a slice. A snapshot never changes, so a revision needs its own
//! memory. [`Table::revised`] reuses the memory of a table that is no longer read, and writes only the changes since
//! that version. If no such table exists, it copies the whole table: 6 MB and two thousand page faults with 100,000
//! backends.
//!
//! Invariant: a revised table equals a copy with the same changes.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of dropped tables whose memory is kept for later revisions.
const SPARES_MAX: usize = 2;
/// The number of revisions whose changes are recorded. Older memory is overwritten in full.
const CHANGES_MAX: usize = 8;

/// The length of a table with this many indices. It includes spare items, so that the table rarely grows: growing
/// copies all of it.
pub fn table_len(indices: usize) -> usize {
    indices.next_multiple_of((indices / 32).next_power_of_two().max(1024))
}

/// A table that packets read. Clones share the memory.
pub struct Table<T> {
    items: Arc<[T]>,
    version: u64,
    shared: Arc<Mutex<Shared<T>>>,
}

/// The data that the revisions of one table share.
#[derive(Debug)]
struct Shared<T> {
    spares: Vec<(u64, Arc<[T]>)>,
    changes: VecDeque<Changes>,
    /// The newest version.
    version: u64,
}

/// The items that one revision changed.
#[derive(Debug)]
struct Changes {
    version: u64,
    before: u64,
    items: Vec<usize>,
}

/// A table during a revision.
#[derive(Debug)]
pub struct Edit<'a, T> {
    items: &'a mut [T],
    changed: Vec<usize>,
}

impl<T> Table<T> {
    fn shared(&self) -> MutexGuard<'_, Shared<T>> {
        // The contents are always consistent, so a poisoned lock does no harm.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone> Table<T> {
    /// A copy with changes, and with `more` appended.
    pub fn revised(&self, more: impl IntoIterator<Item = T>, change: impl FnOnce(&mut Edit<'_, T>)) -> Self {
        let mut more = more.into_iter().peekable();
        if more.peek().is_some() {
            let mut items: Vec<T> = self.items.iter().cloned().chain(more).collect();
            change(&mut Edit::of(&mut items));
            return items.into();
        }
        let mut memory = self.shared().memory(self);
        let items = Arc::get_mut(&mut memory).expect("no other owner exists");
        let mut edit = Edit::of(items);
        change(&mut edit);
        let version = self.shared().changed(self.version, edit.changed);
        Self { items: memory, version, shared: Arc::clone(&self.shared) }
    }
}

impl<T: Clone> Shared<T> {
    /// Memory without another owner, filled with the table's items.
    fn memory(&mut self, table: &Table<T>) -> Arc<[T]> {
        let is_unused = |(_, spare): &mut (u64, Arc<[T]>)| Arc::get_mut(spare).is_some();
        let Some(at) = self.spares.iter_mut().position(is_unused) else {
            return Arc::from(&table.items[..]);
        };
        let (version, mut spare) = self.spares.swap_remove(at);
        let items = Arc::get_mut(&mut spare).expect("it was unused above");
        match self.between(version, table.version) {
            Some(changed) => changed.for_each(|at| items[at].clone_from(&table.items[at])),
            None => items.clone_from_slice(&table.items),
        }
        spare
    }

    /// The index of each item that may differ between two versions; `None` if one version is not derived from the
    /// other, or there were too many changes.
    fn between(&self, from: u64, to: u64) -> Option<impl Iterator<Item = usize>> {
        let mut steps = Vec::new();
        let mut at = to;
        for step in self.changes.iter().rev() {
            if at == from {
                break;
            }
            if step.version == at {
                at = step.before;
                steps.push(&step.items);
            }
        }
        (at == from).then(|| steps.into_iter().flatten().copied())
    }

    fn changed(&mut self, before: u64, items: Vec<usize>) -> u64 {
        self.version += 1;
        if self.changes.len() == CHANGES_MAX {
            self.changes.pop_front();
        }
        self.changes.push_back(Changes { version: self.version, before, items });
        self.version
    }
}

impl<'a, T> Edit<'a, T> {
    /// An edit of a table that is not built yet.
    fn of(items: &'a mut [T]) -> Self {
        Self { items, changed: Vec::new() }
    }

    /// Replaces an item.
    ///
    /// # Panics
    /// If there is no item at this position.
    pub fn set(&mut self, at: usize, value: T) {
        *self.get_mut(at) = value;
    }

    /// A mutable reference to an item, which is recorded as changed.
    ///
    /// # Panics
    /// If there is no item at this position.
    pub fn get_mut(&mut self, at: usize) -> &mut T {
        self.changed.push(at);
        &mut self.items[at]
    }
}

impl<T> Deref for Edit<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.items
    }
}

impl<T> From<Vec<T>> for Table<T> {
    fn from(items: Vec<T>) -> Self {
        let shared = Shared { spares: Vec::new(), changes: VecDeque::new(), version: 0 };
        Self { items: items.into(), version: 0, shared: Arc::new(Mutex::new(shared)) }
    }
}

impl<T> Deref for Table<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl<T> Clone for Table<T> {
    fn clone(&self) -> Self {
        Self { items: Arc::clone(&self.items), version: self.version, shared: Arc::clone(&self.shared) }
    }
}

impl<T> Drop for Table<T> {
    /// Keeps the memory for a later revision.
    fn drop(&mut self) {
        let mut shared = self.shared();
        let is_known = shared.spares.iter().any(|(_, spare)| Arc::ptr_eq(spare, &self.items));
        if !is_known && shared.spares.len() < SPARES_MAX {
            shared.spares.push((self.version, Arc::clone(&self.items)));
        }
    }
}

impl<T: PartialEq> PartialEq for Table<T> {
    fn eq(&self, other: &Self) -> bool {
        self.items == other.items
    }
}

impl<T: fmt::Debug> fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.items.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Revises one of the tables, and drops another.
    #[derive(Debug, Clone)]
    struct Step {
        of: usize,
        sets: Vec<(usize, u32)>,
        more: usize,
        drops: Option<usize>,
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let sets = proptest::collection::vec((0_usize..20, any::<u32>()), 0..4);
        let more = prop_oneof![9 => Just(0_usize), 1 => 1_usize..4];
        (any::<usize>(), sets, more, proptest::option::weighted(0.8, any::<usize>()))
            .prop_map(|(of, sets, more, drops)| Step { of, sets, more, drops })
    }

    proptest! {
        #[test]
        fn a_revised_table_is_a_changed_copy_whatever_else_is_alive(
            steps in proptest::collection::vec(any_step(), 1..60),
        ) {
            let first: Vec<u32> = (0..20).collect();
            let mut tables = vec![(Table::from(first.clone()), first)];
            for Step { of, sets, more, drops } in steps {
                let (table, copy) = &tables[of % tables.len()];
                let mut changed = copy.clone();
                changed.extend((0..more).map(|_| 7));
                sets.iter().for_each(|&(at, value)| changed[at] = value);
                let revised = table.revised(std::iter::repeat_n(7, more), |edit| {
                    sets.iter().for_each(|&(at, value)| edit.set(at, value));
                });
                tables.push((revised, changed));
                if let Some(at) = drops {
                    tables.swap_remove(at % tables.len());
                }
                prop_assert!(tables.iter().all(|(table, copy)| **table == **copy));
                if tables.is_empty() {
                    break;
                }
            }
        }
    }

    #[test]
    fn unused_memory_is_reused_and_only_changed_items_are_written() {
        let first = Table::from((0..1_000).map(|_| Arc::new(0)).collect::<Vec<_>>());
        let at_first = first.as_ptr();
        let second = first.revised([], |edit| edit.set(5, Arc::new(5)));
        assert_ne!(second.as_ptr(), at_first, "a snapshot still has the first one");
        drop(first);
        let third = second.revised([], |edit| edit.set(7, Arc::new(7)));
        assert_eq!(third.as_ptr(), at_first);
        assert_eq!((*third[5], *third[7], *third[8]), (5, 7, 0));
        assert!(Arc::ptr_eq(&third[5], &second[5]), "the item was brought up to date");
        assert_eq!(*second[7], 0);
    }

    #[test]
    fn a_table_in_use_is_never_written() {
        let first = Table::from(vec![0_u8; 10]);
        let reader = first.clone();
        let second = first.revised([], |edit| edit.set(0, 1));
        drop(first);
        let third = second.revised([], |edit| edit.set(0, 2));
        drop(second);
        let fourth = third.revised([], |edit| edit.set(0, 3));
        assert_eq!((reader[0], third[0], fourth[0]), (0, 2, 3));
    }
}
