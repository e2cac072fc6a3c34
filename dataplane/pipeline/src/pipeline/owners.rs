//! Several workers: decides which of them owns a flow and so processes its packets.
//!
//! The owner is a function of the packet, the same for both directions, fragments and ICMP errors. There are three
//! cases:
//!
//! - `nat`: a hash of the client, since replies to the client's own address may arrive on any queue. Workers that
//!   receive packets of established flows send them by copies ([`copies`](super::copies)), also in the third case.
//! - `fullnat` and RSS: the NIC distributes packets by their addresses and ports, so the owner is the worker that
//!   receives the client's packets, and the SNAT port is chosen so that replies arrive there too. Only packets that
//!   the NIC distributes differently are handed over: fragments, packets with extension headers, and SCTP if the NIC
//!   doesn't hash its ports. The Toeplitz hash determines the worker that receives the other packets of the flow.
//! - `fullnat` and a NIC port with an unknown distribution: a hash of the client, as for `nat`. Only one in `workers`
//!   packets of clients arrives at its owner; the others, like replies, are handed over. Without the hash, whole and
//!   fragmented datagrams of a flow would reach different workers and get two SNAT ports.
//!
//! With DSR all workers choose the same backend, so packets stay on the worker that receives them. The exception is
//! packets that RSS distributes differently, because their flow may be changing its backend. With a scheduler whose
//! choice depends on the worker, DSR is treated as `fullnat`.

use tidegate_snapshot::Snapshot;
use tidegate_snapshot::service::Service;
use tidegate_spec::ForwardingMode;
use tidegate_spec::ids::WorkerIndex;
use tidegate_spec::verdict::{Refusal, Verdict};
use tidegate_structures::hash::{key_hash, scale};
use tidegate_wire::{Addr, Family, Headers, Parsed, ipv6, parse, proto};

use super::state::Pipeline;
use super::view::Arrival;
use crate::forward::snat_ports::{Steering, owner_of_port};

/// How a NIC with RSS selects the queue of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RssDistribution {
    /// By its flow, like every whole packet.
    ByFlow,
    /// By its addresses alone, or by the addresses of another packet.
    Other,
}

impl RssDistribution {
    /// NICs find ports only directly behind the IP header, and not in fragments; many don't hash SCTP ports.
    #[inline]
    pub(super) fn of(h: &Headers, steering: &Steering) -> Self {
        let extended = h.family == Family::V6 && usize::from(h.l4) != usize::from(h.l3) + ipv6::HEADER_LEN;
        let is_hidden = || match steering {
            Steering::Rss(rss) => h.proto == proto::SCTP && !rss.sctp_ports,
            Steering::Single | Steering::Partition => false,
        };
        if extended || h.is_fragment() || is_hidden() { Self::Other } else { Self::ByFlow }
    }
}

/// The worker that a hash of the client selects.
#[inline]
pub(super) fn owner_of_client(client: (&Addr, u16), proto: u8, workers: u8) -> WorkerIndex {
    // The result is below `workers`.
    scale(key_hash(client.0, proto, client.1), u32::from(workers)) as WorkerIndex
}

/// The assignment of flows to workers.
#[derive(Clone, Copy)]
pub(super) struct Owners<'a> {
    pub(super) workers: u8,
    pub(super) steering: &'a Steering,
}

impl Owners<'_> {
    /// The worker that owns the flow of a client's packets to a VIP; `None` if it is the worker that receives them.
    #[inline]
    pub(super) fn of_request(
        self,
        service: &Service,
        client: (&Addr, u16),
        vip: (&Addr, u16),
        proto: u8,
        distribution: RssDistribution,
    ) -> Option<WorkerIndex> {
        match (self.steering, service.mode) {
            (_, ForwardingMode::Nat) | (Steering::Partition, ForwardingMode::FullNat) => {
                Some(owner_of_client(client, proto, self.workers))
            }
            // Another worker would choose another backend.
            (Steering::Partition, _) if service.selector().depends_on_worker() => {
                Some(owner_of_client(client, proto, self.workers))
            }
            (Steering::Rss(rss), _) if distribution == RssDistribution::Other => Some(rss.queue(client, vip)),
            _ => None,
        }
    }

    /// The worker that owns the flow of a backend's packets to this address and port; `None` if it is the worker that
    /// receives them.
    #[inline]
    pub(super) fn of_reply(
        self,
        snapshot: &Snapshot,
        backend: (&Addr, u16),
        to: (&Addr, u16),
        proto: u8,
        distribution: RssDistribution,
    ) -> Option<WorkerIndex> {
        if snapshot.snat_addresses(to.0.family()).binary_search(to.0).is_ok() {
            return match self.steering {
                Steering::Partition => Some(owner_of_port(to.1, self.workers)),
                // The port was chosen so that replies arrive here without a hand-over.
                Steering::Rss(rss) if distribution == RssDistribution::Other => Some(rss.queue(backend, to)),
                Steering::Single | Steering::Rss(_) => None,
            };
        }
        // Any worker may process packets to the gateway itself, for example packets of the kernel's connections.
        snapshot.address(to.0).is_none().then(|| owner_of_client(to, proto, self.workers))
    }
}

impl Pipeline {
    /// Whether owners are computed from the RSS configuration. Then the caller should check a sample of packets with
    /// [`Self::arrives_as_computed`].
    #[must_use]
    pub fn computes_arrivals(&self) -> bool {
        matches!(self.snat_ports.steering(), Steering::Rss(_))
    }

    /// Whether RSS, as the NIC ports report its configuration, assigns this frame to this worker. `None` if that is
    /// unknown: fragments, packets without ports, and others that NICs distribute differently.
    #[must_use]
    pub fn arrives_as_computed(&self, frame: &[u8]) -> Option<bool> {
        let steering = self.snat_ports.steering();
        let Steering::Rss(rss) = steering else { return None };
        let Ok(Parsed::Ip(h)) = parse(frame) else { return None };
        let has_ports = matches!(h.proto, proto::TCP | proto::UDP | proto::SCTP);
        (has_ports && RssDistribution::of(&h, steering) == RssDistribution::ByFlow)
            .then(|| rss.queue((&h.src, h.src_port), (&h.dst, h.dst_port)) == self.worker)
    }

    #[inline(always)]
    pub(super) fn owners(&self) -> Owners<'_> {
        Owners { workers: self.workers, steering: self.snat_ports.steering() }
    }

    /// Checks that this worker may process a packet whose flow belongs to `owner`. The error is the verdict: a
    /// hand-over to `owner`, or a drop if the packet was handed over before. An SCTP packet may have been handed over
    /// to the worker that owns another path of its association.
    #[inline]
    pub(super) fn check_owner(&self, owner: WorkerIndex, arrival: Arrival, proto: u8) -> Result<(), Verdict> {
        match arrival {
            _ if owner == self.worker => Ok(()),
            Arrival::Wire(_) => Err(Verdict::HandOver(owner)),
            _ if proto == proto::SCTP => Ok(()),
            Arrival::HandedOver(..) | Arrival::HandedOverAgain(..) => Err(Refusal::HandOverLoop.into()),
        }
    }

    /// The next worker to try for a flow that any worker may own; `None` when all have been tried.
    pub(super) fn next_worker_to_try(&self, arrival: Arrival) -> Option<WorkerIndex> {
        let more = arrival.hand_overs() + 1 < self.workers;
        more.then(|| if self.worker + 1 == self.workers { 0 } else { self.worker + 1 })
    }
}
