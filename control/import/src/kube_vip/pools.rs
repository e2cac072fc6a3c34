//! The ConfigMap `kubevip`: `cidr-NAMESPACE`, `range-NAMESPACE` and `-global`.

use std::collections::BTreeSet;

use tidegate_model::objects::{AddressRange, Operator, Selector};
use tidegate_model::yaml::{Entry, Field};

use crate::draft::{Draft, PoolDraft};
use crate::note::{NoteKind, Notes};
use crate::object::Object;
use crate::{addresses, selector};

/// The namespace of pools that all namespaces use.
const GLOBAL: &str = "global";
/// How kube-vip writes an address that it requests by DHCP.
const DHCP: [&str; 3] = ["0.0.0.0", "0.0.0.0/32", "::"];

/// Whether a ConfigMap has pools of kube-vip.
pub(super) fn is_pools(object: &Object<'_>) -> bool {
    let data = object.root.mapping("data");
    object.name == "kubevip"
        || data.is_some_and(|data| data.unread().iter().any(|(entry, _)| of_pool(&entry.key).is_some()))
}

/// The namespace of an entry with addresses, and whether these are CIDRs.
fn of_pool(key: &str) -> Option<(&str, bool)> {
    let cidr = key.strip_prefix("cidr-").map(|namespace| (namespace, true));
    cidr.or_else(|| key.strip_prefix("range-").map(|namespace| (namespace, false)))
}

/// Reads the pools.
pub(super) fn read(object: &Object<'_>, notes: &Notes, draft: &mut Draft) {
    let Some(data) = object.root.get("data").and_then(|data| data.fields()) else {
        return object.finish(notes, false);
    };
    let entries = data.unread();
    let skips_ends =
        entries.iter().any(|(e, value)| e.key == "skip-end-ips-in-cidr" && value.node.text() == Some("true"));
    let has = |key: String| entries.iter().any(|(entry, _)| entry.key == key);
    let own: BTreeSet<String> = entries
        .iter()
        .filter_map(|(entry, _)| Some(of_pool(&entry.key)?.0.to_owned()))
        .filter(|namespace| namespace != GLOBAL)
        .collect();
    for (entry, value) in &entries {
        let Some((namespace, is_cidr)) = of_pool(&entry.key) else {
            other(notes, entry, value);
            continue;
        };
        if !is_cidr && (has(format!("cidr-{namespace}")) || has(format!("cidr-{GLOBAL}"))) {
            let what = "kube-vip does not use it, because an entry cidr-... takes precedence";
            notes.add_at(NoteKind::NoCounterpart, entry.at, value, what);
            continue;
        }
        let ranges = ranges(notes, value, is_cidr && skips_ends);
        if ranges.is_empty() {
            continue;
        }
        let namespaces = match namespace {
            GLOBAL if own.is_empty() => Selector::default(),
            GLOBAL => selector::of_namespace(Operator::NotIn(own.iter().cloned().collect())),
            namespace => selector::namespaces(vec![namespace.to_owned()]),
        };
        let at = value.sheet.location(entry.at);
        draft.pools.push(PoolDraft {
            ranges,
            namespaces,
            ..PoolDraft::new(format!("kube-vip-{namespace}"), at)
        });
    }
    object.finish(notes, false);
}

/// An entry that is not a pool.
fn other(notes: &Notes, entry: &Entry, value: &Field<'_>) {
    let why = match entry.key.as_str() {
        "skip-end-ips-in-cidr" => return,
        "search-order" => "the address is chosen by a hash (docs/addresses.md)",
        key if key.starts_with("allow-share-") => {
            "Services share an address if they have the same tidegate.dev/allow-shared-ip"
        }
        key if key.starts_with("interface-") => "the gateway uses its dataplane.interfaces",
        _ => "not converted",
    };
    notes.add_at(NoteKind::NoCounterpart, entry.at, value, why);
}

/// The addresses of an entry, separated by commas.
fn ranges(notes: &Notes, value: &Field<'_>, skips_ends: bool) -> Vec<AddressRange> {
    let Some(text) = value.string() else { return Vec::new() };
    let mut ranges = Vec::new();
    for item in text.split(',').map(str::trim) {
        match addresses::parse(item) {
            _ if DHCP.contains(&item) || item.starts_with("0.0.0.0-") => {
                notes.add(NoteKind::NoCounterpart, value, "the gateway requests no address by DHCP");
            }
            Some(range) => ranges.push(if skips_ends { addresses::without_ends(range) } else { range }),
            None => value.error(format_args!("{item:?} is not accepted"), addresses::RANGE),
        }
    }
    ranges
}
