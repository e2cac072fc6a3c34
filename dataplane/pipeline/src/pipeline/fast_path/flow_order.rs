//! Keeps packets of one flow in order: after a packet is deferred to the stages, later ones of its flow are deferred,
//! too.

use tidegate_wire::usual::Usual;

/// The flows with deferred packets in the burst: a Bloom filter of 256 bits with one bit for each flow.
#[derive(Default)]
pub(super) struct Deferred {
    bits: [u64; 4],
    has_any: bool,
}

impl Deferred {
    /// The index of a word and the bit in it.
    #[inline(always)]
    fn bit_of<const A: usize>(packet: &Usual<A>) -> (usize, u64) {
        let src = packet.src.iter().fold(0, |all, word| all ^ word);
        let hash = (src ^ packet.ports.rotate_left(7)).wrapping_mul(0x9e37_79b1);
        ((hash >> 30) as usize, 1 << (hash >> 24 & 63))
    }

    #[inline(always)]
    pub(super) fn add<const A: usize>(&mut self, packet: &Usual<A>) {
        let (word, bit) = Self::bit_of(packet);
        self.bits[word % 4] |= bit;
        self.has_any = true;
    }

    #[inline(always)]
    pub(super) fn may_have<const A: usize>(&self, packet: &Usual<A>) -> bool {
        if !self.has_any {
            return false;
        }
        let (word, bit) = Self::bit_of(packet);
        self.bits[word % 4] & bit != 0
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
