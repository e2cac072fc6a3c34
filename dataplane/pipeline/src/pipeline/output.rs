//! The output of a burst: verdicts, notes, and requests to the caller for some of its frames.

use arrayvec::ArrayVec;
use tidegate_conntrack::flow_copies::{FlowCopy, FlowUse};
use tidegate_spec::ids::{BackendId, InterfaceIndex, ServiceId, WorkerIndex};
use tidegate_spec::limits::BURST;
use tidegate_spec::verdict::{PuntReason, Verdict};
use tidegate_wire::{Addr, MacAddr};

use crate::fragments::FragmentKey;

/// Details about the processing of a packet, for `replay` and tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Note {
    /// The service port that it belongs to.
    pub service: Option<ServiceId>,
    /// The backend that it goes to or comes from.
    pub backend: Option<BackendId>,
    /// Whether its flow was known.
    pub flow: FlowNote,
}

/// Whether a packet's flow was known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlowNote {
    /// It belongs to no flow.
    #[default]
    None,
    /// It began a new flow.
    New,
    /// It belongs to a known flow.
    Known,
}

/// Information for the resolver of neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeighborEvent {
    /// A next hop on this link has no known link address.
    Wanted {
        /// The link.
        interface: InterfaceIndex,
        /// The next hop.
        addr: Addr,
    },
    /// An ARP or neighbour discovery packet contained new information.
    Seen {
        /// The link.
        interface: InterfaceIndex,
        /// The neighbour's address.
        addr: Addr,
        /// The link address; a solicited advertisement may leave it out.
        mac: Option<MacAddr>,
        /// The kind of packet.
        how: Sighting,
    },
    /// Another station claims an address of ours.
    Conflict {
        /// The link.
        interface: InterfaceIndex,
        /// Our address.
        addr: Addr,
        /// The link address of the claimant, if the packet contains one.
        mac: Option<MacAddr>,
    },
}

/// The kind of packet in which a neighbour sent its link address, which decides how far it is trusted (RFC 826, RFC
/// 4861 7.2.3 and 7.2.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sighting {
    /// The packet says that it answers a request: an ARP reply to our address, or a solicited advertisement.
    Answer {
        /// Whether it replaces a different known link address.
        overrides: bool,
    },
    /// Unsolicited: a gratuitous ARP packet, an unsolicited advertisement, a request to another host.
    Announcement {
        /// Whether it replaces a different known link address.
        overrides: bool,
    },
    /// A request for one of our addresses. Its sender is about to send to us.
    Request,
}

/// The results of a burst, frame by frame.
#[derive(Debug, Default)]
pub struct BurstOutput {
    /// The verdict on each frame, in the order of the frames.
    pub verdicts: ArrayVec<Verdict, BURST>,
    /// Details about each frame.
    pub notes: ArrayVec<Note, BURST>,
    /// Events for the resolver. An event that does not fit is created again by the next packet.
    pub events: ArrayVec<NeighborEvent, BURST>,
    /// The frames dropped as `neighbor_unresolved`, with the neighbour that the caller may hold them for. A frame that
    /// is processed again when the neighbour is known is treated like a new one.
    pub unresolved: ArrayVec<Unresolved, BURST>,
    /// The fragments that arrived before their first fragment, with the datagrams that the caller may hold them for. A
    /// fragment that is processed again when the first one was seen is treated like a new one. The verdict of each
    /// applies if the first fragment is never seen.
    pub unknown_fragments: ArrayVec<UnknownFragment, BURST>,
    /// The first fragments of this burst.
    pub first_fragments: ArrayVec<FirstFragment, BURST>,
    /// The frames with a `Transmit` verdict that do not fit their link and must be sent in pieces
    /// ([`Cut`](tidegate_wire::cut::Cut)).
    pub oversized: ArrayVec<Oversized, BURST>,
    /// Copies of flows for the worker that handed this burst over. One that is lost costs further hand-overs.
    pub flow_copies: ArrayVec<FlowCopy, BURST>,
    /// Reports for the workers that hold the flows. One that is lost is repeated.
    pub flow_uses: ArrayVec<(WorkerIndex, FlowUse), BURST>,
    /// The frames that took the fast path: bit n stands for frame n.
    pub fast: u32,
    /// Whether nobody reads the notes.
    without_notes: bool,
}

/// A frame that must be sent in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Oversized {
    /// Its position in the burst.
    pub frame: u8,
    /// Offset of the packet to be cut: an IPv4 packet, in a tunnel or not, or the outer packet of a tunnel.
    pub packet: u16,
    /// Bytes of the largest IP packet that fits the path.
    pub mtu: u16,
}

/// A fragment whose first fragment was not seen yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownFragment {
    /// Its position in the burst.
    pub frame: u8,
    /// Its datagram.
    pub key: FragmentKey,
}

/// A first fragment, which the later fragments of its datagram wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstFragment {
    /// Its datagram.
    pub key: FragmentKey,
    /// The worker that knows the destination of the later fragments, or will know it when it has processed the first.
    pub owner: WorkerIndex,
    /// The worker that holds the later fragments if they arrive at a different worker from the first. If it is not the
    /// owner, it must be informed ([`Pipeline::learn_fragment`](super::Pipeline::learn_fragment)) after the first fragment was handed over.
    pub gatherer: WorkerIndex,
}

/// A frame whose next hop has no known link address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unresolved {
    /// Its position in the burst.
    pub frame: u8,
    /// The link of the next hop.
    pub interface: InterfaceIndex,
    /// The next hop.
    pub addr: Addr,
}

impl BurstOutput {
    /// Whether somebody reads the notes of the next bursts. At first somebody does. Otherwise they may be incomplete.
    #[inline]
    pub fn set_takes_notes(&mut self, wanted: bool) {
        self.without_notes = !wanted;
    }

    /// Whether the notes are complete.
    #[inline]
    #[must_use]
    pub fn takes_notes(&self) -> bool {
        !self.without_notes
    }

    pub(super) fn begin(&mut self, frames: usize) {
        // The arrays are copied at once; an iterator would push the elements one by one.
        static VERDICTS: [Verdict; BURST] = [Verdict::Punt(PuntReason::NotIp); BURST];
        static NOTES: [Note; BURST] = [Note { service: None, backend: None, flow: FlowNote::None }; BURST];
        self.verdicts.clear();
        self.notes.clear();
        self.events.clear();
        self.unresolved.clear();
        self.unknown_fragments.clear();
        self.first_fragments.clear();
        self.oversized.clear();
        self.flow_copies.clear();
        self.flow_uses.clear();
        self.fast = 0;
        let fits = "both are as long as a burst";
        self.verdicts.try_extend_from_slice(&VERDICTS[..frames]).expect(fits);
        self.notes.try_extend_from_slice(&NOTES[..frames]).expect(fits);
    }

    /// Records that the frame at this position cannot be sent because the link address is not known.
    #[cold]
    pub(super) fn wants(&mut self, at: usize, interface: InterfaceIndex, addr: Addr) {
        self.report_neighbor(NeighborEvent::Wanted { interface, addr });
        // A frame is delivered once, so there is room. Its position is below `BURST`.
        let _ = self.unresolved.try_push(Unresolved { frame: at as u8, interface, addr });
    }

    pub(super) fn report_neighbor(&mut self, event: NeighborEvent) {
        // If the list is full, the event is dropped: the next packet creates it again.
        let _ = self.events.try_push(event);
    }
}
