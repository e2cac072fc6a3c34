//! Limits how much of the shared tables all Services together may use, and decides which of them are refused if they
//! request more.
//!
//! Each Service has a [`Demand`], computed from counts. While the sum fits, every Service is served. If it does not,
//! the newest Service of the namespace with the largest demand is refused, again and again until the rest fits. So a
//! namespace that requests less than the others loses nothing, whatever the others do. Refused Services are reported,
//! and are served again when there is room.
//!
//! Invariant: which Services are refused depends only on the current demands, not on the order in which they arrived.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_model::objects::{Metadata, ObjectKey};

use super::demand::Demand;
use super::too_large::TooLarge;
use crate::largest_first::LargestFirst;

/// The demands of all Services, and the refused Services.
#[derive(Debug, Default)]
pub(super) struct Shares {
    all: BTreeMap<ObjectKey, (Demand, Metadata)>,
    total: Demand,
    refused: BTreeSet<ObjectKey>,
}

/// One of the values of a demand.
type Side = fn(&Demand) -> usize;
impl Shares {
    /// Sets the demand of a Service.
    pub(super) fn set(&mut self, meta: &Metadata, demand: Demand) {
        self.remove(&meta.key);
        // Only the fields that determine seniority.
        let meta = Metadata {
            uid: meta.uid.clone(),
            creation_time: meta.creation_time,
            ..Metadata::new(meta.key.clone())
        };
        self.total += demand;
        self.all.insert(meta.key.clone(), (demand, meta));
    }

    /// Removes a Service.
    pub(super) fn remove(&mut self, key: &ObjectKey) {
        if let Some((demand, _)) = self.all.remove(key) {
            self.total -= demand;
        }
    }

    /// Whether the total demand exceeds the limit.
    pub(super) fn is_over(&self, max: &Demand) -> bool {
        !self.total.fits(max)
    }

    /// Why a Service is refused, if it was when the demands were last [settled](Self::settle).
    pub(super) fn refusal(&self, key: &ObjectKey, max: &Demand) -> Option<TooLarge> {
        self.refused.contains(key).then(|| TooLarge::of_all(&key.namespace, max))
    }

    /// Decides which Services are refused. Returns those whose result changed.
    pub(super) fn settle(&mut self, max: &Demand) -> BTreeSet<ObjectKey> {
        let refused = if self.is_over(max) { self.surplus(max) } else { BTreeSet::new() };
        let changed = self.refused.symmetric_difference(&refused).cloned().collect();
        self.refused = refused;
        changed
    }

    fn surplus(&self, max: &Demand) -> BTreeSet<ObjectKey> {
        let (mut total, mut refused) = (self.total, BTreeSet::new());
        let sides: [(Side, usize); 4] = [
            (|demand| demand.frontends, max.frontends),
            (|demand| demand.backends, max.backends),
            (|demand| demand.slots, max.slots),
            (|demand| demand.ranges, max.ranges),
        ];
        for (side, max) in sides {
            if side(&total) <= max {
                continue;
            }
            let stay = self.all.iter().filter(|(key, one)| side(&one.0) > 0 && !refused.contains(*key));
            let mut stay: Vec<_> = stay.collect();
            // The newest of a namespace gives way first.
            stay.sort_by(|(_, (_, a)), (_, (_, b))| a.seniority().cmp(&b.seniority()));
            let stay = stay.into_iter().map(|(key, one)| (key.namespace.as_str(), side(&one.0), one));
            let mut largest = LargestFirst::new(stay);
            while side(&total) > max
                && let Some((demand, meta)) = largest.next()
            {
                refused.insert(meta.key.clone());
                total -= *demand;
            }
        }
        refused
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn meta(namespace: &str, name: &str, created: i64) -> Metadata {
        let mut meta = Metadata::new(ObjectKey::new(namespace, name));
        meta.creation_time = jiff::Timestamp::from_second(created).ok();
        meta
    }

    fn refused(shares: &Shares) -> Vec<String> {
        shares.refused.iter().map(ToString::to_string).collect()
    }

    const MAX: Demand = Demand { frontends: 10, backends: 100, slots: 1_000, ranges: 50 };

    #[test]
    fn the_newest_services_of_the_largest_namespace_are_refused_and_come_back_when_there_is_room() {
        let mut shares = Shares::default();
        for n in 0..10 {
            shares.set(
                &meta("greedy", &format!("s{n}"), n),
                Demand { frontends: 1, backends: 10, ..Demand::default() },
            );
        }
        assert!(shares.settle(&MAX).is_empty());
        // The victim is the newest Service, and requests less than the other namespace has.
        shares.set(&meta("victim", "web", 1_000), Demand { frontends: 1, backends: 15, ..Demand::default() });
        let changed = shares.settle(&MAX);
        assert_eq!(refused(&shares), ["greedy/s8", "greedy/s9"]);
        assert_eq!(changed.len(), 2);
        shares.remove(&ObjectKey::new("greedy", "s0"));
        assert_eq!(shares.settle(&MAX).len(), 1);
        assert_eq!(refused(&shares), ["greedy/s9"]);
        shares.remove(&ObjectKey::new("greedy", "s1"));
        shares.settle(&MAX);
        assert_eq!(refused(&shares), [] as [&str; 0]);
    }

    proptest! {
        #[test]
        fn what_is_served_fits_and_nobody_below_an_equal_share_is_refused(
            demands in prop::collection::vec((0_u8..4, 0_usize..4, 0_usize..60, 0_usize..400, 0_usize..20), 1..40),
        ) {
            let mut shares = Shares::default();
            for (n, (namespace, frontends, backends, slots, ranges)) in demands.into_iter().enumerate() {
                let meta = meta(&format!("n{namespace}"), &format!("s{n}"), n as i64);
                shares.set(&meta, Demand { frontends, backends, slots, ranges });
            }
            shares.settle(&MAX);
            let mut served = Demand::default();
            let mut asked: BTreeMap<&str, Demand> = BTreeMap::new();
            for (key, (demand, _)) in &shares.all {
                *asked.entry(&key.namespace).or_default() += *demand;
                if !shares.refused.contains(key) {
                    served += *demand;
                }
            }
            prop_assert!(served.fits(&MAX), "{served:?}");
            let many = asked.len();
            for (name, asked) in asked {
                let share = Demand {
                    frontends: MAX.frontends / many,
                    backends: MAX.backends / many,
                    slots: MAX.slots / many,
                    ranges: MAX.ranges / many,
                };
                if asked.fits(&share) {
                    prop_assert!(shares.refused.iter().all(|key| key.namespace != name), "{name}");
                }
            }
        }
    }
}
