//! DSR backends are checked at the VIP, on the path of client packets. A backend without the VIP gets no new flow, and
//! the gateway reports the reason.

use std::collections::BTreeSet;

use tidegate_netlab::addresses::{self as plan, Family};
use tidegate_netlab::gateway::config_of;
use tidegate_netlab::modes::{ModePath, all_paths, manifests};
use tidegate_netlab::namespace::output_of;
use tidegate_netlab::{GatewayOptions, server};

use crate::world::{World, beside_others};

const NOT_ON_VIP: &str = "answers on its own address, not on the VIP";

#[test]
fn a_dsr_backend_is_down_while_it_lacks_the_vip() {
    let _machine = beside_others();
    let mut world = World::start(3, GatewayOptions::default(), &manifests(&[1, 2, 3]));
    let paths: Vec<ModePath> =
        all_paths().into_iter().filter(|path| path.forwarding.starts_with("dsr")).collect();
    for path in &paths {
        world.wait_until_active(*path, &[1, 2, 3]);
        checked(&world, *path);
    }
    for path in &paths {
        vip_of(&world, 2, *path, "del");
    }
    for path in &paths {
        world.wait_until_active(*path, &[1, 3]);
        let label = format!("{} {}", path.label(), path.family);
        assert_eq!(failures(&world, *path, 2), BTreeSet::from([NOT_ON_VIP.to_owned()]), "{label}");
        assert_eq!(failures(&world, *path, 1), BTreeSet::new(), "{label}");
        // No client is sent to that backend.
        for n in 1..16 {
            let answer = world.connect(*path, n).expect("one of the others answers").answer;
            assert_ne!(answer.backend, server::name(2), "{label}");
        }
    }
    for path in &paths {
        vip_of(&world, 2, *path, "add");
    }
    for path in &paths {
        world.wait_until_active(*path, &[1, 2, 3]);
        world.wait_until_used(*path, &server::name(2));
    }

    // The plain check is still available as an option.
    vip_of(&world, 2, paths[0], "del");
    world.wait_until_active(paths[0], &[1, 3]);
    let configured = config_of(&world.lab);
    let text = std::fs::read_to_string(&configured).expect("it was written");
    let plain = text.replace("health: {", "health: {dsrDestination: backend, ");
    assert_ne!(plain, text);
    std::fs::write(&configured, plain).expect("written");
    world.gateway_mut().reload();
    world.wait_until_active(paths[0], &[1, 2, 3]);
    vip_of(&world, 2, paths[0], "add");
}

#[test]
fn dsr_probes_recover_after_the_probe_device_was_emptied_or_deleted() {
    let _machine = beside_others();
    let world = World::start(2, GatewayOptions::default(), &manifests(&[1, 2]));
    let paths: Vec<ModePath> =
        all_paths().into_iter().filter(|path| path.forwarding.starts_with("dsr")).collect();
    let ip = |arguments: &str| {
        let mut command = world.lab.gateway().command("ip");
        output_of(command.args(arguments.split(' '))).unwrap_or_default()
    };
    let has_addresses = || {
        let shown = ip("addr show dev tg-probe");
        ["192.0.0.5/30", "fd74:6964:6567:6174::1/126"].iter().all(|net| shown.contains(net))
    };
    assert!(has_addresses());
    for change in ["addr flush dev tg-probe", "link del tg-probe"] {
        ip(change);
        world.wait_until("the addresses of the probe device", || has_addresses().then_some(()));
        // Only a check at the VIP notices that the VIP is missing.
        for (what, active) in [("del", &[1][..]), ("add", &[1, 2][..])] {
            paths.iter().for_each(|path| vip_of(&world, 2, *path, what));
            paths.iter().for_each(|path| world.wait_until_active(*path, active));
        }
    }
}

/// Waits until every backend of a path has been checked and passes.
fn checked(world: &World, path: ModePath) {
    let what = format!("checks of {} {} that pass", path.label(), path.family);
    world.wait_until(&what, || {
        let ports = world.ports_at(path.vip).ok()?;
        let backends = ports.iter().flat_map(|port| port["backends"].as_array().into_iter().flatten());
        let good = world.gateway().metric("tidegate_health_checks_total", &["result=\"success\""]).ok()?;
        let open = ports.iter().any(|port| port["failOpen"] == true);
        let passing =
            backends.filter(|one| one["health"]["state"] != "unchecked").all(|one| one["state"] == "active");
        (passing && !open && good >= 60.0).then_some(())
    });
}

/// The failures of a server on the checked ports of a path.
fn failures(world: &World, path: ModePath, n: u8) -> BTreeSet<String> {
    let address = plan::server(path.backends, n).to_string();
    let ports = world.ports_at(path.vip).expect("the gateway answers");
    let backends = ports.iter().filter(|port| port["protocol"] == "TCP");
    let backends = backends.flat_map(|port| port["backends"].as_array().into_iter().flatten());
    let failures = backends.filter(|backend| backend["address"] == address.as_str());
    failures.filter_map(|backend| backend["health"]["failure"].as_str().map(str::to_owned)).collect()
}

/// Removes the VIP of a path from a server, or adds it again.
fn vip_of(world: &World, n: u8, path: ModePath, what: &str) {
    let (length, nodad) = match path.family {
        Family::V4 => (32, ""),
        Family::V6 => (128, if what == "add" { " nodad" } else { "" }),
    };
    let lines = format!("addr {what} {}/{length} dev lo{nodad}\n", path.vip);
    world.lab.server(n).namespace().ip_batch(&lines).expect("the address changes");
}
