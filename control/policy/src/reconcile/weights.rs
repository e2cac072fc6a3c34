//! The share of new flows of an endpoint or a node: `tidegate.dev/weight`.
//!
//! The weight of an endpoint is its Pod's, otherwise its Node's, otherwise 1. A weight of 2 doubles the flows, and 0
//! means none. Pure. An invalid value is reported at its object, and the next weight in this order is used.

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{Metadata, Node, Objects, ResolvedEndpoint};
use tidegate_model::yaml::text;

use super::annotations::{annotation_field, key};
use super::finding::{Finding, ObjectKind, Reason};

pub(super) const WEIGHT: u16 = 1;

#[derive(Debug, Clone, Copy)]
pub(super) struct Weights<'a> {
    pub(super) objects: &'a Objects,
}

impl Weights<'_> {
    /// The weight of an endpoint: its Pod's, otherwise its Node's, otherwise 1.
    pub(super) fn of_endpoint(&self, endpoint: &ResolvedEndpoint, findings: &mut Vec<Finding>) -> u16 {
        let pod = endpoint.pod.as_ref().and_then(|key| self.objects.pods.get(key));
        let node = endpoint.node.as_ref().and_then(|name| self.objects.nodes.get(name));
        let both =
            [pod.map(|pod| (ObjectKind::Pod, &pod.meta)), node.map(|node| (ObjectKind::Node, &node.meta))];
        both.into_iter().flatten().find_map(|(kind, meta)| decoded(kind, meta, findings)).unwrap_or(WEIGHT)
    }

    /// The weight of a node that is a backend itself.
    pub(super) fn of_node(&self, node: &Node, findings: &mut Vec<Finding>) -> u16 {
        decoded(ObjectKind::Node, &node.meta, findings).unwrap_or(WEIGHT)
    }
}

fn decoded(kind: ObjectKind, meta: &Metadata, findings: &mut Vec<Finding>) -> Option<u16> {
    let value = meta.annotations.get(key::WEIGHT)?;
    if let Ok(weight) = value.trim().parse() {
        return Some(weight);
    }
    let value = text::shown(value);
    let what = format!("annotation {}: {value:?} is invalid: the default is used", key::WEIGHT);
    let diagnostic = Diagnostic::error(what).accepting("a number, 0 (no new flows) to 65535");
    findings.push(Finding::of(kind, meta, &annotation_field(key::WEIGHT), Reason::InvalidValue, diagnostic));
    None
}
