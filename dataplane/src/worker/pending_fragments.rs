//! Holds fragments that arrive before the first one of their datagram, which alone shows their destination. They are
//! held for a short time, because fragments that take different paths through the network arrive in any order.
//!
//! The pipeline leaves such a frame unchanged. A frame that waits here is processed once more when the first fragment
//! was seen; a frame that waits too long gets its original verdict. The worker and `replay` use it.
//!
//! A full room drops its oldest frame. But a sender that has [`SHARE_OF_SOURCE`] of the room loses its own oldest one, so
//! that its fragments without a first one do not end the wait of others. The sources are counted by a hash with a secret;
//! those that share a place also share its part of the room.
//!
//! Invariant: bounded in frames, frames of a datagram and time; all memory is reserved at the start. Each step reads a
//! bounded number of frames, however many are held.

use std::time::Duration;

use tidegate_pipeline::fragments::FragmentKey;
use tidegate_spec::now::Now;

/// The maximum number of frames that one worker holds: 9 MiB of packet buffers, and the out-of-order fragments of 40,000 a
/// second.
pub const HELD_MAX: usize = 4_096;
/// The maximum number of frames of one datagram: the largest IPv6 datagram at the smallest MTU has 54 fragments.
pub const HELD_PER_DATAGRAM: usize = 64;
/// The frames of one source that make it lose its own ones when the room is full.
pub const SHARE_OF_SOURCE: usize = HELD_MAX / 8;
/// The longest time that a frame is held: the delays of paths through one network differ by less.
pub const HOLD_MAX: Duration = Duration::from_millis(100);

/// The number of lists of datagrams, and of sources.
const LISTS: usize = 4_096;

/// The held fragments. `W` is a frame and the data that its owner needs to process it again.
#[derive(Debug)]
pub struct FragmentRoom<W> {
    secret: u64,
    held: Vec<Option<Held<W>>>,
    /// Places of `held` that are empty.
    free: Vec<u16>,
    /// All frames, then those by the hash of their datagram, and by that of their source; each in the order of arrival.
    all: List,
    datagrams: Box<[List]>,
    sources: Box<[List]>,
}

#[derive(Debug)]
struct Held<W> {
    key: FragmentKey,
    until: Now,
    what: W,
    /// The lists of its datagram and its source.
    lists: [u16; 2],
    /// Its neighbours in the list of all frames, of its datagram, and of its source.
    links: [Links; 3],
}

/// The frames before and after one.
#[derive(Debug, Clone, Copy, Default)]
struct Links {
    before: Option<u16>,
    after: Option<u16>,
}

#[derive(Debug, Clone, Copy, Default)]
struct List {
    first: Option<u16>,
    last: Option<u16>,
    len: u16,
}

const ALL: usize = 0;
const DATAGRAM: usize = 1;
const SOURCE: usize = 2;

impl<W> FragmentRoom<W> {
    /// An empty room. Those who know the secret can make datagrams and sources share lists.
    #[must_use]
    pub fn new(secret: u64) -> Self {
        let lists = || vec![List::default(); LISTS].into_boxed_slice();
        Self {
            secret,
            held: std::iter::repeat_with(|| None).take(HELD_MAX).collect(),
            free: (0..HELD_MAX as u16).rev().collect(),
            all: List::default(),
            datagrams: lists(),
            sources: lists(),
        }
    }

