//! The daemon is killed and restarted, reloaded, and stopped.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use tidegate_netlab::gateway::config_of;
use tidegate_netlab::modes::{all_paths, manifests};
use tidegate_netlab::{GatewayOptions, server, wait_for};

use crate::world::{World, assert_alive, beside_others};

/// One second, plus the time that two busy cores and a debug build may add.
const BACK: Duration = Duration::from_secs(15);

#[test]
fn traffic_continues_after_kill_9_and_dsr_connections_survive() {
    let _machine = beside_others();
    let mut world = World::start(3, GatewayOptions::default(), &manifests(&[1, 2, 3]));
    let mut open = Vec::new();
    for path in all_paths() {
        for n in 1..=3 {
            let connection = world.wait_until_used(path, &server::name(n));
            if path.forwarding.starts_with("dsr") {
                open.push((path, connection));
            }
        }
    }
    world.take_gateway().kill();
    let begin = Instant::now();
    world.launch_gateway();
    for path in all_paths() {
        let what = format!("{} {} to be served again", path.label(), path.family);
        let rest = BACK.saturating_sub(begin.elapsed());
        wait_for(&what, rest, || world.connect(path, 0).ok()).unwrap();
    }
    eprintln!("every path served again {:?} after the start", begin.elapsed());
    assert_alive("after kill -9 and a restart", &mut open);
    world.gateway_mut().wait_until_ready().unwrap();
}

#[test]
fn sighup_reloads_sigusr_does_nothing_and_sigterm_ends_cleanly() {
    let _machine = beside_others();
    let options = GatewayOptions { watch: false, ..GatewayOptions::default() };
    let mut world = World::start(2, options, &manifests(&[1]));
    let mut open: Vec<_> =
        all_paths().into_iter().map(|path| (path, world.wait_until_served(path))).collect();
    let pid = world.gateway_mut().pid().to_string();
    for signal in ["-USR1", "-USR2"] {
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
    world.write(&manifests(&[2]));
    world.gateway_mut().reload();
    for path in all_paths() {
        world.wait_until_used(path, &server::name(2));
    }
    assert_alive("after a reload that removed their backend", &mut open);
    drop(open);

    let gateway = world.take_gateway();
    let ended = gateway.stop().unwrap();
    assert!(ended.success(), "SIGTERM: {ended}");
    assert!(!world.lab.directory().join("tidegate.sock").exists(), "the admin socket is removed");
    // Daemons that are bound to the tap keep their sockets. Without a gateway, no packet passes there.
    let show_tap = ["-o", "link", "show", "tg-uplink"];
    let tap = tidegate_netlab::namespace::output_of(world.lab.gateway().command("ip").args(show_tap));
    let tap = tap.expect("the tap stays");
    assert!(tap.contains("NO-CARRIER"), "{tap}");

    let config = config_of(&world.lab);
    let text = fs::read_to_string(&config).unwrap();
    assert!(text.contains("name: uplink"), "{text}");
    fs::write(&config, text.replace("name: uplink", "name: wan")).unwrap();
    world.launch_gateway();
    world.gateway_mut().wait_until_ready().unwrap();
    let show_all = world.lab.gateway().command("ip").args(["-o", "link"]).output().unwrap();
    let taps = String::from_utf8_lossy(&show_all.stdout);
    assert!(taps.contains("tg-wan") && !taps.contains("tg-uplink"), "the interface has another name: {taps}");
}

#[test]
fn probes_and_metrics_report_a_gateway_that_serves() {
    let _machine = beside_others();
    let world = World::start(2, GatewayOptions::default(), &manifests(&[1, 2]));
    for path in all_paths() {
        world.wait_until_served(path);
    }
    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(world.gateway().probe(path), Some(200), "{path}");
    }
    let metric = |name: &str, labels: &[&str]| world.gateway().metric(name, labels).unwrap();
    assert!(metric("tidegate_packets_total", &[]) > 0.0);
    assert!(metric("tidegate_service_packets_total", &["service=\"nat\""]) > 0.0);
    assert!(metric("tidegate_backend_up", &[]) >= 2.0);
    let generation = |kind: &str| metric("tidegate_snapshot_generation", &[&format!("kind=\"{kind}\"")]);
    assert!(generation("applied") >= 1.0);
    assert!(generation("desired") >= generation("applied"));
    let refused = world.gateway().query(&["flows", "--sort", "bytes"]).expect_err("there is no flow log");
    assert!(format!("{refused:#}").contains("set flowLog.file or flowLog.ipfix"), "{refused:#}");
}
