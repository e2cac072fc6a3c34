//! Which NAT flows this worker holds, as the stages decide it ([`owners`](crate::pipeline::owners)), for usual packets: those are
//! neither fragments nor have they extension headers, so RSS brings them to the worker that holds their flow.

use super::family::{Families, Family};
use crate::flow_copies::FlowCopies;
use crate::forward::snat_ports::{Steering, owner_of_port};
use crate::ids::WorkerIndex;
use crate::pipeline::owners::owner_of_client;
use crate::snapshot::{ForwardingMode, Snapshot};
use crate::wire::usual::{Usual, addr};

/// This worker among the others.
pub(super) struct Here<'a> {
    pub(super) worker: WorkerIndex,
    pub(super) workers: u8,
    pub(super) steering: &'a Steering,
    /// Its copies of flows that others hold.
    pub(super) copies: &'a FlowCopies,
}

impl Here<'_> {
    /// Whether this worker holds the flow of a client's packet in a mode with translation.
    #[inline(always)]
    pub(super) fn holds_request<const A: usize>(&self, mode: ForwardingMode, packet: &Usual<A>) -> bool {
        self.workers <= 1 || self.holds_request_of_many(mode, packet)
    }

    #[inline(never)]
    fn holds_request_of_many<const A: usize>(&self, mode: ForwardingMode, packet: &Usual<A>) -> bool {
        let by_client = mode == ForwardingMode::Nat || matches!(self.steering, Steering::Partition);
        let client = (&addr(packet.src), packet.src_port());
        !by_client || owner_of_client(client, packet.proto, self.workers) == self.worker
    }

    /// Whether this worker holds the flow of a backend's packet.
    #[inline(always)]
    pub(super) fn holds_reply<const A: usize>(&self, snapshot: &Snapshot, packet: &Usual<A>) -> bool
    where
        Families: Family<A>,
    {
        self.workers <= 1 || self.holds_reply_of_many(snapshot, packet)
    }

    #[inline(never)]
    fn holds_reply_of_many<const A: usize>(&self, snapshot: &Snapshot, packet: &Usual<A>) -> bool
    where
        Families: Family<A>,
    {
        let (to, port) = (addr(packet.dst), packet.dst_port());
        let may_be_ours = snapshot.may_be_ours(&packet.dst);
        if may_be_ours && snapshot.snat_addresses(to.family()).binary_search(&to).is_ok() {
            return !matches!(self.steering, Steering::Partition)
                || owner_of_port(port, self.workers) == self.worker;
        }
        // A packet to the gateway itself needs no particular worker.
        owner_of_client((&to, port), packet.proto, self.workers) == self.worker
            || may_be_ours && snapshot.address(&to).is_some()
    }
}