    /// Whether nothing is held.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.len == 0
    }

    /// Holds a fragment of this datagram. Returns the fragment that is dropped for it, if any: the new one if its datagram
    /// already holds the maximum; otherwise, if the room is full, the oldest one, or the oldest one of its source.
    pub fn hold(&mut self, key: FragmentKey, what: W, now: Now) -> Option<W> {
        // Both remainders are below LISTS.
        let list = |hash: u64| (hash % LISTS as u64) as u16;
        let lists = [list(key.hash(self.secret)), list(key.source_hash(self.secret))];
        if self.of_datagram(&key, lists[0]).count() >= HELD_PER_DATAGRAM {
            return Some(what);
        }
        let dropped = match self.free.is_empty() {
            true => {
                let own = self.sources[usize::from(lists[1])];
                let oldest = if usize::from(own.len) >= SHARE_OF_SOURCE { own.first } else { self.all.first };
                oldest.and_then(|at| self.remove(at))
            }
            false => None,
        };
        let at = self.free.pop().expect("a full room has just lost a frame");
        let links = [Links::default(); 3];
        self.held[usize::from(at)] = Some(Held { key, until: now.plus(HOLD_MAX), what, lists, links });
        (ALL..=SOURCE).for_each(|which| self.append(which, at));
        dropped
    }

    /// Removes the next fragment of a datagram, in the order of arrival.
    pub fn release(&mut self, key: &FragmentKey) -> Option<W> {
        let list = (key.hash(self.secret) % LISTS as u64) as u16;
        let at = self.of_datagram(key, list).next()?;
        self.remove(at)
    }

    /// Removes the next fragment whose time is over.
    pub fn expire(&mut self, now: Now) -> Option<W> {
        let first = self.all.first.filter(|&at| self.at(at).until <= now)?;
        self.remove(first)
    }

    /// Removes the oldest fragment.
    pub fn pop(&mut self) -> Option<W> {
        self.all.first.and_then(|at| self.remove(at))
    }

    /// The places of the frames of a datagram.
    fn of_datagram(&self, key: &FragmentKey, list: u16) -> impl Iterator<Item = u16> {
        let first = self.datagrams[usize::from(list)].first;
        let all = std::iter::successors(first, |&at| self.at(at).links[DATAGRAM].after);
        all.filter(move |&at| self.at(at).key == *key)
    }

    fn at(&self, at: u16) -> &Held<W> {
        self.held[usize::from(at)].as_ref().expect("a list has only places of frames")
    }

    fn links(&mut self, at: u16, which: usize) -> &mut Links {
        &mut self.held[usize::from(at)].as_mut().expect("a list has only places of frames").links[which]
    }

    fn list(&mut self, which: usize, lists: [u16; 2]) -> &mut List {
        match which {
            ALL => &mut self.all,
            DATAGRAM => &mut self.datagrams[usize::from(lists[0])],
            _ => &mut self.sources[usize::from(lists[1])],
        }
    }

    fn append(&mut self, which: usize, at: u16) {
        let lists = self.at(at).lists;
        let list = self.list(which, lists);
        let before = list.last.replace(at);
        list.len += 1;
        match before {
            Some(before) => self.links(before, which).after = Some(at),
            None => self.list(which, lists).first = Some(at),
        }
        self.links(at, which).before = before;
    }

    fn remove(&mut self, at: u16) -> Option<W> {
        let Held { lists, links, .. } = *self.at(at);
        for (which, Links { before, after }) in links.into_iter().enumerate() {
            self.list(which, lists).len -= 1;
            match before {
                Some(before) => self.links(before, which).after = after,
                None => self.list(which, lists).first = after,
            }
            match after {
                Some(after) => self.links(after, which).before = before,
                None => self.list(which, lists).last = before,
            }
        }
        self.free.push(at);
        self.held[usize::from(at)].take().map(|held| held.what)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use tidegate_pipeline::testing::builder::Builder;
    use tidegate_wire::{Parsed, parse};

    fn key_of(source: u8, id: u32) -> FragmentKey {
        let frame = Builder::udp(format!("198.51.100.{source}:1").as_str(), "203.0.113.5:53");
        match parse(&frame.payload_len(16).fragment(id, 0, true).build()) {
            Ok(Parsed::Ip(h)) => FragmentKey::of(&h).expect("a fragment"),
            other => panic!("{other:?}"),
        }
    }

    fn key(id: u32) -> FragmentKey {
        key_of(7, id)
    }

    #[test]
    fn fragments_come_back_in_order_by_their_datagram() {
        let mut room = FragmentRoom::new(1);
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
        let mut room = FragmentRoom::new(1);
        for n in 0..HELD_PER_DATAGRAM as u32 {
            assert_eq!(room.hold(key(0), n, Now(0)), None);
        }
        assert_eq!(room.hold(key(0), 9_999, Now(0)), Some(9_999));
        for n in HELD_PER_DATAGRAM as u32..HELD_MAX as u32 {
            assert_eq!(room.hold(key_of((n % 200) as u8, 1 + n), n, Now(0)), None);
        }
        assert_eq!(room.hold(key_of(201, 1), 10_000, Now(0)), Some(0));
        assert_eq!(room.release(&key_of(201, 1)), Some(10_000));
    }

    #[test]
    fn a_source_with_many_fragments_loses_its_own_ones() {
        let mut room = FragmentRoom::new(1);
        assert_eq!(room.hold(key_of(1, 0), 0, Now(0)), None);
        for n in 1..HELD_MAX as u32 {
            assert_eq!(room.hold(key_of(2, n), n, Now(0)), None);
        }
        for n in 0..2 * HELD_MAX as u32 {
            let dropped = room.hold(key_of(2, 10_000 + n), 10_000 + n, Now(0)).expect("the room is full");
            assert_ne!(dropped, 0, "the fragment of the other source");
        }
        assert_eq!(room.release(&key_of(1, 0)), Some(0));
    }

    #[test]
    fn the_room_keeps_what_a_plain_list_keeps() {
        let (mut room, mut model) = (FragmentRoom::new(1), VecDeque::<(u32, u32, Now)>::new());
        let mut random = 1_u32;
        for n in 0..60_000_u32 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // So few datagrams that their limits keep the room from being full.
            let (now, id) = (Now(u64::from(n) * 20_000), (random >> 8) % 31);
            match random >> 29 {
                0..=4 => {
                    let of_datagram = model.iter().filter(|&&(one, ..)| one == id).count();
                    let expected = (of_datagram >= HELD_PER_DATAGRAM).then_some(n);
                    if expected.is_none() {
                        model.push_back((id, n, now.plus(HOLD_MAX)));
                    }
                    assert_eq!(room.hold(key(id), n, now), expected);
                }
                5 => {
                    let at = model.iter().position(|&(one, ..)| one == id);
                    let expected = at.and_then(|at| model.remove(at)).map(|(_, n, _)| n);
                    assert_eq!(room.release(&key(id)), expected);
                }
                _ => {
                    let is_over = model.front().is_some_and(|&(.., until)| until <= now);
                    let expected = if is_over { model.pop_front().map(|(_, n, _)| n) } else { None };
                    assert_eq!(room.expire(now), expected);
                }
            }
            assert!(model.len() <= HELD_MAX);
        }
    }
}
