//! FNV-1a with 64 bits (Fowler, Noll, Vo; draft-eastlake-fnv): a hash that is the same in every gateway, version and
//! run.
//!
//! Implemented here because it is one line, and the `fnv` crate hashes neither iterators nor parts across calls.
//!
//! It is used for checksums of our own files, and for names and positions on which gateways must agree. It is not
//! collision-resistant: an attacker who can choose the input can create collisions.

/// The hash of no bytes: the offset basis.
pub const START: u64 = 0xcbf2_9ce4_8422_2325;

/// Continues a hash with more bytes. Hashing parts one after another equals hashing the whole.
pub fn fnv1a(so_far: u64, bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(so_far, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the test vectors of the draft.
    #[test]
    fn known_values() {
        assert_eq!(fnv1a(START, *b""), START);
        assert_eq!(fnv1a(START, *b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(START, *b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(fnv1a(fnv1a(START, *b"foo"), *b"bar"), 0x8594_4171_f739_67e8);
    }
}
