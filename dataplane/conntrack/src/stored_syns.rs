//! The latest SYNs of a worker, so that it can offer a refused connection to another backend.
//!
//! A SYN is stored as it was received, in the set that the hash of its flow selects, and overwrites the oldest SYN of
//! the set. A backend normally answers long before its SYN is overwritten. A lost SYN costs only time, because its
//! client repeats it.
//!
//! Invariant: fixed memory, and nothing is allocated after construction.

use arrayvec::ArrayVec;
use tidegate_spec::ids::{BackendId, InterfaceIndex};
use tidegate_spec::limits::{RETRIES_MAX, STORED_SYN_LEN, STORED_SYNS};

use super::key::{FlowHash, FlowKey};

/// The backends that a connection was offered to.
pub type Tried = ArrayVec<BackendId, { RETRIES_MAX as usize + 1 }>;

/// See [the module](self).
#[derive(Debug)]
pub struct StoredSyns {
    bytes: Box<[[u8; STORED_SYN_LEN]]>,
    notes: Box<[Option<StoredSyn>]>,
    /// The index in each set that is overwritten next.
    next: Box<[u8]>,
}

/// The metadata of a stored SYN.
#[derive(Debug, Clone)]
pub struct StoredSyn {
    flow: FlowKey,
    /// Its sequence number.
    pub sequence: u32,
    /// The interface that received it.
    pub interface: InterfaceIndex,
    /// The backends that it was sent to.
    pub tried: Tried,
    len: u8,
}

/// SYNs in a set.
const SYNS_PER_SET: usize = 4;
const SETS: usize = STORED_SYNS / SYNS_PER_SET;

const _: () = assert!(STORED_SYN_LEN <= u8::MAX as usize && STORED_SYNS.is_multiple_of(SYNS_PER_SET));

fn set_of(hash: FlowHash) -> usize {
    hash.0 as usize % SETS
}

impl Default for StoredSyns {
    fn default() -> Self {
        Self {
            // The system zeroes the memory, so a worker that stores no SYN uses none of it.
            bytes: vec![[0; STORED_SYN_LEN]; STORED_SYNS].into_boxed_slice(),
            notes: vec![None; STORED_SYNS].into_boxed_slice(),
            next: vec![0; SETS].into_boxed_slice(),
        }
    }
}

impl StoredSyn {
    /// The SYN that begins a flow, and that was sent to this backend.
    #[must_use]
    pub fn new(flow: FlowKey, sequence: u32, interface: InterfaceIndex, backend: BackendId) -> Self {
        Self { flow, sequence, interface, tried: [backend].into_iter().collect(), len: 0 }
    }
}

impl StoredSyns {
    /// Stores a SYN, unless its frame is too long. `hash` is the hash of its flow.
    pub fn keep(&mut self, hash: FlowHash, syn: StoredSyn, frame: &[u8]) {
        let (Some(next), Ok(len)) = (self.next.get_mut(set_of(hash)), u8::try_from(frame.len())) else {
            return;
        };
        let at = set_of(hash) * SYNS_PER_SET + usize::from(*next);
        let (Some(bytes), Some(note)) = (self.bytes.get_mut(at), self.notes.get_mut(at)) else { return };
        if let Some(copy) = bytes.get_mut(..frame.len()) {
            copy.copy_from_slice(frame);
            *note = Some(StoredSyn { len, ..syn });
            // The oldest of the set is overwritten next.
            *next = (*next + 1) % SYNS_PER_SET as u8;
        }
    }

    /// Records that the SYN of a flow is sent to one more backend. Returns whether this SYN is stored.
    pub fn sent_again(&mut self, flow: &FlowKey, hash: FlowHash, sequence: u32, backend: BackendId) -> bool {
        let Some(at) = self.index_of(flow, hash) else { return false };
        match self.notes.get_mut(at) {
            Some(Some(note)) if note.sequence == sequence => {
                // A client may repeat its SYN more often than there are retries.
                let _ = note.tried.try_push(backend);
                true
            }
            _ => false,
        }
    }

