//! Chooses the backend of a new flow of a service port: by seat rendezvous, Maglev table, round robin or load.
//!
//! Snapshot compilation builds it from the backends that take new flows. Backends that drain or are down have no
//! influence, because they differ between gateways. Each variant returns the id of the backend, so no further look-up
//! is needed.
//!
//! Invariant: with seats or a Maglev table, gateways with the same desired state choose the same backend, whatever
//! their history. Round robin and load depend on the worker, whose state is in `pipeline/schedule.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_spec::ids::BackendId;
use tidegate_structures::hash::scale;
use tidegate_structures::prefetch;

use crate::loads::LoadSelector;
use crate::rendezvous::Rendezvous;
use crate::round_robin::RoundRobin;
use crate::warm_up::WarmUp;

/// The data by which a service port chooses the backend of a new flow. A copy shares everything.
#[derive(Debug, Clone)]
pub enum Selector {
    /// `scheduler: rendezvous`, `sh` and `dh`; also used if no backend takes new flows.
    Rendezvous(Rendezvous),
    /// `scheduler: maglev`.
    Maglev(Arc<Slots>),
    /// `scheduler: wrr`.
    RoundRobin(Arc<RoundRobin>),
    /// `scheduler: lc`, `sed` and `nq`.
    Loads(Arc<LoadSelector>),
    /// `scheduler: rendezvous` and `flowTracking: on-change`, for a window after a change of the backends.
    InFlux(Arc<SeatsInFlux>),
    /// Seats or a Maglev table while some backends warm up.
    WarmUp(Arc<WarmUp<Selector>>),
}

/// The seats by the current weights, and by the weights before the changes of the window.
#[derive(Debug)]
pub struct SeatsInFlux {
    /// The owners of new flows.
    pub present: Rendezvous,
    /// The owners of flows that began before the changes.
    pub former: Rendezvous,
}

/// A Maglev table whose slots are owned by backend ids.
#[derive(Debug)]
pub struct Slots {
    /// Positions in `owners`. Services with equal backends share the table.
    table: Arc<[u16]>,
    owners: Box<[BackendId]>,
}

impl Default for Selector {
    /// A selector without backends.
    fn default() -> Self {
        Self::Rendezvous(Rendezvous::default())
    }
}

impl Selector {
    /// The backend of a new flow with this selection hash; `None` if no backend takes new flows, or if the choice
    /// depends on the worker ([`Self::depends_on_worker`]).
    #[inline]
    #[must_use]
    pub fn owner(&self, hash: u64) -> Option<BackendId> {
        match self {
            Self::Rendezvous(seats) => seats.owner(hash),
            Self::Maglev(slots) => slots.owner(slots.slot_of(hash)),
            Self::RoundRobin(_) | Self::Loads(_) => None,
            Self::InFlux(both) => both.present.owner(hash),
            Self::WarmUp(both) => both.selector_for(hash, both.all().owner(hash)).owner(hash),
        }
    }

    /// The seats by which new flows are chosen, with `scheduler: rendezvous`.
    #[must_use]
    pub fn seats(&self) -> Option<&Rendezvous> {
        match self {
            Self::Rendezvous(seats) => Some(seats),
            Self::InFlux(both) => Some(&both.present),
            Self::WarmUp(both) => both.all().seats(),
            Self::Maglev(_) | Self::RoundRobin(_) | Self::Loads(_) => None,
        }
    }

    /// The selector for a flow with this hash: during a warm-up, the one for all backends or the one for warm backends.
    #[must_use]
    pub fn selector_for(&self, hash: u64) -> &Self {
        if let Self::WarmUp(both) = self { both.selector_for(hash, both.all().owner(hash)) } else { self }
    }

    /// The former owner of a flow in flux, `Some(None)` if it had none; `None` if its owner hasn't changed. Only a seat
    /// that changed hands can make a difference, so a flow is in flux exactly if such a seat comes first in its order.
    #[inline]
    #[must_use]
    pub fn former(&self, hash: u64) -> Option<Option<BackendId>> {
        let Self::InFlux(both) = self else { return None };
        let former = both.former.owner(hash);
        (former != both.present.owner(hash)).then_some(former)
    }

    /// Prefetches the data that [`Self::owner`] reads.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        match self {
            Self::Rendezvous(seats) => seats.prefetch(),
            Self::InFlux(both) => prefetch::read(&**both),
            Self::WarmUp(both) => both.all().prefetch(hash),
            Self::Maglev(slots) => {
                if let Some(slot) = slots.table.get(slots.slot_of(hash) as usize) {
                    prefetch::read(slot);
                }
            }
            Self::RoundRobin(_) | Self::Loads(_) => {}
        }
    }

    /// Whether no backend takes new flows.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Rendezvous(seats) => seats.is_empty(),
            Self::Maglev(slots) => slots.is_empty(),
            Self::RoundRobin(round_robin) => round_robin.is_empty(),
            Self::Loads(loaded) => loaded.members.is_empty(),
            Self::InFlux(both) => both.present.is_empty(),
            Self::WarmUp(both) => both.all().is_empty(),
        }
    }

    /// Whether the choice depends on the state of the worker. Then only the flow table knows the backend of a flow.
    #[inline]
    #[must_use]
    pub fn depends_on_worker(&self) -> bool {
        matches!(self, Self::RoundRobin(_) | Self::Loads(_))
    }

    /// The number of seats, slots or ring positions of each backend that has any, or its weight. For display.
    #[must_use]
    pub fn shares(&self) -> BTreeMap<BackendId, u32> {
        let mut shares = BTreeMap::new();
        let mut count = |owner: BackendId| *shares.entry(owner).or_default() += 1;
        match self {
            Self::Rendezvous(seats) => seats.seats().for_each(|(.., owner)| count(owner)),
            Self::InFlux(both) => both.present.seats().for_each(|(.., owner)| count(owner)),
            Self::WarmUp(both) => return both.all().shares(),
            Self::Maglev(slots) => {
                slots.table.iter().for_each(|&position| count(slots.owners[usize::from(position)]));
            }
            Self::RoundRobin(round_robin) => round_robin.all().for_each(count),
            Self::Loads(loaded) => {
                shares.extend(loaded.members.iter().map(|member| (member.owner, u32::from(member.weight))));
            }
        }
        shares
    }
}

impl Slots {
    /// A table whose values are positions in `owners`.
    pub fn new(table: Arc<[u16]>, owners: Box<[BackendId]>) -> Self {
        Self { table, owners }
    }

    /// The slot of a flow with this selection hash.
    #[inline]
    #[must_use]
    pub fn slot_of(&self, hash: u64) -> u32 {
        scale(hash, self.len())
    }

    /// The backend that owns a slot.
    #[inline]
    #[must_use]
    pub fn owner(&self, slot: u32) -> Option<BackendId> {
        let position = *self.table.get(slot as usize)?;
        self.owners.get(usize::from(position)).copied()
    }

    /// The number of slots.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u32 {
        // At most `limits::MAGLEV_SLOTS_MAX`.
        self.table.len() as u32
    }

    /// Whether the table is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// The backends that take new flows, by position.
    pub fn owners(&self) -> &[BackendId] {
        &self.owners
    }

    /// The table: for each slot, the position of its owner in [`Self::owners`].
    #[must_use]
    pub fn table(&self) -> &Arc<[u16]> {
        &self.table
    }
}
