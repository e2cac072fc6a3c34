//! Converts the manifests in `cases`, which follow the examples in the documentation of each load balancer, and
//! compares the results with the files beside them. `UPDATE_CASES=1` writes these files.
//!
//! `control/tests/cli_import.rs` checks that a gateway accepts the results.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tidegate_import::{Imported, Input, NoteKind, Vendor, convert};
use tidegate_model::diagnostic::Report;
use tidegate_model::yaml::Sheet;

/// The manifests of all cases, with their load balancers.
fn cases() -> Vec<(Vendor, PathBuf)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut cases = Vec::new();
    for vendor in Vendor::ALL {
        let files =
            fs::read_dir(directory.join(vendor.as_str())).expect("a directory for each load balancer");
        let paths = files.map(|file| file.expect("a file").path());
        cases.extend(
            paths.filter(|path| path.extension().is_some_and(|e| e == "yaml")).map(|path| (vendor, path)),
        );
    }
    cases.sort_by(|a, b| a.1.cmp(&b.1));
    assert!(cases.len() >= 10, "{cases:?}");
    cases
}

fn imported(vendor: Vendor, text: &str) -> Result<Imported, Report> {
    let mut input = Input::default();
    input.file("in.yaml", text);
    convert(vendor, input)
}

/// The texts of all files.
fn documents(imported: &Imported) -> String {
    imported.files.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join("---\n")
}

/// The errors of a conversion.
fn errors(vendor: Vendor, text: &str) -> Vec<String> {
    let report = imported(vendor, text).expect_err("it has an error");
    report.errors().map(ToString::to_string).collect()
}

#[test]
fn each_case_has_the_expected_result() {
    for (vendor, path) in cases() {
        let text = fs::read_to_string(&path).expect("it is readable");
        let result = imported(vendor, &text).unwrap_or_else(|report| panic!("{}:\n{report}", path.display()));
        let notes: String = result.notes.iter().map(|note| format!("# {note}\n")).collect();
        let result = notes + &documents(&result);
        let expected = path.with_extension("out");
        if std::env::var_os("UPDATE_CASES").is_some() {
            fs::write(&expected, &result).expect("it is writable");
        }
        let expected = fs::read_to_string(&expected).expect("UPDATE_CASES=1 writes it");
        assert_eq!(result, expected, "{}", path.display());
        assert!(!result.contains("a-long-secret"), "{} contains a password", path.display());
    }
}

/// Mappings whose keys are names of users, what an API server adds, and what is reported or kept as a whole.
const WITHOUT_KEYS: [&str; 11] = [
    "labels",
    "matchLabels",
    "annotations",
    "data",
    "status",
    "valueFrom",
    "nodeSelector",
    "nodeSelectors",
    "autoDiscovery",
    "selector",
    "sessionAffinityConfig",
];

/// Adds an unknown key to each mapping in turn.
fn with_unknown_keys(object: &Value, is_workload: bool) -> Vec<(String, Value)> {
    fn visit(value: &Value, pointer: &str, found: &mut Vec<String>) {
        match value {
            Value::Object(entries) => {
                found.push(pointer.to_owned());
                for (key, child) in entries.iter().filter(|(key, _)| !WITHOUT_KEYS.contains(&key.as_str())) {
                    visit(child, &format!("{pointer}/{}", key.replace('/', "~1")), found);
                }
            }
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(n, item)| visit(item, &format!("{pointer}/{n}"), found));
            }
            _ => {}
        }
    }
    let mut pointers = Vec::new();
    visit(object, "", &mut pointers);
    // Only the environment of a workload is input.
    pointers.retain(|pointer| !is_workload || pointer.contains("/env/"));
    let changed = |pointer: String| {
        let mut changed = object.clone();
        changed.pointer_mut(&pointer).expect("it was found")["unknownKey"] = json!("unknown");
        (pointer, changed)
    };
    pointers.into_iter().map(changed).collect()
}

