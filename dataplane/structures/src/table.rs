//! A table that packets read, and that a revision changes in a few places.
//!
//! The places are contiguous, so a packet finds one as in any slice. A snapshot never changes, so a revision needs its
//! own memory. [`Table::revised`] reuses the memory of a table that is no longer read, and writes only the changes
//! since that version. If there is none, it copies the whole table. With 100,000 backends a copy is 6 MB and two
//! thousand page faults.
//!
//! Invariant: a revised table equals a copy with the same changes.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory of dropped tables that is kept for the next revisions: workers read one table while the next is built.
const SPARES_MAX: usize = 2;
/// The number of revisions whose changes are recorded. Older memory is filled by a copy.
const CHANGES_MAX: usize = 8;

/// The number of table places for this many indices. There are spare places, so that a table rarely grows: then all of it
/// is copied.
pub fn places(indices: usize) -> usize {
    indices.next_multiple_of((indices / 32).next_power_of_two().max(1024))
}

/// A table that packets read. A copy shares the memory.
pub struct Table<T> {
    places: Arc<[T]>,
    version: u64,
    past: Arc<Mutex<Past<T>>>,
}

/// The data that the revisions of one table share.
#[derive(Debug)]
struct Past<T> {
    spares: Vec<(u64, Arc<[T]>)>,
    changes: VecDeque<Changes>,
    /// The last version that was assigned.
    version: u64,
}

/// The places that one revision changed.
#[derive(Debug)]
struct Changes {
    version: u64,
    before: u64,
    places: Vec<usize>,
}

/// A table during a revision.
#[derive(Debug)]
pub struct Edit<'a, T> {
    places: &'a mut [T],
    changed: Vec<usize>,
}

impl<T> Table<T> {
    fn past(&self) -> MutexGuard<'_, Past<T>> {
        // The contents are consistent at any time, so a panic of another thread that holds the lock does no harm.
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone> Table<T> {
    /// A copy with changes, and with `more` appended.
    pub fn revised(&self, more: impl IntoIterator<Item = T>, change: impl FnOnce(&mut Edit<'_, T>)) -> Self {
        let mut more = more.into_iter().peekable();
        if more.peek().is_some() {
            let mut places: Vec<T> = self.places.iter().cloned().chain(more).collect();
            change(&mut Edit::of(&mut places));
            return places.into();
        }
        let mut memory = self.past().memory(self);
        let places = Arc::get_mut(&mut memory).expect("nobody else has it");
        let mut edit = Edit::of(places);
        change(&mut edit);
        let version = self.past().changed(self.version, edit.changed);
        Self { places: memory, version, past: Arc::clone(&self.past) }
    }
}

impl<T: Clone> Past<T> {
    /// Memory with a copy of the table's places that has no other owner.
    fn memory(&mut self, table: &Table<T>) -> Arc<[T]> {
        let is_unused = |(_, spare): &mut (u64, Arc<[T]>)| Arc::get_mut(spare).is_some();
        let Some(at) = self.spares.iter_mut().position(is_unused) else {
            return Arc::from(&table.places[..]);
        };
        let (version, mut spare) = self.spares.swap_remove(at);
        let places = Arc::get_mut(&mut spare).expect("it was found unused");
        match self.between(version, table.version) {
            Some(changed) => changed.for_each(|at| places[at].clone_from(&table.places[at])),
            None => places.clone_from_slice(&table.places),
        }
        spare
    }

    /// Each place that may differ between two versions; `None` if one version is not derived from the other, or there
    /// were too many changes.
    fn between(&self, from: u64, to: u64) -> Option<impl Iterator<Item = usize>> {
        let mut steps = Vec::new();
        let mut at = to;
        for step in self.changes.iter().rev() {
            if at == from {
                break;
            }
            if step.version == at {
                at = step.before;
                steps.push(&step.places);
            }
        }
        (at == from).then(|| steps.into_iter().flatten().copied())
    }

    fn changed(&mut self, before: u64, places: Vec<usize>) -> u64 {
        self.version += 1;
        if self.changes.len() == CHANGES_MAX {
            self.changes.pop_front();
        }
        self.changes.push_back(Changes { version: self.version, before, places });
        self.version
    }
}

impl<'a, T> Edit<'a, T> {
    /// An edit of a table that is not built yet.
    fn of(places: &'a mut [T]) -> Self {
        Self { places, changed: Vec::new() }
    }

    /// # Panics
    /// If there is no such place.
    pub fn set(&mut self, at: usize, value: T) {
        *self.get_mut(at) = value;
    }

    /// A mutable reference to a place, which is recorded as changed.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn get_mut(&mut self, at: usize) -> &mut T {
        self.changed.push(at);
        &mut self.places[at]
    }
}

impl<T> Deref for Edit<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.places
    }
}

