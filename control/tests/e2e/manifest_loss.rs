//! A manifest file is truncated for longer than `lossGrace` and then written again: its Services are removed and
//! return, and their flows survive.

use std::net::SocketAddr;

use tidegate_netlab::GatewayOptions;
use tidegate_netlab::addresses::client;
use tidegate_netlab::client::{EchoConnection, SILENCE};
use tidegate_netlab::gateway::{config_of, manifests_of};
use tidegate_netlab::modes::{ModePath, all_paths, manifests};

use crate::world::{World, assert_alive, beside_others};

#[test]
fn nat_flows_survive_a_manifest_that_is_empty_beyond_the_loss_grace() {
    let _machine = beside_others();
    let services = manifests(&[1, 2, 3]);
    let mut world = World::start(3, GatewayOptions::default(), &services);
    world.take_gateway().stop().expect("the gateway stops");
    let configured = config_of(&world.lab);
    let text = std::fs::read_to_string(&configured).expect("it was written");
    let quick = text.replace("watch: true,", "watch: true, lossGrace: 1s,");
    assert_ne!(quick, text);
    std::fs::write(&configured, quick).expect("written");
    world.launch_gateway();
    world.gateway_mut().wait_until_ready().expect("the gateway is ready");

    let is_nat = |path: &ModePath| path.forwarding.ends_with("nat");
    let paths: Vec<ModePath> = all_paths().into_iter().filter(is_nat).collect();
    let mut open: Vec<_> = paths
        .iter()
        .flat_map(|path| {
            world.wait_until_served(*path);
            (0..12).map(|n| (*path, world.connect(*path, n).expect("it is served"))).collect::<Vec<_>>()
        })
        .collect();
    for entry in std::fs::read_dir(manifests_of(&world.lab)).expect("the manifests") {
        std::fs::write(entry.expect("a file").path(), "").expect("truncated");
    }
    for path in &paths {
        let gone = || world.ports_at(path.vip).ok().filter(Vec::is_empty).map(drop);
        world.wait_until(&format!("{} {} to leave", path.label(), path.family), gone);
    }
    assert_alive("while their file is empty", &mut open);
    for path in &paths {
        let source = SocketAddr::new(client(path.family, 15), 0);
        let begun =
            world.lab.client().enter(|| EchoConnection::connect_within(SILENCE, source, path.tcp_echo()));
        assert!(begun.is_err(), "{} {}: no new flow", path.label(), path.family);
    }
    world.write(&services);
    for path in &paths {
        world.wait_until_served(*path);
    }
    assert_alive("after their file was written again", &mut open);
}
