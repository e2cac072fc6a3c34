//! `sessionAffinity: ClientIP` in traffic: a client has one backend for all its ports, and keeps it while other
//! backends are added and removed.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_netlab::addresses::CLIENT_ADDRESSES;
use tidegate_netlab::manifests::Manifest;
use tidegate_netlab::modes::{ModePath, all_paths, manifests};
use tidegate_netlab::{GatewayOptions, server};

use crate::world::{World, beside_others};

/// The clients that connect before the change. The others connect after it.
const EARLY: u8 = CLIENT_ADDRESSES / 2;

#[test]
fn a_client_keeps_its_backend_until_that_backend_is_removed() {
    let _machine = beside_others();
    let world = World::start(6, GatewayOptions::default(), &affine(&[1, 2, 3]));
    for path in all_paths() {
        world.wait_until_active(path, &[1, 2, 3]);
    }
    let mut home = BTreeMap::new();
    for path in all_paths() {
        let name = format!("{} {}", path.label(), path.family);
        for n in 0..EARLY {
            let backends = backends_of(&world, path, n);
            assert_eq!(backends.len(), 1, "{name}: client {n} was sent to {backends:?}");
            home.insert((path.label(), path.family, n), backends);
        }
        let used: BTreeSet<_> =
            (0..EARLY).flat_map(|n| home[&(path.label(), path.family, n)].clone()).collect();
        assert!(used.len() > 1, "{name}: eight clients share {used:?}");
    }

    world.write(&affine(&[1, 2, 3, 4, 5, 6]));
    for path in all_paths() {
        let name = format!("{} {}", path.label(), path.family);
        world.wait_until_active(path, &[1, 2, 3, 4, 5, 6]);
        for n in 0..EARLY {
            let now = backends_of(&world, path, n);
            assert_eq!(now, home[&(path.label(), path.family, n)], "{name}: client {n}, after three came");
        }
        for n in EARLY..CLIENT_ADDRESSES {
            let backends = backends_of(&world, path, n);
            assert_eq!(backends.len(), 1, "{name}: late client {n} was sent to {backends:?}");
        }
    }

    world.write(&affine(&[2, 3, 4, 5, 6]));
    for path in all_paths() {
        let name = format!("{} {}", path.label(), path.family);
        world.wait_until_active(path, &[2, 3, 4, 5, 6]);
        for n in 0..EARLY {
            let (before, now) = (&home[&(path.label(), path.family, n)], backends_of(&world, path, n));
            if before.contains(&server::name(1)) {
                assert_eq!(now.len(), 1, "{name}: client {n}, whose backend left, was sent to {now:?}");
                assert!(!now.contains(&server::name(1)), "{name}: client {n}");
            } else {
                assert_eq!(now, *before, "{name}: client {n}, after another backend left");
            }
        }
    }
}

fn affine(servers: &[u8]) -> Vec<Manifest> {
    let mut services = manifests(servers);
    services.iter_mut().for_each(|service| service.client_ip_affinity = true);
    services
}

/// The backends of three connections of a client.
fn backends_of(world: &World, path: ModePath, n: u8) -> BTreeSet<String> {
    (0..3).map(|_| world.connect(path, n).expect("served").answer.backend).collect()
}
