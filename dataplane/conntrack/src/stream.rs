//! State of a TCP stream to which the gateway prepends a header of the PROXY protocol, and the translation of its
//! sequence numbers. A stream with the option TOA has no header, and its numbers don't change.
//!
//! The backend's SYN ACK begins a stream: it acknowledges the client's initial sequence number, and only the backend
//! can send it. After that, the numbers of the client and of the backend differ by the length of the header. Two facts
//! change later: whether the backend has acknowledged the whole header, and whether the sequence numbers may have
//! wrapped.
//!
//! Invariant: the length of the header of a stream never changes, even if the configuration does.

use std::sync::atomic::{Ordering, compiler_fence};

use tidegate_wire::proxy_header::ProxyVersion;
use tidegate_wire::proxy_tlvs::ProxyTlvs;

use super::memory::{Part, Words};
use super::splice::Splice;

/// Once a stream has this many bytes, its sequence numbers are no longer compared with the first one. This is half the
/// range in which they can be compared (RFC 9293 section 3.4).
const AGED_FROM: u32 = 1 << 30;

/// A TCP stream with a header in front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    /// The sequence number of the client's first byte: its initial sequence number plus one.
    pub first: u32,
    /// The version of the header.
    pub version: ProxyVersion,
    /// The TLVs of the header.
    pub tlvs: ProxyTlvs,
    /// Bytes of the header or of the option.
    pub header_len: u8,
    /// The header was sent to the backend.
    pub sent: bool,
    /// The backend has acknowledged the whole header, or the first byte of a stream with the option.
    pub acknowledged: bool,
    /// Sequence numbers may have wrapped, so none is compared with `first` any more.
    pub aged: bool,
}

/// The change of a client's segment on its way to the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Unchanged: the segment is before the client's first byte.
    Before,
    /// It begins with the client's first byte, so the header is prepended; or it gets the option.
    First,
    /// It follows the header: its sequence number grows by the length of the header.
    After,
}

impl Stream {
    /// A stream whose first byte has this sequence number.
    #[must_use]
    pub fn new(first: u32, version: ProxyVersion, tlvs: ProxyTlvs, header_len: u8) -> Self {
        Self { first, version, tlvs, header_len, sent: false, acknowledged: false, aged: false }
    }

    /// The difference between the sequence numbers of the client's stream at the backend and at the client.
    fn shift(&self) -> u32 {
        match self.version {
            ProxyVersion::V1 | ProxyVersion::V2 => u32::from(self.header_len),
            ProxyVersion::Toa => 0,
        }
    }

    /// The placement of a client's segment. `carries` is false for a RST, which must not carry data. It must have the
    /// next number that the backend expects (RFC 9293 section 3.10.7.4), so it is placed after a header that was
    /// already sent.
    ///
    /// Every segment gets the option until the backend has acknowledged a byte, because any of them can complete the
    /// handshake.
    #[inline]
    #[must_use]
    pub fn placement(&self, seq: u32, carries: bool) -> Placement {
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

    /// Translates a sequence number of the client, after its first byte, for the backend.
    #[inline]
    #[must_use]
    pub fn to_backend(&self, seq: u32) -> u32 {
        seq.wrapping_add(self.shift())
    }

    /// Translates a sequence number of the backend for the client. A number within the header becomes the number of the
    /// client's first byte.
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

    /// Reverses [`Self::packed`]; `None` if no stream has this word.
    #[must_use]
    pub fn unpacked(word: u64) -> Option<Self> {
        Some(Self {
            first: (word >> 32) as u32,
            // Without a stream the word is zero, which is no version's number.
            version: ProxyVersion::from_number((word >> 16) as u8)?,
            tlvs: ProxyTlvs::from_bits((word >> 24) as u8),
            header_len: (word >> 8) as u8,
            sent: word & 8 != 0,
            acknowledged: word & 2 != 0,
            aged: word & 4 != 0,
        })
    }
}

/// The streams and splices of a table, by entry index. The memory stays untouched until the first one begins.
#[derive(Debug)]
pub(super) struct Streams {
    /// Two words per entry.
    words: Words,
    /// Four words per entry.
    splices: Words,
    /// Whether any word has been written.
    used: bool,
    /// Whether any splice has been written.
    spliced: bool,
}

impl Streams {
    /// Storage for this many entries, in memory that `provide` returns for a part and a number of words.
    pub(super) fn new(entries: usize, mut provide: impl FnMut(Part, usize) -> Words) -> Self {
        let words = provide(Part::Streams, entries * 2);
        Self { words, splices: provide(Part::Splices, entries * 4), used: false, spliced: false }
    }

    /// The words of the streams and of the splices.
    pub(super) fn words(&self) -> [&[u32]; 2] {
        [&self.words, &self.splices]
    }

