//! [`Pipeline::process`] runs a burst through these stages. Before them, plain packets of established flows and simple
//! first packets take the [`fast_path`]; the stages process the other frames of the burst.
//!
//! 1. `check` the headers of every frame, answer ARP, prefetch the service of each packet;
//! 2. `classify` packets to a service and packets that may come from a backend; all others get their verdict here
//!    ([`local`], [`icmp_errors`]), except fragments without ports, which are processed last ([`fragments`]);
//! 3. `find_service_flows`, `find_reply_flows`: look up the flow of each packet, whose hash bucket the previous stage
//!    prefetched;
//! 4. `choose_backends`, `choose_clients`: for packets without a flow, choose a backend by the hash and create the flow
//!    entry ([`service_flows`], [`new_flows`], [`reply_flows`]); packets of flows that another worker owns are sent by
//!    a copy of the flow, if there is one ([`copies`]);
//! 5. `deliver`: rewrite packets for the mode of their service, or answer packets that can't be delivered ([`deliver`],
//!    [`translated`], [`oversized`]); then packets of logged flows are counted ([`flow_log`]);
//! 6. `store_first_fragments`, `follow_first_fragments`: fragments without ports follow their first fragment
//!    ([`fragments`]).
//!
//! Each stage processes the whole burst and prefetches for the next, so that the cache misses of a burst overlap. All
//! branching is here; [`crate::forward`] and [`answered_frames`] change bytes, [`tidegate_conntrack`] and
//! [`tidegate_snapshot`] contain the tables.
//!
//! Invariant: every frame gets exactly one verdict. A frame that is punted, handed over or dropped is unchanged, so
//! that the kernel, another worker or a later attempt sees the original.
mod admission;
mod affinity;
mod answered_frames;
mod associations;
mod burst;
mod cookie_state;
mod cookies;
mod copies;
mod deliver;
mod fast_path;
mod flow_log;
mod flow_replication;
mod fragments;
mod icmp_errors;
mod import;
mod local;
mod masquerade;
mod new_flows;
mod next_backend;
mod next_hop;
mod on_change;
mod output;
mod oversized;
mod owners;
mod passive;
mod proxied;
mod reply_flows;
mod reply_ports;
mod request;
mod restore;
mod retries;
mod schedule;
mod segment_size;
mod service_flows;
mod sharing_walks;
mod sources;
mod state;
mod syn_cookie;
#[cfg(test)]
mod tests;
mod transit;
mod translated;
mod tunnel_errors;
mod tunnel_peers;
mod view;

pub use cookie_state::CookieCounts;
pub use import::ImportOutcome;
pub use output::{
    BurstOutput, FirstFragment, FlowNote, NeighborEvent, Note, Oversized, Sighting, UnknownFragment,
    Unresolved,
};
pub use restore::{KnownIds, RestoreCounts};
pub use sharing_walks::SharedFlows;
pub use state::{Pipeline, PipelineConfig};
pub use view::{Arrival, View};

use arrayvec::ArrayVec;
use burst::{Burst, Packet, SeenFlows};
use reply_flows::Replies;
use request::Requests;
use tidegate_snapshot::Interface;
use tidegate_spec::limits::BURST;
use tidegate_spec::now::Now;
use tidegate_spec::verdict::Verdict;
use tidegate_wire::{Fragment, Headers, Parsed, ipv6, usual};

use crate::frame::Frame;

/// How many frames ahead of the header check the first cache line of a frame is prefetched.
const AHEAD: usize = 4;

/// Checks the headers of a frame with the complete parser.
#[inline(never)]
fn check_unusual<F: Frame>(burst: &mut Burst<'_, '_, F>, at: usize) {
    match tidegate_wire::parse(burst.frames[at].bytes()) {
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
        Ok(Parsed::Arp(arp)) => local::arp(burst, at, &arp),
        Ok(Parsed::Other) => {}
        Err(malformed) => burst.set(at, Verdict::Drop(malformed.into())),
    }
}

