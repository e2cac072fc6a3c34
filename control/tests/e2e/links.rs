//! Lost interfaces are detected and reported. When they return, they are used again without a restart.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_dataplane::links::device_state::DIRECTORY;
use tidegate_netlab::addresses::{Family, GATEWAY_FOR_SERVERS, GATEWAY_MAC, server};
use tidegate_netlab::gateway::config_of;
use tidegate_netlab::modes::{all_paths, manifests};
use tidegate_netlab::namespace::output_of;
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::{GatewayOptions, Lab, Namespace};

use crate::world::{World, alone, assert_alive};

fn world() -> World {
    World::start(2, GatewayOptions::default(), &manifests(&[1, 2]))
}

fn run(command: &mut Command) -> String {
    output_of(command).unwrap_or_else(|error| panic!("{error:#}"))
}

/// Runs `ip` in the namespace of the switch.
fn on_switch(lab: &Lab, arguments: &str) {
    let namespace = format!("{}-switch", lab.id());
    run(Command::new("ip").args(["-n", &namespace]).args(arguments.split(' ')));
}

/// Runs `ip` in the namespace of the gateway.
fn on_gateway(lab: &Lab, arguments: &str) -> String {
    run(lab.gateway().command("ip").args(arguments.split(' ')))
}

/// Waits until the gateway is not ready and reports this reason.
fn wait_until_degraded(world: &World, why: &str) {
    world.wait_until(&format!("a gateway that reports {why:?}"), || {
        (world.gateway().probe("/readyz") == Some(503) && status(world).contains(why)).then_some(())
    });
    assert!(status(world).contains("DEGRADED"), "{}", status(world));
    for path in ["/healthz", "/livez"] {
        assert_eq!(world.gateway().probe(path), Some(200), "{path} is about the process");
    }
}

fn wait_until_ready(world: &World) {
    world.wait_until("a gateway that is ready again", || {
        (world.gateway().probe("/readyz") == Some(200)).then_some(())
    });
    let status = status(world);
    let mut degraded = status.lines().filter(|line| line.starts_with("DEGRADED"));
    // Changes of a tap remain in the status for a while, because programs that use it must be restarted.
    assert!(degraded.all(|line| line.contains("was deleted by another program")), "{status}");
}

fn status(world: &World) -> String {
    world.gateway().query(&["status", "-o", "wide"]).unwrap_or_else(|error| panic!("{error:#}"))
}

fn metric(world: &World, name: &str) -> f64 {
    world.gateway().metric(name, &["interface=\"uplink\""]).unwrap_or_else(|error| panic!("{error:#}"))
}

/// Waits until health checks succeed again.
fn wait_until_checked(world: &World) {
    let checked = || world.gateway().metric("tidegate_health_checks_total", &["result=\"success\""]).ok();
    let before = checked().expect("metrics are there");
    world.wait_until("health checks that succeed", || checked().filter(|now| *now > before + 20.0));
    let bad = || world.gateway().metric("tidegate_health_fail_open", &[]).ok();
    world.wait_until("no port that fails open", || bad().filter(|count| *count == 0.0));
}

#[test]
fn lost_carrier_is_reported_and_connections_survive_it() {
    let _machine = alone();
    let world = world();
    let mut open: Vec<_> =
        all_paths().into_iter().map(|path| (path, world.wait_until_served(path))).collect();
    on_switch(&world.lab, "link set p-gateway down");
    wait_until_degraded(&world, "interface \"uplink\" has no carrier");
    assert!(status(&world).contains("no-carrier"), "{}", status(&world));
    assert_eq!(metric(&world, "tidegate_interface_up"), 0.0);
    on_switch(&world.lab, "link set p-gateway up");
    wait_until_ready(&world);
    assert_alive("after the carrier came back", &mut open);
    assert_eq!(metric(&world, "tidegate_interface_up"), 1.0);
    assert_eq!(metric(&world, "tidegate_interface_transitions_total"), 2.0);
    let log = world.gateway().log();
    assert!(log.contains("link lost") && log.contains("link up"), "{log}");

    on_gateway(&world.lab, "link set eth0 down");
    wait_until_degraded(&world, "interface \"uplink\" is down");
    on_gateway(&world.lab, "link set eth0 up");
    wait_until_ready(&world);
    assert_alive("after the interface was set down and up", &mut open);
    wait_until_checked(&world);
}

