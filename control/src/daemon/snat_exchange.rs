//! Moves SNAT addresses between the gateways that share flows: collects the inputs of [`SnatOwners`], and applies its
//! decision to the announcements and to the answers on the links.
//!
//! The thread that shares flows calls this module. Other gateways report their addresses. Further addresses are known
//! from flows that this gateway has adopted: after a restart, it still has the flows of gateways that are gone.
//!
//! Invariant: nothing here blocks. If the thread stops, the gateway stops answering for addresses of others after
//! [`GRANT`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_announce::snat::SnatRoutes;
use tidegate_conntrack::flow_record::FlowUpdate;
use tidegate_dataplane::gateway::Dataplane;
use tidegate_sharing::{Hub, PeerStatus, Snat};

use super::snat_owners::{Input, SnatOwners, serves};

/// How long the gateway answers for addresses of others after each decision.
const GRANT: Duration = Duration::from_secs(2);
/// Live peers answer within this time after the start, or after a pause of this process.
const STARTING: Duration = Duration::from_secs(1);
/// How long a gateway keeps its addresses when it starts draining: routers send it new connections until they have
/// processed the withdrawal, and other gateways don't have flows that are not established.
const LEAVING: Duration = Duration::from_secs(2);
/// An address counts as unused if no flow that uses it is reported within this time; reports are more frequent.
const USED_MAX: Duration = Duration::from_secs(60);
/// After this time, missing replies count as lost. This is longer than the time between two walks, because another
/// worker may get the replies of a flow.
const REPLIES_AFTER: Duration = Duration::from_secs(30);

/// The connections to the rest of the daemon.
pub(super) struct SnatLinks {
    pub(super) dataplane: Arc<Dataplane>,
    /// The SNAT addresses of this gateway, and whether it forwards and is not draining; and the addresses of its
    /// interfaces, which never move.
    pub(super) own: Box<dyn Fn() -> (Snat, BTreeSet<IpAddr>) + Send>,
    /// Announces routes. Returns false while there is no announcer yet.
    pub(super) announce: Box<dyn Fn(SnatRoutes) -> bool + Send>,
}

impl fmt::Debug for SnatLinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnatLinks").finish_non_exhaustive()
    }
}

/// How flows on this gateway use a SNAT address of another gateway.
#[derive(Debug, Default)]
struct Use {
    last: Duration,
    /// Since when all reported flows have packets of their clients but no replies.
    without_replies: Option<Duration>,
}

/// The SNAT addresses of other gateways that flows on this gateway use.
#[derive(Debug, Default)]
struct Uses(BTreeMap<IpAddr, Use>);

impl Uses {
    fn record_use(&mut self, update: &FlowUpdate, now: Duration, is_own: impl FnOnce(&IpAddr) -> bool) {
        let FlowUpdate::Live(record) = update else { return };
        let Some(translation) = record.translation.filter(|_| !record.is_relayed) else { return };
        let address = translation.local.addr;
        // In mode `nat`, the source is the client.
        if address == record.name.client.addr || is_own(&address.ip()) {
            return;
        }
        let used = self.0.entry(address.ip()).or_default();
        used.last = now;
        if translation.has_replies {
            used.without_replies = None;
        } else if record.client.is_established() {
            used.without_replies.get_or_insert(now);
        }
    }

