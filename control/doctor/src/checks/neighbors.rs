//! What routers answer: do the next hops of `dataplane.routes` and the BGP peers answer ARP and neighbour discovery,
//! with the expected link address?
//!
//! A datagram to a router makes the kernel resolve it. Nothing else is sent. While the gateway runs, the kernel's
//! packets pass it through a tap.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use tidegate_host::rtnetlink::Connection;

use super::subject::Subject;
use crate::finding::Finding;
use crate::network::{Neighbor, neighbors};

/// How long routers may take: the kernel sends three requests, one each second.
const ANSWER_MAX: Duration = Duration::from_millis(3500);
const POLL: Duration = Duration::from_millis(50);
/// The discard service (RFC 863): nobody listens, and a router ignores the datagram.
const DISCARD: u16 = 9;

/// Resolves the routers, and compares their answers with the configuration.
pub(crate) fn check(subject: &Subject<'_>) -> Vec<Finding> {
    let network = &subject.config.dataplane.network;
    let on_link = |ip: &IpAddr| subject.network.addresses.iter().any(|(_, net)| net.contains(ip));
    let peers = subject.config.announce.bgp.iter().flat_map(|bgp| bgp.peers.iter().map(|peer| peer.address));
    let routers: BTreeSet<IpAddr> = network.routes.iter().map(|route| route.via).chain(peers).collect();
    // Without an address on the link, the kernel has no way to resolve them.
    let (resolvable, others): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) = routers.into_iter().partition(on_link);
    let known = resolve(&resolvable);
    let resolved =
        resolvable.iter().map(|ip| answered(subject, *ip, known.iter().filter(|one| one.ip == *ip)));
    let others = others.iter().map(|ip| {
        let what =
            format!("{ip} is not resolved: the kernel has no address in its network until the gateway runs");
        Finding::ok("routers", what)
    });
    resolved.chain(others).collect()
}

/// The neighbours with these addresses, as soon as each has answered or failed.
fn resolve(routers: &BTreeSet<IpAddr>) -> Vec<Neighbor> {
    let Ok(mut kernel) = Connection::open() else { return Vec::new() };
    for ip in routers {
        let any: SocketAddr = if ip.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
        // If it cannot be sent, the router stays unknown.
        let _ = UdpSocket::bind(any).and_then(|socket| socket.send_to(&[], (*ip, DISCARD)));
    }
    let until = Instant::now() + ANSWER_MAX;
    loop {
        let known = neighbors(&mut kernel).unwrap_or_default();
        let is_decided =
            |ip: &IpAddr| known.iter().any(|one| one.ip == *ip && (one.mac.is_some() || one.has_failed));
        if routers.iter().all(is_decided) || Instant::now() >= until {
            return known;
        }
        std::thread::sleep(POLL);
    }
}

fn answered<'a>(subject: &Subject<'_>, ip: IpAddr, known: impl Iterator<Item = &'a Neighbor>) -> Finding {
    let check = "routers";
    let macs: Vec<(&str, u32)> = known.filter_map(|one| Some((one.mac.as_deref()?, one.link))).collect();
    let Some((mac, link)) = macs.first() else {
        let what =
            format!("{ip} doesn't answer {}", if ip.is_ipv4() { "ARP" } else { "neighbour discovery" });
        let why = "packets to this next hop are dropped";
        let fix = format!("is it up, on this link, and in this VLAN? ip neighbour show {ip}");
        return Finding::warning(check, what, why, fix);
    };
    let statics = &subject.config.dataplane.network.neighbors;
    let other = statics.iter().find(|one| one.ip == ip && one.mac.to_string() != *mac);
    if let Some(other) = other {
        let what = format!("{ip} answers with {mac}, and dataplane.neighbors has {}", other.mac);
        let why = "the gateway sends packets to the configured address, where nobody may be";
        return Finding::fault(
            check,
            what,
            why,
            format!("dataplane.neighbors: {{ip: {ip}, mac: \"{mac}\"}}"),
        );
    }
    let device = subject.network.links.iter().find(|one| one.index == *link);
    let device = device.map_or("an unknown link", |one| one.name.as_str());
    Finding::ok(check, format!("{ip} answers with {mac} on {device}"))
}