    /// Whether there has been a stream or a splice.
    #[inline]
    pub(super) fn used(&self) -> bool {
        self.used
    }

    pub(super) fn splice(&self, index: usize) -> Option<Splice> {
        splice_at(&self.splices, index)
    }

    pub(super) fn set_splice(&mut self, index: usize, splice: Splice) {
        if let Some(words) = self.splices.get_mut(index * 4..index * 4 + 4) {
            write_last_first(words, splice.packed());
            (self.used, self.spliced) = (true, true);
        }
    }

    pub(super) fn get(&self, index: usize) -> Option<Stream> {
        stream_at(&self.words, index)
    }

    pub(super) fn set(&mut self, index: usize, stream: Stream) {
        if let Some(words) = self.words.get_mut(index * 2..index * 2 + 2) {
            write_last_first(words, halves(stream.packed()));
            self.used = true;
        }
    }

    /// Removes the stream and the splice of an entry.
    #[inline]
    pub(super) fn forget(&mut self, index: usize) {
        self.forget_stream(index);
        if self.spliced {
            self.splices[index * 4..index * 4 + 4].fill(0);
        }
    }

    /// Removes the stream of an entry.
    #[inline]
    pub(super) fn forget_stream(&mut self, index: usize) {
        if self.used {
            self.words[index * 2..index * 2 + 2].fill(0);
        }
    }

    /// Moves the stream and the splice with their entry.
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

/// The stream at an index of an array of streams.
pub(super) fn stream_at(words: &[u32], index: usize) -> Option<Stream> {
    let words = words.get(index * 2..index * 2 + 2)?;
    Stream::unpacked(u64::from(words[0]) | u64::from(words[1]) << 32)
}

/// The splice at an index of an array of splices.
pub(super) fn splice_at(words: &[u32], index: usize) -> Option<Splice> {
    Splice::unpacked(words.get(index * 4..index * 4 + 4)?.try_into().ok()?)
}

fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

/// Writes the first word last, because it makes the others valid: the memory may outlive the process, which can be
/// killed at any time.
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
            assert_eq!(new.placement(at(0), true), Placement::First);
            assert_eq!(new.placement(at(0), false), Placement::Before, "a reset carries nothing");
            let sent = Stream { sent: true, ..new };
            assert_eq!(
                sent.placement(at(0), false),
                Placement::After,
                "the backend expects the byte after the header"
            );
            assert_eq!(sent.placement(at(0), true), Placement::First, "the header may be lost");
            assert_eq!(new.placement(at(u32::MAX), true), Placement::Before, "a keepalive");
            assert_eq!(new.placement(at(1), true), Placement::After);
            assert!(!new.acknowledge(at(41)).acknowledged);
            let done = new.acknowledge(at(42));
            assert!(done.acknowledged && !done.aged);
            assert_eq!(done.placement(at(0), true), Placement::After);
            assert_eq!(
                done.placement(at(1 << 31), true),
                Placement::After,
                "the numbers of a long stream wrap"
            );
        }
    }

    #[test]
    fn segments_have_the_option_until_an_acknowledgement_and_keep_numbers() {
        for first in [0, 1000, u32::MAX - 10] {
            let new = Stream::new(first, ProxyVersion::Toa, ProxyTlvs::NONE, 8);
            let at = |n: u32| first.wrapping_add(n);
            for offset in [u32::MAX, 0, 1, 5000] {
                assert_eq!(new.placement(at(offset), true), Placement::First);
                assert_eq!(new.placement(at(offset), false), Placement::Before);
                assert_eq!((new.to_backend(at(offset)), new.to_client(at(offset))), (at(offset), at(offset)));
            }
            assert!(!new.acknowledge(at(0)).acknowledged, "the SYN ACK, or an answer that repeats it");
            let done = new.acknowledge(at(1));
            assert_eq!((done.acknowledged, done.placement(at(0), true)), (true, Placement::After));
        }
    }

    #[test]
    fn early_numbers_within_the_header_become_the_first_byte() {
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
        fn translated_numbers_translate_back(first: u32, offset in 1u32..1 << 30) {
            let stream = stream(first).acknowledge(first.wrapping_add(42));
            let seq = first.wrapping_add(offset);
            prop_assert_eq!(stream.to_client(stream.to_backend(seq)), seq);
        }

        #[test]
        fn a_stream_survives_packing(
            first: u32, len in 1u8..=104, number in 1u8..=3, tlvs in 0u8..4, sent: bool, acknowledged: bool, aged: bool,
        ) {
            let version = ProxyVersion::from_number(number).unwrap();
            let tlvs = ProxyTlvs::from_bits(tlvs);
            let stream = Stream { first, version, tlvs, header_len: len, sent, acknowledged, aged };
            prop_assert_eq!(Stream::unpacked(stream.packed()), Some(stream));
        }
    }
}
