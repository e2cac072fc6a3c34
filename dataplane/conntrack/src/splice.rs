//! A TCP connection whose handshake the gateway answered with a SYN cookie before the flow existed: the sequence
//! numbers sent to the client and those of the backend.
//!
//! A splice begins with the client's segment that returns the cookie, and then waits for the backend. The backend's SYN
//! ACK joins both sides: after that, the backend's sequence numbers differ by a constant from those that the client
//! knows. Windows are not scaled, so nothing else differs.
//!
//! Invariant: the cookie of a splice never changes.

/// The two sides of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Splice {
    /// The server's initial sequence number as the client knows it.
    pub cookie: u32,
    /// The client's initial sequence number.
    pub isn: u32,
    /// The client's window when it returned the cookie.
    pub window: u16,
    /// The backend's initial sequence number, once it has answered.
    pub backend: Option<u32>,
}

impl Splice {
    /// The splice after the backend has answered with this initial sequence number.
    #[must_use]
    pub fn join(self, backend: u32) -> Self {
        Self { backend: Some(backend), ..self }
    }

    /// Translates a sequence number of the backend for the client.
    #[inline]
    #[must_use]
    pub fn to_client(&self, seq: u32) -> u32 {
        seq.wrapping_add(self.difference())
    }

    /// Translates a sequence number that the client knows for the backend.
    #[inline]
    #[must_use]
    pub fn to_backend(&self, seq: u32) -> u32 {
        seq.wrapping_sub(self.difference())
    }

    fn difference(&self) -> u32 {
        self.backend.map_or(0, |backend| self.cookie.wrapping_sub(backend))
    }

    /// The splice in four words. They are never all zero.
    #[must_use]
    pub fn packed(self) -> [u32; 4] {
        let joined = u32::from(self.backend.is_some()) << 1;
        [u32::from(self.window) << 16 | joined | 1, self.cookie, self.isn, self.backend.unwrap_or(0)]
    }

    /// Reverses [`Self::packed`]; `None` if no splice has these words.
    #[must_use]
    pub fn unpacked([first, cookie, isn, backend]: [u32; 4]) -> Option<Self> {
        let backend = (first & 2 != 0).then_some(backend);
        (first != 0).then_some(Self { cookie, isn, window: (first >> 16) as u16, backend })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_splice_survives_packing(cookie: u32, isn: u32, window: u16, backend: Option<u32>) {
            let splice = Splice { cookie, isn, window, backend };
            prop_assert_eq!(Splice::unpacked(splice.packed()), Some(splice));
        }

        #[test]
        fn translated_numbers_translate_back(cookie: u32, backend: u32, seq: u32) {
            let splice = Splice { cookie, isn: 0, window: 0, backend: None }.join(backend);
            prop_assert_eq!(splice.to_backend(splice.to_client(seq)), seq);
            prop_assert_eq!(splice.to_client(backend), cookie);
        }
    }
}
