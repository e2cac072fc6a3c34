//! The limits that a Service requests: `max-connections`, `max-connection-rate`, `max-bandwidth`.
//!
//! With an invalid value, no port is programmed: without the limit, what it protects would be unprotected.

use std::num::{NonZeroU32, NonZeroU64};

use tidegate_spec::ServiceLimits;

use super::annotations::key;

const CONNECTIONS: &str = "0 (no limit), or a whole number from 1 to 1000000000";
const RATE: &str = "0 (no limit), or new connections per second, a whole number from 1 to 100000000";
const BANDWIDTH: &str = "0 (no limit), or bits per second from 1M to 100G, such as 500M or 2500M or 10G";

const MEGABIT: u64 = 1_000_000;
const BANDWIDTH_MAX: u64 = 100_000 * MEGABIT;

/// Applies the value of one of the three annotations.
///
/// # Errors
/// What is accepted.
pub(super) fn apply(limits: &mut ServiceLimits, ours: &str, value: &str) -> Result<(), &'static str> {
    match ours {
        key::MAX_CONNECTIONS => limits.connections = number(value, 1_000_000_000).ok_or(CONNECTIONS)?,
        key::MAX_CONNECTION_RATE => limits.connection_rate = number(value, 100_000_000).ok_or(RATE)?,
        key::MAX_BANDWIDTH => limits.bandwidth = bandwidth(value).ok_or(BANDWIDTH)?,
        _ => unreachable!("options passes on the keys of limits"),
    }
    Ok(())
}

/// A whole number up to `max`; 0 is no limit.
fn number(value: &str, max: u32) -> Option<Option<NonZeroU32>> {
    let number: u32 = digits(value)?.parse().ok()?;
    (number <= max).then(|| NonZeroU32::new(number))
}

/// Bits per second with a decimal unit `k`, `M` or `G`, or without one; 0 is no limit.
fn bandwidth(value: &str) -> Option<Option<NonZeroU64>> {
    if value == "0" {
        return Some(None);
    }
    let (number, unit) = match value.char_indices().last()? {
        (at, 'G') => (&value[..at], 1_000 * MEGABIT),
        (at, 'M') => (&value[..at], MEGABIT),
        (at, 'k') => (&value[..at], 1_000),
        _ => (value, 1),
    };
    let bits = digits(number)?.parse::<u64>().ok()?.checked_mul(unit)?;
    (MEGABIT..=BANDWIDTH_MAX).contains(&bits).then(|| NonZeroU64::new(bits))
}

/// The text, if it consists of digits. A sign is never intended.
fn digits(text: &str) -> Option<&str> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(key: &str, value: &str) -> Option<ServiceLimits> {
        let mut limits = ServiceLimits::default();
        apply(&mut limits, key, value).ok().map(|()| limits)
    }

    #[test]
    fn a_bandwidth_has_a_decimal_unit_and_is_from_1_mbit_to_100_gbit() {
        let bits =
            |value| read(key::MAX_BANDWIDTH, value).map(|limits| limits.bandwidth.map_or(0, NonZeroU64::get));
        for (value, is) in [
            ("0", 0),
            ("1M", 1_000_000),
            ("1000k", 1_000_000),
            ("1000000", 1_000_000),
            ("2500M", 2_500_000_000),
            ("100G", 100_000_000_000),
        ] {
            assert_eq!(bits(value), Some(is), "{value}");
        }
        for value in [
            "",
            "M",
            "-1M",
            "+1M",
            "999k",
            "101G",
            "1.5G",
            "1Mi",
            "1 M",
            "1Mbit",
            "99999999999G",
            "0M",
            "\u{e9}",
        ] {
            assert_eq!(bits(value), None, "{value:?}");
        }
    }

    #[test]
    fn connections_and_rates_are_whole_numbers() {
        let one = |n| NonZeroU32::new(n);
        assert_eq!(read(key::MAX_CONNECTIONS, "1000000000").unwrap().connections, one(1_000_000_000));
        assert_eq!(read(key::MAX_CONNECTION_RATE, "7").unwrap().connection_rate, one(7));
        for key in [key::MAX_CONNECTIONS, key::MAX_CONNECTION_RATE] {
            assert_eq!(read(key, "0"), Some(ServiceLimits::default()));
            for value in ["", "-1", "+1", "1k", "1.0", "1000000001", "99999999999999"] {
                assert_eq!(read(key, value), None, "{key}: {value:?}");
            }
        }
    }
}
