//! Label selectors in the two forms of Kubernetes: `matchLabels` and `matchExpressions`.
//!
//! Pools use them to select the Services that may get addresses. Annotations use the text form to select nodes. Pure.

use std::fmt;

use super::Labels;
use crate::yaml::text;

/// A label selector. All requirements must be met. The empty selector selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    /// Labels that must exist with exactly these values.
    pub match_labels: Labels,
    /// Further requirements.
    pub match_expressions: Vec<Expression>,
}

/// One of `matchExpressions`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    /// Label key.
    pub key: String,
    /// The requirement on the label.
    pub operator: Operator,
}

/// The operator of an expression with its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operator {
    /// The label exists with one of these values.
    In(Vec<String>),
    /// The label is absent or has none of these values.
    NotIn(Vec<String>),
    /// The label exists.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

impl Selector {
    /// A selector that matches nothing, which replaces an invalid selector.
    #[must_use]
    pub fn none() -> Self {
        let nothing = Expression { key: String::new(), operator: Operator::In(Vec::new()) };
        Self { match_labels: Labels::new(), match_expressions: vec![nothing] }
    }

    /// The values that [`Selector::parse`] accepts.
    pub const ACCEPTED: &'static str =
        "a label selector such as disk=ssd,zone in (a, b),!spot (key, !key, =, ==, !=, in, notin)";

    /// Parses the text form of `kubectl -l`. Requirements are separated by commas, and all must be met.
    ///
    /// ```
    /// use tidegate_model::objects::{Labels, Selector};
    /// let selector = Selector::parse("disk=ssd, zone in (a, b)").expect("it is one");
    /// assert!(selector.matches(&Labels::from([("disk".into(), "ssd".into()), ("zone".into(), "b".into())])));
    /// assert!(Selector::parse("disk=ssd=fast").is_none());
    /// ```
    pub fn parse(selector: &str) -> Option<Self> {
        let mut rest = selector.trim();
        let mut parsed = Self::default();
        while !rest.is_empty() {
            // A comma in parentheses belongs to a list of values.
            let end = match (rest.find('('), rest.find(',')) {
                (Some(open), Some(comma)) if open < comma => rest.find(')')? + 1,
                (_, Some(comma)) => comma,
                (_, None) => rest.len(),
            };
            let (requirement, after) = rest.split_at(end);
            parsed.match_expressions.push(Expression::parse(requirement.trim())?);
            rest = match after.trim_start() {
                "" => "",
                after => Some(after.strip_prefix(',')?.trim_start()).filter(|more| !more.is_empty())?,
            };
        }
        Some(parsed)
    }

    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.match_labels.iter().all(|(k, v)| labels.get(k) == Some(v))
            && self.match_expressions.iter().all(|e| e.matches(labels))
    }
}

/// The text form of `kubectl -l`, sorted, so that it is equal for selectors with the same requirements.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels = self.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
        let mut shown: Vec<String> =
            labels.chain(self.match_expressions.iter().map(Expression::shown)).collect();
        shown.sort_unstable();
        shown.dedup();
        f.write_str(&shown.join(","))
    }
}

impl Expression {
    fn shown(&self) -> String {
        let Self { key, operator } = self;
        let list = |values: &[String]| {
            let mut values = values.to_vec();
            values.sort_unstable();
            values.join(",")
        };
        match operator {
            Operator::In(values) => format!("{key} in ({})", list(values)),
            Operator::NotIn(values) => format!("{key} notin ({})", list(values)),
            Operator::Exists => key.clone(),
            Operator::DoesNotExist => format!("!{key}"),
        }
    }

    fn parse(requirement: &str) -> Option<Self> {
        let one = |value: &str| text::is_label_value(value.trim()).then(|| vec![value.trim().to_owned()]);
        let (key, operator) = if let Some((key, value)) = requirement.split_once("!=") {
            (key, Operator::NotIn(one(value)?))
        } else if let Some((key, value)) =
            requirement.split_once("==").or_else(|| requirement.split_once('='))
        {
            (key, Operator::In(one(value)?))
        } else if let Some(list) = requirement.strip_suffix(')') {
            let (head, values) = list.split_once('(')?;
            let values = values.split(',').map(str::trim);
            let values: Option<Vec<String>> =
                values.map(|v| text::is_label_value(v).then(|| v.to_owned())).collect();
            match head.trim().rsplit_once(char::is_whitespace)? {
                (key, "in") => (key, Operator::In(values?)),
                (key, "notin") => (key, Operator::NotIn(values?)),
                _ => return None,
            }
        } else if let Some(key) = requirement.strip_prefix('!') {
            (key, Operator::DoesNotExist)
        } else {
            (requirement, Operator::Exists)
        };
        let key = key.trim();
        text::is_qualified_name(key).then(|| Self { key: key.to_owned(), operator })
    }

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
    fn the_text_form_is_that_of_kubectl() {
        let labels = Labels::from([("disk".into(), "ssd".into()), ("zone".into(), "b".into())]);
        for (selector, expected) in [
            ("", true),
            ("disk=ssd", true),
            ("disk == ssd , zone in (a,b)", true),
            ("zone in (a, c)", false),
            ("zone notin (a, c),!spot", true),
            ("disk", true),
            ("!disk", false),
            ("disk!=hdd", true),
            ("spot!=yes", true),
            ("disk=", false),
        ] {
            assert_eq!(Selector::parse(selector).map(|s| s.matches(&labels)), Some(expected), "{selector}");
        }
        for faulty in
            [",", "disk=ssd,", "disk=a=b", "disk=a b", "zone in a", "zone in (a", "zone of (a)", "a b", "=x"]
        {
            assert_eq!(Selector::parse(faulty), None, "{faulty}");
        }
    }

    #[test]
    fn a_selector_is_shown_as_kubectl_reads_it_whatever_its_order() {
        for (written, shown) in [
            ("zone in (b, a),disk", "disk,zone in (a,b)"),
            ("disk , zone in (a,b)", "disk,zone in (a,b)"),
            ("!spot,zone notin (c)", "!spot,zone notin (c)"),
            ("", ""),
        ] {
            let selector = Selector::parse(written).expect("it is one");
            assert_eq!(selector.to_string(), shown, "{written}");
            assert_eq!(Selector::parse(shown).map(|s| s.to_string()).as_deref(), Some(shown));
        }
        let labels = Labels::from([("zone".into(), "a".into())]);
        let selector = Selector { match_labels: labels, match_expressions: Vec::new() };
        assert_eq!(selector.to_string(), "zone=a");
    }

    #[test]
    fn a_selector_matches_only_if_every_requirement_does() {
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
