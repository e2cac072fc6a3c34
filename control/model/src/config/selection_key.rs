//! `selectionKey`: the secret with which all gateways of a fleet choose backends, from the configuration or from a
//! file.

use tidegate_structures::selection_key::SelectionKey;

use super::files::Files;
use super::section::secret_section;
use crate::bounded_file;
use crate::yaml::{Field, Fields};

const ACCEPTED: &str =
    "32 hexadecimal digits, such as the output of `openssl rand -hex 16`, the same on all gateways";

/// The maximum size of a key file. A key has 32 characters.
const KEY_FILE_BYTES_MAX: u64 = 4 << 10;

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
            (None, Some(file)) => key_of_file(&file, files),
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

/// Reads the key from a file, such as a mounted Secret, ignoring surrounding white space. No copy of it is kept: a
/// gateway with an outdated key would choose other backends than its peers.
fn key_of_file(field: &Field<'_>, files: &Files<'_>) -> Option<SelectionKey> {
    let path = files.base.join(field.string_where(|t| !t.trim().is_empty(), "the path of a file")?);
    files.keep_secret(field, &path);
    let key = match bounded_file::read(&path, KEY_FILE_BYTES_MAX) {
        // Text that is not UTF-8 is not a key, and is reported as such.
        Ok(bytes) => key(field, &String::from_utf8_lossy(&bytes)),
        Err(error) => {
            field.error(format_args!("{} cannot be read: {error}", path.display()), error.accepted());
            None
        }
    };
    files.count(usize::from(key.is_none()));
    key
}
