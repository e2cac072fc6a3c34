//! Bodies in protocol buffers. kubectl sends them for objects from its typed clients (`create namespace`, `create
//! service`, `auth can-i`). A table of fields describes the few kinds that are needed. Answers are always JSON.
//!
//! The numbers are those of the `generated.proto` files of k8s.io/api and apimachinery. A field that is not in the
//! tables is refused and not silently dropped.

use serde_json::{Map, Value};

/// The prefix of every such body.
const MAGIC: &[u8] = b"k8s\0";

/// A field of a message: number, name, type.
type Field = (u64, &'static str, Type);

#[derive(Clone, Copy)]
enum Type {
    Text,
    Texts,
    Integer,
    Boolean,
    TextMap,
    BytesMap,
    Message(&'static [Field]),
    Messages(&'static [Field]),
    /// An integer or a string (`util/intstr`).
    IntOrString,
    /// A known field that clients do not write.
    Ignored,
}

use Type::{Boolean, BytesMap, Ignored, IntOrString, Integer, Message, Messages, Text, TextMap, Texts};

const METADATA: &[Field] = &[
    (1, "name", Text),
    (2, "generateName", Text),
    (3, "namespace", Text),
    (4, "selfLink", Ignored),
    (5, "uid", Text),
    (6, "resourceVersion", Text),
    (7, "generation", Integer),
    (8, "creationTimestamp", Ignored),
    (11, "labels", TextMap),
    (12, "annotations", TextMap),
    (14, "finalizers", Texts),
];

const NAMESPACE: &[Field] = &[
    (1, "metadata", Message(METADATA)),
    (2, "spec", Message(&[(1, "finalizers", Texts)])),
    (3, "status", Ignored),
];

const CONFIG_MAP: &[Field] =
    &[(1, "metadata", Message(METADATA)), (2, "data", TextMap), (3, "binaryData", BytesMap)];

const SECRET: &[Field] = &[(1, "metadata", Message(METADATA)), (2, "data", BytesMap), (3, "type", Text)];

const SERVICE_ACCOUNT: &[Field] = &[(1, "metadata", Message(METADATA))];

const SERVICE_PORT: &[Field] = &[
    (1, "name", Text),
    (2, "protocol", Text),
    (3, "port", Integer),
    (4, "targetPort", IntOrString),
    (5, "nodePort", Integer),
    (6, "appProtocol", Text),
];

const SERVICE_SPEC: &[Field] = &[
    (1, "ports", Messages(SERVICE_PORT)),
    (2, "selector", TextMap),
    (3, "clusterIP", Text),
    (4, "type", Text),
    (5, "externalIPs", Texts),
    (7, "sessionAffinity", Text),
    (8, "loadBalancerIP", Text),
    (9, "loadBalancerSourceRanges", Texts),
    (10, "externalName", Text),
    (11, "externalTrafficPolicy", Text),
    (12, "healthCheckNodePort", Integer),
    (13, "publishNotReadyAddresses", Boolean),
    (17, "ipFamilyPolicy", Text),
    (18, "clusterIPs", Texts),
    (19, "ipFamilies", Texts),
    (20, "allocateLoadBalancerNodePorts", Boolean),
    (21, "loadBalancerClass", Text),
    (22, "internalTrafficPolicy", Text),
];

const SERVICE: &[Field] =
    &[(1, "metadata", Message(METADATA)), (2, "spec", Message(SERVICE_SPEC)), (3, "status", Ignored)];

const RESOURCE_ATTRIBUTES: &[Field] = &[
    (1, "namespace", Text),
    (2, "verb", Text),
    (3, "group", Text),
    (4, "version", Text),
    (5, "resource", Text),
    (6, "subresource", Text),
    (7, "name", Text),
];

const REVIEW: &[Field] = &[
    (1, "metadata", Message(METADATA)),
    (
        2,
        "spec",
        Message(&[
            (1, "resourceAttributes", Message(RESOURCE_ATTRIBUTES)),
            (2, "nonResourceAttributes", Message(&[(1, "path", Text), (2, "verb", Text)])),
        ]),
    ),
    (3, "status", Ignored),
];

/// Decodes a body. `None` for a kind or field that is not in the tables, and for a body in another format.
pub(crate) fn decode(body: &[u8]) -> Option<Value> {
    let envelope = fields(body.strip_prefix(MAGIC)?)?;
    let part = |parts: &[(u64, Raw<'_>)], number: u64| -> Option<Vec<u8>> {
        parts.iter().find(|(one, _)| *one == number).and_then(|(_, raw)| raw.bytes().map(<[u8]>::to_vec))
    };
    let meta = part(&envelope, 1)?;
    let meta = fields(&meta)?;
    let text = |number| part(&meta, number).and_then(|bytes| String::from_utf8(bytes).ok());
    let (api_version, kind) = (text(1)?, text(2)?);
    let table = match (api_version.as_str(), kind.as_str()) {
        ("v1", "Namespace") => NAMESPACE,
        ("v1", "ConfigMap") => CONFIG_MAP,
        ("v1", "Secret") => SECRET,
        ("v1", "ServiceAccount") => SERVICE_ACCOUNT,
        ("v1", "Service") => SERVICE,
        ("authorization.k8s.io/v1", "SelfSubjectAccessReview") => REVIEW,
        _ => return None,
    };
    let raw = part(&envelope, 2)?;
    let mut object = message(&raw, table)?;
    object.insert("apiVersion".into(), api_version.into());
    object.insert("kind".into(), kind.into());
    Some(Value::Object(object))
}

enum Raw<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Raw<'a> {
    fn bytes(&self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Number(_) => None,
        }
    }

    fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Bytes(_) => None,
        }
    }
}

