//! A sorted map whose copies share unchanged parts.
//!
//! Sources keep their objects in such maps and publish a copy with every change. `reconcile` compares the copy with the
//! previous copy. The costs of publishing and comparing depend on the change, not on the size of the map: pairs are in
//! sorted chunks behind [`Arc`]s, a copy costs one pointer, an edit of a shared map copies one chunk and the list of
//! chunks, and [`SharedMap::diff`] skips the chunks that both maps share. At 10,000 keys an edit copies about 100
//! pairs, and a lookup compares about 14 keys.
//!
//! No interior mutability, no insertion order: maps with equal contents are equal, however they are divided into
//! chunks.
//!
//! Invariant: no chunk is empty or longer than [`CHUNK_MAX`]; keys ascend within chunks and from chunk to chunk.

use std::fmt;
use std::iter::FusedIterator;
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// The maximum number of pairs in a chunk. At 10,000 keys, copying a chunk costs about as much as copying the list of
/// chunks.
const CHUNK_MAX: usize = 128;
/// Chunks with fewer pairs are joined with a neighbour after a removal.
const CHUNK_MIN: usize = CHUNK_MAX / 4;

type Chunk<K, V> = Arc<Vec<(K, V)>>;

/// A sorted map with cheap copies.
///
/// ```
/// use tidegate_model::shared_map::SharedMap;
/// let before: SharedMap<&str, u32> = [("b", 2), ("a", 1)].into_iter().collect();
/// let mut after = before.clone();
/// after.insert("a", 3);
/// after.remove("b");
/// let changes: Vec<_> = before.diff(&after).map(|d| (*d.key, d.before, d.after)).collect();
/// assert_eq!(changes, [("a", Some(&1), Some(&3)), ("b", Some(&2), None)]);
/// ```
pub struct SharedMap<K, V> {
    chunks: Arc<Vec<Chunk<K, V>>>,
    len: usize,
}

/// A key whose value differs between two maps, or that only one of them contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference<'a, K, V> {
    /// The key.
    pub key: &'a K,
    /// Its value in the map on which [`SharedMap::diff`] was called.
    pub before: Option<&'a V>,
    /// Its value in the other map.
    pub after: Option<&'a V>,
}

impl<K, V> SharedMap<K, V> {
    /// An empty map.
    #[must_use]
    pub fn new() -> Self {
        Self { chunks: Arc::default(), len: 0 }
    }

    /// The number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the map is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pairs in the order of their keys.
    #[must_use]
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter { chunks: &self.chunks, front: [].iter(), back: [].iter(), left: self.len }
    }

    /// The keys in their order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> + ExactSizeIterator + Clone {
        self.iter().map(|(key, _)| key)
    }

    /// The values in the order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> + ExactSizeIterator + Clone {
        self.iter().map(|(_, value)| value)
    }

    /// The pair with the smallest key.
    #[must_use]
    pub fn first_key_value(&self) -> Option<(&K, &V)> {
        self.iter().next()
    }

    /// Removes all pairs.
    pub fn clear(&mut self) {
        *self = Self::new();
    }

    /// Whether one is an unchanged clone of the other (compares pointers).
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.chunks, &other.chunks)
    }
}

impl<K: Ord, V> SharedMap<K, V> {
    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: std::borrow::Borrow<Q>,
    {
        let (chunk, at) = self.find(key)?.ok()?;
        Some(&self.chunks[chunk][at].1)
    }

    /// Whether the map contains the key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: std::borrow::Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// The chunk that contains the key or would contain it, and the position in the chunk; `None` in an empty map.
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Option<Result<(usize, usize), (usize, usize)>>
    where
        K: std::borrow::Borrow<Q>,
    {
        let after = self.chunks.partition_point(|chunk| chunk[0].0.borrow() <= key);
        let chunk = after.saturating_sub(1);
        let position = self.chunks.get(chunk)?.binary_search_by(|(known, _)| known.borrow().cmp(key));
        Some(position.map(|at| (chunk, at)).map_err(|at| (chunk, at)))
    }

