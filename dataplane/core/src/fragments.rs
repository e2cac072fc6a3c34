//! Where the fragments of a packet go: as its first fragment, which alone has the ports.
//!
//! A small direct-mapped table from (source, destination, protocol, identification) to the decision made for
//! the first fragment. Newer packets push out older ones of the same slot, and entries end after
//! [`LIFETIME`], the reassembly timeout that RFC 791 suggests halved: hosts that wait longer are rare, and
//! identifications come back. Fragments that arrive before their first one are dropped as `fragment_unknown`.
//!
//! Invariant: bounded by [`FRAGMENTS_MAX`](crate::limits::FRAGMENTS_MAX), allocated once.

use std::time::Duration;

use crate::ids::{BackendId, ServiceId, WorkerIndex};
use crate::limits::FRAGMENTS_MAX;
use crate::now::Now;
use crate::wire::rewrite::Endpoint;
use crate::wire::{Addr, Headers};

/// How long a decision is remembered.
pub const LIFETIME: Duration = Duration::from_secs(15);

/// What was decided for the first fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// To a backend; with `local` as the source where the mode is `fullnat`.
    ToBackend {
        /// Service port.
        service: ServiceId,
        /// Backend.
        backend: BackendId,
        /// SNAT address and port.
        local: Option<Endpoint>,
    },
    /// From a backend to its client, in the name of the VIP.
    ToClient {
        /// Service port.
        service: ServiceId,
        /// Client.
        client: Endpoint,
    },
    /// To the worker that holds the flow, which has seen the first fragment.
    Elsewhere(WorkerIndex),
}

/// What the fragments of one packet have in common (RFC 791 section 3.2, RFC 8200 section 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    src: Addr,
    dst: Addr,
    id: u32,
    proto: u8,
}

impl Key {
    fn of(h: &Headers, id: u32) -> Self {
        Self { src: h.src, dst: h.dst, id, proto: h.proto }
    }

    fn slot(&self) -> usize {
        let half = |addr: &Addr| {
            let (high, low) = addr.bytes().split_at(8);
            let word = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("8 of 16 bytes"));
            word(high).rotate_left(29) ^ word(low)
        };
        let mixed = half(&self.src)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(half(&self.dst))
            .wrapping_mul(0xd6e8_feb8_6659_fd93)
            .wrapping_add(u64::from(self.id) << 8 | u64::from(self.proto))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 40) as usize & (FRAGMENTS_MAX - 1)
    }
}

const _: () = assert!(FRAGMENTS_MAX.is_power_of_two());

/// Decisions for packets in fragments.
#[derive(Debug)]
pub struct Fragments {
    slots: Box<[Option<(Key, Decision, Now)>]>,
}

impl Default for Fragments {
    fn default() -> Self {
        Self { slots: vec![None; FRAGMENTS_MAX].into_boxed_slice() }
    }
}

impl Fragments {
    /// Remembers what was decided for a first fragment with this identification.
    #[cold]
    pub fn remember(&mut self, h: &Headers, id: u32, decision: Decision, now: Now) {
        let key = Key::of(h, id);
        self.slots[key.slot()] = Some((key, decision, now));
    }

    /// What was decided for the first fragment of the packet that this later one belongs to.
    #[cold]
    #[must_use]
    pub fn recall(&self, h: &Headers, id: u32, now: Now) -> Option<Decision> {
        let key = Key::of(h, id);
        match self.slots[key.slot()] {
            Some((known, decision, when)) if known == key && now.since(when) <= LIFETIME => Some(decision),
            _ => None,
        }
    }
}
