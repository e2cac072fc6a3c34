//! A session with one peer. It starts once both sides have proved that they have the key, and ends when one of them
//! restarts or is silent for too long.
//!
//! A datagram consists of magic, kind, version, two zero bytes, the number of the session and the number of the
//! datagram, then the sealed part: an optional acknowledgement and an optional batch.
//!
//! Invariant: the session, the number and the seal of a datagram are checked in this order before it is read. A forged
//! datagram costs at most one attempt to open it.

use std::time::Duration;

use crate::crypt::{SessionKeys, SharedKey, Side, TAG};
use crate::handshake::MAGIC;
use crate::limits::{DATAGRAM_MAX, KEEP_ALIVE, STUCK_AFTER};
use crate::message::{Message, WALKS_SINCE, Walk, take};
use crate::receiver::Receiver;
use crate::sender::Sender;

/// The kind of a session's datagrams.
pub(crate) const DATA: u8 = 2;
/// Bytes before the sealed part.
pub(crate) const HEADER: usize = 24;
const ACKNOWLEDGEMENT: u8 = 1;
const BATCH: u8 = 2;
const ACKNOWLEDGEMENT_LEN: usize = 1 + 8 + 32;
/// The maximum size of a batch's messages in bytes.
const BATCH_MAX: usize = DATAGRAM_MAX - HEADER - TAG - ACKNOWLEDGEMENT_LEN - 9;

/// Why a datagram of a session was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It belongs to another session, or to none.
    OtherSession,
    /// It was received before, or is outside the reordering window.
    Old,
    /// Too many datagrams were opened within one second.
    TooMany,
    /// It was not sealed by the peer.
    Unauthentic,
    /// Its content is not valid.
    Invalid,
}

/// Whether each side has sent everything that it knows.
#[derive(Debug)]
pub(crate) struct WalkState {
    /// Once the workers have finished this many complete walks, this side has sent everything.
    pub(crate) number: u64,
    /// How many [`Walk::Complete`] messages this side has yet to send.
    pub(crate) owed: u32,
    /// How many this side still expects.
    pub(crate) awaited: u32,
    /// Whether the peer has requested the changes of backends again.
    pub(crate) wants_changes: bool,
    /// Whether the peer has requested everything again.
    pub(crate) wants_flows: bool,
}

impl Default for WalkState {
    fn default() -> Self {
        Self { number: 0, owed: 1, awaited: 1, wants_changes: false, wants_flows: false }
    }
}

/// A session.
pub(crate) struct Session {
    /// The epochs and challenges of this side and the peer.
    pub(crate) own: Side,
    pub(crate) peer: Side,
    keys: SessionKeys,
    pub(crate) version: u8,
    /// Whether the peer has used the session, and therefore has the keys, too.
    pub(crate) is_confirmed: bool,
    pub(crate) started: Duration,
    /// When the last datagram was received.
    pub(crate) last_seen: Duration,
    /// When the last datagram was sent.
    sent: Duration,
    /// When the peer last acknowledged a batch, or last had none to acknowledge.
    last_progress: Duration,
    /// The number of the next datagram.
    number: u64,
    pub(crate) walks: WalkState,
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
}

impl Session {
    pub(crate) fn new(
        (own, own_key): (Side, &SharedKey),
        (peer, peer_key): (Side, &SharedKey),
        version: u8,
        now: Duration,
    ) -> Self {
        Self {
            own,
            peer,
            keys: SharedKey::of_session((&own, own_key), (&peer, peer_key)),
            version,
            is_confirmed: false,
            started: now,
            last_seen: now,
            sent: now,
            last_progress: now,
            number: 0,
            walks: WalkState::default(),
            sender: Sender::default(),
            receiver: Receiver::new(),
        }
    }

