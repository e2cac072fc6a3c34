//! Handshake messages: how a gateway proves that it has the key now.
//!
//! Each message carries the sender's epoch, a random challenge, and the challenge of the peer that it answers, if any. A
//! message that answers our present challenge was made after we chose that challenge, so it is no copy of an old one.
//!
//! This format is the same in every version of the protocol, so that gateways of any two versions can tell each other which
//! versions they speak.
//!
//! Invariant: nothing is decided here; `hub` compares challenges.

use crate::crypt::{Keys, Random, SharedKey};
use crate::limits::NAME_MAX;
use crate::message::take;

/// The first bytes of every datagram.
pub(crate) const MAGIC: [u8; 4] = *b"tgfs";
/// The kind of a handshake message, after the magic.
pub(crate) const HELLO: u8 = 1;
/// Bytes before the sealed part: magic, kind, format, two zeros, salt.
const HEADER: usize = 24;
/// The format of the message.
const FORMAT: u8 = 1;

/// The content of a handshake message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The oldest and the newest version of the protocol that the sender speaks.
    pub(crate) versions: (u8, u8),
    pub(crate) epoch: Random,
    /// What an answer has to repeat.
    pub(crate) challenge: Random,
    /// The challenge of the receiver that this message answers; zeros if none.
    pub(crate) echo: Random,
    /// The sender's name, for people.
    pub(crate) name: String,
}

impl Hello {
    /// The datagram. `salt` must be used for no other one.
    pub(crate) fn seal(&self, key: &SharedKey, salt: &Random) -> Vec<u8> {
        let mut datagram = Vec::with_capacity(128);
        datagram.extend(MAGIC);
        datagram.extend([HELLO, FORMAT, 0, 0]);
        datagram.extend(salt);
        datagram.extend([self.versions.0, self.versions.1]);
        datagram.extend(self.epoch);
        datagram.extend(self.challenge);
        datagram.extend(self.echo);
        let name = self.name.as_bytes();
        datagram.extend(&name[..name.len().min(NAME_MAX)]);
        key.of_hello(salt).seal(0, &mut datagram, HEADER);
        datagram
    }

    /// The content of a datagram that begins like a handshake message, and its key; `None` if it was made with none of these.
    pub(crate) fn open_with<'k>(keys: &'k Keys, datagram: &[u8]) -> Option<(Self, &'k SharedKey)> {
        // A failure leaves anything in its copy.
        keys.each().find_map(|key| Some((Self::open(key, &mut datagram.to_vec())?, key)))
    }

    /// The content of a datagram that begins like a handshake message; `None` if it was not made with this key.
    pub(crate) fn open(key: &SharedKey, datagram: &mut [u8]) -> Option<Self> {
        let salt: Random = *datagram.get(8..HEADER)?.first_chunk()?;
        if datagram[5..8] != [FORMAT, 0, 0] {
            return None;
        }
        let mut body = &*key.of_hello(&salt).open(0, datagram, HEADER)?;
        let [oldest, newest] = take(&mut body)?;
        let (epoch, challenge, echo) = (take(&mut body)?, take(&mut body)?, take(&mut body)?);
        let name = std::str::from_utf8(body).ok().filter(|name| name.len() <= NAME_MAX)?;
        // The name is shown to people and written to logs.
        let name = name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        Some(Self { versions: (oldest, newest), epoch, challenge, echo, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_handshake_message_is_read_with_the_key_only(
            versions: (u8, u8), epoch: Random, challenge: Random, echo: Random, salt: Random, name in "[a-z0-9.-]{0,253}",
            at: prop::sample::Index,
        ) {
            let hello = Hello { versions, epoch, challenge, echo, name };
            let key = SharedKey::new([7; 32]);
            let datagram = hello.seal(&key, &salt);
            prop_assert_eq!(Hello::open(&key, &mut datagram.clone()), Some(hello));
            prop_assert_eq!(Hello::open(&SharedKey::new([8; 32]), &mut datagram.clone()), None);
            let mut changed = datagram.clone();
            changed[5 + at.index(datagram.len() - 5)] ^= 1;
            prop_assert_eq!(Hello::open(&key, &mut changed), None);
            let length = at.index(datagram.len());
            prop_assert_eq!(Hello::open(&key, &mut datagram[..length].to_vec()), None);
        }
    }
}
