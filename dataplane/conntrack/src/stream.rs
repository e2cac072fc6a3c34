//! What the gateway knows of a TCP stream in front of which it puts a header of the PROXY protocol, and the sequence
//! numbers that follow from it. A stream with the option TOA has no header, and its numbers stay.
//!
//! The backend's SYN ACK begins a stream: it acknowledges the client's initial sequence number, and no one but the
//! backend can send it. From then on the client's stream and the backend's differ by the length of the header. Two
//! facts change: whether the backend has acknowledged the whole header, and whether the stream is so long that its
//! sequence numbers may have come round to those of its beginning.
//!
//! Invariant: the length of the header of a stream never changes, whatever the configuration becomes.

use std::sync::atomic::{Ordering, compiler_fence};

use tidegate_wire::proxy_header::ProxyVersion;
use tidegate_wire::proxy_tlvs::ProxyTlvs;

use super::memory::{Part, Words};
use super::splice::Splice;

/// A stream with this many bytes or more is no longer compared with its beginning: half the range in which sequence
/// numbers can be compared (RFC 9293 section 3.4).
const AGED_FROM: u32 = 1 << 30;

/// A TCP stream with a header in front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    /// The sequence number of the client's first byte: its initial sequence number plus one.
    pub first: u32,
    /// The header that was promised to the backend.
    pub version: ProxyVersion,
    /// The TLVs that the header has.
    pub tlvs: ProxyTlvs,
    /// Bytes of the header or of the option.
    pub header_len: u8,
    /// The header was sent to the backend.
    pub sent: bool,
    /// The backend has acknowledged the whole header, or the first byte of a stream with the option.
    pub acknowledged: bool,
    /// Sequence numbers may have come round: none is compared with `first` any more.
    pub aged: bool,
}

/// The change of a client's segment on its way to the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// It stays as it is: it is before the client's first byte.
    Before,
    /// It begins with the client's first byte, so the header is put in front. Or it gets the option.
    First,
    /// It follows: its sequence number grows by the length of the header.
    After,
}

impl Stream {
    /// A stream whose first byte has this sequence number.
    #[must_use]
    pub fn new(first: u32, version: ProxyVersion, tlvs: ProxyTlvs, header_len: u8) -> Self {
        Self { first, version, tlvs, header_len, sent: false, acknowledged: false, aged: false }
    }

    /// Bytes by which the backend's numbers of the client's stream are larger than the client's.
    fn shift(&self) -> u32 {
        match self.version {
            ProxyVersion::V1 | ProxyVersion::V2 => u32::from(self.header_len),
            ProxyVersion::Toa => 0,
        }
    }

    /// Where a segment of the client belongs. `carries` is false for a RST, which has no data and must not get any: it
    /// must have the next number that the backend expects (RFC 9293 section 3.10.7.4), so it follows a header that was
    /// sent.
    ///
    /// Every segment gets the option until the backend has acknowledged a byte: any of them can end the handshake, if
    /// others are lost or late.
    #[inline]
    #[must_use]
    pub fn place(&self, seq: u32, carries: bool) -> Placement {
        if self.acknowledged {
            return Placement::After;
        }
        if self.version == ProxyVersion::Toa {
            return if carries { Placement::First } else { Placement::Before };
        }
        match seq.wrapping_sub(self.first) as i32 {
            0 if carries => Placement::First,
            0 if self.sent => Placement::After,
            ..=0 => Placement::Before,
            _ => Placement::After,
        }
    }

    /// The sequence number towards the backend of a segment that follows the first byte.
    #[inline]
    #[must_use]
    pub fn to_backend(&self, seq: u32) -> u32 {
        seq.wrapping_add(self.shift())
    }

    /// The number that the client knows for a sequence number of its stream as the backend knows it. A number within
    /// the header becomes that of the client's first byte.
    #[inline]
    #[must_use]
    pub fn to_client(&self, seq: u32) -> u32 {
        let len = self.shift();
        let behind = seq.wrapping_sub(self.first) as i32;
        if self.aged || behind >= len as i32 {
            return seq.wrapping_sub(len);
        }
        if behind <= 0 { seq } else { self.first }
    }

