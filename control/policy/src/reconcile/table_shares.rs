//! Limits how much of the shared tables Services may use: each by itself, and all of them together.
//!
//! Each Service has a [`Demand`], computed from counts. A Service that is too large by itself is refused
//! ([`demand`]). All others are served while the sum of their demands fits. If it doesn't, the newest Service of the
//! namespace with the largest demand is refused, and so on until the rest fits. So a namespace that requests less
//! than the others loses nothing, whatever the others do. Refused Services are reported, and are served again when
//! they fit.
//!
//! Invariant: which Services are refused depends only on the current demands, not on their order of arrival.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use tidegate_model::config::{Scheduler, Target};
use tidegate_model::objects::{Metadata, ObjectKey, ServiceEndpoints};
use tidegate_spec::limits::SOURCE_RANGES_MAX;

use super::annotations::key;
use super::demand::Demand;
use super::options::Options;
use super::plan::Plan;
use super::service_addresses::ServiceAddresses;
use super::settings::Settings;
use super::size_limits::{BACKENDS_MAX, BACKENDS_PER_PORT_MAX, TooLarge, is_local_only};
use super::source_ranges;
use crate::largest_first::LargestFirst;

/// The maximum number of slots of Maglev tables that one Service may request by annotation, beyond the configured
/// tables: 128 tables of the default size, or 12 of the largest.
const SLOTS_MAX: usize = 1 << 23;

/// The demands of all Services, and the refused Services.
#[derive(Debug, Default)]
pub(super) struct Shares {
    all: BTreeMap<ObjectKey, (Demand, Metadata)>,
    total: Demand,
    refused: BTreeSet<ObjectKey>,
}

type Measure = fn(&Demand) -> usize;

impl Shares {
    pub(super) fn set(&mut self, meta: &Metadata, demand: Demand) {
        self.remove(&meta.key);
        // Keeps only the fields that determine seniority.
        let meta = Metadata {
            uid: meta.uid.clone(),
            creation_time: meta.creation_time,
            ..Metadata::new(meta.key.clone())
        };
        self.total += demand;
        self.all.insert(meta.key.clone(), (demand, meta));
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) {
        if let Some((demand, _)) = self.all.remove(key) {
            self.total -= demand;
        }
    }

    pub(super) fn is_over(&self, max: &Demand) -> bool {
        !self.total.fits(max)
    }

    /// Why a Service is refused, according to the last call of [`Self::refuse_surplus`].
    pub(super) fn refusal(&self, key: &ObjectKey, max: &Demand) -> Option<TooLarge> {
        self.refused.contains(key).then(|| TooLarge::of_all(&key.namespace, max))
    }

    /// Decides which Services are refused. Returns the Services whose result changed.
    pub(super) fn refuse_surplus(&mut self, max: &Demand) -> BTreeSet<ObjectKey> {
        let refused = if self.is_over(max) { self.surplus(max) } else { BTreeSet::new() };
        let changed = self.refused.symmetric_difference(&refused).cloned().collect();
        self.refused = refused;
        changed
    }

    fn surplus(&self, max: &Demand) -> BTreeSet<ObjectKey> {
        let (mut total, mut refused) = (self.total, BTreeSet::new());
        let measures: [(Measure, usize); 4] = [
            (|demand| demand.frontends, max.frontends),
            (|demand| demand.backends, max.backends),
            (|demand| demand.slots, max.slots),
            (|demand| demand.ranges, max.ranges),
        ];
        for (measure, max) in measures {
            if measure(&total) <= max {
                continue;
            }
            let stay = self.all.iter().filter(|(key, one)| measure(&one.0) > 0 && !refused.contains(*key));
            let mut stay: Vec<_> = stay.collect();
            // The newest of a namespace is dropped first.
            stay.sort_by(|(_, (_, a)), (_, (_, b))| a.seniority().cmp(&b.seniority()));
            let stay = stay.into_iter().map(|(key, one)| (key.namespace.as_str(), measure(&one.0), one));
            let mut largest = LargestFirst::new(stay);
            while measure(&total) > max
                && let Some((demand, meta)) = largest.next()
            {
                refused.insert(meta.key.clone());
                total -= *demand;
            }
        }
        refused
    }
}