#[test]
fn an_interface_that_is_deleted_and_recreated_is_used_again() {
    let _machine = alone();
    let mut world = world();
    let mut open: Vec<_> =
        all_paths().into_iter().map(|path| (path, world.wait_until_served(path))).collect();
    for round in 1..=2 {
        on_switch(&world.lab, "link del p-gateway");
        wait_until_degraded(&world, "interface \"uplink\" is gone");
        plug_in(&world.lab);
        wait_until_ready(&world);
        assert_alive(&format!("after the interface was recreated, round {round}"), &mut open);
        for path in all_paths() {
            world.wait_until_served(path);
        }
        wait_until_checked(&world);
    }
    let silent = [
        ("ipv4", "rp_filter", "1", "0"),
        ("ipv4", "arp_ignore", "8", "0"),
        ("ipv6", "disable_ipv6", "1", "0"),
    ];
    for (family, name, value, _) in silent {
        assert_eq!(
            sysctl(&world.lab, family, name),
            value,
            "the kernel is quiet on the new interface: {name}"
        );
    }
    // Tools for sysctls write these at any time.
    for all in ["net.ipv6.conf.all.disable_ipv6=0", "net.ipv4.conf.eth0.arp_ignore=0"] {
        run(world.lab.gateway().command("sysctl").args(["-w", all]));
    }
    world.wait_until("the kernel to be quiet again", || {
        let mut all = silent.iter();
        all.all(|&(family, name, value, _)| sysctl(&world.lab, family, name) == value).then_some(())
    });
    assert!(world.take_gateway().stop().expect("it ends").success());
    for (family, name, _, before) in silent {
        assert_eq!(sysctl(&world.lab, family, name), before, "as it was: {name}");
    }
}

/// Creates the gateway's interface as the lab does, but without the sysctls of the first one.
fn plug_in(lab: &Lab) {
    let namespace = lab.gateway().name();
    on_switch(
        lab,
        &format!("link add p-gateway type veth peer name eth0 address {GATEWAY_MAC} netns {namespace}"),
    );
    lab.gateway().turn_off_offloads("eth0").expect("ethtool");
    let switch = format!("{}-switch", lab.id());
    let off = ["-K", "p-gateway", "tx", "off", "tso", "off", "gso", "off", "gro", "off"];
    run(Command::new("ip").args(["netns", "exec", &switch, "ethtool"]).args(off));
    on_switch(lab, "link set p-gateway master br0 up");
    on_gateway(lab, "link set eth0 arp off up");
}

#[test]
fn a_renamed_interface_stays_in_use_and_its_sysctls_are_restored() {
    let _machine = alone();
    let mut world = world();
    let mut open: Vec<_> =
        all_paths().into_iter().map(|path| (path, world.wait_until_served(path))).collect();
    let arp_ignore = |lab: &Lab, device: &str| sysctl_of(lab, device, "ipv4", "arp_ignore");
    let rename = |lab: &Lab, from: &str, to: &str| {
        // Older kernels refuse to rename an interface that is up.
        for what in [format!("{from} down"), format!("{from} name {to}"), format!("{to} up")] {
            on_gateway(lab, &format!("link set {what}"));
        }
    };
    rename(&world.lab, "eth0", "lan0");
    let is_reported = || status(&world).contains("the device was renamed to lan0");
    world.wait_until("a status that reports it", || is_reported().then_some(()));
    world.wait_until("readiness", || (world.gateway().probe("/readyz") == Some(200)).then_some(()));
    assert_alive("after the interface was renamed", &mut open);
    run(world.lab.gateway().command("sysctl").args(["-w", "net.ipv4.conf.lan0.arp_ignore=0"]));
    world.wait_until("a quiet kernel", || (arp_ignore(&world.lab, "lan0") == "8").then_some(()));

    rename(&world.lab, "lan0", "eth0");
    world.wait_until("a status without it", || (!is_reported()).then_some(()));
    wait_until_ready(&world);
    assert_alive("after the interface got its name back", &mut open);

    rename(&world.lab, "eth0", "lan0");
    world.wait_until("a status that reports it again", || is_reported().then_some(()));
    // Another interface with the configured name is used instead.
    on_gateway(&world.lab, "link add eth0 type veth peer name eth0-peer");
    world.wait_until("the original value", || (arp_ignore(&world.lab, "lan0") == "0").then_some(()));
    world.wait_until("a quiet kernel", || (arp_ignore(&world.lab, "eth0") == "8").then_some(()));
    on_gateway(&world.lab, "link del eth0");
    rename(&world.lab, "lan0", "eth0");
    wait_until_ready(&world);

    rename(&world.lab, "eth0", "lan0");
    world.wait_until("a status that reports it once more", || is_reported().then_some(()));
    assert!(world.take_gateway().stop().expect("it ends").success());
    assert_eq!(arp_ignore(&world.lab, "lan0"), "0", "as it was");
}

