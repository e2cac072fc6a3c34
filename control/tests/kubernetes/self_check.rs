//! A leader compares its plan with one computed from scratch.

use crate::world::{Setting, World, service, slice, text};

#[test]
fn a_leader_compares_its_plans_and_finds_no_difference() {
    let mut world = World::new();
    world.apply(&(service("web") + &slice("web", &["10.244.0.1", "10.244.0.2"])));
    let document = "selfCheck: {interval: 1s, changes: 1}".to_owned();
    world.start_with("edge-1", &Setting { document, ..Setting::default() });
    let gateway = world.gateway("edge-1");
    let compared = |count: f64| {
        let labels = "tidegate_incremental_comparisons_total{layer=\"plan\"}";
        gateway.series(labels).is_some_and(|made| made >= count).then_some(())
    };
    world.until("a comparison of a plan", || compared(1.0));
    // Stable Services, and one that changes.
    world.apply(&(service("api") + &slice("api", &["10.244.0.9"])));
    world.until("an address in the status", || {
        let service = world.api.get("v1", "Service", "shop", "api")?;
        (!text(&service["status"]["loadBalancer"]["ingress"][0]["ip"]).is_empty()).then_some(())
    });
    let made = gateway.series("tidegate_incremental_comparisons_total{layer=\"plan\"}").unwrap_or_default();
    world.apply(&slice("web", &["10.244.0.2"]));
    world.until("two more comparisons", || compared(made + 2.0));
    for layer in ["reconcile", "allocation", "snapshot", "plan"] {
        let series = format!("tidegate_incremental_differences_total{{layer=\"{layer}\"}}");
        assert_eq!(gateway.series(&series), Some(0.0), "{series}");
    }
}