impl Pipeline {
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
        // The snapshot is older than the interface, so the kernel gets all frames.
        let Some(interface) = view.snapshot.interface(arrival.interface()) else { return };
        let mut rest = u32::MAX.checked_shr((BURST - frames.len()) as u32).unwrap_or(0);
        if matches!(arrival, Arrival::Wire(_)) && interface.vlan.is_none() && self.tries_fast_path() {
            out.fast = self.fast_path(view, now, (arrival.interface(), interface), frames, out);
            self.note_fast_path(out.fast, frames.len());
            rest &= !out.fast;
            if rest == 0 {
                return;
            }
        }
        self.stages(view, now, arrival, interface, frames, rest, out);
    }

    /// Processes the frames of a burst that the fast path has deferred: bit n of `rest` stands for frame n.
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "those of `process`, and which frames")]
    fn stages<F: Frame>(
        &mut self,
        view: View<'_>,
        now: Now,
        arrival: Arrival,
        interface: &Interface,
        frames: &mut [F],
        rest: u32,
        out: &mut BurstOutput,
    ) {
        let (packets, deliveries) = (ArrayVec::new(), ArrayVec::new());
        let (first_fragments, later_fragments) = (ArrayVec::new(), ArrayVec::new());
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
            seen_flows: SeenFlows::default(),
            owned_by_others: ArrayVec::new(),
            of_peers: ArrayVec::new(),
            opened: self.opened.is_none(),
            out,
        };
        self.check(&mut burst, rest);
        // Create these here and fill them in place: moving a whole burst would be expensive.
        let (mut requests, mut replies) = (Requests::new(), Replies::new());
        self.classify(&mut burst, &mut requests, &mut replies);
        self.find_service_flows(&mut burst, &mut requests);
        self.find_reply_flows(&mut burst, &mut replies);
        self.choose_backends(&mut burst, &requests);
        self.choose_clients(&mut burst, &replies);
        if !burst.owned_by_others.is_empty() {
            self.use_copies(&mut burst);
        }
        self.deliver(&mut burst);
        if self.flows.has_log() {
            self.log_deliveries(&burst);
        }
        if let Arrival::HandedOver(_, from) = arrival {
            self.copy_flows(&mut burst, from, &requests, &replies);
        }
        if !burst.first_fragments.is_empty() {
            self.store_first_fragments(&mut burst);
        }
        if !burst.later_fragments.is_empty() {
            self.follow_first_fragments(&mut burst);
        }
        if !burst.of_peers.is_empty() {
            self.open_tunnels(&mut burst);
        }
    }

    /// Checks the headers of every frame and prefetches the service of each packet.
    #[inline(never)]
    fn check<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>, rest: u32) {
        for frame in burst.frames.iter().take(AHEAD) {
            frame.prefetch();
        }
        for at in 0..burst.frames.len() {
            if let Some(next) = burst.frames.get(at + AHEAD) {
                next.prefetch();
            }
            if rest >> at & 1 == 0 {
                continue;
            }
            match usual::parse(burst.frames[at].bytes()) {
                Some(headers) => burst.admit(at, headers),
                None => check_unusual(burst, at),
            }
        }
    }

    /// Separates packets to a service port from packets that may come from a backend, and sets the verdict of all
    /// others.
    #[inline(never)]
    fn classify<'s, F: Frame>(
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
                    Err(verdict) => self.hand_over_request(burst, packet, service, verdict),
                },
                None if reply_flows::may_be_reply(h) => replies.push(self.reply(snapshot, packet, h)),
                None => {
                    let headers = *h;
                    self.unmatched(burst, packet, &headers);
                }
            }
        }
    }

    /// Processes a packet that has no ports of its own, or whose protocol no service uses.
    #[cold]
    fn unmatched<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>, packet: u8, h: &Headers) {
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
