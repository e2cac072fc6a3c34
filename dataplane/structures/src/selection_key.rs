//! The secret by which a fleet of gateways chooses backends, so that clients can't influence the choice.
//!
//! Without a key, the choice of a backend follows from [`selection_hash`] alone, which is public: a client that chooses
//! its ports or addresses chooses its backend, and can send all its load to one. With a key, SipHash-2-4 (Aumasson,
//! Bernstein 2012) hashes the ports and addresses instead, and nobody can predict the result without the key. All
//! gateways of a fleet need the same key, because they must choose alike.
//!
//! Invariant: the hashes never change, with or without a key (golden values in the tests).

use tidegate_wire::Addr;

use crate::hash::{client_hash, mix, selection_hash, words};

/// The key: 128 bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SelectionKey([u64; 2]);

/// Domains separate the uses of the key: flows, clients, the fingerprint, SYN cookies and identifiers of connections.
const FLOW: u64 = 1;
const CLIENT: u64 = 2;
const FINGERPRINT: u64 = 3;
const COOKIE: u64 = 4;
const UNIQUE_ID: u64 = 5;

impl SelectionKey {
    /// The number of digits that [`Self::from_hex`] accepts.
    pub const DIGITS: usize = 32;

    /// Parses 32 hexadecimal digits, as `openssl rand -hex 16` writes them. `None` for anything else.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        if text.len() != Self::DIGITS || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let word = |at| u64::from_str_radix(text.get(at..at + 16)?, 16).ok();
        // The first digits are the first byte, as SipHash reads its key.
        Some(Self([word(0)?.swap_bytes(), word(16)?.swap_bytes()]))
    }

    /// A key derived from the secret of a worker, for hashes that no other worker needs to compute.
    pub fn of_worker(secret: u64) -> Self {
        Self([secret, mix(secret)])
    }

    /// The hash of a SYN cookie's words.
    pub fn cookie_hash(&self, message: &[u64; 6]) -> u64 {
        let [a, b, c, d, e, f] = *message;
        self.hash(&[COOKIE, a, b, c, d, e, f])
    }

    /// The bytes that identify a TCP connection, by its ends and the sequence number of the client's first byte.
    pub fn connection_id(
        &self,
        client: &Addr,
        client_port: u16,
        vip: &Addr,
        port: u16,
        first: u32,
    ) -> [u8; 16] {
        let ((c0, c1), (v0, v1)) = (words(client), words(vip));
        let rest = u64::from(client_port) << 48 | u64::from(port) << 32 | u64::from(first);
        let half = |n: u64| self.hash(&[UNIQUE_ID, n, c0, c1, v0, v1, rest]).to_be_bytes();
        let mut id = [0; 16];
        let (front, back) = id.split_at_mut(8);
        front.copy_from_slice(&half(0));
        back.copy_from_slice(&half(1));
        id
    }

    /// Eight digits that distinguish keys without revealing them.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        format!("{:08x}", self.hash(&[FINGERPRINT]) >> 32)
    }

    /// SipHash-2-4 of whole little-endian words.
    fn hash(&self, message: &[u64]) -> u64 {
        let [k0, k1] = self.0;
        // The constants of the definition: "somepseudorandomlygeneratedbytes".
        let mut v = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        // The last word is the length in bytes, modulo 256, in the highest byte.
        let length = (message.len() as u64 * 8) << 56;
        for &word in message.iter().chain([&length]) {
            v[3] ^= word;
            round(&mut v);
            round(&mut v);
            v[0] ^= word;
        }
        v[2] ^= 0xff;
        (0..4).for_each(|_| round(&mut v));
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }
}

impl std::fmt::Debug for SelectionKey {
    /// The fingerprint: a log or a report must not contain the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SelectionKey({})", self.fingerprint())
    }
}

/// One round of SipHash.
#[inline(always)]
fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

