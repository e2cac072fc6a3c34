//! Services and endpoints are created, changed and deleted.

use crate::world::{World, service, slice};

fn shop() -> World {
    let mut world = World::new();
    world.apply(&(service("web") + &slice("web", &["10.244.0.1", "10.244.0.2"])));
    world.start("edge-1");
    let gateway = world.gateway("edge-1");
    world.until("two backends", || (gateway.backends("web").len() == 2).then_some(()));
    world
}

#[test]
fn endpoints_shrink_to_zero() {
    let world = shop();
    let gateway = world.gateway("edge-1");
    let vips = gateway.vips("web");
    assert_eq!(vips.len(), 1);
    world.apply(&slice("web", &["10.244.0.2"]));
    world.until("one backend that takes flows", || {
        (gateway.backends("web").iter().filter(|row| row.ends_with("active")).count() == 1).then_some(())
    });
    world.apply(&slice("web", &[]));
    world.until("no backend that takes flows", || {
        gateway.backends("web").iter().all(|row| !row.ends_with("active")).then_some(())
    });
    // The VIP remains, and the gateway reports that there is no backend.
    assert_eq!(gateway.vips("web"), vips);
    world.apply(&slice("web", &["10.244.0.3"]));
    world.until("a new backend", || {
        gateway.backends("web").contains(&"10.244.0.3:8080 active".to_string()).then_some(())
    });
}

#[test]
fn class_removed() {
    let world = shop();
    let gateway = world.gateway("edge-1");
    assert_eq!(gateway.vips("web").len(), 1);
    // The class is immutable, so the Service changes its type, and then returns with another owner's class.
    world
        .api
        .edit("v1", "Service", "shop", "web", |service| {
            service["spec"]["type"] = "ClusterIP".into();
        })
        .expect("legal");
    world.until("the VIP to go", || gateway.vips("web").is_empty().then_some(()));
    world
        .api
        .edit("v1", "Service", "shop", "web", |service| {
            service["spec"]["type"] = "LoadBalancer".into();
            service["spec"]["loadBalancerClass"] = "example.org/other".into();
        })
        .expect("legal");
    world.apply(&(service("api") + &slice("api", &["10.244.0.9"])));
    world.until("the other Service", || (gateway.vips("api").len() == 1).then_some(()));
    assert!(gateway.vips("web").is_empty(), "a Service of another class is left alone");
}
