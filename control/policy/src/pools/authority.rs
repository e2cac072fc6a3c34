//! Which gateway decides on LoadBalancer addresses, and what the others use instead.
//!
//! Among several gateways at one API server the leader decides and writes the address into the Service's status. The
//! others use the address in the status, so that all of them serve the same address for the same Service.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tidegate_model::objects::Service;

use super::{ClaimKind, Held, Holdings, recorded};

/// Which gateway decides on LoadBalancer addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Authority {
    /// This gateway, because it is the leader, or no other gateway reads its source.
    Decides {
        /// Addresses that are withheld: other gateways still serve them for Services that released them, or they wait for
        /// a Service whose manifest has an error.
        withheld: BTreeSet<IpAddr>,
    },
    /// This gateway, which assigns no addresses yet: another one may still serve any released address.
    Waits,
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
/// The condition that says whether a Service has the addresses that it requests.
pub const ALLOCATED: &str = "tidegate.dev/Allocated";

/// The earlier addresses of a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Had {
    /// Addresses that are known to belong to it. They take precedence over any request of another Service.
    pub firm: Vec<Held>,
    /// Addresses from a less reliable source. They take precedence over new requests.
    pub weak: Vec<Held>,
    /// Addresses that it had before it was removed. It gets them again if they are free.
    pub last: Vec<IpAddr>,
    /// Whether this project's gateways wrote the addresses in its status.
    pub status_is_ours: bool,
}

impl Had {
    /// All of them, the firm ones first.
    pub fn all(&self) -> impl Iterator<Item = &Held> {
        self.firm.iter().chain(&self.weak)
    }

    /// Addresses that it had as LoadBalancer.
    pub fn load_balancer(&self) -> impl Iterator<Item = IpAddr> {
        self.all().filter(|held| held.kind == ClaimKind::LoadBalancer).map(|held| held.address)
    }
}

/// The earlier addresses of a Service: from the memory of this gateway, and from its status.
///
/// The gateway that decides uses its memory first, because an assigned address may not be in the status yet. After a
/// restart there is no memory, and the status is used. A gateway that follows uses the status, so that it serves
/// exactly what that version of the Services says. It uses its memory in two cases: if another controller changed a
/// status whose condition (written by us) says that the Service has addresses, since the leader will write it again;
/// and for ports of external IPs whose owner the status does not show.
#[must_use]
pub fn adopted(service: &Service, remembered: Option<&Holdings>, authority: &Authority) -> Had {
    // This includes a Service that was deleted and created again in one step, as after the restore of a cluster: no
    // other Service gets its address in between.
    let remembered = remembered.map_or(&[][..], |holdings| &holdings.held);
    let recorded = recorded(&service.stored);
    let of = |held: &[Held], kind: ClaimKind| -> Vec<Held> {
        held.iter().filter(|held| held.kind == kind).cloned().collect()
    };
    let follows = *authority == Authority::Follows;
    let mut had = Had { status_is_ours: has_status_of_ours(service), ..Had::default() };

    let by_memory = of(remembered, ClaimKind::LoadBalancer);
    if !by_memory.is_empty() && (!follows || is_foreign(service)) {
        had.firm = by_memory;
    } else {
        for ip in &service.ingress_ips {
            let is_it = |held: &&Held| held.kind == ClaimKind::LoadBalancer && held.address == *ip;
            match recorded.iter().find(is_it).or_else(|| remembered.iter().find(is_it)) {
                Some(held) => had.firm.push(held.clone()),
                None => had.weak.push(Held::of_status(*ip)),
            }
        }
    }
    let (by_memory, by_record) =
        (of(remembered, ClaimKind::ExternalIp), of(&recorded, ClaimKind::ExternalIp));
    if follows {
        had.firm.extend(by_record);
        had.weak.extend(by_memory);
    } else if by_memory.is_empty() {
        had.weak.extend(by_record);
    } else {
        had.firm.extend(by_memory);
    }
    had
}

/// Whether our gateways wrote the addresses in its status.
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
    use crate::pools::{HOLDS, record};
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

    fn had(service: &Service, remembered: Option<&str>, by: &Authority) -> Vec<String> {
        let remembered = remembered.map(|address| Holdings::new("", vec![Held::of_status(ip(address))]));
        adopted(service, remembered.as_ref(), by).load_balancer().map(|ip| ip.to_string()).collect()
    }

    fn external(address: &str, ports: &[(Protocol, u16)]) -> Held {
        Held { kind: ClaimKind::ExternalIp, ports: Some(ports.to_vec()), ..Held::of_status(ip(address)) }
    }

    #[test]
    fn the_leader_trusts_its_memory_of_external_ips_and_followers_the_record() {
        let mut service = service(&[], &[]);
        let written = external("198.51.100.1", &[(Protocol::Tcp, 80)]);
        service.stored.conditions = vec![tidegate_model::objects::Condition {
            kind: HOLDS.to_owned(),
            status: "True".to_owned(),
            reason: "Recorded".to_owned(),
            message: record(std::slice::from_ref(&written)),
            observed_generation: 0,
            last_transition: None,
        }];
        let known = external("198.51.100.1", &[(Protocol::Tcp, 443)]);
        let memory = Holdings::new("", vec![known.clone()]);
        let decides = adopted(&service, Some(&memory), &Authority::default());
        assert_eq!((decides.firm, decides.weak), (vec![known.clone()], vec![]));
        let follows = adopted(&service, Some(&memory), &Authority::Follows);
        assert_eq!((follows.firm, follows.weak), (vec![written.clone()], vec![known]));
        let restarted = adopted(&service, None, &Authority::default());
        assert_eq!((restarted.firm, restarted.weak), (vec![], vec![written]));
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
    fn the_leader_trusts_its_memory_and_followers_trust_the_status() {
        let service = service(&["203.0.113.5"], &["tidegate"]);
        let memory = Some("203.0.113.9");
        assert_eq!(had(&service, memory, &Authority::default()), ["203.0.113.9"]);
        assert_eq!(had(&service, memory, &Authority::Follows), ["203.0.113.5"]);
    }

    #[test]
    fn a_status_of_another_writer_does_not_override_memory() {
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
