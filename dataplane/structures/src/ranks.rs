//! `Ranks`: the position of a value among sorted keys, by a static B-tree, for look-ups of addresses in many
//! intervals.
//!
//! A node is one cache line of 16 IPv4 addresses, or two of 8 IPv6 addresses; 4,096 keys need three levels, 65,536
//! four. Within a node all keys are compared at once, without branches. Snapshot compilation builds it for routes and
//! source ranges; after that it is only read.
//!
//! Invariant: [`Ranks::last_up_to`] gives the result of a binary search.

use std::sync::Arc;

/// A static B-tree with `N` keys per node. Clones share the nodes.
#[derive(Debug, Clone)]
pub struct Ranks<T, const N: usize> {
    /// The levels, the root first. A key in a level above the last is the first key of the node below it.
    levels: Arc<[Level<T, N>]>,
}

#[derive(Debug)]
struct Level<T, const N: usize> {
    nodes: Box<[Node<T, N>]>,
    /// The number of keys in use. Unused keys have the largest value.
    len: usize,
}

#[repr(align(64))]
#[derive(Debug, Clone, Copy)]
struct Node<T, const N: usize>([T; N]);

const _: () = assert!(size_of::<Node<u32, 16>>() == 64 && size_of::<Node<u128, 8>>() == 128);

/// An address as a number.
pub trait Number: Copy + Ord {
    /// The largest number.
    const MAX: Self;

    /// The next number, if there is one.
    fn successor(self) -> Option<Self>;

    /// The previous number. Must not be called for 0.
    fn predecessor(self) -> Self;
}

impl Number for u32 {
    const MAX: Self = u32::MAX;

    fn successor(self) -> Option<Self> {
        self.checked_add(1)
    }

    fn predecessor(self) -> Self {
        self - 1
    }
}

impl Number for u128 {
    const MAX: Self = u128::MAX;

    fn successor(self) -> Option<Self> {
        self.checked_add(1)
    }

    fn predecessor(self) -> Self {
        self - 1
    }
}

impl<T, const N: usize> Default for Ranks<T, N> {
    fn default() -> Self {
        Self { levels: Arc::default() }
    }
}

impl<T: Number, const N: usize> Ranks<T, N> {
    /// Builds a tree from ascending keys.
    pub fn build(keys: &[T]) -> Self {
        debug_assert!(keys.is_sorted_by(|a, b| a < b), "keys are ascending");
        let mut levels = Vec::new();
        let mut keys = keys.to_vec();
        while !keys.is_empty() {
            let level = Level::new(&keys);
            let is_root = level.nodes.len() == 1;
            keys = if is_root { Vec::new() } else { level.nodes.iter().map(|node| node.0[0]).collect() };
            levels.push(level);
        }
        levels.reverse();
        Self { levels: levels.into() }
    }

    /// The position of the last key that is not above a value.
    #[inline]
    pub fn last_up_to(&self, value: T) -> Option<usize> {
        let mut found = None;
        for level in self.levels.iter() {
            let node = found.unwrap_or(0);
            let below = level.nodes[node].0.iter().filter(|&&key| key <= value).count();
            // Only in the first node can the value be below the first key.
            let last = (node * N + below).checked_sub(1)?;
            // The largest value also matches the keys that are not in use.
            found = Some(last.min(level.len - 1));
        }
        found
    }

    /// The key at a position, if there is one.
    #[inline]
    pub fn key(&self, at: usize) -> Option<T> {
        let level = self.levels.last().filter(|level| at < level.len)?;
        Some(level.nodes[at / N].0[at % N])
    }

    /// All keys, ascending.
    pub fn keys(&self) -> impl Iterator<Item = T> {
        let last = self.levels.last();
        last.into_iter().flat_map(|level| level.nodes.iter().flat_map(|node| node.0).take(level.len))
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        self.levels.iter().map(|level| size_of_val(&*level.nodes)).sum()
    }

    /// The number of nodes that a look-up reads.
    pub fn depth(&self) -> usize {
        self.levels.len()
    }
}

impl<T: Number, const N: usize> Level<T, N> {
    fn new(keys: &[T]) -> Self {
        let node = |keys: &[T]| {
            let mut node = Node([T::MAX; N]);
            node.0[..keys.len()].copy_from_slice(keys);
            node
        };
        Self { nodes: keys.chunks(N).map(node).collect(), len: keys.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn agrees<T: Number + std::fmt::Debug, const N: usize>(keys: &[T], values: impl Iterator<Item = T>) {
        let ranks = Ranks::<T, N>::build(keys);
        for value in values.chain(keys.iter().copied()).chain([T::MAX]) {
            let expected = keys.partition_point(|key| *key <= value).checked_sub(1);
            assert_eq!(ranks.last_up_to(value), expected, "{value:?} in {keys:?}");
        }
    }

    proptest! {
        #[test]
        fn finds_what_a_binary_search_finds(
            v4 in proptest::collection::btree_set(prop_oneof![0_u32..600, u32::MAX - 9..=u32::MAX], 0..500),
            v6 in proptest::collection::btree_set(prop_oneof![0_u128..600, u128::MAX - 9..=u128::MAX], 0..500),
        ) {
            agrees::<u32, 16>(&Vec::from_iter(v4), 0..610);
            agrees::<u128, 8>(&Vec::from_iter(v6), 0..610);
        }
    }

    #[test]
    fn each_level_multiplies_the_capacity_by_sixteen() {
        let depth = |count: u32| Ranks::<u32, 16>::build(&Vec::from_iter(0..count)).depth();
        assert_eq!([0, 1, 16, 17, 256, 4096, 4097].map(depth), [0, 1, 1, 2, 2, 3, 4]);
    }
}
