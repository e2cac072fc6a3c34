//! The meanings of an alias's value, and the spellings that vendors share.

use std::borrow::Cow;
use std::ops::RangeInclusive;

/// The meaning of the value of an alias.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum AliasValue<'a> {
    /// Equivalent to this annotation of ours with this value.
    Ours(&'static str, Cow<'a, str>),
    /// The gateway always does this.
    Nothing,
    /// The address must not be reachable from the internet.
    Internal,
    /// Backends rely on the client's address, in packets or in a PROXY protocol header.
    ClientAddress,
    /// Several requests in one value.
    Several(Vec<AliasValue<'a>>),
    /// Valid, but the gateway can't do it, and the default would be unsafe: no port is programmed. The texts are the
    /// reason and what would be programmed.
    Refused(&'static str, &'static str),
    /// Known but without effect. The texts are the reason and what would have an effect.
    Ignored(Cow<'static, str>, &'static str),
    /// Invalid, with the accepted values. The default is used.
    Invalid(Cow<'static, str>),
    /// Invalid, and the default would be unsafe: no port is programmed.
    InvalidPort(Cow<'static, str>),
    /// Invalid, and an address that is chosen without it could be wrong: no address is assigned.
    InvalidAddress(Cow<'static, str>),
}

/// A whole number in a range.
pub(super) fn number(value: &str, range: &RangeInclusive<u32>) -> Option<u32> {
    // `u32::from_str` accepts a sign, which is never intended.
    let plain = value.bytes().all(|b| b.is_ascii_digit());
    value.parse().ok().filter(|n| plain && range.contains(n))
}

pub(super) fn boolean(value: &str) -> Option<bool> {
    match value {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}
