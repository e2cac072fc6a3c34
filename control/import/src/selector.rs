//! Label selectors: read from the input, and written to pools.

use serde_json::{Value, json};
use tidegate_model::objects::{Expression, Labels, Operator, Selector};
use tidegate_model::yaml::Field;

use crate::note::Notes;

/// The label that each namespace has.
pub(crate) const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Reads `{matchLabels, matchExpressions}`.
pub(crate) fn read(notes: &Notes, field: &Field<'_>) -> Selector {
    let Some(fields) = field.fields() else { return Selector::none() };
    let match_labels = fields.get("matchLabels").map(|f| f.labels()).unwrap_or_default();
    let expressions = fields.items("matchExpressions");
    let match_expressions = expressions.iter().filter_map(|item| expression(notes, item)).collect();
    notes.rest(&fields);
    Selector { match_labels, match_expressions }
}

fn expression(notes: &Notes, item: &Field<'_>) -> Option<Expression> {
    let fields = item.fields()?;
    let key = fields.required("key", "a label key").and_then(|f| f.string());
    let values: Vec<String> =
        fields.items("values").iter().filter_map(|f| Some(f.string()?.to_owned())).collect();
    let choices = [("In", 0), ("NotIn", 1), ("Exists", 2), ("DoesNotExist", 3)];
    let operator = fields.required("operator", "In, NotIn, Exists, DoesNotExist");
    let operator = match operator.and_then(|f| f.one_of(&choices))? {
        0 => Operator::In(values),
        1 => Operator::NotIn(values),
        2 => Operator::Exists,
        _ => Operator::DoesNotExist,
    };
    notes.rest(&fields);
    Some(Expression { key: key?.to_owned(), operator })
}

/// A selector for namespaces with these names.
pub(crate) fn namespaces(names: Vec<String>) -> Selector {
    of_namespace(Operator::In(names))
}

/// A selector by the name of the namespace.
pub(crate) fn of_namespace(operator: Operator) -> Selector {
    let key = NAMESPACE_NAME.to_owned();
    Selector { match_labels: Labels::new(), match_expressions: vec![Expression { key, operator }] }
}

/// One selector that matches what at least one of these matches. `None` if there is no such selector: requirements on
/// different labels can only be combined with "and".
pub(crate) fn any_of(mut selectors: Vec<Selector>) -> Option<Selector> {
    if selectors.len() <= 1 {
        return Some(selectors.pop().unwrap_or_default());
    }
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for selector in &selectors {
        let Selector { match_labels, match_expressions } = selector;
        match (match_labels.iter().next(), match_expressions.as_slice()) {
            (Some((key, value)), []) if match_labels.len() == 1 => {
                keys.push(key);
                values.push(value.clone());
            }
            (None, [Expression { key, operator: Operator::In(some) }]) => {
                keys.push(key);
                values.extend_from_slice(some);
            }
            _ => return None,
        }
    }
    keys.dedup();
    let [key] = keys[..] else { return None };
    let only = Expression { key: key.clone(), operator: Operator::In(values) };
    Some(Selector { match_labels: Labels::new(), match_expressions: vec![only] })
}

/// The selector as in a manifest.
pub(crate) fn to_value(selector: &Selector) -> Value {
    let expression = |e: &Expression| match &e.operator {
        Operator::In(values) => json!({"key": e.key, "operator": "In", "values": values}),
        Operator::NotIn(values) => json!({"key": e.key, "operator": "NotIn", "values": values}),
        Operator::Exists => json!({"key": e.key, "operator": "Exists"}),
        Operator::DoesNotExist => json!({"key": e.key, "operator": "DoesNotExist"}),
    };
    let mut written = serde_json::Map::new();
    if !selector.match_labels.is_empty() {
        written.insert("matchLabels".to_owned(), json!(selector.match_labels));
    }
    if !selector.match_expressions.is_empty() {
        let expressions: Vec<Value> = selector.match_expressions.iter().map(expression).collect();
        written.insert("matchExpressions".to_owned(), expressions.into());
    }
    Value::Object(written)
}

/// Whether it has no requirement, or only one that every object meets in practice: Cilium's documentation selects all
/// Services with `{key: somekey, operator: NotIn, values: [never-used-value]}`.
pub(crate) fn selects_all(selector: &Selector) -> bool {
    let is_met =
        |e: &Expression| matches!(&e.operator, Operator::NotIn(values) if *values == ["never-used-value"]);
    selector.match_labels.is_empty() && selector.match_expressions.iter().all(is_met)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_of_one_label_are_combined_and_others_are_not() {
        let parse = |text: &str| Selector::parse(text).expect("a selector");
        let any =
            |texts: &[&str]| any_of(texts.iter().map(|text| parse(text)).collect()).map(|s| s.to_string());
        assert_eq!(any(&[]).as_deref(), Some(""));
        assert_eq!(any(&["a=1,b"]).as_deref(), Some("a in (1),b"));
        assert_eq!(any(&["a=1", "a in (2,3)"]).as_deref(), Some("a in (1,2,3)"));
        for apart in [&["a=1", "b=1"][..], &["a=1", "a!=2"], &["a=1", "a=1,b=2"], &["", "a=1"]] {
            assert_eq!(any(apart), None, "{apart:?}");
        }
    }
}
