//! [`Round`]: one round of a [`Reconciler`] with its inputs, for comparison with a round computed from scratch.
//!
//! The daemon creates a round at intervals and compares it in the background. This is cheap: inputs and outcome share
//! their contents with the reconciler, which copies what it changes while a round exists.
//!
//! Invariant: without a missed dependency, a round has no difference (tested over random histories).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_model::health::Verdicts;
use tidegate_model::objects::{ObjectKey, Objects};
use tidegate_structures::difference::{self, Difference};

use super::drain::DrainTarget;
use super::incremental::Reconciler;
use super::input::{Input, Memory};
use super::outcome::Outcome;
use super::settings::Settings;
use crate::pools::Granted;

/// One round of a [`Reconciler`].
#[derive(Debug, Clone)]
pub struct Round {
    settings: Settings,
    objects: Objects,
    verdicts: Verdicts,
    drained: BTreeSet<DrainTarget>,
    memory: Memory,
    generation: u64,
    now: Duration,
    outcome: Arc<Outcome>,
    granted: Arc<BTreeMap<ObjectKey, Granted>>,
}

/// The differences that a comparison found; empty if there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compared {
    /// Differences in the addresses of Services, and in the usage of the pools.
    pub allocation: Vec<Difference>,
    /// Differences in the rest of the desired state. Not computed if addresses differ, because the rest depends on
    /// them.
    pub reconcile: Vec<Difference>,
}

impl Reconciler {
    /// The round that [`Self::reconcile`] has just computed from `input`, with its outcome.
    #[must_use]
    pub fn round(&self, input: &Input<'_>, outcome: &Arc<Outcome>) -> Round {
        Round {
            settings: input.settings.clone(),
            objects: input.objects.clone(),
            verdicts: input.verdicts.clone(),
            drained: input.drained.clone(),
            memory: input.memory.clone(),
            generation: input.generation,
            now: input.now,
            outcome: Arc::clone(outcome),
            granted: self.granted(),
        }
    }
}

impl Round {
    /// Computes the round from scratch and compares. This takes as long as the first round of a daemon.
    #[must_use]
    pub fn compare(&self) -> Compared {
        let Self { settings, objects, verdicts, drained, memory, generation, now, .. } = self;
        let (generation, now) = (*generation, *now);
        let input = Input { settings, objects, verdicts, drained, memory, generation, now };
        let mut scratch = Reconciler::default();
        let outcome = scratch.reconcile(&input);
        let allocation = allocation((&self.outcome, &self.granted), (&outcome, &scratch.granted()));
        if !allocation.is_empty() {
            return Compared { allocation, reconcile: Vec::new() };
        }
        Compared { allocation, reconcile: rest(&self.outcome, &outcome) }
    }
}

type Grants = BTreeMap<ObjectKey, Granted>;

fn allocation((outcome, granted): (&Outcome, &Grants), scratch: (&Outcome, &Grants)) -> Vec<Difference> {
    let (other, other_granted) = scratch;
    let [one, two] = [outcome, other].map(|outcome| &outcome.memory.allocations);
    let found = [
        difference::of_lists("granted", granted, other_granted),
        difference::of_lists("memory.allocations.by_service", &one.by_service, &two.by_service),
        difference::of_lists("memory.allocations.of_removed", &one.of_removed, &two.of_removed),
        difference::of_lists("pools", &outcome.pools, &other.pools),
        difference::of_lists("claimed", outcome.claimed.iter(), other.claimed.iter()),
    ];
    let found: Vec<Difference> = found.into_iter().flatten().collect();
    let is_same = (granted, one, &outcome.pools) == (other_granted, two, &other.pools);
    or_unequal(found, is_same)
}

/// The rest of an outcome, without the parts that [`allocation`] compares. The pattern lists every field, so that a new
/// field can't be forgotten.
fn rest(outcome: &Outcome, scratch: &Outcome) -> Vec<Difference> {
    let Outcome {
        spec,
        findings,
        services,
        targets,
        health_check_node_ports,
        pools: _,
        claimed: _,
        memory: Memory { allocations: _, drains, removed_ports },
        reconcile_at,
    } = outcome;
    let bare = |outcome: &Outcome| {
        let mut spec = outcome.spec.clone();
        spec.services = Vec::new();
        spec
    };
    let found = [
        difference::of("spec without services", &bare(outcome), &bare(scratch)),
        difference::of_lists("spec.services", &spec.services, &scratch.spec.services),
        difference::of_lists("services", services, &scratch.services),
        difference::of_lists("findings", findings.iter(), scratch.findings.iter()),
        difference::of("targets", targets, &scratch.targets),
        difference::of_lists(
            "health_check_node_ports",
            health_check_node_ports.iter(),
            scratch.health_check_node_ports.iter(),
        ),
        difference::of("memory.drains", drains, &scratch.memory.drains),
        difference::of("memory.removed_ports", removed_ports, &scratch.memory.removed_ports),
        difference::of("reconcile_at", reconcile_at, &scratch.reconcile_at),
    ];
    or_unequal(found.into_iter().flatten().collect(), outcome == scratch)
}

/// Adds a difference if two values are unequal although they print the same.
fn or_unequal(mut found: Vec<Difference>, is_same: bool) -> Vec<Difference> {
    if found.is_empty() && !is_same {
        let [incremental, from_scratch] =
            ["not equal to the other value, although both print the same"; 2].map(str::to_owned);
        found.push(Difference { part: "outcome".to_owned(), incremental, from_scratch });
    }
    found
}