    /// The SYN of a flow, with its bytes, if it is still stored.
    #[must_use]
    pub fn get(&self, flow: &FlowKey, hash: FlowHash) -> Option<(&StoredSyn, &[u8])> {
        let at = self.index_of(flow, hash)?;
        let note = self.notes.get(at)?.as_ref()?;
        Some((note, self.bytes.get(at)?.get(..usize::from(note.len))?))
    }

    /// The index of a flow's latest SYN.
    fn index_of(&self, flow: &FlowKey, hash: FlowHash) -> Option<usize> {
        let (set, next) = (set_of(hash), usize::from(*self.next.get(set_of(hash))?));
        // From the latest to the oldest.
        let indices =
            (1..=SYNS_PER_SET).map(|age| set * SYNS_PER_SET + (next + SYNS_PER_SET - age) % SYNS_PER_SET);
        indices.into_iter().find(|&at| {
            self.notes.get(at).is_some_and(|note| note.as_ref().is_some_and(|note| note.flow == *flow))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::FlowHasher;
    use super::*;
    use tidegate_spec::ids::ServiceId;
    use tidegate_wire::Addr;

    fn flow(n: usize) -> (FlowKey, FlowHash) {
        let key = FlowKey::flow(ServiceId::new(n / 60_000, 0), Addr::v4([10, 0, 0, 1]), (n % 60_000) as u16);
        (key, FlowHasher::new(7).hash(&key))
    }

    fn backend(n: usize) -> BackendId {
        BackendId::new(n, 0)
    }

    #[test]
    fn a_syn_is_found_with_its_bytes_and_the_backends_that_it_was_sent_to() {
        let mut syns = StoredSyns::default();
        let (key, hash) = flow(1);
        assert!(syns.get(&key, hash).is_none());
        syns.keep(hash, StoredSyn::new(key, 5, 2, backend(1)), b"a syn");
        assert!(!syns.sent_again(&key, hash, 6, backend(2)), "it is another SYN");
        assert!((2..9).all(|n| syns.sent_again(&key, hash, 5, backend(n))));
        let (syn, bytes) = syns.get(&key, hash).expect("it is stored");
        assert_eq!((syn.sequence, syn.interface, bytes), (5, 2, &b"a syn"[..]));
        assert_eq!(syn.tried[..], [1, 2, 3, 4].map(backend), "the list is full");
        syns.keep(hash, StoredSyn::new(key, 6, 0, backend(3)), b"later");
        assert_eq!(syns.get(&key, hash).map(|(syn, _)| syn.sequence), Some(6));
    }

    #[test]
    fn a_frame_that_is_too_long_is_not_stored() {
        let mut syns = StoredSyns::default();
        let (key, hash) = flow(1);
        for len in [STORED_SYN_LEN + 1, 300] {
            syns.keep(hash, StoredSyn::new(key, 5, 2, backend(1)), &vec![0; len]);
            assert!(syns.get(&key, hash).is_none());
        }
        syns.keep(hash, StoredSyn::new(key, 5, 2, backend(1)), &[0; STORED_SYN_LEN]);
        assert!(syns.get(&key, hash).is_some());
    }

    #[test]
    fn nearly_all_of_the_latest_hundred_syns_are_stored() {
        let mut syns = StoredSyns::default();
        for n in 0..10_000 {
            let (key, hash) = flow(n);
            syns.keep(hash, StoredSyn::new(key, n as u32, 0, backend(n)), b"syn");
        }
        let kept = |n| {
            let (key, hash) = flow(n);
            syns.get(&key, hash).is_some_and(|(syn, _)| syn.sequence == n as u32)
        };
        assert!((9_900..10_000).filter(|&n| kept(n)).count() >= 99);
        assert_eq!((0..2_000).filter(|&n| kept(n)).count(), 0);
    }
}
