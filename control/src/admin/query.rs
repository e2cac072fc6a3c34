//! `key=value` pairs of a request's query, percent-encoded (RFC 3986).

use std::fmt::Write as _;

/// A query out of pairs.
pub(super) fn encode(pairs: &[(&str, &str)]) -> String {
    let mut out = String::new();
    for (key, value) in pairs {
        if !out.is_empty() {
            out.push('&');
        }
        out.push_str(key);
        out.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) {
                out.push(char::from(byte));
            } else {
                write!(out, "%{byte:02X}").expect("writing to a String cannot fail");
            }
        }
    }
    out
}

/// The value of `key`, decoded; `None` where it is absent or not UTF-8.
pub(super) fn value(query: &str, key: &str) -> Option<String> {
    let (_, encoded) = query.split('&').filter_map(|pair| pair.split_once('=')).find(|(k, _)| *k == key)?;
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (hex, tail) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()?);
        rest = tail;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_as_they_were() {
        for written in ["[2001:db8::1]:80", "a b&c=d%", "", "näher"] {
            let query = encode(&[("x", "1"), ("target", written)]);
            assert!(query.is_ascii());
            assert_eq!(value(&query, "target").as_deref(), Some(written));
        }
        assert_eq!(value("target=%4", "target"), None);
        assert_eq!(value("target=%FF", "target"), None);
        assert_eq!(value("other=1", "target"), None);
    }
}
