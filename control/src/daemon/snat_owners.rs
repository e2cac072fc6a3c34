//! Which gateway should receive the replies to a SNAT address if gateways share flows: a pure function of what they
//! report.
//!
//! Each gateway serves its own SNAT addresses, unless it is draining or has not received the flows of its peers yet. If
//! it doesn't serve them, or is gone, another gateway does, since all have its flows. Routers follow the route
//! preferences ([`SnatRoutes`]). On a link, a gateway releases its addresses only to one that has taken them over. If
//! several gateways could take them over, the one whose name sorts first does.
//!
//! Invariant: nothing here reads a clock.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tidegate_announce::snat::{Preference, SnatRoute, SnatRoutes};
use tidegate_sharing::limits::SILENCE_MAX;
use tidegate_sharing::{PeerState, PeerStatus, PeerWalk, Snat};
use tidegate_spec::limits::SNAT_ADDRESSES_MAX;

/// The inputs of a decision.
#[derive(Debug, Clone, Copy)]
pub(super) struct Input<'a> {
    /// `metadata.name`.
    pub(super) name: &'a str,
    /// The SNAT addresses of this gateway, and whether it serves.
    pub(super) own: &'a Snat,
    /// All peers, whether they answer or not.
    pub(super) peers: &'a [PeerStatus],
    /// SNAT addresses of other gateways that flows on this gateway use.
    pub(super) used: &'a BTreeSet<IpAddr>,
    /// The gateway has just started or resumed, and peers may not have answered yet.
    pub(super) is_starting: bool,
    /// The gateway did not forward, or was paused, and has not caught up since, so it cannot know whether silent peers
    /// are gone.
    pub(super) is_cut_off: bool,
}

/// The decision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SnatOwners {
    /// The routes to announce.
    pub(super) routes: SnatRoutes,
    /// Another gateway answers for this gateway's addresses on its links.
    pub(super) is_released: bool,
    /// Addresses of others that this gateway answers for on its links.
    pub(super) taken_over: BTreeSet<IpAddr>,
}

impl SnatOwners {
    pub(super) fn decide(input: &Input<'_>) -> Self {
        let Input { name, own, peers, used, is_starting, is_cut_off } = *input;
        let serving: Vec<&PeerStatus> = peers.iter().filter(|peer| serves(peer)).collect();
        let is_released = !own.serves && (is_starting || !serving.is_empty());
        let preference = if own.serves { Preference::Own } else { Preference::Last };
        let route = |preference, is_best| SnatRoute { preference, is_best };
        let mut owners = Self { is_released, ..Self::default() };
        owners.routes = own.addresses.iter().map(|&ip| (ip, route(preference, !is_released))).collect();
        if !own.serves {
            return owners;
        }
        let of_peers = peers.iter().flat_map(|peer| &peer.snat.addresses);
        // An address known only from flows may belong to an interface of a live peer, or to a live peer whose protocol
        // version doesn't report addresses.
        let is_up = |peer: &PeerStatus| matches!(peer.state, PeerState::Up | PeerState::Behind);
        let some_do_not_say =
            peers.iter().any(|peer| is_up(peer) && matches!(peer.walk, PeerWalk::Unknown(_)));
        let none_is_gone =
            !peers.is_empty() && peers.iter().all(|peer| is_up(peer) || peer.state == PeerState::Itself);
        let used = used.iter().filter(|&&address| {
            !some_do_not_say && !none_is_gone && peers.iter().all(|peer| peer.address.ip() != address)
        });
        let is_first = serving.iter().all(|peer| peer.name.as_deref().is_none_or(|other| name < other));
        for &address in of_peers.chain(used).filter(|address| !own.addresses.contains(address)) {
            // A peer will answer if it sent something recently, or if this gateway couldn't receive because it was cut
            // off or paused.
            let returns = |peer: &PeerStatus| {
                let is_near =
                    is_starting || is_cut_off || peer.silent_for.is_some_and(|ago| ago < SILENCE_MAX);
                peer.state == PeerState::Connecting && peer.snat.serves && is_near
            };
            let is_served = peers
                .iter()
                .any(|peer| (serves(peer) || returns(peer)) && peer.snat.addresses.contains(&address));
            owners.routes.insert(address, route(Preference::Reserve, !is_served));
            if !is_served && is_first && owners.taken_over.len() < SNAT_ADDRESSES_MAX {
                owners.taken_over.insert(address);
            }
        }
        owners
    }
}

