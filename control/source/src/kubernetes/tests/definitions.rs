//! The definition of AddressPool appears, is deleted, and returns.

use test_apiserver::Fault;

use super::*;

const DEFINITION: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/kubernetes/crds/tidegate.dev_addresspools.yaml");

fn define(world: &World) {
    world.server.apply(&std::fs::read_to_string(DEFINITION).expect("a definition")).expect("legal");
}

fn apply_pool(world: &World, finalizers: &str) {
    let pool = format!(
        "{{apiVersion: tidegate.dev/v1alpha1, kind: AddressPool, metadata: {{name: public, finalizers: [{finalizers}]}}, \
         spec: {{addresses: [203.0.113.0/28]}}}}"
    );
    world.server.apply(&pool).expect("legal");
}

fn has_pool(update: &SourceUpdate) -> bool {
    update.objects.address_pools.contains_key("public")
}

fn lacks(state: &SourceState, what: &str) -> bool {
    state.connected && state.last_error.as_ref().is_some_and(|error| error.contains(what))
}

#[tokio::test]
async fn a_definition_that_appears_is_used_within_a_minute() {
    let world = World::new();
    let source = world.start();
    until_state(&source, "a connection", |s| s.connected).await;
    define(&world);
    apply_pool(&world, "");
    until(&source, "the pool", has_pool).await;
}

#[tokio::test]
async fn a_permission_that_appears_is_used_within_a_minute() {
    let world = World::new();
    define(&world);
    apply_pool(&world, "");
    // As while an API server starts and has not read all roles.
    world.server.faults().on_next(1, "/apis/tidegate.dev/v1alpha1/addresspools", Fault::ServerError(403));
    let source = world.start();
    let refused = |u: &SourceUpdate| u.report.to_string().contains("AddressPool objects cannot be read");
    until(&source, "the refusal", refused).await;
    until(&source, "the pool", |u| has_pool(u) && !refused(u)).await;
}

#[tokio::test]
async fn a_definition_that_is_being_deleted_is_reported_until_it_is_back() {
    let world = World::new();
    define(&world);
    apply_pool(&world, "tidegate.dev/cleanup");
    let source = world.start_tuned(Tuning { absent: Duration::from_millis(100), ..quick() });
    until(&source, "the pool", has_pool).await;
    let definition = ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "addresspools.tidegate.dev");
    world.server.delete(definition.0, definition.1, "", definition.2);
    let state = until_state(&source, "the deletion", |s| lacks(s, "is being deleted")).await;
    let update = until(&source, "the report", |u| u.report.to_string().contains("is being deleted")).await;
    assert!(has_pool(&update), "a pool in use stays: {state:?}");
    // The last pool disappears, and the definition with it.
    let release = |pool: &mut serde_json::Value| pool["metadata"]["finalizers"] = serde_json::json!([]);
    let pool = ("tidegate.dev/v1alpha1", "AddressPool", "public");
    world.server.edit(pool.0, pool.1, "", pool.2, release).expect("legal");
    world.server.delete(pool.0, pool.1, "", pool.2);
    // A pool whose deletion was missed would be kept until the definition is back.
    until(&source, "the deletion of the pool", |u| !has_pool(u)).await;
    world.server.faults().end_watches();
    until_state(&source, "the loss", |s| lacks(s, "no longer has a definition")).await;
    define(&world);
    apply_pool(&world, "");
    until(&source, "the new pool", has_pool).await;
    until_state(&source, "nothing to report", |s| s.connected && s.last_error.is_none()).await;
    assert!(source.updates().borrow().report.is_empty());
}
