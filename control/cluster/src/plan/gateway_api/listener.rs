//! The status of the listeners of Gateways and ListenerSets.

use tidegate_model::objects::ObjectKey;
use tidegate_model::objects::gateway_api::ListenerStatus;
use tidegate_policy::gateway_api::ListenerState;

use super::super::planner::Planner;
use super::super::stored_condition::same;
use super::programming::{PROGRAMMED, Programming, of_listener};

/// The types of our conditions.
const OURS: [&str; 4] = ["Accepted", "Conflicted", "ResolvedRefs", PROGRAMMED];

impl Planner<'_> {
    /// The status of listeners. `key` is that of the times of their object.
    pub(super) fn listeners(
        &mut self,
        key: &ObjectKey,
        stored: &[ListenerStatus],
        states: &[ListenerState],
        programming: Option<&Programming>,
        generation: i64,
    ) -> Vec<ListenerStatus> {
        let mut listeners = Vec::with_capacity(states.len());
        for state in states {
            let before = stored.iter().find(|listener| listener.name == state.name);
            let before = before.map_or(&[][..], |listener| &listener.conditions);
            let programmed = of_listener(state, programming);
            let conditions = state.conditions.iter().chain([&programmed]);
            let conditions =
                conditions.map(|condition| self.stated(key, &state.name, before, condition, generation));
            listeners.push(ListenerStatus {
                name: state.name.clone(),
                supported_kinds: state.supported_kinds.clone(),
                attached_routes: i64::try_from(state.attached_routes).unwrap_or(i64::MAX),
                conditions: conditions.collect(),
            });
        }
        listeners
    }
}

/// Whether the stored status of listeners equals the wanted one. Conditions of other types are ignored.
pub(super) fn are_same(stored: &[ListenerStatus], wanted: &[ListenerStatus]) -> bool {
    stored.len() == wanted.len()
        && wanted.iter().all(|wanted| {
            stored.iter().any(|stored| {
                (&stored.name, &stored.supported_kinds, stored.attached_routes)
                    == (&wanted.name, &wanted.supported_kinds, wanted.attached_routes)
                    && same(&stored.conditions, &wanted.conditions, |c| OURS.contains(&c.kind.as_str()))
            })
        })
}
