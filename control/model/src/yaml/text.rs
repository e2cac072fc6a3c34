//! Parses text values: durations, MAC addresses, CIDRs, label keys and others.
//!
//! Fields and annotations use the same functions. Each returns `None` for invalid text; a constant beside it says
//! what is accepted, for messages.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use tidegate_wire::{MacAddr, Named};

/// The maximum length of a value that messages repeat as a whole, in bytes.
const SHOWN_BYTES_MAX: usize = 160;

/// A value for messages, truncated if it is long. An annotation may have 256 KiB, and a message about it may be
/// stored for each port of a Service.
pub fn shown(value: &str) -> Cow<'_, str> {
    if value.len() <= SHOWN_BYTES_MAX {
        return Cow::Borrowed(value);
    }
    let mut end = SHOWN_BYTES_MAX;
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    Cow::Owned(format!("{}[{} more bytes]", &value[..end], value.len() - end))
}

/// The values that [`duration`] accepts.
pub const DURATION: &str = "a duration such as 500ms, 2s, 1m30s or 1h";
/// The values that [`mac`] accepts.
pub const MAC: &str = "a unicast MAC address such as 02:00:00:00:00:01";
/// The values that [`str::parse`] accepts for an address.
pub const IP: &str = "an IPv4 or IPv6 address";
/// The values that [`cidr`] accepts.
pub const CIDR: &str = "a CIDR such as 192.0.2.0/24 or 2001:db8::/64";

/// A duration of whole numbers with the units `h`, `m`, `s` and `ms`, largest first: `1m30s`.
pub fn duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, u64); 4] = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];
    let mut rest = text;
    let mut total_ms = 0u64;
    let mut last_unit_ms = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let count: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let (name, unit_ms) = UNITS.into_iter().find(|(name, _)| rest.starts_with(name))?;
        if unit_ms >= last_unit_ms {
            return None;
        }
        last_unit_ms = unit_ms;
        total_ms = total_ms.checked_add(count.checked_mul(unit_ms)?)?;
        rest = &rest[name.len()..];
    }
    (last_unit_ms != u64::MAX).then(|| Duration::from_millis(total_ms))
}

/// A duration in the form that [`duration`] accepts, truncated to milliseconds: `1m30s`.
pub fn show_duration(duration: Duration) -> String {
    let mut rest_ms = duration.as_millis();
    let mut shown = String::new();
    for (name, unit_ms) in [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)] {
        if rest_ms >= unit_ms {
            shown.push_str(&format!("{}{name}", rest_ms / unit_ms));
            rest_ms %= unit_ms;
        }
    }
    if shown.is_empty() { "0s".to_owned() } else { shown }
}

/// Bits per second with the largest unit that leaves a whole number: `2500 Mbit/s`.
pub fn show_bit_rate(bits: u64) -> String {
    let units = [("Gbit/s", 1_000_000_000), ("Mbit/s", 1_000_000), ("kbit/s", 1_000)];
    match units.into_iter().find(|(_, size)| bits >= *size && bits.is_multiple_of(*size)) {
        Some((unit, size)) => format!("{} {unit}", bits / size),
        None => format!("{bits} bit/s"),
    }
}

/// A unicast MAC address: six pairs of hex digits separated by `:` or `-`, not all zero.
pub fn mac(text: &str) -> Option<[u8; 6]> {
    let is_mixed = text.contains('-') && text.contains(':');
    let MacAddr(mac) = text.parse().ok().filter(|_| !is_mixed)?;
    (mac[0] & 1 == 0 && mac != [0; 6]).then_some(mac)
}

/// An address with a prefix length; bits after the prefix may be set.
pub fn cidr(text: &str) -> Option<IpNet> {
    text.parse().ok()
}

/// Converts a network of IPv4-mapped addresses (RFC 4291 section 2.5.5.2) to the IPv4 network. Other networks are
/// returned unchanged.
pub fn unmapped(net: IpNet) -> IpNet {
    let IpNet::V6(v6) = net else { return net };
    let (Some(addr), Some(len)) = (v6.addr().to_ipv4_mapped(), v6.prefix_len().checked_sub(96)) else {
        return net;
    };
    Ipv4Net::new(addr, len).map_or(net, IpNet::V4)
}

