//! Compact ids of services, backends and endpoints, for flow entries and counters.
//!
//! An id is an index into a snapshot's tables plus a generation. If an index is reused for another object, the
//! generation differs, so a flow entry with the old id matches nothing. An object keeps its id from snapshot to
//! snapshot.
//!
//! Invariant: within one snapshot, ids and objects correspond one to one.

/// The number of bits of the index.
const INDEX_BITS: u32 = 22;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(u32);

        impl $name {
            /// Creates an id from an index (below 2^22) and a generation (only its low 10 bits are used).
            ///
            /// # Panics
            /// If the index is too large. Snapshot compilation checks its limits first.
            #[must_use]
            pub fn new(index: usize, generation: u32) -> Self {
                let index = u32::try_from(index).expect("an index within the limits of a snapshot");
                assert!(index <= INDEX_MASK, "an index within the limits of a snapshot");
                Self((generation << INDEX_BITS) | index)
            }

            /// Position in the snapshot's table.
            #[inline]
            #[must_use]
            pub fn index(self) -> usize {
                (self.0 & INDEX_MASK) as usize
            }

            /// How often the index was assigned before, modulo 2^10.
            #[must_use]
            pub fn generation(self) -> u32 {
                self.0 >> INDEX_BITS
            }

            /// The whole id as stored in a flow entry.
            #[inline]
            #[must_use]
            pub fn raw(self) -> u32 {
                self.0
            }

            /// The id from a flow entry. Look-ups in the snapshot detect stale ids.
            #[inline]
            #[must_use]
            pub fn from_raw(raw: u32) -> Self {
                Self(raw)
            }
        }
    };
}

id! {
    /// A service port on one VIP: (VIP, protocol, port).
    ServiceId
}
id! {
    /// A backend of one service port. The same endpoint behind two service ports is two backends.
    BackendId
}

impl BackendId {
    /// The id of a backend that is not in the snapshot: its index is above every limit.
    pub const ABSENT: Self = Self(u32::MAX);
}

id! {
    /// (address, port, protocol) of an endpoint, shared by all services that use it. It identifies replies.
    EndpointId
}

/// Position of an interface in the snapshot.
pub type InterfaceIndex = u8;

/// Position of a worker among the workers of the gateway.
pub type WorkerIndex = u8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_index_has_another_id() {
        let first = ServiceId::new(7, 0);
        let second = ServiceId::new(7, 1);
        assert_eq!(first.index(), second.index());
        assert_ne!(first, second);
        assert_eq!(ServiceId::from_raw(second.raw()), second);
        assert_eq!(second.generation(), 1);
    }

    #[test]
    fn generations_wrap_without_touching_the_index() {
        let id = BackendId::new(5, 1 << 10);
        assert_eq!((id.index(), id.generation()), (5, 0));
    }
}