    /// The addresses that have had no reply for [`REPLIES_AFTER`], and that no serving peer owns.
    fn without_replies(&self, peers: &[PeerStatus], now: Duration) -> Vec<IpAddr> {
        let is_served =
            |address: &IpAddr| peers.iter().any(|peer| serves(peer) && peer.snat.addresses.contains(address));
        let lacks =
            |used: &Use| used.without_replies.is_some_and(|since| now.saturating_sub(since) >= REPLIES_AFTER);
        let missing = self.0.iter().filter(|(address, used)| lacks(used) && !is_served(address));
        missing.map(|(&address, _)| address).collect()
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct SnatExchange {
    name: String,
    links: SnatLinks,
    own: Snat,
    /// The addresses of this gateway's interfaces.
    stays: BTreeSet<IpAddr>,
    /// When the gateway last forwarded and was not draining.
    served: Option<Duration>,
    uses: Uses,
    owners: SnatOwners,
    /// Whether the announcer has the routes of `owners`.
    is_announced: bool,
    taken_over: Arc<BTreeSet<IpAddr>>,
}

impl SnatExchange {
    pub(super) fn new(name: String, links: SnatLinks) -> Self {
        Self {
            name,
            links,
            own: Snat::default(),
            stays: BTreeSet::new(),
            served: None,
            uses: Uses::default(),
            owners: SnatOwners::default(),
            is_announced: false,
            taken_over: Arc::default(),
        }
    }

    /// Records the SNAT address of a flow on this gateway.
    pub(super) fn record_use(&mut self, update: &FlowUpdate, now: Duration) {
        let (own, stays) = (&self.own.addresses, &self.stays);
        self.uses.record_use(update, now, |address| own.contains(address) || stays.contains(address));
    }

    /// Decides again, and applies the decision. `catches_up`: the gateway lacks flows of peers; `is_cut_off`: because
    /// it has started, could not forward or was paused. `resumed` is the end of the last pause of this process. Returns
    /// the addresses of others that flows use although no replies arrive.
    pub(super) fn look(
        &mut self,
        hub: &mut Hub,
        peers: &[PeerStatus],
        (catches_up, is_cut_off): (bool, bool),
        resumed: Duration,
        now: Duration,
    ) -> Vec<IpAddr> {
        let (own, stays) = (self.links.own)();
        self.stays = stays;
        // Except at the start, the gateway still has the flows of its own addresses while it catches up.
        let serves = own.serves && (!catches_up || self.served.is_some());
        if serves {
            self.served = Some(now);
        }
        let has_just_served = self.served.is_some_and(|last| now.saturating_sub(last) < LEAVING);
        self.own = Snat { serves: serves || has_just_served, ..own };
        hub.set_snat(self.own.clone());
        let (own, stays) = (&self.own.addresses, &self.stays);
        self.uses.0.retain(|address, used| {
            now.saturating_sub(used.last) < USED_MAX && !own.contains(address) && !stays.contains(address)
        });
        let used: BTreeSet<IpAddr> = self.uses.0.keys().copied().collect();
        let is_starting = now.saturating_sub(resumed) < STARTING;
        let (name, own) = (self.name.as_str(), &self.own);
        let owners = SnatOwners::decide(&Input { name, own, peers, used: &used, is_starting, is_cut_off });
        if owners != self.owners {
            self.log(&owners);
            self.is_announced &= owners.routes == self.owners.routes;
            self.taken_over = Arc::new(owners.taken_over.clone());
            self.owners = owners;
        }
        self.is_announced = self.is_announced || (self.links.announce)(self.owners.routes.clone());
        let ownership = self.links.dataplane.neighbors().ownership();
        ownership.release_snat(self.owners.is_released);
        if let Some(now) = ownership.now() {
            ownership.take_over(&self.taken_over, now.plus(GRANT));
        }
        self.uses.without_replies(peers, now)
    }

    fn log(&self, owners: &SnatOwners) {
        for address in owners.taken_over.difference(&self.owners.taken_over) {
            tracing::info!(%address, "answering for the SNAT address of a gateway that is gone or draining");
        }
        for address in self.owners.taken_over.difference(&owners.taken_over) {
            tracing::info!(%address, "no longer answering for a SNAT address of another gateway");
        }
        if owners.is_released != self.owners.is_released {
            let why =
                if owners.is_released { "released to another gateway" } else { "served by this gateway" };
            tracing::info!(state = why, "the owner of this gateway's SNAT addresses changed");
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_conntrack::SideState;
    use tidegate_conntrack::flow_record::{FlowName, FlowRecord, Translation};
    use tidegate_spec::{Protocol, ServiceKey};
    use tidegate_wire::Addr;
    use tidegate_wire::rewrite::Endpoint;

    use super::*;
    use crate::daemon::snat_owners::tests::peer;
    use tidegate_sharing::PeerState;

    /// An established flow that uses the SNAT address of gateway 2.
    fn flow(has_replies: bool) -> FlowUpdate {
        let endpoint = |addr| Endpoint { addr: Addr::v4(addr), port: 40_000 };
        let established = SideState::from_number(2).filter(|state| state.is_established());
        let established = established.expect("a state of TCP");
        let service = ServiceKey { vip: [203, 0, 113, 1].into(), protocol: Protocol::Tcp, port: 80 };
        FlowUpdate::Live(FlowRecord {
            name: FlowName { service, client: endpoint([198, 51, 100, 7]) },
            backend: endpoint([10, 0, 0, 1]),
            client: established,
            translation: Some(Translation {
                local: endpoint([192, 0, 2, 2]),
                server: established,
                stream: None,
                splice: None,
                has_replies,
            }),
            tags: None,
            idle_ms: 0,
            idle_timeout: None,
            is_relayed: false,
        })
    }

    #[test]
    fn a_snat_address_without_replies_is_reported_until_a_gateway_serves_it() {
        let second = Duration::from_secs(1);
        let mut uses = Uses::default();
        let missing: Vec<IpAddr> = vec![[192, 0, 2, 2].into()];
        let gone = [peer(2, PeerState::Connecting, true)];
        uses.record_use(&flow(false), second, |_| false);
        uses.record_use(&flow(false), REPLIES_AFTER, |_| false);
        assert!(uses.without_replies(&gone, REPLIES_AFTER).is_empty(), "replies may still arrive");
        let now = REPLIES_AFTER + second;
        assert_eq!(uses.without_replies(&gone, now), missing);
        assert_eq!(uses.without_replies(&[peer(2, PeerState::Up, false)], now), missing, "it is draining");
        assert!(uses.without_replies(&[peer(2, PeerState::Up, true)], now).is_empty(), "it is back");
        uses.record_use(&flow(true), now, |_| false);
        assert!(uses.without_replies(&gone, now).is_empty(), "a reply has arrived");
        let mut uses = Uses::default();
        uses.record_use(&flow(false), second, |address| missing.contains(address));
        assert!(uses.without_replies(&[], now).is_empty(), "it is an address of this gateway");
    }
}