/// Parses an address that an API server has stored, like kube-proxy: as with [`str::parse`], but leading zeros are
/// allowed and ignored in IPv4. An IPv4-mapped IPv6 address is read as the IPv4 address.
///
/// API servers before Kubernetes 1.36 accepted both (KEP-4858). New objects may have neither.
pub fn stored_ip(text: &str) -> Option<IpAddr> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(ip.to_canonical());
    }
    if !text.contains(':') {
        return stored_ipv4(text).map(IpAddr::V4);
    }
    let group = |group: &str| match group.trim_start_matches('0') {
        _ if group.contains('.') => stored_ipv4(group).map(|v4| v4.to_string()),
        "" if !group.is_empty() => Some("0".to_owned()),
        digits => Some(digits.to_owned()),
    };
    let groups: Option<Vec<String>> = text.split(':').map(group).collect();
    groups?.join(":").parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

/// Four decimal numbers up to 255, with or without leading zeros.
fn stored_ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next().filter(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()))?;
        let digits = part.trim_start_matches('0');
        *octet = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    }
    parts.next().is_none().then(|| octets.into())
}

/// Parses a network whose address is read like [`stored_ip`], with or without surrounding white space.
pub fn stored_cidr(text: &str) -> Option<IpNet> {
    let (address, prefix) = text.trim().split_once('/')?;
    let ip = stored_ip(address)?;
    let length: u8 = Some(prefix).filter(|p| p.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()?;
    // The first 96 bits of an IPv4-mapped network are the mapping.
    let length = if ip.is_ipv4() && address.contains(':') { length.checked_sub(96)? } else { length };
    IpNet::new(ip, length).ok()
}

/// A range of addresses `a-b` of one family, `a` not after `b`.
pub fn ip_range(text: &str) -> Option<(IpAddr, IpAddr)> {
    let (first, last) = text.split_once('-')?;
    let (first, last): (IpAddr, IpAddr) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first.is_ipv4() == last.is_ipv4() && first <= last).then_some((first, last))
}

/// An RFC 1123 label: 1 to 63 of `a-z`, `0-9` and `-`, alphanumeric at both ends.
pub fn is_rfc1123_label(text: &str) -> bool {
    text.len() <= 63 && is_part_of_subdomain(text)
}

/// An RFC 1123 subdomain as Kubernetes accepts it: parts like labels separated by dots, at most 253 characters in
/// total. The length of a part is not limited separately.
pub fn is_rfc1123_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_part_of_subdomain)
}

fn is_part_of_subdomain(text: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    !text.is_empty()
        && text.bytes().all(|b| alphanumeric(b) || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// The name of a port (IANA_SVC_NAME, RFC 6335): 1 to 15 of `a-z`, `0-9`, `-`, with a letter, no `--`, alphanumeric at
/// both ends.
pub fn is_port_name(text: &str) -> bool {
    text.len() <= 15
        && is_rfc1123_label(text)
        && text.bytes().any(|b| b.is_ascii_lowercase())
        && !text.contains("--")
}

/// A key of labels and annotations: `name` or `prefix/name`.
pub fn is_qualified_name(text: &str) -> bool {
    let name = match text.split_once('/') {
        Some((prefix, name)) if is_rfc1123_subdomain(prefix) => name,
        Some(_) => return false,
        None => text,
    };
    !name.is_empty() && is_label_value(name)
}

/// A value of labels: empty, or up to 63 of alphanumerics, `-`, `_`, `.`, alphanumeric at both ends.
pub fn is_label_value(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let end = |b: Option<&u8>| b.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63 && bytes.iter().all(|b| inner(*b)) && end(bytes.first()) && end(bytes.last())
}

/// All names of `T`, for messages.
pub fn names<T: Named>() -> String {
    T::VALUES.iter().map(|value| value.name()).collect::<Vec<_>>().join(", ")
}

/// The known words closest to `word`, for "did you mean": at most three, with an edit distance of at most a third of
/// its length (but at least 2).
pub fn nearest<'k>(word: &str, known: &[&'k str]) -> Vec<&'k str> {
    let lower = word.to_lowercase();
    let limit = (word.chars().count() / 3).max(2);
    let mut scored: Vec<(usize, &str)> = known
        .iter()
        .map(|k| (strsim::levenshtein(&lower, &k.to_lowercase()), *k))
        .filter(|(distance, _)| *distance <= limit)
        .collect();
    scored.sort_unstable();
    scored.into_iter().take(3).map(|(_, k)| k).collect()
}
