//! Checks that `tidegate check` accepts every example of a configuration or a manifest in the documents.
//!
//! An example is a block of YAML, or a manifest that a command reads from its standard input (`<<'END'`). [`BASE`]
//! completes a partial configuration, and [`SERVICE`] a partial Service. The test creates the files that an example
//! names in its own directory.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::repository::{File, files};

/// A configuration with an interface and routes of both families, which parts of a configuration complete.
const BASE: &str = r#"
apiVersion: tidegate.dev/v1alpha1
kind: GatewayConfig
metadata: {name: edge-1}
dataplane:
  cores: [1]
  interfaces: [{name: uplink, device: "0000:03:00.0", addresses: ["192.0.2.2/24", "10.0.0.1/16", "2001:db8::2/64"]}]
  routes: [{to: "0.0.0.0/0", via: "192.0.2.1"}, {to: "::/0", via: "2001:db8::1"}]
  snatAddresses: ["192.0.2.12", "2001:db8::12"]
source: {directory: {path: manifests}}
pools: [{name: public, addresses: ["203.0.113.0/28", "198.51.100.0/28", "192.0.2.240/28"], externalIPs: true}]
"#;

/// A Service, which parts of a Service complete.
const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: LoadBalancer, ports: [{port: 80}]}
";

/// The files that examples name: the name in the directory of the test, and the contents.
const FILES: [(&str, &str); 5] = [
    ("bgp-password", "a-long-secret\n"),
    ("sharing-key", "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n"),
    ("selection-key", "00112233445566778899aabbccddeeff\n"),
    ("page-token", "00112233445566778899aabbccddeeff\n"),
    ("deny.txt", "198.51.100.0/24\n"),
];

/// The directories of these files in the examples.
const DIRECTORIES: [&str; 2] = ["/etc/tidegate/", "/run/secrets/tidegate/"];

/// An example, with the line on which it begins.
struct Example {
    place: String,
    text: String,
}

/// The examples of a document.
fn examples(document: &File) -> Vec<Example> {
    let mut examples = Vec::new();
    let mut lines = document.text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let is_manifest = line.contains("kubectl") && line.ends_with("<<'END'");
        let end = match line.trim() {
            "```yaml" => "```",
            _ if is_manifest => "END",
            _ => continue,
        };
        let block: Vec<&str> =
            lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != end).collect();
        examples.push(Example { place: format!("{}:{}", document.path, at + 2), text: block.join("\n") });
    }
    examples
}

/// Adds `part` to `whole`: maps are merged, everything else is replaced.
fn merge(whole: &mut Value, part: Value) {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            for (key, value) in part {
                merge(whole.entry(key).or_insert(Value::Null), value);
            }
        }
        (whole, part) => *whole = part,
    }
}

fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn document(text: &str) -> Value {
    documents(text).pop().expect("one document")
}

/// Whether gateways own VIPs by Lease, for which they need an API server.
fn is_by_lease(config: &Value) -> bool {
    config.pointer("/announce/l2/mode").is_some_and(|mode| mode == "lease")
}

/// The faults in the configuration and the manifests of the directory; empty if there are none.
fn faults(directory: &Path) -> String {
    let path = directory.join("gateway.yaml");
    if is_by_lease(&document(&fs::read_to_string(&path).expect("it was written"))) {
        // `check` would query the API server.
        let report = tidegate_model::config::load(&path).report;
        return report.errors().map(|fault| format!("{fault}\n")).collect();
    }
    let mut check = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let ran = check.args(["check", "-c"]).arg(path).output().expect("the binary runs");
    match ran.status.success() {
        true => String::new(),
        false => String::from_utf8_lossy(&ran.stdout).into_owned(),
    }
}

/// Writes the complete example into the directory. Returns whether the gateway reads such documents.
fn write(example: &Example, directory: &Path) -> bool {
    let manifests = directory.join("manifests");
    fs::create_dir(&manifests).expect("it is new");
    for (name, contents) in FILES {
        let file = fs::File::options().write(true).create_new(true).mode(0o600).open(directory.join(name));
        file.and_then(|mut file| file.write_all(contents.as_bytes())).expect("it is written");
    }
    let text = DIRECTORIES.iter().fold(example.text.clone(), |text, prefix| text.replace(prefix, ""));
    let mut config = document(BASE);
    let mut has_pool = false;
    for (n, part) in documents(&text).into_iter().enumerate() {
        let is_service = part.pointer("/metadata/annotations").is_some();
        let mut manifest = match part["kind"].as_str() {
            Some("Kustomization") => return false,
            Some("GatewayConfig") if part.get("dataplane").is_some() => {
                config = part;
                continue;
            }
            Some("GatewayConfig") => {
                merge(&mut config, part);
                continue;
            }
            Some(_) => Value::Null,
            None if is_service => document(SERVICE),
            None => {
                merge(&mut config, part);
                continue;
            }
        };
        merge(&mut manifest, part);
        has_pool |= manifest["kind"] == "AddressPool";
        let path = manifests.join(format!("{n}.yaml"));
        fs::write(path, manifest.to_string()).expect("it is written");
    }
    if has_pool {
        // An AddressPool may have the name and the addresses of the configured one.
        config["pools"] = json!([]);
    }
    if is_by_lease(&config) {
        config["source"] = json!({"kubernetes": {}});
    }
    fs::write(directory.join("gateway.yaml"), config.to_string()).expect("it is written");
    true
}

#[test]
fn every_example_of_a_configuration_or_a_manifest_is_accepted() {
    let (mut checked, mut wrong) = (0, Vec::new());
    // `control/edge/tests/edge/requests.rs` checks the examples for edges.
    let is_for_gateways = |file: &&File| file.has_extension("md") && file.path != "docs/edge.md";
    for document in files().iter().filter(is_for_gateways) {
        for example in examples(document) {
            let directory = tempfile::tempdir().expect("a directory");
            if !write(&example, directory.path()) {
                continue;
            }
            checked += 1;
            let faults = faults(directory.path());
            if !faults.is_empty() {
                wrong.push(format!("{}:\n{faults}{}", example.place, example.text));
            }
        }
    }
    assert!(checked > 20, "the examples were read: {checked}");
    assert!(wrong.is_empty(), "examples that the gateway refuses:\n{}", wrong.join("\n\n"));
}
