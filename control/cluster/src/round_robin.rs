//! A queue that serves namespaces in round-robin order, so that a namespace with thousands of entries, or with a
//! constant stream of new ones, doesn't delay the few entries of another.
//!
//! Entries without a namespace, such as those of an AddressPool, count as one namespace.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// The queue.
#[derive(Debug)]
pub(super) struct RoundRobin<T> {
    /// The entries by namespace, without empty ones.
    waiting: BTreeMap<String, VecDeque<T>>,
    len: usize,
    /// The namespace that was served last.
    last: String,
}

/// The position of an entry, valid until the next change.
#[derive(Debug)]
pub(super) struct Position {
    namespace: String,
    at: usize,
}

impl<T> Default for RoundRobin<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), len: 0, last: String::new() }
    }
}

impl<T> RoundRobin<T> {
    /// The number of entries.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Removes all entries, but keeps the round-robin position.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.len = 0;
    }

    /// All entries, by namespace.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.waiting.values().flatten()
    }

    /// Appends an entry to those of its namespace.
    pub(super) fn push(&mut self, namespace: &str, item: T) {
        self.insert(namespace, item, VecDeque::len);
    }

    /// Adds an entry to those of its namespace, which all have been added by this order. The last one is dropped first.
    pub(super) fn insert_by_key<K: Ord>(&mut self, namespace: &str, item: T, key: impl Fn(&T) -> K) {
        let new = key(&item);
        self.insert(namespace, item, |items| items.partition_point(|one| key(one) <= new));
    }

    fn insert(&mut self, namespace: &str, item: T, at: impl FnOnce(&VecDeque<T>) -> usize) {
        match self.waiting.get_mut(namespace) {
            Some(items) => items.insert(at(items), item),
            None => drop(self.waiting.insert(namespace.to_owned(), VecDeque::from([item]))),
        }
        self.len += 1;
    }

    /// Finds the next entry: the first due entry of the next namespace that may send and has one.
    pub(super) fn find(
        &self,
        may_send: impl Fn(&str) -> bool,
        mut is_due: impl FnMut(&T) -> bool,
    ) -> Option<Position> {
        let last = self.last.as_str();
        let after = self.waiting.range::<str, _>((Bound::Excluded(last), Bound::Unbounded));
        let up_to = self.waiting.range::<str, _>((Bound::Unbounded, Bound::Included(last)));
        let mut round = after.chain(up_to).filter(|(namespace, _)| may_send(namespace));
        round.find_map(|(namespace, items)| {
            let at = items.iter().position(&mut is_due)?;
            Some(Position { namespace: namespace.clone(), at })
        })
    }

    /// Removes the entry at a position. The next search starts after its namespace.
    pub(super) fn take(&mut self, position: Position) -> Option<T> {
        let Position { namespace, at } = position;
        let items = self.waiting.get_mut(&namespace)?;
        let item = items.remove(at)?;
        if items.is_empty() {
            self.waiting.remove(&namespace);
        }
        self.len -= 1;
        self.last = namespace;
        Some(item)
    }

    /// Removes the last entry of the namespace that has the most.
    pub(super) fn drop_from_largest(&mut self) -> Option<T> {
        let (namespace, items) = self.waiting.iter_mut().max_by_key(|(_, items)| items.len())?;
        let item = items.pop_back();
        if items.is_empty() {
            let namespace = namespace.clone();
            self.waiting.remove(&namespace);
        }
        self.len -= usize::from(item.is_some());
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(queue: &mut RoundRobin<u32>) -> Option<u32> {
        let position = queue.find(|_| true, |_| true)?;
        queue.take(position)
    }

    #[test]
    fn namespaces_alternate_and_each_keeps_its_own_order() {
        let mut queue = RoundRobin::default();
        for (namespace, item) in [("a", 1), ("a", 2), ("a", 3), ("b", 10), ("c", 20), ("c", 21)] {
            queue.push(namespace, item);
        }
        let all: Vec<u32> = std::iter::from_fn(|| next(&mut queue)).collect();
        assert_eq!(all, [1, 10, 20, 2, 21, 3]);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn refilling_the_queue_does_not_restart_with_the_first_namespace() {
        let mut queue = RoundRobin::default();
        let mut taken = Vec::new();
        for round in 0..4 {
            queue.clear();
            queue.push("a", round);
            queue.push("b", 10 + round);
            taken.extend(next(&mut queue));
        }
        assert_eq!(taken, [0, 11, 2, 13]);
    }

    #[test]
    fn blocked_namespaces_and_entries_that_are_not_due_are_skipped() {
        let mut queue = RoundRobin::default();
        for (namespace, item) in [("a", 1), ("b", 2), ("b", 3)] {
            queue.push(namespace, item);
        }
        let position = queue.find(|namespace| namespace != "a", |item| *item != 2).expect("an entry is due");
        assert_eq!(queue.take(position), Some(3));
        assert!(queue.find(|namespace| namespace == "c", |_| true).is_none());
        assert_eq!(queue.len(), 2);
    }

    #[test]
    fn the_largest_namespace_loses_its_last_entry() {
        let mut queue = RoundRobin::default();
        for (namespace, item) in [("a", 1), ("b", 2), ("b", 3)] {
            queue.push(namespace, item);
        }
        assert_eq!(queue.drop_from_largest(), Some(3));
        assert_eq!(queue.len(), 2);
        assert!(queue.drop_from_largest().is_some() && queue.drop_from_largest().is_some());
        assert_eq!((queue.drop_from_largest(), queue.len()), (None, 0));
    }
}
