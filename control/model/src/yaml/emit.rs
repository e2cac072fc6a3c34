//! Writes a JSON value as YAML, for `-o yaml`: block style, keys in the given order.
//!
//! Strings that YAML would read as another type are written in double quotes with JSON's escapes, which YAML shares.
//! The tests check with our own YAML reader that reading the text gives the same value.

use std::fmt::Write as _;

use serde_json::Value;

/// The document, with a newline at its end.
#[must_use]
pub fn to_string(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Object(_) | Value::Array(_) if !is_empty(value) => block(&mut text, value, 0),
        _ => {
            scalar(&mut text, value);
            text.push('\n');
        }
    }
    text
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// The lines of a collection that is not empty, the first one not indented: its place is where the caller is.
fn block(text: &mut String, value: &Value, indent: usize) {
    let mut first = true;
    let mut begin = |text: &mut String| {
        if !std::mem::take(&mut first) {
            write!(text, "{:indent$}", "").expect("writing to a String cannot fail");
        }
    };
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                begin(text);
                string(text, key);
                text.push(':');
                match value {
                    Value::Object(_) if !is_empty(value) => {
                        write!(text, "\n{:1$}", "", indent + 2).expect("writing to a String cannot fail");
                        block(text, value, indent + 2);
                    }
                    // As kubectl has it: the items of a list stand below their key, not right of it.
                    Value::Array(_) if !is_empty(value) => {
                        write!(text, "\n{:indent$}", "").expect("writing to a String cannot fail");
                        block(text, value, indent);
                    }
                    _ => {
                        text.push(' ');
                        scalar(text, value);
                        text.push('\n');
                    }
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                begin(text);
                text.push_str("- ");
                if matches!(item, Value::Object(_) | Value::Array(_)) && !is_empty(item) {
                    block(text, item, indent + 2);
                } else {
                    scalar(text, item);
                    text.push('\n');
                }
            }
        }
        _ => unreachable!("callers ask for collections"),
    }
}

fn scalar(text: &mut String, value: &Value) {
    match value {
        Value::String(s) => string(text, s),
        // Null, booleans, numbers and empty collections are written as in JSON.
        other => write!(text, "{other}").expect("writing to a String cannot fail"),
    }
}

fn string(text: &mut String, s: &str) {
    if is_plain(s) {
        text.push_str(s);
    } else {
        write!(text, "{}", Value::String(s.to_owned())).expect("writing to a String cannot fail");
    }
}

/// Whether a string is read back as itself without quotes: letters first, and no word that means something.
fn is_plain(s: &str) -> bool {
    const WORDS: [&str; 9] = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, ' ' | '-' | '_' | '.' | '/' | '(' | ')');
    s.starts_with(|c: char| c.is_ascii_alphabetic())
        && s.chars().all(inner)
        && !s.ends_with(' ')
        && !WORDS.contains(&s.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn looks_like_what_kubectl_prints() {
        let value = json!({"kind": "List", "items": [{"name": "web", "ports": [80, 443]}, {"name": "db"}], "none": []});
        let expected = "items:\n- name: web\n  ports:\n  - 80\n  - 443\n- name: db\nkind: List\nnone: []\n";
        assert_eq!(to_string(&value), expected);
    }

    #[test]
    fn strings_that_yaml_would_take_for_something_else_are_quoted() {
        for (s, written) in [
            ("10.0.0.1:80", "\"10.0.0.1:80\"\n"),
            ("true", "\"true\"\n"),
            ("", "\"\"\n"),
            ("a: b", "\"a: b\"\n"),
            ("two\nlines", "\"two\\nlines\"\n"),
            ("default/web", "default/web\n"),
        ] {
            assert_eq!(to_string(&json!(s)), written);
        }
    }
}
