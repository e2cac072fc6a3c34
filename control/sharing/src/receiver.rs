//! The receiving half of a session: recognizes replays, and orders batches.
//!
//! Datagram numbers are never reused, so a replay is recognized by its number. Batches have their own numbers because
//! they are retransmitted in other datagrams. They are delivered in order, so that the latest message about a flow
//! wins.
//!
//! Invariant: at most [`WINDOW`] batches are buffered.

use std::collections::{BTreeMap, VecDeque};

use crate::limits::WINDOW;
use crate::message::{self, Message};

/// How far a datagram may be reordered and still be accepted.
const REORDERED: u64 = 1_024;

/// The receiving half of a session.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// One more than the highest datagram number so far.
    above: u64,
    /// One bit per number of the last [`REORDERED`] datagrams, at index number mod [`REORDERED`].
    seen: [u64; REORDERED as usize / 64],
    /// The batch to deliver next.
    next: u64,
    batches: BTreeMap<u64, VecDeque<Message>>,
    /// Whether a batch has arrived since the last acknowledgement, or the peer may not know which batches have arrived.
    pub(crate) must_acknowledge: bool,
}

impl Receiver {
    pub(crate) fn new() -> Self {
        Self {
            above: 0,
            seen: [0; REORDERED as usize / 64],
            next: 0,
            batches: BTreeMap::new(),
            must_acknowledge: false,
        }
    }

    /// Whether a datagram with this number may be accepted: it is not too old, and was not received before.
    pub(crate) fn is_new(&self, number: u64) -> bool {
        let (word, bit) = word_and_bit(number);
        number >= self.above || self.above - number <= REORDERED && self.seen[word] & bit == 0
    }

    /// Marks the number of an authentic datagram as received.
    pub(crate) fn received(&mut self, number: u64) {
        if number >= self.above {
            let skipped = (number - self.above).min(REORDERED);
            for n in 0..skipped {
                let (word, bit) = word_and_bit(number - 1 - n);
                self.seen[word] &= !bit;
            }
            // Doesn't overflow, because the largest number is refused.
            self.above = number + 1;
        }
        let (word, bit) = word_and_bit(number);
        self.seen[word] |= bit;
    }

    /// Buffers a batch. Returns false if its content is not valid.
    pub(crate) fn batch(&mut self, number: u64, mut bytes: &[u8]) -> bool {
        self.must_acknowledge = true;
        let is_wanted = number >= self.next && number - self.next < WINDOW as u64;
        if !is_wanted || self.batches.contains_key(&number) {
            return true;
        }
        let mut batch = VecDeque::new();
        while !bytes.is_empty() {
            let Some(message) = message::read(&mut bytes) else { return false };
            batch.push_back(message);
        }
        self.batches.insert(number, batch);
        true
    }

    /// Delivers messages in order as long as `accept` returns true. Returns how many were accepted.
    pub(crate) fn deliver(&mut self, accept: &mut impl FnMut(&Message) -> bool) -> u64 {
        let mut passed = 0;
        while let Some(batch) = self.batches.get_mut(&self.next) {
            while let Some(message) = batch.front() {
                if !accept(message) {
                    return passed;
                }
                batch.pop_front();
                passed += 1;
            }
            self.batches.remove(&self.next);
            self.next += 1;
            self.must_acknowledge = true;
        }
        passed
    }

    /// The acknowledgement to send: the batch to deliver next, and those after it that have arrived.
    pub(crate) fn acknowledgement(&mut self) -> (u64, [u64; 4]) {
        self.must_acknowledge = false;
        let mut bits = [0; 4];
        for number in self.batches.keys() {
            let at = number - self.next;
            bits[(at / 64) as usize] |= 1 << (at % 64);
        }
        (self.next, bits)
    }
}

fn word_and_bit(number: u64) -> (usize, u64) {
    let at = number % REORDERED;
    ((at / 64) as usize, 1 << (at % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn every_datagram_is_new_once(numbers in prop::collection::vec(0u64..3_000, 0..400)) {
            let (mut receiver, mut seen, mut above) = (Receiver::new(), HashSet::new(), 0);
            for number in numbers {
                let in_window = number >= above || above - number <= REORDERED;
                prop_assert_eq!(receiver.is_new(number), in_window && !seen.contains(&number), "{}", number);
                if receiver.is_new(number) {
                    receiver.received(number);
                    seen.insert(number);
                    above = above.max(number + 1);
                }
            }
        }
    }
}
