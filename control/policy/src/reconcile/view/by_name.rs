//! Serializes types of other crates in views by their names.
//!
//! Use with `#[serde(with = "by_name")]`. The names are contracts: manifests, metrics and scripts use them.

use serde::{Deserialize as _, Deserializer, Serializer, de};
use tidegate_wire::Named;

fn named<T: Named, E: de::Error>(name: &str) -> Result<T, E> {
    T::named(name).ok_or_else(|| {
        let accepted: Vec<&str> = T::VALUES.iter().map(|value| value.name()).collect();
        E::custom(format!("{name:?} is not accepted; accepted: {}", accepted.join(", ")))
    })
}

pub(super) fn serialize<T: Named, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(value.name())
}

pub(super) fn deserialize<'de, T: Named, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    named(&String::deserialize(from)?)
}

/// For a value that may be unknown and is then the empty string.
pub(super) mod or_empty {
    use super::{Deserializer, Named, Serializer, named};
    use serde::Deserialize as _;

    pub(in super::super) fn serialize<T: Named, S: Serializer>(
        value: &Option<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(value.map_or("", Named::name))
    }

    pub(in super::super) fn deserialize<'de, T: Named, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<T>, D::Error> {
        let name = String::deserialize(from)?;
        if name.is_empty() { Ok(None) } else { named(&name).map(Some) }
    }
}
