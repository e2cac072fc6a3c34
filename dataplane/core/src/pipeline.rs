//! The stages of a packet, in order: [`Pipeline::process`] runs a burst through them.
//!
//! 1. `check` the headers of every frame, answer ARP, prefetch the service of each packet;
//! 2. `sort_out` the packets for a service and those that may return from a backend; all others end here ([`rest`],
//!    [`icmp_errors`]), except fragments without ports, which are processed last ([`fragments`]);
//! 3. `find_flows`: look up the flow of each packet, whose bucket the previous stage prefetched;
//! 4. `choose` a backend by the hash for packets without a flow, and create the flow entry ([`service_flows`],
//!    [`reply_flows`]);
//! 5. `deliver`: rewrite by the mode of the service, or answer packets that cannot be delivered ([`deliver`]).
//!
//! Each stage processes the whole burst and prefetches for the next, so that the cache misses of a burst overlap. All
//! branching is here; [`crate::forward`] and [`answers`] change bytes, [`crate::conntrack`] and [`crate::snapshot`]
//! contain the tables.
//!
//! Invariant: every frame gets exactly one verdict. A frame that is punted, handed over or dropped is unchanged, so
//! that the kernel, another worker or a later attempt sees the original.

mod admission;
mod answers;
mod deliver;
mod fragments;
mod icmp_errors;
mod owners;
mod reply_flows;
mod rest;
mod service_flows;
mod sources;
#[cfg(test)]
mod tests;
mod tunnel_errors;

use arrayvec::ArrayVec;

use crate::addresses::{AddressKind, SourceFault};
use crate::backend::Backend;
use crate::conntrack::FlowTables;
use crate::counters::Tallies;
use crate::forward::dsr_ipip::Identifications;
use crate::forward::snat_ports::{SnatPorts, Steering};
use crate::fragments::{FragmentKey, Fragments};
use crate::frame::Frame;
use crate::ids::{BackendId, InterfaceIndex, ServiceId, WorkerIndex};
use crate::limits::{AGEING_BUCKETS_PER_BURST, BURST};
use crate::neighbors::NeighborTable;
use crate::now::Now;
use crate::reply_limit::{Bucket, ReplyLimit};
use crate::service::Service;
use crate::snapshot::{Interface, Snapshot};
use crate::verdict::{AnswerKind, PuntReason, Refusal, TransmitReason, Verdict};
use crate::wire::rewrite::Endpoint;
use crate::wire::{Addr, Fragment, Headers, MacAddr, Parsed, ethernet, ipv6, usual};
use admission::Recheck;
use reply_flows::Replies;
use service_flows::Requests;

/// How many frames ahead of the header check the first line is prefetched.
const AHEAD: usize = 4;

/// The settings of a worker's pipeline.
#[derive(Debug, Clone)]
pub struct PipelineConfig {
    /// Which worker this is.
    pub worker: WorkerIndex,
    /// How many workers the gateway has.
    pub workers: u8,
    /// The number of flows to remember, in each kind of table.
    pub entries: usize,
    /// The secret of the flow tables' hash. It also determines the start of the rotation of SNAT ports.
    pub seed: u64,
    /// How replies find the worker that holds their flow.
    pub steering: Steering,
}

/// The context of a burst, the same for each of its frames.
#[derive(Debug, Clone, Copy)]
pub struct View<'s> {
    /// The forwarding state.
    pub snapshot: &'s Snapshot,
    /// Link addresses of next hops.
    pub neighbors: &'s NeighborTable,
    /// Per-service and per-backend counts of this worker.
    pub tallies: &'s Tallies,
}

/// Where a burst came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// From the wire, by this interface.
    Wire(InterfaceIndex),
    /// From another worker, which received the burst by this interface.
    HandedOver(InterfaceIndex),
    /// From another worker, after this number of hand-overs, two or more. Only fragments whose first fragment another
    /// worker saw, and ICMP errors about a flow that any worker may hold, are handed over more than once.
    HandedOn(InterfaceIndex, u8),
}

impl Arrival {
    /// The interface that received the frames.
    #[must_use]
    pub fn interface(self) -> InterfaceIndex {
        match self {
            Self::Wire(interface) | Self::HandedOver(interface) | Self::HandedOn(interface, _) => interface,
        }
    }

