//! Converts JSON to the same tree as YAML, so that the readers of manifests also decode objects of an API server.
//!
//! Values have no position (line 0); the decoder names the object instead. To save a tree on disk, it is written as
//! JSON again. A manifest in JSON is read as YAML, for its positions: [`values`] separates consecutive values, and
//! [`as_yaml`] replaces JSON escapes that YAML does not have.
//!
//! Invariant: a value that is nested too deeply affects nothing else. API servers store such values in `managedFields`,
//! which users write, and otherwise the parser would refuse a whole list of objects because of one such value.

use std::borrow::Cow;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use super::{DEPTH_MAX, Entry, Node, Position, Scalar, ScalarKind, Value};

/// The position of values that were not read from a file.
const NOWHERE: Position = Position { line: 0, column: 0 };

/// The white space of JSON.
const BLANKS: [char; 4] = [' ', '\t', '\n', '\r'];

/// Splits consecutive JSON values, as in JSON lines, into parts with their offsets, each of which is a document. YAML
/// needs a separator between documents, but `kubectl` reads JSON without one. The text after the last value belongs to
/// the last part, so any other text is one part.
pub(super) fn values(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_begin = move |from: usize| text[from..].trim_start_matches(BLANKS).starts_with(['{', '[']);
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let (mut next, mut is_over) = (0, false);
    std::iter::from_fn(move || {
        if is_over {
            return None;
        }
        let begin = next;
        let is_value = is_begin(begin) && values.next().is_some_and(|value| value.is_ok());
        let end = values.byte_offset();
        is_over = !(is_value && is_begin(end));
        if is_over {
            return Some((begin, &text[begin..]));
        }
        next = text.len() - text[end..].trim_start_matches(BLANKS).len();
        Some((begin, &text[begin..end]))
    })
}

/// Replaces escapes where JSON is not YAML: JSON escapes a character above U+FFFF as a surrogate pair (RFC 8259
/// section 7), and YAML as `\U` with eight digits. What follows on the same line moves by two columns. Other texts
/// are returned unchanged.
pub(super) fn as_yaml(text: &str) -> Cow<'_, str> {
    let may_be_json = text.trim_start().starts_with(['{', '[']) && text.contains("\\u");
    if !may_be_json || pairs(text).next().is_none() || serde_json::from_str::<IgnoredAny>(text).is_err() {
        return Cow::Borrowed(text);
    }
    let (mut yaml, mut from) = (String::with_capacity(text.len()), 0);
    for (at, character) in pairs(text) {
        yaml.push_str(&text[from..at]);
        yaml.push_str(&format!("\\U{:08x}", u32::from(character)));
        from = at + PAIR_BYTES;
    }
    yaml.push_str(&text[from..]);
    Cow::Owned(yaml)
}

/// The length of an escape such as `\u00e9`, and of two of them.
const ESCAPE_BYTES: usize = 6;
const PAIR_BYTES: usize = 2 * ESCAPE_BYTES;

/// The surrogate pairs of a JSON text: the offset and the character of each.
fn pairs(text: &str) -> impl Iterator<Item = (usize, char)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            at += text.get(at..)?.find('\\')?;
            let pair = text.get(at..at + PAIR_BYTES).and_then(pair);
            let begin = at;
            // The character after a backslash belongs to its escape, even if it is a backslash. No other byte of an
            // escape is a backslash.
            at += if pair.is_some() { PAIR_BYTES } else { 1 + text[at + 1..].chars().next()?.len_utf8() };
            if let Some(character) = pair {
                return Some((begin, character));
            }
        }
    })
}

/// The character of two escapes, if they are a surrogate pair.
fn pair(text: &str) -> Option<char> {
    let unit = |escape: &str| {
        let digits = escape.strip_prefix("\\u")?;
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hex.then(|| u16::from_str_radix(digits, 16).ok())?
    };
    let (high, low) = (unit(text.get(..ESCAPE_BYTES)?)?, unit(text.get(ESCAPE_BYTES..)?)?);
    // A single surrogate is an error, and any other pair of units is two characters.
    let is_pair = (0xd800..0xdc00).contains(&high) && (0xdc00..0xe000).contains(&low);
    is_pair.then(|| char::decode_utf16([high, low]).next()?.ok())?
}

impl Node {
    fn without_position(value: Value) -> Self {
        Self { at: NOWHERE, value }
    }

