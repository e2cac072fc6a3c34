//! Restores the flows of an earlier process that belong to this worker.
//!
//! The ids of services and backends differ between processes. [`KnownIds`] translates them; the caller builds it from
//! names that both processes know.
//!
//! Invariant: a flow is restored only to a backend of its own service port, in a mode for which its entry was made, and
//! only at the worker that receives its packets.

use tidegate_conntrack::{FlowKey, NotRestored, StoredFlow, StoredKind, StoredTables, Successor};
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::service::Service;
use tidegate_spec::ForwardingMode;
use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_spec::limits::SNAT_PORT_MIN;
use tidegate_spec::now::Now;

use super::owners::owner_of_client;
use super::state::Pipeline;
use crate::forward::snat_ports::{Steering, owner_of_port};

/// The number of flows that were restored, and of flows that weren't, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RestoreCounts {
    /// Flows that continue.
    pub restored: u64,
    /// Flows that weren't restored, by [`NotRestored`].
    pub not_restored: [u64; NotRestored::ALL.len()],
}

impl RestoreCounts {
    /// Adds the counts of `other`.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let sum = |n: usize| self.not_restored[n] + other.not_restored[n];
        Self { restored: self.restored + other.restored, not_restored: std::array::from_fn(sum) }
    }
}

/// The ids of an earlier process, and the ids that the same objects have in the current snapshot.
#[derive(Debug, Default)]
pub struct KnownIds {
    /// By the index of the earlier id: that id, and the service's current id, if any.
    services: Vec<Option<(ServiceId, Option<ServiceId>)>>,
    /// By the index of the earlier id: that id, its service, and the backend's current id, if any.
    backends: Vec<Option<(BackendId, ServiceId, Option<BackendId>)>>,
    /// Records are missing: an id without a record may belong to an existing object.
    is_damaged: bool,
}

impl KnownIds {
    /// A table whose records are lost.
    #[must_use]
    pub fn damaged() -> Self {
        Self { is_damaged: true, ..Self::default() }
    }

    /// Records the current id of a service of the earlier process, if it still exists.
    pub fn service(&mut self, earlier: ServiceId, now: Option<ServiceId>) {
        *entry_at(&mut self.services, earlier.index()) = Some((earlier, now));
    }

    /// Records the current id of a backend of the earlier process, if it still exists.
    pub fn backend(&mut self, earlier: BackendId, of: ServiceId, now: Option<BackendId>) {
        *entry_at(&mut self.backends, earlier.index()) = Some((earlier, of, now));
    }

    fn current_service(&self, earlier: ServiceId) -> Result<ServiceId, NotRestored> {
        let known = self.services.get(earlier.index()).copied().flatten().filter(|(id, _)| *id == earlier);
        match known {
            Some((_, now)) => now.ok_or(NotRestored::ServiceGone),
            None => Err(if self.is_damaged { NotRestored::Damaged } else { NotRestored::ServiceGone }),
        }
    }

    fn current_backend(&self, earlier: BackendId) -> Result<(ServiceId, BackendId), NotRestored> {
        let known = self.backends.get(earlier.index()).copied().flatten().filter(|(id, ..)| *id == earlier);
        match known {
            Some((_, of, now)) => now.map(|now| (of, now)).ok_or(NotRestored::BackendGone),
            None => Err(if self.is_damaged { NotRestored::Damaged } else { NotRestored::BackendGone }),
        }
    }
}

fn entry_at<T>(entries: &mut Vec<Option<T>>, index: usize) -> &mut Option<T> {
    if entries.len() <= index {
        entries.resize_with(index + 1, || None);
    }
    &mut entries[index]
}

impl Pipeline {
    /// Restores the flows of one worker of an earlier process that belong to this worker. Forwarding pauses for up to
    /// half a microsecond per flow.
    pub fn restore(
        &mut self,
        snapshot: &Snapshot,
        stored: &StoredTables<'_>,
        ids: &KnownIds,
        now: Now,
    ) -> RestoreCounts {
        let mut counts = RestoreCounts::default();
        stored.scan(|flow| match flow.and_then(|flow| self.restore_one(snapshot, &flow, ids, now)) {
            Ok(()) => counts.restored += 1,
            Err(why) => counts.not_restored[why as usize] += 1,
        });
        counts
    }