    /// The stream after the backend has acknowledged its bytes before `ack`.
    #[inline]
    #[must_use]
    pub fn acknowledge(self, ack: u32) -> Self {
        let behind = ack.wrapping_sub(self.first);
        let acknowledged = self.acknowledged || (self.shift().max(1)..1 << 31).contains(&behind);
        let aged = self.aged || acknowledged && (AGED_FROM..1 << 31).contains(&behind);
        Self { acknowledged, aged, ..self }
    }

    /// The stream in one word. It is never zero.
    #[must_use]
    pub fn packed(self) -> u64 {
        let (acknowledged, aged) = (u64::from(self.acknowledged) << 1, u64::from(self.aged) << 2);
        let state = acknowledged | aged | u64::from(self.sent) << 3;
        let form = (self.version as u64) << 16 | u64::from(self.tlvs.bits()) << 24;
        u64::from(self.first) << 32 | form | u64::from(self.header_len) << 8 | state | 1
    }

    /// The stream of a word; `None` if it is not one of [`Self::packed`].
    #[must_use]
    pub fn unpacked(word: u64) -> Option<Self> {
        Some(Self {
            first: (word >> 32) as u32,
            // Without a stream the word is zero, and no version has that number.
            version: ProxyVersion::from_number((word >> 16) as u8)?,
            tlvs: ProxyTlvs::from_bits((word >> 24) as u8),
            header_len: (word >> 8) as u8,
            sent: word & 8 != 0,
            acknowledged: word & 2 != 0,
            aged: word & 4 != 0,
        })
    }
}

/// The streams and splices of the entries of a table, by the number of the entry's place. The memory is zeroed by the
/// system and stays untouched until the first of either kind begins.
#[derive(Debug)]
pub(super) struct Streams {
    /// Two words for each place.
    words: Words,
    /// Four words for each place.
    splices: Words,
    /// Whether any word has been written.
    used: bool,
    /// Whether any splice has been written.
    spliced: bool,
}

impl Streams {
    /// Room for the streams of this many places, in memory that `provide` returns for a part and a number of words.
    pub(super) fn new(places: usize, mut provide: impl FnMut(Part, usize) -> Words) -> Self {
        let words = provide(Part::Streams, places * 2);
        Self { words, splices: provide(Part::Splices, places * 4), used: false, spliced: false }
    }

    /// The words of both.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn words(&self) -> [&[u32]; 2] {
        [&self.words, &self.splices]
    }

    /// Whether there has been a stream or a splice.
    #[inline]
    pub(super) fn used(&self) -> bool {
        self.used
    }

    pub(super) fn splice(&self, place: usize) -> Option<Splice> {
        splice_at(&self.splices, place)
    }

    pub(super) fn set_splice(&mut self, place: usize, splice: Splice) {
        if let Some(words) = self.splices.get_mut(place * 4..place * 4 + 4) {
            write_last_first(words, splice.packed());
            (self.used, self.spliced) = (true, true);
        }
    }

    pub(super) fn get(&self, place: usize) -> Option<Stream> {
        stream_at(&self.words, place)
    }

    pub(super) fn set(&mut self, place: usize, stream: Stream) {
        if let Some(words) = self.words.get_mut(place * 2..place * 2 + 2) {
            write_last_first(words, halves(stream.packed()));
            self.used = true;
        }
    }

    /// Forgets the stream and the splice at a place.
    #[inline]
    pub(super) fn forget(&mut self, place: usize) {
        self.forget_stream(place);
        if self.spliced {
            self.splices[place * 4..place * 4 + 4].fill(0);
        }
    }

    /// Forgets the stream at a place.
    #[inline]
    pub(super) fn forget_stream(&mut self, place: usize) {
        if self.used {
            self.words[place * 2..place * 2 + 2].fill(0);
        }
    }

    /// Follows an entry that moves.
    #[inline]
    pub(super) fn relocate(&mut self, from: usize, to: usize) {
        if self.used {
            self.words.copy_within(from * 2..from * 2 + 2, to * 2);
            self.words[from * 2..from * 2 + 2].fill(0);
        }
        if self.spliced {
            self.splices.copy_within(from * 4..from * 4 + 4, to * 4);
            self.splices[from * 4..from * 4 + 4].fill(0);
        }
    }
}

/// The stream at a place of an array of streams.
pub(super) fn stream_at(words: &[u32], place: usize) -> Option<Stream> {
    let words = words.get(place * 2..place * 2 + 2)?;
    Stream::unpacked(u64::from(words[0]) | u64::from(words[1]) << 32)
}