    fn scalar(text: impl Into<String>, kind: ScalarKind) -> Self {
        Self::without_position(Value::Scalar(Scalar { text: text.into(), kind }))
    }

    /// Whether it was read from a file, and so has positions.
    pub(super) fn has_position(&self) -> bool {
        self.at != NOWHERE
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Json { depth: 0 }.deserialize(deserializer)
    }
}

/// Reads a value at this nesting depth.
#[derive(Clone, Copy)]
struct Json {
    depth: usize,
}

impl Json {
    /// The reader for the values inside this one.
    fn below(self) -> Self {
        Self { depth: self.depth + 1 }
    }
}

impl<'de> DeserializeSeed<'de> for Json {
    type Value = Node;

    /// Reads a value that is nested more deeply than a manifest may be as null. The parser skips it without a limit.
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        if self.depth > DEPTH_MAX {
            IgnoredAny::deserialize(deserializer)?;
            return Ok(Node::scalar("", ScalarKind::Null));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Json {
    type Value = Node;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::scalar("", ScalarKind::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::scalar(value.to_string(), ScalarKind::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::scalar(value.to_string(), ScalarKind::Int(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        let kind = i64::try_from(value).map_or(ScalarKind::Float(value as f64), ScalarKind::Int);
        Ok(Node::scalar(value.to_string(), kind))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::scalar(value.to_string(), ScalarKind::Float(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::scalar(value, ScalarKind::Text))
    }

    fn visit_string<E>(self, value: String) -> Result<Node, E> {
        Ok(Node::scalar(value, ScalarKind::Text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(self.below())? {
            items.push(item);
        }
        Ok(Node::without_position(Value::Sequence(items)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            entries.push(Entry { key, at: NOWHERE, node: map.next_value_seed(self.below())? });
        }
        Ok(Node::without_position(Value::Mapping(entries)))
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.value {
            Value::Scalar(scalar) => match scalar.kind {
                ScalarKind::Null => serializer.serialize_unit(),
                ScalarKind::Bool(value) => serializer.serialize_bool(value),
                ScalarKind::Int(value) => serializer.serialize_i64(value),
                ScalarKind::Float(value) => serializer.serialize_f64(value),
                ScalarKind::Text => serializer.serialize_str(&scalar.text),
            },
            Value::Sequence(items) => {
                let mut seq = serializer.serialize_seq(Some(items.len()))?;
                items.iter().try_for_each(|item| seq.serialize_element(item))?;
                seq.end()
            }
            Value::Mapping(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                entries.iter().try_for_each(|entry| map.serialize_entry(&entry.key, &entry.node))?;
                map.end()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_read_as_yaml_reads_it_and_written_back() {
        let text = r#"{"a":[1,-2,2.5,true,null,"yes","0644"],"b":{"c":{}},"d":18446744073709551615}"#;
        let from_json: Node = serde_json::from_str(text).expect("JSON");
        let parsed = crate::yaml::parse(text);
        let strip = |node: &Node| serde_json::to_string(node).expect("a tree");
        let list = |node: &Node| strip(&node.entry("a").expect("it has one").node);
        assert_eq!(list(&from_json), list(&parsed.documents[0]));
        assert_eq!(list(&from_json), r#"[1,-2,2.5,true,null,"yes","0644"]"#);
        assert_eq!(strip(&from_json).split(",\"d\"").next(), text.split(",\"d\"").next());
        assert!(!from_json.has_position());
    }

    #[test]
    fn values_nested_too_deeply_are_left_out_and_all_others_are_read() {
        for (open, close) in [("[", "]"), ("{\"f:a\":", "}")] {
            let deep = format!("{}1{}", open.repeat(10_000), close.repeat(10_000));
            let text = format!("[{{\"before\":1,\"deep\":{deep},\"after\":2}},3]");
            let node: Node = serde_json::from_str(&text).expect("JSON");
            let Value::Sequence(items) = &node.value else { panic!("a list") };
            let of_first = |key| items[0].entry(key).and_then(|entry| entry.node.text().map(str::to_owned));
            assert_eq!((of_first("before").as_deref(), of_first("after").as_deref()), (Some("1"), Some("2")));
            let written = serde_json::to_string(&node).expect("a tree");
            assert!(written.contains("null") && written.len() < 1_000, "{written}");
        }
    }
}