/// The hash by which a flow chooses its backend: of the 5-tuple, ports in host order.
#[inline(always)]
#[must_use]
pub fn flow_selection_hash(
    key: Option<&SelectionKey>,
    src: &Addr,
    src_port: u16,
    dst: &Addr,
    dst_port: u16,
    proto: u8,
) -> u64 {
    match key {
        None => selection_hash(src, src_port, dst, dst_port, proto),
        Some(key) => keyed_flow_selection_hash(key, src, src_port, dst, dst_port, proto),
    }
}

/// [`flow_selection_hash`] with a key. Not inlined, so that the path without a key stays small.
#[inline(never)]
fn keyed_flow_selection_hash(
    key: &SelectionKey,
    src: &Addr,
    src_port: u16,
    dst: &Addr,
    dst_port: u16,
    proto: u8,
) -> u64 {
    let (s0, s1) = words(src);
    let (d0, d1) = words(dst);
    let ports = u64::from(src_port) << 32 | u64::from(dst_port) << 16 | u64::from(proto);
    key.hash(&[FLOW, s0, s1, d0, d1, ports])
}

/// The hash by which a client with `sessionAffinity: ClientIP` chooses its backend.
#[inline]
#[must_use]
pub fn client_selection_hash(key: Option<&SelectionKey>, src: &Addr) -> u64 {
    match key {
        None => client_hash(src),
        Some(key) => {
            let (s0, s1) = words(src);
            key.hash(&[CLIENT, s0, s1])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of the paper's test vectors.
    const PAPER: &str = "000102030405060708090a0b0c0d0e0f";

    fn key(text: &str) -> SelectionKey {
        SelectionKey::from_hex(text).expect("32 digits")
    }

    #[test]
    fn the_function_is_siphash_2_4() {
        // `vectors_sip64` of the reference implementation: messages 00 01 02 ... of 0, 8, 16 and 24 bytes.
        let words = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908, 0x1716_1514_1312_1110];
        for (length, expected) in
            [(0, 0x726f_db47_dd0e_0e31), (1, 0x93f5_f579_9a93_2462), (2, 0x3f2a_cc7f_57c2_9bdb)]
        {
            assert_eq!(key(PAPER).hash(&words[..length]), expected, "{length}");
        }
    }

    #[test]
    fn a_key_changes_all_choices_and_without_one_they_are_public() {
        let (src, dst) = (Addr::v4([198, 51, 100, 7]), Addr::v4([203, 0, 113, 1]));
        assert_eq!(
            flow_selection_hash(None, &src, 40_000, &dst, 80, 6),
            selection_hash(&src, 40_000, &dst, 80, 6)
        );
        assert_eq!(client_selection_hash(None, &src), client_hash(&src));
        let (one, other) = (key(PAPER), key("f00102030405060708090a0b0c0d0e0f"));
        let all = [
            flow_selection_hash(None, &src, 40_000, &dst, 80, 6),
            flow_selection_hash(Some(&one), &src, 40_000, &dst, 80, 6),
            flow_selection_hash(Some(&one), &src, 40_001, &dst, 80, 6),
            flow_selection_hash(Some(&one), &src, 40_000, &dst, 80, 17),
            flow_selection_hash(Some(&other), &src, 40_000, &dst, 80, 6),
            client_selection_hash(Some(&one), &src),
            client_selection_hash(Some(&other), &src),
            client_selection_hash(None, &src),
        ];
        assert_eq!(all.iter().collect::<std::collections::HashSet<_>>().len(), all.len());
    }

    #[test]
    fn a_key_is_32_digits_and_is_never_shown() {
        for wrong in
            ["", "00", &PAPER[..31], &format!("{PAPER}0"), &PAPER.replace('0', "g"), &"\u{e9}".repeat(16)]
        {
            assert_eq!(SelectionKey::from_hex(wrong), None, "{wrong}");
        }
        assert_eq!(key(PAPER), key(&PAPER.to_uppercase()));
        let shown = format!("{:?}", key(PAPER));
        assert_eq!(shown, format!("SelectionKey({})", key(PAPER).fingerprint()));
        assert!(!shown.contains("0001020") && key(PAPER).fingerprint().len() == 8);
        assert_ne!(key(PAPER).fingerprint(), key("f00102030405060708090a0b0c0d0e0f").fingerprint());
    }
}
