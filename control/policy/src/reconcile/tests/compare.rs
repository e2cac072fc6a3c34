//! The comparison of a round with one from scratch. It finds the effects of a missed dependency and no other
//! difference.
//!
//! The property in `incremental` checks with random histories that it finds no other difference.

use super::*;
use crate::reconcile::Compared;

/// A reconciler after one round with two Services, each with one endpoint.
fn two_services() -> (World, Reconciler) {
    let slices = vec![http("a", vec![endpoint("10.0.1.1")]), http("b", vec![endpoint("10.0.1.2")])];
    let mut world = World::new(["a", "b"].map(service).into(), slices);
    let mut reconciler = Reconciler::default();
    world.memory = reconciler.reconcile(&world.input()).memory;
    (world, reconciler)
}

fn round(world: &World, reconciler: &mut Reconciler) -> (Arc<Outcome>, Compared) {
    let outcome = Arc::new(reconciler.reconcile(&world.input()));
    let compared = reconciler.round(&world.input(), &outcome).compare();
    (outcome, compared)
}

#[test]
fn a_missed_change_of_endpoints_is_found_and_fixed_by_a_full_round() {
    let (mut world, mut reconciler) = two_services();
    let gone = http("b", vec![endpoint("10.0.1.3")]);
    world.objects.endpoint_slices.insert(gone.meta.key.clone(), Arc::new(gone));
    reconciler.miss(&world.objects);
    let (stale, compared) = round(&world, &mut reconciler);
    assert_eq!(compared.allocation, []);
    let services = &compared.reconcile[0];
    assert_eq!(services.part, "spec.services[1]", "{compared:#?}");
    assert!(services.incremental.contains("10.0.1.2") && !services.incremental.contains("10.0.1.3"));
    assert!(services.from_scratch.contains("10.0.1.3"), "{services:#?}");

    world.memory = stale.memory.clone();
    let mut reconciler = Reconciler::default();
    let (healed, compared) = round(&world, &mut reconciler);
    assert_eq!(compared, Compared::default());
    let backends = &healed.spec.services[1].backends;
    assert!(backends.iter().any(|backend| backend.address == ip("10.0.1.3")), "{backends:?}");
    assert_eq!(healed.memory.allocations, stale.memory.allocations, "a Service keeps its address");
}

#[test]
fn a_missed_new_service_is_a_difference_of_the_allocation() {
    let (mut world, mut reconciler) = two_services();
    world.put(service("c"));
    reconciler.miss(&world.objects);
    let (stale, compared) = round(&world, &mut reconciler);
    assert_eq!(compared.reconcile, [], "consequences of addresses are not reported twice");
    let parts: Vec<&str> = compared.allocation.iter().map(|difference| difference.part.as_str()).collect();
    assert!(parts.contains(&"granted[2]") && parts.contains(&"pools[0]"), "{parts:?}");

    world.memory = stale.memory.clone();
    let (healed, compared) = round(&world, &mut Reconciler::default());
    assert_eq!(compared, Compared::default());
    assert_eq!(healed.services.iter().filter(|view| view.vips.len() == 1).count(), 3);
    let before = &stale.memory.allocations.by_service;
    assert!(before.iter().all(|(key, known)| healed.memory.allocations.by_service.get(key) == Some(known)));
}

#[test]
fn a_kept_outcome_does_not_change_while_the_reconciler_continues() {
    let (mut world, mut reconciler) = two_services();
    let outcome = Arc::new(reconciler.reconcile(&world.input()));
    let kept = reconciler.round(&world.input(), &outcome);
    world.memory = outcome.memory.clone();
    world.objects.services.remove(&ObjectKey::new("default", "a"));
    world.put(service("c"));
    let (_, compared) = round(&world, &mut reconciler);
    assert_eq!(compared, Compared::default());
    assert_eq!(kept.compare(), Compared::default());
}
