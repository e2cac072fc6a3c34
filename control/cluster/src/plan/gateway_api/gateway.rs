//! The status of a Gateway that is served as a Service.

use std::sync::Arc;

use tidegate_model::objects::gateway_api::{GatewayAddress, GatewayStatus};
use tidegate_model::objects::{Condition, Ingress};
use tidegate_policy::gateway_api::{ConditionState, GatewayState};
use tidegate_policy::reconcile::Reason;
use tidegate_policy::reconcile::view::{RefusalReason, ServiceView};

use super::super::condition::{NewCondition, OfServiceConditions};
use super::super::planner::Planner;
use super::super::situation::{OfGateway, OfService};
use super::super::stored_condition::{self, same};
use super::super::write::WrittenStatus;
use super::programming::{IS_PROGRAMMED, PROGRAMMED, Programming, not_programmed, programmed};
use super::{ACCEPTED, listener};
use crate::reasons::condition_reason;

/// The maximum number of addresses in the status: the limit of the definition.
const ADDRESSES_MAX: usize = 16;

/// The type of all addresses that we write.
const IP_ADDRESS: &str = "IPAddress";

impl Planner<'_> {
    /// Plans the status of a Gateway that requests an address. `wanted` has its addresses, `new` the conditions of its
    /// Service, `record` the record of its addresses.
    pub(in super::super) fn served_gateway(
        &mut self,
        of: &OfService<'_>,
        gateway: &OfGateway<'_>,
        view: &ServiceView,
        wanted: &[Ingress],
        new: OfServiceConditions,
        record: Option<NewCondition>,
    ) {
        let Some(state) = gateway.state else { return };
        let is_refused_in_part = view.refused.is_none() && view.is_refused_in_part();
        let unserved = match new.programmed.reason {
            _ if !state.accepted.is_true => Some((not_programmed::INVALID, &state.accepted.message)),
            condition_reason::PROGRAMMED | condition_reason::CLIENT_ADDRESS_LOST => None,
            condition_reason::PORTS_NOT_PROGRAMMED if is_refused_in_part && !of.unapplied => None,
            condition_reason::NO_ADDRESS => Some((not_programmed::PENDING, &new.allocated.message)),
            _ => Some((not_programmed::PENDING, &new.programmed.message)),
        };
        let unserved = unserved.map(|(reason, why)| (reason, why.clone()));
        let programmed = programmed_gateway(of, gateway, state, view, &new);
        let value = |ip: std::net::IpAddr| GatewayAddress { kind: IP_ADDRESS.into(), value: ip.to_string() };
        let addresses = wanted.iter().filter_map(|ingress| ingress.ip).map(value).take(ADDRESSES_MAX);
        let programming = Programming::new(view, unserved);
        let ours = [new.healthy].into_iter().chain(record);
        self.gateway(of, gateway, state, addresses.collect(), Some(programming), &programmed, ours);
    }

    /// Plans the status of a Gateway that requests no address. It keeps the addresses in its status, which other
    /// gateways may still serve.
    pub(in super::super) fn unserved_gateway(&mut self, of: &OfService<'_>, gateway: &OfGateway<'_>) {
        let Some(state) = gateway.state else { return };
        let stored = &gateway.object.status;
        let addresses = stored.addresses.clone();
        self.gateway(of, gateway, state, addresses, None, &unserved(state), []);
    }

    /// Plans a status without addresses.
    pub(in super::super) fn cleared_gateway(&mut self, of: &OfService<'_>, gateway: &OfGateway<'_>) {
        match gateway.state {
            Some(state) => self.gateway(of, gateway, state, Vec::new(), None, &unserved(state), []),
            // The class of another controller: leave nothing of ours.
            None => self.write_status(&gateway.object.meta, WrittenStatus::Gateway(None)),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "each is one part of the status")]
    fn gateway(
        &mut self,
        of: &OfService<'_>,
        gateway: &OfGateway<'_>,
        state: &GatewayState,
        addresses: Vec<GatewayAddress>,
        programming: Option<Programming>,
        programmed: &ConditionState,
        ours: impl IntoIterator<Item = NewCondition>,
    ) {
        let (key, object) = (&of.service.meta.key, gateway.object);
        let (stored, generation) = (&object.status, object.generation);
        let known = self.memory.programming.get(&object.meta.key);
        match programming {
            // The ListenerSets compare by identity.
            Some(new) if known.is_some_and(|known| **known == new) => {}
            Some(new) => drop(self.memory.programming.insert(object.meta.key.clone(), Arc::new(new))),
            None => drop(self.memory.programming.remove(&object.meta.key)),
        }
        let mut conditions: Vec<Condition> = [&state.accepted, programmed]
            .map(|state| self.stated(key, "", &stored.conditions, state, generation))
            .into();
        for condition in ours {
            conditions.push(self.dated(key, &stored.conditions, condition, generation));
        }
        let programming = self.memory.programming.get(&object.meta.key).cloned();
        let listeners =
            self.listeners(key, &stored.listeners, &state.listeners, programming.as_deref(), generation);
        // Readers treat an absent count as 0. Definitions before 1.5 lack the field, and then every write would fail.
        let attached_listener_sets =
            i64::try_from(state.attached_listener_sets).ok().filter(|count| *count > 0);
        if stored.addresses == addresses
            && stored.attached_listener_sets == attached_listener_sets
            && listener::are_same(&stored.listeners, &listeners)
            && same(&stored.conditions, &conditions, is_ours)
        {
            return self.remove_times(key);
        }
        let status = GatewayStatus { addresses, conditions, listeners, attached_listener_sets };
        self.write_status(&object.meta, WrittenStatus::Gateway(Some(status)));
    }
}