/// The fields of a message, in wire order.
fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, Raw<'_>)>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let raw = match tag & 7 {
            0 => Raw::Number(varint(&mut bytes)?),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let (value, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                Raw::Bytes(value)
            }
            _ => return None,
        };
        found.push((tag >> 3, raw));
    }
    Some(found)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Decodes a message by a table. Fields with zero values are omitted, because Go writes them even if they are not set.
fn message(bytes: &[u8], table: &[Field]) -> Option<Map<String, Value>> {
    let mut object = Map::new();
    for (number, raw) in fields(bytes)? {
        let &(_, name, kind) = table.iter().find(|(one, _, _)| *one == number)?;
        let text = || raw.bytes().and_then(|bytes| String::from_utf8(bytes.to_vec()).ok());
        let mut push = |value: Value| {
            let list = object.entry(name).or_insert_with(|| Value::Array(Vec::new()));
            list.as_array_mut().expect("made as a list").push(value);
        };
        let value: Value = match kind {
            Ignored => continue,
            Texts => {
                push(text()?.into());
                continue;
            }
            Messages(table) => {
                push(message(raw.bytes()?, table)?.into());
                continue;
            }
            TextMap | BytesMap => {
                let parts = fields(raw.bytes()?)?;
                let part =
                    |number| parts.iter().find(|(one, _)| *one == number).and_then(|(_, raw)| raw.bytes());
                let key = String::from_utf8(part(1).unwrap_or_default().to_vec()).ok()?;
                let bytes = part(2).unwrap_or_default();
                let value = if matches!(kind, BytesMap) {
                    crate::base64::base64(bytes)
                } else {
                    String::from_utf8(bytes.to_vec()).ok()?
                };
                let map = object.entry(name).or_insert_with(|| Value::Object(Map::new()));
                map.as_object_mut().expect("made as a map").insert(key, value.into());
                continue;
            }
            Text => text()?.into(),
            Integer => raw.number()?.into(),
            Boolean => (raw.number()? != 0).into(),
            Message(table) => message(raw.bytes()?, table)?.into(),
            IntOrString => int_or_string(raw.bytes()?)?,
        };
        let is_zero = value == "" || value == 0 || value.as_object().is_some_and(Map::is_empty);
        // A pointer to false is different from an absent field.
        if !is_zero {
            object.insert(name.into(), value);
        }
    }
    Some(object)
}

fn int_or_string(bytes: &[u8]) -> Option<Value> {
    let parts = fields(bytes)?;
    let part = |number| parts.iter().find(|(one, _)| *one == number).map(|(_, raw)| raw);
    if part(1).and_then(Raw::number) == Some(1) {
        let text = part(3).and_then(Raw::bytes)?;
        return String::from_utf8(text.to_vec()).ok().map(Value::String);
    }
    Some(part(2).and_then(Raw::number).unwrap_or(0).into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
    }

    fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), field(1, &meta), field(2, raw)].concat()
    }

    #[test]
    fn a_namespace_comes_out_as_it_went_in() {
        let label = [field(1, b"a"), field(2, b"b")].concat();
        let metadata = [field(1, b"shop"), field(2, b""), field(11, &label)].concat();
        let namespace = [field(1, &metadata), field(2, b""), field(3, &field(1, b""))].concat();
        assert_eq!(
            decode(&body("v1", "Namespace", &namespace)),
            Some(
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"a": "b"}}})
            )
        );
    }

    #[test]
    fn what_is_not_in_the_tables_or_cut_is_no_object() {
        assert_eq!(decode(&body("v1", "Pod", b"")), None);
        assert_eq!(decode(&body("v1", "Namespace", &field(9, b"x"))), None);
        let whole = body("v1", "Namespace", &field(1, &field(1, b"shop")));
        assert!(decode(&whole).is_some());
        for length in 0..whole.len() {
            assert_eq!(decode(&whole[..length]), None, "{length}");
        }
    }
}
