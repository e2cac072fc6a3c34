//! The first phase of a round: collects the inputs.
//!
//! [`Gatherer`] keeps the latest of each input between rounds. [`Gathered`] borrows it, so no input changes during a
//! round.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_cluster::plan::LeaseHolders;
use tidegate_model::health::Verdicts;
use tidegate_model::objects::{ObjectKey, Objects};
use tidegate_policy::gateway_api::GatewayApi;
use tidegate_policy::pools::{Allocations, Authority, Holdings};
use tidegate_source::{RefusedObject, SourceUpdate};
use tokio::time::Instant;

use crate::daemon::cluster::Cluster;
use crate::daemon::configuration::Configuration;
use crate::daemon::drains::Drains;
use crate::daemon::list_copies::ListCopies;

/// The latest inputs.
pub(in crate::daemon) struct Gatherer {
    pub(in crate::daemon) configuration: Configuration,
    /// The copies of the lists of `protection`.
    pub(in crate::daemon) copies: Arc<ListCopies>,
    /// The current state of the source, with a Service for each Gateway; `None` until it is known.
    manifests: Option<SourceUpdate>,
    pub(super) gateway_api: GatewayApi,
    /// The results of the health checks.
    pub(in crate::daemon) verdicts: Verdicts,
    /// What operators have drained.
    pub(in crate::daemon) drained: Drains,
    /// What is wrong with the annotation that drains the gateway.
    pub(in crate::daemon) annotation_fault: Option<String>,
    /// The holders of the Leases of VIPs.
    pub(in crate::daemon) lease_holders: Arc<LeaseHolders>,
    /// The Services and Gateways that were not served in the last round because of an error in a manifest.
    refused: BTreeSet<ObjectKey>,
}

/// The addresses that Services have before the round.
pub(in crate::daemon) struct Given<'a> {
    pub(super) allocations: &'a Arc<Allocations>,
    /// Whether a file of this gateway stores them: then this gateway decides on addresses.
    pub(super) are_kept_here: bool,
}

/// The inputs of one round.
#[must_use = "a round is decided from its inputs"]
pub(in crate::daemon) struct Gathered<'a> {
    pub(super) inputs: &'a Gatherer,
    pub(super) manifests: &'a SourceUpdate,
    /// Services and Gateways that were refused in the last round and are valid again: they get their addresses back.
    pub(super) mended: Vec<ObjectKey>,
    began: Instant,
    /// When the first change that led to this round was noticed.
    seen: std::time::Instant,
}

impl Gatherer {
    /// The inputs before the first objects arrive.
    pub(in crate::daemon) fn new(
        configuration: Configuration,
        copies: Arc<ListCopies>,
        drained: Drains,
    ) -> Self {
        Self {
            configuration,
            copies,
            manifests: None,
            gateway_api: GatewayApi::default(),
            verdicts: Verdicts::default(),
            drained,
            annotation_fault: None,
            lease_holders: Arc::default(),
            refused: BTreeSet::new(),
        }
    }

    /// Sets the current state of the source; `None` until it is known.
    pub(in crate::daemon) fn take(&mut self, manifests: Option<SourceUpdate>) {
        self.manifests = manifests.map(|update| {
            let objects = self.gateway_api.derive(&update.objects);
            SourceUpdate { objects, ..update }
        });
    }

    /// The objects of the current state of the source, with a Service for each Gateway; `None` until they are known.
    pub(in crate::daemon) fn objects(&self) -> Option<&Arc<Objects>> {
        self.manifests.as_ref().map(|update| &update.objects)
    }

    /// Collects the inputs of a round; `None` before the first objects. `seen` is when the first change of the round
    /// was noticed. This also sets which gateway decides on addresses, and which addresses are withheld.
    pub(in crate::daemon) fn gather(
        &mut self,
        seen: Option<std::time::Instant>,
        given: &Given<'_>,
        cluster: &mut Cluster,
    ) -> Option<Gathered<'_>> {
        let manifests = self.manifests.as_ref()?;
        let began = Instant::now();
        let settings = &mut self.configuration.settings;
        cluster.check_peers(manifests, given.allocations, settings);
        let mut mended = Vec::new();
        if given.are_kept_here {
            let refused = served_when_valid(&manifests.refused, &manifests.objects);
            settings.authority = Authority::Decides { withheld: waiting(given.allocations, &refused) };
            mended.extend(std::mem::replace(&mut self.refused, refused));
            mended.retain(|key| !self.refused.contains(key) && manifests.objects.services.contains_key(key));
        }
        let seen = seen.map_or(manifests.seen, |seen| seen.min(manifests.seen));
        Some(Gathered { inputs: self, manifests, mended, began, seen })
    }
}