    /// Whether a datagram must be sent even without a batch.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.receiver.must_acknowledge || now.saturating_sub(self.sent) >= KEEP_ALIVE
    }

    /// Sends a datagram at the next opportunity.
    pub(crate) fn send_soon(&mut self) {
        self.receiver.must_acknowledge = true;
    }

    /// The next datagram with a batch, and whether the batch is a retransmission.
    pub(crate) fn batch(&mut self, now: Duration) -> Option<(Vec<u8>, bool)> {
        if self.sender.in_flight() == 0 && self.sender.waiting() == 0 {
            self.last_progress = now;
        }
        let (number, batch, again) = self.sender.next(BATCH_MAX, now)?;
        let mut body = vec![BATCH];
        body.extend(number.to_be_bytes());
        body.extend(batch);
        Some((self.seal(&body, now), again))
    }

    /// A datagram without a batch.
    pub(crate) fn keepalive(&mut self, now: Duration) -> Vec<u8> {
        self.receiver.must_acknowledge = true;
        self.seal(&[], now)
    }

    fn seal(&mut self, batch: &[u8], now: Duration) -> Vec<u8> {
        let mut datagram = Vec::with_capacity(DATAGRAM_MAX);
        datagram.extend(MAGIC);
        datagram.extend([DATA, self.version, 0, 0]);
        datagram.extend(self.keys.id.to_be_bytes());
        datagram.extend(self.number.to_be_bytes());
        if self.receiver.must_acknowledge {
            let (next, bits) = self.receiver.acknowledgement();
            datagram.push(ACKNOWLEDGEMENT);
            datagram.extend(next.to_be_bytes());
            bits.iter().for_each(|word| datagram.extend(word.to_be_bytes()));
        }
        datagram.extend(batch);
        self.keys.seal.seal(self.number, &mut datagram, HEADER);
        self.number += 1;
        self.sent = now;
        datagram
    }

    /// Reads a datagram. `may_open` is called before the expensive part.
    ///
    /// # Errors
    /// Why it was not read. The session is then unchanged, except that a datagram with invalid content counts as
    /// received.
    pub(crate) fn read(
        &mut self,
        datagram: &mut [u8],
        may_open: impl FnOnce() -> bool,
        now: Duration,
    ) -> Result<(), Unread> {
        let mut header = datagram.get(5..HEADER).ok_or(Unread::OtherSession)?;
        let [version, _, _] = take(&mut header).ok_or(Unread::OtherSession)?;
        let id = take(&mut header).map(u64::from_be_bytes);
        let number = take(&mut header).map(u64::from_be_bytes).ok_or(Unread::OtherSession)?;
        if id != Some(self.keys.id) || version != self.version || number == u64::MAX {
            return Err(Unread::OtherSession);
        }
        if !self.receiver.is_new(number) {
            return Err(Unread::Old);
        }
        if !may_open() {
            return Err(Unread::TooMany);
        }
        let mut body = &*self.keys.open.open(number, datagram, HEADER).ok_or(Unread::Unauthentic)?;
        self.receiver.received(number);
        (self.last_seen, self.is_confirmed) = (now, true);
        while let Some((kind, mut rest)) = body.split_first() {
            match *kind {
                ACKNOWLEDGEMENT => {
                    let next = take(&mut rest).map(u64::from_be_bytes).ok_or(Unread::Invalid)?;
                    let mut bits = [0; 4];
                    for word in &mut bits {
                        *word = take(&mut rest).map(u64::from_be_bytes).ok_or(Unread::Invalid)?;
                    }
                    let before = self.sender.peer_next();
                    self.sender.acknowledged(next, &bits);
                    if self.sender.peer_next() != before {
                        self.last_progress = now;
                    }
                    body = rest;
                }
                BATCH => {
                    let number = take(&mut rest).map(u64::from_be_bytes).ok_or(Unread::Invalid)?;
                    return if self.receiver.batch(number, rest) { Ok(()) } else { Err(Unread::Invalid) };
                }
                _ => return Err(Unread::Invalid),
            }
        }
        Ok(())
    }

    /// Whether the peer has acknowledged nothing for [`STUCK_AFTER`], so that table walks no longer wait for it.
    pub(crate) fn is_stuck(&self, now: Duration) -> bool {
        now.saturating_sub(self.last_progress) >= STUCK_AFTER
    }

    /// Sends a request that the peer answers with [`Walk::Complete`]. Peers with an earlier version don't support
    /// requests.
    pub(crate) fn request(&mut self, request: Walk) {
        if self.version >= WALKS_SINCE {
            self.walks.awaited = self.walks.awaited.saturating_add(1);
            self.enqueue(&Message::Walk(request));
        }
    }

    /// Reports to the peer that the workers have finished this many complete walks.
    pub(crate) fn walked(&mut self, complete: u64) {
        if complete >= self.walks.number {
            for _ in 0..std::mem::take(&mut self.walks.owed) {
                self.enqueue(&Message::Walk(Walk::Complete));
            }
        }
    }

    /// Delivers the peer's messages as long as `accept` returns true. Returns how many were accepted.
    pub(crate) fn deliver(&mut self, accept: &mut impl FnMut(&Message) -> bool) -> u64 {
        let (walks, is_behind) = (&mut self.walks, self.sender.is_behind);
        self.receiver.deliver(&mut |message| match message {
            Message::Walk(Walk::Complete) => {
                walks.awaited = walks.awaited.saturating_sub(1);
                true
            }
            Message::Walk(request) => {
                walks.wants_changes = true;
                // Lost messages can only be repeated by a walk.
                walks.wants_flows |= *request == Walk::Again || is_behind;
                walks.owed = walks.owed.saturating_add(1);
                true
            }
            message => accept(message),
        })
    }

    /// Queues a message for the peer.
    pub(crate) fn enqueue(&mut self, message: &Message) {
        if message.since() <= self.version {
            self.sender.push(message);
        }
    }
}
