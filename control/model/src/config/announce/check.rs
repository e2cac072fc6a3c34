//! Checks `announce` against the other sections: peers must be reachable, and the socket's path must not be too long.

use std::net::IpAddr;

use ipnet::IpNet;

use super::bgp::Peer;
use crate::config::cross_checks::Check;

/// The maximum length of `admin.socket` with `announce.bgp`. BIRD's socket is in a directory beside it and has a
/// longer name, and the path of a socket has at most 107 bytes.
const SOCKET_PATH_BYTES_MAX: usize = 97;

pub(in crate::config) fn check(check: &Check<'_>) {
    let config = check.config;
    let Some(bgp) = &config.announce.bgp else { return };
    let own: Vec<IpNet> = config.dataplane.interface_addresses().copied().collect();
    if bgp.router_id.is_none() && !own.iter().any(|net| net.addr().is_ipv4()) && !own.is_empty() {
        let what = "no interface has an IPv4 address that could be the BGP identifier";
        check.error("announce.bgp.routerId", what, "an IPv4 address that identifies this gateway");
    }
    for (i, peer) in bgp.peers.iter().enumerate() {
        let field = |key: &str| format!("announce.bgp.peers[{i}].{key}");
        if own.iter().any(|net| net.addr() == peer.address) {
            let what = format!("{} is an address of the gateway itself", peer.address);
            check.error(&field("address"), what, "the address of a router");
        } else if peer.multihop == 0 && !own.iter().any(|net| net.contains(&peer.address)) {
            let what = format!("{} is not on-link, and ebgpMultihop is 0", peer.address);
            let accepted = "an address in a network of dataplane.interfaces, or ebgpMultihop of at least 1";
            check.error(&field("address"), what, accepted);
        }
        check_families(peer, &own, |what| {
            check.error(&field("families"), what, "families in which dataplane.interfaces has an address");
        });
    }
    let length = config.admin.socket.as_os_str().len();
    if length > SOCKET_PATH_BYTES_MAX {
        let what = format!("with announce.bgp, a path of {length} bytes is too long");
        check.error("admin.socket", what, "a path of 1 to 97 bytes");
    }
}

/// Each announced family needs an address of the gateway as the next hop, and the session needs an address of its own
/// family.
fn check_families(peer: &Peer, own: &[IpNet], error: impl Fn(String)) {
    let has = |is_v4: bool| own.iter().map(IpNet::addr).any(|ip: IpAddr| ip.is_ipv4() == is_v4);
    for (name, is_v4, wanted) in [
        ("IPv4", true, peer.families[0] || peer.address.is_ipv4()),
        ("IPv6", false, peer.families[1] || peer.address.is_ipv6()),
    ] {
        if wanted && !has(is_v4) {
            error(format!("no interface has an {name} address for the session or for next hops"));
        }
    }
}