impl Gathered<'_> {
    /// The time since the round started.
    pub(super) fn took(&self) -> Duration {
        self.began.elapsed()
    }

    /// The time since the first change that led to this round was noticed.
    pub(super) fn since_change(&self) -> Duration {
        self.seen.elapsed()
    }
}

/// The refused Services and Gateways, and the Gateways without a GatewayClass, by the keys under which they are served
/// when they're valid. The GatewayClass may be refused, or be in a file that can't be read.
fn served_when_valid(refused: &[RefusedObject], objects: &Objects) -> BTreeSet<ObjectKey> {
    let refused = refused.iter().filter_map(RefusedObject::served_as).cloned();
    let gateways = objects.gateways.iter();
    let classless = gateways.filter(|(_, gateway)| !objects.gateway_classes.contains_key(&gateway.class));
    refused.chain(classless.map(|(key, _)| ObjectKey::of_gateway(&key.namespace, &key.name))).collect()
}

/// The addresses of Services and Gateways that are not served because of an error in a manifest. No other Service may
/// get them, so that the Service or Gateway gets them back when the error is fixed.
fn waiting(given: &Allocations, refused: &BTreeSet<ObjectKey>) -> BTreeSet<IpAddr> {
    let holdings =
        refused.iter().filter_map(|key| given.by_service.get(key).or_else(|| given.of_removed.get(key)));
    holdings.flat_map(Holdings::load_balancer).collect()
}

#[cfg(test)]
mod tests {
    use tidegate_policy::pools::OwnedAddress;

    use super::*;

    #[test]
    fn addresses_of_refused_services_wait_for_them_before_and_after_a_restart() {
        let address = |n: u8| IpAddr::from([203, 0, 113, n]);
        let owns = |name: &str, n: u8| {
            (ObjectKey::new("shop", name), Holdings::new("", vec![OwnedAddress::of_status(address(n))]))
        };
        let given = Allocations {
            by_service: [owns("served", 1), owns("just-loaded", 2)].into_iter().collect(),
            of_removed: [owns("known-before", 3), owns("deleted", 4)].into_iter().collect(),
        };
        let refused = |kind, name: &str| refused(kind, name, name);
        let all = ["just-loaded", "known-before", "never-seen"].map(|name| refused("Service", name));
        assert_eq!(
            waiting(&given, &served_when_valid(&all, &Objects::default())),
            [address(2), address(3)].into()
        );
        let slice = served_when_valid(&[refused("EndpointSlice", "served")], &Objects::default());
        assert_eq!(waiting(&given, &slice), [].into());
    }

    #[test]
    fn addresses_of_refused_gateways_wait_for_them_too() {
        let address = |n: u8| IpAddr::from([203, 0, 113, n]);
        let owns =
            |key: ObjectKey, n: u8| (key, Holdings::new("", vec![OwnedAddress::of_status(address(n))]));
        let given = Allocations {
            by_service: [owns(ObjectKey::of_gateway("shop", "just-loaded"), 1)].into_iter().collect(),
            of_removed: [
                owns(ObjectKey::of_gateway("shop", "known-before"), 2),
                // A Service with the same name as a Gateway that was never served.
                owns(ObjectKey::new("shop", "never-served"), 3),
            ]
            .into_iter()
            .collect(),
        };
        let all = ["just-loaded", "known-before", "never-served"]
            .map(|name| refused("Gateway", name, &format!("gateway/{name}")));
        assert_eq!(
            waiting(&given, &served_when_valid(&all, &Objects::default())),
            [address(1), address(2)].into()
        );
    }

    /// A refused object of this name and Service.
    fn refused(kind: &'static str, name: &str, service: &str) -> RefusedObject {
        let service = Some(ObjectKey::new("shop", service));
        RefusedObject { kind, key: ObjectKey::new("shop", name), service, faults: Vec::new() }
    }
}
