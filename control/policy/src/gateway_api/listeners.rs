//! The listeners of a Gateway and of its ListenerSets: which are accepted, and which one keeps a contested port.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_model::fair_share::fair_share;
use tidegate_model::objects::gateway_api::{
    FromNamespaces, GROUP, Gateway, Listener, ListenerSet, RouteKind, route_kind,
};
use tidegate_model::objects::{Objects, Port, Protocol};

use super::condition::{ACCEPTED, CONFLICTED, RESOLVED_REFS, accepted, condition, not_accepted, reason};
use super::state::{ConditionState, ListenerState};

/// The maximum number of served listeners of one Gateway, with those of its ListenerSets. Owners of other namespaces
/// decide how many ListenerSets there are, and must not make the Gateway too large to be served. If there are more,
/// the namespaces of ListenerSets get equal shares of what the Gateway's own listeners leave.
const LISTENERS_MAX: usize = 1_024;

/// A listener of a Gateway, or of one of its ListenerSets.
#[derive(Debug)]
pub(super) struct Site<'a> {
    pub(super) listener: &'a Listener,
    /// The ListenerSet; `None` for a listener of the Gateway itself.
    pub(super) set: Option<&'a Arc<ListenerSet>>,
    /// Its index among the listeners of its object.
    pub(super) index: usize,
    /// The namespace that `from: Same` means.
    pub(super) namespace: &'a str,
    pub(super) state: ListenerState,
}

impl Site<'_> {
    /// The name of its port in tables and metrics. Names are unique only within one object.
    pub(super) fn label(&self) -> String {
        match self.set {
            None => self.listener.name.clone(),
            Some(set) => format!("{}/{}", set.meta.key, self.listener.name),
        }
    }

    /// Its conditions that report a refusal.
    pub(super) fn refusals(&self) -> impl Iterator<Item = &ConditionState> {
        self.state.conditions.iter().filter(|condition| !condition.is_true && condition.kind != CONFLICTED)
    }

    /// Whether routes of this kind may attach.
    pub(super) fn supports(&self, kind: &str) -> bool {
        self.state.supported_kinds.iter().any(|supported| supported.kind == kind)
    }
}

