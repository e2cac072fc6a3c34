//! What the result contains: pools, BGP peers and how addresses are announced; and its YAML.
//!
//! Invariant: `tidegate check` accepts what is written, once the operator has added the sections of the machine and
//! the files with passwords. So pools are read back with the reader of the configuration.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tidegate_model::config;
use tidegate_model::diagnostic::{Diagnostic, Location, Report};
use tidegate_model::objects::{AddressRange, Labels, RouteAttributes, Selector};
use tidegate_model::yaml::{Field, Sheet, emit, text};

use crate::note::{Note, NoteKind, Notes};
use crate::{addresses, selector};

/// The maximum number of entries in `spec.addresses` of an AddressPool.
const ADDRESSES_MAX: usize = 64;
/// The maximum number of peers of a gateway.
const PEERS_MAX: usize = 64;

/// Everything that was converted.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) pools: Vec<PoolDraft>,
    pub(crate) bgp: BgpDraft,
    /// Whether the input announces addresses by ARP and neighbour discovery; `None` if it contains no such setting.
    pub(crate) layer2: Option<bool>,
    /// `announce.kernelRoutes`.
    pub(crate) kernel_routes: Option<Value>,
}

/// A pool.
#[derive(Debug)]
pub(crate) struct PoolDraft {
    pub(crate) name: String,
    /// Where the pool is in the input.
    pub(crate) at: Location,
    pub(crate) labels: Labels,
    pub(crate) ranges: Vec<AddressRange>,
    pub(crate) auto_assign: bool,
    pub(crate) disabled: bool,
    pub(crate) namespaces: Selector,
    pub(crate) services: Selector,
    /// How its addresses are announced; `None` if the input does not contain it.
    pub(crate) announce: Option<Announce>,
    pub(crate) routes: Option<Routes>,
}

/// How the addresses of a pool are announced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Announce {
    pub(crate) l2: bool,
    pub(crate) bgp: bool,
}

/// The routes to the addresses of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Routes {
    pub(crate) attributes: RouteAttributes,
    pub(crate) aggregation_length: Option<i64>,
    pub(crate) aggregation_length_v6: Option<i64>,
}

impl PoolDraft {
    pub(crate) fn new(name: impl Into<String>, at: Location) -> Self {
        Self {
            name: name.into(),
            at,
            labels: Labels::new(),
            ranges: Vec::new(),
            auto_assign: true,
            disabled: false,
            namespaces: Selector::default(),
            services: Selector::default(),
            announce: None,
            routes: None,
        }
    }

    /// The keys that pools of the configuration and AddressPools have in common.
    fn spec(&self) -> Map<String, Value> {
        let mut spec = Map::new();
        let mut set = |key: &str, value: Value| spec.insert(key.to_owned(), value);
        set("addresses", self.ranges.iter().map(addresses::written).collect());
        if !self.auto_assign {
            set("autoAssign", false.into());
        }
        if self.disabled {
            set("disabled", true.into());
        }
        for (key, selector) in [("namespaceSelector", &self.namespaces), ("serviceSelector", &self.services)]
        {
            if *selector != Selector::default() {
                set(key, selector::to_value(selector));
            }
        }
        if let Some(Announce { l2, bgp }) = self.announce {
            let methods = [("l2", l2), ("bgp", bgp)].into_iter().filter(|(_, is_on)| *is_on);
            set("announce", methods.map(|(name, _)| name).collect());
        }
        if let Some(routes) = &self.routes {
            let mut bgp = json!(routes.attributes);
            let lengths = [
                ("aggregationLength", routes.aggregation_length),
                ("aggregationLengthV6", routes.aggregation_length_v6),
            ];
            for (key, length) in lengths {
                if let Some(length) = length {
                    bgp[key] = length.into();
                }
            }
            if bgp != json!({}) {
                set("bgp", bgp);
            }
        }
        spec
    }

    fn manifest(&self) -> Value {
        let mut metadata = json!({"name": self.name});
        if !self.labels.is_empty() {
            metadata["labels"] = json!(self.labels);
        }
        json!({
            "apiVersion": config::API_VERSION, "kind": "AddressPool", "metadata": metadata, "spec": self.spec(),
        })
    }

