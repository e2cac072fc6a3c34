//! Passive health: retries new flows that backends of `nat` and `fullnat` Services refuse or ignore, and sets failing
//! backends aside.
//!
//! - A reset or an ICMP "unreachable" that answers a client's first SYN is not forwarded while another backend can be
//!   tried: the SYN, stored in [`StoredSyns`], goes to the next backend instead. If the SYN is no longer stored, the
//!   refusal is dropped, and the client's next SYN goes to the next backend ([`super::retries`]).
//! - A SYN that its client repeats because the backend didn't answer goes to the next backend
//!   ([`super::next_backend`]).
//! - Each of these is a failure of the backend. After several in a row it is set aside ([`SetAside`]), and new flows
//!   go to the others.
//!
//! A refusal counts only if it acknowledges the SYN, or quotes its sequence number, and arrives through the interface
//! that leads to the backend. Packets of established flows never get here.
//!
//! Invariant: a SYN of a client causes at most `1 + RETRIES_MAX` SYNs to backends.

use tidegate_conntrack::{FlowHash, FlowKey, Packet, StoredSyn, StoredSyns};
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::counters::Tallies;
use tidegate_spec::BackendState;
use tidegate_spec::ids::{BackendId, InterfaceIndex};
use tidegate_spec::limits::FAILING_BACKENDS_MAX;
use tidegate_spec::now::Now;
use tidegate_wire::Headers;
use tidegate_wire::tcp::{flags, segment};

use crate::set_aside::SetAside;

#[derive(Debug)]
pub(super) struct Passive {
    pub(super) aside: SetAside,
    pub(super) syns: StoredSyns,
    /// The backend chosen for the current new flow because other backends have failed.
    pub(super) next: Option<BackendId>,
    /// The backends that are reported as set aside in the tallies.
    reported: Vec<BackendId>,
}

impl Passive {
    pub(super) fn new() -> Self {
        let reported = Vec::with_capacity(FAILING_BACKENDS_MAX);
        Self { aside: SetAside::new(), syns: StoredSyns::default(), next: None, reported }
    }

    /// Whether no backend has failed, so that every flow gets its usual backend.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.aside.is_empty() & self.next.is_none()
    }

    /// Stores the SYN that a flow sends to this backend, which is not its first one if the flow `is_known`.
    pub(super) fn store_syn(&mut self, syn: &ReceivedSyn<'_>, is_known: bool, backend: BackendId) {
        let &ReceivedSyn { frame, headers: h, interface, flow, hash } = syn;
        // The segment that returns a SYN cookie isn't a SYN. Don't store a SYN with data, which the answer would
        // acknowledge too, or a SYN from a link-local client, because answers to it depend on its station.
        let may_store = h.tcp_flags & flags::SYN != 0 && !h.src.is_link_local();
        let Some(segment) = segment(frame, h).filter(|segment| may_store && segment.len == 1) else { return };
        if !is_known || !self.syns.sent_again(flow, hash, segment.seq, backend) {
            let bytes = frame.get(..usize::from(h.ip_end)).unwrap_or(frame);
            self.syns.keep(hash, StoredSyn::new(*flow, segment.seq, interface, backend), bytes);
        }
    }

    /// Whether a new flow should not get this backend, which its client has by affinity.
    #[inline]
    pub(super) fn should_avoid(&self, backend: BackendId, now: Now) -> bool {
        !self.is_idle() && (self.aside.blocks(backend, now) || self.next.is_some_and(|next| next != backend))
    }

    /// Clears the chosen backend, after the flow was created or refused.
    #[inline]
    pub(super) fn clear_choice(&mut self) {
        self.next = None;
    }

    /// Reports the backends that are set aside, and forgets those that needn't be set aside any more.
    pub(super) fn report(&mut self, snapshot: &Snapshot, tallies: &Tallies) {
        let Self { aside, reported, .. } = self;
        for at in (0..aside.marked().len()).rev() {
            let Some(&id) = aside.marked().get(at) else { continue };
            // A backend that is down is left to the active checks. It has no failures when they find it up again.
            let backend = snapshot.backend(id).filter(|backend| backend.state == BackendState::Active);
            let service = backend.and_then(|backend| snapshot.service_by_id(backend.service));
            if !service.is_some_and(|service| service.passive) {
                aside.forget(id);
            }
        }
        reported.retain(|&id| {
            let stays = aside.contains(id);
            if !stays {
                tallies.publish_set_aside(id, false);
            }
            stays
        });
        for &id in aside.marked().iter().filter(|&&id| aside.contains(id)) {
            tallies.publish_set_aside(id, true);
            if !reported.contains(&id) {
                reported.push(id);
            }
        }
    }
}

/// A client's SYN and its flow.
#[derive(Clone, Copy)]
pub(super) struct ReceivedSyn<'a> {
    pub(super) frame: &'a [u8],
    pub(super) headers: &'a Headers,
    /// The interface that received it.
    pub(super) interface: InterfaceIndex,
    pub(super) flow: &'a FlowKey,
    pub(super) hash: FlowHash,
}

/// The meaning of a SYN for a known flow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Syn {
    /// The packet isn't a SYN, or has no special meaning.
    No,
    /// The SYN opens a new connection with the same addresses and ports.
    Reopens,
    /// The client repeats the SYN because the backend hasn't answered.
    Repeats,
}

impl Syn {
    pub(super) fn of(reopened: bool, repeated: bool) -> Self {
        match (reopened, repeated) {
            (true, _) => Self::Reopens,
            (false, true) => Self::Repeats,
            (false, false) => Self::No,
        }
    }
}

/// Whether a backend's packet refuses the connection, provided that it answers a SYN.
#[inline]
pub(super) fn may_refuse(kind: Packet) -> bool {
    const REFUSAL: u8 = flags::RST | flags::ACK;
    matches!(kind, Packet::Tcp(f) if f & (REFUSAL | flags::SYN) == REFUSAL)
}
