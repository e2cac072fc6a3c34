//! A packet on its way through the passes of the fast path. Each pass reads what the previous one has stored, and stores what
//! the next one needs. Nothing here looks anything up.

use tidegate_conntrack::SteadyKey;
use tidegate_spec::ids::{EndpointId, ServiceId};
use tidegate_spec::limits::BURST;
use tidegate_wire::usual::Usual;

/// A packet on its way through the passes, whose addresses have `A` words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item<const A: usize> {
    pub(super) packet: Usual<A>,
    /// The hash for the look-up of the service or endpoint, then that of the flow or of the choice.
    pub(super) hash: u64,
    /// The hash of the flow, of a packet that begins one.
    pub(super) flow_hash: u64,
    /// The address of the flow's other side, in NAT modes when the flow is known.
    pub(super) other: [u32; A],
    /// Its port, in host order.
    pub(super) other_port: u16,
    /// The service or endpoint whose flow it is, then the backend.
    pub(super) id: u32,
    /// The service, of a reply whose flow is known. Of a request it is 0 if the flow is known, otherwise one of the constants
    /// below.
    pub(super) service: u32,
    /// The position of the frame.
    pub(super) at: u8,
    /// Where the packet goes.
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
    /// Nothing: the stages process it.
    #[default]
    Stages,
    /// To a service that has an entry for each flow, with a SYN: if its flow has no entry, [`Self::Chosen`].
    Opening,
    /// To the backend that its hash selects, since its flow has no entry. When the backend is known, [`Self::Dsr`] or
    /// [`Self::Binding`].
    Chosen,
    /// To a backend of `nat`, with a datagram that begins a flow. When the flow has its entries, [`Self::ToBackend`].
    Binding,
    /// To a backend without translation.
    Dsr,
    /// To the backend of a NAT flow.
    ToBackend,
    /// From the backend of a NAT flow to its client.
    ToClient,
    /// [`Self::ToBackend`] for a flow that another worker holds, if this worker has a copy.
    ToBackendByCopy,
    /// [`Self::ToClient`] in the same case.
    ToClientByCopy,
}

/// The ways that packets of a burst take.
#[derive(Debug, Default)]
pub(super) struct Actions {
    /// [`Action::Dsr`].
    pub(super) dsr: bool,
    /// [`Action::ToBackend`].
    pub(super) to_backends: bool,
    /// [`Action::ToClient`].
    pub(super) to_clients: bool,
    /// [`Action::ToBackendByCopy`] and [`Action::ToClientByCopy`].
    pub(super) by_copies: bool,
    /// [`Action::Opening`].
    pub(super) opening: bool,
    /// [`Action::Chosen`].
    pub(super) chosen: bool,
    /// [`Action::Binding`].
    pub(super) binding: bool,
}

/// The packets of a burst by family. A worker keeps it, so that it need not be cleared for each burst.
#[derive(Debug, Default)]
pub(in crate::pipeline) struct Items {
    pub(super) v4: [Item<1>; BURST],
    pub(super) v6: [Item<4>; BURST],
}

impl<const A: usize> Item<A> {
    /// Marks a packet whose flow needs no entry.
    pub(super) const WITHOUT_ENTRY: u32 = 1;
    /// The same, if it opens the flow.
    pub(super) const OPENS: u32 = 2;
    /// Marks a packet that begins a flow without translation, which gets an entry when the packet is sent.
    pub(super) const BEGINS: u32 = 3;
    /// Marks a packet that begins a flow with translation, which gets its entries before the packet is sent.
    pub(super) const BEGINS_PAIR: u32 = 4;

    /// Begins with a packet of which only the headers were checked, and the hash for the look-up of its service. Fields that
    /// later passes set keep their old values.
    #[inline(always)]
    pub(super) fn begin(&mut self, packet: Usual<A>, hash: u64, at: u8) {
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
