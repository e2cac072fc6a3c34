//! Finds the Services that depend on a changed node, Pod, address or drain.
//!
//! The inputs of the result for a Service are recorded as [`Dependencies`]: a list of [`DependencyKey`]s (its
//! endpoints' addresses, nodes and Pods, and everything else that it forwards to) and the aspects of a node that
//! matter to it. A change is recorded in [`Changes`], and a Service is recomputed if the two intersect. Keys are
//! hashes: a collision costs a needless computation but never causes a wrong result.
//!
//! Invariant: the result for a Service depends only on the Service itself and on what is recorded here. A new
//! dependency of a Service must be added here (the property in `tests/incremental` checks this).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use tidegate_model::config::Target;
use tidegate_model::objects::{Metadata, Node, ObjectKey, Pod, ResolvedEndpoint, ServiceEndpoints};
use tidegate_model::shared_map::Difference;

use super::annotations::key::WEIGHT;
use super::context::Context;
use super::drain::DrainTarget;
use super::plan::Plan;
use super::size_limits::is_local_only;

/// An input of the result for a Service.
#[derive(Debug, Clone, Copy, Hash)]
pub(super) enum DependencyKey<'a> {
    /// An address: whether it is a VIP, fails its checks or is drained.
    Address(IpAddr),
    /// A node, by name.
    Node(&'a str),
    /// A Pod.
    Pod(&'a ObjectKey),
}

impl DependencyKey<'_> {
    fn hashed(self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

/// A set of changed aspects. Only aspects of nodes are distinguished.
type Aspects = u8;

/// Everything that is not an aspect of a node: verdicts, VIPs, drains, a Pod's weight.
const NOT_OF_NODES: Aspects = 1;
/// A node's zone and weight.
const ZONE_AND_WEIGHT: Aspects = 1 << 1;
/// A node's labels, and whether it exists.
const LABELS: Aspects = 1 << 2;
/// A node's InternalIPs and Pod networks, which decide where endpoints may be checked.
const NETWORKS: Aspects = 1 << 4;
/// A node's InternalIPs, whether it is excluded, and whether it exists.
const AS_TARGET: Aspects = 1 << 3;

/// The inputs of the result for a Service, besides itself and its slices.
#[derive(Debug)]
pub(super) struct Dependencies {
    /// Hashes of its keys, sorted.
    keys: Box<[u64]>,
    aspects: Aspects,
    /// Whether all nodes matter, and not only those among the keys.
    every_node: bool,
}

impl Dependencies {
    /// The dependencies of a Service with these endpoints and additional addresses.
    pub(super) fn new(
        context: &Context<'_>,
        plan: &Plan<'_>,
        endpoints: &ServiceEndpoints,
        addresses: impl Iterator<Item = IpAddr>,
    ) -> Self {
        let mut keys: Vec<u64> = addresses.map(|ip| DependencyKey::Address(ip).hashed()).collect();
        for endpoint in endpoints.ports.iter().flat_map(|port| &port.endpoints) {
            keys.push(DependencyKey::Address(endpoint.ip).hashed());
            keys.extend(endpoint.node.as_deref().map(|node| DependencyKey::Node(node).hashed()));
            keys.extend(endpoint.pod.as_ref().map(|pod| DependencyKey::Pod(pod).hashed()));
        }
        let settings = context.settings();
        if let Some(node) = settings.node.as_deref().filter(|_| settings.zone.is_none()) {
            // The gateway has the zone of its node, which decides which zone hints apply.
            let is_hinted = |endpoint: &ResolvedEndpoint| !endpoint.hint_zones.is_empty();
            let mut all = endpoints.ports.iter().flat_map(|port| &port.endpoints);
            keys.extend(all.any(is_hinted).then(|| DependencyKey::Node(node).hashed()));
        }
        keys.sort_unstable();
        keys.dedup();
        let of_nodes = plan.options.backends.target == Target::Node;
        let selects = plan.options.backends.node_selector.is_some();
        let mut all = endpoints.ports.iter().flat_map(|port| &port.endpoints);
        let needs_networks = all.any(|endpoint| context.checkable.depends_on_node(endpoint.ip));
        let aspects = [(LABELS, selects), (AS_TARGET, of_nodes), (NETWORKS, needs_networks)];
        let aspects = aspects.iter().filter(|(_, matters)| *matters).map(|(aspect, _)| aspect);
        Self {
            keys: keys.into(),
            aspects: aspects.fold(NOT_OF_NODES | ZONE_AND_WEIGHT, |all, aspect| all | aspect),
            every_node: of_nodes && !is_local_only(context.settings(), plan.service),
        }
    }
}

/// The changes, for [`Changes::affected`].
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Hashes of keys, with the aspects that changed. Sorted after [`Self::sorted`].
    keys: Vec<(u64, Aspects)>,
    /// The aspects that changed on any node.
    of_nodes: Aspects,
}

impl Changes {
    pub(super) fn address(&mut self, ip: IpAddr) {
        self.keys.push((DependencyKey::Address(ip).hashed(), NOT_OF_NODES));
    }

    /// Records a change of a Pod's weight. `incremental` handles all other changes of Pods.
    pub(super) fn pod(&mut self, change: &Difference<'_, ObjectKey, Arc<Pod>>) {
        let weight = |pod: Option<&'_ Arc<Pod>>| pod.and_then(|pod| weight_of(&pod.meta)).map(str::to_owned);
        if weight(change.before) != weight(change.after) {
            self.keys.push((DependencyKey::Pod(change.key).hashed(), NOT_OF_NODES));
        }
    }

    /// Records a change of a node, its creation or its removal.
    pub(super) fn node(&mut self, change: &Difference<'_, String, Arc<Node>>) {
        let (was, is) = (change.before.map(|node| &**node), change.after.map(|node| &**node));
        let differs = |aspect: Aspects, differs: bool| if differs { aspect } else { 0 };
        let near = |node: Option<&Node>| {
            let zone = node.and_then(Node::zone).map(str::to_owned);
            (zone, node.and_then(|node| weight_of(&node.meta)).map(str::to_owned))
        };
        let networks = |node: &Node| (node.internal_ips.clone(), node.pod_cidrs.clone());
        let as_target = |node: &Node| (node.internal_ips.clone(), node.is_excluded());
        let aspects = differs(ZONE_AND_WEIGHT, near(was) != near(is))
            | differs(NETWORKS, was.map(networks) != is.map(networks))
            | differs(LABELS, was.map(|n| &n.meta.labels) != is.map(|n| &n.meta.labels))
            | differs(AS_TARGET, was.map(as_target) != is.map(as_target));
        self.aspects_of_node(change.key, aspects);
    }

    /// Records the start or the end of a drain.
    pub(super) fn drain(&mut self, target: &DrainTarget) {
        match target {
            DrainTarget::Backend(ip, _) => self.address(*ip),
            DrainTarget::Node(name) => self.aspects_of_node(name, NOT_OF_NODES),
        }
    }

    fn aspects_of_node(&mut self, name: &str, aspects: Aspects) {
        if aspects != 0 {
            self.keys.push((DependencyKey::Node(name).hashed(), aspects));
            self.of_nodes |= aspects;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The keys of the Services that the changes affect.
    pub(super) fn affected<'a, K>(mut self, services: impl Iterator<Item = (K, &'a Dependencies)>) -> Vec<K> {
        if self.is_empty() {
            return Vec::new();
        }
        self.keys.sort_unstable();
        services.filter(|(_, dependencies)| self.affect(dependencies)).map(|(service, _)| service).collect()
    }

    /// Whether the changes affect these dependencies. The keys must be sorted.
    fn affect(&self, dependencies: &Dependencies) -> bool {
        if dependencies.every_node && dependencies.aspects & self.of_nodes != 0 {
            return true;
        }
        let Dependencies { keys, aspects, .. } = dependencies;
        if self.keys.len() < keys.len() {
            return self.keys.iter().any(|(hash, of)| aspects & of != 0 && keys.binary_search(hash).is_ok());
        }
        keys.iter().any(|hash| {
            let from = self.keys.partition_point(|(other, _)| other < hash);
            let same = self.keys[from..].iter().take_while(|(other, _)| other == hash);
            same.into_iter().any(|(_, of)| aspects & of != 0)
        })
    }
}

fn weight_of(meta: &Metadata) -> Option<&str> {
    meta.annotations.get(WEIGHT).map(String::as_str)
}
