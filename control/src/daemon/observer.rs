//! Looks for [`symptoms`](super::symptoms) every few seconds, using the current state of the gateway.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};

use tidegate_dataplane::gateway::ServiceStats;
use tidegate_events::{Event, Field, ObjectKind, Reason};
use tidegate_sharing::PeerState;
use tidegate_spec::RouteSpec;
use tidegate_wire::Family;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, interval};

use super::state::State;
use super::symptoms::{EVERY, Memory, Seen, Symptoms};

/// Follows the symptoms until the gateway ends, and shows them.
pub(super) fn follow(state: &Arc<State>) -> (watch::Receiver<Arc<Symptoms>>, AbortHandle) {
    let (sender, receiver) = watch::channel(Arc::<Symptoms>::default());
    state.show_symptoms(receiver.clone());
    let state = Arc::downgrade(state);
    let following = tokio::spawn(async move {
        let (mut memory, mut ticks) = (Memory::default(), interval(EVERY));
        let mut set_aside = BTreeSet::new();
        loop {
            ticks.tick().await;
            let Some(state) = Weak::upgrade(&state) else { return };
            let services = state.dataplane.service_stats();
            record_set_aside(&mut set_aside, &services);
            let symptoms = look(&state, &services, &mut memory);
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

/// Records which backends workers have set aside since the last call, and which all of them use again.
fn record_set_aside(before: &mut BTreeSet<(String, String, SocketAddr)>, services: &[ServiceStats]) {
    let mut now = BTreeMap::new();
    for service in services {
        for backend in service.backends.iter().filter(|backend| backend.set_aside > 0) {
            let address = SocketAddr::new(backend.address.ip(), backend.port);
            let workers = now.entry((service.namespace.clone(), service.name.clone(), address)).or_insert(0);
            *workers = backend.set_aside.max(*workers);
        }
    }
    let event = |reason, (namespace, name, address): &(String, String, SocketAddr), message: &str| {
        let event = Event::new(reason, ObjectKind::Backend, &address.to_string(), message);
        event.of_service(namespace, name)
    };
    for (backend, workers) in now.iter().filter(|(backend, _)| !before.contains(*backend)) {
        let message = "backend set aside: it refuses or ignores new connections";
        let event = event(Reason::BackendSetAside, backend, message);
        tidegate_events::record(event.number(Field::Workers, *workers as u64));
    }
    for backend in before.iter().filter(|backend| !now.contains_key(*backend)) {
        tidegate_events::record(event(Reason::BackendReturned, backend, "backend is used again"));
    }
    *before = now.into_keys().collect();
}

fn look(state: &State, services: &[ServiceStats], memory: &mut Memory) -> Symptoms {
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
            services,
            interfaces: &dataplane.stats().interfaces,
            names: &names,
            faults: &dataplane.links().neighbor_faults(),
            views: last.as_ref().map_or(&[], |round| &round.outcome.services),
            snat,
            routers: last
                .as_ref()
                .map_or_else(Vec::new, |round| default_routers(&round.outcome.spec.network.routes)),
            has_peers: sharing.iter().any(|peer| peer.state == PeerState::Up),
        },
        Instant::now(),
    )
}

/// The next hops of default routes.
fn default_routers(routes: &[RouteSpec]) -> Vec<IpAddr> {
    routes.iter().filter(|route| route.to.prefix_len() == 0).map(|route| route.via).collect()
}
