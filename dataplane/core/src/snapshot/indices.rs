//! Indices of ids over a chain of snapshots: kept while their holder lives, then given again.
//!
//! An index that is free goes to the next holder with its generation one higher; the lowest goes first, so
//! tables stay dense and the same history gives the same ids. Called by the compile of a snapshot.
//!
//! Invariant: an index has one holder in a snapshot, and no (index, generation) names two things in a row.
//! Generations count modulo 2^10: a note older than 1,023 holders of one index could match again.

/// Generation of the holder, or the last one, of each index in use so far.
#[derive(Debug, Default, Clone)]
pub(super) struct Generations {
    pub(super) services: Box<[u32]>,
    pub(super) backends: Box<[u32]>,
    pub(super) endpoints: Box<[u32]>,
}

/// One kind of index while a snapshot is compiled: first all [`Self::keep`], then all [`Self::fresh`].
#[derive(Debug)]
pub(super) struct Indices {
    generations: Vec<u32>,
    held: Vec<bool>,
    next: usize,
}

impl Indices {
    pub(super) fn resume(generations: &[u32]) -> Self {
        Self { generations: generations.to_vec(), held: vec![false; generations.len()], next: 0 }
    }

    /// Its holder lives on.
    pub(super) fn keep(&mut self, index: usize) {
        assert!(!std::mem::replace(&mut self.held[index], true), "an index has one holder");
    }

    /// The lowest free index, and its generation.
    pub(super) fn fresh(&mut self) -> (usize, u32) {
        while self.held.get(self.next) == Some(&true) {
            self.next += 1;
        }
        let index = self.next;
        self.next += 1;
        match self.generations.get_mut(index) {
            Some(generation) => *generation = generation.wrapping_add(1),
            None => self.generations.push(0),
        }
        (index, self.generations[index])
    }

    pub(super) fn finish(self) -> Box<[u32]> {
        self.generations.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_index_goes_first_with_a_new_generation() {
        let mut first = Indices::resume(&[]);
        assert_eq!([first.fresh(), first.fresh(), first.fresh()], [(0, 0), (1, 0), (2, 0)]);
        let mut second = Indices::resume(&first.finish());
        second.keep(1);
        assert_eq!([second.fresh(), second.fresh(), second.fresh()], [(0, 1), (2, 1), (3, 0)]);
        assert_eq!(*second.finish(), [1, 0, 1, 0]);
    }

    #[test]
    fn an_index_that_rests_keeps_its_generation() {
        let rested = Indices::resume(&[5, 6]).finish();
        assert_eq!(Indices::resume(&rested).fresh(), (0, 6));
    }
}
