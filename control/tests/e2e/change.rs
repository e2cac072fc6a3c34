//! Manifests change while connections are open. No connection to a running backend breaks.

use std::fs;

use tidegate_netlab::addresses::{self as plan, Family};
use tidegate_netlab::gateway::manifests_of;
use tidegate_netlab::manifests::{EndpointSpec, EndpointState, Manifest, put};
use tidegate_netlab::modes::{all_paths, manifests};
use tidegate_netlab::{GatewayOptions, server, wait_for};

use crate::world::{APPLIED, World, assert_alive, beside_others};

/// The servers that are endpoints at the start. Each is replaced by the server with its number plus three.
const OLD: [u8; 3] = [1, 2, 3];

#[test]
fn rolling_change_of_every_backend_breaks_no_established_connection() {
    let _machine = beside_others();
    let mut services = manifests(&OLD);
    let world = World::start(6, GatewayOptions::default(), &services);
    let mut open = Vec::new();
    for path in all_paths() {
        for n in OLD {
            open.push((path, world.wait_until_used(path, &server::name(n))));
        }
    }
    for old in OLD {
        let new = old + 3;
        for service in &mut services {
            step(service, old, |endpoint| endpoint.state = EndpointState::Terminating);
            add(service, new);
        }
        world.write(&services);
        for path in all_paths() {
            open.push((path, world.wait_until_used(path, &server::name(new))));
        }
        assert_alive(&format!("while backend {old} terminates"), &mut open);

        for service in &mut services {
            service.endpoints.retain(|e| !Family::BOTH.map(|f| plan::server(f, old)).contains(&e.address));
        }
        world.write(&services);
        for path in all_paths() {
            let fresh: Vec<_> = (0..8).map(|n| world.connect(path, n).unwrap()).collect();
            assert!(
                fresh.iter().all(|connection| connection.answer.backend != server::name(old)),
                "{fresh:?}"
            );
        }
        assert_alive(&format!("after backend {old} was taken out"), &mut open);
    }
}

#[test]
fn bad_manifest_keeps_the_last_good_state_and_is_named() {
    let _machine = beside_others();
    let services = manifests(&[1]);
    let world = World::start(2, GatewayOptions::default(), &services);
    let directory = manifests_of(&world.lab);
    let path = all_paths()[0];
    let mut open = vec![(path, world.wait_until_used(path, &server::name(1)))];

    put(&directory, "broken.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: [\n").unwrap();
    wait_for("the log to name broken.yaml", APPLIED, || {
        world.gateway().log().contains("broken.yaml").then_some(())
    })
    .unwrap();
    assert_alive("with a broken manifest", &mut open);
    for path in all_paths() {
        assert_eq!(world.connect(path, 0).unwrap().answer.backend, server::name(1), "{path:?}");
    }

    fs::remove_file(directory.join("broken.yaml")).unwrap();
    world.write(&manifests(&[1, 2]));
    for path in all_paths() {
        open.push((path, world.wait_until_used(path, &server::name(2))));
    }
    assert_alive("after it was fixed", &mut open);
}

#[test]
fn a_removed_service_is_gone_and_others_are_still_served() {
    let _machine = beside_others();
    let services = manifests(&[1]);
    let world = World::start(1, GatewayOptions::default(), &services);
    let (gone, stays) = (all_paths()[4], all_paths()[6]);
    let mut open = vec![(stays, world.wait_until_served(stays))];
    world.wait_until_served(gone);
    fs::remove_file(manifests_of(&world.lab).join(format!("{}.yaml", gone.service))).unwrap();
    wait_for("the Service to be gone", APPLIED, || world.connect(gone, 0).is_err().then_some(())).unwrap();
    assert_alive("after another Service was removed", &mut open);
    world.connect(stays, 1).unwrap();
}

fn step(service: &mut Manifest, n: u8, change: impl Fn(&mut EndpointSpec)) {
    for family in Family::BOTH {
        let address = plan::server(family, n);
        service.endpoints.iter_mut().filter(|e| e.address == address).for_each(&change);
    }
}

/// Adds server `n` in the families that the Service's endpoints have.
fn add(service: &mut Manifest, n: u8) {
    for family in Family::BOTH {
        if service.endpoints.iter().any(|e| Family::of(e.address) == family) {
            service.endpoints.push(EndpointSpec::ready(plan::server(family, n)));
        }
    }
}
