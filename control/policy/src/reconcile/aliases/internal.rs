//! The spellings of "not reachable from the internet".
//!
//! A value that is neither yes nor no gives no address: one chosen without it could be a public one.

use tidegate_model::objects::Labels;

use super::{Said, boolean};

pub(super) fn yes_or_no<'a>(value: &'a str, _: &'a Labels) -> Said<'a> {
    said(boolean(value), "true, false")
}

/// AWS took `0.0.0.0/0`, and in the end everything but `false`, for yes.
pub(super) fn aws<'a>(value: &'a str, _: &'a Labels) -> Said<'a> {
    match value {
        "0.0.0.0/0" => Said::Internal,
        "" => Said::Nothing,
        _ => said(boolean(value), "true, false"),
    }
}

pub(super) fn gcp<'a>(value: &'a str, _: &'a Labels) -> Said<'a> {
    let internal = match value.to_ascii_lowercase().as_str() {
        "internal" => Some(true),
        "external" => Some(false),
        _ => None,
    };
    said(internal, "Internal, External")
}

pub(super) fn ibm<'a>(value: &'a str, _: &'a Labels) -> Said<'a> {
    let internal = match value {
        "private" => Some(true),
        "public" => Some(false),
        _ => None,
    };
    said(internal, "private, public")
}

pub(super) fn alibaba<'a>(value: &'a str, _: &'a Labels) -> Said<'a> {
    let internal = match value {
        "intranet" => Some(true),
        "internet" => Some(false),
        _ => None,
    };
    said(internal, "intranet, internet")
}

/// Tencent's names a subnet; any subnet is an internal one.
pub(super) fn tke<'a>(value: &'a str, _: &'a Labels) -> Said<'a> {
    if value.is_empty() { Said::Nothing } else { Said::Internal }
}

fn said(internal: Option<bool>, accepted: &'static str) -> Said<'static> {
    match internal {
        Some(true) => Said::Internal,
        Some(false) => Said::Nothing,
        None => Said::InvalidAddress(accepted.into()),
    }
}
