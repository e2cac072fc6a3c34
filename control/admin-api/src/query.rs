//! `key=value` pairs of a request's query, encoded as in the URL standard (`application/x-www-form-urlencoded`).

use form_urlencoded::Serializer;

/// A key of every change: the time, in nanoseconds of `CLOCK_BOOTTIME`, after which its sender no longer waits. A
/// change without it is never refused as late, so `curl` needs no clock.
pub const BEFORE: &str = "before";

/// Builds a query from pairs.
#[must_use]
pub fn encode(pairs: &[(&str, &str)]) -> String {
    Serializer::new(String::new()).extend_pairs(pairs).finish()
}

/// The decoded value of `key`; `None` if it is absent.
#[must_use]
pub fn value(query: &str, key: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    pairs.find(|(name, _)| name == key).map(|(_, value)| value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_decoded_to_what_was_encoded() {
        for written in ["[2001:db8::1]:80", "a b&c=d%+", "", "näher"] {
            let query = encode(&[("x", "1"), ("target", written)]);
            assert!(query.is_ascii());
            assert_eq!(value(&query, "target").as_deref(), Some(written));
        }
        assert_eq!(value("other=1", "target"), None);
    }
}