    /// The keys whose values differ between this map and `after`, in order. Chunks that both maps share are skipped.
    pub fn diff<'a>(&'a self, after: &'a Self) -> impl Iterator<Item = Difference<'a, K, V>>
    where
        V: PartialEq,
    {
        let mut walk = Walk { before: Cursor::new(&self.chunks), after: Cursor::new(&after.chunks) };
        std::iter::from_fn(move || walk.next())
    }
}

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    /// Sets the value of a key. Returns the previous value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let Some(found) = self.find(&key) else {
            self.chunks = Arc::new(vec![Arc::new(vec![(key, value)])]);
            self.len = 1;
            return None;
        };
        let chunks = Arc::make_mut(&mut self.chunks);
        let (chunk, at) = match found {
            Ok((chunk, at)) => {
                let position = &mut Arc::make_mut(&mut chunks[chunk])[at].1;
                return Some(std::mem::replace(position, value));
            }
            Err(position) => position,
        };
        let pairs = Arc::make_mut(&mut chunks[chunk]);
        pairs.insert(at, (key, value));
        if pairs.len() > CHUNK_MAX {
            // Keys that are appended in order fill chunks completely.
            let last = chunk + 1 == chunks.len() && at == CHUNK_MAX;
            let pairs = Arc::make_mut(&mut chunks[chunk]);
            let rest = pairs.split_off(if last { CHUNK_MAX } else { CHUNK_MAX / 2 });
            chunks.insert(chunk + 1, Arc::new(rest));
        }
        self.len += 1;
        None
    }

    /// Removes a key. Returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: std::borrow::Borrow<Q>,
    {
        let (chunk, at) = self.find(key)?.ok()?;
        let chunks = Arc::make_mut(&mut self.chunks);
        let pairs = Arc::make_mut(&mut chunks[chunk]);
        let (_, value) = pairs.remove(at);
        if pairs.is_empty() {
            chunks.remove(chunk);
        } else if pairs.len() < CHUNK_MIN {
            join(chunks, chunk);
        }
        self.len -= 1;
        Some(value)
    }

    /// A mutable reference to a key's value, in this map only.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: std::borrow::Borrow<Q>,
    {
        let (chunk, at) = self.find(key)?.ok()?;
        Some(&mut Arc::make_mut(&mut Arc::make_mut(&mut self.chunks)[chunk])[at].1)
    }

    /// Mutable references to all values, in this map only. Copies shared chunks.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        let chunks = Arc::make_mut(&mut self.chunks);
        chunks.iter_mut().flat_map(|chunk| Arc::make_mut(chunk).iter_mut().map(|(_, value)| value))
    }

    /// Keeps the pairs for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &V) -> bool)
    where
        V: Clone,
    {
        let gone: Vec<K> =
            self.iter().filter(|(key, value)| !keep(key, value)).map(|(key, _)| key.clone()).collect();
        gone.iter().for_each(|key| {
            self.remove(key);
        });
    }
}

/// Joins a short chunk to the next chunk, or the last chunk to the previous one, if both together fill at most half a
/// chunk.
fn join<K: Clone, V: Clone>(chunks: &mut Vec<Chunk<K, V>>, chunk: usize) {
    let first = if chunk + 1 < chunks.len() { chunk } else { chunk.saturating_sub(1) };
    if first + 1 >= chunks.len() || chunks[first].len() + chunks[first + 1].len() > CHUNK_MAX / 2 {
        return;
    }
    let rest = chunks.remove(first + 1);
    Arc::make_mut(&mut chunks[first]).extend(rest.iter().cloned());
}

impl<K, V> Clone for SharedMap<K, V> {
    /// Copies one pointer.
    fn clone(&self) -> Self {
        Self { chunks: Arc::clone(&self.chunks), len: self.len }
    }
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SharedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Ord, V: PartialEq> PartialEq for SharedMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.diff(other).next().is_none()
    }
}

impl<K: Ord, V: Eq> Eq for SharedMap<K, V> {}

impl<K: Ord, V> FromIterator<(K, V)> for SharedMap<K, V> {
    /// Of pairs with equal keys, the last is kept, as with other maps.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut pairs: Vec<(K, V)> = pairs.into_iter().collect();
        // The sort is stable, so the later of two equal keys replaces the earlier one.
        pairs.sort_by(|a, b| a.0.cmp(&b.0));
        pairs.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                std::mem::swap(later, earlier);
            }
            same
        });
        let len = pairs.len();
        let mut chunks = Vec::with_capacity(len.div_ceil(CHUNK_MAX));
        let mut pairs = pairs.into_iter().peekable();
        while pairs.peek().is_some() {
            // Chunks start three quarters full, which leaves space for some keys in between.
            chunks.push(Arc::new(pairs.by_ref().take(CHUNK_MAX * 3 / 4).collect()));
        }
        Self { chunks: Arc::new(chunks), len }
    }
}

