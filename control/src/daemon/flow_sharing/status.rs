//! The state of flow sharing for `tidegate status`, faults and metrics.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use tidegate_pipeline::pipeline::ImportOutcome;
use tidegate_sharing::hub::VERSIONS;
use tidegate_sharing::{HubCounts, Keys, PeerState, PeerStatus, Rejection, SharedKey};

use crate::telemetry::FlowSharingSample;

/// The state of flow sharing for display.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    /// `flowSharing.mode`.
    pub(crate) mode: &'static str,
    /// The fingerprints of the keys.
    pub(crate) keys: Fingerprints,
    /// All peers.
    pub(crate) peers: Vec<PeerStatus>,
    /// Whether peers are discovered by their `GatewayStatus`.
    pub(crate) finds_peers: bool,
    /// The discovered peers that need not answer: they have stopped, or send no heartbeat.
    pub(crate) absent: BTreeSet<SocketAddr>,
    /// Why other gateways cannot be peers, as text for display.
    pub(crate) faults: Vec<String>,
    /// The counters of the protocol.
    pub(crate) counts: HubCounts,
    /// Messages that workers could not queue.
    pub(crate) lost_at_workers: u64,
    /// What happened to the messages of other gateways, by [`ImportOutcome`].
    pub(crate) outcomes: [u64; ImportOutcome::COUNT],
    /// Why datagrams cannot be sent or received, if so.
    pub(crate) trouble: Option<String>,
    /// Whether this gateway lacks flows of its peers.
    pub(crate) gap: Gap,
    /// SNAT addresses of other gateways that flows on this gateway use although no replies arrive.
    pub(crate) without_replies: Vec<IpAddr>,
}

/// The fingerprints of the keys of `flowSharing`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fingerprints {
    /// The fingerprint of `flowSharing.key`.
    pub(crate) own: String,
    /// The fingerprint of `flowSharing.acceptKey`.
    pub(crate) accepted: Option<String>,
}

impl Fingerprints {
    pub(super) fn of(keys: &Keys) -> Self {
        Self { own: keys.own.fingerprint(), accepted: keys.accepted.as_ref().map(SharedKey::fingerprint) }
    }
}

/// Whether the gateway lacks flows of its peers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gap {
    /// Whether the gateway has started or was interrupted, and has not yet received the flows of its peers.
    pub(crate) catches_up: bool,
    /// Whether it did not forward for some time since the state was last shown, so that it must catch up again.
    pub(in crate::daemon) was_interrupted: bool,
    /// Whether it is catching up because it started, did not forward or was paused, so that other gateways may serve
    /// its VIPs. False if it has only lost its peers.
    pub(in crate::daemon) is_cut_off: bool,
}

impl Shown {
    pub(super) fn at_start(
        mode: &'static str,
        keys: &Keys,
        peers: Vec<PeerStatus>,
        finds_peers: bool,
    ) -> Self {
        Self {
            mode,
            keys: Fingerprints::of(keys),
            peers,
            finds_peers,
            absent: BTreeSet::new(),
            faults: Vec::new(),
            counts: HubCounts::default(),
            lost_at_workers: 0,
            outcomes: [0; ImportOutcome::COUNT],
            trouble: None,
            gap: Gap { catches_up: true, was_interrupted: false, is_cut_off: true },
            without_replies: Vec::new(),
        }
    }

    /// The state for metrics.
    pub(crate) fn sample(&self) -> FlowSharingSample {
        let others = self.expected();
        let peer = |peer: &PeerStatus| {
            let silence = peer.silent_for.map(|ago| ago.as_secs_f64());
            (peer.address.to_string(), peer.state == PeerState::Up, peer.waiting, silence)
        };
        let counts = &self.counts;
        FlowSharingSample {
            peers: others.map(peer).collect(),
            datagrams: (counts.sent, counts.sent_again, counts.received),
            rejected: Rejection::ALL.map(|why| (why.as_str(), counts.rejected[why as usize])).into(),
            results: ImportOutcome::ALL
                .map(|result| (result.as_str(), self.outcomes[result as usize]))
                .into(),
            lost: [("worker", self.lost_at_workers), ("peer", counts.lost)],
        }
    }

    /// The peers that should answer.
    fn expected(&self) -> impl Iterator<Item = &PeerStatus> {
        let is_expected = |peer: &&PeerStatus| {
            peer.state == PeerState::Up || peer.state != PeerState::Itself && !self.is_absent(peer)
        };
        self.peers.iter().filter(is_expected)
    }

    /// Whether a peer does not answer and need not.
    pub(crate) fn is_absent(&self, peer: &PeerStatus) -> bool {
        peer.state == PeerState::Connecting && self.absent.contains(&peer.address)
    }

    /// Why connections may break if another gateway takes over, as text for display; empty if there is no reason.
    pub(crate) fn troubles(&self) -> Vec<String> {
        let mut troubles: Vec<String> =
            self.trouble.iter().map(|why| format!("flow sharing: {why}")).collect();
        troubles.extend(self.faults.iter().map(|fault| format!("flow sharing: {fault}")));
        let others: Vec<&PeerStatus> = self.expected().collect();
        if others.is_empty() {
            let found = if self.finds_peers {
                "has a GatewayStatus with an address for flow sharing"
            } else {
                "is configured as a peer"
            };
            troubles.push(format!("flow sharing: no other gateway {found}"));
        }
        for peer in others {
            let name = peer.name.as_deref().map(|name| format!(" ({name})")).unwrap_or_default();
            let why = match peer.state {
                PeerState::Itself | PeerState::Up => continue,
                PeerState::Behind => "the peer cannot keep up with flow changes".to_owned(),
                PeerState::OtherVersion(oldest, newest) => {
                    let (own_oldest, own_newest) = VERSIONS;
                    format!(
                        "it uses versions {oldest} to {newest} of the protocol, this gateway {own_oldest} to {own_newest}"
                    )
                }
                PeerState::Connecting => match peer.last_rejection {
                    Some(why) => {
                        format!("no session; the last datagram from this peer was rejected: {}", why.as_str())
                    }
                    None => "it does not answer".to_owned(),
                },
            };
            troubles.push(format!("flow sharing: peer {}{name}: {why}", peer.address));
        }
        let unled = self.without_replies.iter().map(|address| {
            format!(
                "flow sharing: connections taken over from another gateway use its SNAT address {address}, but no \
                 reply to this address arrives here: announce the address (announce.bgp), or route it to this gateway"
            )
        });
        troubles.extend(unled);
        troubles
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::snat_owners::tests::peer;

    #[test]
    fn an_address_without_replies_is_degraded_with_its_remedy() {
        let keys = Keys { own: SharedKey::new([7; 32]), accepted: None };
        let mut shown = Shown::at_start("nat", &keys, vec![peer(2, PeerState::Up, true)], false);
        assert!(shown.troubles().is_empty());
        shown.without_replies = vec![[192, 0, 2, 3].into()];
        let [trouble] = &shown.troubles()[..] else { panic!("one trouble") };
        assert!(
            trouble.contains("192.0.2.3") && trouble.contains("announce the address (announce.bgp)"),
            "{trouble}"
        );
    }
}
