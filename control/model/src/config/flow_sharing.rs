//! `flowSharing`: which flows this gateway exports, to which peers, and with which secret.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use hex::FromHex;

use super::files::{Files, is_given_twice, secret_section};
use crate::yaml::{Field, Fields};

tidegate_wire::named! {
    /// Which flows are shared.
    pub enum FlowSharing {
        /// None.
        None => "none",
        /// Flows whose backend another gateway would not choose.
        InFlux => "in-flux",
        /// The flows of [`Self::InFlux`], and all flows of `nat` and `fullnat`.
        Nat => "nat",
    }
}

/// The validated `flowSharing` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowSharingConfig {
    /// `mode`. Default none.
    pub mode: FlowSharing,
    /// `listen`: the address of the socket. Default `0.0.0.0:10358`.
    pub listen: SocketAddr,
    /// `peers`: the sockets of the other gateways, and perhaps of this one. Default none: they discover each other.
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
const RATE: RangeInclusive<u32> = 100..=1_000_000;
const KEY_ACCEPTED: &str =
    "64 hexadecimal digits, such as the output of `openssl rand -hex 32`, the same on all gateways";

pub(super) fn decode(parent: &Fields<'_>, files: &Files<'_>) -> FlowSharingConfig {
    let mut config = FlowSharingConfig::default();
    parent.section("flowSharing", |fields| {
        let mode = fields.get("mode");
        fields.set("mode", &mut config.mode, Field::named);
        fields.set("listen", &mut config.listen, socket);
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
        let parse = |text: &str| FromHex::from_hex(text).ok().map(FlowSharingKey);
        let read = |key: &Fields<'_>| match is_given_twice(key) {
            true => None,
            false => files.key(key, parse, KEY_ACCEPTED),
        };
        config.key = secret_section(fields, "key", |key| {
            is_given = key.get("value").is_some() || key.get("file").is_some();
            read(key)
        });
        config.accept_key = secret_section(fields, "acceptKey", read);
        if let Some(mode) = mode.filter(|_| config.mode != FlowSharing::None && !is_given) {
            mode.error("there is no flowSharing.key", "flowSharing.mode: none, or a flowSharing.key");
        }
        fields.set("rateMax", &mut config.rate_max, |f| f.integer(RATE));
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