impl<K: Ord + Clone, V: Clone> Extend<(K, V)> for SharedMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, pairs: I) {
        pairs.into_iter().for_each(|(key, value)| {
            self.insert(key, value);
        });
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for SharedMap<K, V> {
    fn from(pairs: [(K, V); N]) -> Self {
        pairs.into_iter().collect()
    }
}

impl<K: Ord + std::borrow::Borrow<Q>, Q: Ord + ?Sized, V> std::ops::Index<&Q> for SharedMap<K, V> {
    type Output = V;

    /// # Panics
    /// If the map does not contain the key.
    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("the key is in the map")
    }
}

/// The pairs of a [`SharedMap`] in the order of their keys.
pub struct Iter<'a, K, V> {
    /// The chunks that the iterator has not reached yet.
    chunks: &'a [Chunk<K, V>],
    front: std::slice::Iter<'a, (K, V)>,
    back: std::slice::Iter<'a, (K, V)>,
    left: usize,
}

impl<K, V> Clone for Iter<'_, K, V> {
    fn clone(&self) -> Self {
        Self { chunks: self.chunks, front: self.front.clone(), back: self.back.clone(), left: self.left }
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, value) = loop {
            if let Some(pair) = self.front.next() {
                break pair;
            }
            match self.chunks.split_first() {
                Some((first, rest)) => (self.front, self.chunks) = (first.iter(), rest),
                None => break self.back.next()?,
            }
        };
        self.left -= 1;
        Some((key, value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<K, V> DoubleEndedIterator for Iter<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let (key, value) = loop {
            if let Some(pair) = self.back.next_back() {
                break pair;
            }
            match self.chunks.split_last() {
                Some((last, rest)) => (self.back, self.chunks) = (last.iter(), rest),
                None => break self.front.next_back()?,
            }
        };
        self.left -= 1;
        Some((key, value))
    }
}

impl<K, V> ExactSizeIterator for Iter<'_, K, V> {}
impl<K, V> FusedIterator for Iter<'_, K, V> {}

impl<'a, K, V> IntoIterator for &'a SharedMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

/// A walk over two maps in parallel.
struct Walk<'a, K, V> {
    before: Cursor<'a, K, V>,
    after: Cursor<'a, K, V>,
}

/// A position in a map.
struct Cursor<'a, K, V> {
    chunks: &'a [Chunk<K, V>],
    at: usize,
}

impl<'a, K, V> Cursor<'a, K, V> {
    fn new(chunks: &'a [Chunk<K, V>]) -> Self {
        Self { chunks, at: 0 }
    }

    fn pair(&self) -> Option<&'a (K, V)> {
        self.chunks.first().map(|chunk| &chunk[self.at])
    }

    fn step(&mut self) {
        self.at += 1;
        if self.chunks.first().is_some_and(|chunk| chunk.len() == self.at) {
            self.skip();
        }
    }

    fn skip(&mut self) {
        (self.chunks, self.at) = (&self.chunks[1..], 0);
    }
}

impl<'a, K: Ord, V: PartialEq> Walk<'a, K, V> {
    fn next(&mut self) -> Option<Difference<'a, K, V>> {
        use std::cmp::Ordering::{Equal, Greater, Less};
        loop {
            if self.before.at == 0
                && self.after.at == 0
                && let (Some(a), Some(b)) = (self.before.chunks.first(), self.after.chunks.first())
                && Arc::ptr_eq(a, b)
            {
                self.before.skip();
                self.after.skip();
                continue;
            }
            let (before, after) = (self.before.pair(), self.after.pair());
            let order = match (before, after) {
                (None, None) => return None,
                (Some(_), None) => Less,
                (None, Some(_)) => Greater,
                (Some((a, _)), Some((b, _))) => a.cmp(b),
            };
            match order {
                Less => self.before.step(),
                Greater => self.after.step(),
                Equal => {
                    self.before.step();
                    self.after.step();
                }
            }
            let before = before.filter(|_| order != Greater);
            let after = after.filter(|_| order != Less);
            if let (Some((_, a)), Some((_, b))) = (before, after)
                && a == b
            {
                continue;
            }
            let (key, _) = before.or(after)?;
            return Some(Difference { key, before: before.map(|(_, v)| v), after: after.map(|(_, v)| v) });
        }
    }
}
