//! Counts the entries of each backend in one table, for the schedulers that compare loads.
//!
//! Counting starts with the first service that needs it, and never stops. A table that already has flows by then is
//! walked once, some hash buckets in each loop iteration. `end` moves with the walk, and changes of entries below it
//! are counted. Without counting, the only cost is one comparison when an entry is written, removed, or changes its
//! state.
//!
//! Invariant: the counts are exact for entries below `end` whose backend is the current owner of its index.

use tidegate_select::loads::Load;
use tidegate_spec::ids::BackendId;
use tidegate_spec::limits::BACKENDS_MAX;

/// The counts of one table.
#[derive(Debug)]
pub(super) struct BackendLoads {
    /// By index of the backend's id: its generation, its active entries, its ended entries.
    words: Box<[u64]>,
    /// Entries at words below this one are counted. 0 until counting begins.
    pub(super) end: usize,
}

/// 10 bits of generation and 27 bits for each count: more than a table has entries.
const COUNT_BITS: u32 = 27;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

#[derive(Clone, Copy)]
struct Word {
    generation: u32,
    load: Load,
}

impl Word {
    fn of(word: u64) -> Self {
        Self {
            generation: (word >> (2 * COUNT_BITS)) as u32,
            load: Load {
                active: (word >> COUNT_BITS & COUNT_MASK) as u32,
                ended: (word & COUNT_MASK) as u32,
            },
        }
    }

    fn word(self) -> u64 {
        let Load { active, ended } = self.load;
        u64::from(self.generation) << (2 * COUNT_BITS) | u64::from(active) << COUNT_BITS | u64::from(ended)
    }
}

impl BackendLoads {
    pub(super) fn new() -> Self {
        // The system zeroes the memory, so backends that are not counted take none.
        Self { words: vec![0; BACKENDS_MAX].into_boxed_slice(), end: 0 }
    }

    /// Counts an entry of the current owner of an index.
    pub(super) fn add(&mut self, backend: u32, ended: bool) {
        self.change(backend, |word, generation| {
            if word.generation != generation {
                // Flows of the index's former owner no longer count.
                *word = Word { generation, load: Load::default() };
            }
            *count_of(&mut word.load, ended) += 1;
        });
    }

    /// Counts an entry that is removed.
    pub(super) fn remove(&mut self, backend: u32, ended: bool) {
        self.change(backend, |word, generation| {
            if word.generation == generation {
                let count = count_of(&mut word.load, ended);
                *count = count.saturating_sub(1);
            }
        });
    }

    /// The load of a backend.
    #[inline]
    pub(super) fn of(&self, backend: BackendId) -> Load {
        let word = self.words.get(backend.index()).map(|&word| Word::of(word));
        word.filter(|word| word.generation == backend.generation()).map_or(Load::default(), |word| word.load)
    }

    fn change(&mut self, backend: u32, by: impl FnOnce(&mut Word, u32)) {
        let id = BackendId::from_raw(backend);
        if let Some(packed) = self.words.get_mut(id.index()) {
            let mut word = Word::of(*packed);
            by(&mut word, id.generation());
            *packed = word.word();
        }
    }
}

fn count_of(load: &mut Load, ended: bool) -> &mut u32 {
    if ended { &mut load.ended } else { &mut load.active }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_former_owner_of_an_index_does_not_count() {
        let mut loads = BackendLoads::new();
        let (old, new) = (BackendId::new(5, 1_023), BackendId::new(5, 0));
        (0..3).for_each(|_| loads.add(old.raw(), false));
        assert_eq!(loads.of(old), Load { active: 3, ended: 0 });
        loads.add(new.raw(), false);
        loads.add(new.raw(), true);
        (0..3).for_each(|_| loads.remove(old.raw(), false));
        assert_eq!((loads.of(old), loads.of(new)), (Load::default(), Load { active: 1, ended: 1 }));
        loads.remove(new.raw(), true);
        assert_eq!(loads.of(new), Load { active: 1, ended: 0 });
    }
}
