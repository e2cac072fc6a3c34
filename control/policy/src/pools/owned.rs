//! The addresses that a Service owns, as kept in memory, written to its status and saved to disk.
//!
//! There is one entry for each address and kind of use, with the ports that belong to the Service there. The entry also
//! records the requested pool and the sharing key under which the address was assigned. So a later change of the
//! Service can be distinguished from a change of the pool.

use std::fmt::Write as _;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use tidegate_model::objects::{Condition, Protocol, Stored};

use super::{ClaimKind, PortKey, RequestedPool};

/// The condition whose message lists the addresses of a Service as JSON: see [`record`]. A gateway that starts, or
/// that starts to follow, assigns each port to its owner in this list, whatever Services request meanwhile.
pub const RECORD_CONDITION: &str = "tidegate.dev/Holds";

/// The maximum length of the list in bytes. The API server accepts messages of 32 KiB.
const RECORD_BYTES_MAX: usize = 32_000;

/// The number of ports of three protocols. No valid list has more.
const PORTS_MAX: usize = 3 << 16;

/// An address that a Service owns as a LoadBalancer address or as an external IP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnedAddress {
    /// The address.
    pub address: IpAddr,
    /// Whether it is a LoadBalancer address or an external IP.
    #[serde(rename = "as", with = "capacity")]
    pub kind: ClaimKind,
    /// The pool from which it was assigned, or empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pool: String,
    /// The ports that the Service owns there, sorted, or `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "port_list")]
    pub ports: Option<Vec<PortKey>>,
    /// The `tidegate.dev/allow-shared-ip` under which it was assigned.
    #[serde(default, rename = "sharedUnder", skip_serializing_if = "Option::is_none")]
    pub sharing_key: Option<String>,
    /// The pool that the Service requested when the address was assigned.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "wish", with = "requested_pool")]
    pub requested_pool: Option<RequestedPool>,
}

impl OwnedAddress {
    /// An address that is known only from the status of its Service.
    #[must_use]
    pub fn of_status(address: IpAddr) -> Self {
        let kind = ClaimKind::LoadBalancer;
        Self { address, kind, pool: String::new(), ports: None, sharing_key: None, requested_pool: None }
    }

    /// The order of entries in a list.
    fn order(&self) -> (IpAddr, ClaimKind) {
        (self.address, self.kind)
    }
}

/// All addresses of a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holdings {
    /// The uid of the Service. Another object with this name owns none of the addresses.
    pub uid: String,
    /// Sorted by address and use.
    pub addresses: Vec<OwnedAddress>,
}

impl Holdings {
    /// Sorts the addresses of the Service with this uid.
    #[must_use]
    pub fn new(uid: &str, mut addresses: Vec<OwnedAddress>) -> Self {
        addresses.sort_by_key(OwnedAddress::order);
        Self { uid: uid.to_owned(), addresses }
    }

    /// Whether these belong to the object with this uid. A uid that the source derived from the name matches any
    /// object.
    #[must_use]
    pub fn are_of(&self, uid: &str) -> bool {
        let is_real = |uid: &str| !uid.is_empty() && !uid.contains('/');
        self.uid == uid || !is_real(&self.uid) || !is_real(uid)
    }

    /// Its LoadBalancer addresses.
    pub fn load_balancer(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().filter(|owned| owned.kind == ClaimKind::LoadBalancer).map(|owned| owned.address)
    }
}

/// The message of [`RECORD_CONDITION`]. A list that is too long is written without ports.
#[must_use]
pub fn record(owned: &[OwnedAddress]) -> String {
    let json = |owned: &[OwnedAddress]| serde_json::to_string(owned).unwrap_or_default();
    let full = json(owned);
    if full.len() <= RECORD_BYTES_MAX {
        return full;
    }
    let without: Vec<OwnedAddress> =
        owned.iter().map(|owned| OwnedAddress { ports: None, ..owned.clone() }).collect();
    let short = json(&without);
    if short.len() <= RECORD_BYTES_MAX { short } else { "[]".to_owned() }
}

/// The addresses of a Service according to its status; empty if there is no valid list.
#[must_use]
pub fn recorded(stored: &Stored) -> Vec<OwnedAddress> {
    let condition: Option<&Condition> = stored.condition(RECORD_CONDITION);
    condition.and_then(|condition| serde_json::from_str(&condition.message).ok()).unwrap_or_default()
}

mod capacity {
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    use super::ClaimKind;

    pub(super) fn serialize<S: Serializer>(kind: &ClaimKind, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(match kind {
            ClaimKind::LoadBalancer => "LoadBalancer",
            ClaimKind::ExternalIp => "ExternalIP",
        })
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ClaimKind, D::Error> {
        match String::deserialize(from)?.as_str() {
            "LoadBalancer" => Ok(ClaimKind::LoadBalancer),
            "ExternalIP" => Ok(ClaimKind::ExternalIp),
            other => Err(de::Error::custom(format!("{other:?} is neither LoadBalancer nor ExternalIP"))),
        }
    }
}

mod requested_pool {
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    use super::RequestedPool;

