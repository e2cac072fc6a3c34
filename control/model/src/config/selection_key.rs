//! `selectionKey`: the secret with which all gateways of a fleet choose backends, from the configuration or from a
//! file.

use tidegate_structures::selection_key::SelectionKey;

use super::files::Files;
use super::section::secret_section;
use crate::yaml::{Field, Fields};

const ACCEPTED: &str =
    "32 hexadecimal digits, such as the output of `openssl rand -hex 16`, the same on all gateways";

pub(super) fn decode(parent: &Fields<'_>, files: &Files<'_>) -> Option<SelectionKey> {
    secret_section(parent, "selectionKey", |fields| {
        let (value, file) = (fields.get("value"), fields.get("file"));
        if value.is_none() && file.is_none() {
            fields.itself().error("neither value nor file is given", "either value or file");
        }
        if let (Some(_), Some(file)) = (&value, &file) {
            file.error("both value and file are given", "either value or file");
        }
        match (value, file) {
            (Some(value), _) => {
                let text = value.secret(ACCEPTED)?;
                files.keep_inline_secret(&value, text);
                key(&value, text)
            }
            // A gateway with an outdated key would choose other backends than its peers, so no copy of the file is used.
            (None, Some(file)) => files.secret(&file, |_, text| key(&file, text)),
            (None, None) => None,
        }
    })
}

/// Parses a key. Errors never repeat the text, which may be most of a key.
fn key(field: &Field<'_>, text: &str) -> Option<SelectionKey> {
    let key = SelectionKey::from_hex(text.trim());
    if key.is_none() {
        let count = text.trim().chars().count();
        field.error(format_args!("the text of {count} characters is not a key"), ACCEPTED);
    }
    key
}
