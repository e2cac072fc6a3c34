//! The vendors' annotations that request an internal address.
//!
//! If a value is invalid, no address is assigned, because it could be a public one.

use tidegate_model::objects::Labels;

use super::value::{AliasValue, boolean};

pub(super) fn yes_or_no<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    translated(boolean(value), "true, false")
}

/// AWS first accepted only `0.0.0.0/0`, and later every value except `false`.
pub(super) fn aws<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    match value {
        "0.0.0.0/0" => AliasValue::Internal,
        "" => AliasValue::Nothing,
        _ => translated(boolean(value), "true, false"),
    }
}

/// The newer annotation of AWS.
pub(super) fn aws_scheme<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    let internal = match value {
        "internal" => Some(true),
        "internet-facing" => Some(false),
        _ => None,
    };
    translated(internal, "internal, internet-facing")
}

pub(super) fn gcp<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    let internal = match value.to_ascii_lowercase().as_str() {
        "internal" => Some(true),
        "external" => Some(false),
        _ => None,
    };
    translated(internal, "Internal, External")
}

pub(super) fn ibm<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    let internal = match value {
        "private" => Some(true),
        "public" => Some(false),
        _ => None,
    };
    translated(internal, "private, public")
}

pub(super) fn alibaba<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    let internal = match value {
        "intranet" => Some(true),
        "internet" => Some(false),
        _ => None,
    };
    translated(internal, "intranet, internet")
}

/// Tencent's annotation names a subnet. Any subnet is an internal one.
pub(super) fn tke<'a>(value: &'a str, _: &'a Labels) -> AliasValue<'a> {
    if value.is_empty() { AliasValue::Nothing } else { AliasValue::Internal }
}

fn translated(internal: Option<bool>, accepted: &'static str) -> AliasValue<'static> {
    match internal {
        Some(true) => AliasValue::Internal,
        Some(false) => AliasValue::Nothing,
        None => AliasValue::InvalidAddress(accepted.into()),
    }
}
