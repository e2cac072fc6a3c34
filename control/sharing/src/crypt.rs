//! Sealing and opening datagrams: ChaCha20-Poly1305 (RFC 8439) with keys from HKDF-SHA256 (RFC 5869), both from `ring`.
//!
//! The shared key is used only to derive other keys. Each handshake message has its own key, derived with its random
//! salt. A session has one key per direction, derived from the challenges and epochs of both sides; the nonce is the
//! number of the datagram.
//!
//! Invariant: no key seals two different datagrams with the same nonce.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use ring::rand::{SecureRandom, SystemRandom};

/// The bytes that sealing adds.
pub const TAG: usize = 16;

/// A random 128-bit number: an epoch, a challenge or a salt.
pub type Random = [u8; 16];

/// A source of random numbers.
pub trait Entropy: Send {
    /// A number that was never returned before and that nobody can predict.
    fn random(&mut self) -> Random;
}

/// The random numbers of the operating system.
#[derive(Debug)]
pub struct SystemEntropy(SystemRandom);

impl SystemEntropy {
    /// The generator of the operating system.
    #[must_use]
    pub fn new() -> Self {
        Self(SystemRandom::new())
    }
}

impl Default for SystemEntropy {
    fn default() -> Self {
        Self::new()
    }
}

impl Entropy for SystemEntropy {
    fn random(&mut self) -> Random {
        let mut random = Random::default();
        // getrandom(2) fails only on systems that don't have it.
        self.0.fill(&mut random).expect("the system has random numbers");
        random
    }
}

/// The secret shared by all gateways of a fleet.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedKey([u8; 32]);

impl std::fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedKey")
    }
}

impl SharedKey {
    /// A key from its 32 bytes.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// A key from 64 hexadecimal digits; `None` if the text is anything else.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits: Vec<u8> =
            text.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect::<Option<_>>()?;
        let (pairs, []) = digits.as_chunks::<2>() else { return None };
        let bytes: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
        bytes.try_into().ok().map(Self)
    }

    /// A short text with which operators check that two gateways have the same key. It doesn't reveal the key.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let mut out = [0; 8];
        self.expand(&[], &[b"fingerprint"], &mut out);
        out.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The sealer of the handshake message with this salt.
    pub(crate) fn of_hello(&self, salt: &Random) -> Sealer {
        self.sealer(salt, &[b"hello"])
    }

    /// The id of a session and the sealers of both directions. Each side passes its own epoch, challenge and key first,
    /// and seals with its own key.
    pub(crate) fn of_session(
        (own, own_key): (&Side, &Self),
        (peer, peer_key): (&Side, &Self),
    ) -> SessionKeys {
        let (low, high, key) = if own < peer { (own, peer, own_key) } else { (peer, own, peer_key) };
        let salt = [low.epoch, low.challenge, high.epoch, high.challenge].concat();
        let mut id = [0; 8];
        key.expand(&salt, &[b"session"], &mut id);
        let from = |side: &Side, key: &Self| key.sealer(&salt, &[b"from", &side.epoch, &side.challenge]);
        SessionKeys { id: u64::from_be_bytes(id), seal: from(own, own_key), open: from(peer, peer_key) }
    }

    fn sealer(&self, salt: &[u8], purpose: &[&[u8]]) -> Sealer {
        let mut key = [0; 32];
        self.expand(salt, purpose, &mut key);
        let key = UnboundKey::new(&CHACHA20_POLY1305, &key).expect("the algorithm has keys of 32 bytes");
        Sealer(LessSafeKey::new(key))
    }

    fn expand(&self, salt: &[u8], purpose: &[&[u8]], out: &mut [u8]) {
        let mut info: Vec<&[u8]> = vec![b"tidegate flow sharing 1 "];
        info.extend(purpose);
        let extracted = Salt::new(HKDF_SHA256, salt).extract(&self.0);
        let expanded =
            extracted.expand(&info, Length(out.len())).expect("fewer bytes than HKDF can expand to");
        expanded.fill(out).expect("as many bytes as were requested");
    }
}

