//! The state of a burst between the stages: its packets, their destinations, and the verdicts on its frames.

use arrayvec::ArrayVec;
use tidegate_conntrack::{FlowHash, FlowKey};
use tidegate_snapshot::addresses::{AddressKind, SourceFault};
use tidegate_snapshot::backend::Backend;
use tidegate_snapshot::service::Service;
use tidegate_snapshot::{Interface, Snapshot};
use tidegate_spec::ids::{BackendId, WorkerIndex};
use tidegate_spec::limits::BURST;
use tidegate_spec::now::Now;
use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_wire::rewrite::Endpoint;
use tidegate_wire::{Headers, ethernet};

use super::output::BurstOutput;
use super::view::{Arrival, View};
use crate::frame::Frame;

/// An IP packet of the burst whose headers were checked.
pub(super) struct Packet {
    pub(super) headers: Headers,
    /// The position of its frame.
    pub(super) frame: u8,
    /// The hash for the service look-up.
    pub(super) service_hash: u64,
}

/// The destination of a packet, once it is known.
#[derive(Clone, Copy)]
pub(super) enum Destination<'s> {
    /// A backend. If the mode is `fullnat`, `local` is the source.
    Backend { service: &'s Service, backend: &'s Backend, local: Option<Endpoint> },
    /// A client. The source is the VIP, and `backend` sent the packet.
    Client { service: &'s Service, backend: BackendId, client: Endpoint },
}

impl<'s> Destination<'s> {
    #[inline(always)]
    pub(super) fn service(&self) -> &'s Service {
        let (Self::Backend { service, .. } | Self::Client { service, .. }) = self;
        service
    }

    pub(super) fn is_translated(&self) -> bool {
        match self {
            Self::Backend { service, .. } => service.mode.changes_addresses(),
            Self::Client { .. } => true,
        }
    }
}

/// A packet that only needs to be rewritten and sent.
#[derive(Clone, Copy)]
pub(super) struct Delivery<'s> {
    pub(super) packet: u8,
    pub(super) destination: Destination<'s>,
}

/// A packet of a flow that another worker owns.
#[derive(Clone, Copy)]
pub(super) struct OwnedByOther {
    pub(super) packet: u8,
    pub(super) owner: WorkerIndex,
    pub(super) key: FlowKey,
    pub(super) hash: FlowHash,
}

/// Whether an earlier packet of a burst may have created the flow of a later one: a Bloom filter of 256 bits with one
/// bit per flow. Nearly every new flow is spared a second look-up.
#[derive(Default)]
pub(super) struct SeenFlows([u64; 4]);

impl SeenFlows {
    /// Adds a flow. Returns false if it certainly wasn't in the filter.
    #[inline(always)]
    pub(super) fn test_and_set(&mut self, flow: FlowHash) -> bool {
        let bits = flow.bits();
        let (word, bit) = (&mut self.0[(bits >> 6 & 3) as usize], 1 << (bits & 63));
        let was_set = *word & bit != 0;
        *word |= bit;
        was_set
    }
}

/// The data that the stages of one burst pass to each other.
pub(super) struct Burst<'s, 'o, F> {
    pub(super) view: View<'s>,
    pub(super) now: Now,
    pub(super) arrival: Arrival,
    pub(super) interface: &'s Interface,
    pub(super) frames: &'o mut [F],
    pub(super) packets: ArrayVec<Packet, BURST>,
    pub(super) deliveries: ArrayVec<Delivery<'s>, BURST>,
    pub(super) first_fragments: ArrayVec<u8, BURST>,
    /// The packets that are fragments without ports. They follow their first fragment, which may be in the same burst.
    pub(super) later_fragments: ArrayVec<u8, BURST>,
    /// The unknown flows for which a packet of this burst needed a backend.
    pub(super) seen_flows: SeenFlows,
    /// The packets of flows that other workers own. This worker may have copies of these flows.
    pub(super) owned_by_others: ArrayVec<OwnedByOther, BURST>,
    /// The frames with a tunnel packet from a peer.
    pub(super) of_peers: ArrayVec<u8, BURST>,
    /// Whether the packets were decapsulated from tunnels of peers.
    pub(super) opened: bool,
    pub(super) out: &'o mut BurstOutput,
}

impl<F: Frame> Burst<'_, '_, F> {
    pub(super) fn frame_of(&self, packet: u8) -> usize {
        usize::from(self.packets[usize::from(packet)].frame)
    }

    /// Adds a packet whose headers are valid, if the frame is addressed to us, and prefetches its service.
    #[inline(always)]
    pub(super) fn admit(&mut self, at: usize, headers: Headers) {
        let (snapshot, interface) = (self.view.snapshot, self.interface);
        if !ethernet::is_to(self.frames[at].bytes(), &interface.mac) && !self.is_to_group(at, headers) {
            // `is_to_group` has set the verdict.
        } else if headers.vlan != interface.vlan {
            self.set(at, Refusal::VlanMismatch);
        } else {
            let service_hash = Snapshot::hash_service(&headers.dst, headers.proto, headers.dst_port);
            snapshot.prefetch_service(service_hash);
            self.packets.push(Packet { headers, frame: at as u8, service_hash });
        }
    }

    /// Whether a frame that is not addressed to us is accepted because it has a link-layer group address and contains a
    /// packet to a group or to all hosts on a network. If not, this sets its verdict. A packet to a group in a frame to
    /// us alone is legal (RFC 6085).
    #[cold]
    #[inline(never)]
    fn is_to_group(&mut self, at: usize, h: Headers) -> bool {
        if !ethernet::destination(self.frames[at].bytes()).is_multicast() {
            self.set(at, Refusal::OtherStation);
            return false;
        }
        let faults = self.view.snapshot.source_fault(&h.dst);
        let many = matches!(faults, Some(SourceFault::NotOneHost | SourceFault::NotOneHostOfNetwork));
        if !many {
            self.set(at, Refusal::GroupFrame);
        }
        many
    }

    /// Refuses the packet of a frame that has an authentication header, if the packet would be translated.
    #[cold]
    pub(super) fn refuse_authenticated(&mut self, at: usize) {
        let Some(Packet { headers: h, service_hash, .. }) =
            self.packets.last().filter(|packet| usize::from(packet.frame) == at)
        else {
            return;
        };
        let snapshot = self.view.snapshot;
        let translated = match snapshot.service(*service_hash, &h.dst, h.proto, h.dst_port) {
            Some(service) => service.mode.changes_addresses(),
            None => {
                let hash = Snapshot::hash_endpoint(&h.src, h.proto, h.src_port);
                let ours = matches!(snapshot.address(&h.dst), Some(AddressKind::Own(_) | AddressKind::Vip));
                !ours && snapshot.endpoint(hash, &h.src, h.proto, h.src_port).is_some()
            }
        };
        if translated {
            self.packets.pop();
            self.set(at, Refusal::Authenticated);
        }
    }

    pub(super) fn set(&mut self, frame: usize, verdict: impl Into<Verdict>) {
        self.out.verdicts[frame] = verdict.into();
    }

    /// The verdict on a frame that should be answered: the answer leaves by the interface that received the frame.
    pub(super) fn answer_or(
        &mut self,
        frame: usize,
        answered: bool,
        why: TransmitReason,
        otherwise: impl Into<Verdict>,
    ) {
        let interface = self.arrival.interface();
        self.out.verdicts[frame] =
            if answered { Verdict::Transmit { interface, why } } else { otherwise.into() };
    }
}
