//! The usage of the pools, and the Services that use them.
//!
//! The [`Allocator`](super::Allocator) updates [`Users`] when Services get or lose addresses, so that a pool that the
//! operator changes or removes can show which Services still use it.

use std::collections::BTreeMap;

use tidegate_model::objects::{AddressRange, AnnounceMethods, ObjectKey, Pool, PoolRoutes, Selector};

use super::OwnedAddress;

/// The maximum number of Services that are named as users of a pool.
const NAMED_MAX: usize = 8;

/// The usage of a pool, and the Services that use it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// The pool's name.
    pub pool: String,
    /// The ranges of its addresses.
    pub ranges: Vec<AddressRange>,
    /// The number of its addresses, of both families.
    pub total: u128,
    /// The number of addresses that Services own.
    pub assigned: u128,
    /// The number of its addresses that are never assigned, for example because they belong to gateways or nodes.
    pub reserved: u128,
    /// Whether the pool is disabled.
    pub disabled: bool,
    /// The gateways that announce its addresses.
    pub gateway_selector: Selector,
    /// How the gateways announce its addresses.
    pub announce: AnnounceMethods,
    /// The attributes and the aggregation of routes to them.
    pub routes: PoolRoutes,
    /// The number of addresses that Services still own although they are no longer in the pool.
    pub outside: u128,
    /// The number of Services that own an address from it.
    pub users: usize,
    /// The first of these Services by name, up to eight.
    pub some_users: Vec<ObjectKey>,
    /// Whether the pool no longer exists.
    pub removed: bool,
}

impl PoolUsage {
    /// The number of addresses that can still be assigned.
    #[must_use]
    pub fn free(&self) -> u128 {
        self.total.saturating_sub(self.assigned).saturating_sub(self.reserved)
    }

    /// The Services that use it: `default/web, shop/api and 3 more`; empty if there are none.
    #[must_use]
    pub fn used_by(&self) -> String {
        let named: Vec<String> = self.some_users.iter().map(ToString::to_string).collect();
        match self.users - named.len() {
            0 => named.join(", "),
            more => format!("{} and {more} more", named.join(", ")),
        }
    }
}

/// The Services that own addresses from each pool, by the pool's name.
#[derive(Debug, Default)]
pub(super) struct Users {
    /// For each pool and Service, the number of the Service's addresses that are no longer in the pool.
    by_pool: BTreeMap<String, BTreeMap<ObjectKey, u128>>,
    /// For each pool, the sum of these numbers.
    outside: BTreeMap<String, u128>,
}

impl Users {
    /// Replaces the recorded addresses of a Service.
    pub(super) fn replace(
        &mut self,
        service: &ObjectKey,
        before: &[OwnedAddress],
        now: &[OwnedAddress],
        pools: &[Pool],
    ) {
        for owned in before {
            let Some(users) = self.by_pool.get_mut(&owned.pool) else { continue };
            if let Some(outside) = users.remove(service)
                && let Some(sum) = self.outside.get_mut(&owned.pool)
            {
                *sum -= outside;
            }
            if users.is_empty() {
                self.by_pool.remove(&owned.pool);
                self.outside.remove(&owned.pool);
            }
        }
        for owned in now {
            let pool = pools.iter().find(|pool| pool.name == owned.pool);
            let outside = u128::from(!pool.is_some_and(|pool| pool.contains(owned.address)));
            let users = self.by_pool.entry(owned.pool.clone()).or_default();
            *users.entry(service.clone()).or_default() += outside;
            *self.outside.entry(owned.pool.clone()).or_default() += outside;
        }
    }

    /// Adds the users to the usage of the pools, and adds the removed pools that are still in use.
    pub(super) fn complete(&self, usage: &[PoolUsage]) -> Vec<PoolUsage> {
        let with_users = |usage: PoolUsage| {
            let users = self.by_pool.get(&usage.pool);
            PoolUsage {
                outside: self.outside.get(&usage.pool).copied().unwrap_or(0),
                users: users.map_or(0, BTreeMap::len),
                some_users: users.into_iter().flatten().take(NAMED_MAX).map(|(key, _)| key.clone()).collect(),
                ..usage
            }
        };
        let is_gone = |name: &&String| !usage.iter().any(|usage| usage.pool == **name);
        let gone = self.by_pool.keys().filter(is_gone).map(|name| PoolUsage {
            pool: name.clone(),
            removed: true,
            ..PoolUsage::default()
        });
        usage.iter().cloned().chain(gone).map(with_users).collect()
    }
}