#[test]
fn a_key_that_is_not_converted_is_reported_wherever_it_is() {
    let (mut checked, mut ignored) = (0, Vec::new());
    for (vendor, path) in cases() {
        let text = fs::read_to_string(&path).expect("it is readable");
        let objects = Sheet::new("case").documents(&text);
        let objects: Vec<Value> = objects.iter().map(|o| serde_json::to_value(o).expect("JSON")).collect();
        for (n, object) in objects.iter().enumerate() {
            let kind = object["kind"].as_str().expect("a kind");
            let is_foreign = object["metadata"]["name"] == "log-collector";
            let is_unread = match kind {
                "Service" => vendor != Vendor::Kubernetes || object["spec"]["type"] != "LoadBalancer",
                kind => kind == "CiliumBGPNodeConfigOverride",
            };
            if is_foreign || is_unread {
                continue;
            }
            for (pointer, changed) in with_unknown_keys(object, matches!(kind, "DaemonSet" | "Pod")) {
                let all = objects.iter().enumerate().map(|(at, o)| if at == n { &changed } else { o });
                let text: Vec<String> = all.map(ToString::to_string).collect();
                let said = match imported(vendor, &text.join("\n---\n")) {
                    Ok(result) => result.notes.iter().any(|note| note.what.contains("unknownKey")),
                    Err(report) => report.iter().any(|fault| fault.what.contains("unknownKey")),
                };
                // An object that is reported as a whole needs no further reports.
                let is_whole = object["metadata"]["name"] == "unused";
                if !said && !is_whole {
                    ignored.push(format!("{}: {kind}{pointer}", path.display()));
                }
                checked += 1;
            }
        }
    }
    assert!(checked > 100, "{checked}");
    assert!(ignored.is_empty(), "ignored silently:\n{}", ignored.join("\n"));
}

#[test]
fn wrong_input_is_refused_with_its_position() {
    let head =
        "apiVersion: metallb.io/v1beta1\nkind: IPAddressPool\nmetadata: {name: a}\nspec:\n  addresses: ";
    let pool = |addresses: &str| format!("{head}{addresses}\n");
    let block = "apiVersion: cilium.io/v2\nkind: CiliumLoadBalancerIPPool\nmetadata: {name: a}\nspec:\n  blocks:\n  \
                 - {start: 10.0.0.9, stop: 10.0.0.1}\n";
    for (vendor, text, expected) in [
        (
            Vendor::MetalLb,
            pool("[10.0.0.0/33]"),
            "5:15: error: spec.addresses[0]: the text \"10.0.0.0/33\" is not accepted",
        ),
        (Vendor::MetalLb, pool("[]"), "5:14: error: spec.addresses: the list is empty"),
        (
            Vendor::MetalLb,
            pool("[10.0.0.0/24]\n  autoAssign: maybe"),
            "6:15: error: spec.autoAssign: the text \"maybe\" is not accepted",
        ),
        (
            Vendor::MetalLb,
            pool("[224.0.0.0/24]"),
            "1:1: error: pool a: addresses[0]: 224.0.0.0/24 contains multicast addresses",
        ),
        (Vendor::MetalLb, "kind: IPAddressPool\n".to_owned(), "1:1: error: apiVersion is missing"),
        (Vendor::MetalLb, String::new(), "1:1: error: the file contains no object"),
        (
            Vendor::Cilium,
            block.to_owned(),
            "6:29: error: spec.blocks[0].stop: it is before start, or of the other family",
        ),
    ] {
        let errors = errors(vendor, &text);
        let expected = format!("in.yaml:{expected}; accepted: ");
        assert!(errors.iter().any(|error| error.starts_with(&expected)), "{text}\n{errors:#?}\n{expected}");
    }
    let nothing = errors(Vendor::Cilium, &pool("[10.0.0.0/24]"));
    let accepted = "pools, BGP peers, or announcements of addresses";
    assert_eq!(
        nothing,
        [format!("error: there is no resource of cilium that can be converted; accepted: {accepted}")]
    );
}

