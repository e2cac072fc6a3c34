//! The state of a packet between the passes of the fast path. There are no look-ups here.

use tidegate_conntrack::SteadyKey;
use tidegate_spec::ids::{EndpointId, ServiceId};
use tidegate_spec::limits::BURST;
use tidegate_wire::usual::Usual;

/// A packet in the fast path, with addresses of `A` words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item<const A: usize> {
    pub(super) packet: Usual<A>,
    /// First the hash for the look-up of the service or endpoint, then the hash of the flow or for the choice of a
    /// backend.
    pub(super) hash: u64,
    /// The hash of the flow, if the packet creates it.
    pub(super) flow_hash: u64,
    /// The address of the flow's other side, for a known NAT flow.
    pub(super) other: [u32; A],
    /// The port of the flow's other side, in host order.
    pub(super) other_port: u16,
    /// First the service or endpoint of the flow, then the backend.
    pub(super) id: u32,
    /// For a reply of a known flow, the service. For a request, 0 if the flow is known, otherwise one of the constants
    /// below.
    pub(super) service: u32,
    /// The position of the frame.
    pub(super) at: u8,
    pub(super) action: Action,
}

const _: () = assert!(size_of::<Item<1>>() <= 48 && size_of::<Item<4>>() <= 88);

impl<const A: usize> Default for Item<A> {
    fn default() -> Self {
        Self {
            packet: Usual::default(),
            hash: 0,
            flow_hash: 0,
            other: [0; A],
            other_port: 0,
            id: 0,
            service: 0,
            at: 0,
            action: Action::Stages,
        }
    }
}

/// What the fast path does with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Action {
    /// Defers the packet to the stages.
    #[default]
    Stages,
    /// A SYN to a service with an entry for each flow. If its flow has no entry, the action becomes [`Self::Chosen`].
    Opening,
    /// If the packet has no flow entry, sends it to the backend that its hash selects. The action then becomes
    /// [`Self::Dsr`] or [`Self::Binding`].
    Chosen,
    /// A datagram that creates a `nat` flow. Once the flow has its entries, the action becomes [`Self::ToBackend`].
    Binding,
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

/// The actions that packets of a burst need.
#[derive(Debug, Default)]
pub(super) struct Actions {
    pub(super) dsr: bool,
    pub(super) to_backends: bool,
    pub(super) to_clients: bool,
    /// [`Action::ToBackendByCopy`] and [`Action::ToClientByCopy`].
    pub(super) by_copies: bool,
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

impl<const A: usize> Item<A> {
    /// Marks a packet whose flow needs no entry.
    pub(super) const WITHOUT_ENTRY: u32 = 1;
    /// Marks a packet that opens a flow without an entry.
    pub(super) const OPENS: u32 = 2;
    /// Marks a packet that creates a flow without translation. The entry is inserted after the packet is sent.
    pub(super) const CREATES: u32 = 3;
    /// Marks a packet that creates a flow with translation. The entries are inserted before the packet is sent.
    pub(super) const CREATES_PAIR: u32 = 4;

    /// Reuses the item for a packet with checked headers and the hash for the look-up of its service. Fields that later
    /// passes set keep their old values.
    #[inline(always)]
    pub(super) fn reset(&mut self, packet: Usual<A>, hash: u64, at: u8) {
        (self.packet, self.hash, self.service) = (packet, hash, 0);
        (self.at, self.action) = (at, Action::Stages);
    }

    /// Whether the packet goes to a backend and is the first of its flow.
    #[inline(always)]
    pub(super) fn is_new(&self) -> bool {
        matches!(self.action, Action::Dsr | Action::ToBackend) & (self.service >= Self::OPENS)
    }

    /// The key of the flow of a client's packet, before its backend is known.
    #[inline(always)]
    pub(super) fn client_key(&self) -> SteadyKey<A> {
        SteadyKey::flow(ServiceId::from_raw(self.id), self.packet.src, self.packet.src_port())
    }

    /// The key of the packet's flow, before its backend is known.
    #[inline(always)]
    pub(super) fn key(&self) -> SteadyKey<A> {
        let packet = &self.packet;
        if self.action == Action::ToClient {
            SteadyKey::reply(EndpointId::from_raw(self.id), packet.dst, packet.dst_port())
        } else {
            self.client_key()
        }
    }
}
