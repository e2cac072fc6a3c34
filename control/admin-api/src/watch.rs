//! The packets of `trace` and `capture`.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// `POST /v1/watch`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchAnswer {
    /// The number of the watch, for `watched` and `unwatch`.
    pub id: u64,
    /// The names of the interfaces, in the order of the configuration.
    pub interfaces: Vec<String>,
}

/// `GET /v1/watched`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchedAnswer {
    /// Packets since the last request, in order for each worker.
    pub packets: Vec<WatchedRow>,
    /// Packets that matched since the start but are not shown because they were not requested in time.
    pub lost: u64,
}

/// A packet and what happened to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchedRow {
    /// Nanoseconds since 1970-01-01 00:00 UTC.
    pub timestamp_ns: u64,
    /// The worker that processed it.
    pub worker: u8,
    /// The interface that received it.
    pub interface: String,
    /// `TCP`, `UDP`, `SCTP`, `ICMP`, `ICMPv6`, `ARP`, or the number of another protocol; absent if it is not IP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// The source: an address, with the port if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The destination, in the same format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// The flags of TCP, such as `SYN,ACK`; or type and code of ICMP and ICMPv6, such as `type 3 code 4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The transport checksum as it was received: `ok`, `bad`, `partial` (left to a NIC that did not complete it) or
    /// `unchecked` (the frame was not copied as a whole, or it is a fragment); absent without a checksum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// `transmit`, `punt` or `drop`.
    pub verdict: String,
    /// The reason, as in `replay --json`.
    pub reason: String,
    /// Whether it is queued until its next hop or its first fragment is known. It is shown again then; if that never
    /// happens, this verdict applies.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits: bool,
    /// The service port that it belongs to, as `namespace/name:port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The address of the service port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vip: Option<IpAddr>,
    /// The backend to which or from which it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<SocketAddr>,
    /// The forwarding mode of the service port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// `new`, `known` or `none`.
    pub flow: String,
    /// The frame as it was received.
    pub received: WatchedFrame,
    /// The frame as it was sent, with the interface; absent if it was not sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<SentFrame>,
}

/// A frame.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchedFrame {
    /// Its length.
    pub length: usize,
    /// Its first bytes, in hexadecimal digits.
    pub hex: String,
}

/// A frame that was sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SentFrame {
    /// The interface.
    pub interface: String,
    /// The frame before fragmentation, if it did not fit its link.
    #[serde(flatten)]
    pub frame: WatchedFrame,
}

/// `POST /v1/unwatch`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnwatchAnswer {
    /// Packets that matched but were not shown.
    pub lost: u64,
}
