//! The output of a burst: verdicts, notes, and requests to the caller.

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
    /// The service port that the packet belongs to.
    pub service: Option<ServiceId>,
    /// The backend that the packet goes to or comes from.
    pub backend: Option<BackendId>,
    /// Whether its flow was known.
    pub flow: FlowNote,
}

/// Whether a packet's flow was known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlowNote {
    /// The packet belongs to no flow.
    #[default]
    None,
    /// The packet created a flow.
    New,
    /// The packet belongs to a known flow.
    Known,
}

/// An event for the neighbour resolver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeighborEvent {
    /// The link address of this next hop is not known.
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
        /// The link address; a solicited advertisement may omit it.
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

/// The kind of packet in which a neighbour sent its link address. It determines how far the address is trusted (RFC
/// 826, RFC 4861 7.2.3 and 7.2.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sighting {
    /// An answer to a request: an ARP reply to our address, or a solicited advertisement.
    Answer {
        /// Whether it replaces a different known link address.
        overrides: bool,
    },
    /// Unsolicited: a gratuitous ARP packet, an unsolicited advertisement, a request to another host.
    Announcement {
        /// Whether it replaces a different known link address.
        overrides: bool,
    },
    /// A request for one of our addresses. The neighbour is about to send to us.
    Request,
}

/// The results of a burst.
#[derive(Debug, Default)]
pub struct BurstOutput {
    /// The verdict on each frame, in the order of the frames.
    pub verdicts: ArrayVec<Verdict, BURST>,
    /// Details about each frame.
    pub notes: ArrayVec<Note, BURST>,
    /// Events for the resolver. If the list is full, the next packet creates the event again.
    pub events: ArrayVec<NeighborEvent, BURST>,
    /// The frames dropped as `neighbor_unresolved`. The caller may queue them until the neighbour is known, and then
    /// process them like new frames.
    pub unresolved: ArrayVec<Unresolved, BURST>,
    /// The fragments that arrived before their first fragment. The caller may queue them until their first fragment is
    /// processed, and then process them like new frames. Otherwise their verdict applies.
    pub unknown_fragments: ArrayVec<UnknownFragment, BURST>,
    /// The first fragments of this burst.
    pub first_fragments: ArrayVec<FirstFragment, BURST>,
    /// The frames with a `Transmit` verdict that don't fit their link and must be fragmented
    /// ([`Cut`](tidegate_wire::cut::Cut)).
    pub oversized: ArrayVec<Oversized, BURST>,
    /// Copies of flows for the worker that handed this burst over. A lost copy only costs further hand-overs.
    pub flow_copies: ArrayVec<FlowCopy, BURST>,
    /// Reports for the workers that own the flows. A lost report is repeated.
    pub flow_uses: ArrayVec<(WorkerIndex, FlowUse), BURST>,
    /// The frames that took the fast path: bit n stands for frame n.
    pub fast: u32,
    /// Whether the notes are unused and may be incomplete.
    without_notes: bool,
}

/// A frame that must be fragmented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Oversized {
    /// Its position in the burst.
    pub frame: u8,
    /// Offset of the packet to fragment: an IPv4 packet, in a tunnel or not, or the outer packet of a tunnel.
    pub packet: u16,
    /// Bytes of the largest IP packet that fits the path.
    pub mtu: u16,
}

/// A fragment whose first fragment wasn't seen yet.
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
    /// The worker that processes the first fragment, and then knows the destination of the later ones.
    pub owner: WorkerIndex,
    /// Workers that haven't seen the first fragment hand later ones over to this worker. If it isn't the owner, it must
    /// be informed ([`Pipeline::record_first_fragment`](super::Pipeline::record_first_fragment)) after the first
    /// fragment was handed over.
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
    /// Sets whether the notes of the next bursts must be complete (the default).
    #[inline]
    pub fn set_takes_notes(&mut self, complete: bool) {
        self.without_notes = !complete;
    }

    /// Whether the notes are complete.
    #[inline]
    #[must_use]
    pub fn takes_notes(&self) -> bool {
        !self.without_notes
    }

    pub(super) fn begin(&mut self, frames: usize) {
        // Copying arrays is faster than pushing the elements one by one.
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

    /// Records that the frame at this position can't be sent because the link address of its next hop is not known.
    #[cold]
    pub(super) fn record_unresolved(&mut self, at: usize, interface: InterfaceIndex, addr: Addr) {
        self.report_neighbor(NeighborEvent::Wanted { interface, addr });
        // A frame is delivered once, so the list has capacity. Its position is below `BURST`.
        let _ = self.unresolved.try_push(Unresolved { frame: at as u8, interface, addr });
    }

    pub(super) fn report_neighbor(&mut self, event: NeighborEvent) {
        // If the list is full, the event is dropped: the next packet creates it again.
        let _ = self.events.try_push(event);
    }
}
