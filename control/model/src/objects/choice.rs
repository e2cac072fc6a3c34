//! Chooses the endpoints of a service port that take new flows: kube-proxy's rule, as a pure function.
//!
//! `reconcile` calls it once for each service port, or once for each node if nodes are the targets. Health checks are
//! applied later and are not known here.

use super::{ResolvedEndpoint, TrafficPolicy};

/// From where the choice is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct Viewpoint<'a> {
    /// The node whose endpoints are local, and whose topology hints count: the gateway's own, or the one that is the
    /// target. `None` for an appliance off the cluster: then every endpoint counts as local.
    pub node: Option<&'a str>,
    /// The zone whose topology hints count.
    pub zone: Option<&'a str>,
}

/// Who takes new flows. Endpoints keep the order they were given in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice<'a> {
    /// These, all ready.
    Ready(Vec<&'a ResolvedEndpoint>),
    /// None is ready; these terminate and still serve, which is better than nothing.
    Terminating(Vec<&'a ResolvedEndpoint>),
    /// Policy Local, nothing here, something elsewhere: packets are dropped, the router should ask another.
    OnlyElsewhere,
    /// Nobody at all: `noEndpoints` decides (reject or drop).
    Nobody,
}

impl<'a> Choice<'a> {
    /// The chosen endpoints, empty where there are none.
    pub fn endpoints(&self) -> &[&'a ResolvedEndpoint] {
        match self {
            Self::Ready(endpoints) | Self::Terminating(endpoints) => endpoints,
            Self::OnlyElsewhere | Self::Nobody => &[],
        }
    }
}

/// Chooses among the endpoints of one service port.
///
/// Cluster: all ready ones, filtered by topology hints ([`hinted`]); else those serving and terminating. Local: the
/// same without hints, among those on the viewpoint's node.
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

/// The ready ones, else those that serve while they terminate.
fn usable<'a>(endpoints: impl Iterator<Item = &'a ResolvedEndpoint> + Clone) -> Choice<'a> {
    let ready: Vec<_> = endpoints.clone().filter(|e| e.ready).collect();
    if !ready.is_empty() {
        return Choice::Ready(ready);
    }
    let terminating: Vec<_> = endpoints.filter(|e| e.serving && e.terminating).collect();
    if terminating.is_empty() { Choice::Nobody } else { Choice::Terminating(terminating) }
}

/// Topology hints, as kube-proxy heeds them: where every ready endpoint names nodes and one of them ours, those that
/// name our node (`trafficDistribution: PreferSameNode`); else where every one names zones and one of them ours, those
/// that name our zone; else all. All or nothing, so that a node or zone is never left with half of its endpoints.
fn hinted<'a>(ready: Vec<&'a ResolvedEndpoint>, viewpoint: Viewpoint<'_>) -> Vec<&'a ResolvedEndpoint> {
    let of_node = named(&ready, |e| &e.hint_nodes, viewpoint.node);
    of_node.or_else(|| named(&ready, |e| &e.hint_zones, viewpoint.zone)).unwrap_or(ready)
}

/// Those whose hints name `ours`; `None` where the hints do not count.
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