    /// The pool as an item of `pools` in the configuration.
    fn configured(&self) -> Value {
        let mut pool = self.spec();
        pool.insert("name".to_owned(), self.name.as_str().into());
        if !self.labels.is_empty() {
            pool.insert("labels".to_owned(), json!(self.labels));
        }
        pool.into()
    }

    /// Adds what the gateway would refuse to the report, and overlaps to the notes.
    fn check(&self, report: &mut Report, seen: &mut Vec<(AddressRange, String)>) {
        let place = |fault: Diagnostic| Diagnostic {
            what: format!("pool {}: {}", self.name, fault.what),
            location: Some(self.at.clone()),
            ..fault
        };
        if !text::is_rfc1123_subdomain(&self.name) {
            let wrong = Diagnostic::error("the name is not a valid name of an object");
            report.push(place(wrong.accepting("a name of a-z, 0-9, - and ., such as public")));
        }
        let written = emit::to_string(&self.spec()).expect("keys are text");
        let sheet = Sheet::new("pool");
        for document in sheet.documents(&written) {
            if let Some(fields) = Field::document(&sheet, &document).fields() {
                config::pool(&fields, self.name.clone(), seen);
            }
        }
        report.extend(sheet.into_report().iter().cloned().map(place));
    }
}

/// `announce.bgp`.
#[derive(Debug, Default)]
pub(crate) struct BgpDraft {
    /// The AS number of the gateway.
    pub(crate) asn: Option<u32>,
    pub(crate) peers: Vec<PeerDraft>,
    /// Interval and multiplier of BFD.
    pub(crate) bfd: Option<(Duration, u32)>,
}

/// A peer.
#[derive(Debug)]
pub(crate) struct PeerDraft {
    pub(crate) address: IpAddr,
    pub(crate) asn: u32,
    pub(crate) settings: Settings,
}

/// The settings of a peer that have defaults.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    pub(crate) port: Option<i64>,
    pub(crate) bfd: bool,
    pub(crate) has_password: bool,
    pub(crate) multihop: Option<i64>,
    pub(crate) graceful_restart: bool,
    pub(crate) hold_time: Option<Duration>,
    /// `ipv4`, `ipv6`; empty for the family of the address.
    pub(crate) families: Vec<&'static str>,
}

impl PeerDraft {
    /// The name of the file with the password.
    fn password_file(&self) -> String {
        format!("bgp-password-{}", self.address.to_string().replace(':', "-"))
    }

    fn written(&self) -> Value {
        let Settings { port, bfd, has_password, multihop, graceful_restart, hold_time, families } =
            &self.settings;
        let mut peer = json!({"address": self.address, "asn": self.asn});
        let mut set = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                peer[key] = value;
            }
        };
        set("port", port.map(Into::into));
        set("ebgpMultihop", multihop.map(Into::into));
        set("holdTime", hold_time.map(|time| text::show_duration(time).into()));
        set("bfd", bfd.then(|| true.into()));
        set("gracefulRestart", graceful_restart.then(|| true.into()));
        set("passwordFile", has_password.then(|| self.password_file().into()));
        set("families", (!families.is_empty()).then(|| json!(families)));
        peer
    }
}

impl BgpDraft {
    /// Adds a peer, which `of` describes, of a speaker with the AS number `own`. A gateway has one AS number, and a
    /// peer for each address.
    pub(crate) fn add(&mut self, notes: &Notes, of: &Field<'_>, own: u32, peer: PeerDraft) {
        let asn = *self.asn.get_or_insert(own);
        let left_out =
            |why: String| notes.add(NoteKind::Decide, of, format_args!("the peer is left out: {why}"));
        if asn != own {
            return left_out(format!(
                "its own AS number is {own}, and a gateway has one AS number, here {asn}"
            ));
        }
        if self.peers.iter().any(|other| other.address == peer.address) {
            return left_out(format!("there is already a peer {}", peer.address));
        }
        if self.peers.len() == PEERS_MAX {
            return left_out(format!("a gateway has at most {PEERS_MAX} peers"));
        }
        if peer.settings.has_password {
            let file = peer.password_file();
            let what = "write the password to the file";
            notes.add(NoteKind::Decide, of, format_args!("{what} {file} beside gateway.yaml (chmod 600)"));
        }
        self.peers.push(peer);
    }