/// The keys of a gateway. With two keys, you can change the key of a fleet one gateway at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    /// The key that this gateway seals with.
    pub own: SharedKey,
    /// A second key that peers may seal with.
    pub accepted: Option<SharedKey>,
}

impl Keys {
    /// All keys, starting with our own.
    pub(crate) fn each(&self) -> impl Iterator<Item = &SharedKey> {
        [&self.own].into_iter().chain(&self.accepted)
    }
}

/// The length of expanded key material.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// What one side contributes to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Side {
    /// Chosen when the gateway starts.
    pub(crate) epoch: Random,
    /// Chosen for this session.
    pub(crate) challenge: Random,
}

/// The keys of a session from the point of view of one side.
pub(crate) struct SessionKeys {
    pub(crate) id: u64,
    pub(crate) seal: Sealer,
    pub(crate) open: Sealer,
}

/// Seals and opens datagrams with one key.
pub(crate) struct Sealer(LessSafeKey);

impl Sealer {
    /// Encrypts `datagram` from offset `header`, and appends the tag, which also covers the header.
    pub(crate) fn seal(&self, number: u64, datagram: &mut Vec<u8>, header: usize) {
        let (head, body) = datagram.split_at_mut(header);
        let tag = self.0.seal_in_place_separate_tag(nonce(number), Aad::from(head), body);
        datagram.extend_from_slice(tag.expect("a datagram is shorter than the algorithm's limit").as_ref());
    }

    /// Decrypts `datagram` from offset `header`; `None` if it was not sealed with this key and number.
    pub(crate) fn open<'d>(
        &self,
        number: u64,
        datagram: &'d mut [u8],
        header: usize,
    ) -> Option<&'d mut [u8]> {
        let (head, body) = datagram.split_at_mut_checked(header)?;
        self.0.open_in_place(nonce(number), Aad::from(&*head), body).ok()
    }
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(n: u8) -> Side {
        Side { epoch: [n; 16], challenge: [n + 1; 16] }
    }

    #[test]
    fn only_the_other_side_can_open_what_one_side_seals() {
        let (key, other) = (SharedKey::new([7; 32]), SharedKey::new([8; 32]));
        let session =
            |key: &SharedKey, own, peer| SharedKey::of_session((&side(own), key), (&side(peer), key));
        let (a, b) = (session(&key, 1, 5), session(&key, 5, 1));
        assert_eq!(a.id, b.id);
        let mut datagram = b"head body".to_vec();
        a.seal.seal(3, &mut datagram, 4);
        assert_eq!(b.open.open(3, &mut datagram.clone(), 4).as_deref(), Some(&b" body"[..]));
        assert_eq!(b.open.open(4, &mut datagram.clone(), 4), None, "another number");
        assert_eq!(a.open.open(3, &mut datagram.clone(), 4), None, "a reflected datagram");
        assert_eq!(session(&key, 5, 2).open.open(3, &mut datagram.clone(), 4), None);
        assert_eq!(session(&other, 5, 1).open.open(3, &mut datagram.clone(), 4), None);
        for at in 0..datagram.len() {
            let mut changed = datagram.clone();
            changed[at] ^= 1;
            assert_eq!(b.open.open(3, &mut changed, 4), None, "byte {at}");
        }
        assert_eq!(b.open.open(3, &mut [], 4), None);
    }

    #[test]
    fn keys_are_64_digits_and_have_different_fingerprints() {
        let key = SharedKey::from_hex(&"0f".repeat(32)).unwrap();
        assert_eq!(key, SharedKey::new([15; 32]));
        for text in ["", "0f", &"0".repeat(63), &"0".repeat(65), &"x".repeat(64), &"0".repeat(128)] {
            assert_eq!(SharedKey::from_hex(text), None, "{text}");
        }
        assert_eq!(key.fingerprint().len(), 16);
        assert_ne!(key.fingerprint(), SharedKey::new([16; 32]).fingerprint());
        assert_eq!(format!("{key:?}"), "SharedKey");
    }
}
