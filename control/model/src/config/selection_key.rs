//! `selectionKey`: the secret with which all gateways of a fleet choose backends, from the configuration or from a
//! file.

use tidegate_structures::selection_key::SelectionKey;

use super::files::{Files, is_given_twice, secret_section};
use crate::yaml::Fields;

const ACCEPTED: &str =
    "32 hexadecimal digits, such as the output of `openssl rand -hex 16`, the same on all gateways";

pub(super) fn decode(parent: &Fields<'_>, files: &Files<'_>) -> Option<SelectionKey> {
    secret_section(parent, "selectionKey", |fields| {
        if fields.get("value").is_none() && fields.get("file").is_none() {
            fields.itself().error("neither value nor file is given", "either value or file");
        }
        is_given_twice(fields);
        files.key(fields, SelectionKey::from_hex, ACCEPTED)
    })
}
