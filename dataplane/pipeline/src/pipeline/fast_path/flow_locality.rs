//! The NAT flows that this worker owns. Usual packets are not fragments and have no extension headers, so RSS assigns
//! them to the worker of their flow.

use tidegate_conntrack::flow_copies::FlowCopies;
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::service::Service;
use tidegate_spec::ids::WorkerIndex;
use tidegate_wire::usual::{Usual, addr};

use crate::pipeline::owners::{Owners, RssDistribution, owner_of_client};

pub(super) struct LocalWorker<'a> {
    pub(super) worker: WorkerIndex,
    pub(super) owners: Owners<'a>,
    /// This worker's copies of flows that other workers own.
    pub(super) copies: &'a FlowCopies,
}

impl LocalWorker<'_> {
    /// Whether this worker owns the flow of a client's packet.
    #[inline(always)]
    pub(super) fn owns_request<const A: usize>(&self, service: &Service, packet: &Usual<A>) -> bool {
        self.owners.workers <= 1 || self.owns_request_of_many(service, packet)
    }

    #[inline(never)]
    fn owns_request_of_many<const A: usize>(&self, service: &Service, packet: &Usual<A>) -> bool {
        let (src, dst) = (addr(packet.src), addr(packet.dst));
        let (client, vip) = ((&src, packet.src_port()), (&dst, packet.dst_port()));
        self.is(self.owners.of_request(service, client, vip, packet.proto, RssDistribution::ByFlow))
    }

    /// Whether this worker owns the flow of a backend's packet.
    #[inline(always)]
    pub(super) fn owns_reply<const A: usize>(&self, snapshot: &Snapshot, packet: &Usual<A>) -> bool {
        self.owners.workers <= 1 || self.owns_reply_of_many(snapshot, packet)
    }

    #[inline(never)]
    fn owns_reply_of_many<const A: usize>(&self, snapshot: &Snapshot, packet: &Usual<A>) -> bool {
        let (src, dst) = (addr(packet.src), addr(packet.dst));
        let (backend, to) = ((&src, packet.src_port()), (&dst, packet.dst_port()));
        // Nearly all destinations are clients, which need no look-up.
        self.is(if snapshot.may_be_ours(&packet.dst) {
            self.owners.of_reply(snapshot, backend, to, packet.proto, RssDistribution::ByFlow)
        } else {
            Some(owner_of_client(to, packet.proto, self.owners.workers))
        })
    }

    #[inline(always)]
    fn is(&self, owner: Option<WorkerIndex>) -> bool {
        owner.is_none_or(|owner| owner == self.worker)
    }
}
