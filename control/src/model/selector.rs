//! Label selectors in the two forms Kubernetes has: `matchLabels` and `matchExpressions`.
//!
//! Pools choose by them who may take their addresses. Pure.

use super::Labels;

/// A label selector: all of its requirements must hold. The empty one selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    /// Labels that must be there with exactly these values.
    pub match_labels: Labels,
    /// Requirements that must hold as well.
    pub match_expressions: Vec<Expression>,
}

/// One of `matchExpressions`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    /// Label key.
    pub key: String,
    /// How the label is judged.
    pub operator: Operator,
}

/// The operator of an expression with its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operator {
    /// The label is there with one of these values.
    In(Vec<String>),
    /// The label is absent or has none of these values.
    NotIn(Vec<String>),
    /// The label is there.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

impl Selector {
    /// Whether it holds for an object with these labels.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.match_labels.iter().all(|(k, v)| labels.get(k) == Some(v))
            && self.match_expressions.iter().all(|e| e.matches(labels))
    }
}

impl Expression {
    fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match &self.operator {
            Operator::In(values) => value.is_some_and(|v| values.contains(v)),
            Operator::NotIn(values) => value.is_none_or(|v| !values.contains(v)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_holds_only_when_every_requirement_does() {
        let labels = Labels::from([("scope".into(), "internal".into()), ("team".into(), "a".into())]);
        let with = |operator| Selector {
            match_labels: Labels::from([("scope".into(), "internal".into())]),
            match_expressions: vec![Expression { key: "team".into(), operator }],
        };
        for (operator, expected) in [
            (Operator::In(vec!["a".into(), "b".into()]), true),
            (Operator::In(vec!["b".into()]), false),
            (Operator::NotIn(vec!["a".into()]), false),
            (Operator::NotIn(vec!["b".into()]), true),
            (Operator::Exists, true),
            (Operator::DoesNotExist, false),
        ] {
            assert_eq!(with(operator.clone()).matches(&labels), expected, "{operator:?}");
        }
        assert!(!with(Operator::Exists).matches(&Labels::from([("team".into(), "a".into())])));
        assert!(Selector::default().matches(&Labels::new()));
    }
}