    /// The number of times that the frames were handed over.
    #[must_use]
    pub fn hand_overs(self) -> u8 {
        match self {
            Self::Wire(_) => 0,
            Self::HandedOver(_) => 1,
            Self::HandedOn(_, hand_overs) => hand_overs,
        }
    }

    /// The arrival of the same frames at the worker that they are handed over to.
    #[must_use]
    pub fn handed_over(self) -> Self {
        match self {
            Self::Wire(interface) => Self::HandedOver(interface),
            Self::HandedOver(interface) => Self::HandedOn(interface, 2),
            Self::HandedOn(interface, hand_overs) => Self::HandedOn(interface, hand_overs.saturating_add(1)),
        }
    }
}

/// Details about the processing of a packet, for `replay`, `trace` and `explain`.
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
    /// ([`Cut`](crate::wire::cut::Cut)).
    pub oversized: ArrayVec<Oversized, BURST>,
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
    /// owner, it must be informed ([`Pipeline::learn_fragment`]) after the first fragment was handed over.
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
    fn begin(&mut self, frames: usize) {
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
        let fits = "both are as long as a burst";
        self.verdicts.try_extend_from_slice(&VERDICTS[..frames]).expect(fits);
        self.notes.try_extend_from_slice(&NOTES[..frames]).expect(fits);
    }

    /// Records that the frame at this position cannot be sent because the link address is not known.
    #[cold]
    fn wants(&mut self, at: usize, interface: InterfaceIndex, addr: Addr) {
        self.tell(NeighborEvent::Wanted { interface, addr });
        // A frame is delivered once, so there is room. Its position is below `BURST`.
        let _ = self.unresolved.try_push(Unresolved { frame: at as u8, interface, addr });
    }

    fn tell(&mut self, event: NeighborEvent) {
        // If the list is full, the event is dropped: the next packet creates it again.
        let _ = self.events.try_push(event);
    }
}

/// An IP packet of the burst whose headers were checked.
struct Packet {
    headers: Headers,
    /// The position of its frame.
    frame: u8,
    /// The hash for the service look-up.
    service_hash: u64,
}

/// The destination of a packet, once it is known.
#[derive(Clone, Copy)]
enum Destination<'s> {
    /// A backend. If the mode is `fullnat`, `local` is the source.
    Backend { service: &'s Service, backend: &'s Backend, local: Option<Endpoint> },
    /// A client. The source is the VIP.
    Client { service: &'s Service, client: Endpoint },
}

impl Destination<'_> {
    /// Whether the packet's addresses change on the way to the destination.
    fn is_translated(&self) -> bool {
        match self {
            Self::Backend { service, .. } => !service.mode.is_dsr(),
            Self::Client { .. } => true,
        }
    }
}

/// A packet that only needs to be rewritten and sent.
#[derive(Clone, Copy)]
struct Delivery<'s> {
    /// The position of its packet.
    packet: u8,
    destination: Destination<'s>,
}

/// The data that the stages of one burst pass to each other.
struct Burst<'s, 'o, F> {
    view: View<'s>,
    now: Now,
    arrival: Arrival,
    /// The interface that received the frames.
    interface: &'s Interface,
    frames: &'o mut [F],
    packets: ArrayVec<Packet, BURST>,
    deliveries: ArrayVec<Delivery<'s>, BURST>,
    /// The packets that are first fragments.
    first_fragments: ArrayVec<u8, BURST>,
    /// The packets that are fragments without ports. They follow their first fragment, which may be in the same burst.
    later_fragments: ArrayVec<u8, BURST>,
    out: &'o mut BurstOutput,
}

impl<F: Frame> Burst<'_, '_, F> {
    /// The position of the frame of a packet.
    fn frame_of(&self, packet: u8) -> usize {
        usize::from(self.packets[usize::from(packet)].frame)
    }

