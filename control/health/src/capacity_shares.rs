//! Divides the gateway's capacity for checks among namespaces, so that none of them delays another's checks.
//!
//! Two resources are limited.
//!
//! Checks in progress: a namespace may start another check only while it has fewer than [`SHARE_OF_FREE`] times the
//! free capacity in progress ("dynamic thresholds", Choudhury and Hahne, 1998). One [`RESERVED_FRACTION`]th of the
//! capacity is reserved for namespaces that have no check in progress. So one namespace alone can use three quarters,
//! two can use two fifths each, and there is always capacity for a new one. Namespaces that may start a check are
//! served round robin.
//!
//! Checks a second: each namespace gets what it requests up to a level, which is set so that the sum fits the capacity
//! (max-min fairness). The intervals of namespaces that request more are stretched.
//!
//! The operator's own checks count as one more namespace. Pure; only `schedule` calls it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tidegate_model::fair_share::fair_share;

/// How many times the free capacity a namespace's checks in progress may reach.
const SHARE_OF_FREE: usize = 4;
/// One part in this many of the capacity is reserved for namespaces without a check in progress.
const RESERVED_FRACTION: usize = 16;

/// Checks are limited by class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// A check by TCP, HTTP or UDP.
    Plain = 0,
    /// A check by TLS, which costs the most.
    Tls = 1,
}

impl Class {
    pub(super) const ALL: [Self; 2] = [Self::Plain, Self::Tls];
}

/// The index of a namespace's share.
pub(super) type ShareIndex = u32;

/// The shares of all namespaces. `E` is a waiting check.
#[derive(Debug)]
pub(super) struct Shares<E> {
    by_name: BTreeMap<Option<Arc<str>>, ShareIndex>,
    all: Vec<Share<E>>,
    unused: Vec<ShareIndex>,
    /// The shares with a waiting check, in round-robin order.
    ready: [VecDeque<ShareIndex>; 2],
    in_progress: [usize; 2],
}

#[derive(Debug)]
struct Share<E> {
    name: Option<Arc<str>>,
    targets: usize,
    /// The number of checks an hour without stretching.
    checks_an_hour: u64,
    stretch: u32,
    waiting: [VecDeque<E>; 2],
    in_progress: [usize; 2],
}

impl<E> Share<E> {
    fn new(name: Option<Arc<str>>) -> Self {
        let waiting = [VecDeque::new(), VecDeque::new()];
        Self { name, targets: 0, checks_an_hour: 0, stretch: 1, waiting, in_progress: [0; 2] }
    }

    fn is_unused(&self) -> bool {
        self.targets == 0 && self.in_progress == [0; 2] && self.waiting.iter().all(VecDeque::is_empty)
    }
}

impl<E> Default for Shares<E> {
    fn default() -> Self {
        let ready = [VecDeque::new(), VecDeque::new()];
        Self { by_name: BTreeMap::new(), all: Vec::new(), unused: Vec::new(), ready, in_progress: [0; 2] }
    }
}

impl<E> Shares<E> {
    /// Adds a target of a namespace, with this number of checks an hour.
    pub(super) fn join(&mut self, namespace: Option<&Arc<str>>, checks_an_hour: u64) -> ShareIndex {
        let name = namespace.cloned();
        let index = match self.by_name.get(&name) {
            Some(index) => *index,
            None => {
                let share = Share::new(name.clone());
                let index = match self.unused.pop() {
                    Some(index) => {
                        self.all[index as usize] = share;
                        index
                    }
                    None => {
                        self.all.push(share);
                        u32::try_from(self.all.len() - 1).expect("fewer than 2^32 namespaces")
                    }
                };
                self.by_name.insert(name, index);
                index
            }
        };
        let share = &mut self.all[index as usize];
        share.targets += 1;
        share.checks_an_hour += checks_an_hour;
        index
    }

    /// Removes a target of a namespace.
    pub(super) fn leave(&mut self, index: ShareIndex, checks_an_hour: u64) {
        let share = &mut self.all[index as usize];
        share.targets -= 1;
        share.checks_an_hour -= checks_an_hour;
        self.remove_if_unused(index);
    }

    /// Adds a check of this share that is due.
    pub(super) fn wait(&mut self, index: ShareIndex, class: Class, entry: E) {
        let waiting = &mut self.all[index as usize].waiting[class as usize];
        if waiting.is_empty() {
            self.ready[class as usize].push_back(index);
        }
        waiting.push_back(entry);
    }

    /// The next check to start, among those for which `is_live` is true, if fewer than `max` of the class are in
    /// progress. The check then counts as in progress.
    pub(super) fn begin(
        &mut self,
        class: Class,
        max: usize,
        mut is_live: impl FnMut(&E) -> bool,
    ) -> Option<(ShareIndex, E)> {
        let of = class as usize;
        let free = max.checked_sub(self.in_progress[of]).filter(|free| *free > 0)?;
        let free = free.saturating_sub(max / RESERVED_FRACTION);
        // A share that may not start a check has several in progress, so there are few such shares.
        for _ in 0..self.ready[of].len() {
            let index = self.ready[of].pop_front()?;
            let share = &mut self.all[index as usize];
            if share.in_progress[of] >= free.saturating_mul(SHARE_OF_FREE).max(1) {
                self.ready[of].push_back(index);
                continue;
            }
            let mut next = share.waiting[of].pop_front();
            while next.as_ref().is_some_and(|entry| !is_live(entry)) {
                next = share.waiting[of].pop_front();
            }
            if !share.waiting[of].is_empty() {
                self.ready[of].push_back(index);
            }
            match next {
                Some(entry) => {
                    share.in_progress[of] += 1;
                    self.in_progress[of] += 1;
                    return Some((index, entry));
                }
                None => self.remove_if_unused(index),
            }
        }
        None
    }

