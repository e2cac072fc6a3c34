//! Annotations of Services. The gateway reads the usual ones itself (`services.compat`), so only the others are
//! reported here, and what depends on the pools.

use std::collections::BTreeMap;

use tidegate_model::yaml::{Entry, Field};

use crate::note::{NoteKind, Notes};
use crate::object::Object;

/// Annotations of a vendor: those that begin with a prefix, and the ones of these that the gateway understands.
pub(crate) struct Annotations {
    pub(crate) prefixes: &'static [&'static str],
    pub(crate) understood: &'static [&'static str],
    /// Those with the key of Services that share an address.
    pub(crate) sharing_keys: &'static [&'static str],
}

/// Reports the annotations that the gateway does not understand, and sharing keys that are used in several namespaces.
pub(crate) fn report(known: &Annotations, objects: &[Object<'_>], notes: &Notes) {
    let mut sharing: BTreeMap<&str, &str> = BTreeMap::new();
    for object in objects.iter().filter(|object| object.kind == "Service" && object.group.is_empty()) {
        for (entry, value) in annotations(object) {
            let key = entry.key.as_str();
            if !known.prefixes.iter().any(|prefix| key.starts_with(prefix)) {
                continue;
            }
            let text = value.node.text().unwrap_or_default();
            if key.ends_with("sharing-cross-namespace") {
                notes.add_at(NoteKind::Decide, entry.at, &value, "shareAcrossNamespaces of the pool decides");
            } else if !known.understood.contains(&key) {
                notes.add_at(NoteKind::NoCounterpart, entry.at, &value, "the gateway does not understand it");
            } else if text.split(',').any(|ip| matches!(ip.trim(), "0.0.0.0" | "::")) {
                notes.add_at(
                    NoteKind::NoCounterpart,
                    entry.at,
                    &value,
                    "the gateway requests no address by DHCP",
                );
            } else if known.sharing_keys.contains(&key)
                && *sharing.entry(text).or_insert(object.namespace) != object.namespace
            {
                let what =
                    "Services of several namespaces share an address: set shareAcrossNamespaces of the pool";
                notes.add_at(NoteKind::Decide, entry.at, &value, what);
            }
        }
    }
}

fn annotations<'a>(object: &Object<'a>) -> Vec<(&'a Entry, Field<'a>)> {
    object.metadata.mapping("annotations").map(|annotations| annotations.unread()).unwrap_or_default()
}
