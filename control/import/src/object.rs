//! The objects of the input: documents of files, the items of lists, and objects of an API server.

use tidegate_model::diagnostic::{Diagnostic, Location, Report};
use tidegate_model::objects::Labels;
use tidegate_model::yaml::{Entry, Field, Fields, Node, Scalar, ScalarKind, Sheet, Value};

use crate::note::{NoteKind, Notes};

/// The annotation that `kubectl apply` adds.
pub(crate) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The keys of `metadata` that an API server adds.
pub(crate) const ADDED: [&str; 6] =
    ["creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid"];

/// The text of all files, or the objects of an API server.
#[derive(Debug, Default)]
pub struct Input {
    sources: Vec<(Sheet, Vec<Node>)>,
}

impl Input {
    /// Adds a file with YAML or JSON documents. `file` is its name in messages.
    pub fn file(&mut self, file: &str, text: &str) {
        let sheet = Sheet::new(file);
        let mut documents = sheet.documents(text);
        if sheet.errors() == 0 && documents.iter().all(Node::is_null) {
            let empty = Diagnostic::error("the file contains no object").accepting("Kubernetes manifests");
            sheet.push(empty.at(Location::start_of(file)));
        }
        documents.iter_mut().for_each(|document| crate::metallb::unfold_config(&sheet, document, text));
        self.sources.push((sheet, documents));
    }

    /// Adds the answer of an API server: an object, or a list of objects.
    pub fn stored(&mut self, mut answer: Node) {
        let kind = text(&answer, &["kind"]);
        let Value::Mapping(entries) = &mut answer.value else { return };
        let items = entries.iter_mut().find(|entry| entry.key == "items").filter(|_| kind.ends_with("List"));
        let items = items.map(|items| std::mem::replace(&mut items.node.value, Value::Sequence(Vec::new())));
        let Some(Value::Sequence(items)) = items else { return self.stored_object(answer) };
        for mut item in items {
            // The items of lists of built-in kinds lack both.
            if let Value::Mapping(fields) = &mut item.value {
                let known = [
                    ("kind", kind.trim_end_matches("List").to_owned()),
                    ("apiVersion", text(&answer, &["apiVersion"])),
                ];
                for (key, value) in known {
                    if !fields.iter().any(|field| field.key == key) {
                        let value = Value::Scalar(Scalar { text: value, kind: ScalarKind::Text });
                        let node = Node { at: item.at, value };
                        fields.push(Entry { key: key.to_owned(), at: item.at, node });
                    }
                }
            }
            self.stored_object(item);
        }
    }

    fn stored_object(&mut self, mut object: Node) {
        let (kind, namespace) = (text(&object, &["kind"]), text(&object, &["metadata", "namespace"]));
        let slash = if namespace.is_empty() { "" } else { "/" };
        let name = text(&object, &["metadata", "name"]);
        let sheet = Sheet::of_stored(format!("{kind} {namespace}{slash}{name}"));
        crate::metallb::unfold_config(&sheet, &mut object, "");
        self.sources.push((sheet, vec![object]));
    }

    /// All objects. A document that is not an object is an error.
    pub(crate) fn objects(&self) -> Vec<Object<'_>> {
        let mut objects = Vec::new();
        for (sheet, documents) in &self.sources {
            for document in documents.iter().filter(|document| !document.is_null()) {
                collect(&Field::document(sheet, document), &mut objects);
            }
        }
        objects
    }

    /// All faults of the input.
    pub(crate) fn into_report(self) -> Report {
        let mut report = Report::new();
        self.sources.into_iter().for_each(|(sheet, _)| report.merge(&sheet.into_report()));
        report
    }
}

/// A text in nested mappings; empty if it is missing.
fn text(node: &Node, keys: &[&str]) -> String {
    let found = keys.iter().try_fold(node, |node, key| Some(&node.entry(key)?.node));
    found.and_then(Node::text).unwrap_or_default().to_owned()
}

/// Adds the object of a document, or those of a list.
fn collect<'a>(document: &Field<'a>, objects: &mut Vec<Object<'a>>) {
    let Some(root) = document.fields() else { return };
    let kind = root.required("kind", "the kind of a Kubernetes object").and_then(|f| f.string());
    let api_version = root.required("apiVersion", "such as v1").and_then(|f| f.string());
    let (Some(kind), Some(api_version)) = (kind, api_version) else { return };
    if kind.ends_with("List") && root.get("items").is_some() {
        root.items("items").iter().for_each(|item| collect(item, objects));
        return;
    }
    let Some(metadata) = root.required("metadata", "metadata with a name").and_then(|f| f.fields()) else {
        return;
    };
    let Some(name) = metadata.required("name", "the name of the object").and_then(|f| f.string()) else {
        return;
    };
    let labels = metadata.get("labels").map(|f| f.labels()).unwrap_or_default();
    let namespace = metadata.get("namespace").and_then(|f| f.string()).unwrap_or_default();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    objects.push(Object { kind, group, version, name, namespace, labels, root, metadata });
}

/// One object that is being read.
#[derive(Debug)]
pub(crate) struct Object<'a> {
    pub(crate) kind: &'a str,
    /// The group of its API; empty for the core group.
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) name: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) labels: Labels,
    pub(crate) root: Fields<'a>,
    pub(crate) metadata: Fields<'a>,
}

impl<'a> Object<'a> {
    /// The whole object, as the position for notes and errors.
    pub(crate) fn itself(&self) -> &Field<'a> {
        self.root.itself()
    }

    /// Its `spec`; `None` if it has none.
    pub(crate) fn spec(&self) -> Option<Fields<'a>> {
        self.root.mapping("spec")
    }

    /// Where a message about the whole object points.
    pub(crate) fn location(&self) -> Location {
        self.itself().sheet.location(self.itself().at())
    }

    /// Reports what was not read, except what an API server or `kubectl` adds. `with_labels` is false if the labels
    /// have no counterpart.
    pub(crate) fn finish(&self, notes: &Notes, with_labels: bool) {
        if !with_labels {
            notes.key(NoteKind::NoCounterpart, &self.metadata, "labels", "not converted");
        }
        self.metadata.allow(&ADDED);
        if let Some(annotations) = self.metadata.mapping("annotations") {
            annotations.allow(&[LAST_APPLIED]);
            notes.rest(&annotations);
        }
        notes.rest(&self.metadata);
        self.root.allow(&["status"]);
        notes.rest(&self.root);
    }

    /// Reports that the object is not converted. Objects of an API server were not chosen by the operator, so there is
    /// no report for them.
    pub(crate) fn skip(&self, notes: &Notes, why: &str) {
        if self.itself().sheet.is_stored() {
            return;
        }
        notes.add(NoteKind::NoCounterpart, self.itself(), format_args!("{} {}: {why}", self.kind, self.name));
    }
}