/// Whether a condition of a Gateway is one of ours.
fn is_ours(condition: &Condition) -> bool {
    [ACCEPTED, PROGRAMMED].contains(&condition.kind.as_str()) || stored_condition::is_ours(condition)
}

/// The condition `Programmed` of a Gateway that requests no address.
fn unserved(state: &GatewayState) -> ConditionState {
    match state.accepted.is_true {
        true => programmed(false, not_programmed::ADDRESS_NOT_ASSIGNED, "the Gateway has no address"),
        false => programmed(false, not_programmed::INVALID, state.accepted.message.as_str()),
    }
}

/// The condition `Programmed` of a Gateway that requests an address.
fn programmed_gateway(
    of: &OfService<'_>,
    gateway: &OfGateway<'_>,
    state: &GatewayState,
    view: &ServiceView,
    new: &OfServiceConditions,
) -> ConditionState {
    if !state.accepted.is_true {
        return unserved(state);
    }
    let denied = of.findings.iter().find(|finding| finding.reason == Reason::AllocationFailed);
    let is_requested = gateway.object.addresses.iter().any(|address| !address.value.is_empty());
    if let Some(denied) = denied.filter(|_| is_requested) {
        return programmed(false, not_programmed::ADDRESS_NOT_USABLE, denied.diagnostic.what.as_str());
    }
    let message = new.programmed.message.as_str();
    match new.programmed.reason {
        condition_reason::PROGRAMMED | condition_reason::CLIENT_ADDRESS_LOST => {
            programmed(true, IS_PROGRAMMED, message)
        }
        condition_reason::NO_ADDRESS => {
            programmed(false, not_programmed::ADDRESS_NOT_ASSIGNED, new.allocated.message.as_str())
        }
        condition_reason::PORTS_NOT_PROGRAMMED => {
            let mut refusals = view.ports.iter().filter_map(|port| port.refused.as_ref());
            let reason = match refusals.any(|refusal| refusal.reason == RefusalReason::NotSupported) {
                true => not_programmed::INVALID,
                false => not_programmed::NO_RESOURCES,
            };
            programmed(false, reason, message)
        }
        condition_reason::NO_GATEWAY => programmed(false, not_programmed::NO_RESOURCES, message),
        _ => programmed(false, not_programmed::PENDING, message),
    }
}
