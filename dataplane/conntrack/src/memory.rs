//! The memory of flow tables: the heap, or memory from the caller, such as huge pages or a file that outlives the
//! process.
//!
//! A table requests its arrays by [`Part`] when it is constructed.
//!
//! Invariant: provided memory has the requested length, is zeroed, and is aligned to a cache line.

use std::fmt;
use std::ops::{Deref, DerefMut};

tidegate_wire::named! {
    /// One of the four tables of a worker's flows.
    #[derive(Hash)]
    pub enum TableKind {
        /// DSR flows and affinity, IPv4.
        DsrV4 => "dsr-v4",
        /// DSR flows and affinity, IPv6.
        DsrV6 => "dsr-v6",
        /// `nat` and `fullnat`, IPv4.
        NatV4 => "nat-v4",
        /// `nat` and `fullnat`, IPv6.
        NatV6 => "nat-v6",
    }
}

tidegate_wire::named! {
    /// An array of a table.
    #[derive(Hash)]
    pub enum Part {
        /// The entries.
        Entries => "entries",
        /// The TCP streams of entries (PROXY protocol).
        Streams => "streams",
        /// The splices of entries (SYN cookies).
        Splices => "splices",
    }
}

/// The arrays of a table of this process or of an earlier one.
#[derive(Debug, Clone, Copy, Default)]
pub struct StoredTable<'a> {
    /// The entries.
    pub entries: &'a [u32],
    /// The streams of the entries, or nothing.
    pub streams: &'a [u32],
    /// The splices of the entries, or nothing.
    pub splices: &'a [u32],
}

/// Provides the memory of a table's arrays.
pub trait TableMemory {
    /// Zeroed memory of `words` words of four bytes, aligned to a pair of cache lines (128 bytes); `None` for the heap.
    fn provide(&mut self, table: TableKind, part: Part, words: usize) -> Option<&'static mut [u32]>;
}

/// The heap, whose pages the kernel allocates on first use.
#[derive(Debug, Clone, Copy, Default)]
pub struct HeapMemory;

impl TableMemory for HeapMemory {
    fn provide(&mut self, _: TableKind, _: Part, _: usize) -> Option<&'static mut [u32]> {
        None
    }
}

/// The words of an array.
pub(super) enum Words {
    Heap(Box<[u32]>),
    Provided(&'static mut [u32]),
}

impl Words {
    /// An array of `len` words, with `slack` words more if it is on the heap.
    ///
    /// # Panics
    /// If the provided memory is not as [`TableMemory::provide`] requires.
    pub(super) fn new(provided: Option<&'static mut [u32]>, len: usize, slack: usize) -> Self {
        match provided {
            None => Self::Heap(vec![0; len + slack].into_boxed_slice()),
            Some(words) => {
                assert_eq!(words.len(), len, "provided memory has the requested length");
                assert!(
                    words.as_ptr().addr().is_multiple_of(128),
                    "provided memory is aligned to cache lines"
                );
                Self::Provided(words)
            }
        }
    }
}

// Both variants have their pointer and length at the same offset, so a dereference doesn't branch.
impl Deref for Words {
    type Target = [u32];

    #[inline(always)]
    fn deref(&self) -> &[u32] {
        match self {
            Self::Heap(words) => words,
            Self::Provided(words) => words,
        }
    }
}

impl DerefMut for Words {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u32] {
        match self {
            Self::Heap(words) => words,
            Self::Provided(words) => words,
        }
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let location = match self {
            Self::Heap(_) => "heap",
            Self::Provided(_) => "provided",
        };
        write!(f, "{} words ({location})", self.len())
    }
}
