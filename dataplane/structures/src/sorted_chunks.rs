//! A sorted map whose copies share unchanged parts, for data that is not read per packet.
//!
//! Entries are in chunks behind [`Arc`]s: a revision copies one pointer per chunk, and the chunks that it changes.

use std::sync::Arc;

/// The number of entries in a new chunk. A chunk with twice as many is split.
const CHUNK: usize = 128;

/// A sorted map in chunks. Clones share the chunks.
#[derive(Debug, Clone)]
pub struct SortedChunks<K, V> {
    /// No chunk is empty.
    chunks: Vec<Arc<Vec<(K, V)>>>,
}

impl<K: Ord, V: Copy> SortedChunks<K, V> {
    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<V> {
        let chunk = self.chunks.get(self.chunk_of(key))?;
        let at = chunk.binary_search_by(|(one, _)| one.cmp(key)).ok()?;
        Some(chunk[at].1)
    }

    /// The entries starting at the first key for which `before` is false. `before` must be true for the first keys and
    /// false for all later ones.
    pub fn from(&self, before: impl Fn(&K) -> bool) -> impl Iterator<Item = &(K, V)> {
        let chunk = self.chunks.partition_point(|chunk| chunk.last().is_some_and(|(key, _)| before(key)));
        let at = self.chunks.get(chunk).map_or(0, |chunk| chunk.partition_point(|(key, _)| before(key)));
        self.chunks[chunk..].iter().flat_map(|chunk| chunk.iter()).skip(at)
    }

    /// The number of keys, summed over the chunks.
    #[allow(clippy::len_without_is_empty, reason = "no caller needs it")]
    pub fn len(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.len()).sum()
    }

    /// All entries, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = &(K, V)> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    /// The first chunk whose last key is not below `key`, which contains the key if any does.
    fn chunk_of(&self, key: &K) -> usize {
        self.chunks.partition_point(|chunk| chunk.last().is_some_and(|(last, _)| last < key))
    }
}

impl<K: Ord + Copy, V: Copy> SortedChunks<K, V> {
    /// A copy with new values for some keys. Keys without a value are removed.
    pub fn revised(&self, changes: impl IntoIterator<Item = (K, Option<V>)>) -> Self {
        let mut chunks = self.clone();
        changes.into_iter().for_each(|(key, value)| chunks.set(key, value));
        chunks
    }

    fn set(&mut self, key: K, value: Option<V>) {
        if self.chunks.is_empty() {
            self.chunks.extend(value.map(|value| Arc::new(vec![(key, value)])));
            return;
        }
        let at = self.chunk_of(&key).min(self.chunks.len() - 1);
        let chunk = Arc::make_mut(&mut self.chunks[at]);
        match (chunk.binary_search_by(|(one, _)| one.cmp(&key)), value) {
            (Ok(index), Some(value)) => chunk[index].1 = value,
            (Ok(index), None) => drop(chunk.remove(index)),
            (Err(index), Some(value)) => chunk.insert(index, (key, value)),
            (Err(_), None) => {}
        }
        if chunk.is_empty() {
            self.chunks.remove(at);
        } else if chunk.len() >= 2 * CHUNK {
            let second = chunk.split_off(CHUNK);
            self.chunks.insert(at + 1, Arc::new(second));
        }
    }
}

impl<K, V> FromIterator<(K, V)> for SortedChunks<K, V> {
    /// Builds a map from entries sorted by key, each key once.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut entries = entries.into_iter().peekable();
        let mut chunks = Vec::new();
        while entries.peek().is_some() {
            chunks.push(Arc::new(entries.by_ref().take(CHUNK).collect()));
        }
        Self { chunks }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_an_ordered_map(
            first in proptest::collection::btree_map(0_u16..2_000, any::<u8>(), 0..900),
            revisions in proptest::collection::vec(
                proptest::collection::vec((0_u16..2_000, proptest::option::of(any::<u8>())), 0..600),
                0..4,
            ),
            from in 0_u16..2_100,
        ) {
            let mut map: BTreeMap<u16, u8> = first;
            let mut chunks: SortedChunks<u16, u8> = map.iter().map(|(&key, &value)| (key, value)).collect();
            for changes in revisions {
                for &(key, value) in &changes {
                    match value {
                        Some(value) => drop(map.insert(key, value)),
                        None => drop(map.remove(&key)),
                    }
                }
                chunks = chunks.revised(changes);
                prop_assert!(chunks.iter().copied().eq(map.iter().map(|(&key, &value)| (key, value))));
                prop_assert!(chunks.chunks.iter().all(|chunk| (1..2 * CHUNK).contains(&chunk.len())));
            }
            prop_assert!(chunks.from(|key| *key < from).map(|(key, _)| key).eq(map.range(from..).map(|(key, _)| key)));
            for key in 0..2_000 {
                prop_assert_eq!(chunks.get(&key), map.get(&key).copied());
            }
        }
    }

    #[test]
    fn a_revised_copy_shares_all_but_one_chunk() {
        let first: SortedChunks<usize, ()> = (0..1_000).map(|key| (2 * key, ())).collect();
        let second = first.revised([(501, Some(()))]);
        let shared = first.chunks.iter().filter(|a| second.chunks.iter().any(|b| Arc::ptr_eq(a, b))).count();
        assert_eq!(shared, first.chunks.len() - 1);
        assert_eq!((first.get(&501), second.get(&501)), (None, Some(())));
    }
}
