//! `sessionAffinity: ClientIP`: a new flow goes to the backend of its client, if that backend accepts new flows.
//!
//! Each worker has an entry for each client in its flow table. With several workers, the shared table
//! ([`tidegate_conntrack::affinities`]) has the backend that any of them last gave to the client, so it takes
//! precedence. The worker's own entry is used if the shared one was evicted. A Service that has used up its share of a
//! full flow table gets no more entries in either table.

use tidegate_conntrack::flow_record::LocalFlow;
use tidegate_conntrack::{FlowKey, NewFlow, Packet};
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::backend::Backend;
use tidegate_snapshot::service::Service;
use tidegate_spec::BackendState;
use tidegate_spec::now::Now;
use tidegate_wire::Addr;

use super::state::Pipeline;

impl Pipeline {
    /// Chooses the backend of a new flow of this client, for a service with affinity.
    #[inline(never)]
    pub(super) fn choose_for_client<'s>(
        &mut self,
        snapshot: &'s Snapshot,
        service: &Service,
        client: Addr,
        choice_hash: u64,
        now: Now,
    ) -> Option<&'s Backend> {
        let key = FlowKey::affinity(service.id, client);
        let hash = self.flows.hash(&key);
        let last = self.affinities.as_ref().and_then(|all| all.find(&key, service.affinity_ms, now));
        let own = self.flows.dsr.lookup(&key, hash, Packet::Datagram, now).map(|hit| hit.backend);
        let known = [last, own].into_iter().flatten().find_map(|id| {
            let backend = snapshot.backend(id).filter(|backend| backend.service == service.id)?;
            let stays = backend.state == BackendState::Active && !self.passive.should_avoid(id, now);
            stays.then_some(backend)
        });
        let backend = match known {
            Some(backend) => backend,
            None => snapshot.backend(self.select_healthy(snapshot, service, choice_hash, now)?)?,
        };
        if own != Some(backend.id) {
            let (packet, idle) = (Packet::Datagram, service.affinity_timeout());
            let flow = NewFlow { key, hash, backend: backend.id, packet, idle, now };
            let inserted = self.flows.dsr.insert(&flow);
            // If the table is full, the client's hash selects this backend again until the backends change.
            if inserted.is_err() && last.is_none() {
                return Some(backend);
            }
        }
        if let Some(all) = &self.affinities {
            all.remember(&key, backend.id, now);
        }
        Some(backend)
    }

    /// Stores for all workers the imported backend of a client, unless they already know the client's backend.
    pub(super) fn import_affinity(&self, service: &Service, client: &LocalFlow, now: Now) {
        let Some(all) = &self.affinities else { return };
        if all.find(&client.name, service.affinity_ms, now).is_none() {
            let seen = now.0.saturating_sub(u64::from(client.idle_ms) * 1_000_000);
            all.remember(&client.name, client.backend, Now(seen));
        }
    }
}
