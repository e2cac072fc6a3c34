//! Compares a plan with one that skips no Service, to verify that all necessary writes are planned.
//!
//! [`plan`] skips Services that needed no write, as long as all inputs of that decision are unchanged. If the list of
//! inputs were incomplete, a status would stay outdated forever.

use tidegate_structures::difference::{self, Difference};

use super::{Memory, Plan, Situation, plan};

/// Computes a [`plan`], and compares it and the memory for the next one with a plan that skips no Service. If they
/// differ, returns the latter plan and the differences. This costs the time of a plan of all Services, and another
/// [`Memory`].
pub(crate) fn plan_compared(situation: &Situation<'_>, memory: &mut Memory) -> (Plan, Vec<Difference>) {
    let mut fresh = memory.without_up_to_date();
    let from_scratch = plan(situation, &mut fresh);
    let incremental = plan(situation, memory);
    let mut found = plans(&incremental, &from_scratch);
    found.extend(memories(memory, &fresh));
    if found.is_empty() {
        return (incremental, found);
    }
    *memory = fresh;
    (from_scratch, found)
}

/// The pattern is exhaustive, so that no new field can be forgotten.
fn plans(incremental: &Plan, from_scratch: &Plan) -> Vec<Difference> {
    let Plan { writes, events, plan_again_at, waits_for_peers } = incremental;
    let found = [
        difference::of_lists("writes", writes, &from_scratch.writes),
        difference::of_lists("events", events, &from_scratch.events),
        difference::of("again_at", plan_again_at, &from_scratch.plan_again_at),
        difference::of("waits_for_peers", waits_for_peers, &from_scratch.waits_for_peers),
    ];
    found.into_iter().flatten().collect()
}

/// The inputs of later plans, except for the Services to skip, which depend on when they were last examined.
fn memories(incremental: &Memory, from_scratch: &Memory) -> Vec<Difference> {
    let Memory {
        since,
        conflicts,
        reported_events,
        leaving,
        requests,
        waiting,
        planned,
        version,
        without_ip_mode,
        programming,
        up_to_date: _,
        up_to_date_statuses: _,
    } = incremental;
    let found = [
        difference::of_lists("memory.since", since, &from_scratch.since),
        difference::of_lists("memory.conflicts", conflicts, &from_scratch.conflicts),
        difference::of_lists("memory.reported_events", reported_events, &from_scratch.reported_events),
        difference::of_lists("memory.leaving", leaving, &from_scratch.leaving),
        difference::of_lists("memory.requests", requests, &from_scratch.requests),
        difference::of_lists("memory.waiting", waiting, &from_scratch.waiting),
        difference::of_lists("memory.programming", programming, &from_scratch.programming),
        difference::of("memory.planned", planned, &from_scratch.planned),
        difference::of("memory.version", version, &from_scratch.version),
        difference::of("memory.without_ip_mode", without_ip_mode, &from_scratch.without_ip_mode),
    ];
    found.into_iter().flatten().collect()
}
