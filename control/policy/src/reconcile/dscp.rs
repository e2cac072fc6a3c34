//! Conflicts of `dsr-dscp`: a backend knows the VIP of a packet only by the DSCP, so two VIPs of one family with the same
//! DSCP must not have a backend in common.
//!
//! Such Services are served all the same: whoever set up the backend may know why. They are shown with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use tidegate_core::snapshot::{ForwardingMode, SharedService};
use tidegate_model::objects::ObjectKey;

/// A VIP that some backend cannot tell from another one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DscpConflict {
    /// The Service of the VIP.
    pub service: ObjectKey,
    vip: IpAddr,
    dscp: u8,
    /// The first of the other VIPs, and its Service.
    other: (IpAddr, ObjectKey),
    /// One of the backends.
    backend: IpAddr,
}

impl fmt::Display for DscpConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vip, dscp, other: (other, of), backend, .. } = self;
        write!(f, "DSCP {dscp} is also that of {other} ({of}): backend {backend} cannot tell it from {vip}")
    }
}

/// The conflicts among these service ports, one for each VIP that has any, in the order of the ports.
#[must_use]
pub fn conflicts(services: &[SharedService]) -> Vec<DscpConflict> {
    let marked = || services.iter().filter(|one| one.mode == ForwardingMode::DsrDscp);
    let mut vips = BTreeMap::<(IpAddr, u8), BTreeMap<IpAddr, ObjectKey>>::new();
    for one in marked() {
        for backend in &one.backends {
            let of = vips.entry((backend.address, one.tunnel.dscp)).or_default();
            of.entry(one.key.vip).or_insert_with(|| owner(one));
        }
    }
    let mut told = BTreeSet::new();
    let mut found = Vec::new();
    for one in marked() {
        let (vip, dscp) = (one.key.vip, one.tunnel.dscp);
        // A backend has the family of its VIP in this mode.
        let conflict = one.backends.iter().find_map(|backend| {
            let others = vips.get(&(backend.address, dscp))?;
            let (other, of) = others.iter().find(|(other, _)| **other != vip)?;
            Some((backend.address, (*other, of.clone())))
        });
        if let Some((backend, other)) = conflict
            && told.insert(vip)
        {
            found.push(DscpConflict { service: owner(one), vip, dscp, other, backend });
        }
    }
    found
}

fn owner(service: &SharedService) -> ObjectKey {
    ObjectKey::new(service.namespace.as_str(), service.name.as_str())
}
