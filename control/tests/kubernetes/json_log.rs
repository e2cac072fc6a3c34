//! The JSON log of a running gateway. The lines of DPDK are objects too.

use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::world::{SEEN, Setting, World, service, slice};

#[test]
fn every_line_of_a_json_log_is_an_object_from_start_to_end() {
    let mut world = World::new();
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    let starter = ["env", "TIDEGATE_LOG_FORMAT=json"].map(str::to_owned).to_vec();
    world.start_with("edge-1", &Setting { starter, ..Setting::default() });
    world.until("the first save", || world.has_state("edge-1").then_some(()));
    world.end("edge-1", Signal::TERM, SEEN).expect("it ends");
    let log = std::fs::read_to_string(world.directory().join("edge-1").join("gateway.log")).expect("a log");
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}\nof\n{log}")))
        .collect();
    for line in &lines {
        assert!(line["level"].is_string() && line["target"].is_string(), "{line}");
        assert!(line["fields"]["message"].is_string(), "{line}");
    }
    let has = |target: &str, message: &str| {
        lines.iter().any(|line| line["target"] == target && line["fields"]["message"] == message)
    };
    assert!(has("tidegate_source::kubernetes::hub", "the initial objects are loaded"), "{log}");
    assert!(has("tidegate::daemon", "stopped"), "{log}");
    let port = lines.iter().find(|line| line["fields"]["message"] == "port up").expect("a port is up");
    assert_eq!(
        (&port["fields"]["interface"], port["fields"]["mtu"].is_u64()),
        (&Value::from("up1"), true),
        "{port}"
    );
}

#[test]
fn a_line_that_dpdk_writes_to_standard_error_is_an_object_too() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("gateway.yaml");
    std::fs::create_dir(directory.path().join("manifests")).expect("a directory");
    let text = r#"
apiVersion: tidegate.dev/v1alpha1
kind: GatewayConfig
metadata: {name: edge-1}
dataplane:
  cores: [1]
  memory: {hugepages: false, sizeMiB: 64}
  flowTable: {entriesPerCore: 4096, directory: ""}
  interfaces: [{name: uplink, device: "net_pcap,rx_pcap=nosuch.pcap,tx_pcap=nosuch/out.pcap", addresses: ["192.0.2.2/24"]}]
  snatAddresses: ["192.0.2.3"]
source: {directory: {path: manifests}}
"#;
    std::fs::write(&config, text).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let output = command.args(["--log-format", "json", "run", "-c"]).arg(&config).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let lines: Vec<Value> = String::from_utf8_lossy(&output.stderr)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    assert!(lines.iter().any(|line| line["target"] == "stderr"), "DPDK gives the reason: {lines:?}");
    let last = lines.last().expect("a line");
    assert_eq!((&last["level"], &last["target"]), (&"ERROR".into(), &"tidegate::cli".into()), "{lines:?}");
    let messages = lines.iter().filter_map(|line| line["fields"]["message"].as_str());
    let causes: usize = messages.map(|message| message.matches("cannot be attached").count()).sum();
    assert_eq!(causes, 1, "a cause is printed once: {lines:?}");
}
