//! Frames that the gateway answers itself: ARP, neighbour solicitations, pings, resets and ICMP errors.
//!
//! Each function rewrites the received frame into its answer in place and returns whether it succeeded. The pipeline
//! decides what may be answered, and `wire` builds the answer. Answers return to the station that sent the frame, so
//! no neighbour has to be resolved.
//!
//! Resets and ICMP errors have rate limits. [`Pipeline::reset`] and [`Pipeline::refuse`] take a token only when
//! nothing else can prevent the answer.
//!
//! Invariant: when one of these functions returns false, the frame is unchanged.

use tidegate_spec::verdict::AnswerKind;
use tidegate_wire::icmp::{self, Problem};
use tidegate_wire::{Addr, ArpPacket, Family, Headers, MacAddr, SmallFrame, arp, ethernet, ipv4, ndp, tcp};

use super::burst::Burst;
use super::output::Oversized;
use super::state::Pipeline;
use crate::forward;
use crate::frame::Frame;

/// Rewrites the frame into the reply to its ARP request for one of our addresses.
pub(super) fn arp_reply<F: Frame>(frame: &mut F, request: &ArpPacket, mac: MacAddr) -> bool {
    replace_with(frame, &arp::reply(request, mac))
}

/// Rewrites the frame into the advertisement that answers its solicitation for one of our addresses.
pub(super) fn advertisement<F: Frame>(
    frame: &mut F,
    h: &Headers,
    target: std::net::Ipv6Addr,
    mac: MacAddr,
) -> bool {
    let answer = ndp::answer(frame.bytes(), h, target, mac);
    is_from_one_station(frame) && replace_with(frame, &answer)
}

/// Rewrites the frame into the reply to its ping, or to its fragment of a ping. The IPv4 reply to a ping that the driver
/// reassembled is fragmented if it exceeds the link's MTU.
pub(super) fn echo_reply<F: Frame>(burst: &mut Burst<'_, '_, F>, at: usize, h: &Headers) -> bool {
    let (mac, mtu) = (burst.interface.mac, burst.interface.mtu);
    let frame = &mut burst.frames[at];
    let too_long = h.ip_len() > mtu;
    if !is_from_one_station(frame) || (too_long && h.family == Family::V6) {
        return false;
    }
    let answered = match h.is_later_fragment() {
        true => icmp::echo_fragment(frame.bytes_mut(), h, mac),
        false => icmp::echo_reply(frame.bytes_mut(), h, mac),
    };
    if answered {
        forward::cut_trailer(frame, usize::from(h.ip_end));
        if too_long {
            ipv4::allow_fragments(frame.bytes_mut(), h);
            // The position is below `BURST`. A frame is answered once, so the list has capacity.
            let fragment = Oversized { frame: at as u8, packet: u16::from(h.l3), mtu };
            let _ = burst.out.oversized.try_push(fragment);
        }
    }
    answered
}

impl Pipeline {
    /// Rewrites the frame into a reset for its TCP segment, if one may be sent now.
    #[cold]
    pub(super) fn reset<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>, at: usize, h: &Headers) -> bool {
        let frame = &mut burst.frames[at];
        if !is_from_one_station(frame) {
            return false;
        }
        let Some(answer) = tcp::reset(frame.bytes(), h, burst.interface.mac) else { return false };
        self.reply_limit.take(AnswerKind::Reset, &h.src, burst.now) && replace_with(frame, &answer)
    }

    /// Rewrites the frame into an ICMP error about its packet, if one may be sent now.
    #[cold]
    pub(super) fn refuse<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        h: &Headers,
        problem: Problem,
    ) -> bool {
        let frame = &mut burst.frames[at];
        if !is_from_one_station(frame)
            || !icmp::may_answer_with_icmp(frame.bytes(), h, problem)
            || !self.reply_limit.take(kind_of(problem), &h.src, burst.now)
        {
            return false;
        }
        // A router answers from its own address. The VIP is the source of "port unreachable", and of all errors on a
        // link where the gateway has no address of the family.
        let from = match problem {
            Problem::PortUnreachable => h.dst,
            _ => burst.interface.source(h.family).unwrap_or(h.dst),
        };
        error(frame, h, problem, burst.interface.mac, from)
    }
}

/// Whether the frame's source is a station that can receive an answer. A group address is not valid as a source (IEEE
/// 802.3 section 3.2.5): the answer would reach every station on the link.
pub(super) fn is_from_one_station<F: Frame>(frame: &F) -> bool {
    !ethernet::source(frame.bytes()).is_multicast()
}

fn kind_of(problem: Problem) -> AnswerKind {
    match problem {
        Problem::TooBig { .. } => AnswerKind::PacketTooBig,
        Problem::TimeExceeded => AnswerKind::TimeExceeded,
        Problem::PortUnreachable | Problem::HostUnreachable | Problem::NoRoute | Problem::AdminProhibited => {
            AnswerKind::Unreachable
        }
    }
}

/// Rewrites the frame into an ICMP error about itself, from one of our addresses. The caller has checked that it may be
/// answered.
fn error<F: Frame>(frame: &mut F, h: &Headers, problem: Problem, mac: MacAddr, from: Addr) -> bool {
    let answer = icmp::error(frame.bytes(), h, problem, mac, from);
    let (header, quote) = (answer.header.len(), answer.quote);
    // The quote stays in place: the new header replaces the bytes in front of it, and uses headroom if needed.
    if header > quote.start && !frame.grow_front(header - quote.start) {
        return false;
    }
    if header < quote.start {
        frame.shrink_front(quote.start - header);
    }
    let cut = frame.resize(header + quote.len());
    debug_assert!(cut, "the quote is part of the frame");
    frame.bytes_mut()[..header].copy_from_slice(&answer.header);
    true
}

/// Replaces the whole frame.
pub(super) fn replace_with<F: Frame>(frame: &mut F, answer: &SmallFrame) -> bool {
    let fits = frame.resize(answer.len());
    if fits {
        frame.bytes_mut().copy_from_slice(answer);
    }
    fits
}