/// The listeners of a Gateway, then those of its ListenerSets, which the caller passes in their order of precedence.
pub(super) fn sites<'a>(gateway: &'a Gateway, sets: &[&'a Arc<ListenerSet>]) -> Vec<Site<'a>> {
    let all = sites_within(gateway, sets, usize::MAX);
    let served = || all.iter().filter(|site| site.state.served.is_some());
    if served().count() <= LISTENERS_MAX {
        return all;
    }
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    served()
        .filter(|site| site.set.is_some())
        .for_each(|site| *sizes.entry(site.namespace).or_default() += 1);
    let own = served().filter(|site| site.set.is_none()).count();
    let share = fair_share(sizes.into_values().collect(), LISTENERS_MAX.saturating_sub(own));
    sites_within(gateway, sets, share)
}

/// The listeners, of which each namespace of ListenerSets gets at most `share`.
fn sites_within<'a>(gateway: &'a Gateway, sets: &[&'a Arc<ListenerSet>], share: usize) -> Vec<Site<'a>> {
    let own = gateway.listeners.iter().enumerate().map(|(at, listener)| (at, listener, None, &gateway.meta));
    let of_sets = sets.iter().flat_map(|set| {
        set.listeners.iter().enumerate().map(|(at, listener)| (at, listener, Some(*set), &set.meta))
    });
    let mut served: BTreeMap<&str, usize> = BTreeMap::new();
    let mut owners: BTreeMap<Port, Vec<&Listener>> = BTreeMap::new();
    own.chain(of_sets)
        .map(|(index, listener, set, meta)| {
            let owners = owners.entry(listener.port).or_default();
            let conflict = owners.iter().find_map(|owner| conflict(owner, listener));
            let of_namespace = served.entry(&meta.key.namespace).or_default();
            let state = state(listener, conflict, set.is_none() || *of_namespace < share);
            if state.served.is_some() {
                owners.push(listener);
                *of_namespace += usize::from(set.is_some());
            }
            Site { listener, set, index, namespace: &meta.key.namespace, state }
        })
        .collect()
}

/// The protocol of a listener that this gateway serves.
fn protocol(listener: &Listener) -> Option<Protocol> {
    match listener.protocol.as_str() {
        "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        _ => None,
    }
}

/// Why a listener cannot have a port that another one has. TCP and UDP have separate ports.
fn conflict(owner: &Listener, listener: &Listener) -> Option<(&'static str, String)> {
    let is_udp = |listener: &Listener| listener.protocol == "UDP";
    if is_udp(owner) != is_udp(listener) {
        return None;
    }
    let reason = if owner.protocol == listener.protocol {
        reason::HOSTNAME_CONFLICT
    } else {
        reason::PROTOCOL_CONFLICT
    };
    Some((reason, format!("listener {} already has port {}", owner.name, owner.port)))
}

fn state(listener: &Listener, conflict: Option<(&'static str, String)>, has_space: bool) -> ListenerState {
    let protocol = protocol(listener);
    let of_protocol =
        protocol.map(|protocol| RouteKind { group: GROUP.to_owned(), kind: route_kind(protocol).into() });
    let allowed = &listener.allowed_kinds;
    let is_allowed = |kind: &RouteKind| allowed.is_empty() || allowed.contains(kind);
    let supported_kinds: Vec<RouteKind> = of_protocol.into_iter().filter(is_allowed).collect();
    let unsupported = allowed.iter().find(|kind| !supported_kinds.contains(kind));
    let accepted = match (protocol, &conflict) {
        (None, _) => not_accepted(
            reason::UNSUPPORTED_PROTOCOL,
            format!("protocol {} is not supported; supported: TCP, UDP", listener.protocol),
        ),
        (Some(_), Some((reason, message))) => not_accepted(reason, message.as_str()),
        (Some(_), None) if !has_space => not_accepted(
            reason::PORT_UNAVAILABLE,
            format!(
                "listener {}: a Gateway has at most {LISTENERS_MAX} listeners, and ListenerSets of each namespace \
                 get the same share of them",
                listener.name
            ),
        ),
        (Some(_), None) => accepted(),
    };
    let conflicted = match conflict {
        Some((reason, message)) => condition(CONFLICTED, true, reason, message),
        None => condition(CONFLICTED, false, reason::NO_CONFLICTS, ""),
    };
    let resolved = match unsupported {
        Some(kind) => condition(
            RESOLVED_REFS,
            false,
            reason::INVALID_ROUTE_KINDS,
            format!(
                "allowedRoutes.kinds: {} of group {:?} cannot attach to a listener with protocol {}",
                kind.kind, kind.group, listener.protocol
            ),
        ),
        None => condition(RESOLVED_REFS, true, reason::RESOLVED_REFS, ""),
    };
    ListenerState {
        name: listener.name.clone(),
        served: protocol.filter(|_| accepted.is_true).map(|protocol| (listener.port, protocol)),
        supported_kinds,
        attached_routes: 0,
        conditions: vec![accepted, conflicted, resolved],
    }
}

/// The condition `Accepted` of the Gateway or ListenerSet with these listeners.
pub(super) fn of_listeners<'a>(listeners: impl Iterator<Item = &'a ListenerState>) -> ConditionState {
    let (mut valid, mut invalid) = (0_usize, Vec::new());
    for listener in listeners {
        match listener.served {
            Some(_) => valid += 1,
            None => invalid.push(listener.name.as_str()),
        }
    }
    let message = || format!("not valid: {}", invalid.join(", "));
    match (valid, invalid.is_empty()) {
        (_, true) => accepted(),
        (0, false) => not_accepted(reason::LISTENERS_NOT_VALID, message()),
        (_, false) => condition(ACCEPTED, true, reason::LISTENERS_NOT_VALID, message()),
    }
}

/// Whether objects of `namespace` may attach.
pub(super) fn admits(from: &FromNamespaces, own: &str, namespace: &str, objects: &Objects) -> bool {
    match from {
        FromNamespaces::None => false,
        FromNamespaces::All => true,
        FromNamespaces::Same => own == namespace,
        FromNamespaces::Selector(selector) => selector.matches(&objects.namespace_labels(namespace)),
    }
}
