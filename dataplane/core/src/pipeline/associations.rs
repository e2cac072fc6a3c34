//! SCTP packets that begin or end an association: checks their verification tags before the flow tables see them.
//!
//! Off the fast path: the tables recognise a plain packet of an established flow before this.

use super::burst::Burst;
use super::state::Pipeline;
use crate::conntrack::{FlowHash, Packet, Shown, Side};
use crate::frame::Frame;
use crate::wire::sctp::{self, Kind};

impl Pipeline {
    /// The kind of an SCTP packet of the flow with this hash (of the client's key), as far as its verification tag
    /// proves it.
    #[cold]
    #[inline(never)]
    pub(super) fn proved<F: Frame>(
        &mut self,
        burst: &Burst<'_, '_, F>,
        packet: u8,
        flow: FlowHash,
        side: Side,
    ) -> Packet {
        let h = &burst.packets[usize::from(packet)].headers;
        let frame = burst.frames[burst.frame_of(packet)].bytes();
        let (kind, reflected) = sctp::kind(&frame[usize::from(h.l4)..usize::from(h.ip_end)]);
        if kind == Kind::Plain {
            return Packet::Sctp(kind);
        }
        let (tag, initiate) = sctp::tags(frame, h);
        let shown = Shown { kind, tag, initiate, reflected };
        Packet::Sctp(self.flows.tags.proved(flow, side, &shown, burst.now))
    }
}