    pub(super) fn serialize<S: Serializer>(pool: &Option<RequestedPool>, to: S) -> Result<S::Ok, S::Error> {
        match pool {
            Some(RequestedPool::Named(name)) => to.serialize_str(&format!("pool/{name}")),
            Some(RequestedPool::Internal) => to.serialize_str("internal"),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<RequestedPool>, D::Error> {
        let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
        match text.strip_prefix("pool/") {
            Some(name) => Ok(Some(RequestedPool::Named(name.to_owned()))),
            None if text == "internal" => Ok(Some(RequestedPool::Internal)),
            None => Err(de::Error::custom(format!("{text:?} is neither pool/NAME nor internal"))),
        }
    }
}

/// Ports as text: `TCP/80,TCP/8000-8010,UDP/53`.
mod port_list {
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    use super::PortKey;

    pub(super) fn serialize<S: Serializer>(ports: &Option<Vec<PortKey>>, to: S) -> Result<S::Ok, S::Error> {
        match ports {
            Some(ports) => to.serialize_str(&super::shown(ports)),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<PortKey>>, D::Error> {
        let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
        match super::parsed(&text) {
            Some(ports) => Ok(Some(ports)),
            None => Err(de::Error::custom(format!("{text:?} is not a list of ports such as TCP/80,UDP/53"))),
        }
    }
}

fn shown(ports: &[PortKey]) -> String {
    let mut text = String::new();
    let mut rest = ports;
    while let Some((protocol, first)) = rest.first().copied() {
        let next = |n: usize| u16::try_from(n).ok().and_then(|n| first.checked_add(n));
        let run =
            rest.iter().enumerate().take_while(|(n, port)| Some(port.1) == next(*n) && port.0 == protocol);
        let count = run.count();
        let last = rest[count - 1].1;
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a String cannot fail.
        let _ = match count {
            1 => write!(text, "{comma}{protocol}/{first}"),
            _ => write!(text, "{comma}{protocol}/{first}-{last}"),
        };
        rest = &rest[count..];
    }
    text
}

fn parsed(text: &str) -> Option<Vec<PortKey>> {
    let mut ports = Vec::new();
    for item in text.split(',').filter(|item| !item.is_empty()) {
        let (protocol, range) = item.split_once('/')?;
        let protocol = match protocol {
            "TCP" => Protocol::Tcp,
            "UDP" => Protocol::Udp,
            "SCTP" => Protocol::Sctp,
            _ => return None,
        };
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        ports.extend((first..=last).map(|port| (protocol, port)));
        if ports.len() > PORTS_MAX {
            return None;
        }
    }
    ports.sort_unstable();
    ports.dedup();
    Some(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(ports: Option<Vec<PortKey>>) -> OwnedAddress {
        OwnedAddress {
            address: "203.0.113.5".parse().expect("an address"),
            kind: ClaimKind::ExternalIp,
            pool: "edge".into(),
            ports,
            sharing_key: Some("k".into()),
            requested_pool: Some(RequestedPool::Named("edge".into())),
        }
    }

    fn stored(message: String) -> Stored {
        let condition = Condition {
            kind: RECORD_CONDITION.to_owned(),
            status: "True".to_owned(),
            reason: "Recorded".to_owned(),
            message,
            observed_generation: 0,
            last_transition: None,
        };
        Stored { conditions: vec![condition], ..Stored::default() }
    }

    #[test]
    fn a_record_can_be_read_back() {
        let ports = vec![(Protocol::Tcp, 80), (Protocol::Tcp, 81), (Protocol::Tcp, 443), (Protocol::Udp, 53)];
        for ports in [None, Some(vec![]), Some(ports)] {
            let all = [owned(ports), OwnedAddress::of_status("2001:db8::1".parse().expect("an address"))];
            assert_eq!(recorded(&stored(record(&all))), all, "{}", record(&all));
        }
        assert!(record(&[owned(Some(vec![(Protocol::Tcp, 80), (Protocol::Tcp, 81)]))]).contains("TCP/80-81"));
    }

    #[test]
    fn an_invalid_list_counts_as_empty() {
        for message in ["", "[", "{}", "[{\"address\":\"x\"}]", "203.0.113.5 from pool public"] {
            assert_eq!(recorded(&stored(message.to_owned())), [], "{message}");
        }
    }

    #[test]
    fn a_list_that_is_too_long_for_an_api_server_is_written_without_ports() {
        let odd: Vec<PortKey> = (1..=u16::MAX).step_by(2).map(|port| (Protocol::Tcp, port)).collect();
        let record = record(&[owned(Some(odd))]);
        assert!(record.len() <= RECORD_BYTES_MAX);
        assert_eq!(recorded(&stored(record)), [owned(None)]);
    }

    #[test]
    fn another_object_with_this_name_owns_nothing() {
        let of = |uid: &str| Holdings::new(uid, vec![]);
        assert!(of("1a-2b").are_of("1a-2b") && !of("1a-2b").are_of("3c-4d"));
        assert!(
            of("service/shop/web").are_of("1a-2b") && of("1a-2b").are_of(""),
            "one that is derived from the name"
        );
    }
}
