//! The addresses that a Service requests: with our annotations, with aliases of them, or with `spec.loadBalancerIP`.
//!
//! `options` reads a request, and `addresses` builds an applicant for the pools from it.

use std::net::IpAddr;

use tidegate_model::objects::Service;
use tidegate_model::yaml::text;

use super::annotation_reader::{Reader, error};
use super::annotations::{annotation_field, key};
use super::finding::Reason;
use crate::pools::{PoolRequest, RequestedPool};

/// The maximum number of addresses in one list.
const REQUESTED_MAX: usize = 16;

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct AddressRequest {
    /// Requested addresses, each with its field.
    pub(super) addresses: Vec<(IpAddr, String)>,
    /// The only pools from which addresses may be assigned.
    pub(super) pool: Option<PoolRequest>,
    pub(super) sharing_key: Option<String>,
    /// If set, no new address is assigned, for this reason.
    pub(super) no_allocation: Option<String>,
}

impl AddressRequest {
    /// Applies one of our annotations about addresses. `annotation` is its name as written, which may be an alias.
    pub(super) fn apply(&mut self, read: &mut Reader<'_>, ours: &str, annotation: &str, value: &str) {
        const SHARING: &str = "any text that is the same on all Services that share an address";
        match ours {
            key::LOAD_BALANCER_IPS => self.read_addresses(read, annotation, value),
            key::ADDRESS_POOL if value.is_empty() => read.invalid(annotation, value, "the name of a pool"),
            key::ADDRESS_POOL => {
                let wanted = RequestedPool::Named(value.to_owned());
                self.pool = Some(PoolRequest { wanted, field: annotation_field(annotation) });
            }
            key::ALLOW_SHARED_IP if value.is_empty() => read.invalid(annotation, value, SHARING),
            key::ALLOW_SHARED_IP => self.sharing_key = Some(value.to_owned()),
            _ => unreachable!("{ours} is not about addresses"),
        }
    }

    fn read_addresses(&mut self, read: &mut Reader<'_>, annotation: &str, value: &str) {
        const ACCEPTED: &str = "one IPv4 address, one IPv6 address, or both separated by a comma";
        let field = annotation_field(annotation);
        let parsed: Result<Vec<IpAddr>, _> =
            value.split(',').map(str::trim).filter(|a| !a.is_empty()).map(str::parse).collect();
        match parsed {
            Ok(addresses) if (1..=REQUESTED_MAX).contains(&addresses.len()) => {
                // As in `spec.loadBalancerIP`, an IPv4-mapped IPv6 address is the IPv4 address in it.
                self.addresses = addresses.into_iter().map(|ip| (ip.to_canonical(), field.clone())).collect();
            }
            // A wrong address is worse than none, because DNS does not point to it. An address that the Service
            // already has stays.
            _ => self.invalid(read, annotation, value, ACCEPTED),
        }
    }

    /// Records an invalid value: no new address is assigned.
    pub(super) fn invalid(&mut self, read: &mut Reader<'_>, annotation: &str, value: &str, accepted: &str) {
        let value = text::shown(value);
        let what = format!("annotation {annotation}: {value:?} is invalid: no new address is assigned");
        self.no_allocation = Some(what.clone());
        read.invalid_at(&annotation_field(annotation), what, accepted);
    }

    /// Restricts the Service to internal pools, as `annotation` requests, unless it names a pool or addresses.
    pub(super) fn prefer_internal(&mut self, annotation: &str) {
        if self.pool.is_none() && self.addresses.is_empty() {
            // An address chosen from any pool could be a public one.
            self.pool =
                Some(PoolRequest { wanted: RequestedPool::Internal, field: annotation_field(annotation) });
        }
    }

    /// Reads `spec.loadBalancerIP`, which applies if no annotation requests an address, and must not contradict an
    /// annotation. If the field is unreadable, which the source reports, no new address is assigned, because a wrong
    /// address is worse than none.
    pub(super) fn read_deprecated(&mut self, service: &Service, read: &mut Reader<'_>) {
        const FIELD: &str = "spec.loadBalancerIP";
        if service.gets_no_address && self.no_allocation.is_none() {
            self.no_allocation = Some("the Gateway is not accepted: no new address is assigned".to_owned());
        }
        if service.unreadable_load_balancer_ip && self.addresses.is_empty() && self.no_allocation.is_none() {
            self.no_allocation = Some(format!("{FIELD} is invalid: no new address is assigned"));
        }
        let Some(ip) = service.load_balancer_ip else { return };
        if self.addresses.is_empty() {
            if self.no_allocation.is_none() {
                self.addresses.push((ip, FIELD.to_owned()));
            }
        } else if !self.addresses.iter().any(|(requested, _)| *requested == ip) {
            let what = format!(
                "{FIELD} {ip} contradicts the annotation {}: no new address is assigned",
                key::LOAD_BALANCER_IPS
            );
            let accepted = "either the field or the annotation, or the same address in both";
            read.push(FIELD, Reason::AllocationFailed, error(what.clone(), accepted));
            self.no_allocation = Some(what);
        }
    }
}
