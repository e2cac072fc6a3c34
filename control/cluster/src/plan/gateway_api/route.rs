//! The status of TCPRoutes and UDPRoutes: one entry for each parent of ours.

use std::sync::Arc;

use tidegate_model::objects::gateway_api::{CONTROLLER, Route, RouteParentStatus};
use tidegate_policy::gateway_api::ParentState;

use super::super::planner::Planner;
use super::super::stored_condition::same;
use super::super::write::WrittenStatus;
use super::times::times_key;

/// The maximum number of parents in the status of a route: the limit of the definition.
const PARENTS_MAX: usize = 32;

impl Planner<'_> {
    /// Plans for one route, if any of its inputs changed since it last needed no write. `state` is `None` if it has no
    /// parent of ours.
    pub(super) fn route_unless_up_to_date(&mut self, route: &Arc<Route>, state: Option<&Arc<[ParentState]>>) {
        let id = (route.protocol, route.meta.key.clone());
        let is_same = |(was, stood): &(Arc<Route>, Option<Arc<[ParentState]>>)| {
            Arc::ptr_eq(was, route)
                && match (stood, state) {
                    (Some(stood), Some(state)) => Arc::ptr_eq(stood, state),
                    (None, None) => true,
                    _ => false,
                }
        };
        if self.memory.up_to_date_statuses.routes.get(&id).is_some_and(is_same) {
            return;
        }
        let needs_write = self.route(route, state.map_or(&[], |state| state));
        let up_to_date = &mut self.memory.up_to_date_statuses.routes;
        match needs_write {
            false => drop(up_to_date.insert(id, (Arc::clone(route), state.cloned()))),
            true => drop(up_to_date.remove(&id)),
        }
    }

    /// Plans the status of a route. Returns whether it needs a write.
    fn route(&mut self, route: &Route, states: &[ParentState]) -> bool {
        let key = times_key(route.kind(), &route.meta.key);
        let (ours, others): (Vec<&RouteParentStatus>, Vec<_>) =
            route.status.iter().partition(|parent| parent.controller == CONTROLLER);
        let mut wanted = Vec::new();
        for (at, state) in states.iter().enumerate().take(PARENTS_MAX.saturating_sub(others.len())) {
            let before = ours.iter().find(|stored| stored.parent == state.parent);
            let before = before.map_or(&[][..], |stored| &stored.conditions);
            let part = at.to_string();
            let conditions = state
                .conditions
                .iter()
                .map(|state| self.stated(&key, &part, before, state, route.generation))
                .collect();
            let (parent, controller) = (state.parent.clone(), CONTROLLER.to_owned());
            wanted.push(RouteParentStatus { parent, controller, conditions });
        }
        let is_same = |(stored, wanted): (&&RouteParentStatus, &RouteParentStatus)| {
            stored.parent == wanted.parent && same(&stored.conditions, &wanted.conditions, |_| true)
        };
        if ours.len() == wanted.len() && ours.iter().zip(&wanted).all(is_same) {
            self.remove_times(&key);
            return false;
        }
        self.write_status(&route.meta, WrittenStatus::Route(route.protocol, wanted));
        true
    }
}