/// The demand of a Service with its granted addresses, or why it is too large.
pub(super) fn demand(
    settings: &Settings,
    plan: Plan<'_>,
    frontends: &ServiceAddresses<'_>,
    endpoints: &ServiceEndpoints,
    nodes: usize,
) -> Result<Demand, TooLarge> {
    if let Some(too_large) = plan.too_large {
        return Err(too_large.clone());
    }
    if let Some(not_kept) = endpoints.not_kept {
        return Err(TooLarge::of_slices(plan.service, not_kept));
    }
    let ranges = plan.service.source_ranges.len();
    if ranges > SOURCE_RANGES_MAX {
        return Err(TooLarge {
            why: format!("it has {ranges} source ranges"),
            field: source_ranges::field(plan.service),
            accepted: format!("at most {SOURCE_RANGES_MAX} for one Service"),
        });
    }
    let mut demand = Demand { ranges, ..Demand::default() };
    for (i, (port, resolved)) in plan.service.ports.iter().zip(&endpoints.ports).enumerate() {
        let candidates = match plan.options.backends.target {
            Target::Pod => resolved.endpoints.len(),
            // Nodes that have an endpoint. The number of other nodes must not matter.
            Target::Node if is_local_only(settings, plan.service) => {
                resolved.endpoints.iter().map(|endpoint| &endpoint.node).collect::<HashSet<_>>().len()
            }
            Target::Node => nodes,
        };
        if candidates > BACKENDS_PER_PORT_MAX {
            return Err(TooLarge {
                why: format!("port {}/{} has {candidates} backends", resolved.port, resolved.protocol),
                field: format!("spec.ports[{i}]"),
                accepted: format!("at most {BACKENDS_PER_PORT_MAX} for one port"),
            });
        }
        let addresses = frontends.addresses_of(port);
        // Ports with the same backends share a table. A port needs a table for each family of its addresses.
        let tables = if candidates == 0 { 0 } else { addresses.min(2) };
        let slots = tables * slots_beyond_default(settings, plan.options);
        demand += Demand { frontends: addresses, backends: addresses * candidates, slots, ranges: 0 };
    }
    if demand.slots > SLOTS_MAX {
        return Err(TooLarge {
            why: format!(
                "its annotations request {} slots of Maglev tables more than the default, summed over its ports",
                demand.slots
            ),
            field: format!("metadata.annotations[{}]", key::TABLE_SIZE),
            accepted: format!(
                "at most {SLOTS_MAX} for one Service: fewer ports, smaller tables, or {} rendezvous",
                key::SCHEDULER
            ),
        });
    }
    if let Some(count) = endpoints.too_many {
        demand.backends = count;
    }
    if demand.backends <= BACKENDS_MAX {
        return Ok(demand);
    }
    Err(TooLarge {
        why: format!(
            "its endpoints result in {} backends over all of its ports and addresses",
            demand.backends
        ),
        field: "spec.ports".to_owned(),
        accepted: format!("at most {BACKENDS_MAX} for one Service"),
    })
}

/// The slots of the Service's Maglev table beyond the configured table, which all Services get.
fn slots_beyond_default(settings: &Settings, options: &Options) -> usize {
    let slots = |scheduler, size: u32| match scheduler {
        Scheduler::Maglev => size as usize,
        _ => 0,
    };
    let default = slots(settings.services.defaults.scheduler, settings.services.defaults.table_size);
    slots(options.choice.scheduler, options.choice.table_size).saturating_sub(default)
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
    fn the_largest_namespace_loses_its_newest_services_until_the_rest_fits() {
        let mut shares = Shares::default();
        for n in 0..10 {
            shares.set(
                &meta("greedy", &format!("s{n}"), n),
                Demand { frontends: 1, backends: 10, ..Demand::default() },
            );
        }
        assert!(shares.refuse_surplus(&MAX).is_empty());
        // The victim is the newest Service, and requests less than the other namespace.
        shares.set(&meta("victim", "web", 1_000), Demand { frontends: 1, backends: 15, ..Demand::default() });
        let changed = shares.refuse_surplus(&MAX);
        assert_eq!(refused(&shares), ["greedy/s8", "greedy/s9"]);
        assert_eq!(changed.len(), 2);
        shares.remove(&ObjectKey::new("greedy", "s0"));
        assert_eq!(shares.refuse_surplus(&MAX).len(), 1);
        assert_eq!(refused(&shares), ["greedy/s9"]);
        shares.remove(&ObjectKey::new("greedy", "s1"));
        shares.refuse_surplus(&MAX);
        assert_eq!(refused(&shares), [] as [&str; 0]);
    }

    proptest! {
        #[test]
        fn served_services_fit_and_none_below_an_equal_share_is_refused(
            demands in prop::collection::vec((0_u8..4, 0_usize..4, 0_usize..60, 0_usize..400, 0_usize..20), 1..40),
        ) {
            let mut shares = Shares::default();
            for (n, (namespace, frontends, backends, slots, ranges)) in demands.into_iter().enumerate() {
                let meta = meta(&format!("n{namespace}"), &format!("s{n}"), n as i64);
                shares.set(&meta, Demand { frontends, backends, slots, ranges });
            }
            shares.refuse_surplus(&MAX);
            let mut served = Demand::default();
            let mut requested: BTreeMap<&str, Demand> = BTreeMap::new();
            for (key, (demand, _)) in &shares.all {
                *requested.entry(&key.namespace).or_default() += *demand;
                if !shares.refused.contains(key) {
                    served += *demand;
                }
            }
            prop_assert!(served.fits(&MAX), "{served:?}");
            let many = requested.len();
            for (name, requested) in requested {
                let share = Demand {
                    frontends: MAX.frontends / many,
                    backends: MAX.backends / many,
                    slots: MAX.slots / many,
                    ranges: MAX.ranges / many,
                };
                if requested.fits(&share) {
                    prop_assert!(shares.refused.iter().all(|key| key.namespace != name), "{name}");
                }
            }
        }
    }
}