#[test]
fn the_kernel_is_silenced_on_an_interface_with_an_alternative_name() {
    let _machine = alone();
    let mut world = world();
    assert!(world.take_gateway().stop().expect("it ends").success());
    let path = config_of(&world.lab);
    let text = fs::read_to_string(&path).expect("the configuration");
    let other = text.replace("iface=eth0", "iface=uplink0");
    assert_ne!(other, text);
    fs::write(&path, other).expect("written");
    on_gateway(&world.lab, "link property add dev eth0 altname uplink0");
    world.launch_gateway();
    world.gateway_mut().wait_until_ready().expect("ready");
    assert_eq!(sysctl(&world.lab, "ipv4", "arp_ignore"), "8");
    wait_until_ready(&world);
    assert!(world.take_gateway().stop().expect("it ends").success());
    assert_eq!(sysctl(&world.lab, "ipv4", "arp_ignore"), "0", "as it was");
}

fn sysctl(lab: &Lab, family: &str, name: &str) -> String {
    sysctl_of(lab, "eth0", family, name)
}

fn sysctl_of(lab: &Lab, device: &str, family: &str, name: &str) -> String {
    let path = format!("/proc/sys/net/{family}/conf/{device}/{name}");
    run(lab.gateway().command("cat").arg(path)).trim().to_owned()
}

#[test]
fn a_deleted_tap_is_recreated_and_a_tap_that_is_down_is_reported() {
    let _machine = alone();
    let world = world();
    for _ in 0..2 {
        let before = metric(&world, "tidegate_tap_transitions_total");
        on_gateway(&world.lab, "link del tg-uplink");
        world.wait_until("a new tap", || {
            (metric(&world, "tidegate_tap_transitions_total") >= before + 2.0).then_some(())
        });
        wait_until_ready(&world);
        wait_until_checked(&world);
    }
    assert!(world.gateway().log().contains("tap lost"));
    assert!(status(&world).contains("tap tg-uplink of interface \"uplink\" was deleted by another program"));

    on_gateway(&world.lab, "link set tg-uplink down");
    wait_until_degraded(&world, "tap tg-uplink of interface \"uplink\" is down");
    assert_eq!(metric(&world, "tidegate_tap_up"), 0.0);
    on_gateway(&world.lab, "link set tg-uplink up");
    wait_until_ready(&world);
    wait_until_checked(&world);
    let addresses = on_gateway(&world.lab, "address show dev tg-uplink");
    for address in GATEWAY_FOR_SERVERS {
        assert!(addresses.contains(address), "{address} is back: {addresses}");
    }

    for what in ["tg-uplink down", "tg-uplink name other0"] {
        on_gateway(&world.lab, &format!("link set {what}"));
    }
    world.wait_until("a tap with its name", || {
        on_gateway(&world.lab, "-o link").contains("tg-uplink").then_some(())
    });
    on_gateway(&world.lab, "link set tg-uplink up");
    wait_until_ready(&world);
    wait_until_checked(&world);
}

