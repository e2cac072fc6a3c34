//! What the gateway may do in a cluster: exactly what `deploy/kubernetes` gives, and that is enough.

use std::collections::BTreeSet;

use crate::world::{World, service, slice};

#[test]
fn rbac_is_the_least_that_works() {
    let mut world = World::new();
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    world.start("edge-1");
    let gateway = world.gateway("edge-1");
    world.until("a backend", || (gateway.backends("web").len() == 1).then_some(()));
    let refused: BTreeSet<String> = world
        .api
        .requests()
        .into_iter()
        .filter(|request| request.code == 403)
        .map(|request| format!("{} {}", request.method, request.path))
        .collect();
    assert!(refused.is_empty(), "enough: {refused:#?}");
}
