//! The rules for the texts of several kinds.

use tidegate_model::yaml::{Field, Fields, text};

/// The rule for a text. Stored texts aren't checked.
pub(super) struct Rule {
    pub(super) check: fn(&str) -> bool,
    pub(super) accepted: &'static str,
}

/// An API group. The core group is empty.
pub(super) const API_GROUP: Rule = Rule {
    check: |group| group.is_empty() || text::is_rfc1123_subdomain(group),
    accepted: "an API group such as gateway.networking.k8s.io, or the empty text for the core group",
};

pub(super) const KIND: Rule = Rule { check: is_kind, accepted: "a kind such as Gateway or Service" };

pub(super) const NAMESPACE: Rule =
    Rule { check: text::is_rfc1123_label, accepted: "the name of a namespace" };

pub(super) const NAME: Rule = Rule {
    check: |name| !name.is_empty() && name.len() <= 253,
    accepted: "the name of an object, at most 253 characters",
};

/// The name of a listener or of a rule.
pub(super) const SECTION: Rule = Rule {
    check: text::is_rfc1123_subdomain,
    accepted: "a name of at most 253 characters of a-z, 0-9, - and ., alphanumeric at both ends (RFC 1123)",
};

pub(super) const HOSTNAME: Rule = Rule {
    check: |name| name.len() <= 253 && text::is_rfc1123_subdomain(name.strip_prefix("*.").unwrap_or(name)),
    accepted: "a DNS name such as example.com or *.example.com",
};

impl Rule {
    pub(super) fn read(&self, field: &Field<'_>) -> Option<String> {
        field.owned_where(|text| field.sheet.is_stored() || (self.check)(text), self.accepted)
    }

    /// The text of a required key.
    pub(super) fn required(&self, of: &Fields<'_>, key: &'static str) -> Option<String> {
        self.read(&of.required(key, self.accepted)?)
    }

    /// The text of a key, if it has one.
    pub(super) fn optional(&self, of: &Fields<'_>, key: &'static str) -> Option<String> {
        of.read(key, |field| self.read(field))
    }

    /// The text of a key with a default.
    pub(super) fn or(&self, of: &Fields<'_>, key: &'static str, default: &str) -> Option<String> {
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
pub(super) fn is_domain_prefixed(text: &str, check: impl Fn(u8) -> bool) -> bool {
    text.split_once('/').is_some_and(|(domain, name)| {
        text::is_rfc1123_subdomain(domain) && !name.is_empty() && name.bytes().all(check)
    })
}

/// The characters after the domain of a controller name or of an address type.
pub(super) fn is_path_character(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte)
}
