//! `neighbors` and `routes`: the next hops and routes that the running gateway uses.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// `GET /v1/neighbors`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NeighborsAnswer {
    /// Sorted by interface and address.
    pub neighbors: Vec<NeighborView>,
}

/// A neighbour on a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NeighborView {
    /// Its address.
    pub address: IpAddr,
    /// The interface on whose link it is.
    pub interface: String,
    /// Its link address; absent while it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// The state of the link address.
    pub state: NeighborViewState,
    /// The prefixes of the routes whose next hop it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<String>,
}

tidegate_spec::named! {
    /// The state of a neighbour's link address.
    #[derive(Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum NeighborViewState {
        /// Confirmed by an answer.
        Reachable => "reachable",
        /// Not confirmed recently, and still used.
        Stale => "stale",
        /// Not known: packets wait for it or are dropped.
        Unresolved => "unresolved",
        /// From `dataplane.neighbors`.
        Static => "static",
    }
}

/// `GET /v1/routes`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RoutesAnswer {
    /// The connected networks of the interfaces, then the routes in the order of the configuration.
    pub routes: Vec<RouteView>,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteView {
    /// The destination prefix.
    pub to: String,
    /// The next hop; absent for a connected network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<IpAddr>,
    /// The interface; absent if the next hop is on no link of the gateway, so that the route is not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The link address of the next hop, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// The state of the next hop; absent for a connected network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<NeighborViewState>,
}