#[test]
fn a_second_gateway_on_a_device_is_refused_even_with_another_tap_name() {
    let _machine = alone();
    let mut world = world();
    let first = fs::read_to_string(config_of(&world.lab)).expect("the configuration of the first one");
    let second = |changes: &[(&str, &str)]| {
        let others = [(":9469", ":9470"), (":10356", ":10357"), ("tidegate.sock", "second.sock")];
        let text = others.iter().chain(changes).fold(first.clone(), |text, (from, to)| {
            assert!(text.contains(from), "{from:?} is in the configuration");
            text.replace(from, to)
        });
        let path = world.lab.directory().join("second.yaml");
        fs::write(&path, text).expect("a configuration");
        let (lab, path) = (&world.lab, path.display().to_string());
        let (directory, tidegate) = (lab.directory(), &lab.plan().tidegate);
        LabProcess::start(lab.gateway(), directory, "second", tidegate, &["run", "-c", &path])
            .expect("it starts")
    };
    let mut refused = second(&[("name: uplink", "name: other")]);
    let ended = refused.wait(crate::world::APPLIED).expect("it ends");
    let log = refused.log();
    let why =
        format!("interface \"other\": eth0 is in use by another gateway, process {}", world.gateway().pid());
    assert!(!ended.success() && log.contains(&why), "{ended}: {log}");

    let device = "net_af_packet0,iface=eth0,qpairs=1";
    let addresses =
        first.lines().find(|line| line.contains("addresses: [") && line.contains("/24")).expect("some");
    let moved = "      addresses: [\"10.99.0.2/24\"]";
    let mut beside =
        second(&[(device, "net_null0,no-rx=1"), (addresses, moved), ("\n      mac:", "\n      # mac:")]);
    world.wait_until("the tap of the second gateway", || {
        assert!(beside.runs(), "{}", beside.log());
        on_gateway(&world.lab, "-o link").contains("tg-uplink-2").then_some(())
    });
    wait_until_ready(&world);
    drop(beside);

    // A crash releases the device immediately.
    world.take_gateway().kill();
    world.launch_gateway();
    world.gateway_mut().wait_until_ready().expect("ready");
}

#[test]
fn a_reduced_device_mtu_is_restored_and_full_frames_pass() {
    let _machine = alone();
    let world = world();
    let mut open: Vec<_> =
        all_paths().into_iter().map(|path| (path, world.wait_until_served(path))).collect();
    let mtu = || on_gateway(&world.lab, "-o link show eth0").contains("mtu 1500");
    for smaller in [1400, 600] {
        on_gateway(&world.lab, &format!("link set eth0 mtu {smaller}"));
        world.wait_until("the MTU that is configured", || mtu().then_some(()));
    }
    assert!(
        world.gateway().log().contains("the MTU of the device was too small, so the gateway restored it")
    );
    wait_until_ready(&world);
    assert_alive("after the MTU was set back", &mut open);
}

#[test]
fn a_changed_mac_address_is_restored_if_configured_or_else_reported() {
    const OTHER: &str = "02:00:00:00:0e:99";
    let _machine = alone();
    let mut world = world();
    let mut open: Vec<_> =
        all_paths().into_iter().map(|path| (path, world.wait_until_served(path))).collect();
    let counted = |world: &World| {
        world.wait_until("a counted change of the address", || {
            (metric(world, "tidegate_interface_mac_changes_total") == 1.0).then_some(())
        });
    };
    on_gateway(&world.lab, &format!("link set eth0 address {OTHER}"));
    counted(&world);
    let shown = on_gateway(&world.lab, "-o link show eth0");
    assert!(shown.contains(GATEWAY_MAC), "{shown}");
    wait_until_ready(&world);
    assert_alive("after the address was set back", &mut open);
    drop(open);

    let path = config_of(&world.lab);
    let text = fs::read_to_string(&path).expect("the configuration");
    let without = text.replace("\n      mac:", "\n      # mac:");
    assert_ne!(without, text);
    fs::write(&path, without).expect("written");
    world.take_gateway().kill();
    world.launch_gateway();
    world.gateway_mut().wait_until_ready().expect("ready");
    on_gateway(&world.lab, &format!("link set eth0 address {OTHER}"));
    wait_until_degraded(&world, &format!("has the MAC address {OTHER}"));
    counted(&world);
    on_gateway(&world.lab, &format!("link set eth0 address {GATEWAY_MAC}"));
    wait_until_ready(&world);
    for path in all_paths() {
        world.wait_until_served(path);
    }
}

