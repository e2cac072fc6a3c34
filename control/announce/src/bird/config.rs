//! Generates the configuration of BIRD 2.
//!
//! The main file defines the sessions. The routes are in separate files, as static routes, so a change of VIPs doesn't
//! touch the sessions: BIRD compares the routes and sends the difference. A route carries our own attributes, which the
//! filter of each peer translates to BGP attributes.
//!
//! A protocol is named after its peer, so a new peer does not restart the sessions of others.
//!
//! Invariant: no input text is copied verbatim. Numbers, addresses and prefixes are formatted from their types, and
//! passwords contain no character that is special in BIRD.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use tidegate_model::config::{BgpConfig, Peer};
use tidegate_model::objects::{Community, PREPENDS_MAX, RouteAttributes};

use crate::routes::Routes;

/// The main file.
pub const MAIN: &str = "bird.conf";
/// The route files, by family.
const ROUTES: [&str; 2] = ["vips4.conf", "vips6.conf"];
/// Every file.
pub const NAMES: [&str; 3] = [MAIN, ROUTES[0], ROUTES[1]];

/// How long peers keep routes after a failure, with graceful restart.
const RESTART_SECONDS: u32 = 120;

/// What is exported to a peer that is still waiting for the full set of routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitialExport {
    /// No route.
    Nothing,
    /// The routes of last resort, which routers use only if there is no other.
    LastResort,
}

/// The peers that wait for the full set of routes.
pub type Waiting = BTreeMap<IpAddr, InitialExport>;

/// The contents of all files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files {
    main: String,
    routes: [String; 2],
}

impl Files {
    /// The files for these peers and routes. `own` are the addresses of the gateway's interfaces.
    #[must_use]
    pub fn of(
        bgp: &BgpConfig,
        own: &[Vec<IpNet>],
        (routes, last_resort): (&Routes, &BTreeSet<IpNet>),
        waiting: &Waiting,
    ) -> Self {
        let of_family = |is_v4: bool| {
            let mut text = String::new();
            for (net, attributes) in routes.iter().filter(|(net, _)| net.addr().is_ipv4() == is_v4) {
                route(&mut text, *net, attributes, last_resort.contains(net));
            }
            text
        };
        Self { main: main(bgp, own, waiting), routes: [of_family(true), of_family(false)] }
    }

    /// Whether there is any route.
    pub(super) fn has_routes(&self) -> bool {
        self.routes.iter().any(|text| !text.is_empty())
    }

    /// Each file with its name. The main file comes last because it includes the others.
    pub(super) fn each(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let routes = ROUTES.into_iter().zip(self.routes.iter().map(String::as_str));
        routes.chain([(MAIN, self.main.as_str())])
    }
}

/// The name of a peer's protocol.
#[must_use]
pub fn protocol_of(peer: IpAddr) -> String {
    format!("peer_{}", symbol(peer))
}

fn symbol(peer: IpAddr) -> String {
    peer.to_string().replace(['.', ':'], "_")
}

fn route(text: &mut String, net: IpNet, attributes: &RouteAttributes, is_last_resort: bool) {
    let mut with = String::new();
    communities(&mut with, &attributes.communities);
    for (name, value) in [
        ("tg_pref", attributes.local_pref),
        ("tg_med", attributes.med),
        ("tg_prepends", attributes.prepends.map(u32::from)),
        ("tg_last_resort", is_last_resort.then_some(1)),
    ] {
        if let Some(value) = value {
            push(&mut with, format_args!(" {name} = {value};"));
        }
    }
    let with = if with.is_empty() { String::new() } else { format!(" {{{with} }}") };
    push(text, format_args!("route {net} blackhole{with};\n"));
}

fn communities(text: &mut String, communities: &[Community]) {
    for community in communities {
        match community {
            Community::Standard(a, b) => push(text, format_args!(" bgp_community.add(({a},{b}));")),
            Community::Large(a, b, c) => push(text, format_args!(" bgp_large_community.add(({a},{b},{c}));")),
        }
    }
}

fn main(bgp: &BgpConfig, own: &[Vec<IpNet>], waiting: &Waiting) -> String {
    let id = bgp.router_id.or_else(|| {
        own.iter().flatten().find_map(|net| match net.addr() {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(_) => None,
        })
    });
    let mut text = format!(
        "# Written by Tidegate at each change. Do not edit.\n\
         log stderr all;\n\
         timeformat protocol iso long;\n\
         router id {};\n\
         graceful restart wait {RESTART_SECONDS};\n\
         attribute int tg_pref;\n\
         attribute int tg_med;\n\
         attribute int tg_prepends;\n\
         attribute int tg_last_resort;\n\
         protocol device tg_device {{ }}\n",
        id.unwrap_or(Ipv4Addr::LOCALHOST),
    );
    if bgp.peers.iter().any(|peer| peer.bfd) {
        let (interval, lost) = (bgp.bfd_interval.as_millis(), bgp.bfd_multiplier);
        push(
            &mut text,
            format_args!(
                "protocol bfd tg_bfd {{\n  \
                 interface \"*\" {{ interval {interval} ms; multiplier {lost}; }};\n  \
                 multihop {{ interval {interval} ms; multiplier {lost}; }};\n}}\n"
            ),
        );
    }
    for (family, file) in [(4, ROUTES[0]), (6, ROUTES[1])] {
        // `include` must begin a line.
        push(
            &mut text,
            format_args!("protocol static tg_vips{family} {{\n  ipv{family};\ninclude \"{file}\";\n}}\n"),
        );
    }
    for one in &bgp.peers {
        peer(&mut text, bgp, own, one, waiting.get(&one.address).copied());
    }
    text
}

