//! Which gateway decides on LoadBalancer addresses, and what the others use instead.
//!
//! If several gateways use one API server, the leader decides and writes the address into the Service's status. The
//! others use the address in the status, so that all of them serve the same address for a Service.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tidegate_model::objects::Service;

use super::{ClaimKind, Holdings, OwnedAddress, recorded};

/// Which gateway decides on LoadBalancer addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Authority {
    /// This gateway, because it is the leader, or no other gateway reads its source.
    Decides {
        /// Addresses that must not be assigned yet: other gateways still serve them for Services that released them,
        /// or their Service has an error in its manifest.
        withheld: BTreeSet<IpAddr>,
    },
    /// This gateway, which doesn't assign addresses yet: another gateway may still serve any released address.
    Waits,
    /// This gateway, which doesn't assign addresses yet: it can't read Gateways, which may have any address.
    Unread,
    /// Another gateway: only addresses that Services already have are granted.
    Follows,
}

impl Default for Authority {
    /// This gateway alone.
    fn default() -> Self {
        Self::Decides { withheld: BTreeSet::new() }
    }
}

/// The field manager of the gateways' writes. Any other manager that owns a status belongs to another controller.
pub const FIELD_MANAGER: &str = "tidegate";
/// The condition that shows whether a Service has the addresses that it requests.
pub const ALLOCATED: &str = "tidegate.dev/Allocated";

/// The previous addresses of a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PreviousAddresses {
    /// Addresses that are known to belong to it. They take precedence over any request of another Service.
    pub confirmed: Vec<OwnedAddress>,
    /// Addresses from a less reliable source. They take precedence over new requests only.
    pub unconfirmed: Vec<OwnedAddress>,
    /// Addresses that it had before it was removed. It gets them again if they are free.
    pub before_removal: Vec<IpAddr>,
    /// Whether Tidegate wrote the addresses in its status.
    pub status_is_ours: bool,
}

impl PreviousAddresses {
    /// All addresses, confirmed ones first.
    pub fn all(&self) -> impl Iterator<Item = &OwnedAddress> {
        self.confirmed.iter().chain(&self.unconfirmed)
    }

    /// Its LoadBalancer addresses.
    pub fn load_balancer(&self) -> impl Iterator<Item = IpAddr> {
        self.all().filter(|owned| owned.kind == ClaimKind::LoadBalancer).map(|owned| owned.address)
    }
}

/// The previous addresses of a Service, from the memory of this gateway and from its status.
///
/// The deciding gateway uses its memory first, because an assigned address may not be in the status yet. After a
/// restart there is no memory, so it uses the status. A following gateway uses the status, so that it serves exactly
/// what this version of the Service contains. It uses its memory in two cases. First, if another controller changed a
/// status whose condition (written by us) reports addresses, because the leader will write the status again. Second,
/// for ports of external IPs whose owner the status doesn't show.
#[must_use]
pub fn adopted(service: &Service, remembered: Option<&Holdings>, authority: &Authority) -> PreviousAddresses {
    // A Service that was deleted and recreated in one step, as when a cluster is restored, also keeps its remembered
    // addresses: no other Service got them in between.
    let remembered = remembered.map_or(&[][..], |holdings| &holdings.addresses);
    let recorded = recorded(&service.stored);
    let of = |owned: &[OwnedAddress], kind: ClaimKind| -> Vec<OwnedAddress> {
        owned.iter().filter(|owned| owned.kind == kind).cloned().collect()
    };
    let follows = *authority == Authority::Follows;
    let mut previous =
        PreviousAddresses { status_is_ours: has_status_of_ours(service), ..PreviousAddresses::default() };

    let by_memory = of(remembered, ClaimKind::LoadBalancer);
    if !by_memory.is_empty() && (!follows || is_foreign(service)) {
        previous.confirmed = by_memory;
    } else {
        for ip in &service.ingress_ips {
            let is_it = |owned: &&OwnedAddress| owned.kind == ClaimKind::LoadBalancer && owned.address == *ip;
            match recorded.iter().find(is_it).or_else(|| remembered.iter().find(is_it)) {
                Some(owned) => previous.confirmed.push(owned.clone()),
                None => previous.unconfirmed.push(OwnedAddress::of_status(*ip)),
            }
        }
    }
    let (by_memory, by_record) =
        (of(remembered, ClaimKind::ExternalIp), of(&recorded, ClaimKind::ExternalIp));
    if follows {
        previous.confirmed.extend(by_record);
        previous.unconfirmed.extend(by_memory);
    } else if by_memory.is_empty() {
        previous.unconfirmed.extend(by_record);
    } else {
        previous.confirmed.extend(by_memory);
    }
    previous
}