#[test]
fn faults_in_the_text_of_a_config_map_have_positions_in_the_file() {
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: config}\ndata:\n  config: |\n    # pools\n    \
                address-pools:\n    - name: a\n      protocol: arp\n      addresses: [10.0.0.0/24]\n";
    let expected = "in.yaml:9:17: error: data.config.addressPools[0].protocol: the text \"arp\" is not accepted; accepted: layer2, bgp";
    assert_eq!(errors(Vendor::MetalLb, text), [expected]);
    let broken = text.replace("protocol: arp", "protocol: [");
    assert!(
        errors(Vendor::MetalLb, &broken).iter().all(|error| error.starts_with("in.yaml:1")),
        "{:?}",
        errors(Vendor::MetalLb, &broken)
    );
}

#[test]
fn objects_of_an_api_server_are_named_in_the_report() {
    let mut input = Input::default();
    let list = json!({
        "apiVersion": "metallb.io/v1beta1", "kind": "IPAddressPoolList", "metadata": {"resourceVersion": "1"},
        "items": [{
            "metadata": {"name": "a", "namespace": "metallb-system"},
            "spec": {"addresses": ["10.0.0.0/24"], "new": 1},
        }],
    });
    input.stored(serde_json::from_value(list).expect("JSON"));
    let imported = convert(Vendor::MetalLb, input).expect("it is converted");
    let notes: Vec<String> = imported.notes.iter().map(ToString::to_string).collect();
    let place = "IPAddressPool metallb-system/a:";
    let expected = [
        format!("{place} no counterpart: spec.new: not converted"),
        format!("{place} decide: pool a: nothing in the input announces its addresses"),
    ];
    assert_eq!(notes, expected);
    assert!(documents(&imported).contains("- 10.0.0.0/24"), "{imported:?}");
}

#[test]
fn no_two_manifests_are_the_same_object() {
    for (vendor, path) in cases().into_iter().filter(|(vendor, _)| *vendor == Vendor::Kubernetes) {
        let text = fs::read_to_string(&path).expect("it is readable");
        let imported =
            imported(vendor, &text).unwrap_or_else(|report| panic!("{}:\n{report}", path.display()));
        let mut seen = BTreeSet::new();
        for object in Sheet::new("result").documents(&documents(&imported)) {
            let object = serde_json::to_value(object).expect("JSON");
            let metadata = &object["metadata"];
            let key = format!("{} {} {}", object["kind"], metadata["namespace"], metadata["name"]);
            assert!(seen.insert(key.clone()), "{}: {key} is written twice", path.display());
        }
        assert!(seen.len() > 3, "{seen:?}");
    }
}

#[test]
fn client_affinity_needs_a_scheduler_that_selects_by_client() {
    for (scheduler, has_affinity) in [
        ("", true),
        ("rendezvous", true),
        (" maglev ", true),
        ("sh", true),
        ("wrr", false),
        ("lc", false),
        ("sed", false),
        ("nq", false),
        ("dh", false),
    ] {
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "a", "annotations": {"tidegate.dev/scheduler": scheduler}},
            "spec": {
                "type": "LoadBalancer", "loadBalancerClass": "tidegate.dev/gateway", "sessionAffinity": "ClientIP",
                "ports": [{"port": 80}],
            },
        });
        let imported = imported(Vendor::Kubernetes, &service.to_string()).expect("it is converted");
        assert_eq!(documents(&imported).contains("tidegate.dev/hash: client"), has_affinity, "{scheduler:?}");
        let kind = if has_affinity { NoteKind::Decide } else { NoteKind::NoCounterpart };
        let kinds: Vec<NoteKind> = imported.notes.iter().map(|note| note.kind).collect();
        assert_eq!(kinds, [kind], "{scheduler:?}");
    }
}
