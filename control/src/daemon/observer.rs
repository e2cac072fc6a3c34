//! Looks for [`symptoms`](super::symptoms) every few seconds, using the current state of the gateway.

use std::sync::{Arc, Weak};

use tidegate_sharing::PeerState;
use tidegate_wire::Family;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, interval};

use super::state::State;
use super::symptoms::{EVERY, Memory, Seen, Symptoms};

/// Follows the symptoms until the gateway ends.
pub(super) fn follow(state: &Arc<State>) -> (watch::Receiver<Arc<Symptoms>>, AbortHandle) {
    let (sender, receiver) = watch::channel(Arc::<Symptoms>::default());
    let state = Arc::downgrade(state);
    let following = tokio::spawn(async move {
        let (mut memory, mut ticks) = (Memory::default(), interval(EVERY));
        loop {
            ticks.tick().await;
            let Some(state) = Weak::upgrade(&state) else { return };
            let symptoms = look(&state, &mut memory);
            drop(state);
            sender.send_if_modified(|last| {
                let is_new = **last != symptoms;
                if is_new {
                    log(&last.of_gateway, &symptoms.of_gateway);
                    *last = Arc::new(symptoms);
                }
                is_new
            });
        }
    });
    (receiver, following.abort_handle())
}

/// Logs symptoms that have started or ended. Findings are logged with the findings of the round.
fn log(before: &[String], now: &[String]) {
    for what in now.iter().filter(|what| !before.contains(what)) {
        tracing::warn!("{what}");
    }
    for what in before.iter().filter(|what| !now.contains(what)) {
        tracing::info!(was = what, "no longer observed");
    }
}

fn look(state: &State, memory: &mut Memory) -> Symptoms {
    let dataplane = &state.dataplane;
    let names: Vec<&str> = dataplane.interfaces().iter().map(|one| one.name.as_str()).collect();
    let last = state.last();
    let snat = dataplane.with_snapshot(|snapshot| {
        [Family::V4, Family::V6].map(|family| {
            snapshot.snat_addresses(family).iter().map(tidegate_wire::Addr::ip).collect::<Vec<_>>()
        })
    });
    let sharing = state.flow_sharing();
    let sharing = sharing.map(|shown| shown.peers).unwrap_or_default();
    memory.look(
        &Seen {
            services: &dataplane.service_stats(),
            interfaces: &dataplane.stats().interfaces,
            names: &names,
            faults: &dataplane.links().neighbor_faults(),
            views: last.as_ref().map_or(&[], |round| &round.outcome.services),
            snat,
            has_peers: sharing.iter().any(|peer| peer.state == PeerState::Up),
        },
        Instant::now(),
    )
}
