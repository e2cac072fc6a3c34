//! AddressPools that change or are deleted while Services use their addresses.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::world::{SEEN, Setting, World, service, slice, text};

fn pool(addresses: &str) -> String {
    format!(
        "{{apiVersion: tidegate.dev/v1alpha1, kind: AddressPool, metadata: {{name: public}}, \
         spec: {{addresses: [{addresses}]}}}}"
    )
}

fn stored(world: &World) -> Option<Value> {
    world.api.get("tidegate.dev/v1alpha1", "AddressPool", "", "public")
}

/// `REASON MESSAGE` of the condition `InUse` of the pool.
fn in_use(world: &World) -> Option<String> {
    let pool = stored(world)?;
    let conditions = pool["status"]["conditions"].as_array()?.clone();
    let found = conditions.iter().find(|condition| condition["type"] == "InUse")?;
    Some(format!("{} {}", text(&found["reason"]), text(&found["message"])))
}

fn is_finalized(world: &World) -> bool {
    let pool = stored(world).unwrap_or_default();
    pool["metadata"]["finalizers"]
        .as_array()
        .is_some_and(|all| all.iter().any(|f| f == "tidegate.dev/cleanup"))
}

fn written(world: &World) -> Option<String> {
    let service = world.api.get("v1", "Service", "shop", "web")?;
    Some(text(&service["status"]["loadBalancer"]["ingress"][0]["ip"])).filter(|ip| !ip.is_empty())
}

#[test]
fn a_deleted_pool_stays_until_no_service_uses_it_also_over_restarts() {
    let mut world = World::new();
    world.apply(&pool("203.0.113.0/28"));
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    world.start_with("edge-1", &Setting { document: "pools: []".into(), ..Setting::default() });
    let had = world.until("the address in the status", || written(&world));
    world.until("the finalizer", || is_finalized(&world).then_some(()));

    // The pool now has another range: the address stays, and the pool reports it.
    world.apply(&pool("203.0.113.128/28"));
    world.until("the pool to report it", || in_use(&world).filter(|text| text.starts_with("HeldOutside ")));
    assert_eq!(world.gateway("edge-1").vips("web"), std::slice::from_ref(&had));

    world.api.delete("tidegate.dev/v1alpha1", "AddressPool", "", "public");
    let message =
        world.until("the reason why it waits", || in_use(&world).filter(|s| s.starts_with("DeletionWaits ")));
    assert!(message.contains("shop/web"), "{message}");
    world.end("edge-1", Signal::KILL, SEEN).expect("it ends");
    world.start_again("edge-1");
    let again = || Some(world.gateway("edge-1").vips("web")).filter(|vips| !vips.is_empty());
    assert_eq!(world.until("the address", again), vec![had.clone()]);
    assert_eq!(written(&world), Some(had));
    assert!(is_finalized(&world));

    world.api.delete("v1", "Service", "shop", "web");
    // After a kill, its Lease must expire first, and its name as well.
    world.within(Duration::from_secs(60), "the Service to go", || {
        world.api.get("v1", "Service", "shop", "web").is_none().then_some(())
    });
    world.until("the pool to go", || stored(&world).is_none().then_some(()));
}
