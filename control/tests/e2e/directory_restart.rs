//! The assignment of addresses to Services survives every kind of exit, because it is saved before an address is used.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tidegate_netlab::gateway::manifests_of;
use tidegate_netlab::manifests::put;
use tidegate_netlab::{GatewayOptions, wait_for};

use crate::world::{World, beside_others, lab};

/// A failed save is retried every ten seconds.
const SAVED: Duration = Duration::from_secs(40);

fn service(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{type: LoadBalancer, \
         allocateLoadBalancerNodePorts: false, ports: [{{name: http, port: 80}}]}}\n"
    )
}

/// The addresses of each Service, from `tidegate services`.
fn vips(world: &World) -> BTreeMap<String, Vec<String>> {
    let answer = world.gateway().query(&["services", "-A", "-o", "json"]).expect("the gateway answers");
    let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
    let address = |vip: &serde_json::Value| vip["address"].as_str().unwrap_or_default().to_owned();
    let of = |service: &serde_json::Value| {
        let vips = service["vips"].as_array().into_iter().flatten().map(address).collect();
        (service["name"].as_str().unwrap_or_default().to_owned(), vips)
    };
    answer["items"].as_array().into_iter().flatten().map(of).collect()
}

/// Waits until this many Services have an address.
fn wait_for_vips(world: &World, count: usize) -> BTreeMap<String, Vec<String>> {
    world.wait_until("addresses", || {
        let vips = vips(world);
        (vips.values().filter(|vips| !vips.is_empty()).count() == count).then_some(vips)
    })
}

/// Kills the gateway and starts it again.
fn kill_and_start(world: &mut World) {
    world.take_gateway().kill();
    world.launch_gateway();
    world.gateway_mut().wait_until_ready().expect("ready");
}

fn state_file(world: &World) -> PathBuf {
    let files = fs::read_dir(world.lab.directory().join("state")).expect("a state directory");
    let mut files = files.map(|entry| entry.expect("readable").path());
    files.find(|path| path.extension().is_some_and(|extension| extension == "addresses")).expect("a file")
}

#[test]
fn no_restart_swaps_vips_whatever_the_order_of_files_and_the_exit() {
    let _machine = beside_others();
    let mut world = World::over(lab(1), GatewayOptions::default(), &[], &service("s0"));
    let directory = manifests_of(&world.lab);
    // Add the Services one by one, in an order that no restart repeats. Kill the gateway as soon as each one is served.
    for n in (1..9).rev() {
        put(&directory, &format!("{n}.yaml"), &service(&format!("s{n}"))).expect("written");
        let before = wait_for_vips(&world, 10 - n);
        if n % 3 == 0 {
            kill_and_start(&mut world);
            assert_eq!(wait_for_vips(&world, 10 - n), before, "killed after s{n}");
        }
    }
    let before = wait_for_vips(&world, 9);
    // After this, the files are read in another order.
    for n in 1..9 {
        let renamed = directory.join(format!("{}.yaml", 100 - n));
        fs::rename(directory.join(format!("{n}.yaml")), renamed).expect("renamed");
    }
    assert!(world.take_gateway().stop().expect("the gateway ends").success());
    world.launch_gateway();
    world.gateway_mut().wait_until_ready().expect("ready");
    assert_eq!(wait_for_vips(&world, 9), before);

    // A part of the file is lost. The other Services keep their addresses, and the gateway still starts.
    let file = state_file(&world);
    world.take_gateway().kill();
    let text = fs::read_to_string(&file).expect("text");
    assert!(text.lines().count() == 10, "{text}");
    fs::write(&file, &text[..text.len() - 20]).expect("ours");
    world.launch_gateway();
    world.gateway_mut().wait_until_ready().expect("ready");
    let after = wait_for_vips(&world, 9);
    let differ = before.iter().filter(|(name, vips)| after[*name] != **vips).count();
    assert!(differ <= 1, "{before:?} {after:?}");
    assert!(world.gateway().log().contains("part of the address file is damaged"));

    // The disk refuses writes for a while. The gateway reports it and retries.
    let beside = file.with_extension("addresses.new");
    fs::create_dir(&beside).expect("ours");
    put(&directory, "9.yaml", &service("s9")).expect("written");
    let degraded = || {
        let answer = world.gateway().query(&["status", "-o", "json"]).expect("the gateway answers");
        let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
        answer["degraded"].to_string()
    };
    world.wait_until("the failure to be reported", || {
        degraded().contains("not been saved since").then_some(())
    });
    fs::remove_dir(&beside).expect("ours");
    let saved = wait_for("a save", SAVED, || (degraded() == "null").then_some(()));
    saved.unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn a_service_with_a_manifest_error_keeps_its_address_over_a_restart() {
    let _machine = beside_others();
    let mut world = World::over(lab(1), GatewayOptions::default(), &[], &service("web"));
    let directory = manifests_of(&world.lab);
    put(&directory, "api.yaml", &service("api")).expect("written");
    let before = wait_for_vips(&world, 2);
    put(&directory, "api.yaml", &service("api").replace("port: 80", "port: 80x")).expect("written");
    let request =
        format!("{{name: other, annotations: {{tidegate.dev/load-balancer-ips: \"{}\"}}}}", before["api"][0]);
    put(&directory, "other.yaml", &service("other").replace("{name: other}", &request)).expect("written");
    kill_and_start(&mut world);
    world.wait_until("the Services", || (vips(&world).len() == 3).then_some(()));
    assert_eq!(wait_for_vips(&world, 1)["web"], before["web"]);
    put(&directory, "api.yaml", &service("api")).expect("written");
    let after = wait_for_vips(&world, 2);
    assert_eq!((&after["api"], &after["web"]), (&before["api"], &before["web"]));
}

fn gateway_class(controller: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {{name: tidegate}}\n\
         spec: {{controllerName: {controller}}}\n"
    )
}

