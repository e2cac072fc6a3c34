//! The keys of flows, and their hash.
//!
//! A key is (owner, address, port). Towards a VIP the owner is the service port, which stands for (VIP, protocol,
//! port); for replies it is the endpoint. So ten bytes are the full key of an IPv4 flow, and no fingerprint is needed.
//! The hash is keyed by a secret of the worker, so senders cannot aim flows at one hash bucket. It is independent of
//! the selection hash, which is public and fixed.
//!
//! Invariant: a key has the same hash whether it comes from a packet or from a table.

use tidegate_spec::ids::{EndpointId, ServiceId};
use tidegate_structures::hash::fold;
use tidegate_wire::Addr;

/// The full key of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowKey {
    pub(super) owner: u32,
    /// Port in the high half; bit 15 is [`REPLY_BIT`] in NAT tables and [`AFFINITY_BIT`] in DSR tables; the rest is 0.
    pub(super) tag: u32,
    /// The address that is not the owner's.
    pub(super) addr: Addr,
}

/// Set in the reply keys of NAT tables, so that they never equal the key of a client's flow with the same numbers.
pub(super) const REPLY_BIT: u32 = 1 << 15;

/// Set in the affinity keys of DSR tables, so that they never equal the key of a flow with the same numbers. It shares
/// the bit with [`REPLY_BIT`], because no table has keys of both kinds.
pub(super) const AFFINITY_BIT: u32 = REPLY_BIT;

/// The bits of an entry's tag that are part of its key.
pub(super) const KEY_MASK: u32 = 0xffff_8000;

impl FlowKey {
    /// The flow of a client to a service port.
    #[inline]
    #[must_use]
    pub fn flow(service: ServiceId, client: Addr, client_port: u16) -> Self {
        Self { owner: service.raw(), tag: u32::from(client_port) << 16, addr: client }
    }

    /// All flows of a client to a service port: `sessionAffinity: ClientIP`. Stored in the DSR table.
    #[inline]
    #[must_use]
    pub fn affinity(service: ServiceId, client: Addr) -> Self {
        Self { owner: service.raw(), tag: AFFINITY_BIT, addr: client }
    }

    /// The replies of an endpoint to its peer: the client with `nat`, a SNAT address and port of the gateway with
    /// `fullnat`.
    #[inline]
    #[must_use]
    pub fn reply(endpoint: EndpointId, to: Addr, to_port: u16) -> Self {
        Self { owner: endpoint.raw(), tag: u32::from(to_port) << 16 | REPLY_BIT, addr: to }
    }

    /// The key of a client's flow, or of its affinity, with another service port.
    #[must_use]
    pub fn of_service(&self, service: ServiceId) -> Self {
        Self { owner: service.raw(), ..*self }
    }

    /// The service port, in the key of a client's flow.
    #[inline]
    #[must_use]
    pub fn service(&self) -> ServiceId {
        ServiceId::from_raw(self.owner)
    }

    /// Whether a key of a NAT table is one of replies. For a key of a DSR table, use [`Self::is_affinity_key`].
    #[inline]
    #[must_use]
    pub fn is_reply_key(&self) -> bool {
        self.tag & REPLY_BIT != 0
    }

    /// Whether a key of a DSR table, or a client's key of a NAT table, is one of session affinity. For a key that may
    /// be one of replies, use [`Self::is_reply_key`].
    #[inline]
    #[must_use]
    pub fn is_affinity_key(&self) -> bool {
        self.tag & AFFINITY_BIT != 0
    }

    /// The address in the key: the client, or the destination of replies.
    #[inline]
    #[must_use]
    pub fn addr(&self) -> Addr {
        self.addr
    }

    /// The port in the key, in host order; 0 for affinity.
    #[inline]
    #[must_use]
    pub fn port(&self) -> u16 {
        (self.tag >> 16) as u16
    }
}

/// A key of [`Associations`](crate::associations::Associations): a number with the pair of ports, client first. It has
/// the form of a flow's key, to use the same secret hash. Its address identifies the kind of key and is one that no
/// client has; only [`Self::of_address`] uses a client's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AssociationKey(pub FlowKey);

impl AssociationKey {
    /// Packets of the client with this verification tag.
    #[must_use]
    pub fn to_server(ports: (u16, u16), tag: u32) -> Self {
        Self::of(ports, tag, [1, 0])
    }

    /// The INIT of the client with this initiate tag.
    #[must_use]
    pub fn init(ports: (u16, u16), initiate: u32) -> Self {
        Self::of(ports, initiate, [2, 0])
    }

    /// Packets of an endpoint to this port, with this verification tag.
    #[must_use]
    pub fn from_server(endpoint: EndpointId, to_port: u16, tag: u32) -> Self {
        let [a, b, c, d] = endpoint.raw().to_be_bytes();
        let addr = Addr::v6([0xff, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]);
        Self(FlowKey { owner: tag, tag: u32::from(to_port) << 16, addr })
    }

    /// A path of the association whose packets of the client have this verification tag.
    #[must_use]
    pub fn path(ports: (u16, u16), tag: u32, n: u8) -> Self {
        Self::of(ports, tag, [4, n])
    }

    /// Packets from this address of the client, which its INIT has listed.
    #[must_use]
    pub fn of_address(ports: (u16, u16), client: Addr) -> Self {
        Self(FlowKey { owner: 0, tag: pair(ports), addr: client })
    }

