//! The kinds of the Gateway API (gateway.networking.k8s.io/v1) that a layer-4 gateway reads, with the defaults, limits
//! and rules of their definitions (standard channel, Gateway API 1.6).
//!
//! In a file, a violation of a rule is an error. In a stored object, only wrong types, missing fields and listeners
//! with the same name are errors, because another version of the definitions may have other rules. The part with the
//! error is left out, in such a way that the object never grants more than intended. Fields for layer 7 and TLS are
//! allowed and not read.

mod class;
mod gateway;
mod grant;
mod listeners;
mod route;
mod status;

pub(super) use class::read as read_class;
pub(super) use gateway::read as read_gateway;
pub(super) use grant::read as read_grant;
pub(super) use listeners::read_set as read_listener_set;
pub(super) use route::{read_tcp as read_tcp_route, read_udp as read_udp_route};

use tidegate_model::objects::Labels;
use tidegate_model::objects::gateway_api::{GROUP, ParentRef};
use tidegate_model::yaml::{Field, Fields, Unknown, Value, text};

use super::{limited, stored};

/// The rule for a text. Stored texts aren't checked.
struct Rule {
    check: fn(&str) -> bool,
    accepted: &'static str,
}

/// An API group. The core group is empty.
const API_GROUP: Rule = Rule {
    check: |group| group.is_empty() || text::is_rfc1123_subdomain(group),
    accepted: "an API group such as gateway.networking.k8s.io, or the empty text for the core group",
};

const KIND: Rule = Rule { check: is_kind, accepted: "a kind such as Gateway or Service" };

const NAMESPACE: Rule = Rule { check: text::is_rfc1123_label, accepted: "the name of a namespace" };

const NAME: Rule = Rule {
    check: |name| !name.is_empty() && name.len() <= 253,
    accepted: "the name of an object, at most 253 characters",
};

/// The name of a listener or of a rule.
const SECTION: Rule = Rule {
    check: text::is_rfc1123_subdomain,
    accepted: "a name of at most 253 characters of a-z, 0-9, - and ., alphanumeric at both ends (RFC 1123)",
};

const HOSTNAME: Rule = Rule {
    check: |name| name.len() <= 253 && text::is_rfc1123_subdomain(name.strip_prefix("*.").unwrap_or(name)),
    accepted: "a DNS name such as example.com or *.example.com",
};

impl Rule {
    fn read(&self, field: &Field<'_>) -> Option<String> {
        field.owned_where(|text| field.sheet.is_stored() || (self.check)(text), self.accepted)
    }

    /// The text of a required key.
    fn required(&self, of: &Fields<'_>, key: &'static str) -> Option<String> {
        self.read(&of.required(key, self.accepted)?)
    }

    /// The text of a key, if it has one.
    fn optional(&self, of: &Fields<'_>, key: &'static str) -> Option<String> {
        of.read(key, |field| self.read(field))
    }

    /// The text of a key with a default.
    fn or(&self, of: &Fields<'_>, key: &'static str, default: &str) -> Option<String> {
        of.get(key).map_or_else(|| Some(default.to_owned()), |field| self.read(&field))
    }
}

fn is_kind(kind: &str) -> bool {
    kind.len() <= 63
        && kind.starts_with(|c: char| c.is_ascii_alphabetic())
        && kind.ends_with(|c: char| c.is_ascii_alphanumeric())
        && kind.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// A name with a domain, such as `example.com/name`. `check` is the rule for the part after the slash.
fn is_domain_prefixed(text: &str, check: impl Fn(u8) -> bool) -> bool {
    text.split_once('/').is_some_and(|(domain, name)| {
        text::is_rfc1123_subdomain(domain) && !name.is_empty() && name.bytes().all(check)
    })
}

/// The characters after the domain of a controller name or of an address type.
fn is_path_character(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte)
}

/// Reads an item of a list. `None` if any part of it is invalid.
fn intact<T>(item: &Field<'_>, read: impl FnOnce(&Fields<'_>) -> Option<T>) -> Option<T> {
    let before = item.sheet.errors();
    let value = item.fields()?.whole(Unknown::Warned, read);
    value.filter(|_| item.sheet.errors() == before)
}

/// The items of a required list with at least one item. `what` is the item in messages.
fn required_items<'a>(of: &Fields<'a>, key: &'static str, max: usize, what: &str) -> Vec<Field<'a>> {
    let accepted = if max == 1 { format!("one {what}") } else { format!("1 to {max} {what}s") };
    let Some(list) = of.required(key, &accepted) else { return Vec::new() };
    let items = limited(of, key, max);
    if items.is_empty() && matches!(list.node.value, Value::Sequence(_)) {
        list.error("the list is empty", accepted);
    }
    items
}

/// Whether `parametersRef` is set. Its contents are checked, but not used.
fn has_parameters(of: &Fields<'_>) -> bool {
    let Some(field) = of.get("parametersRef") else { return false };
    if let Some(fields) = field.fields() {
        API_GROUP.required(&fields, "group");
        KIND.required(&fields, "kind");
        NAME.required(&fields, "name");
        NAMESPACE.optional(&fields, "namespace");
        fields.finish(Unknown::Warned);
    }
    true
}

/// The keys of a reference to a Gateway or ListenerSet.
fn parent_ref(of: &Fields<'_>) -> Option<ParentRef> {
    let (group, kind) = (API_GROUP.or(of, "group", GROUP), KIND.or(of, "kind", "Gateway"));
    let (namespace, name) = (NAMESPACE.optional(of, "namespace"), NAME.required(of, "name"));
    Some(ParentRef {
        group: group?,
        kind: kind?,
        namespace,
        name: name?,
        section_name: SECTION.optional(of, "sectionName"),
        port: of.read("port", Field::port),
    })
}

/// Labels or annotations with a maximum number. The keys are checked as those of labels.
fn limited_labels(of: &Fields<'_>, key: &'static str, max: usize, read: fn(&Field<'_>) -> Labels) -> Labels {
    let Some(field) = of.get(key) else { return Labels::new() };
    let labels = read(&field);
    if labels.len() > max && !field.sheet.is_stored() {
        field.error(format_args!("{} keys", labels.len()), format!("at most {max}"));
    }
    labels
}

/// `metadata.generation`.
fn generation(object: &Fields<'_>) -> i64 {
    object.mapping("metadata").map_or(0, |metadata| stored::number(&metadata, "generation"))
}
