//! The ConfigMap that configured MetalLB before version 0.13: its text is parsed, and its keys get the names that the
//! current resources have, so that the same code reads both. Values keep their positions in the file.

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::yaml::{Node, Position, Sheet, Value, parse};

/// Keys whose name in the resources is not the same in another case.
const RENAMED: [(&str, &str); 6] = [
    ("peer-asn", "peerASN"),
    ("my-asn", "myASN"),
    ("router-id", "routerID"),
    ("localpref", "localPref"),
    ("ebgp-multihop", "ebgpMultiHop"),
    ("avoid-buggy-ips", "avoidBuggyIPs"),
];

/// Replaces the text `data.config` of MetalLB's ConfigMap with the mapping that it contains. `file` is the text of
/// the file.
pub(crate) fn unfold_config(sheet: &Sheet, document: &mut Node, file: &str) {
    let is_config_map = document.entry("kind").and_then(|kind| kind.node.text()) == Some("ConfigMap");
    let Some(config) = is_config_map.then(|| config_of(document)).flatten() else { return };
    let Some(text) = config.text().filter(|text| text.contains("address-pools:")).map(str::to_owned) else {
        return;
    };
    let place = place(file, &text, config.at);
    let parsed = parse(&text);
    for fault in parsed.faults {
        sheet.push(
            Diagnostic::error(fault.what).accepting(fault.accepted).at(sheet.location(place(fault.at))),
        );
    }
    if let Some(mut content) = parsed.documents.into_iter().next() {
        convert(&mut content, &place, true);
        *config = content;
    }
}

fn config_of(document: &mut Node) -> Option<&mut Node> {
    ["data", "config"].into_iter().try_fold(document, |node, key| {
        let Value::Mapping(entries) = &mut node.value else { return None };
        Some(&mut entries.iter_mut().find(|entry| entry.key == key)?.node)
    })
}

/// Maps positions in the text of a scalar to positions in its file. A block (`config: |`) is found by its first line.
/// In other scalars, everything has the position of the scalar, `at`.
fn place(file: &str, text: &str, at: Position) -> impl Fn(Position) -> Position {
    let first = text.lines().position(|line| !line.trim().is_empty()).unwrap_or(0);
    let line = text.lines().nth(first).unwrap_or_default();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let from = at.line.saturating_sub(1) as usize;
    let in_file = file.lines().enumerate().skip(from).find(|(_, other)| other.trim() == line.trim());
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let moved = in_file.map(|(n, other)| {
        (number(n - first.min(n)), number(indent(other) - indent(line).min(indent(other))))
    });
    move |inner| match moved {
        Some((lines, columns)) => Position { line: inner.line + lines, column: inner.column + columns },
        None => at,
    }
}

/// Moves all positions, and renames the keys, except those below `bgp-communities`, which are names of users.
fn convert(node: &mut Node, place: &impl Fn(Position) -> Position, with_keys: bool) {
    node.at = place(node.at);
    match &mut node.value {
        Value::Scalar(_) => {}
        Value::Sequence(items) => items.iter_mut().for_each(|item| convert(item, place, with_keys)),
        Value::Mapping(entries) => {
            for entry in entries {
                entry.at = place(entry.at);
                let has_keys =
                    !matches!(entry.key.as_str(), "bgp-communities" | "match-labels" | "matchLabels");
                convert(&mut entry.node, place, with_keys && has_keys);
                if with_keys {
                    entry.key = renamed(&entry.key);
                }
            }
        }
    }
}

/// `peer-address` is `peerAddress`.
fn renamed(key: &str) -> String {
    if let Some((_, new)) = RENAMED.iter().find(|(old, _)| *old == key) {
        return (*new).to_owned();
    }
    let mut words = key.split('-');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |key, word| {
        let (head, tail) = word.split_at(word.chars().next().map_or(0, char::len_utf8));
        key + &head.to_uppercase() + tail
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_get_the_names_of_the_resources() {
        for (old, new) in [
            ("aggregation-length-v6", "aggregationLengthV6"),
            ("avoid-buggy-ips", "avoidBuggyIPs"),
            ("peer-asn", "peerASN"),
            ("name", "name"),
            ("", ""),
        ] {
            assert_eq!(renamed(old), new);
        }
    }
}
