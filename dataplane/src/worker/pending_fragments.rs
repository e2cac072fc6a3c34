//! Keeps fragments that arrive before the first fragment of their datagram: only that one has the ports. Fragments that
//! take different paths through a network arrive in any order, so they are kept for a short time.
//!
//! The pipeline leaves such a frame unchanged. It is processed again once the first fragment has arrived; if that takes
//! too long, its original verdict applies. Workers and `replay` use this module.
//!
//! A full buffer evicts its oldest frame. A sender that already has [`SOURCE_SHARE`] of the buffer evicts its own
//! oldest frame instead, so its flood doesn't displace fragments of others. Sources are counted by a keyed hash;
//! sources that collide share one quota.
//!
//! Invariant: frames, frames per datagram and time are bounded, and all memory is reserved at the start. Each step
//! examines a bounded number of frames.

use std::time::Duration;

use tidegate_pipeline::fragments::FragmentKey;
use tidegate_spec::now::Now;

/// Maximum number of frames per worker: 9 MiB of packet buffers, enough for 40,000 out-of-order fragments a second.
pub const FRAMES_MAX: usize = 4_096;
/// Maximum number of frames of one datagram: the largest IPv6 datagram at the smallest MTU has 54 fragments.
pub const FRAMES_PER_DATAGRAM: usize = 64;
/// A source with this many frames evicts its own when the buffer is full.
pub const SOURCE_SHARE: usize = FRAMES_MAX / 8;
/// The longest time that a frame is kept. The delays of different paths through a network differ by less.
pub const WAIT_MAX: Duration = Duration::from_millis(100);

/// The number of datagram lists, and of source lists.
const LISTS: usize = 4_096;

/// The buffered fragments. `W` is a frame with the data that its owner needs to process it again.
#[derive(Debug)]
pub struct FragmentBuffer<W> {
    secret: u64,
    entries: Vec<Option<Entry<W>>>,
    /// Free indices of `entries`.
    free: Vec<u16>,
    /// Three views of the frames, each in the order of arrival: all frames, by datagram hash and by source hash.
    all: List,
    datagrams: Box<[List]>,
    sources: Box<[List]>,
}

#[derive(Debug)]
struct Entry<W> {
    key: FragmentKey,
    until: Now,
    what: W,
    /// The indices of its datagram list and its source list.
    lists: [u16; 2],
    /// Its neighbours in the list of all frames, in its datagram list and in its source list.
    links: [Links; 3],
}

/// The previous and the next frame of a list.
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

impl<W> FragmentBuffer<W> {
    /// An empty buffer. Anyone who knows the secret can make datagrams and sources collide.
    #[must_use]
    pub fn new(secret: u64) -> Self {
        let lists = || vec![List::default(); LISTS].into_boxed_slice();
        Self {
            secret,
            entries: std::iter::repeat_with(|| None).take(FRAMES_MAX).collect(),
            free: (0..FRAMES_MAX as u16).rev().collect(),
            all: List::default(),
            datagrams: lists(),
            sources: lists(),
        }
    }

