//! Frames that the gateway answers itself: ARP, neighbour solicitations, pings, resets and ICMP errors.
//!
//! Each turns the received frame into its answer in place and says whether it could; what may be answered is
//! the pipeline's decision, how an answer looks is `wire`'s. Answers go back to the station that the frame
//! came from, so none of them needs a neighbour to be resolved.
//!
//! Invariant: when one of these says no, the frame is as it came.

use crate::frame::Frame;
use crate::wire::icmp::{self, Problem};
use crate::wire::{Addr, ArpPacket, Headers, MacAddr, SmallFrame, arp, ndp, tcp};

/// Makes the frame the reply to the ARP request in it, for an address of ours.
pub(super) fn arp_reply<F: Frame>(frame: &mut F, request: &ArpPacket, mac: MacAddr) -> bool {
    become_small(frame, &arp::reply(request, mac))
}

/// Makes the frame the advertisement for the solicitation in it, for an address of ours.
pub(super) fn advertisement<F: Frame>(
    frame: &mut F,
    h: &Headers,
    target: std::net::Ipv6Addr,
    mac: MacAddr,
) -> bool {
    let answer = ndp::answer(frame.bytes(), h, target, mac);
    become_small(frame, &answer)
}

/// Makes the frame the reply to the ping in it.
pub(super) fn echo_reply<F: Frame>(frame: &mut F, h: &Headers, mac: MacAddr) -> bool {
    icmp::echo_reply(frame.bytes_mut(), h, mac)
}

/// Makes the frame the reset of the segment in it.
pub(super) fn reset<F: Frame>(frame: &mut F, h: &Headers, mac: MacAddr) -> bool {
    match tcp::reset(frame.bytes(), h, mac) {
        Some(answer) => become_small(frame, &answer),
        None => false,
    }
}

/// Makes the frame an ICMP error about itself, from an address of ours.
pub(super) fn error<F: Frame>(
    frame: &mut F,
    h: &Headers,
    problem: Problem,
    mac: MacAddr,
    from: Addr,
) -> bool {
    if !icmp::may_answer_with_icmp(frame.bytes(), h, problem) {
        return false;
    }
    let answer = icmp::error(frame.bytes(), h, problem, mac, from);
    let (header, quote) = (answer.header.len(), answer.quote);
    // The quote stays where it is: the header takes the place of what is before it, and of headroom.
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
fn become_small<F: Frame>(frame: &mut F, answer: &SmallFrame) -> bool {
    let fits = frame.resize(answer.len());
    if fits {
        frame.bytes_mut().copy_from_slice(answer);
    }
    fits
}
