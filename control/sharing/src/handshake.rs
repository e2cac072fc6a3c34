//! Handshake messages, in which gateways prove to each other that they currently have the key.
//!
//! Each message carries the sender's epoch, a random challenge, and the peer's challenge that it responds to, if any. A
//! message that repeats our current challenge was created after we chose it, so it can't be a replay.
//!
//! The format never changes, so that gateways with any two protocol versions can exchange which versions they support.
//!
//! Invariant: this module makes no decisions; `hub` compares challenges.

use crate::crypt::{Keys, Random, SharedKey};
use crate::limits::NAME_MAX;
use crate::message::take;

/// The first bytes of every datagram.
pub(crate) const MAGIC: [u8; 4] = *b"tgfs";
/// The kind of a handshake message, after the magic.
pub(crate) const HELLO: u8 = 1;
/// Bytes before the sealed part: magic, kind, format, two zeros, salt.
const HEADER: usize = 24;
/// The version of the message format.
const FORMAT: u8 = 1;

/// The content of a handshake message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The oldest and the newest protocol version that the sender supports.
    pub(crate) versions: (u8, u8),
    pub(crate) epoch: Random,
    /// The challenge that a response must repeat.
    pub(crate) challenge: Random,
    /// The receiver's challenge that this message repeats; zeros if none.
    pub(crate) echo: Random,
    /// The sender's name, for display.
    pub(crate) name: String,
}

impl Hello {
    /// Returns the datagram. `salt` must not be used for another datagram.
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

    /// Opens a datagram that starts like a handshake message. Returns its content and its key; `None` if no key opens
    /// it.
    pub(crate) fn open_with<'k>(keys: &'k Keys, datagram: &[u8]) -> Option<(Self, &'k SharedKey)> {
        // A failed attempt overwrites the datagram, so each key gets a copy.
        keys.each().find_map(|key| Some((Self::open(key, &mut datagram.to_vec())?, key)))
    }

    /// Opens a datagram that starts like a handshake message; `None` if this key doesn't open it.
    pub(crate) fn open(key: &SharedKey, datagram: &mut [u8]) -> Option<Self> {
        let salt: Random = *datagram.get(8..HEADER)?.first_chunk()?;
        if datagram[5..8] != [FORMAT, 0, 0] {
            return None;
        }
        let mut body = &*key.of_hello(&salt).open(0, datagram, HEADER)?;
        let [oldest, newest] = take(&mut body)?;
        let (epoch, challenge, echo) = (take(&mut body)?, take(&mut body)?, take(&mut body)?);
        let name = std::str::from_utf8(body).ok().filter(|name| name.len() <= NAME_MAX)?;
        // The name is displayed and logged.
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
        fn a_handshake_message_opens_with_its_key_only(
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