/// The splice at a place of an array of splices.
pub(super) fn splice_at(words: &[u32], place: usize) -> Option<Splice> {
    Splice::unpacked(words.get(place * 4..place * 4 + 4)?.try_into().ok()?)
}

fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

/// Writes words so that the first one, which says whether the others count, is written last: the memory may outlive the
/// process, which can be killed at any moment.
#[inline]
fn write_last_first<const N: usize>(words: &mut [u32], new: [u32; N]) {
    words[1..].copy_from_slice(&new[1..]);
    compiler_fence(Ordering::Release);
    words[0] = new[0];
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream(first: u32) -> Stream {
        Stream::new(first, ProxyVersion::V1, ProxyTlvs::NONE, 42)
    }

    #[test]
    fn the_first_byte_gets_the_header_until_the_backend_has_it_all() {
        for first in [0, 1000, u32::MAX - 10] {
            let new = stream(first);
            let at = |n: u32| first.wrapping_add(n);
            assert_eq!(new.place(at(0), true), Placement::First);
            assert_eq!(new.place(at(0), false), Placement::Before, "a reset carries nothing");
            let sent = Stream { sent: true, ..new };
            assert_eq!(
                sent.place(at(0), false),
                Placement::After,
                "the backend expects what follows the header"
            );
            assert_eq!(sent.place(at(0), true), Placement::First, "the header may be lost");
            assert_eq!(new.place(at(u32::MAX), true), Placement::Before, "a keepalive");
            assert_eq!(new.place(at(1), true), Placement::After);
            assert!(!new.acknowledge(at(41)).acknowledged);
            let done = new.acknowledge(at(42));
            assert!(done.acknowledged && !done.aged);
            assert_eq!(done.place(at(0), true), Placement::After);
            assert_eq!(done.place(at(1 << 31), true), Placement::After, "a long stream comes round");
        }
    }

    #[test]
    fn every_segment_has_the_option_until_the_backend_has_a_byte_and_no_number_changes() {
        for first in [0, 1000, u32::MAX - 10] {
            let new = Stream::new(first, ProxyVersion::Toa, ProxyTlvs::NONE, 8);
            let at = |n: u32| first.wrapping_add(n);
            for offset in [u32::MAX, 0, 1, 5000] {
                assert_eq!(new.place(at(offset), true), Placement::First);
                assert_eq!(new.place(at(offset), false), Placement::Before);
                assert_eq!((new.to_backend(at(offset)), new.to_client(at(offset))), (at(offset), at(offset)));
            }
            assert!(!new.acknowledge(at(0)).acknowledged, "the SYN ACK, or an answer that repeats it");
            let done = new.acknowledge(at(1));
            assert_eq!((done.acknowledged, done.place(at(0), true)), (true, Placement::After));
        }
    }

    #[test]
    fn numbers_within_the_header_become_the_first_byte_and_only_at_the_beginning() {
        let new = stream(1000);
        let mapped = [999, 1000, 1001, 1041, 1042, 1043].map(|seq| new.to_client(seq));
        assert_eq!(mapped, [999, 1000, 1000, 1000, 1000, 1001]);
        let aged = new.acknowledge(1042).acknowledge(1042 + (1 << 30));
        assert!(aged.aged);
        assert_eq!(aged.to_client(1001), 959, "4 GiB later this is an ordinary number");
        assert_eq!(aged.acknowledge(5), aged);
    }

    proptest! {
        #[test]
        fn a_number_of_the_client_comes_back_as_it_was(first: u32, offset in 1u32..1 << 30) {
            let stream = stream(first).acknowledge(first.wrapping_add(42));
            let seq = first.wrapping_add(offset);
            prop_assert_eq!(stream.to_client(stream.to_backend(seq)), seq);
        }

        #[test]
        fn a_stream_keeps_its_facts_in_its_word(
            first: u32, len in 1u8..=104, number in 1u8..=3, tlvs in 0u8..4, sent: bool, acknowledged: bool, aged: bool,
        ) {
            let version = ProxyVersion::from_number(number).unwrap();
            let tlvs = ProxyTlvs::from_bits(tlvs);
            let stream = Stream { first, version, tlvs, header_len: len, sent, acknowledged, aged };
            prop_assert_eq!(Stream::unpacked(stream.packed()), Some(stream));
        }
    }
}
