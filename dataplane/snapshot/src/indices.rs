//! Allocates the indices of ids over a chain of snapshots: an index is kept while its owner exists, then reused.
//!
//! A free index goes to the next owner with its generation incremented. The lowest is used first, so tables stay dense
//! and equal histories give equal ids. Snapshot compilation calls it.
//!
//! Invariant: an index has one owner in a snapshot, and consecutive owners differ in generation. Generations count
//! modulo 2^10: a flow entry could match again after 1,023 further owners of its index.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::Vector;

/// All indices of a snapshot. Clones share them.
#[derive(Debug, Default, Clone)]
pub(super) struct Generations {
    pub(super) services: Kind,
    pub(super) backends: Kind,
    pub(super) endpoints: Kind,
}

/// The indices of one kind of object.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Kind {
    /// For each index used so far, the generation of its current or last owner.
    generations: Vector<u32>,
    /// The indices without an owner.
    free: Arc<BTreeSet<usize>>,
}

impl Kind {
    /// The number of indices used so far.
    pub(super) fn len(&self) -> usize {
        self.generations.len()
    }

    /// Each index with the generation of its current or last owner.
    pub(super) fn all(&self) -> impl Iterator<Item = (usize, u32)> {
        self.generations.iter().copied().enumerate()
    }

    /// A copy without the owners in `gone` and with `new` more owners; also the index and generation of each new owner.
    pub(super) fn revised(&self, gone: impl Iterator<Item = usize>, new: usize) -> (Self, Vec<(usize, u32)>) {
        let mut free = Arc::clone(&self.free);
        for index in gone {
            Arc::make_mut(&mut free).insert(index);
        }
        if new == 0 {
            return (Self { generations: self.generations.clone(), free }, Vec::new());
        }
        let mut generations = self.generations.clone();
        let fresh = (0..new).map(|_| match Arc::make_mut(&mut free).pop_first() {
            Some(index) => {
                let generation = generations.get(index).expect("a free index was in use").wrapping_add(1);
                generations.set(index, generation);
                (index, generation)
            }
            None => {
                generations.push_back(0);
                (generations.len() - 1, 0)
            }
        });
        let fresh = fresh.collect();
        (Self { generations, free }, fresh)
    }
}

/// The indices of one kind during a compile: first call [`Self::keep`] for all existing owners, then [`Self::fresh`].
#[derive(Debug)]
pub(super) struct Indices {
    generations: Vec<u32>,
    in_use: Vec<bool>,
    next: usize,
}

impl Indices {
    pub(super) fn resume(kind: &Kind) -> Self {
        Self {
            generations: kind.generations.iter().copied().collect(),
            in_use: vec![false; kind.len()],
            next: 0,
        }
    }

    /// Records that the owner of an index still exists.
    pub(super) fn keep(&mut self, index: usize) {
        assert!(!std::mem::replace(&mut self.in_use[index], true), "an index has one owner");
    }

    /// The lowest free index, and its generation.
    pub(super) fn fresh(&mut self) -> (usize, u32) {
        while self.in_use.get(self.next) == Some(&true) {
            self.next += 1;
        }
        let index = self.next;
        match self.generations.get_mut(index) {
            Some(generation) => {
                *generation = generation.wrapping_add(1);
                self.in_use[index] = true;
            }
            None => {
                self.generations.push(0);
                self.in_use.push(true);
            }
        }
        (index, self.generations[index])
    }

    pub(super) fn finish(self) -> Kind {
        let free = (0..self.in_use.len()).filter(|&index| !self.in_use[index]).collect();
        Kind { generations: self.generations.into_iter().collect(), free: Arc::new(free) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_index_goes_first_with_a_new_generation() {
        let mut first = Indices::resume(&Kind::default());
        assert_eq!([first.fresh(), first.fresh(), first.fresh()], [(0, 0), (1, 0), (2, 0)]);
        let first = first.finish();
        let mut second = Indices::resume(&first);
        second.keep(1);
        assert_eq!([second.fresh(), second.fresh(), second.fresh()], [(0, 1), (2, 1), (3, 0)]);
        let second = second.finish();
        assert!(second.generations.iter().eq(&[1, 0, 1, 0]));
        let revised = first.revised([0, 2].into_iter(), 3);
        assert_eq!(revised, (second, vec![(0, 1), (2, 1), (3, 0)]));
    }

    #[test]
    fn a_free_index_keeps_its_generation() {
        let rested = Kind { generations: [5, 6].into_iter().collect(), free: Arc::default() };
        let rested = Indices::resume(&rested).finish();
        assert_eq!(Indices::resume(&rested).fresh(), (0, 6));
        assert_eq!(rested.revised(std::iter::empty(), 1).1, [(0, 6)]);
    }
}
