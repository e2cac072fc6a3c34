//! What is said to one peer: a queue of messages, and the batches that the peer has not acknowledged.
//!
//! Batches are numbered. They are sent again until they are acknowledged, at most [`WINDOW`] of them at a time. If more is
//! to be said than the peer takes, the oldest messages of the queue are lost: newer ones are about flows that are more
//! likely to live, and a walk of the tables repeats what was lost.
//!
//! Invariant: at most [`QUEUE_MAX`] messages wait, and [`WINDOW`] batches are kept.

use std::collections::VecDeque;
use std::time::Duration;

use crate::limits::{QUEUE_MAX, RESEND_AFTER, RESEND_AFTER_MAX, WINDOW};
use crate::message::{self, Message, RECORD_MAX};

/// A batch that is under way.
#[derive(Debug)]
struct Batch {
    number: u64,
    bytes: Vec<u8>,
    /// When it is to be sent again.
    due: Duration,
    wait: Duration,
}

/// The sending half of a session.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    queue: VecDeque<Message>,
    under_way: VecDeque<Batch>,
    /// The number of the next new batch.
    next: u64,
    /// The batch that the peer passes on next: it keeps later ones within the window.
    peer_next: u64,
    /// Messages that the full queue lost.
    pub(crate) lost: u64,
    /// Messages were lost, and no walk has repeated them yet.
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

    /// The messages that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// The batches that are not acknowledged.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// The batch that the peer passes on next.
    pub(crate) fn peer_next(&self) -> u64 {
        self.peer_next
    }

    /// The batch to send now, with its number, of at most `room` bytes: one that was lost, or a new one.
    pub(crate) fn next(&mut self, room: usize, now: Duration) -> Option<(u64, &[u8], bool)> {
        if let Some(at) = self.under_way.iter().position(|batch| batch.due <= now) {
            let batch = &mut self.under_way[at];
            batch.wait = (batch.wait * 2).min(RESEND_AFTER_MAX);
            batch.due = now + batch.wait;
            return Some((batch.number, &batch.bytes, true));
        }
        let window_is_open = self.next < self.peer_next + WINDOW as u64;
        if self.queue.is_empty() || !window_is_open {
            return None;
        }
        let mut bytes = Vec::with_capacity(room);
        while bytes.len() + RECORD_MAX <= room
            && let Some(message) = self.queue.pop_front()
        {
            message::write(&message, &mut bytes);
        }
        let number = self.next;
        self.next += 1;
        self.under_way.push_back(Batch { number, bytes, due: now + RESEND_AFTER, wait: RESEND_AFTER });
        self.under_way.back().map(|batch| (batch.number, &batch.bytes[..], false))
    }

    /// Takes note that the peer has all batches before `next`, and those of `bits` after it.
    pub(crate) fn acknowledged(&mut self, next: u64, bits: &[u64; 4]) {
        if next < self.peer_next || next > self.next {
            // An acknowledgement that another one has overtaken, or one of nothing that was sent.
            return;
        }
        self.peer_next = next;
        let has = |number: u64| {
            let at = number.wrapping_sub(next);
            number < next || at < 256 && bits[(at / 64) as usize] >> (at % 64) & 1 != 0
        };
        self.under_way.retain(|batch| !has(batch.number));
    }
}
