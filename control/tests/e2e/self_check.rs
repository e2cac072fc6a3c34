//! The running gateway compares its incremental results with results computed from scratch.

use tidegate_netlab::modes::{all_paths, manifests};
use tidegate_netlab::{Gateway, GatewayOptions, server};

use crate::world::{World, beside_others};

const LAYERS: [&str; 3] = ["reconcile", "allocation", "snapshot"];

fn comparisons(world: &World, layer: &str) -> f64 {
    let labels = format!("layer=\"{layer}\"");
    world.gateway().metric("tidegate_incremental_comparisons_total", &[&labels]).expect("/metrics answers")
}

/// Waits until every layer has been compared this many more times.
fn wait_for_comparisons(world: &World, count: f64) {
    for layer in LAYERS {
        let before = comparisons(world, layer);
        let what = format!("{count} comparisons of {layer}");
        world.wait_until(&what, || (comparisons(world, layer) >= before + count).then_some(()));
    }
}

/// Whether the gateway has a thread that compares.
fn compares(world: &World) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", world.gateway().pid())).expect("the process runs");
    let name =
        |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.flatten().any(|task| name(task).trim() == "tg-compare")
}

#[test]
fn every_layer_is_self_checked_without_a_difference_until_disabled() {
    let _machine = beside_others();
    let mut world = World::start(3, GatewayOptions::default(), &manifests(&[1, 2, 3]));
    // Backends are added and removed during the comparisons.
    for servers in [&[1][..], &[1, 2], &[2, 3], &[1, 2, 3]] {
        world.write(&manifests(servers));
        for path in all_paths() {
            world.wait_until_used(path, &server::name(servers[0]));
        }
        wait_for_comparisons(&world, 1.0);
    }
    let page = world.gateway().metrics().expect("/metrics answers");
    for layer in LAYERS {
        let series = format!("tidegate_incremental_differences_total{{layer=\"{layer}\"}} 0");
        assert!(page.lines().any(|line| line == series), "{series}\n{page}");
    }

    let reload = |world: &mut World, self_check: bool| {
        let count = |world: &World| world.gateway().log().matches("configuration reloaded").count();
        let before = count(world);
        let options = GatewayOptions { self_check, ..GatewayOptions::default() };
        Gateway::configure(&world.lab, &options).expect("configuration written");
        world.gateway_mut().reload();
        world.wait_until("the reload", || (count(world) > before).then_some(()));
    };
    reload(&mut world, false);
    world.wait_until("the end of the last comparison", || (!compares(&world)).then_some(()));
    let before = LAYERS.map(|layer| comparisons(&world, layer));
    // Each of these changes would start a comparison.
    for one in [3, 1, 2, 3] {
        world.write(&manifests(&[one]));
        for path in all_paths() {
            world.wait_until_used(path, &server::name(one));
        }
        assert!(!compares(&world));
    }
    assert_eq!(LAYERS.map(|layer| comparisons(&world, layer)), before, "it is switched off");
    reload(&mut world, true);
    wait_for_comparisons(&world, 2.0);
    assert_eq!(world.gateway().metric("tidegate_incremental_differences_total", &[]).unwrap(), 0.0);
    assert!(!world.gateway().log().contains("an incremental result differs"));
}
