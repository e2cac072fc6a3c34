//! `announce.bgp`: the gateway's AS, its peers and the aggregates that it announces.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use super::attributes::{self, AGGREGATION_V4, AGGREGATION_V6};
use crate::config::dataplane::once;
use crate::config::files::Files;
use crate::objects::RouteAttributes;
use crate::yaml::{Field, Fields, Unknown};

/// The maximum number of peers.
const PEERS_MAX: usize = 64;
const AGGREGATES_MAX: usize = 256;
/// The maximum length of a TCP MD5 key on Linux (`TCP_MD5SIG_MAXKEYLEN`).
const PASSWORD_BYTES_MAX: usize = 80;
/// The accepted range of `holdTime`. RFC 4271 does not allow a shorter time.
const HOLD_TIME: RangeInclusive<Duration> = Duration::from_secs(3)..=Duration::from_secs(65_535);
const BFD_INTERVAL: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);

const ASN: &str = "an AS number from 1 to 4294967294";
const PASSWORD: &str = "a file with 1 to 80 printable ASCII characters without \"";
const FAMILIES: &str = "ipv4, ipv6";

/// A valid `announce.bgp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BgpConfig {
    /// `asn`: the gateway's AS.
    pub asn: u32,
    /// `routerId`: the BGP identifier (RFC 4271). Default: the first IPv4 address of an interface.
    pub router_id: Option<Ipv4Addr>,
    /// `peers`.
    pub peers: Vec<Peer>,
    /// `aggregates`: prefixes that are announced instead of the VIPs in them. Default none.
    pub aggregates: Vec<IpNet>,
    /// `bfdInterval`: the time between two BFD packets in each direction. Default 300 ms.
    pub bfd_interval: Duration,
    /// `bfdMultiplier`: the number of lost BFD packets that end a session. Default 3.
    pub bfd_multiplier: u8,
    /// `program`: BIRD 2. Default `bird`, which is searched for in `PATH` and in the directories of system programs.
    pub program: PathBuf,
}

/// One peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// `address`, which identifies the peer.
    pub address: IpAddr,
    /// `asn`: its AS.
    pub asn: u32,
    /// `port`: the port on which it listens. Default 179.
    pub port: u16,
    /// `bfd`: whether BFD (RFC 5880) monitors the peer. Default false.
    pub bfd: bool,
    /// The contents of `passwordFile`: the key of TCP MD5 (RFC 2385).
    pub password: Option<Secret>,
    /// `ebgpMultihop`: the maximum number of hops to a peer; 0 if it is on-link. Default 0.
    pub multihop: u8,
    /// `gracefulRestart`: the peer keeps the routes while BIRD restarts (RFC 4724). Default false.
    pub graceful_restart: bool,
    /// `holdTime`: the session ends if no message arrives for this time. Default 90 s.
    pub hold_time: Duration,
    /// The attributes of routes to this peer, unless the pool or Service sets others.
    pub attributes: RouteAttributes,
    /// `families`: whether IPv4 and IPv6 VIPs are announced to the peer. Default: the family of its address.
    pub families: [bool; 2],
}

/// A text that is never displayed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Reads `announce.bgp`. An empty mapping means no BGP.
pub(super) fn decode(announce: &Fields<'_>, files: &Files<'_>) -> Option<BgpConfig> {
    let read = announce.section("bgp", |fields| {
        if fields.is_empty() {
            return None;
        }
        let asn = fields.required("asn", ASN).and_then(|f| asn(&f));
        let id = |text: &str| text.parse().ok().filter(|id: &Ipv4Addr| !id.is_unspecified());
        let router_id = fields.read("routerId", |f| f.parsed(id, "an IPv4 address such as 192.0.2.2"));
        let mut seen = BTreeMap::new();
        let list = fields.required("peers", "at least one peer").map(|f| f.list()).unwrap_or_default();
        if let (true, Some(field)) = (list.is_empty(), fields.get("peers")) {
            field.error("the list is empty", "at least one peer");
        }
        if let Some(beyond) = list.get(PEERS_MAX) {
            beyond.error("there are too many peers", format!("at most {PEERS_MAX}"));
        }
        let peers = list.iter().filter_map(|item| peer(item, &mut seen, files)).collect();
        let multiplier = fields.read("bfdMultiplier", |f| f.integer(1..=255));
        let program = fields.read("program", |f| f.not_blank("the path or the name of the program BIRD 2"));
        Some(BgpConfig {
            asn: asn.unwrap_or(1),
            router_id,
            peers,
            aggregates: aggregates(fields),
            bfd_interval: fields
                .read("bfdInterval", |f| f.duration(BFD_INTERVAL))
                .unwrap_or(Duration::from_millis(300)),
            bfd_multiplier: multiplier.unwrap_or(3),
            program: PathBuf::from(program.unwrap_or("bird")),
        })
    });
    read.flatten()
}