fn peer(text: &mut String, bgp: &BgpConfig, own: &[Vec<IpNet>], peer: &Peer, initial: Option<InitialExport>) {
    let (asn, symbol) = (bgp.asn, symbol(peer.address));
    filter(text, asn, &symbol, peer, initial);
    let Some(local) = local_address(own, peer.address) else { return };
    let (address, port) = (peer.address, peer.port);
    push(
        text,
        format_args!(
            "protocol bgp {} {{\n  local {local} as {asn};\n  neighbor {address} port {port} as {};\n  strict bind on;\n",
            protocol_of(address),
            peer.asn
        ),
    );
    match peer.multihop {
        0 => text.push_str("  direct;\n"),
        hops => push(text, format_args!("  multihop {hops};\n")),
    }
    if peer.bfd {
        text.push_str("  bfd on;\n");
    }
    if let Some(password) = &peer.password {
        push(text, format_args!("  password \"{}\";\n", password.reveal()));
    }
    push(text, format_args!("  hold time {};\n", peer.hold_time.as_secs()));
    // BIRD's defaults are 2 minutes before it reconnects and up to 5 after an error.
    text.push_str("  connect delay time 1;\n  connect retry time 5;\n  error wait time 1, 10;\n");
    match peer.graceful_restart {
        true => {
            push(text, format_args!("  graceful restart on;\n  graceful restart time {RESTART_SECONDS};\n"));
        }
        false => text.push_str("  graceful restart off;\n"),
    }
    // BIRD re-exports routes when the filter changes, without restarting the session.
    let export = match initial {
        Some(InitialExport::Nothing) => "none".to_owned(),
        Some(InitialExport::LastResort) | None => format!("filter to_{symbol}"),
    };
    for (family, is_v4, wanted) in [(4, true, peer.families[0]), (6, false, peer.families[1])] {
        let next_hop = if local.is_ipv4() == is_v4 { Some(local) } else { first_of(own, is_v4, local) };
        if let Some(next_hop) = next_hop.filter(|_| wanted) {
            push(
                text,
                format_args!(
                    "  ipv{family} {{ import none; export {export}; next hop address {next_hop}; }};\n"
                ),
            );
        }
    }
    text.push_str("}\n");
}

/// The export filter of a peer. Attributes of the route take precedence over the peer's.
fn filter(text: &mut String, asn: u32, symbol: &str, peer: &Peer, initial: Option<InitialExport>) {
    let defaults = &peer.attributes;
    push(text, format_args!("filter to_{symbol} {{\n  if source != RTS_STATIC then reject;\n"));
    if initial == Some(InitialExport::LastResort) {
        text.push_str("  if !defined(tg_last_resort) then reject;\n");
    }
    let mut added = String::new();
    communities(&mut added, &defaults.communities);
    if !added.is_empty() {
        push(text, format_args!(" {added}\n"));
    }
    for (ours, theirs, default) in
        [("tg_pref", "bgp_local_pref", defaults.local_pref), ("tg_med", "bgp_med", defaults.med)]
    {
        push(text, format_args!("  if defined({ours}) then {theirs} = {ours};"));
        if let Some(default) = default {
            push(text, format_args!(" else {theirs} = {default};"));
        }
        text.push('\n');
    }
    // A peer in the same AS rejects a path that contains its own number.
    if peer.asn != asn {
        prepends(text, asn, defaults.prepends.unwrap_or(0));
    }
    text.push_str("  accept;\n}\n");
}

/// Prepends the AS number as often as the route specifies, or else `default` times.
fn prepends(text: &mut String, asn: u32, default: u8) {
    // BIRD has no loops.
    text.push_str("  if defined(tg_prepends) then {\n");
    for n in 1..=PREPENDS_MAX {
        push(text, format_args!("    if tg_prepends >= {n} then bgp_path.prepend({asn});\n"));
    }
    text.push_str("  }");
    match default {
        0 => text.push('\n'),
        n => push(
            text,
            format_args!(" else {{\n{}  }}\n", format!("    bgp_path.prepend({asn});\n").repeat(n.into())),
        ),
    }
}

/// The gateway's address for a session: the one in the peer's network, or else the first of its family.
fn local_address(own: &[Vec<IpNet>], peer: IpAddr) -> Option<IpAddr> {
    let on_link = own.iter().flatten().find(|net| net.contains(&peer));
    on_link
        .or_else(|| own.iter().flatten().find(|net| net.addr().is_ipv4() == peer.is_ipv4()))
        .map(IpNet::addr)
}

/// The next hop for the family that the session does not use: an address of the same interface, or else of another.
fn first_of(own: &[Vec<IpNet>], is_v4: bool, local: IpAddr) -> Option<IpAddr> {
    let same = own.iter().filter(|interface| interface.iter().any(|net| net.addr() == local));
    let addresses = same.chain(own).flatten().map(IpNet::addr);
    addresses.into_iter().find(|ip| ip.is_ipv4() == is_v4)
}

/// Appends formatted text. Writing to a `String` cannot fail.
fn push(text: &mut String, what: std::fmt::Arguments<'_>) {
    let _ = text.write_fmt(what);
}