/// Whether this peer should receive the replies to its addresses, and can take over other gateways' addresses.
pub(super) fn serves(peer: &PeerStatus) -> bool {
    matches!(peer.state, PeerState::Up | PeerState::Behind) && peer.snat.serves
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;

    fn ip(n: u8) -> IpAddr {
        [192, 0, 2, n].into()
    }

    fn snat(n: u8, serves: bool) -> Snat {
        Snat { addresses: [ip(n)].into(), serves }
    }

    /// The peer with this number, which is in its name and its SNAT address.
    pub(in crate::daemon) fn peer(n: u8, state: PeerState, serves: bool) -> PeerStatus {
        PeerStatus {
            address: (ip(100 + n), 1).into(),
            name: Some(format!("edge-{n}")),
            state,
            silent_for: None,
            waiting: 0,
            in_flight: 0,
            last_rejection: None,
            key: None,
            snat: snat(n, serves),
            walk: PeerWalk::Complete,
        }
    }

    fn decide(n: u8, serves: bool, peers: &[PeerStatus], used: &[u8], is_starting: bool) -> SnatOwners {
        let used = used.iter().map(|&n| ip(n)).collect();
        let (name, own) = (format!("edge-{n}"), snat(n, serves));
        SnatOwners::decide(&Input {
            name: &name,
            own: &own,
            peers,
            used: &used,
            is_starting,
            is_cut_off: false,
        })
    }

    fn routes(owners: &SnatOwners) -> Vec<(IpAddr, Preference, bool)> {
        owners.routes.iter().map(|(&ip, route)| (ip, route.preference, route.is_best)).collect()
    }

    use PeerState::{Connecting, Up};
    use Preference::{Last, Own, Reserve};

    #[test]
    fn the_addresses_of_a_live_peer_are_announced_as_a_standby() {
        let owners = decide(1, true, &[peer(2, Up, true)], &[2], false);
        assert_eq!(routes(&owners), [(ip(1), Own, true), (ip(2), Reserve, false)]);
        assert!(!owners.is_released && owners.taken_over.is_empty());
    }

    #[test]
    fn one_serving_gateway_takes_over_the_addresses_of_a_dead_peer() {
        let dead = peer(3, Connecting, true);
        let first = decide(1, true, &[peer(2, Up, true), dead.clone()], &[], false);
        let second = decide(2, true, &[peer(1, Up, true), dead.clone()], &[], false);
        assert_eq!((first.taken_over, second.taken_over.len()), ([ip(3)].into(), 0));
        assert_eq!(routes(&second), [(ip(1), Reserve, false), (ip(2), Own, true), (ip(3), Reserve, true)]);
        let alone = decide(2, true, &[peer(1, Up, false), dead], &[], false);
        assert_eq!(alone.taken_over, [ip(1), ip(3)].into(), "the other one is draining");
    }

    #[test]
    fn addresses_of_flows_stay_although_no_known_peer_owns_them() {
        let owners = decide(1, true, &[peer(2, Connecting, false)], &[1, 2, 9], false);
        assert_eq!(owners.taken_over, [ip(2), ip(9)].into());
        assert_eq!(routes(&owners)[2], (ip(9), Reserve, true));
    }

    #[test]
    fn an_address_that_a_live_peer_may_have_is_not_taken_over() {
        let live = peer(2, Up, true);
        // Flows use the address of an interface of the peer, which it doesn't list because it never moves.
        assert_eq!(decide(1, true, std::slice::from_ref(&live), &[102, 9], false).taken_over, [].into());
        let old =
            PeerStatus { snat: Snat::default(), walk: PeerWalk::Unknown(Duration::ZERO), ..live.clone() };
        let gone = peer(3, Connecting, true);
        assert_eq!(decide(1, true, &[old, gone.clone()], &[2], false).taken_over, [ip(3)].into());
        assert_eq!(decide(1, true, &[live, gone], &[9], false).taken_over, [ip(3), ip(9)].into());
    }

    #[test]
    fn a_recently_seen_peer_keeps_its_addresses() {
        // Its session ended because a key was changed, or because this process was paused.
        let silent_for = |ago| PeerStatus { silent_for: Some(ago), ..peer(2, Connecting, true) };
        let just_now = silent_for(SILENCE_MAX / 2);
        assert!(decide(1, true, &[just_now], &[], false).taken_over.is_empty());
        assert!(
            decide(1, true, &[silent_for(SILENCE_MAX * 9)], &[], true).taken_over.is_empty(),
            "after a pause"
        );
        assert_eq!(decide(1, true, &[silent_for(SILENCE_MAX)], &[], false).taken_over, [ip(2)].into());
    }

    #[test]
    fn a_gateway_that_was_cut_off_takes_over_addresses_after_catching_up() {
        let silent = [PeerStatus { silent_for: Some(SILENCE_MAX * 9), ..peer(2, Connecting, true) }];
        let (own, used) = (snat(1, true), BTreeSet::new());
        let of = |is_cut_off| Input {
            name: "edge-1",
            own: &own,
            peers: &silent,
            used: &used,
            is_starting: false,
            is_cut_off,
        };
        let cut_off = SnatOwners::decide(&of(true));
        assert_eq!((cut_off.is_released, cut_off.taken_over), (false, [].into()));
        assert_eq!(SnatOwners::decide(&of(false)).taken_over, [ip(2)].into());
    }

    #[test]
    fn a_draining_or_starting_gateway_releases_its_addresses_to_a_serving_one() {
        let owners = decide(1, false, &[peer(2, Up, true), peer(3, Connecting, true)], &[2, 3], false);
        assert!(owners.is_released && owners.taken_over.is_empty());
        assert_eq!(routes(&owners), [(ip(1), Last, false)]);
        for peers in [vec![], vec![peer(2, Up, false)], vec![peer(2, Connecting, true)]] {
            let owners = decide(1, false, &peers, &[], false);
            assert_eq!(
                (owners.is_released, routes(&owners)),
                (false, vec![(ip(1), Last, true)]),
                "{peers:?}"
            );
            assert!(decide(1, false, &peers, &[], true).is_released, "they may not have answered yet");
        }
    }
}
