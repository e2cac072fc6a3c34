//! Which gateway answers for the addresses of a Service on layer 2 and why, for the Service's conditions.
//!
//! Pure. This covers only Leases: with VRRP, each gateway reports in its own status which gateway is the master.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use tidegate_policy::reconcile::view::ServiceView;

use super::peer::Peer;
use super::situation::{LeaseHolders, Situation};

/// The owners of a Service's addresses, as text.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// Who owns each address, and why; empty if no address has an owner.
    pub(super) shown: String,
    /// Why no gateway answers for some of the addresses.
    pub(super) lacking: Option<String>,
}

impl Owners {
    /// The owners for a Service, with the other live gateways of its group. `is_member`: whether this gateway belongs
    /// to the group.
    pub(super) fn new(
        situation: &Situation<'_>,
        view: &ServiceView,
        others: &[Peer],
        is_member: bool,
    ) -> Self {
        let name = format!("{}/{}", view.namespace, view.name);
        let serves = |peer: &&Peer| {
            let lists = [&peer.not_programmed, &peer.without_backends];
            peer.is_ready && !lists.iter().any(|list| list.contains(&name))
        };
        let others: BTreeSet<&str> = others.iter().filter(serves).map(|peer| peer.name.as_str()).collect();
        let (mut shown, mut lacking) = (Vec::new(), Vec::new());
        for vip in view.vips.iter().filter(|vip| vip.is_of_pool()) {
            let owner = vip.edge.owner.as_ref();
            let Some(holder) = owner.and_then(|group| situation.observation.lease_holders.get(group)) else {
                continue;
            };
            let is_able = is_member && situation.observation.forwarding.ready && vip.edge.unable.is_none();
            let own = is_able.then_some(situation.identity.name.as_str());
            let able: BTreeSet<&str> = others.iter().copied().chain(own).collect();
            let ip = vip.address;
            match holder.as_deref() {
                Some(by) if able.contains(by) && able.len() == 1 => {
                    shown.push(format!("{by} answers for {ip}; no other gateway can serve it"));
                }
                // The number of gateways is left out: otherwise each new gateway would change the status of every
                // Service.
                Some(by) if able.contains(by) => {
                    shown.push(format!("{by} answers for {ip}; other gateways can serve it, too"));
                }
                Some(by) => shown.push(format!("{by} holds the Lease of {ip} but cannot serve every port")),
                None if able.is_empty() => {
                    let why = vip.edge.unable.as_deref().unwrap_or("it is not ready");
                    let own = &situation.identity.name;
                    lacking.push(format!(
                        "no gateway answers for {ip}, because none can serve it; {own}: {why}"
                    ));
                }
                None => shown.push(format!("no gateway answers for {ip} yet")),
            }
        }
        Self { shown: shown.join("; "), lacking: (!lacking.is_empty()).then(|| lacking.join("; ")) }
    }
}

/// A hash that changes when the owners of a Service's addresses change.
pub(super) fn fingerprint(holders: &LeaseHolders, view: Option<&ServiceView>) -> u64 {
    let groups = view.into_iter().flat_map(|view| &view.vips).filter_map(|vip| vip.edge.owner.as_ref());
    let mut owners = groups.filter_map(|group| holders.get(group)).peekable();
    if owners.peek().is_none() {
        return 0;
    }
    let mut hasher = DefaultHasher::new();
    owners.for_each(|holder| holder.hash(&mut hasher));
    hasher.finish()
}
