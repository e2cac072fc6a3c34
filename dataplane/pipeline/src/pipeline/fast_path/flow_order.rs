//! Keeps packets of one flow in order: after a packet is deferred to the stages, later ones of its flow are deferred,
//! too.

use arrayvec::ArrayVec;
use tidegate_spec::limits::BURST;
use tidegate_wire::usual::Usual;

/// Flows of packets of the burst: a Bloom filter of 256 bits with one bit for each flow, and a list that is searched
/// only if the bit is set.
#[derive(Default)]
pub(super) struct BurstFlows {
    bits: [u64; 4],
    /// The clients and ports of the flows; hashes of them for IPv6.
    listed: ArrayVec<u64, BURST>,
}

impl BurstFlows {
    /// The client and the ports of a packet, or a hash of them.
    #[inline(always)]
    fn id_of<const A: usize>(packet: &Usual<A>) -> u64 {
        let src = packet.src.iter().fold(0, |all: u32, word| all.rotate_left(5) ^ word);
        u64::from(src) << 32 | u64::from(packet.ports)
    }

    /// The index of a word and the bit in it.
    #[inline(always)]
    fn bit_of(id: u64) -> (usize, u64) {
        let hash = ((id >> 32) as u32 ^ (id as u32).rotate_left(7)).wrapping_mul(0x9e37_79b1);
        ((hash >> 30) as usize, 1 << (hash >> 24 & 63))
    }

    #[inline(always)]
    pub(super) fn add<const A: usize>(&mut self, packet: &Usual<A>) {
        let id = Self::id_of(packet);
        let (word, bit) = Self::bit_of(id);
        self.bits[word % 4] |= bit;
        // A full list counts as a list of all flows.
        let _ = self.listed.try_push(id);
    }

    #[inline(always)]
    pub(super) fn may_have<const A: usize>(&self, packet: &Usual<A>) -> bool {
        if self.listed.is_empty() {
            return false;
        }
        let id = Self::id_of(packet);
        let (word, bit) = Self::bit_of(id);
        self.bits[word % 4] & bit != 0 && self.lists(id)
    }

    #[cold]
    #[inline(never)]
    fn lists(&self, id: u64) -> bool {
        self.listed.is_full() || self.listed.contains(&id)
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
