//! A queue in which namespaces take turns, so that a namespace with thousands of entries, or with new ones all the
//! time, does not delay the few entries of another.
//!
//! Entries without a namespace, such as those of an AddressPool, have their own turns.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// The queue.
#[derive(Debug)]
pub(super) struct Turns<T> {
    /// The entries by namespace, without empty ones.
    waiting: BTreeMap<String, VecDeque<T>>,
    len: usize,
    /// The namespace that had the last turn.
    last: String,
}

/// The position of an entry, valid until the next change.
#[derive(Debug)]
pub(super) struct Place {
    namespace: String,
    at: usize,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), len: 0, last: String::new() }
    }
}

impl<T> Turns<T> {
    /// The number of entries.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Removes all entries. The order of turns stays.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.len = 0;
    }

    /// Appends an entry to those of its namespace.
    pub(super) fn push(&mut self, namespace: &str, item: T) {
        match self.waiting.get_mut(namespace) {
            Some(items) => items.push_back(item),
            None => drop(self.waiting.insert(namespace.to_owned(), VecDeque::from([item]))),
        }
        self.len += 1;
    }

    /// Finds the next entry: the first due entry of the next namespace in turn that may send and has one.
    pub(super) fn find(
        &self,
        may_go: impl Fn(&str) -> bool,
        mut is_due: impl FnMut(&T) -> bool,
    ) -> Option<Place> {
        let last = self.last.as_str();
        let after = self.waiting.range::<str, _>((Bound::Excluded(last), Bound::Unbounded));
        let up_to = self.waiting.range::<str, _>((Bound::Unbounded, Bound::Included(last)));
        let mut turns = after.chain(up_to).filter(|(namespace, _)| may_go(namespace));
        turns.find_map(|(namespace, items)| {
            let at = items.iter().position(&mut is_due)?;
            Some(Place { namespace: namespace.clone(), at })
        })
    }

    /// Removes the entry at a position, which uses the turn of its namespace.
    pub(super) fn take(&mut self, place: Place) -> Option<T> {
        let Place { namespace, at } = place;
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
    pub(super) fn drop_of_largest(&mut self) -> Option<T> {
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

    fn next(turns: &mut Turns<u32>) -> Option<u32> {
        let place = turns.find(|_| true, |_| true)?;
        turns.take(place)
    }

    #[test]
    fn namespaces_take_turns_and_each_has_its_own_order() {
        let mut turns = Turns::default();
        for (namespace, item) in [("a", 1), ("a", 2), ("a", 3), ("b", 10), ("c", 20), ("c", 21)] {
            turns.push(namespace, item);
        }
        let all: Vec<u32> = std::iter::from_fn(|| next(&mut turns)).collect();
        assert_eq!(all, [1, 10, 20, 2, 21, 3]);
        assert_eq!(turns.len(), 0);
    }

    #[test]
    fn what_is_put_in_anew_does_not_begin_with_the_first_namespace_again() {
        let mut turns = Turns::default();
        let mut taken = Vec::new();
        for round in 0..4 {
            turns.clear();
            turns.push("a", round);
            turns.push("b", 10 + round);
            taken.extend(next(&mut turns));
        }
        assert_eq!(taken, [0, 11, 2, 13]);
    }

    #[test]
    fn who_may_not_go_and_what_is_not_due_is_passed_over() {
        let mut turns = Turns::default();
        for (namespace, item) in [("a", 1), ("b", 2), ("b", 3)] {
            turns.push(namespace, item);
        }
        let place = turns.find(|namespace| namespace != "a", |item| *item != 2).expect("there is one");
        assert_eq!(turns.take(place), Some(3));
        assert!(turns.find(|namespace| namespace == "c", |_| true).is_none());
        assert_eq!(turns.len(), 2);
    }

    #[test]
    fn the_namespace_with_the_most_gives_up_what_came_last() {
        let mut turns = Turns::default();
        for (namespace, item) in [("a", 1), ("b", 2), ("b", 3)] {
            turns.push(namespace, item);
        }
        assert_eq!(turns.drop_of_largest(), Some(3));
        assert_eq!(turns.len(), 2);
        assert!(turns.drop_of_largest().is_some() && turns.drop_of_largest().is_some());
        assert_eq!((turns.drop_of_largest(), turns.len()), (None, 0));
    }
}
