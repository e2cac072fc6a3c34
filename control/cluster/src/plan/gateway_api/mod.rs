//! Plans the status of the objects of the Gateway API: GatewayClass, Gateway, ListenerSet, TCPRoute and UDPRoute.
//!
//! `policy::gateway_api` decides what is accepted; here its states become conditions with times, and are compared with
//! the stored ones. Addresses and finalizer of a Gateway are planned by [`service`](super::service), because a Gateway is
//! served as a Service. It calls [`gateway`], which records in the [`Memory`](super::Memory) which ports are served, for
//! the ListenerSets of the Gateway.
//!
//! [`gateway`] has the Gateways, [`listener`] the listeners of Gateways and ListenerSets, [`programming`] which of them
//! are served, [`route`] the parents of routes, [`times`] the keys of the times of conditions, and [`up_to_date`] the
//! objects that are skipped.
//!
//! Invariant: conditions of other types, and parents of other controllers, stay as they are.

mod gateway;
mod listener;
mod programming;
mod route;
mod times;
mod up_to_date;

use std::sync::Arc;

use tidegate_model::objects::gateway_api::{
    GatewayClass, GatewayClassStatus, ListenerSet, ListenerSetStatus,
};
use tidegate_model::objects::{Condition, ObjectKey};
use tidegate_policy::gateway_api::{ConditionState, ListenerSetState, SUPPORTED_FEATURES};
use tidegate_policy::pools::FIELD_MANAGER;

use super::planner::{MESSAGE_BYTES_MAX, Planner};
use super::stored_condition::same;
use super::write::{Write, WrittenStatus};
use crate::event::cut;
use programming::PROGRAMMED;
pub(super) use programming::Programming;
pub(super) use times::object_exists;
use times::times_key;
pub(super) use up_to_date::UpToDateStatuses;

const ACCEPTED: &str = "Accepted";

impl Planner<'_> {
    /// Plans the status of all objects except Gateways, which must be planned before.
    pub(super) fn gateway_api(&mut self) {
        let observation = self.situation.observation;
        let (objects, states) = (&observation.objects, &observation.gateway_states);
        for (name, state) in &states.classes {
            let Some(class) = objects.gateway_classes.get(name) else { continue };
            let is_same = |(was, stood): &(Arc<GatewayClass>, Arc<ConditionState>)| {
                Arc::ptr_eq(was, class) && Arc::ptr_eq(stood, state)
            };
            if self.memory.up_to_date_statuses.classes.get(name).is_some_and(is_same) {
                continue;
            }
            let needs_write = self.class(class, state);
            let up_to_date = &mut self.memory.up_to_date_statuses.classes;
            match needs_write {
                false => up_to_date.insert(name.clone(), (Arc::clone(class), Arc::clone(state))),
                true => up_to_date.remove(name),
            };
        }
        for (key, state) in &states.listener_sets {
            let Some(set) = objects.listener_sets.get(key) else { continue };
            let programming = self.memory.programming.get(&state.gateway).cloned();
            let up_to_date = &self.memory.up_to_date_statuses.listener_sets;
            if let Some((was, stood, programmed)) = up_to_date.get(key)
                && Arc::ptr_eq(was, set)
                && Arc::ptr_eq(stood, state)
                && programmed.as_ref().map(Arc::as_ptr) == programming.as_ref().map(Arc::as_ptr)
            {
                continue;
            }
            let needs_write = self.listener_set(set, state, programming.as_deref());
            let up_to_date = &mut self.memory.up_to_date_statuses.listener_sets;
            match needs_write {
                false => {
                    up_to_date.insert(key.clone(), (Arc::clone(set), Arc::clone(state), programming));
                }
                true => drop(up_to_date.remove(key)),
            }
        }
        for (key, set) in &objects.listener_sets {
            // Its Gateway was deleted, or has the class of another controller.
            let is_left = !states.listener_sets.contains_key(key);
            if is_left && set.status_managers.iter().any(|manager| manager == FIELD_MANAGER) {
                self.memory.up_to_date_statuses.listener_sets.remove(key);
                self.write_status(&set.meta, WrittenStatus::ListenerSet(None));
            }
        }
        let of_tcp = objects.tcp_routes.values().map(|route| (route, states.tcp_routes.get(&route.meta.key)));
        let of_udp = objects.udp_routes.values().map(|route| (route, states.udp_routes.get(&route.meta.key)));
        for (route, state) in of_tcp.chain(of_udp) {
            self.route_unless_up_to_date(route, state);
        }
    }

    /// Plans the status of a GatewayClass. Returns whether it needs a write.
    fn class(&mut self, class: &GatewayClass, state: &ConditionState) -> bool {
        let key = times_key("GatewayClass", &class.meta.key);
        let stored = &class.status;
        let conditions = vec![self.stated(&key, "", &stored.conditions, state, class.generation)];
        let supported_features: Vec<String> = SUPPORTED_FEATURES.map(str::to_owned).into();
        if stored.supported_features == supported_features
            && same(&stored.conditions, &conditions, |c| c.kind == ACCEPTED)
        {
            self.remove_times(&key);
            return false;
        }
        let status = WrittenStatus::GatewayClass(GatewayClassStatus { conditions, supported_features });
        self.write_status(&class.meta, status);
        true
    }

    /// Plans the status of a ListenerSet. `programming` is that of its Gateway. Returns whether it needs a write.
    fn listener_set(
        &mut self,
        set: &ListenerSet,
        state: &ListenerSetState,
        programming: Option<&Programming>,
    ) -> bool {
        let key = times_key("ListenerSet", &set.meta.key);
        let stored = &set.status;
        let programmed = programming::of_set(state, programming);
        let conditions = [&state.accepted, &programmed]
            .map(|state| self.stated(&key, "", &stored.conditions, state, set.generation));
        let listeners =
            self.listeners(&key, &stored.listeners, &state.listeners, programming, set.generation);
        if listener::are_same(&stored.listeners, &listeners)
            && same(&stored.conditions, &conditions, |c| [ACCEPTED, PROGRAMMED].contains(&c.kind.as_str()))
        {
            self.remove_times(&key);
            return false;
        }
        let status = ListenerSetStatus { conditions: conditions.into(), listeners };
        self.write_status(&set.meta, WrittenStatus::ListenerSet(Some(status)));
        true
    }

    fn write_status(&mut self, meta: &tidegate_model::objects::Metadata, status: WrittenStatus) {
        let (object, uid) = (meta.key.clone(), meta.uid.clone());
        self.plan.writes.push(Write::GatewayApiStatus { object, uid, status });
    }

    /// A condition with the time at which its status last changed. `part` is the part of the object that has it.
    fn stated(
        &mut self,
        key: &ObjectKey,
        part: &str,
        stored: &[Condition],
        state: &ConditionState,
        generation: i64,
    ) -> Condition {
        let status = if state.is_true { "True" } else { "False" };
        let condition = Condition {
            kind: state.kind.to_owned(),
            status: status.to_owned(),
            reason: state.reason.to_owned(),
            message: cut(&state.message, MESSAGE_BYTES_MAX),
            observed_generation: generation,
            last_transition: None,
        };
        self.with_time(key, part, stored, condition)
    }
}
