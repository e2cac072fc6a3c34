//! The JSON paths of printer columns: `.a.b`, `.a['b.c']`, `.a\.b`, `[0]`, `[*]`, `[?(@.type=="Ready")]`.

use serde_json::Value;

/// Returns the values that a path selects, in order.
pub(crate) fn find<'a>(object: &'a Value, path: &str) -> Vec<&'a Value> {
    let mut found = vec![object];
    for step in steps(path) {
        found = found.into_iter().flat_map(|value| take(value, &step)).collect();
    }
    found.retain(|value| !value.is_null());
    found
}

#[derive(Debug, PartialEq)]
enum Step {
    Field(String),
    Index(usize),
    All,
    /// Items whose field (a path) equals a text.
    Where(String, String),
}

fn take<'a>(value: &'a Value, step: &Step) -> Vec<&'a Value> {
    match step {
        Step::Field(name) => value.get(name).into_iter().collect(),
        Step::Index(index) => value.get(index).into_iter().collect(),
        Step::All => value.as_array().into_iter().flatten().collect(),
        Step::Where(path, text) => value
            .as_array()
            .into_iter()
            .flatten()
            .filter(|item| find(item, path).first().is_some_and(|found| found.as_str() == Some(text)))
            .collect(),
    }
}

fn steps(path: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(bracket) = rest.strip_prefix('[') {
            let Some((inside, after)) = close(bracket) else { break };
            steps.push(bracketed(inside));
            rest = after;
        } else {
            rest = rest.strip_prefix('.').unwrap_or(rest);
            let (mut name, mut end, mut escaped) = (String::new(), rest.len(), false);
            for (at, letter) in rest.char_indices() {
                match letter {
                    '\\' if !escaped => escaped = true,
                    '.' | '[' if !escaped => {
                        end = at;
                        break;
                    }
                    _ => {
                        name.push(letter);
                        escaped = false;
                    }
                }
            }
            if name.is_empty() && end == 0 && !rest.starts_with('[') {
                break;
            }
            if !name.is_empty() {
                steps.push(Step::Field(name));
            }
            rest = &rest[end..];
        }
    }
    steps
}

/// Splits at the closing bracket. Brackets in quotes do not count.
fn close(text: &str) -> Option<(&str, &str)> {
    let mut quote = None;
    for (at, letter) in text.char_indices() {
        match (quote, letter) {
            (None, '\'' | '"') => quote = Some(letter),
            (Some(open), _) if open == letter => quote = None,
            (None, ']') => return Some((&text[..at], &text[at + 1..])),
            _ => {}
        }
    }
    None
}

fn bracketed(inside: &str) -> Step {
    let unquoted =
        |text: &str| text.trim().trim_matches(|letter| letter == '\'' || letter == '"').to_string();
    if inside == "*" {
        return Step::All;
    }
    if let Ok(index) = inside.parse() {
        return Step::Index(index);
    }
    if let Some(test) = inside.strip_prefix("?(@").and_then(|test| test.strip_suffix(')'))
        && let Some((path, text)) = test.split_once("==")
    {
        return Step::Where(path.trim().into(), unquoted(text));
    }
    Step::Field(unquoted(inside))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_paths_of_printer_columns_are_found() {
        let object = json!({
            "spec": {"addresses": ["a", "b"]},
            "metadata": {"annotations": {"x.y/z": "1"}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Full", "status": "False"}]},
        });
        let first = |path: &str| find(&object, path).first().map(|value| Value::clone(value));
        assert_eq!(first(".spec.addresses[1]"), Some(json!("b")));
        assert_eq!(find(&object, ".spec.addresses[*]").len(), 2);
        assert_eq!(first(".status.conditions[?(@.type==\"Full\")].status"), Some(json!("False")));
        assert_eq!(first(r".metadata.annotations.x\.y/z"), Some(json!("1")));
        assert_eq!(first(".metadata.annotations['x.y/z']"), Some(json!("1")));
        assert_eq!(first(".none.such"), None);
    }
}
