//! The state of a packet between the passes of the fast path. There are no look-ups here.

use std::time::Duration;

use tidegate_conntrack::{FlowHash, IdleTimeout, NewFlow, Packet, SteadyKey};
use tidegate_spec::ids::{BackendId, EndpointId, ServiceId};
use tidegate_spec::limits::BURST;
use tidegate_spec::now::Now;
use tidegate_wire::proto;
use tidegate_wire::usual::Usual;

/// A packet in the fast path, with addresses of `A` words. Its action determines which fields are set: the others have
/// values of an earlier packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item<const A: usize> {
    pub(super) packet: Usual<A>,
    /// The hash of the endpoint that a reply may come from.
    pub(super) endpoint_hash: u64,
    /// The hash of the flow's key in the direction of the packet.
    pub(super) flow_hash: u64,
    /// The hash for the choice of a backend, if the flow has no entry.
    pub(super) choice_hash: u64,
    /// The hash of the reply key of a flow that is created.
    pub(super) reply_hash: u64,
    /// The address of the flow's other side: the source towards the backend, or the client.
    pub(super) other: [u32; A],
    /// The port of the flow's other side, in host order.
    pub(super) other_port: u16,
    /// The idle timeout of a flow that is created.
    pub(super) idle: IdleTimeout,
    /// The service of a request, or of the flow of a reply.
    pub(super) service: ServiceId,
    /// The endpoint that sent a reply.
    pub(super) endpoint: EndpointId,
    /// The backend of the flow.
    pub(super) backend: BackendId,
    /// The position of the frame.
    pub(super) at: u8,
    pub(super) action: Action,
    pub(super) entry: FlowEntry,
}

const _: () = assert!(size_of::<Item<1>>() <= 72 && size_of::<Item<4>>() <= 112);

impl<const A: usize> Default for Item<A> {
    fn default() -> Self {
        Self {
            packet: Usual::default(),
            endpoint_hash: 0,
            flow_hash: 0,
            choice_hash: 0,
            reply_hash: 0,
            other: [0; A],
            other_port: 0,
            idle: IdleTimeout::new(Duration::ZERO),
            service: ServiceId::from_raw(0),
            endpoint: EndpointId::from_raw(0),
            backend: BackendId::from_raw(0),
            at: 0,
            action: Action::Stages,
            entry: FlowEntry::Found,
        }
    }
}

/// What the fast path does with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Action {
    /// Defers the packet to the stages.
    #[default]
    Stages,
    /// A SYN to a service with an entry for each flow, in a mode without translation. If its flow has no entry, the
    /// action becomes [`Self::Chosen`].
    Opening,
    /// [`Self::Opening`] in a mode with translation.
    OpeningPair,
    /// Sends the packet, which has no flow entry, to the backend that its hash selects. The action becomes
    /// [`Self::Dsr`] or [`Self::Binding`].
    Chosen,
    /// Creates a flow with translation, and sends its first packet. The action becomes [`Self::Bound`].
    Binding,
    /// The packet is sent.
    Bound,
    /// Sends the packet to a backend without translation.
    Dsr,
    /// Sends the packet to the backend of a NAT flow.
    ToBackend,
    /// Sends the packet from the backend of a NAT flow to the client.
    ToClient,
    /// [`Self::ToBackend`] by this worker's copy of a flow that another worker owns.
    ToBackendByCopy,
    /// [`Self::ToClient`] by this worker's copy of a flow that another worker owns.
    ToClientByCopy,
}

/// The entry of a packet's flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FlowEntry {
    /// The flow has an entry, or none was looked for yet.
    Found,
    /// The flow needs no entry.
    Unneeded,
    /// The packet opens a flow that needs no entry.
    UnneededByOpening,
    /// The packet creates the entry, after it is sent.
    Created,
    /// The packet creates the two entries of a flow with translation, before it is sent.
    CreatedPair,
}

/// The actions that packets of a burst need.
#[derive(Debug, Default)]
pub(super) struct Actions {
    pub(super) dsr: bool,
    pub(super) to_backends: bool,
    pub(super) to_clients: bool,
    /// [`Action::ToBackendByCopy`] and [`Action::ToClientByCopy`].
    pub(super) by_copies: bool,
    /// [`Action::Opening`] and [`Action::OpeningPair`].
    pub(super) opening: bool,
    pub(super) chosen: bool,
    pub(super) binding: bool,
}

/// The packets of a burst by family. A worker reuses this value, so that it needn't be cleared for each burst.
#[derive(Debug, Default)]
pub(in crate::pipeline) struct Items {
    pub(super) v4: [Item<1>; BURST],
    pub(super) v6: [Item<4>; BURST],
}

/// The part of a packet that affects the state of its flow.
#[inline(always)]
pub(super) fn kind_of<const A: usize>(packet: &Usual<A>) -> Packet {
    if packet.proto == proto::TCP { Packet::Tcp(packet.flags) } else { Packet::Datagram }
}

impl<const A: usize> Item<A> {
    /// Reuses the item for a packet with checked headers.
    #[inline(always)]
    pub(super) fn reset(&mut self, packet: Usual<A>, at: u8) {
        self.packet = packet;
        (self.at, self.action, self.entry) = (at, Action::Stages, FlowEntry::Found);
    }

    /// Whether the packet is the first of its flow.
    #[inline(always)]
    pub(super) fn is_new(&self) -> bool {
        self.entry >= FlowEntry::UnneededByOpening
    }

    /// The key of the flow of a client's packet.
    #[inline(always)]
    pub(super) fn client_key(&self) -> SteadyKey<A> {
        SteadyKey::flow(self.service, self.packet.src, self.packet.src_port())
    }

    /// The flow that the packet creates.
    #[inline(always)]
    pub(super) fn new_flow(&self, now: Now) -> NewFlow<SteadyKey<A>> {
        NewFlow {
            key: self.client_key(),
            hash: FlowHash::from_bits(self.flow_hash),
            backend: self.backend,
            packet: kind_of(&self.packet),
            idle: self.idle,
            now,
        }
    }

    /// The key of the packet's flow in the direction of the packet.
    #[inline(always)]
    pub(super) fn key(&self) -> SteadyKey<A> {
        let packet = &self.packet;
        if self.action == Action::ToClient {
            SteadyKey::reply(self.endpoint, packet.dst, packet.dst_port())
        } else {
            self.client_key()
        }
    }
}
