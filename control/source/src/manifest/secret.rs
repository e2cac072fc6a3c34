//! Secrets of type `kubernetes.io/tls`, which only edges read. Secrets of other types are not read.
//!
//! Invariant: no message repeats a value of a Secret.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tidegate_model::objects::{Metadata, TlsSecret};
use tidegate_model::yaml::{Field, Fields, Unknown};

use super::object::Object;

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

pub(super) fn read(object: &Fields<'_>, meta: Metadata) -> Option<Object> {
    object.allow(&["immutable"]);
    let kind = object.read("type", Field::string);
    let (data, plain) = (object.get("data"), object.get("stringData"));
    if kind != Some("kubernetes.io/tls") {
        return None;
    }
    let data = data.and_then(|field| field.fields());
    let plain = plain.and_then(|field| field.fields());
    // An API server prefers `stringData`, and requires both keys.
    let value = |key: &'static str| {
        let plain = plain.as_ref().and_then(|fields| fields.get(key));
        let encoded = data.as_ref().and_then(|fields| fields.get(key));
        match (plain, encoded) {
            (Some(field), _) => field.secret("PEM").map(|text| Arc::from(text.as_bytes())),
            (None, Some(field)) => base64(&field),
            (None, None) => {
                let accepted = format!("{CERTIFICATE} and {KEY} in data or stringData");
                object.itself().error(format_args!("{key} is missing"), accepted);
                None
            }
        }
    };
    let (certificate, key) = (value(CERTIFICATE), value(KEY));
    // Other keys, such as ca.crt, are valid.
    data.into_iter().chain(plain).for_each(|fields| fields.finish(Unknown::Ignored));
    Some(Object::TlsSecret(Arc::new(TlsSecret { meta, certificate: certificate?, key: key? })))
}

fn base64(field: &Field<'_>) -> Option<Arc<[u8]>> {
    let text = field.secret("PEM in base64")?;
    let packed: String = text.split_ascii_whitespace().collect();
    let bytes = STANDARD.decode(packed).ok();
    if bytes.is_none() {
        field.error("the value is not base64", "PEM in base64");
    }
    bytes.map(Arc::from)
}
