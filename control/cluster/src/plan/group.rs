//! The gateway groups of the pools: which live gateways each pool selects.
//!
//! Pure. If no live gateway may announce an address of a Service, its conditions and an event report this.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use tidegate_policy::reconcile::view::{ServiceView, VipView};

use super::situation::Situation;

/// The maximum number of gateways in a pool's status: the limit of the schema.
pub(super) const GATEWAYS_MAX: usize = 256;

/// The group of each pool.
#[derive(Debug, Default)]
pub(super) struct Groups(BTreeMap<String, Group>);

#[derive(Debug)]
struct Group {
    /// The selector for display; empty if it selects all.
    selector: String,
    /// The live gateways that it selects, by name.
    members: Vec<String>,
}

impl Groups {
    pub(super) fn new(situation: &Situation<'_>) -> Self {
        let own = (&situation.identity.name, &situation.observation.own_labels);
        let live = || situation.peers.iter().map(|peer| (&peer.name, &peer.labels)).chain([own]);
        let group = |usage: &tidegate_policy::pools::PoolUsage| {
            let selected = live().filter(|(_, labels)| usage.gateway_selector.matches(labels));
            let mut members: Vec<String> = selected.map(|(name, _)| name.clone()).collect();
            members.sort_unstable();
            (usage.pool.clone(), Group { selector: usage.gateway_selector.to_string(), members })
        };
        Self(situation.observation.outcome.pools.iter().map(group).collect())
    }

    /// The live gateways of a pool, as many as its status may list.
    pub(super) fn members(&self, pool: &str) -> Vec<String> {
        let members = self.0.get(pool).map_or(&[][..], |group| &group.members);
        members.iter().take(GATEWAYS_MAX).cloned().collect()
    }

    /// Whether a gateway is in the group of at least one address of a Service.
    pub(super) fn has(&self, gateway: &str, view: &ServiceView) -> bool {
        let of_pools = || view.vips.iter().filter(|vip| vip.is_of_pool());
        let has = |vip: &VipView| match self.0.get(&vip.pool) {
            Some(group) => group.members.iter().any(|name| name == gateway),
            None => true,
        };
        of_pools().next().is_none() || of_pools().any(has)
    }

    /// Why no gateway announces some addresses of a Service; `None` if all are announced.
    pub(super) fn lacking(&self, view: &ServiceView) -> Option<String> {
        let lacks = |vip: &VipView| {
            let group = self.0.get(&vip.pool).filter(|group| group.members.is_empty())?;
            let (address, pool, selector) = (vip.address, &vip.pool, &group.selector);
            Some(format!(
                "no live gateway announces {address}: none matches the selector {selector} of pool {pool}"
            ))
        };
        let why: Vec<String> = view.vips.iter().filter(|vip| vip.is_of_pool()).filter_map(lacks).collect();
        (!why.is_empty()).then(|| why.join("; "))
    }

    /// A hash that changes when the groups of a Service's addresses change.
    pub(super) fn fingerprint(&self, view: Option<&ServiceView>) -> u64 {
        let groups = view.into_iter().flat_map(|view| &view.vips).filter_map(|vip| self.0.get(&vip.pool));
        let mut groups = groups.filter(|group| !group.selector.is_empty()).peekable();
        if groups.peek().is_none() {
            return 0;
        }
        let mut hasher = DefaultHasher::new();
        groups.for_each(|group| (&group.selector, &group.members).hash(&mut hasher));
        hasher.finish()
    }
}
