//! `flowSharing`: which flows this gateway exports, to which peers, and with which secret.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use super::files::Files;
use super::section::{secret_section, section};
use crate::yaml::{Field, Fields};

/// Which flows are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowSharing {
    /// None.
    None,
    /// Flows whose backend another gateway would not choose.
    InFlux,
    /// The flows of [`Self::InFlux`], and all flows of `nat` and `fullnat`.
    Nat,
}

/// The validated `flowSharing` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowSharingConfig {
    /// `mode`. Default none.
    pub mode: FlowSharing,
    /// `listen`: the address of the socket. Default `0.0.0.0:10358`.
    pub listen: SocketAddr,
    /// `peers`: the sockets of the other gateways. The list may contain this gateway itself. Default none: with an API
    /// server, gateways discover each other by their `GatewayStatus`.
    pub peers: Vec<SocketAddr>,
    /// `key`: 32 bytes that all gateways of the fleet use. Always set unless the mode is none.
    pub key: Option<FlowSharingKey>,
    /// `acceptKey`: another key that other gateways may use.
    pub accept_key: Option<FlowSharingKey>,
    /// `rateMax`: how many datagrams with flows are sent per second at most, to all peers together. Default 20000.
    pub rate_max: u32,
}

impl Default for FlowSharingConfig {
    fn default() -> Self {
        Self {
            mode: FlowSharing::None,
            listen: SocketAddr::from(([0, 0, 0, 0], PORT)),
            peers: Vec::new(),
            key: None,
            accept_key: None,
            rate_max: 20_000,
        }
    }
}

/// The secret of `flowSharing.key`, which is never displayed.
#[derive(Clone, PartialEq, Eq)]
pub struct FlowSharingKey(pub [u8; 32]);

impl std::fmt::Debug for FlowSharingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FlowSharingKey")
    }
}

const PORT: u16 = 10_358;
/// The maximum number of peers.
const PEERS_MAX: usize = 64;
const RATE: RangeInclusive<i64> = 100..=1_000_000;
const KEY_ACCEPTED: &str =
    "64 hexadecimal digits, such as the output of `openssl rand -hex 32`, the same on all gateways";

pub(super) fn decode(parent: &Fields<'_>, files: &Files<'_>) -> FlowSharingConfig {
    let mut config = FlowSharingConfig::default();
    section(parent, "flowSharing", |fields| {
        let modes =
            [("none", FlowSharing::None), ("in-flux", FlowSharing::InFlux), ("nat", FlowSharing::Nat)];
        let mode = fields.get("mode");
        config.mode = mode.as_ref().and_then(|f| f.one_of(&modes)).unwrap_or(config.mode);
        config.listen = fields.get("listen").and_then(|f| socket(&f)).unwrap_or(config.listen);
        for item in fields.items("peers") {
            let Some(peer) = socket(&item) else { continue };
            if peer.ip().is_unspecified() || !reaches(config.listen.ip(), peer.ip()) {
                item.error(
                    format_args!("{peer} cannot be reached from flowSharing.listen"),
                    "the address of a gateway, in the address family of flowSharing.listen",
                );
            } else if config.peers.contains(&peer) {
                item.error(format_args!("{peer} is listed twice"), "each peer once");
            } else if config.peers.len() == PEERS_MAX {
                item.error("too many peers", format!("at most {PEERS_MAX}"));
                break;
            } else {
                config.peers.push(peer);
            }
        }
        // A key that is not a mapping is a separate fault.
        let mut is_given = fields.get("key").is_some();
        config.key = secret_section(fields, "key", |key| {
            is_given = key.get("value").is_some() || key.get("file").is_some();
            decode_key(key, files)
        });
        config.accept_key = secret_section(fields, "acceptKey", |key| decode_key(key, files));
        if let Some(mode) = mode.filter(|_| config.mode != FlowSharing::None && !is_given) {
            mode.error("there is no flowSharing.key", "flowSharing.mode: none, or a flowSharing.key");
        }
        let rate = fields.get("rateMax").and_then(|f| f.integer(RATE));
        config.rate_max = rate.and_then(|n| u32::try_from(n).ok()).unwrap_or(config.rate_max);
        Some(())
    });
    config
}

fn socket(field: &Field<'_>) -> Option<SocketAddr> {
    let read = |t: &str| t.parse().ok().filter(|a: &SocketAddr| a.port() != 0);
    let address = field.parsed(read, "an address and port such as 192.0.2.4:10358 or [2001:db8::4]:10358")?;
    // Peers are identified by the source address of their datagrams, which has the IPv4 form.
    let plain = SocketAddr::new(address.ip().to_canonical(), address.port());
    if plain.ip() != address.ip() {
        field.error(format_args!("{address} has an IPv4-mapped IPv6 address"), plain.to_string());
        return None;
    }
    Some(address)
}

/// Whether a socket that is bound to `listen` can send to `peer`.
#[must_use]
pub fn reaches(listen: IpAddr, peer: IpAddr) -> bool {
    // A socket at [::] can send to IPv4, too.
    listen.is_ipv4() == peer.is_ipv4() || listen == IpAddr::from([0u16; 8])
}

fn decode_key(fields: &Fields<'_>, files: &Files<'_>) -> Option<FlowSharingKey> {
    let (value, file) = (fields.get("value"), fields.get("file"));
    match (&value, &file) {
        (Some(value), None) => {
            let text = value.secret(KEY_ACCEPTED)?;
            files.keep_inline_secret(value, text);
            key(value, text)
        }
        (None, Some(file)) => files.secret(file, |_, text| key(file, text)),
        (Some(_), Some(file)) => {
            file.error("both value and file are given", "either value or file");
            None
        }
        (None, None) => None,
    }
}

/// Parses a key. Errors never repeat the text, which may be most of a key.
fn key(field: &Field<'_>, text: &str) -> Option<FlowSharingKey> {
    let text = text.trim();
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    let bytes = digits.and_then(|digits| {
        let (pairs, []) = digits.as_chunks::<2>() else { return None };
        pairs.iter().map(|[high, low]| high << 4 | low).collect::<Vec<u8>>().try_into().ok()
    });
    if bytes.is_none() {
        field.error(
            format_args!("the text of {} characters is not a key", text.chars().count()),
            KEY_ACCEPTED,
        );
    }
    bytes.map(FlowSharingKey)
}
