//! Which listeners are served, and the conditions `Programmed` that say so.

use std::collections::BTreeMap;

use tidegate_model::objects::Protocol;
use tidegate_policy::gateway_api::{ConditionState, ListenerSetState, ListenerState};
use tidegate_policy::reconcile::view::{RefusalReason, ServiceView};

/// The type of these conditions.
pub(super) const PROGRAMMED: &str = "Programmed";

/// The reason of a condition `Programmed` whose status is `True`.
pub(super) const IS_PROGRAMMED: &str = "Programmed";
/// The reasons of a condition `Programmed` whose status is `False`.
pub(super) mod not_programmed {
    pub(in super::super) const ADDRESS_NOT_ASSIGNED: &str = "AddressNotAssigned";
    pub(in super::super) const ADDRESS_NOT_USABLE: &str = "AddressNotUsable";
    pub(in super::super) const INVALID: &str = "Invalid";
    pub(in super::super) const NO_RESOURCES: &str = "NoResources";
    pub(in super::super) const PARENT_NOT_PROGRAMMED: &str = "ParentNotProgrammed";
    pub(in super::super) const PENDING: &str = "Pending";
    pub(in super::super) const PORT_UNAVAILABLE: &str = "PortUnavailable";
}

/// Which ports of a Gateway are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Programming {
    /// Why no port is served, or not by every gateway: the reason and its text.
    unserved: Option<(&'static str, String)>,
    /// The ports that cannot be served, each with the reason and its text.
    refused: BTreeMap<(u16, Protocol), (&'static str, String)>,
}

impl Programming {
    /// The ports of a view. `unserved`: see the field.
    pub(super) fn new(view: &ServiceView, unserved: Option<(&'static str, String)>) -> Self {
        let refused = view.ports.iter().filter_map(|port| {
            let refusal = port.refused.as_ref()?;
            let reason = match refusal.reason {
                RefusalReason::NotSupported => not_programmed::INVALID,
                RefusalReason::Conflict | RefusalReason::NotProgrammed => not_programmed::PORT_UNAVAILABLE,
            };
            Some(((port.port, port.protocol), (reason, refusal.message.clone())))
        });
        Self { unserved, refused: refused.collect() }
    }

    /// The condition `Programmed` of a listener.
    fn of(&self, listener: &ListenerState) -> ConditionState {
        let Some((port, protocol)) = listener.served else {
            let conditions = &listener.conditions;
            let is_why = |c: &&ConditionState| c.is_true == (c.kind == "Conflicted");
            // The reason for a conflict is the more specific one.
            let why = conditions.iter().filter(is_why).max_by_key(|c| c.kind == "Conflicted");
            return match why {
                Some(why) => programmed(false, why.reason, why.message.as_str()),
                None => programmed(false, not_programmed::INVALID, "the Gateway is not accepted"),
            };
        };
        if let Some((reason, message)) = self.refused.get(&(port.get(), protocol)) {
            return programmed(false, reason, message.as_str());
        }
        match &self.unserved {
            Some((reason, why)) => programmed(false, reason, why.as_str()),
            None => programmed(true, IS_PROGRAMMED, ""),
        }
    }
}

/// The condition `Programmed` of a listener; `programming` is that of its Gateway.
pub(super) fn of_listener(listener: &ListenerState, programming: Option<&Programming>) -> ConditionState {
    let unknown = || Programming {
        unserved: Some((not_programmed::PENDING, "the Gateway is not programmed".to_owned())),
        refused: BTreeMap::new(),
    };
    programming.map_or_else(|| unknown().of(listener), |programming| programming.of(listener))
}

/// The condition `Programmed` of a ListenerSet, which is true if a listener is served.
pub(super) fn of_set(state: &ListenerSetState, programming: Option<&Programming>) -> ConditionState {
    if !state.accepted.is_true {
        return programmed(false, state.accepted.reason, state.accepted.message.as_str());
    }
    let served = state.listeners.iter().filter(|listener| listener.served.is_some());
    let mut of_listeners = served.map(|listener| of_listener(listener, programming));
    match of_listeners.clone().find(|condition| condition.is_true).or_else(|| of_listeners.next()) {
        Some(condition) if condition.is_true => condition,
        Some(condition) if condition.reason != not_programmed::PENDING => condition,
        Some(condition) => programmed(false, not_programmed::PARENT_NOT_PROGRAMMED, condition.message),
        None => programmed(false, not_programmed::INVALID, "no listener is served"),
    }
}

/// A condition `Programmed`.
pub(super) fn programmed(is_true: bool, reason: &'static str, message: impl Into<String>) -> ConditionState {
    ConditionState { kind: PROGRAMMED, is_true, reason, message: message.into() }
}