fn aggregates(fields: &Fields<'_>) -> Vec<IpNet> {
    let list = fields.items("aggregates");
    if let Some(beyond) = list.get(AGGREGATES_MAX) {
        beyond.error("there are too many aggregates", format!("at most {AGGREGATES_MAX}"));
    }
    let mut read: Vec<IpNet> = Vec::new();
    for item in &list {
        let Some(net) = item.network() else { continue };
        let shortest = if net.addr().is_ipv4() { *AGGREGATION_V4.start() } else { *AGGREGATION_V6.start() };
        if net.prefix_len() < shortest {
            let accepted = format!("a prefix of /{shortest} or longer that contains addresses of pools");
            item.error(
                format_args!("the prefix {net} is too short: it contains addresses of other networks"),
                accepted,
            );
            continue;
        }
        if let Some(other) = read.iter().find(|other| other.contains(&net) || net.contains(*other)) {
            item.error(format_args!("{net} overlaps {other}"), "aggregates that do not overlap");
        }
        read.push(net);
    }
    read
}

fn asn(field: &Field<'_>) -> Option<u32> {
    // 0 and the largest number are reserved (RFC 7607, RFC 7300).
    field.integer(1..=u32::MAX - 1)
}

fn peer(item: &Field<'_>, seen: &mut BTreeMap<IpAddr, String>, files: &Files<'_>) -> Option<Peer> {
    let fields = item.fields()?;
    let address = fields.required("address", "the address of a router").and_then(|f| {
        let ip = f.ip()?;
        let why = match ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => Some("link-local"),
            ip if ip.is_unspecified() => Some("unspecified"),
            ip if ip.is_multicast() => Some("multicast"),
            ip if ip.is_loopback() => Some("loopback"),
            _ => None,
        };
        if let Some(why) = why {
            f.error(format_args!("{ip} is a {why} address"), "a unicast address of a router");
            return None;
        }
        once(seen, ip, &f).then_some(ip)
    });
    let asn = fields.required("asn", ASN).and_then(|f| asn(&f));
    let flag = |key| fields.read(key, Field::boolean).unwrap_or(false);
    let families = match fields.get("families") {
        None => address.map(|ip| [ip.is_ipv4(), ip.is_ipv6()]),
        Some(field) => {
            let list = field.list();
            if list.is_empty() {
                field.error("the list is empty", FAMILIES);
            }
            let read: Vec<bool> =
                list.iter().filter_map(|f| f.one_of(&[("ipv4", true), ("ipv6", false)])).collect();
            Some([read.contains(&true), read.contains(&false)])
        }
    };
    let peer = Peer {
        address: address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        asn: asn.unwrap_or(1),
        port: fields.read("port", |f| f.integer(1..=u16::MAX)).unwrap_or(179),
        bfd: flag("bfd"),
        password: fields.read("passwordFile", |f| password(f, files)),
        multihop: fields.read("ebgpMultihop", |f| f.integer(0..=u8::MAX)).unwrap_or(0),
        graceful_restart: flag("gracefulRestart"),
        hold_time: fields.read("holdTime", |f| f.duration(HOLD_TIME)).unwrap_or(Duration::from_secs(90)),
        attributes: attributes::decode(&fields),
        families: families.unwrap_or([true, false]),
    };
    fields.finish(Unknown::Refused);
    address.and(asn).map(|_| peer)
}

/// Reads a password file. Errors never repeat its contents.
fn password(field: &Field<'_>, files: &Files<'_>) -> Option<Secret> {
    files.secret(field, |path, text| {
        let (path, text) = (path.display(), text.trim_end_matches(['\r', '\n']));
        let is_valid = (1..=PASSWORD_BYTES_MAX).contains(&text.len())
            // BIRD's strings have no escapes.
            && text.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"');
        if !is_valid {
            field.error(format_args!("{path} has no usable password ({} bytes)", text.len()), PASSWORD);
        } else if text.trim() != text {
            let what = format_args!(
                "{path}: the password begins or ends with a space; the router's password must have the space too"
            );
            field.warning(what, "a password without spaces around it");
        }
        is_valid.then(|| Secret::new(text))
    })
}