    /// Whether no fragment is waiting.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.len == 0
    }

    /// Adds a fragment. Returns the fragment that is dropped, if any: the new one if its datagram has reached its
    /// maximum; if the buffer is full, the oldest one, or the oldest of the same source.
    pub fn push(&mut self, key: FragmentKey, what: W, now: Now) -> Option<W> {
        // Both remainders are below LISTS.
        let list = |hash: u64| (hash % LISTS as u64) as u16;
        let lists = [list(key.hash(self.secret)), list(key.source_hash(self.secret))];
        if self.of_datagram(&key, lists[0]).count() >= FRAMES_PER_DATAGRAM {
            return Some(what);
        }
        let dropped = match self.free.is_empty() {
            true => {
                let own = self.sources[usize::from(lists[1])];
                let oldest = if usize::from(own.len) >= SOURCE_SHARE { own.first } else { self.all.first };
                oldest.and_then(|at| self.remove(at))
            }
            false => None,
        };
        let at = self.free.pop().expect("a full buffer has just evicted a frame");
        let links = [Links::default(); 3];
        self.entries[usize::from(at)] = Some(Entry { key, until: now.plus(WAIT_MAX), what, lists, links });
        (ALL..=SOURCE).for_each(|which| self.append(which, at));
        dropped
    }

    /// Removes the next fragment of a datagram, in the order of arrival.
    pub fn release(&mut self, key: &FragmentKey) -> Option<W> {
        let list = (key.hash(self.secret) % LISTS as u64) as u16;
        let at = self.of_datagram(key, list).next()?;
        self.remove(at)
    }

    /// Removes the next fragment that has waited too long.
    pub fn expire(&mut self, now: Now) -> Option<W> {
        let first = self.all.first.filter(|&at| self.at(at).until <= now)?;
        self.remove(first)
    }

    /// Removes the oldest fragment.
    pub fn pop(&mut self) -> Option<W> {
        self.all.first.and_then(|at| self.remove(at))
    }

    /// The indices of the frames of a datagram.
    fn of_datagram(&self, key: &FragmentKey, list: u16) -> impl Iterator<Item = u16> {
        let first = self.datagrams[usize::from(list)].first;
        let all = std::iter::successors(first, |&at| self.at(at).links[DATAGRAM].after);
        all.filter(move |&at| self.at(at).key == *key)
    }

    fn at(&self, at: u16) -> &Entry<W> {
        self.entries[usize::from(at)].as_ref().expect("a list only has indices of frames")
    }

    fn links(&mut self, at: u16, which: usize) -> &mut Links {
        &mut self.entries[usize::from(at)].as_mut().expect("a list only has indices of frames").links[which]
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
        let Entry { lists, links, .. } = *self.at(at);
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
        self.entries[usize::from(at)].take().map(|entries| entries.what)
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
        let mut buffer = FragmentBuffer::new(1);
        for n in 0..6 {
            assert_eq!(buffer.push(key(n % 2), n, Now(0)), None);
        }
        let odd: Vec<u32> = std::iter::from_fn(|| buffer.release(&key(1))).collect();
        assert_eq!(odd, [1, 3, 5]);
        assert_eq!((buffer.release(&key(2)), buffer.expire(Now(0))), (None, None));
        let end = Now(0).plus(WAIT_MAX);
        let rest: Vec<u32> = std::iter::from_fn(|| buffer.expire(end)).collect();
        assert_eq!((rest, buffer.is_empty()), (vec![0, 2, 4], true));
    }

    #[test]
    fn a_full_buffer_evicts_its_oldest_and_a_large_datagram_its_newest() {
        let mut buffer = FragmentBuffer::new(1);
        for n in 0..FRAMES_PER_DATAGRAM as u32 {
            assert_eq!(buffer.push(key(0), n, Now(0)), None);
        }
        assert_eq!(buffer.push(key(0), 9_999, Now(0)), Some(9_999));
        for n in FRAMES_PER_DATAGRAM as u32..FRAMES_MAX as u32 {
            assert_eq!(buffer.push(key_of((n % 200) as u8, 1 + n), n, Now(0)), None);
        }
        assert_eq!(buffer.push(key_of(201, 1), 10_000, Now(0)), Some(0));
        assert_eq!(buffer.release(&key_of(201, 1)), Some(10_000));
    }

    #[test]
    fn a_source_with_many_fragments_loses_its_own_ones() {
        let mut buffer = FragmentBuffer::new(1);
        assert_eq!(buffer.push(key_of(1, 0), 0, Now(0)), None);
        for n in 1..FRAMES_MAX as u32 {
            assert_eq!(buffer.push(key_of(2, n), n, Now(0)), None);
        }
        for n in 0..2 * FRAMES_MAX as u32 {
            let dropped = buffer.push(key_of(2, 10_000 + n), 10_000 + n, Now(0)).expect("the buffer is full");
            assert_ne!(dropped, 0, "the fragment of the other source");
        }
        assert_eq!(buffer.release(&key_of(1, 0)), Some(0));
    }

    #[test]
    fn the_buffer_behaves_like_a_plain_list() {
        let (mut buffer, mut model) = (FragmentBuffer::new(1), VecDeque::<(u32, u32, Now)>::new());
        let mut random = 1_u32;
        for n in 0..60_000_u32 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Few enough datagrams that their limits keep the buffer from being full.
            let (now, id) = (Now(u64::from(n) * 20_000), (random >> 8) % 31);
            match random >> 29 {
                0..=4 => {
                    let of_datagram = model.iter().filter(|&&(one, ..)| one == id).count();
                    let expected = (of_datagram >= FRAMES_PER_DATAGRAM).then_some(n);
                    if expected.is_none() {
                        model.push_back((id, n, now.plus(WAIT_MAX)));
                    }
                    assert_eq!(buffer.push(key(id), n, now), expected);
                }
                5 => {
                    let at = model.iter().position(|&(one, ..)| one == id);
                    let expected = at.and_then(|at| model.remove(at)).map(|(_, n, _)| n);
                    assert_eq!(buffer.release(&key(id)), expected);
                }
                _ => {
                    let is_over = model.front().is_some_and(|&(.., until)| until <= now);
                    let expected = if is_over { model.pop_front().map(|(_, n, _)| n) } else { None };
                    assert_eq!(buffer.expire(now), expected);
                }
            }
            assert!(model.len() <= FRAMES_MAX);
        }
    }
}
