//! A list whose copies share unchanged parts, for display and for the next compile. The packet path doesn't read it.
//!
//! Items are in chunks of 64 behind [`Arc`]s: a copy costs one pointer per chunk, and changing an item copies one
//! chunk.

use std::sync::Arc;

const CHUNK: usize = 64;

/// A list in chunks. A copy shares the chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunked<T> {
    chunks: Vec<Arc<Vec<T>>>,
    len: usize,
}

impl<T> Chunked<T> {
    /// The number of items.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "no caller needs it")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The item at this position.
    #[inline]
    #[must_use]
    pub fn get(&self, at: usize) -> Option<&T> {
        self.chunks.get(at / CHUNK)?.get(at % CHUNK)
    }

    /// All items, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }
}

impl<T: Clone> Chunked<T> {
    /// Replaces the item at this position.
    ///
    /// # Panics
    /// If there is no item at this position.
    pub fn set(&mut self, at: usize, item: T) {
        Arc::make_mut(&mut self.chunks[at / CHUNK])[at % CHUNK] = item;
    }

    /// Appends an item.
    pub fn push(&mut self, item: T) {
        match self.chunks.last_mut().filter(|chunk| chunk.len() < CHUNK) {
            Some(chunk) => Arc::make_mut(chunk).push(item),
            None => self.chunks.push(Arc::new(vec![item])),
        }
        self.len += 1;
    }
}

impl<T> Default for Chunked<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }
}

impl<T> FromIterator<T> for Chunked<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut items = items.into_iter().peekable();
        let (mut chunks, mut len) = (Vec::new(), 0);
        while items.peek().is_some() {
            let chunk: Vec<T> = items.by_ref().take(CHUNK).collect();
            len += chunk.len();
            chunks.push(Arc::new(chunk));
        }
        Self { chunks, len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_copy_shares_all_but_one_chunk() {
        let first: Chunked<usize> = (0..200).collect();
        let mut second = first.clone();
        second.set(70, 7);
        assert_eq!((first.get(70), second.get(70), second.get(200)), (Some(&70), Some(&7), None));
        assert_eq!((second.iter().count(), second.len()), (200, 200));
        let shared = first.chunks.iter().zip(&second.chunks).filter(|(a, b)| Arc::ptr_eq(a, b)).count();
        assert_eq!(shared, 3);
    }

    #[test]
    fn pushed_items_do_not_change_other_copies() {
        let first: Chunked<usize> = (0..100).collect();
        let mut second = first.clone();
        (100..200).for_each(|item| second.push(item));
        assert!(second.iter().copied().eq(0..200));
        assert_eq!((first.len(), first.iter().count(), second.len()), (100, 100, 200));
    }
}
