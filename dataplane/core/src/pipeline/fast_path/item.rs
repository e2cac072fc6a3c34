//! A packet on its way through the passes of the fast path. Each pass reads what the previous one has stored, and stores what
//! the next one needs. Nothing here looks anything up.

use crate::conntrack::SteadyKey;
use crate::ids::{EndpointId, ServiceId};
use crate::limits::BURST;
use crate::wire::Addr;
use crate::wire::usual::Usual;

/// A packet on its way through the passes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Item {
    pub(super) packet: Usual,
    /// The hash for the look-up of the service or endpoint, then that of the flow or of the choice, then the address and port
    /// (from bit 32) of the flow's other side.
    pub(super) hash: u64,
    /// The service or endpoint whose flow it is, then the backend.
    pub(super) id: u32,
    /// The service, of a reply whose flow is known; [`Self::WITHOUT_ENTRY`] for a packet whose flow has none.
    pub(super) service: u32,
    /// The position of the frame.
    pub(super) at: u8,
    /// Where the packet goes.
    pub(super) way: Way,
}

const _: () = assert!(size_of::<Item>() <= 40);

/// What the fast path does with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Way {
    /// Nothing: the stages process it.
    #[default]
    Stages,
    /// To the backend that its hash selects, since its flow has no entry. When the backend is known, [`Self::Dsr`].
    Settled,
    /// To a backend without translation.
    Dsr,
    /// To the backend of a NAT flow.
    ToBackend,
    /// From the backend of a NAT flow to its client.
    ToClient,
}

/// The packets of a burst. A worker keeps it, so that it need not be cleared for each burst.
#[derive(Debug, Default)]
pub(in crate::pipeline) struct Items(pub(super) [Item; BURST]);

impl Item {
    /// Marks a packet whose flow needs no entry.
    pub(super) const WITHOUT_ENTRY: u32 = 1;

    /// The key of the packet's flow, before its backend is known.
    #[inline(always)]
    pub(super) fn key(&self) -> SteadyKey {
        let packet = &self.packet;
        if self.way == Way::ToClient {
            SteadyKey::reply(EndpointId::from_raw(self.id), packet.dst, packet.dst_port())
        } else {
            SteadyKey::flow(ServiceId::from_raw(self.id), packet.src, packet.src_port())
        }
    }
}

/// An address in the form of [`Usual`].
#[inline(always)]
pub(super) fn addr(word: u32) -> Addr {
    Addr::v4(word.to_le_bytes())
}
