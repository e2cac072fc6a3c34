//! The set of all targets at one moment: `reconcile` computes it, and the checker reads it.
//!
//! A clone costs one pointer. The cost of [`Targets::changes`] depends on the difference between two sets, so a change
//! of one endpoint needs no walk over all targets. Services that need the same check share a target, which exists until
//! the last Service releases it.

use super::Target;
use crate::shared_map::{Iter, SharedMap, differences};

/// A set of targets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Targets(SharedMap<Target, u32>);

impl Targets {
    /// The number of targets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it contains the target.
    #[must_use]
    pub fn contains(&self, target: &Target) -> bool {
        self.0.contains_key(target)
    }

    /// The first target in sort order.
    #[must_use]
    pub fn first(&self) -> Option<&Target> {
        self.0.get_min().map(|(target, _)| target)
    }

    /// All targets, sorted.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Target> {
        self.0.keys()
    }

    /// Whether one is an unchanged clone of the other (compares pointers).
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }

    /// Targets that only one of the two sets contains, in order, each with whether it is new in `after`.
    pub fn changes<'a>(&'a self, after: &'a Self) -> impl Iterator<Item = (&'a Target, bool)> {
        differences(&self.0, &after.0).filter_map(|change| match (change.before, change.after) {
            (None, Some(_)) => Some((change.key, true)),
            (Some(_), None) => Some((change.key, false)),
            // Only the number of Services that need it differs.
            _ => None,
        })
    }

    /// Adds a Service that needs the target.
    pub fn want(&mut self, target: Target) {
        let count = self.0.get(&target).copied().unwrap_or_default();
        self.0.insert(target, count + 1);
    }

    /// Removes a Service that needed the target.
    pub fn release(&mut self, target: &Target) {
        match self.0.get(target).copied() {
            Some(count @ 2..) => self.0.insert(target.clone(), count - 1),
            _ => self.0.remove(target),
        };
    }
}

impl FromIterator<Target> for Targets {
    fn from_iter<I: IntoIterator<Item = Target>>(wanted: I) -> Self {
        let mut targets = Self::default();
        wanted.into_iter().for_each(|target| targets.want(target));
        targets
    }
}

impl<'a> IntoIterator for &'a Targets {
    type Item = &'a Target;
    type IntoIter = std::iter::Map<Iter<'a, Target, u32>, fn((&'a Target, &'a u32)) -> &'a Target>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter().map(|(target, _)| target)
    }
}

impl IntoIterator for Targets {
    type Item = Target;
    type IntoIter = std::vec::IntoIter<Target>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter().cloned().collect::<Vec<_>>().into_iter()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Check, Probe, Rules};
    use super::*;

    fn target(host: u8) -> Target {
        let probe = Probe::new(Check::Tcp, Rules::default());
        Target::new(([10, 0, 0, host], 80).into(), &Arc::new(probe))
    }

    #[test]
    fn a_target_stays_until_the_last_service_is_gone() {
        let before: Targets = [target(1), target(2), target(1)].into_iter().collect();
        let mut after = before.clone();
        after.release(&target(1));
        assert_eq!(before.changes(&after).count(), 0);
        after.release(&target(1));
        after.want(target(3));
        let changes: Vec<_> = before.changes(&after).map(|(t, new)| (t.clone(), new)).collect();
        assert_eq!(changes, [(target(1), false), (target(3), true)]);
        assert_eq!(after.iter().cloned().collect::<Vec<_>>(), [target(2), target(3)]);
    }
}
