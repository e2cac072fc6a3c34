//! The filter of `trace` and `capture`: by host, port, protocol, interface, Service, backend, verdict and reason.
//!
//! The command line and the query of the request use the same text, which is parsed here for both. An IPv4-mapped IPv6
//! address is read as the IPv4 address in it, because no forwarded packet has an IPv4-mapped one.
//!
//! Invariant: apart from that, [`WatchQuery::parse`] reads back exactly what [`WatchQuery::pairs`] wrote.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::explain::Transport;

use super::error::AdminError;
use super::flows_query::{BackendName, ServiceName};
use super::query;

/// Bytes of each frame that are copied by default: enough for all headers.
pub const SNAP_DEFAULT: usize = 256;
/// The maximum number of bytes of a frame that can be copied.
pub const SNAP_MAX: usize = 16_384;

/// The filter. A field that is `None` matches all packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchQuery {
    /// The source or the destination has this address.
    pub host: Option<IpAddr>,
    /// The source or the destination has this port.
    pub port: Option<u16>,
    /// The protocol.
    pub protocol: Option<Transport>,
    /// The interface that received the packet, by its name in the configuration.
    pub interface: Option<String>,
    /// Packets of this Service.
    pub service: Option<ServiceName>,
    /// Packets to or from this backend.
    pub backend: Option<BackendName>,
    /// The kind of the verdict.
    pub verdict: Option<VerdictName>,
    /// The reason of the verdict, as in `drops` and `replay`.
    pub reason: Option<String>,
    /// The bytes of each frame that are copied.
    pub snap: Snap,
}

impl Default for WatchQuery {
    fn default() -> Self {
        Self {
            host: None,
            port: None,
            protocol: None,
            interface: None,
            service: None,
            backend: None,
            verdict: None,
            reason: None,
            snap: Snap(SNAP_DEFAULT),
        }
    }
}

impl WatchQuery {
    /// The `key=value` pairs of a request.
    pub(super) fn pairs(&self) -> Vec<(&'static str, String)> {
        fn text<T: fmt::Display>(key: &'static str, value: Option<&T>) -> Option<(&'static str, String)> {
            value.map(|value| (key, value.to_string()))
        }
        let pairs = [
            text("host", self.host.as_ref()),
            text("port", self.port.as_ref()),
            text("protocol", self.protocol.as_ref()),
            text("interface", self.interface.as_ref()),
            text("service", self.service.as_ref()),
            text("backend", self.backend.as_ref()),
            text("verdict", self.verdict.as_ref()),
            text("reason", self.reason.as_ref()),
            Some(("snap", self.snap.0.to_string())),
        ];
        pairs.into_iter().flatten().collect()
    }

    /// Parses the query of a request.
    ///
    /// # Errors
    /// An invalid value.
    pub fn parse(text: &str) -> Result<Self, AdminError> {
        fn one<T: FromStr<Err = String>>(text: &str, key: &str) -> Result<Option<T>, AdminError> {
            let value = query::value(text, key).map(|value| value.parse());
            value.transpose().map_err(|why| AdminError::BadRequest(format!("{key}: {why}")))
        }
        fn plain<T: FromStr>(text: &str, key: &str, accepted: &str) -> Result<Option<T>, AdminError> {
            let refuse = |value: &str| format!("{key}: {value:?} is not valid; accepted: {accepted}");
            let parsed = |value: String| value.parse().map_err(|_| AdminError::BadRequest(refuse(&value)));
            query::value(text, key).map(parsed).transpose()
        }
        Ok(Self {
            host: plain::<IpAddr>(text, "host", "an IPv4 or IPv6 address")?.map(|host| host.to_canonical()),
            port: plain(text, "port", "0 to 65535")?,
            protocol: one(text, "protocol")?,
            interface: query::value(text, "interface"),
            service: one(text, "service")?,
            backend: one(text, "backend")?,
            verdict: one(text, "verdict")?,
            reason: query::value(text, "reason"),
            snap: one(text, "snap")?.unwrap_or(Snap(SNAP_DEFAULT)),
        })
    }
}

tidegate_spec::named! {
    /// The kind of a verdict.
    pub enum VerdictName {
        /// Sent.
        Transmit => "transmit",
        /// Punted to the kernel.
        Punt => "punt",
        /// Dropped.
        Drop => "drop",
    }
}

impl FromStr for VerdictName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|one| one.as_str() == text);
        found.ok_or_else(|| format!("{text:?} is not a verdict; accepted: transmit, punt, drop"))
    }
}

/// A number of bytes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snap(pub usize);

impl FromStr for Snap {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let snap = text.parse().ok().filter(|snap| (1..=SNAP_MAX).contains(snap));
        snap.map(Self).ok_or_else(|| format!("{text:?} is not a number of bytes; accepted: 1 to {SNAP_MAX}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_query_is_parsed_to_an_equal_one() {
        let full = WatchQuery {
            host: Some("2001:db8::1".parse().expect("an address")),
            port: Some(443),
            protocol: Some("sctp".parse().expect("a protocol")),
            interface: Some("uplink & more".to_owned()),
            service: Some("shop/web:https".parse().expect("a Service")),
            backend: Some("[2001:db8::2]:80".parse().expect("a backend")),
            verdict: Some(VerdictName::Drop),
            reason: Some("no_flow".to_owned()),
            snap: Snap(64),
        };
        for query in [WatchQuery::default(), full] {
            let pairs = query.pairs();
            let pairs: Vec<(&str, &str)> = pairs.iter().map(|(key, value)| (*key, value.as_str())).collect();
            assert_eq!(WatchQuery::parse(&query::encode(&pairs)), Ok(query));
        }
    }

    #[test]
    fn an_ipv4_mapped_host_is_read_as_the_ipv4_address() {
        let [mapped, plain] = ["host=::ffff:192.0.2.9", "host=192.0.2.9"]
            .map(|text| WatchQuery::parse(text).expect("it is valid"));
        assert_eq!(mapped, plain);
    }

    #[test]
    fn an_invalid_value_is_reported_with_what_is_accepted() {
        for (text, named) in [
            ("host=10.0.0.0/8", "host: \"10.0.0.0/8\" is not valid; accepted: an IPv4 or IPv6 address"),
            ("port=65536", "accepted: 0 to 65535"),
            ("protocol=icmp", "accepted: tcp, udp, sctp"),
            ("verdict=lost", "verdict: \"lost\" is not a verdict; accepted: transmit, punt, drop"),
            ("snap=0", "accepted: 1 to 16384"),
        ] {
            let error = WatchQuery::parse(text).expect_err(text).to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