    fn restore_one(
        &mut self,
        snapshot: &Snapshot,
        flow: &StoredFlow,
        ids: &KnownIds,
        now: Now,
    ) -> Result<(), NotRestored> {
        let service =
            snapshot.service_by_id(ids.current_service(flow.service)?).ok_or(NotRestored::ServiceGone)?;
        let (of, backend) = ids.current_backend(flow.backend)?;
        let backend = snapshot.backend(backend).ok_or(NotRestored::BackendGone)?;
        if of != flow.service || backend.service != service.id {
            return Err(NotRestored::Damaged);
        }
        if !fits(service, flow) {
            return Err(NotRestored::ModeChanged);
        }
        if !snapshot.admits(service, &flow.client) {
            return Err(NotRestored::Denied);
        }
        if !self.receives(snapshot, service, flow, (&backend.address, backend.port)) {
            return Err(NotRestored::Elsewhere);
        }
        let to = Successor { service: service.id, backend: backend.id, endpoint: backend.endpoint };
        self.flows.restore(flow, &to, now)?;
        if let (StoredKind::Affinity, Some(affinities)) = (flow.kind, &self.affinities) {
            affinities.remember(&FlowKey::affinity(service.id, flow.client), backend.id, now);
        }
        Ok(())
    }

    /// Whether this worker processes the packets of a flow, received or handed over. Another gateway has chosen the
    /// port of an adopted flow, so the two directions may reach two workers, which then both have the flow.
    fn receives(
        &self,
        snapshot: &Snapshot,
        service: &Service,
        flow: &StoredFlow,
        backend: (&tidegate_wire::Addr, u16),
    ) -> bool {
        let (client, proto) = ((&flow.client, flow.client_port), service.protocol.number());
        if let (StoredKind::Nat { to, to_port }, ForwardingMode::FullNat) = (flow.kind, service.mode)
            && snapshot.snat_addresses(to.family()).binary_search(&to).is_err()
        {
            let local = Some((&to, to_port));
            return self.workers == 1 || self.may_receive(snapshot, service, client, backend, local);
        }
        let is_mine = |worker| self.workers == 1 || worker == self.worker;
        let steering = self.snat_ports.steering();
        match (flow.kind, service.mode) {
            (StoredKind::Nat { .. }, ForwardingMode::Nat) => {
                is_mine(owner_of_client(client, proto, self.workers))
            }
            (StoredKind::Nat { to, to_port }, _) => match steering {
                Steering::Single => true,
                Steering::Partition => {
                    is_mine(owner_of_client(client, proto, self.workers))
                        && is_mine(owner_of_port(to_port, self.workers))
                }
                Steering::Rss(rss) => {
                    is_mine(rss.queue(client, (&service.vip, service.port)))
                        && is_mine(rss.queue(backend, (&to, to_port)))
                }
            },
            (StoredKind::Dsr, _) => match steering {
                Steering::Rss(rss) => is_mine(rss.queue(client, (&service.vip, service.port))),
                Steering::Single | Steering::Partition => true,
            },
            (StoredKind::Affinity, _) => true,
        }
    }
}

/// Whether the entry of a flow is valid for the mode of its service.
fn fits(service: &Service, flow: &StoredFlow) -> bool {
    if flow.client.family() != service.vip.family() {
        return false;
    }
    match (flow.kind, service.mode) {
        (StoredKind::Affinity, _) => service.affinity_ms != 0,
        (StoredKind::Dsr, mode) => mode.is_dsr(),
        (StoredKind::Nat { to, to_port }, ForwardingMode::Nat) => {
            (to, to_port) == (flow.client, flow.client_port)
        }
        (StoredKind::Nat { to, to_port }, ForwardingMode::FullNat) => {
            // An adopted flow has the address of the gateway that created it.
            to.family() == flow.client.family() && to.is_single_host() && to_port >= SNAT_PORT_MIN
        }
        (StoredKind::Nat { .. }, _) => false,
    }
}
