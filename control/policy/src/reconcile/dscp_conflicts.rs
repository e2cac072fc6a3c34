//! Conflicts of `dsr-dscp`: a backend identifies the VIP of a packet by the DSCP only, so VIPs of one family that
//! share a DSCP must not share a backend.
//!
//! Conflicting Services are reported but served, because whoever set up the backend may have a reason.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{ObjectKey, Objects};
use tidegate_spec::{ForwardingMode, SharedService};

use super::annotations::{annotation_field, key};
use super::finding::{Finding, ObjectKind, Reason};

/// A VIP that some backend cannot distinguish from another VIP.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DscpConflict {
    /// The Service of the VIP.
    pub service: ObjectKey,
    vip: IpAddr,
    dscp: u8,
    /// The first of the other VIPs, and its Service.
    other: (IpAddr, ObjectKey),
    backend: IpAddr,
}

impl DscpConflict {
    /// The finding about the Service of the VIP. Its location comes from `objects`.
    #[must_use]
    pub fn finding(&self, objects: &Objects) -> Finding {
        let location = objects.services.get(&self.service);
        let location = location.and_then(|service| service.meta.origin.field(&annotation_field(key::DSCP)));
        let diagnostic = Diagnostic::warning(format!("Service {}: {self}", self.service))
            .accepting("another value of tidegate.dev/dscp, or other backends")
            .at(location);
        Finding {
            object: self.service.clone(),
            kind: ObjectKind::Service,
            reason: Reason::DscpConflict,
            diagnostic,
        }
    }
}

impl fmt::Display for DscpConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vip, dscp, other: (other, of), backend, .. } = self;
        write!(
            f,
            "{vip} and {other} of Service {of} both have DSCP {dscp}: backend {backend} cannot distinguish them"
        )
    }
}

/// The conflicts among the service ports of the last round. They are recomputed only if one of the ports changed.
#[derive(Debug, Default)]
pub struct DscpConflicts {
    /// The ports with `dsr-dscp`.
    marked: Vec<SharedService>,
    found: Vec<DscpConflict>,
}

impl DscpConflicts {
    /// The conflicts among these service ports, one for each VIP that has any, in the order of the ports.
    pub fn among(&mut self, services: &[SharedService]) -> &[DscpConflict] {
        let marked = || services.iter().filter(|one| one.mode == ForwardingMode::DsrDscp);
        // Contents are not compared, because rounds share the ports that did not change.
        let is_same = marked().count() == self.marked.len()
            && marked().zip(&self.marked).all(|(now, before)| now.is_same(before));
        if !is_same {
            self.marked = marked().cloned().collect();
            self.found = conflicts(&self.marked);
        }
        &self.found
    }
}

/// The VIPs that a backend serves with one DSCP.
struct Vips {
    /// The lowest VIP, and the index of its first port.
    first: (IpAddr, usize),
    /// The second lowest VIP, and the index of its first port.
    second: Option<(IpAddr, usize)>,
}

impl Vips {
    fn add(&mut self, vip: IpAddr, port: usize) {
        if vip < self.first.0 {
            self.second = Some(self.first);
            self.first = (vip, port);
        } else if vip > self.first.0 && self.second.is_none_or(|(second, _)| vip < second) {
            self.second = Some((vip, port));
        }
    }

    /// The lowest VIP other than `vip`.
    fn other(&self, vip: IpAddr) -> Option<(IpAddr, usize)> {
        if self.first.0 == vip { self.second } else { Some(self.first) }
    }
}

/// The conflicts among these ports, all of which have the mode `dsr-dscp`.
fn conflicts(marked: &[SharedService]) -> Vec<DscpConflict> {
    let mut vips = HashMap::<(IpAddr, u8), Vips>::new();
    for (port, one) in marked.iter().enumerate() {
        let vip = one.key.vip;
        for backend in &one.backends {
            vips.entry((backend.address, one.tunnel.dscp))
                .and_modify(|vips| vips.add(vip, port))
                .or_insert(Vips { first: (vip, port), second: None });
        }
    }
    let mut reported = BTreeSet::new();
    let mut found = Vec::new();
    for one in marked {
        let (vip, dscp) = (one.key.vip, one.tunnel.dscp);
        // A backend has the family of its VIP in this mode.
        let conflict = one.backends.iter().find_map(|backend| {
            let (other, port) = vips.get(&(backend.address, dscp))?.other(vip)?;
            Some((backend.address, (other, owner(&marked[port]))))
        });
        if let Some((backend, other)) = conflict
            && reported.insert(vip)
        {
            found.push(DscpConflict { service: owner(one), vip, dscp, other, backend });
        }
    }
    found
}

fn owner(service: &SharedService) -> ObjectKey {
    ObjectKey::new(service.namespace.as_str(), service.name.as_str())
}
