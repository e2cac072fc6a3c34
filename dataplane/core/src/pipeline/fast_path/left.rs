//! The order of packets of one flow: behind a packet that is left to the stages, those of the same flow are left, too.

use crate::wire::usual::Usual;

/// The flows of which an earlier packet of the burst is left to the stages, as a filter of 64 bits.
#[derive(Default)]
pub(super) struct Left(u64);

impl Left {
    #[inline(always)]
    fn bit<const A: usize>(packet: &Usual<A>) -> u64 {
        let src = packet.src.iter().fold(0, |all, word| all ^ word);
        1 << ((src ^ packet.ports.rotate_left(7)).wrapping_mul(0x9e37_79b1) >> 26)
    }

    #[inline(always)]
    pub(super) fn add<const A: usize>(&mut self, packet: &Usual<A>) {
        self.0 |= Self::bit(packet);
    }

    #[inline(always)]
    pub(super) fn may_have<const A: usize>(&self, packet: &Usual<A>) -> bool {
        self.0 != 0 && self.0 & Self::bit(packet) != 0
    }

    /// Whether a packet may take the fast path. If not, no later packet of its flow may.
    #[inline(always)]
    pub(super) fn admits<const A: usize>(&mut self, packet: &Usual<A>) -> bool {
        if packet.controls() {
            self.add(packet);
            return false;
        }
        !self.may_have(packet)
    }
}
