//! Holds fragments that arrive before the first one of their datagram, which alone shows their destination. They are
//! held for a short time, because fragments that take different paths through the network arrive in any order.
//!
//! The pipeline leaves such a frame unchanged. A frame that waits here is processed once more when the first fragment
//! was seen; a frame that waits too long gets its original verdict. The worker and `replay` use it.
//!
//! Invariant: bounded in frames, frames of a datagram and time; all memory is reserved at the start. A full room
//! drops its oldest frame: during a flood of fragments without a first one the others wait for a shorter time.

use std::collections::VecDeque;
use std::time::Duration;

use tidegate_core::fragments::FragmentKey;
use tidegate_core::now::Now;

/// The maximum number of frames that one worker holds.
pub const HELD_MAX: usize = 512;
/// The maximum number of frames of one datagram: the largest IPv6 datagram at the smallest MTU has 54 fragments.
pub const HELD_PER_DATAGRAM: usize = 64;
/// The longest time that a frame is held: the delays of paths through one network differ by less.
pub const HOLD_MAX: Duration = Duration::from_millis(100);

/// The held fragments. `W` is a frame and the data that its owner needs to process it again.
#[derive(Debug)]
pub struct FragmentRoom<W> {
    /// In the order of arrival.
    held: VecDeque<Held<W>>,
}

#[derive(Debug)]
struct Held<W> {
    key: FragmentKey,
    until: Now,
    what: W,
}

impl<W> Default for FragmentRoom<W> {
    fn default() -> Self {
        Self { held: VecDeque::with_capacity(HELD_MAX) }
    }
}

impl<W> FragmentRoom<W> {
    /// Whether nothing is held.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Holds a fragment of this datagram. Returns the fragment that is dropped for it, if any: the oldest if the room
    /// is full, or the new one if its datagram already holds the maximum.
    pub fn hold(&mut self, key: FragmentKey, what: W, now: Now) -> Option<W> {
        if self.held.iter().filter(|held| held.key == key).count() >= HELD_PER_DATAGRAM {
            return Some(what);
        }
        let oldest = if self.held.len() == HELD_MAX { self.held.pop_front() } else { None };
        self.held.push_back(Held { key, until: now.plus(HOLD_MAX), what });
        oldest.map(|held| held.what)
    }

    /// Removes the next fragment of a datagram, in the order of arrival.
    pub fn release(&mut self, key: &FragmentKey) -> Option<W> {
        let at = self.held.iter().position(|held| held.key == *key)?;
        self.held.remove(at).map(|held| held.what)
    }

    /// Removes the next fragment whose time is over.
    pub fn expire(&mut self, now: Now) -> Option<W> {
        let over = self.held.front().is_some_and(|held| held.until <= now);
        if over { self.held.pop_front().map(|held| held.what) } else { None }
    }

    /// Removes the oldest fragment.
    pub fn pop(&mut self) -> Option<W> {
        self.held.pop_front().map(|held| held.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::testing::builder::Builder;
    use tidegate_core::wire::{Parsed, parse};

    fn key(id: u32) -> FragmentKey {
        let frame = Builder::udp("198.51.100.7:1", "203.0.113.5:53").payload_len(16).fragment(id, 0, true);
        match parse(&frame.build()) {
            Ok(Parsed::Ip(h)) => FragmentKey::of(&h).expect("a fragment"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn fragments_come_back_in_order_by_their_datagram() {
        let mut room = FragmentRoom::default();
        for n in 0..6 {
            assert_eq!(room.hold(key(n % 2), n, Now(0)), None);
        }
        let odd: Vec<u32> = std::iter::from_fn(|| room.release(&key(1))).collect();
        assert_eq!(odd, [1, 3, 5]);
        assert_eq!((room.release(&key(2)), room.expire(Now(0))), (None, None));
        let end = Now(0).plus(HOLD_MAX);
        let rest: Vec<u32> = std::iter::from_fn(|| room.expire(end)).collect();
        assert_eq!((rest, room.is_empty()), (vec![0, 2, 4], true));
    }

    #[test]
    fn a_full_room_gives_up_its_oldest_and_a_large_datagram_its_newest() {
        let mut room = FragmentRoom::default();
        let capacity = room.held.capacity();
        for n in 0..HELD_PER_DATAGRAM as u32 {
            assert_eq!(room.hold(key(0), n, Now(0)), None);
        }
        assert_eq!(room.hold(key(0), 999, Now(0)), Some(999));
        for n in HELD_PER_DATAGRAM as u32..HELD_MAX as u32 {
            assert_eq!(room.hold(key(1 + n % 60), n, Now(0)), None);
        }
        assert_eq!(room.hold(key(100), 1000, Now(0)), Some(0));
        assert_eq!((room.held.len(), room.held.capacity()), (HELD_MAX, capacity), "no memory was asked for");
    }
}
