//! Chooses what to drop when not everything fits: the last item of the group with the largest total size, repeatedly.
//!
//! So a namespace that uses less than the others loses nothing, however much the others use. Pure.

use std::collections::{BTreeMap, BinaryHeap};

/// Yields items in the order in which they are dropped: repeatedly the last item of the group whose remaining items
/// have the largest total size. Of two groups with equal size, the group with the later name loses an item.
pub(crate) struct LargestFirst<G, T> {
    /// The total size of each group, and its items with their sizes.
    groups: BTreeMap<G, (usize, Vec<(usize, T)>)>,
    largest: BinaryHeap<(usize, G)>,
}

impl<G: Ord + Clone, T> LargestFirst<G, T> {
    /// Takes items, each with its group and a size above 0. Within a group, the last one is dropped first.
    pub(crate) fn new(things: impl IntoIterator<Item = (G, usize, T)>) -> Self {
        let mut groups: BTreeMap<G, (usize, Vec<(usize, T)>)> = BTreeMap::new();
        for (group, size, thing) in things {
            let (sum, things) = groups.entry(group).or_default();
            *sum += size;
            things.push((size, thing));
        }
        let largest = groups.iter().map(|(group, (sum, _))| (*sum, group.clone())).collect();
        Self { groups, largest }
    }
}

impl<G: Ord, T> Iterator for LargestFirst<G, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        let (_, group) = self.largest.pop()?;
        let (sum, things) = self.groups.get_mut(&group)?;
        let (size, thing) = things.pop()?;
        *sum -= size;
        self.largest.push((*sum, group));
        Some(thing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_group_loses_its_last_item_until_others_are_as_large() {
        let things = [("a", 3, 1), ("b", 2, 2), ("a", 2, 3), ("c", 2, 4), ("a", 1, 5)];
        let order: Vec<i32> = LargestFirst::new(things).collect();
        assert_eq!(order, [5, 3, 1, 4, 2]);
    }
}
