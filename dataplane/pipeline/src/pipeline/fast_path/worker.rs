//! The parts of a worker's pipeline that the fast path uses.

use tidegate_conntrack::FlowTables;
use tidegate_conntrack::flow_copies::FlowCopies;
use tidegate_spec::ids::{InterfaceIndex, ServiceId, WorkerIndex};

use super::family::family_of;
use super::flow_locality::LocalWorker;
use crate::forward::snat_ports::SnatPorts;
use crate::pipeline::cookie_state::Cookies;
use crate::pipeline::owners::Owners;
use crate::pipeline::passive::Passive;

pub(super) struct Worker<'p> {
    pub(super) id: WorkerIndex,
    pub(super) workers: u8,
    /// The interface that received the burst.
    pub(super) interface: InterfaceIndex,
    pub(super) flows: &'p mut FlowTables,
    pub(super) copies: &'p FlowCopies,
    pub(super) snat_ports: &'p mut SnatPorts,
    pub(super) cookies: &'p Cookies,
    pub(super) passive: &'p mut Passive,
}

impl Worker<'_> {
    /// Which flows this worker owns.
    #[inline(always)]
    pub(super) fn locality(&self) -> LocalWorker<'_> {
        let owners = Owners { workers: self.workers, steering: self.snat_ports.steering() };
        LocalWorker { worker: self.id, owners, copies: self.copies }
    }

    /// Whether a service may come under flood during this burst, or is under flood.
    #[inline]
    pub(super) fn is_near_flood<const A: usize>(&self, service: ServiceId) -> bool {
        let opening = self.flows.nat.opening_of(service, family_of::<A>());
        self.cookies.is_near_flood(service, opening)
    }
}
