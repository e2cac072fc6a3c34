//! Chooses the endpoints of a service port that take new flows, by kube-proxy's rules, as a pure function.
//!
//! `reconcile` calls it once for each service port, or once for each node if nodes are the targets. Health checks are
//! applied later and are not known here.

use super::{ResolvedEndpoint, TrafficPolicy};

/// The node and the zone from which endpoints are chosen.
#[derive(Debug, Clone, Copy, Default)]
pub struct Viewpoint<'a> {
    /// The node whose endpoints are local and whose topology hints apply: the gateway's own, or the target node.
    /// `None` for an appliance outside the cluster, for which every endpoint is local.
    pub node: Option<&'a str>,
    /// The zone whose topology hints apply.
    pub zone: Option<&'a str>,
}

/// The endpoints that take new flows, in their original order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice<'a> {
    /// These endpoints, all ready.
    Ready(Vec<&'a ResolvedEndpoint>),
    /// No endpoint is ready. These terminate but still serve, which is better than none.
    Terminating(Vec<&'a ResolvedEndpoint>),
    /// With policy Local there are endpoints, but none on this node. Packets are dropped, so that the router tries
    /// another gateway.
    OnlyElsewhere,
    /// There are no endpoints. `noEndpoints` decides between reject and drop.
    Nobody,
}

impl<'a> Choice<'a> {
    /// The chosen endpoints; empty if there are none.
    pub fn endpoints(&self) -> &[&'a ResolvedEndpoint] {
        match self {
            Self::Ready(endpoints) | Self::Terminating(endpoints) => endpoints,
            Self::OnlyElsewhere | Self::Nobody => &[],
        }
    }
}

/// Chooses among the endpoints of one service port.
///
/// Policy Cluster: all ready endpoints, filtered by topology hints ([`hinted`]), otherwise the terminating endpoints
/// that still serve. Policy Local: likewise, but without hints and only among the endpoints on the viewpoint's node.
pub fn choose<'a>(
    endpoints: &'a [ResolvedEndpoint],
    policy: TrafficPolicy,
    viewpoint: Viewpoint<'_>,
) -> Choice<'a> {
    match (policy, viewpoint.node) {
        (TrafficPolicy::Local, Some(node)) => {
            let local = usable(endpoints.iter().filter(|e| e.node.as_deref() == Some(node)));
            if local == Choice::Nobody && usable(endpoints.iter()) != Choice::Nobody {
                return Choice::OnlyElsewhere;
            }
            local
        }
        (TrafficPolicy::Local, None) => usable(endpoints.iter()),
        (TrafficPolicy::Cluster, _) => match usable(endpoints.iter()) {
            Choice::Ready(ready) => Choice::Ready(hinted(ready, viewpoint)),
            other => other,
        },
    }
}

/// The ready endpoints, otherwise the terminating endpoints that still serve.
fn usable<'a>(endpoints: impl Iterator<Item = &'a ResolvedEndpoint> + Clone) -> Choice<'a> {
    let ready: Vec<_> = endpoints.clone().filter(|e| e.ready).collect();
    if !ready.is_empty() {
        return Choice::Ready(ready);
    }
    let terminating: Vec<_> = endpoints.filter(|e| e.answers()).collect();
    if terminating.is_empty() { Choice::Nobody } else { Choice::Terminating(terminating) }
}

/// Applies topology hints like kube-proxy. If every ready endpoint has node hints and at least one of them names our
/// node, only the endpoints whose hints name our node remain (`trafficDistribution: PreferSameNode`). Otherwise this
/// rule applies to zone hints and our zone. Otherwise all endpoints remain. So hints apply either to all endpoints or
/// to none.
fn hinted<'a>(ready: Vec<&'a ResolvedEndpoint>, viewpoint: Viewpoint<'_>) -> Vec<&'a ResolvedEndpoint> {
    let of_node = named(&ready, |e| &e.hint_nodes, viewpoint.node);
    of_node.or_else(|| named(&ready, |e| &e.hint_zones, viewpoint.zone)).unwrap_or(ready)
}

/// The endpoints whose hints contain `ours`; `None` if the hints do not apply.
fn named<'a>(
    ready: &[&'a ResolvedEndpoint],
    hints: impl Fn(&'a ResolvedEndpoint) -> &'a [String],
    ours: Option<&str>,
) -> Option<Vec<&'a ResolvedEndpoint>> {
    let ours = ours?;
    if ready.iter().any(|e| hints(e).is_empty()) {
        return None;
    }
    let named: Vec<_> = ready.iter().copied().filter(|e| hints(e).iter().any(|name| name == ours)).collect();
    (!named.is_empty()).then_some(named)
}