#[test]
fn addresses_and_routes_removed_from_the_tap_are_restored() {
    let _machine = alone();
    let options = GatewayOptions {
        routes: vec![("10.244.0.0/16".to_owned(), server(Family::V4, 1))],
        ..GatewayOptions::default()
    };
    let world = World::start(2, options, &manifests(&[1, 2]));
    world.wait_until_served(all_paths()[0]);
    let has = |family: &str, what: &str| {
        on_gateway(&world.lab, &format!("{family} addr show dev tg-uplink")).contains(what)
            || on_gateway(&world.lab, &format!("{family} route show dev tg-uplink")).contains(what)
    };
    assert!(has("-4", "10.244.0.0/16"));
    on_gateway(&world.lab, "route del 10.244.0.0/16 dev tg-uplink");
    world.wait_until("the route", || has("-4", "10.244.0.0/16").then_some(()));
    on_gateway(&world.lab, "addr flush dev tg-uplink");
    for (family, what) in
        [("-4", GATEWAY_FOR_SERVERS[0]), ("-6", GATEWAY_FOR_SERVERS[1]), ("-4", "10.244.0.0/16")]
    {
        world.wait_until(what, || has(family, what).then_some(()));
    }
    wait_until_checked(&world);
    assert!(world.gateway().log().contains("addresses of the tap were removed: restored"));
}

#[test]
fn the_next_gateway_restores_sysctls_of_a_killed_one() {
    let _machine = alone();
    let mut world = world();
    assert_eq!(sysctl(&world.lab, "ipv4", "arp_ignore"), "8");
    world.take_gateway().kill();
    assert_eq!(sysctl(&world.lab, "ipv4", "arp_ignore"), "8", "no gateway has restored it yet");
    world.launch_gateway();
    world.gateway_mut().wait_until_ready().expect("ready");
    assert!(world.take_gateway().stop().expect("it ends").success());
    assert_eq!(sysctl(&world.lab, "ipv4", "arp_ignore"), "0");
    let record = record_of(world.lab.gateway());
    assert!(!record.exists(), "{} is removed", record.display());
}

/// The file in which a gateway in this namespace records its changes to `eth0`.
fn record_of(namespace: &Namespace) -> PathBuf {
    let inode = run(namespace.command("stat").args(["-L", "-c", "%i", "/proc/self/ns/net"]));
    Path::new(DIRECTORY).join(format!("{}-eth0", inode.trim()))
}

#[test]
fn records_of_deleted_namespaces_are_removed() {
    let _machine = alone();
    let mut world = world();
    let own = record_of(world.lab.gateway());
    assert!(own.exists(), "the gateway has written {}", own.display());
    world.take_gateway().kill();
    // One record belongs to a namespace that does not exist (namespace numbers begin at 0xf0000000), the other to an
    // existing one: the client's.
    let gone = Path::new(DIRECTORY).join("7-eth0");
    let other = record_of(world.lab.client());
    for record in [&gone, &other] {
        fs::write(record, "pid 1\n").expect("written");
    }
    world.launch_gateway();
    world.gateway_mut().wait_until_ready().expect("ready");
    assert!(!gone.exists(), "{}", world.gateway().log());
    assert!(other.exists() && own.exists(), "namespaces that live keep theirs: {}", world.gateway().log());
    world.take_gateway().kill();
    assert!(own.exists(), "no gateway has removed it yet");
    drop(world);
    assert!(!own.exists() && !other.exists(), "the lab removes those of its own namespaces");
}
