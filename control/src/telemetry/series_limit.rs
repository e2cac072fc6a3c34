//! Decides which Services have no series for each of their backends.
//!
//! Users decide how many backends a Service has, and on how many ports. A page with millions of series takes gigabytes,
//! and a monitoring system does not read it. So a Service with very many backends gets no series per backend, and the
//! others share the limit of a page: if they have more, namespaces get equal shares, and a namespace below its share
//! keeps all of its series.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use tidegate_model::fair_share::fair_share;
use tidegate_policy::reconcile::view::ServiceView;

/// The maximum number of backends of one Service, over its ports and addresses.
const OF_SERVICE_MAX: usize = 4_096;
/// The maximum number of backends of all Services.
const OF_ALL_MAX: usize = 200_000;

/// The Services with series per backend, and how many backends have none.
#[derive(Debug, Default)]
pub(super) struct WithoutSeries<'a> {
    with_series: HashSet<(&'a str, &'a str)>,
    backends: usize,
}

impl<'a> WithoutSeries<'a> {
    pub(super) fn of(services: &'a [Arc<ServiceView>]) -> Self {
        let sized = services.iter().map(|one| {
            let size = one.ports.iter().map(|port| port.backends.len()).sum::<usize>();
            (one.namespace.as_str(), one.name.as_str(), size)
        });
        Self::among(&sized.collect::<Vec<_>>(), OF_SERVICE_MAX, OF_ALL_MAX)
    }

    /// Like [`Self::of`], for Services given by namespace, name and number of backends.
    fn among(services: &[(&'a str, &'a str, usize)], of_service_max: usize, of_all_max: usize) -> Self {
        let mut namespaces: BTreeMap<&str, usize> = BTreeMap::new();
        for &(namespace, _, size) in services.iter().filter(|(.., size)| *size <= of_service_max) {
            *namespaces.entry(namespace).or_default() += size;
        }
        let share = fair_share(namespaces.values().copied().collect(), of_all_max);
        let mut used: BTreeMap<&str, usize> = BTreeMap::new();
        let mut without = Self::default();
        for &(namespace, name, size) in services {
            let used = used.entry(namespace).or_default();
            if size <= of_service_max && *used + size <= share {
                *used += size;
                without.with_series.insert((namespace, name));
            } else {
                without.backends += size;
            }
        }
        without
    }

    /// Whether this Service has no series per backend: it or its namespace has too many backends, or it was removed and
    /// only keeps its flows.
    pub(super) fn has(&self, namespace: &str, name: &str) -> bool {
        !self.with_series.contains(&(namespace, name))
    }

    /// The number of backends without series, over ports and addresses.
    pub(super) fn backends(&self) -> usize {
        self.backends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_with_millions_of_backends_costs_others_no_series() {
        let many: Vec<String> = (0..1_000).map(|n| format!("s{n:04}")).collect();
        let mut services: Vec<(&str, &str, usize)> =
            many.iter().map(|name| ("greedy", name.as_str(), 4_000)).collect();
        services.extend([("greedy", "huge", 262_144), ("shop", "web", 10), ("shop", "api", 4_096)]);
        let without = WithoutSeries::among(&services, OF_SERVICE_MAX, OF_ALL_MAX);
        assert!(!without.has("shop", "web") && !without.has("shop", "api"));
        assert!(without.has("greedy", "huge") && !without.has("greedy", "s0000"));
        assert!(without.has("shop", "removed"), "it only keeps its flows");
        let all: usize = services.iter().map(|(.., size)| size).sum();
        let with = all - without.backends();
        assert!((OF_ALL_MAX - 4_000..=OF_ALL_MAX).contains(&with), "{with}");
    }

    #[test]
    fn all_services_have_series_if_there_are_few_backends() {
        let without = WithoutSeries::among(&[("shop", "web", 10), ("zoo", "web", 90)], 90, 100);
        assert!(!without.has("shop", "web") && !without.has("zoo", "web"));
        assert_eq!(without.backends(), 0);
        assert!(WithoutSeries::among(&[("shop", "web", 91)], 90, 100).has("shop", "web"));
    }
}
