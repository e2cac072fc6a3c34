//! The file of a deny list becomes invalid while the gateway is down. The next start uses the last valid copy, and
//! reports that it does.

use std::fs;

use tidegate_netlab::GatewayOptions;
use tidegate_netlab::addresses::{Family, client};
use tidegate_netlab::modes::{all_paths, manifests};

use crate::world::{World, beside_others, lab};

/// Two client numbers: one on the deny list, one not.
const DENIED: u8 = 1;
const OTHER: u8 = 2;

fn refused(world: &World) -> bool {
    world.gateway().metric("tidegate_configuration_refused", &[]).expect("the gateway answers") == 1.0
}

#[test]
fn a_broken_deny_list_is_reported_and_its_last_good_copy_is_used() {
    let _machine = beside_others();
    let lab = lab(1);
    let list = lab.directory().join("deny.txt");
    let good = format!("# of the test\n{}\n{}\n", client(Family::V4, DENIED), client(Family::V6, DENIED));
    fs::write(&list, &good).expect("the directory of the lab");
    let options = GatewayOptions { deny_files: vec![list.clone()], ..GatewayOptions::default() };
    let mut world = World::over(lab, options, &manifests(&[1]), "");
    let path = all_paths()[0];
    world.wait_until("a client that is not denied", || world.connect(path, OTHER).ok());
    assert!(world.connect(path, DENIED).is_err() && !refused(&world));

    // A faulty writer leaves a truncated line behind, and later no file at all.
    for broken in [Some(format!("{good}198.51.100.0/\n")), None] {
        world.take_gateway().kill();
        match &broken {
            Some(text) => fs::write(&list, text).expect("ours"),
            None => fs::remove_file(&list).expect("ours"),
        }
        world.launch_gateway();
        world.gateway_mut().wait_until_ready().expect("ready");
        world.wait_until("a client that is not denied", || world.connect(path, OTHER).ok());
        assert!(world.connect(path, DENIED).is_err(), "with {broken:?}");
        assert!(refused(&world));
        let status = world.gateway().query(&["status"]).expect("the gateway answers");
        assert!(status.contains("ConfigurationRefused") && status.contains("deny.txt"), "{status}");
    }

    fs::write(&list, "").expect("ours");
    world.gateway_mut().reload();
    world.wait_until("the reload", || (!refused(&world)).then_some(()));
    world.wait_until("the client that was denied", || world.connect(path, DENIED).ok());
}
