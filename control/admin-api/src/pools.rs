//! `pools`: how many addresses of each pool are in use.

use serde::{Deserialize, Serialize};
use tidegate_policy::pools::PoolUsage;

/// `GET /v1/pools`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolsAnswer {
    /// The pools of the configuration in its order, then AddressPools by name, then removed pools that are still in
    /// use.
    pub pools: Vec<PoolView>,
}

/// The usage of a pool. Counts are capped at 2^64 - 1.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolView {
    /// Its name.
    pub name: String,
    /// The number of its addresses.
    pub total: u64,
    /// Addresses assigned to Services, including those that are no longer in the pool.
    pub assigned: u64,
    /// Addresses that can still be assigned.
    pub free: u64,
    /// Whether it is disabled.
    pub disabled: bool,
    /// How many of the assigned addresses are no longer in the pool.
    #[serde(default)]
    pub outside: u64,
    /// The number of Services with addresses from it.
    #[serde(default)]
    pub users: usize,
    /// The first few of them, as `namespace/name`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub some_users: Vec<String>,
    /// Whether the pool no longer exists although Services still have addresses from it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
    /// The selector of the gateways that announce its addresses, in the form of `kubectl -l`; empty for all gateways.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub gateways: String,
    /// How these gateways announce the addresses: `l2`, `bgp`.
    #[serde(default)]
    pub announce: Vec<String>,
    /// `AddressPool/NAME` for a pool from an object; absent for pools of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
}

impl From<&PoolUsage> for PoolView {
    fn from(usage: &PoolUsage) -> Self {
        let shown = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
        Self {
            name: usage.pool.clone(),
            total: shown(usage.total),
            assigned: shown(usage.assigned.saturating_add(usage.outside)),
            free: shown(usage.free()),
            disabled: usage.disabled,
            outside: shown(usage.outside),
            users: usage.users,
            some_users: usage.some_users.iter().map(ToString::to_string).collect(),
            removed: usage.removed,
            gateways: usage.gateway_selector.to_string(),
            announce: [(usage.announce.l2, "l2"), (usage.announce.bgp, "bgp")]
                .into_iter()
                .filter(|(is_announced, _)| *is_announced)
                .map(|(_, method)| method.to_owned())
                .collect(),
            object: None,
        }
    }
}
