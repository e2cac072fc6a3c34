//! Writes a value as YAML, for `-o yaml` and generated manifests, in the style of `kubectl`.
//!
//! `serde-saphyr` writes the text. It quotes strings that YAML 1.1 would read as another type. The tests check with our
//! own YAML reader that reading the text gives the same value.

use serde::Serialize;
use serde_saphyr::ser_options;

/// The document, with a newline at its end. Keys are sorted, as by `kubectl`.
///
/// # Errors
/// If JSON cannot represent the value, such as a map whose keys are not strings.
pub fn to_string(value: &impl Serialize) -> Result<String, serde_json::Error> {
    // A long message stays on one line, so that grep finds it.
    let options = ser_options! { folded_wrap_chars: usize::MAX };
    let value = serde_json::to_value(value)?;
    Ok(serde_saphyr::to_string_with_options(&value, options)
        .expect("every JSON value can be written as YAML"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::parse;
    use super::*;

    proptest! {
        #[test]
        fn our_own_reader_reads_what_was_written(text in ".{0,100}", lines in "[ -~\n]{0,200}", number in any::<i64>()) {
            let value = json!({"text": text, "lines": [lines, number], &text: null});
            let yaml = to_string(&value).expect("YAML");
            let read = parse(&yaml);
            prop_assert!(read.faults.is_empty(), "{yaml}\n{:?}", read.faults);
            prop_assert_eq!(serde_json::to_value(&read.documents).expect("JSON"), json!([value]), "{}", yaml);
        }
    }

    #[test]
    fn the_style_is_that_of_kubectl() {
        let value = json!({"kind": "List", "items": [{"name": "web", "ports": [80, 443]}, {"name": "db"}], "none": []});
        let expected = "items:\n- name: web\n  ports:\n  - 80\n  - 443\n- name: db\nkind: List\nnone: []\n";
        assert_eq!(to_string(&value).expect("YAML"), expected);
    }

    #[test]
    fn strings_that_yaml_would_read_as_another_type_are_quoted() {
        let message = "a message of more than eighty characters, which a reader looks for with grep, so it is not folded";
        for (s, written) in [
            ("true", "\"true\"\n"),
            ("yes", "\"yes\"\n"),
            ("0644", "\"0644\"\n"),
            ("12:30", "\"12:30\"\n"),
            ("", "\"\"\n"),
            ("a: b", "\"a: b\"\n"),
            ("two\nlines", "|-\n  two\n  lines\n"),
            ("10.0.0.1:80", "10.0.0.1:80\n"),
            ("default/web", "default/web\n"),
            (message, &format!("{message}\n")),
        ] {
            assert_eq!(to_string(&json!(s)).expect("YAML"), written);
        }
    }
}