fn gateway(name: &str, protocol: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: {name}}}\nspec:\n  \
         gatewayClassName: tidegate\n  allowedListeners: {{namespaces: {{from: Same}}}}\n  \
         listeners: [{{name: own, port: 80, protocol: {protocol}}}]\n"
    )
}

/// A ListenerSet with the only listener of Gateway `sets` that can be served.
fn listener_set(port: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: ListenerSet\nmetadata: {{name: more}}\nspec:\n  \
         parentRef: {{name: sets}}\n  listeners: [{{name: tcp, port: {port}, protocol: TCP}}]\n"
    )
}

#[test]
fn gateways_keep_addresses_over_a_restart_with_a_broken_class_or_set() {
    const CONTROLLER: &str = "tidegate.dev/gateway";
    let _machine = beside_others();
    let mut world = World::over(lab(1), GatewayOptions::default(), &[], &service("web"));
    let directory = manifests_of(&world.lab);
    let write = |file: &str, text: &str| put(&directory, file, text).expect("written");
    write("class.yaml", &gateway_class(CONTROLLER));
    write("own.yaml", &gateway("own", "TCP"));
    write("sets.yaml", &gateway("sets", "HTTP"));
    write("set.yaml", &listener_set("81"));
    let before = wait_for_vips(&world, 3);
    // `class: [` leaves no object in the file, and a port that is no number refuses the object.
    let faults = [("class.yaml", gateway_class("[")), ("set.yaml", listener_set("81x"))];
    for (file, broken) in faults {
        write(file, &broken);
        for name in ["own", "sets"] {
            let address = &before[&format!("gateway/{name}")][0];
            let request = format!(
                "{{name: other-{name}, annotations: {{tidegate.dev/load-balancer-ips: \"{address}\"}}}}"
            );
            write(&format!("other-{name}.yaml"), &service("other").replace("{name: other}", &request));
        }
        kill_and_start(&mut world);
        world.wait_until("the requests of others", || vips(&world).contains_key("other-sets").then_some(()));
        write("class.yaml", &gateway_class(CONTROLLER));
        write("set.yaml", &listener_set("81"));
        let after = wait_for_vips(&world, 3);
        for name in ["web", "gateway/own", "gateway/sets"] {
            assert_eq!(after[name], before[name], "{name} after a fault in {file}");
        }
        fs::remove_file(directory.join("other-own.yaml")).expect("written above");
        fs::remove_file(directory.join("other-sets.yaml")).expect("written above");
    }
}
