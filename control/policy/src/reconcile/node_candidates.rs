//! Target `node`: the nodes of the cluster as candidates for backends, instead of the endpoints themselves.
//!
//! A node is a candidate with its InternalIP of each family. With policy Cluster, every node is a candidate; with
//! policy Local, only nodes that have endpoints of the Service. Such a node is as ready as its endpoints, and its
//! weight is the number of its ready endpoints, so that Pods rather than nodes get equal shares. The label
//! `node.kubernetes.io/exclude-from-external-load-balancers` and the Service's `tidegate.dev/backend-node-selector`
//! exclude nodes. Nodes that are cordoned or not ready stay candidates, because health checks decide.
//!
//! Pure. `program` calls it for each VIP. The result consists of [`ResolvedEndpoint`]s, so that all later steps treat
//! nodes like endpoints.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use tidegate_model::objects::{IpFamily, Node, Port, ResolvedEndpoint, Selector, TrafficPolicy};
use tidegate_model::shared_map::SharedMap;

use super::finding::Finding;
use super::weights::Weights;

pub(super) type Nodes = SharedMap<String, Arc<Node>>;

/// Nodes as candidates, with their weights.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NodeTargets {
    /// Sorted by address.
    pub(super) candidates: Vec<ResolvedEndpoint>,
    /// By node name. A node that is not listed has weight 1.
    pub(super) weights: BTreeMap<String, u16>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct NodeRequirements<'a> {
    /// The policy, which decides whether nodes without endpoints are included.
    pub(super) policy: TrafficPolicy,
    /// `tidegate.dev/backend-node-selector`.
    pub(super) selector: Option<&'a Selector>,
    pub(super) port: Port,
    /// The family of the VIP. The node's own proxy forwards to endpoints of this family.
    pub(super) family: IpFamily,
}

/// Whether the Service's selector allows a node to be a backend, or to have backends.
pub(super) fn is_selected(nodes: &Nodes, selector: Option<&Selector>, node: Option<&str>) -> bool {
    let Some(selector) = selector else { return true };
    // An endpoint whose node is unknown doesn't count as being on a selected node.
    node.and_then(|name| nodes.get(name)).is_some_and(|node| selector.matches(&node.meta.labels))
}

/// The nodes that may be backends of a service port with these endpoints.
pub(super) fn node_targets(
    nodes: &Nodes,
    endpoints: &[ResolvedEndpoint],
    requirements: NodeRequirements<'_>,
    weights: &Weights<'_>,
    findings: &mut Vec<Finding>,
) -> NodeTargets {
    let mut targets = NodeTargets::default();
    let local = (requirements.policy == TrafficPolicy::Local)
        .then(|| Local::by_node(endpoints, requirements.family, weights, findings));
    for node in nodes.values() {
        let name = &node.meta.key.name;
        let selected = requirements.selector.is_none_or(|selector| selector.matches(&node.meta.labels));
        if node.is_excluded() || !selected {
            continue;
        }
        let (ready, serving, terminating) = match &local {
            None => {
                targets.weights.insert(name.clone(), weights.of_node(node, findings));
                (true, true, false)
            }
            Some(local) => {
                let Some(local) = local.get(name.as_str()) else { continue };
                targets.weights.insert(name.clone(), local.weight());
                (!local.ready.is_empty(), true, local.ready.is_empty())
            }
        };
        for family in [IpFamily::V4, IpFamily::V6] {
            let Some(ip) = node.internal_ip(family) else { continue };
            targets.candidates.push(ResolvedEndpoint {
                ip,
                port: requirements.port,
                ready,
                serving,
                terminating,
                node: Some(name.clone()),
                zone: node.zone().map(str::to_owned),
                hint_zones: Vec::new(),
                hint_nodes: Vec::new(),
                pod: None,
            });
        }
    }
    targets.candidates.sort_unstable();
    // If two nodes have the same address, the first by name is the candidate.
    targets.candidates.dedup_by_key(|candidate| candidate.ip);
    targets
}

/// The endpoints of a node that take flows there, by kube-proxy's rule for policy Local.
#[derive(Default)]
struct Local {
    /// The weights of ready endpoints by address: an endpoint with two ports counts once.
    ready: BTreeMap<IpAddr, u16>,
    /// The weights of terminating endpoints that still serve.
    terminating: BTreeMap<IpAddr, u16>,
}

impl Local {
    fn by_node<'e>(
        endpoints: &'e [ResolvedEndpoint],
        family: IpFamily,
        weights: &Weights<'_>,
        findings: &mut Vec<Finding>,
    ) -> BTreeMap<&'e str, Self> {
        let mut by_node: BTreeMap<&str, Self> = BTreeMap::new();
        for endpoint in endpoints.iter().filter(|e| IpFamily::of(e.ip) == family) {
            let Some(node) = endpoint.node.as_deref() else { continue };
            if endpoint.ready {
                let weight = weights.of_endpoint(endpoint, findings);
                by_node.entry(node).or_default().ready.insert(endpoint.ip, weight);
            } else if endpoint.serving && endpoint.terminating {
                let weight = weights.of_endpoint(endpoint, findings);
                by_node.entry(node).or_default().terminating.insert(endpoint.ip, weight);
            }
        }
        by_node
    }

    /// The sum of the endpoints' weights.
    fn weight(&self) -> u16 {
        let counted = if self.ready.is_empty() { &self.terminating } else { &self.ready };
        counted.values().fold(0, |sum, weight| sum.saturating_add(*weight))
    }
}
