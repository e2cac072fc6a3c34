//! The sockets at which the other gateways share flows, from their `GatewayStatus`. Pure.
//!
//! A gateway stays a peer as long as its object exists, so that it need not be discovered again after a restart.
//! Whether it should currently respond is tracked separately.

use std::net::SocketAddr;

/// Another gateway that shares flows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharingPeer {
    /// Its name.
    pub name: String,
    /// Its socket.
    pub address: SocketAddr,
    /// Whether it has a heartbeat and has not stopped, so that it should respond.
    pub is_live: bool,
}

/// The other gateways that share flows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharingPeers {
    /// Sorted by name, live ones first.
    pub peers: Vec<SharingPeer>,
    /// Why gateways are left out, as text for display.
    pub faults: Vec<String>,
}

impl SharingPeers {
    /// Peers from the names of gateways, their `flowSharingAddress`, and whether they are live. `own` is the
    /// `flowSharingAddress` of this gateway.
    pub(super) fn of<'a>(own: &str, others: impl Iterator<Item = (&'a str, &'a str, bool)>) -> Self {
        let mut this = Self::default();
        let mut others: Vec<_> = others.filter(|(_, socket, _)| !socket.is_empty()).collect();
        others.sort_by_key(|(name, _, is_live)| (!is_live, *name));
        for (name, socket, is_live) in others {
            let address =
                socket.parse().ok().filter(|at: &SocketAddr| !at.ip().is_unspecified() && at.port() != 0);
            let Some(address) = address else {
                this.faults.push(format!(
                    "gateway {name}: its flowSharingAddress {socket:?} is not an address with a port"
                ));
                continue;
            };
            let same = this.peers.iter().find(|peer| peer.address == address);
            let same = same.map(|other| format!("gateway {}", other.name));
            let same = same.or_else(|| (socket == own).then(|| "this gateway".to_owned()));
            match same {
                // The object of a gateway that was replaced by one with another name stays for a day.
                Some(_) if !is_live => {}
                Some(other) => this.faults.push(format!(
                    "gateway {name} is not used as a peer: its flowSharingAddress {address} is also that of {other}; \
                     use a different flowSharing.listen on each gateway"
                )),
                None => this.peers.push(SharingPeer { name: name.to_owned(), address, is_live }),
            }
        }
        this
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_status_excludes_only_its_own_gateway() {
        let said = [
            ("a", "192.0.2.1:10358", false),
            ("b", "nonsense", true),
            ("c", "", true),
            ("d", "0.0.0.0:10358", true),
            ("e", "[2001:db8::5]:10358", true),
        ];
        let found = SharingPeers::of("192.0.2.9:10358", said.into_iter());
        let peers: Vec<_> = found.peers.iter().map(|peer| (peer.name.as_str(), peer.is_live)).collect();
        assert_eq!(peers, [("e", true), ("a", false)]);
        assert_eq!(found.faults.len(), 2, "{:?}", found.faults);
        assert!(found.faults[0].contains("gateway b") && found.faults[1].contains("gateway d"));
    }

    #[test]
    fn two_live_gateways_with_one_address_are_reported() {
        let said =
            [("a", "192.0.2.1:10358", true), ("b", "192.0.2.1:10358", true), ("c", "192.0.2.1:10358", false)];
        let found = SharingPeers::of("192.0.2.9:10358", said.into_iter());
        assert_eq!(found.peers.len(), 1);
        assert_eq!(found.faults.len(), 1, "{:?}", found.faults);
        assert!(found.faults[0].contains("gateway b") && found.faults[0].contains("gateway a"));
        let found = SharingPeers::of("192.0.2.1:10358", [("a", "192.0.2.1:10358", true)].into_iter());
        assert!(found.peers.is_empty() && found.faults[0].contains("this gateway"), "{:?}", found.faults);
    }
}