    fn written(&self) -> Option<Value> {
        let asn = self.asn.filter(|_| !self.peers.is_empty())?;
        let peers: Vec<Value> = self.peers.iter().map(PeerDraft::written).collect();
        let mut bgp = json!({"asn": asn, "peers": peers});
        if let Some((interval, multiplier)) = self.bfd {
            bgp["bfdInterval"] = text::show_duration(interval).into();
            bgp["bfdMultiplier"] = multiplier.into();
        }
        Some(bgp)
    }
}

/// The address of a router, or an error.
pub(crate) fn router_address(field: &Field<'_>) -> Option<IpAddr> {
    checked_router(field, field.ip()?)
}

/// The address of a router that is written with its prefix length.
pub(crate) fn router_address_of(field: &Field<'_>) -> Option<IpAddr> {
    let net =
        field.parsed(text::cidr, "the address of a router with its prefix length, such as 192.0.2.1/32")?;
    checked_router(field, net.addr())
}

fn checked_router(field: &Field<'_>, ip: IpAddr) -> Option<IpAddr> {
    let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    if is_link_local || ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() {
        field.error(format_args!("{ip} is not an address of a router"), "a unicast address of a router");
        return None;
    }
    Some(ip)
}

/// An AS number.
pub(crate) fn asn(field: &Field<'_>) -> Option<u32> {
    field.integer(1..=i64::from(u32::MAX) - 1).and_then(|n| u32::try_from(n).ok())
}

/// `gateway.yaml` and the AddressPools.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) gateway: Value,
    pub(crate) pools: Vec<Value>,
}

impl Draft {
    /// Pools that are not announced, and why the operator should know.
    pub(crate) fn unannounced(&self) -> impl Iterator<Item = Note> {
        let has_routers = !self.bgp.peers.is_empty() || self.kernel_routes.is_some();
        self.pools.iter().filter_map(move |pool| {
            let what = match pool.announce? {
                Announce { l2: false, bgp: false } => "nothing in the input announces its addresses",
                Announce { bgp: true, .. } if !has_routers => {
                    "its addresses are announced by BGP, and the input has no peer"
                }
                _ => return None,
            };
            let what = format!("pool {}: {what}", pool.name);
            Some(Note { location: pool.at.clone(), kind: NoteKind::Decide, what })
        })
    }

    /// Whether nothing was converted.
    pub(crate) fn is_empty(&self) -> bool {
        self.pools.is_empty()
            && self.bgp.peers.is_empty()
            && self.layer2.is_none()
            && self.kernel_routes.is_none()
    }

    /// Writes everything. Adds what the gateway would refuse to the report.
    pub(crate) fn write(&self, vendor: &str, report: &mut Report) -> Written {
        let (mut seen, mut names) = (Vec::new(), BTreeMap::new());
        // What is refused already is not complete.
        let is_complete = !report.has_errors();
        for pool in self.pools.iter().filter(|_| is_complete) {
            pool.check(report, &mut seen);
            if let Some(first) = names.insert(&pool.name, &pool.at) {
                let what = format!("pool {}: the name is already used at {first}", pool.name);
                let accepted = "a different name for each pool";
                report.push(Diagnostic::error(what).accepting(accepted).at(pool.at.clone()));
            }
        }
        let mut announce = json!({"l2": {"mode": if self.layer2 == Some(true) { "lease" } else { "off" }}});
        if let Some(bgp) = self.bgp.written() {
            announce["bgp"] = bgp;
        }
        if let Some(routes) = &self.kernel_routes {
            announce["kernelRoutes"] = routes.clone();
        }
        let mut gateway = json!({
            "apiVersion": config::API_VERSION, "kind": config::KIND, "source": {"kubernetes": {}},
            "services": {"compat": [vendor]},
        });
        if self.layer2.is_some() || announce.as_object().is_some_and(|keys| keys.len() > 1) {
            gateway["announce"] = announce;
        }
        let (large, pools): (Vec<_>, Vec<_>) =
            self.pools.iter().partition(|pool| pool.ranges.len() > ADDRESSES_MAX);
        if !large.is_empty() {
            gateway["pools"] = large.into_iter().map(PoolDraft::configured).collect();
        }
        Written { gateway, pools: pools.into_iter().map(PoolDraft::manifest).collect() }
    }
}
