//! The sending half of a session: a queue of messages, and the batches that the peer has not acknowledged.
//!
//! Batches are numbered and retransmitted until they are acknowledged, at most [`WINDOW`] of them at a time. A full
//! queue drops its oldest messages, because newer ones are about flows that are likely to live longer. A table walk
//! repeats what was lost.
//!
//! Invariant: at most [`QUEUE_MAX`] messages are queued, and [`WINDOW`] batches are kept.

use std::collections::VecDeque;
use std::time::Duration;

use crate::limits::{QUEUE_MAX, RESEND_AFTER, RESEND_AFTER_MAX, WINDOW};
use crate::message::{self, Message, RECORD_MAX};

/// A batch that is not acknowledged yet.
#[derive(Debug)]
struct Batch {
    number: u64,
    bytes: Vec<u8>,
    /// When to retransmit it.
    due: Duration,
    wait: Duration,
}

/// The sending half of a session.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    queue: VecDeque<Message>,
    in_flight: VecDeque<Batch>,
    /// The number of the next new batch.
    next: u64,
    /// The batch that the peer delivers next. The peer buffers later ones within the window.
    peer_next: u64,
    /// Messages dropped from the full queue.
    pub(crate) lost: u64,
    /// Whether messages were lost that no walk has repeated yet.
    pub(crate) is_behind: bool,
}

impl Sender {
    /// Adds a message.
    pub(crate) fn push(&mut self, message: &Message) {
        if self.queue.len() >= QUEUE_MAX {
            self.queue.pop_front();
            self.lost += 1;
            self.is_behind = true;
        }
        self.queue.push_back(*message);
    }

    /// The number of queued messages.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// The number of unacknowledged batches.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The batch that the peer delivers next.
    pub(crate) fn peer_next(&self) -> u64 {
        self.peer_next
    }

    /// The next batch to send, of at most `size_max` bytes, its number, and whether it is a retransmission.
    pub(crate) fn next(&mut self, size_max: usize, now: Duration) -> Option<(u64, &[u8], bool)> {
        if let Some(at) = self.in_flight.iter().position(|batch| batch.due <= now) {
            let batch = &mut self.in_flight[at];
            batch.wait = (batch.wait * 2).min(RESEND_AFTER_MAX);
            batch.due = now + batch.wait;
            return Some((batch.number, &batch.bytes, true));
        }
        let window_is_open = self.next < self.peer_next + WINDOW as u64;
        if self.queue.is_empty() || !window_is_open {
            return None;
        }
        let mut bytes = Vec::with_capacity(size_max);
        while bytes.len() + RECORD_MAX <= size_max
            && let Some(message) = self.queue.pop_front()
        {
            message::write(&message, &mut bytes);
        }
        let number = self.next;
        self.next += 1;
        self.in_flight.push_back(Batch { number, bytes, due: now + RESEND_AFTER, wait: RESEND_AFTER });
        self.in_flight.back().map(|batch| (batch.number, &batch.bytes[..], false))
    }

    /// Handles an acknowledgement of all batches before `next`, and of those in `bits` after it.
    pub(crate) fn acknowledged(&mut self, next: u64, bits: &[u64; 4]) {
        if next < self.peer_next || next > self.next {
            // A reordered acknowledgement, or one of batches that were never sent.
            return;
        }
        self.peer_next = next;
        let has = |number: u64| {
            let at = number.wrapping_sub(next);
            number < next || at < 256 && bits[(at / 64) as usize] >> (at % 64) & 1 != 0
        };
        self.in_flight.retain(|batch| !has(batch.number));
    }
}
