//! Who decides on LoadBalancer addresses, and what a gateway takes as given before it does.
//!
//! Of several gateways at one API server the leader decides and writes the address into the Service's status; the
//! others grant what they read there, so that all of them serve the same address for the same Service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::{Allocations, Assigned};
use crate::model::{ObjectKey, Service};
use crate::shared_map::SharedMap;

/// Who decides on LoadBalancer addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Authority {
    /// This gateway: it leads, or nobody else reads its source.
    Decides {
        /// Addresses that nobody gets now: other gateways still serve them for Services that gave them back.
        withheld: BTreeSet<IpAddr>,
    },
    /// Another one: only addresses that Services have already are granted.
    Follows,
}

impl Default for Authority {
    /// Alone.
    fn default() -> Self {
        Self::Decides { withheld: BTreeSet::new() }
    }
}

/// The field manager under which the gateways write; who else owns a status is a stranger.
pub const FIELD_MANAGER: &str = "tidegate";

/// What Services had before: the memory of this gateway and what their status says.
///
/// Who decides trusts its memory first, for what it gave may not be written yet; after a restart there is none, and
/// the status is adopted. Who follows trusts the status first, unless a stranger wrote it. Only memory of Services
/// that are still there is kept. The pool of what is adopted is found by [`allocate`](super::allocate()).
#[must_use]
pub fn adopt(
    services: &SharedMap<ObjectKey, Arc<Service>>,
    memory: &Allocations,
    authority: &Authority,
) -> Allocations {
    let mut by_service = BTreeMap::new();
    for (key, service) in services {
        let remembered = memory.by_service.get(key);
        let decides = matches!(authority, Authority::Decides { .. });
        let trusted = !service.ingress_ips.is_empty() && !is_foreign(service);
        let had = match remembered {
            Some(remembered) if decides || !trusted => remembered.clone(),
            _ => {
                let adopted = |address: &IpAddr| Assigned { address: *address, pool: String::new() };
                service.ingress_ips.iter().map(adopted).collect()
            }
        };
        if !had.is_empty() {
            by_service.insert(key.clone(), had);
        }
    }
    Allocations { by_service }
}

/// Whether somebody else alone owns the addresses in the status.
fn is_foreign(service: &Service) -> bool {
    let managers = &service.stored.ingress_managers;
    !managers.is_empty() && managers.iter().all(|m| m != FIELD_MANAGER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Metadata;

    fn ip(s: &str) -> IpAddr {
        s.parse().expect("tests use valid addresses")
    }

    fn services(ingress: &[&str], managers: &[&str]) -> SharedMap<ObjectKey, Arc<Service>> {
        let key = ObjectKey::new("default", "web");
        let mut service = Service::new(Metadata::new(key.clone()));
        service.ingress_ips = ingress.iter().map(|a| ip(a)).collect();
        service.stored.ingress_managers = managers.iter().map(|m| (*m).to_owned()).collect();
        SharedMap::from([(key, Arc::new(service))])
    }

    fn memory(address: &str) -> Allocations {
        let assigned = Assigned { address: ip(address), pool: "public".into() };
        Allocations { by_service: BTreeMap::from([(ObjectKey::new("default", "web"), vec![assigned])]) }
    }

    fn adopted(
        services: &SharedMap<ObjectKey, Arc<Service>>,
        memory: &Allocations,
        by: &Authority,
    ) -> Vec<String> {
        let all = adopt(services, memory, by).by_service;
        all.values().flatten().map(|a| a.address.to_string()).collect()
    }

    #[test]
    fn restart_adopts_what_status_says() {
        let services = services(&["203.0.113.5", "2001:db8:1::5"], &["tidegate"]);
        for authority in [Authority::default(), Authority::Follows] {
            let all = adopted(&services, &Allocations::default(), &authority);
            assert_eq!(all, ["203.0.113.5", "2001:db8:1::5"], "{authority:?}");
        }
    }

    #[test]
    fn who_decides_trusts_its_memory_and_who_follows_trusts_the_status() {
        let services = services(&["203.0.113.5"], &["tidegate"]);
        let memory = memory("203.0.113.9");
        assert_eq!(adopted(&services, &memory, &Authority::default()), ["203.0.113.9"]);
        assert_eq!(adopted(&services, &memory, &Authority::Follows), ["203.0.113.5"]);
    }

    #[test]
    fn a_status_that_a_stranger_wrote_does_not_move_who_remembers_better() {
        let foreign = services(&["192.0.2.1"], &["someone-else"]);
        assert_eq!(adopted(&foreign, &memory("203.0.113.9"), &Authority::Follows), ["203.0.113.9"]);
        assert_eq!(adopted(&foreign, &Allocations::default(), &Authority::Follows), ["192.0.2.1"]);
    }

    #[test]
    fn memory_of_services_that_are_gone_is_not_kept() {
        assert!(
            adopt(&SharedMap::new(), &memory("203.0.113.9"), &Authority::default()).by_service.is_empty()
        );
    }
}
