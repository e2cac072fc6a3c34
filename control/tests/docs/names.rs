//! Checks that the documents contain every name of the Kubernetes API that the code uses: annotations, labels, taints,
//! conditions and finalizers, both our own and those of other vendors.

use std::collections::BTreeSet;

use crate::repository::{File, files};

/// Domains whose names need no documentation: those of `kubectl` and its plugins.
const OF_KUBECTL: [&str; 2] = ["client.authentication.k8s.io/", "kubectl.kubernetes.io/"];

/// The part of a file before its tests. Empty if the file has only tests or benchmarks.
fn production(file: &File) -> &str {
    let is_tests =
        file.path.starts_with("benches/") || file.path.split('/').any(|part| part.contains("test"));
    let text = if is_tests || !file.has_extension("rs") { "" } else { file.text.as_str() };
    text.split("\nmod tests {").next().unwrap_or_default()
}

/// Literals of the form `domain.tld/name`.
fn names(source: &str) -> impl Iterator<Item = &str> {
    source.match_indices('"').filter_map(|(at, _)| {
        let (literal, _) = source[at + 1..].split_once('"')?;
        let (domain, name) = literal.split_once('/')?;
        let is_plain = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
        let top_level = domain.rsplit_once('.')?.1;
        let is_name = is_plain(domain)
            && !domain.starts_with('.')
            && is_plain(name)
            && !name.is_empty()
            && top_level.bytes().all(|b| b.is_ascii_lowercase());
        is_name.then_some(literal)
    })
}

#[test]
fn every_kubernetes_api_name_in_the_code_is_documented() {
    let files = files();
    let is_document = |file: &&File| file.path.starts_with("docs/") && file.has_extension("md");
    let documents: String = files.iter().filter(is_document).map(|file| file.text.as_str()).collect();
    let known: BTreeSet<&str> = files.iter().flat_map(|file| names(production(file))).collect();
    assert!(known.len() > 60, "the names were read: {}", known.len());
    let is_foreign = |name: &&str| OF_KUBECTL.iter().any(|domain| name.starts_with(domain));
    let missing: Vec<&str> =
        known.into_iter().filter(|name| !is_foreign(name) && !documents.contains(name)).collect();
    assert!(missing.is_empty(), "no document says what these do: {missing:?}");
}

#[test]
fn every_aws_annotation_in_the_code_is_documented() {
    const KEY: &str = "key_of!(\"";
    let files = files();
    let compat = files.iter().find(|file| file.path == "docs/compat.md").expect("the document");
    let keys = files.iter().flat_map(|file| production(file).split(KEY).skip(1));
    let keys: BTreeSet<&str> =
        keys.filter_map(|rest| rest.split('"').next()).filter(|key| !key.is_empty()).collect();
    assert!(keys.len() > 10, "the keys were read: {keys:?}");
    for key in keys {
        assert!(compat.text.contains(&format!("`{key}`")), "{key}");
    }
}
