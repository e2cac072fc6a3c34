//! `trace`, `capture` and `top` on a gateway with real traffic.

use std::fs;
use std::process::Stdio;

use tidegate_capture::Reader;
use tidegate_netlab::addresses::{Family, client};
use tidegate_netlab::modes::{all_paths, manifests};
use tidegate_netlab::{GatewayOptions, wait_for};

use crate::world::{APPLIED, World, beside_others, tidegate};

/// The number of the client whose packets are watched, and of another one.
const WATCHED: u8 = 3;
const OTHER: u8 = 4;

#[test]
fn trace_and_capture_show_one_clients_packets_with_their_verdicts() {
    let _machine = beside_others();
    let world = World::start(2, GatewayOptions::default(), &manifests(&[1, 2]));
    let path = all_paths()[0];
    world.wait_until("a connection", || world.connect(path, OTHER).ok());
    let host = client(Family::V4, WATCHED).to_string();
    let file = world.lab.directory().join("client.pcapng");
    let socket = world.lab.directory().join("tidegate.sock");
    let start = |arguments: &[&str]| {
        let mut command = world.lab.gateway().command(tidegate());
        command.args(arguments).args(["--host", &host, "--proto", "tcp", "--count", "3", "--seconds", "60"]);
        command.arg("--socket").arg(&socket).stdout(Stdio::piped()).spawn().expect("the binary runs")
    };
    let mut trace = start(&["trace", "-o", "json"]);
    let mut capture = start(&["capture", "-w", &file.display().to_string()]);
    // Both commands have started when both have ended; packets are sent until then.
    wait_for("trace and capture", APPLIED, || {
        let _ = (world.connect(path, WATCHED), world.connect(path, OTHER));
        let ended = [&mut trace, &mut capture].map(|one| one.try_wait().expect("ours").is_some());
        (ended == [true, true]).then_some(())
    })
    .expect("three packets each");
    let out = trace.wait_with_output().expect("it has ended");
    assert!(out.status.success() && capture.wait().expect("it has ended").success());
    let text = String::from_utf8(out.stdout).expect("text");
    assert_eq!(text.lines().count(), 3, "{text}");
    for line in text.lines() {
        let packet: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let is = |key: &str| packet[key].as_str().is_some_and(|end| end.starts_with(&format!("{host}:")));
        assert!(is("source") || is("destination"), "{line}");
        assert_eq!((&packet["verdict"], packet["service"].is_string()), (&"transmit".into(), true), "{line}");
    }
    let bytes = fs::read(&file).expect("written");
    let mut reader = Reader::new(&bytes[..]).expect("a capture");
    let mut packets = 0;
    while reader.next_packet().expect("whole packets").is_some() {
        packets += 1;
    }
    assert_eq!(packets, 6, "each received frame and the one that was sent");
    assert!(String::from_utf8_lossy(&bytes).contains("verdict=transmit reason=forward"));

    let top = world.gateway().query(&["top", "--iterations", "1", "--interval", "0.2"]).expect("it answers");
    assert!(top.contains("RX-PPS") && top.contains("NEW/S"), "{top}");
    let _open = world.connect(path, OTHER).expect("it accepts");
    world.wait_until("an established flow among the counts of backends", || {
        let list = world.gateway().query(&["backends", "-o", "json"]).ok()?;
        let list: serde_json::Value = serde_json::from_str(&list).ok()?;
        let counted = |name: &str| {
            let rows = list["items"].as_array().expect("a list");
            rows.iter().filter_map(|row| row[name].as_u64()).sum::<u64>()
        };
        let (packets, bytes) = (counted("packets"), counted("bytes"));
        (counted("active") > 0 && packets > 0 && bytes > packets).then_some(())
    });
    let refused = world
        .gateway()
        .query(&["trace", "--reason", "nonsense", "--count", "1"])
        .expect_err("no such reason");
    assert!(format!("{refused:#}").contains("is not known; accepted"), "{refused:#}");
}