    /// Adds a packet whose headers are valid, if the frame is addressed to us, and prefetches its service.
    #[inline(always)]
    fn admit(&mut self, at: usize, headers: Headers) {
        let (snapshot, interface) = (self.view.snapshot, self.interface);
        if !ethernet::is_to(self.frames[at].bytes(), &interface.mac) && !self.is_to_group(at, headers) {
            // The call has set the verdict of the frame.
        } else if headers.vlan != interface.vlan {
            self.set(at, Refusal::VlanMismatch);
        } else {
            let service_hash = Snapshot::hash_service(&headers.dst, headers.proto, headers.dst_port);
            snapshot.prefetch_service(service_hash);
            self.packets.push(Packet { headers, frame: at as u8, service_hash });
        }
    }

    /// Whether a frame that is not addressed to us is accepted because it goes to a link-layer group and contains a
    /// packet to a group or to everyone on a network. If not, this sets its verdict. The reverse, a packet to a group
    /// in a frame to us alone, is legal (RFC 6085). The headers are passed by value, so that those of usual packets
    /// need not be in memory.
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
    fn refuse_authenticated(&mut self, at: usize) {
        let Some(Packet { headers: h, service_hash, .. }) =
            self.packets.last().filter(|packet| usize::from(packet.frame) == at)
        else {
            return;
        };
        let snapshot = self.view.snapshot;
        let translated = match snapshot.service(*service_hash, &h.dst, h.proto, h.dst_port) {
            Some(service) => !service.mode.is_dsr(),
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

    fn set(&mut self, frame: usize, verdict: impl Into<Verdict>) {
        self.out.verdicts[frame] = verdict.into();
    }

    /// The verdict on a frame that should be answered: the answer leaves by the interface that received the frame.
    fn answer_or(
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

/// Checks the headers of a frame with the complete parser. It is a separate function so that [`Pipeline::check`] keeps
/// the few values of a usual packet in registers.
#[inline(never)]
fn check_unusual<F: Frame>(burst: &mut Burst<'_, '_, F>, at: usize) {
    match crate::wire::parse(burst.frames[at].bytes()) {
        Ok(Parsed::Ip(headers)) => {
            let packet = burst.packets.len();
            burst.admit(at, headers);
            if ipv6::is_authenticated(burst.frames[at].bytes(), &headers) {
                burst.refuse_authenticated(at);
            }
            if matches!(headers.fragment, Fragment::First { .. }) && burst.packets.len() > packet {
                burst.first_fragments.push(packet as u8);
            }
        }
        Ok(Parsed::Arp(arp)) => rest::arp(burst, at, &arp),
        Ok(Parsed::Other) => {}
        Err(malformed) => burst.set(at, Verdict::Drop(malformed.into())),
    }
}

/// The state of one worker: its flows, and everything else that it must remember between bursts.
#[derive(Debug)]
pub struct Pipeline {
    worker: WorkerIndex,
    workers: u8,
    seed: u64,
    snat_ports: SnatPorts,
    flows: FlowTables,
    fragments: Fragments,
    reply_limit: ReplyLimit,
    path_mtu_updates: Bucket,
    outer_identifications: Identifications,
    recheck: Recheck,
}

impl Pipeline {
    /// A pipeline without flows. It allocates all memory that it will ever use.
    #[must_use]
    pub fn new(config: &PipelineConfig) -> Self {
        Self {
            worker: config.worker,
            workers: config.workers.max(1),
            seed: config.seed,
            snat_ports: SnatPorts::new(config.steering.clone(), config.worker, config.workers, config.seed),
            flows: FlowTables::new(config.entries, config.seed),
            fragments: Fragments::new(config.seed),
            reply_limit: ReplyLimit::new(config.seed),
            path_mtu_updates: Bucket::default(),
            outer_identifications: Identifications::new(config.worker, config.workers, config.seed),
            recheck: Recheck::default(),
        }
    }

    /// Processes a burst of at most [`BURST`] frames. Frames with a `Transmit` verdict are rewritten and ready to be
    /// sent; all others are unchanged.
    ///
    /// # Panics
    /// If there are more frames than [`BURST`], the length of the driver's arrays.
    pub fn process<F: Frame>(
        &mut self,
        view: View<'_>,
        now: Now,
        arrival: Arrival,
        frames: &mut [F],
        out: &mut BurstOutput,
    ) {
        assert!(frames.len() <= BURST, "a burst has at most {BURST} frames");
        out.begin(frames.len());
        let (packets, deliveries) = (ArrayVec::new(), ArrayVec::new());
        let (first_fragments, later_fragments) = (ArrayVec::new(), ArrayVec::new());
        // A snapshot without the interface is older than the interface, so the kernel gets all frames.
        let Some(interface) = view.snapshot.interface(arrival.interface()) else { return };
        let mut burst = Burst {
            view,
            now,
            arrival,
            interface,
            frames,
            packets,
            deliveries,
            first_fragments,
            later_fragments,
            out,
        };
        self.check(&mut burst);
        // Created here and filled in place: moving an array of a whole burst would be expensive.
        let (mut requests, mut replies) = (Requests::new(), Replies::new());
        self.sort_out(&mut burst, &mut requests, &mut replies);
        self.find_service_flows(&mut burst, &mut requests);
        self.find_reply_flows(&mut burst, &mut replies);
        self.choose_backends(&mut burst, &requests);
        self.choose_clients(&mut burst, &replies);
        self.deliver(&mut burst);
        if !burst.first_fragments.is_empty() {
            self.remember_first_fragments(&mut burst);
        }
        if !burst.later_fragments.is_empty() {
            self.follow_first_fragments(&mut burst);
        }
    }

    /// Removes some of the expired flows. Call it with every burst, and when there is none.
    #[inline]
    pub fn age(&mut self, now: Now) {
        self.flows.age(now, AGEING_BUCKETS_PER_BURST);
    }

    /// The flows of this worker, for counts.
    #[must_use]
    pub fn flows(&self) -> &FlowTables {
        &self.flows
    }

    /// The flows of this worker, for listings and drains between bursts.
    pub fn flows_mut(&mut self) -> &mut FlowTables {
        &mut self.flows
    }

    /// The number of answers that were not sent because of a limit, by [`AnswerKind`].
    #[must_use]
    pub fn suppressed_answers(&self) -> &[u64; AnswerKind::COUNT] {
        self.reply_limit.suppressed()
    }

    /// Checks the headers of every frame and prefetches the service of each packet.
    #[inline(never)]
    fn check<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>) {
        for frame in burst.frames.iter().take(AHEAD) {
            frame.prefetch();
        }
        for at in 0..burst.frames.len() {
            if let Some(next) = burst.frames.get(at + AHEAD) {
                next.prefetch();
            }
            match usual::parse(burst.frames[at].bytes()) {
                Some(headers) => burst.admit(at, headers),
                None => check_unusual(burst, at),
            }
        }
    }

    /// Separates packets to a service port from those that may come from a backend, and ends all others.
    #[inline(never)]
    fn sort_out<'s, F: Frame>(
        &mut self,
        burst: &mut Burst<'s, '_, F>,
        requests: &mut Requests<'s>,
        replies: &mut Replies,
    ) {
        let snapshot = burst.view.snapshot;
        for at in 0..burst.packets.len() {
            let Packet { headers: h, frame, service_hash } = &burst.packets[at];
            let (frame, packet) = (usize::from(*frame), at as u8);
            match snapshot.service(*service_hash, &h.dst, h.proto, h.dst_port) {
                Some(service) => match self.request(service, packet, h, burst.arrival) {
                    Ok(request) => {
                        burst.out.notes[frame].service = Some(service.id);
                        requests.push(request);
                    }
                    Err(elsewhere) => burst.set(frame, elsewhere),
                },
                None if reply_flows::may_be_reply(h) => replies.push(self.reply(snapshot, packet, h)),
                None => {
                    let headers = *h;
                    self.strays(burst, packet, &headers);
                }
            }
        }
    }

    /// Processes a packet without ports of its own, or of a protocol that no service has.
    #[cold]
    fn strays<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>, packet: u8, h: &Headers) {
        if h.is_later_fragment() {
            burst.later_fragments.push(packet);
        } else if !(h.is_icmp_error()
            && !h.is_redirect()
            && burst.sender_fault(h).is_none()
            && self.icmp_error(burst, packet))
        {
            let at = burst.frame_of(packet);
            self.unserved(burst, at, h);
        }
    }
}
