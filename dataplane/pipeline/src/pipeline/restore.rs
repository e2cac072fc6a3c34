//! Restores the flows of an earlier process that belong to this worker.
//!
//! The ids of services and backends differ between processes. [`KnownIds`] translates them; the caller builds it from
//! names that both processes know.
//!
//! Invariant: a flow is restored only to a backend of its own service port.

use tidegate_conntrack::flow_record::LocalFlow;
use tidegate_conntrack::{NotRestored, Origin, StoredTables};
use tidegate_snapshot::Snapshot;
use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_spec::now::Now;

use super::import::ImportOutcome;
use super::state::Pipeline;

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
        flow: &LocalFlow,
        ids: &KnownIds,
        now: Now,
    ) -> Result<(), NotRestored> {
        let service = ids.current_service(flow.name.service())?;
        if snapshot.service_by_id(service).is_none() {
            return Err(NotRestored::ServiceGone);
        }
        let (of, id) = ids.current_backend(flow.backend)?;
        let backend = snapshot.backend(id).ok_or(NotRestored::BackendGone)?;
        if of != flow.name.service() || backend.service != service {
            return Err(NotRestored::Damaged);
        }
        let flow = flow.with(flow.name.of_service(service), id);
        match self.import(snapshot, &flow, Origin::EarlierProcess, now) {
            ImportOutcome::New => Ok(()),
            ImportOutcome::UnknownService => Err(NotRestored::ModeChanged),
            ImportOutcome::UnknownBackend => Err(NotRestored::BackendGone),
            ImportOutcome::NotAdmitted => Err(NotRestored::Denied),
            ImportOutcome::Elsewhere => Err(NotRestored::Elsewhere),
            ImportOutcome::Gone => Err(NotRestored::Expired),
            ImportOutcome::Known | ImportOutcome::Conflict => Err(NotRestored::Known),
            ImportOutcome::Full => Err(NotRestored::Full),
        }
    }
}