/// Whether Tidegate wrote the addresses in its status.
fn has_status_of_ours(service: &Service) -> bool {
    service.stored.ingress_managers.iter().any(|manager| manager == FIELD_MANAGER)
}

/// Whether another controller changed or removed the addresses in a status that we wrote.
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
    use crate::pools::{RECORD_CONDITION, record};
    use tidegate_model::objects::{Metadata, ObjectKey, Protocol};

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
        service.stored.conditions = vec![tidegate_model::objects::Condition {
            kind: ALLOCATED.to_owned(),
            status: allocated.to_owned(),
            reason: "Allocated".to_owned(),
            message: String::new(),
            observed_generation: 1,
            last_transition: None,
        }];
        service
    }

    fn previous(service: &Service, remembered: Option<&str>, by: &Authority) -> Vec<String> {
        let remembered =
            remembered.map(|address| Holdings::new("", vec![OwnedAddress::of_status(ip(address))]));
        adopted(service, remembered.as_ref(), by).load_balancer().map(|ip| ip.to_string()).collect()
    }

    fn external(address: &str, ports: &[(Protocol, u16)]) -> OwnedAddress {
        OwnedAddress {
            kind: ClaimKind::ExternalIp,
            ports: Some(ports.to_vec()),
            ..OwnedAddress::of_status(ip(address))
        }
    }

    #[test]
    fn the_leader_trusts_its_memory_of_external_ips_and_followers_the_record() {
        let mut service = service(&[], &[]);
        let written = external("198.51.100.1", &[(Protocol::Tcp, 80)]);
        service.stored.conditions = vec![tidegate_model::objects::Condition {
            kind: RECORD_CONDITION.to_owned(),
            status: "True".to_owned(),
            reason: "Recorded".to_owned(),
            message: record(std::slice::from_ref(&written)),
            observed_generation: 0,
            last_transition: None,
        }];
        let known = external("198.51.100.1", &[(Protocol::Tcp, 443)]);
        let memory = Holdings::new("", vec![known.clone()]);
        let decides = adopted(&service, Some(&memory), &Authority::default());
        assert_eq!((decides.confirmed, decides.unconfirmed), (vec![known.clone()], vec![]));
        let follows = adopted(&service, Some(&memory), &Authority::Follows);
        assert_eq!((follows.confirmed, follows.unconfirmed), (vec![written.clone()], vec![known]));
        let restarted = adopted(&service, None, &Authority::default());
        assert_eq!((restarted.confirmed, restarted.unconfirmed), (vec![], vec![written]));
    }

    #[test]
    fn a_restart_adopts_the_addresses_in_the_status() {
        let service = service(&["203.0.113.5", "2001:db8:1::5"], &["tidegate"]);
        for authority in [Authority::default(), Authority::Follows] {
            let all = previous(&service, None, &authority);
            assert_eq!(all, ["203.0.113.5", "2001:db8:1::5"], "{authority:?}");
        }
    }

    #[test]
    fn the_leader_trusts_its_memory_and_followers_trust_the_status() {
        let service = service(&["203.0.113.5"], &["tidegate"]);
        let memory = Some("203.0.113.9");
        assert_eq!(previous(&service, memory, &Authority::default()), ["203.0.113.9"]);
        assert_eq!(previous(&service, memory, &Authority::Follows), ["203.0.113.5"]);
    }

    #[test]
    fn a_status_of_another_writer_does_not_override_memory() {
        let foreign = service(&["192.0.2.1"], &["someone-else"]);
        assert_eq!(previous(&foreign, Some("203.0.113.9"), &Authority::Follows), ["203.0.113.9"]);
        assert_eq!(previous(&foreign, None, &Authority::Follows), ["192.0.2.1"]);
        let emptied = service(&[], &["someone-else"]);
        assert_eq!(previous(&emptied, Some("203.0.113.9"), &Authority::Follows), ["203.0.113.9"]);
    }

    #[test]
    fn a_follower_serves_no_address_that_the_leader_removed() {
        for (status, why) in [("False", "taken out"), ("Unknown", "never written")] {
            let service = service_whose(&[], &[], status);
            let none: [&str; 0] = [];
            assert_eq!(previous(&service, Some("203.0.113.9"), &Authority::Follows), none, "{why}");
        }
    }
}
