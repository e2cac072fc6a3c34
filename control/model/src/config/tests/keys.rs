//! Compares the table of keys with the decoders: the keys, defaults and examples must be the same.

use std::collections::BTreeSet;

use serde_json::{Map, Value as Json, json};

use super::*;
use crate::config::keys::{KEYS, Key, KeyDefault};
use crate::objects::Origin;
use crate::yaml::{Entry, Node, Scalar, ScalarKind, Value};

/// A key that no decoder knows and that is not similar to a known key.
const NOBODY: &str = "zzqqzzqqzzqqzzqq";

/// Adds an unknown key to every mapping.
fn plant(node: &mut Node) {
    match &mut node.value {
        Value::Sequence(items) => items.iter_mut().for_each(plant),
        Value::Mapping(entries) => {
            entries.iter_mut().for_each(|entry| plant(&mut entry.node));
            let scalar = Scalar { text: "x".to_owned(), kind: ScalarKind::Text };
            let node = Node { at: node.at, value: Value::Scalar(scalar) };
            entries.push(Entry { key: NOBODY.to_owned(), at: node.at, node });
        }
        Value::Scalar(_) => {}
    }
}

/// The keys that the decoders accept when they read this text. The messages about unknown keys list the accepted ones.
fn accepted_keys(text: &str) -> BTreeSet<String> {
    let sheet = Sheet::new("gateway.yaml");
    let mut root = sheet.documents(text).remove(0);
    plant(&mut root);
    decode(&sheet, &root, &mut Files::new(Path::new(".")), Copies::Ignored, 4);
    let mut keys = BTreeSet::new();
    let unknown = format!("unknown key {NOBODY:?}");
    for fault in sheet.into_report().iter() {
        let Some(location) = fault.what.strip_prefix(&unknown) else { continue };
        let parent =
            location.strip_prefix(" in ").map_or(String::new(), |path| format!("{}.", any_item(path)));
        let accepted = fault.accepted.as_deref().expect("the known keys are listed");
        if accepted != "no key" {
            keys.extend(accepted.split(", ").map(|key| format!("{parent}{key}")));
        }
    }
    keys
}

/// Replaces indexes in a path: `a[0].b` becomes `a[].b`.
fn any_item(path: &str) -> String {
    let mut steps = path.split('[');
    let first = steps.next().unwrap_or_default().to_owned();
    steps
        .fold(first, |path, step| format!("{path}[{}", step.trim_start_matches(|c: char| c.is_ascii_digit())))
}

#[test]
fn the_table_has_every_key_that_the_decoders_read_and_no_other() {
    let kubernetes = format!("{HEAD}source: {{kubernetes: {{default: true}}}}\n");
    let read: BTreeSet<String> = accepted_keys(FULL).into_iter().chain(accepted_keys(&kubernetes)).collect();
    assert!(
        read.contains("source.kubernetes.default") && read.contains("dataplane.interfaces[].mtu"),
        "{read:?}"
    );
    let table: BTreeSet<&str> = KEYS.iter().map(|key| key.path).collect();
    assert_eq!(table.len(), KEYS.len(), "each key once");
    let is_above = |above: &str, below: &str| {
        below.strip_prefix(above).is_some_and(|rest| rest.starts_with('.') || rest.starts_with("[]"))
    };
    let is_selector = |key: &&Key| key.kind == "label selector";
    for key in &read {
        let is_section = table.iter().any(|path| is_above(key, path));
        let is_of_selector = KEYS.iter().filter(is_selector).any(|one| is_above(one.path, key));
        assert!(
            table.contains(key.as_str()) || is_section || is_of_selector,
            "{key} is read, and config/keys.rs has no line for it"
        );
    }
    for path in table {
        assert!(read.contains(path), "config/keys.rs has {path}, and no decoder reads it");
    }
}

/// A configuration in which every list has an item. It stays consistent if any one key changes.
fn base() -> Json {
    json!({
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "GatewayConfig",
        "dataplane": {
            "interfaces": [
                {"name": "uplink", "device": "net_null0"},
                {"name": "other", "device": "net_null1", "addresses": ["10.9.0.1/16", "2001:db8:9::1/64"]},
            ],
            "routes": [{"to": "0.0.0.0/0", "via": "10.9.0.3"}],
            "neighbors": [{"ip": "10.9.0.3", "mac": "02:00:00:00:00:03"}],
            "snatAddresses": ["10.9.0.4"],
            "gateway": {"prefixes": ["10.9.0.0/16"], "forward": "routes"},
        },
        "announce": {"bgp": {"asn": 64000, "peers": [{"address": "10.9.0.5", "asn": 64001}]}},
        "protection": {"newConnections": {"perSecond": 5}},
        "flowLog": {"file": {"path": "flows.json"}, "ipfix": {"collector": "192.0.2.8:4739"}},
        "pools": [{"name": "public", "addresses": ["203.0.113.0/28"]}],
    })
}

/// The mapping that contains the last step of a path, and that step. Missing mappings are created.
fn parent<'a, 'p>(root: &'a mut Json, path: &'p str) -> (&'a mut Map<String, Json>, &'p str) {
    let (above, last) = path.rsplit_once('.').unwrap_or(("", path));
    let mut at = root;
    for step in above.split('.').filter(|step| !step.is_empty()) {
        at = match step.strip_suffix("[]") {
            Some(list) => &mut at[list][0],
            None => at.as_object_mut().expect("a mapping").entry(step).or_insert_with(|| json!({})),
        };
    }
    (at.as_object_mut().expect("a mapping"), last)
}

/// The configuration with a key set to this YAML value, or without the key.
fn with(path: &str, value: Option<&str>) -> GatewayConfig {
    let mut root = base();
    let (mapping, last) = parent(&mut root, path);
    mapping.remove(last);
    if value.is_some() {
        mapping.insert(last.to_owned(), json!("THE VALUE"));
    }
    // A section without keys may be an error, unlike one that is left out.
    root.as_object_mut().expect("a mapping").retain(|_, section| *section != json!({}));
    let text = root.to_string().replace("\"THE VALUE\"", &format!(" {}", value.unwrap_or_default()));
    let loaded = parse(&text, "gateway.yaml", Path::new("/etc/tidegate"), 2);
    let config = loaded.config.unwrap_or_else(|| panic!("{path}: {value:?}: {}", loaded.report));
    // The location of each key differs, so it is not compared.
    GatewayConfig { origin: Origin::unknown(), ..config }
}

#[test]
fn the_defaults_of_the_table_apply_to_absent_keys() {
    for key in KEYS {
        if let KeyDefault::Value(default) = key.default {
            assert_eq!(with(key.path, Some(default)), with(key.path, None), "{}", key.path);
        }
    }
}

#[test]
fn the_examples_of_the_table_are_accepted_and_differ_from_the_defaults() {
    for key in KEYS {
        let Some(example) = key.example else { continue };
        let without = match key.default {
            KeyDefault::Required => GatewayConfig { origin: Origin::unknown(), ..valid(&base().to_string()) },
            _ => with(key.path, None),
        };
        assert_ne!(with(key.path, Some(example)), without, "{}", key.path);
    }
}

#[test]
fn meanings_are_sentences_in_one_line_of_a_table() {
    for key in KEYS {
        let Key { path, meaning, kind, .. } = key;
        assert!(
            meaning.ends_with('.') && meaning.starts_with(|c: char| c.is_uppercase() || c == '`'),
            "{path}"
        );
        assert!(!meaning.contains(['|', '\n']) && !kind.contains(['|', '\n']), "{path}");
    }
}