    /// Records that a check has ended.
    pub(super) fn end(&mut self, index: ShareIndex, class: Class) {
        self.in_progress[class as usize] -= 1;
        self.all[index as usize].in_progress[class as usize] -= 1;
        self.remove_if_unused(index);
    }

    /// The number of checks in progress.
    pub(super) fn in_progress(&self) -> usize {
        self.in_progress.iter().sum()
    }

    /// The factor by which the intervals of a share are multiplied.
    pub(super) fn stretch(&self, index: ShareIndex) -> u32 {
        self.all[index as usize].stretch
    }

    /// The largest factor.
    pub(super) fn stretch_max(&self) -> u32 {
        self.by_name.values().map(|index| self.stretch(*index)).max().unwrap_or(1)
    }

    /// Distributes this number of checks an hour. Returns whether the factor of any namespace changed.
    pub(super) fn distribute(&mut self, checks_an_hour: u64) -> bool {
        let size = |checks: u64| usize::try_from(checks).unwrap_or(usize::MAX);
        let all = self.by_name.values().map(|index| size(self.all[*index as usize].checks_an_hour));
        let level = fair_share(all.collect(), size(checks_an_hour)).max(1);
        let mut changed = false;
        for index in self.by_name.values() {
            let share = &mut self.all[*index as usize];
            let stretch =
                u32::try_from(size(share.checks_an_hour).div_ceil(level)).unwrap_or(u32::MAX).max(1);
            changed |= std::mem::replace(&mut share.stretch, stretch) != stretch;
        }
        changed
    }

    fn remove_if_unused(&mut self, index: ShareIndex) {
        let share = &mut self.all[index as usize];
        if share.is_unused() && self.by_name.get(&share.name) == Some(&index) {
            self.by_name.remove(&share.name);
            self.unused.push(index);
        }
    }

    /// The number of checks that may wait without an allocation.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.all.iter().flat_map(|share| &share.waiting).map(VecDeque::capacity).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: usize) -> Arc<str> {
        format!("ns-{n}").into()
    }

    fn begin_all(shares: &mut Shares<usize>, max: usize) -> Vec<usize> {
        let mut begun = Vec::new();
        while let Some((_, entry)) = shares.begin(Class::Plain, max, |_| true) {
            begun.push(entry);
        }
        begun
    }

    #[test]
    fn a_new_namespace_gets_capacity_however_many_others_want_everything() {
        for namespaces in [1, 2, 10, 100, 1000] {
            let mut shares = Shares::default();
            for n in 0..namespaces {
                let index = shares.join(Some(&name(n)), 1);
                (0..5_000).for_each(|_| shares.wait(index, Class::Plain, n));
            }
            let begun = begin_all(&mut shares, 2048);
            let each = |n: usize| begun.iter().filter(|entry| **entry == n).count();
            let (least, most) = (0..namespaces)
                .map(each)
                .fold((usize::MAX, 0), |(least, most), n| (least.min(n), most.max(n)));
            assert!(most - least <= 1, "{least} to {most} of {namespaces} namespaces");
            let late = shares.join(Some(&"late".into()), 1);
            shares.wait(late, Class::Plain, namespaces);
            assert_eq!(begin_all(&mut shares, 2048).first(), Some(&namespaces), "after {namespaces}");
        }
    }

    #[test]
    fn one_namespace_alone_uses_three_quarters() {
        let mut shares = Shares::default();
        let index = shares.join(None, 1);
        (0..5_000).for_each(|n| shares.wait(index, Class::Plain, n));
        assert_eq!(begin_all(&mut shares, 1600).len(), 1200);
    }

    #[test]
    fn the_largest_namespace_loses_checks_when_the_rate_limit_is_reached() {
        let mut shares = Shares::<()>::default();
        let stretches = |shares: &Shares<()>| [0, 1, 2].map(|index| shares.stretch(index));
        for (n, requested) in [(0, 10), (1, 400), (2, 6_000)] {
            shares.join(Some(&name(n)), requested);
        }
        assert!(!shares.distribute(10_000));
        assert_eq!(stretches(&shares), [1, 1, 1]);
        // 10 of 1,000 for the first leave 495 for each of the others, and 590 for the last.
        assert!(shares.distribute(1_000));
        assert_eq!(stretches(&shares), [1, 1, 11]);
        assert!(shares.distribute(500));
        assert_eq!(stretches(&shares), [1, 2, 25]);
        assert!(shares.distribute(10_000));
        assert_eq!(stretches(&shares), [1, 1, 1]);
    }

    #[test]
    fn a_namespace_without_targets_and_checks_is_forgotten() {
        let mut shares = Shares::default();
        for n in 0..100 {
            let index = shares.join(Some(&name(n)), 1);
            shares.wait(index, Class::Tls, n);
            assert!(shares.begin(Class::Tls, 1, |_| true).is_some());
            shares.wait(index, Class::Tls, n);
            shares.leave(index, 1);
            shares.end(index, Class::Tls);
            assert!(shares.begin(Class::Tls, 1, |_| false).is_none());
        }
        assert_eq!((shares.all.len(), shares.by_name.len(), shares.in_progress()), (1, 0, 0));
    }
}