    fn of(ports: (u16, u16), number: u32, [kind, n]: [u8; 2]) -> Self {
        let addr = Addr::v6([0xff, kind, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n]);
        Self(FlowKey { owner: number, tag: pair(ports), addr })
    }
}

fn pair((client, server): (u16, u16)) -> u32 {
    u32::from(client) << 16 | u32::from(server)
}

/// 64 bits of a key; each half selects a hash bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowHash(pub(super) u64);

impl FlowHash {
    /// The hash with these bits.
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// All 64 bits.
    #[inline]
    pub fn bits(self) -> u64 {
        self.0
    }
}

/// Hashes keys with a secret, three wide multiplications each.
#[derive(Debug, Clone)]
pub struct FlowHasher([u64; 5]);

impl FlowHasher {
    /// A hasher whose secret is derived from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        // SplitMix64 (Steele, Lea, Flood 2014): every bit of the seed reaches every word of the secret.
        Self(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    /// A secret for the counters of clients' networks.
    pub(super) fn network_secret(&self) -> u64 {
        fold(self.0[0] ^ self.0[4], self.0[2])
    }

    /// The hash of a key. Pure: it reads no table.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &FlowKey) -> FlowHash {
        self.hash_words(narrow::<4>(key.addr), key.owner, key.tag)
    }

    #[inline]
    pub(super) fn hash_packed<const A: usize>(&self, key: &PackedKey<A>) -> FlowHash {
        self.hash_words(widen(key.addr), key.owner, key.tag)
    }

    #[inline]
    fn hash_words(&self, a: [u32; 4], owner: u32, tag: u32) -> FlowHash {
        let low = u64::from(a[0]) | u64::from(a[1]) << 32;
        let high = u64::from(a[2]) | u64::from(a[3]) << 32;
        let rest = u64::from(owner) | u64::from(tag) << 32;
        let [s0, s1, s2, s3, s4] = self.0;
        // The last fold makes the halves independent. Without it, sequential ports or services would have sequential
        // pairs of hash buckets, and tables would overflow below their bound.
        FlowHash(fold(fold(fold(low ^ s0, high ^ s1) ^ s2, rest ^ s3), s4))
    }
}

/// A key in the form that entries store: `A` words of address, 1 for IPv4 and 4 for IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PackedKey<const A: usize> {
    pub(super) owner: u32,
    pub(super) tag: u32,
    pub(super) addr: [u32; A],
}

impl<const A: usize> From<&FlowKey> for PackedKey<A> {
    #[inline]
    fn from(key: &FlowKey) -> Self {
        Self { owner: key.owner, tag: key.tag, addr: narrow(key.addr) }
    }
}

/// The last `A` words of an address: the whole IPv6 address, or the end of the IPv4-mapped form.
#[inline]
pub(super) fn narrow<const A: usize>(addr: Addr) -> [u32; A] {
    let (words, _) = addr.bytes().as_chunks::<4>();
    std::array::from_fn(|n| u32::from_le_bytes(words[4 - A + n]))
}

/// Undoes [`narrow`].
#[inline]
pub(super) fn addr_of<const A: usize>(words: [u32; A]) -> Addr {
    let mut bytes = [0; 16];
    let (chunks, _) = bytes.as_chunks_mut::<4>();
    for (chunk, word) in chunks.iter_mut().zip(widen(words)) {
        *chunk = word.to_le_bytes();
    }
    Addr::v6(bytes)
}

#[inline]
fn widen<const A: usize>(words: [u32; A]) -> [u32; 4] {
    // The IPv4-mapped prefix ::ffff:0:0/96, whose end is overwritten by the given words.
    let mut wide = [0, 0, 0xffff_0000, 0];
    wide[4 - A..].copy_from_slice(&words);
    wide
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: Addr = Addr::v4([198, 51, 100, 7]);
    const V6: Addr = Addr::v6([0x20, 1, 0xd, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);

    #[test]
    fn a_key_from_a_packet_and_from_a_table_have_the_same_hash() {
        let hasher = FlowHasher::new(7);
        let v4 = FlowKey::flow(ServiceId::new(5, 1), V4, 4711);
        assert_eq!(hasher.hash(&v4), hasher.hash_packed(&PackedKey::<1>::from(&v4)));
        let v6 = FlowKey::reply(EndpointId::new(5, 1), V6, 4711);
        assert_eq!(hasher.hash(&v6), hasher.hash_packed(&PackedKey::<4>::from(&v6)));
        assert_eq!(addr_of(narrow::<1>(V4)), V4);
        assert_eq!(addr_of(narrow::<4>(V6)), V6);
    }

    #[test]
    fn keys_of_flows_affinity_and_replies_differ_and_so_do_their_hashes() {
        let hasher = FlowHasher::new(7);
        let service = ServiceId::new(5, 0);
        let keys = [
            FlowKey::flow(service, V4, 0),
            FlowKey::affinity(service, V4),
            FlowKey::reply(EndpointId::new(5, 0), V4, 1),
            FlowKey::flow(service, V4, 1),
            FlowKey::flow(ServiceId::new(5, 1), V4, 1),
        ];
        for (n, a) in keys.iter().enumerate() {
            for b in &keys[..n] {
                assert_ne!(a, b);
                assert_ne!(hasher.hash(a), hasher.hash(b));
            }
        }
    }

    #[test]
    fn another_seed_gives_other_hashes() {
        let key = FlowKey::flow(ServiceId::new(1, 0), V4, 1);
        assert_ne!(FlowHasher::new(1).hash(&key), FlowHasher::new(2).hash(&key));
    }
}
