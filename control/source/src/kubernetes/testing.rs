//! Decodes the objects of a manifest as if an API server had sent them, with the code of `object` and `kinds`, without
//! HTTP.
//!
//! For tests that compare both sources. Objects that the watches exclude by selector, or never request, are left out.

use std::sync::Arc;

use tidegate_model::diagnostic::Report;
use tidegate_model::objects::{AddressPool, Objects, Selector};
use tidegate_model::yaml::{Node, Sheet};

use super::kinds::KINDS;
use super::object::Received;
use crate::manifest::Object;
use crate::slices;

/// Decodes an AddressPool, and returns it with its faults.
pub fn address_pool_of(document: &Node) -> (Option<Arc<AddressPool>>, Report) {
    let kind = KINDS.iter().find(|kind| kind.name == "AddressPool").expect("it is watched");
    let received = Received::new(kind, document.clone()).expect("an object with a name");
    let Some(Object::AddressPool(pool)) = received.content.object() else { return (None, received.report) };
    (Some(pool.clone()), received.report)
}

/// The objects that the watches would return for this manifest, which must be valid.
pub fn objects_of(yaml: &str) -> Objects {
    let (objects, report) = received(yaml);
    assert!(!report.has_errors(), "{report}");
    objects
}

/// The objects that the watches would return, and a report of everything that can't be used.
pub fn received(yaml: &str) -> (Objects, Report) {
    let mut objects = Objects::default();
    let mut report = Report::new();
    let sheet = Sheet::new("objects.yaml");
    for document in sheet.documents(yaml) {
        let text = |path: [&str; 1]| document.entry(path[0])?.node.text().map(str::to_owned);
        let written = text(["kind"]).expect("each document has a kind");
        let Some(kind) = KINDS.iter().find(|kind| kind.name == written) else { continue };
        let labels = document.entry("metadata").and_then(|m| m.node.entry("labels")).map(|labels| {
            let tidegate_model::yaml::Value::Mapping(entries) = &labels.node.value else {
                return Default::default();
            };
            let pairs =
                entries.iter().map(|e| (e.key.to_string(), e.node.text().unwrap_or_default().to_owned()));
            pairs.collect()
        });
        let selector = Selector::parse(kind.labels).expect("the selectors of watches are valid");
        if !selector.matches(&labels.unwrap_or_default()) {
            continue;
        }
        // JSON has no lines, so reports about the object contain only its name.
        let sent = serde_json::to_vec(&document).expect("a tree is valid JSON");
        let sent = serde_json::from_slice(&sent).expect("it was just serialized");
        let received = Received::new(kind, sent).expect("an object with a name");
        report.merge(&received.report);
        if let Some(Object::AddressPool(pool)) = received.content.object()
            && !pool.faults.is_empty()
        {
            // The pool stores its faults for its conditions. In a file it would be refused.
            pool.faults.iter().for_each(|fault| report.push(fault.clone()));
            continue;
        }
        if let Some(object) = received.content.object() {
            object.meta().faults.iter().for_each(|fault| report.push(fault.clone()));
            (kind.put)(&mut objects, &object.meta().key, object);
        }
    }
    slices::remove_unused(&mut objects);
    assert_eq!(sheet.errors(), 0, "{}", sheet.into_report());
    (objects, report)
}
