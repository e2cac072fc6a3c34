//! A sorted map whose copies share unchanged parts.
//!
//! Sources keep their objects in such maps and publish a copy with every change. `reconcile` compares the copy with the
//! previous copy. The costs of publishing and comparing depend on the change, not on the size of the map: a copy costs
//! one pointer, an edit of a shared map copies the nodes above the pair, and [`differences`] skips the nodes that both
//! maps share.

use imbl::ordmap::DiffItem;
pub use imbl::ordmap::OrdMap as SharedMap;
use imbl::shared_ptr::DefaultSharedPtr;

/// The pairs of a [`SharedMap`] in the order of their keys.
pub type Iter<'a, K, V> = imbl::ordmap::Iter<'a, K, V, DefaultSharedPtr>;

/// A key whose value differs between two maps, or that only one of them contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference<'a, K, V> {
    /// The key.
    pub key: &'a K,
    /// Its value in the first map.
    pub before: Option<&'a V>,
    /// Its value in the second map.
    pub after: Option<&'a V>,
}

/// The keys whose values differ between two maps, in order. Parts that both maps share are skipped.
pub fn differences<'a, K: Ord, V: PartialEq>(
    before: &'a SharedMap<K, V>,
    after: &'a SharedMap<K, V>,
) -> impl Iterator<Item = Difference<'a, K, V>> {
    before.diff(after).map(|item| match item {
        DiffItem::Add(key, value) => Difference { key, before: None, after: Some(value) },
        DiffItem::Update { old: (key, old), new: (_, new) } => {
            Difference { key, before: Some(old), after: Some(new) }
        }
        DiffItem::Remove(key, value) => Difference { key, before: Some(value), after: None },
    })
}

#[cfg(test)]
mod tests;
