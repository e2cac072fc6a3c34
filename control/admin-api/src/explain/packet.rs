//! The packet to explain, and the state of its flow.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tidegate_spec::Protocol;

/// The packet to explain: the first of its flow (a TCP SYN, the first UDP datagram).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet {
    /// Transport protocol.
    pub protocol: Transport,
    /// The source.
    pub source: SocketAddr,
    /// The destination.
    pub destination: SocketAddr,
}

impl Packet {
    /// The packet with these addresses. An IPv4-mapped IPv6 address is converted to the IPv4 address in it: servers
    /// with one socket for both families show IPv4 clients in this form, and no forwarded packet has such an address.
    #[must_use]
    pub fn new(protocol: Transport, source: SocketAddr, destination: SocketAddr) -> Self {
        Self { protocol, source: unmapped(source), destination: unmapped(destination) }
    }
}

fn unmapped(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::new(v4.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// A transport protocol by name, in any case: `tcp`, `udp`, `sctp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Transport(pub Protocol);

impl FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "tcp" => Ok(Self(Protocol::Tcp)),
            "udp" => Ok(Self(Protocol::Udp)),
            "sctp" => Ok(Self(Protocol::Sctp)),
            _ => Err(format!("{text:?} is not a protocol; accepted: tcp, udp, sctp")),
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Transport> for String {
    fn from(transport: Transport) -> Self {
        transport.to_string()
    }
}

impl TryFrom<String> for Transport {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// A flow table's entry for the packet's 5-tuple.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownFlow {
    /// The backend that it is pinned to.
    pub backend: SocketAddr,
}
