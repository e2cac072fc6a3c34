//! Who decides on LoadBalancer addresses, and what a gateway takes as given before it does.
//!
//! Of several gateways at one API server the leader decides and writes the address into the Service's status; the
//! others grant what they read there, so that all of them serve the same address for the same Service.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::Assigned;
use crate::model::Service;

/// Who decides on LoadBalancer addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Authority {
    /// This gateway: it leads, or nobody else reads its source.
    Decides {
        /// Addresses that nobody gets now: other gateways still serve them for Services that gave them back.
        withheld: BTreeSet<IpAddr>,
    },
    /// This gateway, and it gives out nothing now: another one may still serve anything that was given back.
    Waits,
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
/// The condition that says whether a Service has the addresses that it asks for.
pub const ALLOCATED: &str = "tidegate.dev/Allocated";

/// What a Service had before: by the memory of this gateway, and by what its status says.
///
/// Who decides trusts its memory first, for what it gave may not be written yet; after a restart there is none, and
/// the status is adopted. Who follows trusts the status, so that it serves what the version of its Services says and
/// nothing else; its memory counts where a stranger changed a status of which our condition says that it has addresses,
/// for the leader will write it again.
#[must_use]
pub fn adopted(service: &Service, remembered: Option<&[Assigned]>, authority: &Authority) -> Vec<IpAddr> {
    let counts = *authority != Authority::Follows || is_foreign(service);
    match remembered {
        Some(remembered) if counts => remembered.iter().map(|a| a.address).collect(),
        _ => service.ingress_ips.clone(),
    }
}

/// Whether somebody else changed the addresses in a status of ours, or took them out.
fn is_foreign(service: &Service) -> bool {
    let stored = &service.stored;
    let managers = &stored.ingress_managers;
    let has_addresses = !service.ingress_ips.is_empty();
    let is_ours = has_addresses && (managers.is_empty() || managers.iter().any(|m| m == FIELD_MANAGER));
    !is_ours && stored.condition(ALLOCATED).is_some_and(|condition| condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Metadata, ObjectKey};

    fn ip(s: &str) -> IpAddr {
        s.parse().expect("tests use valid addresses")
    }

    fn service(ingress: &[&str], managers: &[&str]) -> Service {
        service_whose(ingress, managers, "True")
    }

    fn service_whose(ingress: &[&str], managers: &[&str], allocated: &str) -> Service {
        let mut service = Service::new(Metadata::new(ObjectKey::new("default", "web")));
        service.ingress_ips = ingress.iter().map(|a| ip(a)).collect();
        service.stored.ingress_managers = managers.iter().map(|m| (*m).to_owned()).collect();
        service.stored.conditions = vec![crate::model::Condition {
            kind: ALLOCATED.to_owned(),
            status: allocated.to_owned(),
            reason: "Allocated".to_owned(),
            message: String::new(),
            observed_generation: 1,
            last_transition: None,
        }];
        service
    }

    fn had(service: &Service, remembered: Option<&str>, by: &Authority) -> Vec<String> {
        let remembered: Option<Vec<Assigned>> =
            remembered.map(|address| vec![Assigned { address: ip(address), pool: "public".into() }]);
        adopted(service, remembered.as_deref(), by).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn restart_adopts_what_status_says() {
        let service = service(&["203.0.113.5", "2001:db8:1::5"], &["tidegate"]);
        for authority in [Authority::default(), Authority::Follows] {
            let all = had(&service, None, &authority);
            assert_eq!(all, ["203.0.113.5", "2001:db8:1::5"], "{authority:?}");
        }
    }

    #[test]
    fn who_decides_trusts_its_memory_and_who_follows_trusts_the_status() {
        let service = service(&["203.0.113.5"], &["tidegate"]);
        let memory = Some("203.0.113.9");
        assert_eq!(had(&service, memory, &Authority::default()), ["203.0.113.9"]);
        assert_eq!(had(&service, memory, &Authority::Follows), ["203.0.113.5"]);
    }

    #[test]
    fn a_status_that_a_stranger_wrote_does_not_move_who_remembers_better() {
        let foreign = service(&["192.0.2.1"], &["someone-else"]);
        assert_eq!(had(&foreign, Some("203.0.113.9"), &Authority::Follows), ["203.0.113.9"]);
        assert_eq!(had(&foreign, None, &Authority::Follows), ["192.0.2.1"]);
        let emptied = service(&[], &["someone-else"]);
        assert_eq!(had(&emptied, Some("203.0.113.9"), &Authority::Follows), ["203.0.113.9"]);
    }

    #[test]
    fn who_follows_serves_no_address_that_the_leader_took_out_or_that_was_never_written() {
        for (status, why) in [("False", "taken out"), ("Unknown", "never written")] {
            let service = service_whose(&[], &[], status);
            let none: [&str; 0] = [];
            assert_eq!(had(&service, Some("203.0.113.9"), &Authority::Follows), none, "{why}");
        }
    }
}
