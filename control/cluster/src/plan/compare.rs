//! A plan against one that passes over no Service: whether all is written that has to be.
//!
//! [`plan`] passes over the Services about which there was nothing to do, while all that this followed from is the same.
//! What that list of inputs lacks would leave a status as it is for ever.

use std::collections::BTreeMap;

use tidegate_core::difference::{self, Difference};

use super::{Memory, Plan, Situation, plan};

/// [`plan`], and where the plan, or what it leaves to the next, differs from one that passes over nothing, the latter, and
/// what differs. Takes as long as a plan of all Services more, and the memory of another [`Memory`].
#[must_use]
pub fn plan_compared(situation: &Situation<'_>, memory: &mut Memory) -> (Plan, Vec<Difference>) {
    let mut afresh = Memory { settled: BTreeMap::new(), ..memory.clone() };
    let from_scratch = plan(situation, &mut afresh);
    let incremental = plan(situation, memory);
    let mut found = plans(&incremental, &from_scratch);
    found.extend(memories(memory, &afresh));
    if found.is_empty() {
        return (incremental, found);
    }
    *memory = afresh;
    (from_scratch, found)
}

/// The pattern is complete, so that a new field is not forgotten.
fn plans(incremental: &Plan, from_scratch: &Plan) -> Vec<Difference> {
    let Plan { writes, events, again_at, waits_for_peers } = incremental;
    let found = [
        difference::of_lists("writes", writes, &from_scratch.writes),
        difference::of_lists("events", events, &from_scratch.events),
        difference::of("again_at", again_at, &from_scratch.again_at),
        difference::of("waits_for_peers", waits_for_peers, &from_scratch.waits_for_peers),
    ];
    found.into_iter().flatten().collect()
}

/// What later plans follow from, but for the Services to pass over: those depend on when they were last looked at.
fn memories(incremental: &Memory, from_scratch: &Memory) -> Vec<Difference> {
    let Memory { since, contests, told, leaving, asked, waiting, planned, without_ip_mode, settled: _ } =
        incremental;
    let found = [
        difference::of_lists("memory.since", since, &from_scratch.since),
        difference::of_lists("memory.contests", contests, &from_scratch.contests),
        difference::of_lists("memory.told", told, &from_scratch.told),
        difference::of_lists("memory.leaving", leaving, &from_scratch.leaving),
        difference::of_lists("memory.asked", asked, &from_scratch.asked),
        difference::of_lists("memory.waiting", waiting, &from_scratch.waiting),
        difference::of("memory.planned", planned, &from_scratch.planned),
        difference::of("memory.without_ip_mode", without_ip_mode, &from_scratch.without_ip_mode),
    ];
    found.into_iter().flatten().collect()
}
