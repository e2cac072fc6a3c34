//! Discovers the peers of flow sharing by their `GatewayStatus`, and determines which of them should answer.
//!
//! The cluster writer lists the gateways. A gateway that is not listed yet is a stranger: when a stranger sends a
//! datagram, the list is read again soon.
//!
//! Invariant: while the API server does not answer, the peers stay as they are.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use tidegate_cluster::{FlowPeers, SharingPeers};
use tidegate_model::config::reaches;
use tidegate_sharing::{Hub, Rejection};

/// What is known about the other gateways.
#[derive(Debug)]
pub(super) struct FoundPeers {
    /// This gateway's socket address.
    own: SocketAddr,
    /// Set when the connection to the cluster starts.
    cluster: Arc<OnceLock<FlowPeers>>,
    /// The value of `cluster`, once it is set.
    source: Option<FlowPeers>,
    known: Option<SharingPeers>,
    /// Datagrams of strangers so far.
    strangers: u64,
}

impl FoundPeers {
    pub(super) fn new(own: SocketAddr, cluster: Arc<OnceLock<FlowPeers>>) -> Self {
        Self { own, cluster, source: None, known: None, strangers: 0 }
    }

    /// Sets the current peers, and requests a new list if a stranger has sent something.
    pub(super) fn look(&mut self, hub: &mut Hub) {
        if self.source.is_none() {
            self.source = self.cluster.get().cloned();
        }
        let Some(source) = &mut self.source else { return };
        if let Some(mut listed) = source.changed() {
            let own = self.own;
            listed.peers.retain(|peer| {
                let can_reach = reaches(own.ip(), peer.address.ip());
                if !can_reach {
                    listed.faults.push(format!(
                        "gateway {}: its address {} has a different family than {own}, the address of this gateway",
                        peer.name, peer.address
                    ));
                }
                can_reach
            });
            for fault in &listed.faults {
                let was_known = self.known.as_ref().is_some_and(|known| known.faults.contains(fault));
                if !was_known {
                    tracing::warn!("another gateway cannot share flows with this gateway: {fault}");
                }
            }
            hub.set_peers(&listed.peers.iter().map(|peer| peer.address).collect::<Vec<_>>());
            self.known = Some(listed);
        }
        let strangers = hub.counts().rejected[Rejection::Stranger as usize];
        if std::mem::replace(&mut self.strangers, strangers) != strangers {
            source.poll_soon();
        }
    }

    /// Whether the list of gateways has been read.
    pub(super) fn is_known(&self) -> bool {
        self.known.is_some()
    }

    /// The peers that have stopped or send no heartbeat.
    pub(super) fn absent(&self) -> BTreeSet<SocketAddr> {
        let peers = self.known.iter().flat_map(|known| &known.peers);
        peers.filter(|peer| !peer.is_live).map(|peer| peer.address).collect()
    }

    /// Why gateways are not peers, as text for display.
    pub(super) fn faults(&self) -> Vec<String> {
        match &self.known {
            Some(known) => known.faults.clone(),
            None => {
                vec!["the other gateways are not known yet: the API server has not listed them".to_owned()]
            }
        }
    }
}