impl<T> From<Vec<T>> for Table<T> {
    fn from(places: Vec<T>) -> Self {
        let past = Past { spares: Vec::new(), changes: VecDeque::new(), version: 0 };
        Self { places: places.into(), version: 0, past: Arc::new(Mutex::new(past)) }
    }
}

impl<T> Deref for Table<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.places
    }
}

impl<T> Clone for Table<T> {
    fn clone(&self) -> Self {
        Self { places: Arc::clone(&self.places), version: self.version, past: Arc::clone(&self.past) }
    }
}

impl<T> Drop for Table<T> {
    /// Passes the memory on to the next revision.
    fn drop(&mut self) {
        let mut past = self.past();
        let is_known = past.spares.iter().any(|(_, spare)| Arc::ptr_eq(spare, &self.places));
        if !is_known && past.spares.len() < SPARES_MAX {
            past.spares.push((self.version, Arc::clone(&self.places)));
        }
    }
}

impl<T: PartialEq> PartialEq for Table<T> {
    fn eq(&self, other: &Self) -> bool {
        self.places == other.places
    }
}

impl<T: fmt::Debug> fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.places.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Revises one of the held tables, and drops another.
    #[derive(Debug, Clone)]
    struct Turn {
        of: usize,
        sets: Vec<(usize, u32)>,
        more: usize,
        drops: Option<usize>,
    }

    fn any_turn() -> impl Strategy<Value = Turn> {
        let sets = proptest::collection::vec((0_usize..20, any::<u32>()), 0..4);
        let more = prop_oneof![9 => Just(0_usize), 1 => 1_usize..4];
        (any::<usize>(), sets, more, proptest::option::weighted(0.8, any::<usize>()))
            .prop_map(|(of, sets, more, drops)| Turn { of, sets, more, drops })
    }

    proptest! {
        #[test]
        fn a_revised_table_is_a_changed_copy_whatever_else_is_held(
            turns in proptest::collection::vec(any_turn(), 1..60),
        ) {
            let first: Vec<u32> = (0..20).collect();
            let mut held = vec![(Table::from(first.clone()), first)];
            for Turn { of, sets, more, drops } in turns {
                let (table, copy) = &held[of % held.len()];
                let mut changed = copy.clone();
                changed.extend((0..more).map(|_| 7));
                sets.iter().for_each(|&(at, value)| changed[at] = value);
                let revised = table.revised(std::iter::repeat_n(7, more), |edit| {
                    sets.iter().for_each(|&(at, value)| edit.set(at, value));
                });
                held.push((revised, changed));
                if let Some(at) = drops {
                    held.swap_remove(at % held.len());
                }
                prop_assert!(held.iter().all(|(table, copy)| **table == **copy));
                if held.is_empty() {
                    break;
                }
            }
        }
    }

    #[test]
    fn memory_that_nobody_reads_is_used_again_and_only_changed_places_are_written() {
        let first = Table::from((0..1_000).map(|_| Arc::new(0)).collect::<Vec<_>>());
        let at_first = first.as_ptr();
        let second = first.revised([], |edit| edit.set(5, Arc::new(5)));
        assert_ne!(second.as_ptr(), at_first, "a snapshot has the first one still");
        drop(first);
        let third = second.revised([], |edit| edit.set(7, Arc::new(7)));
        assert_eq!(third.as_ptr(), at_first);
        assert_eq!((*third[5], *third[7], *third[8]), (5, 7, 0));
        assert!(Arc::ptr_eq(&third[5], &second[5]), "the place was brought up to date");
        assert_eq!(*second[7], 0);
    }

    #[test]
    fn a_table_that_somebody_reads_is_never_written() {
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
