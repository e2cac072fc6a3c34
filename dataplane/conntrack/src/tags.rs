//! The verification tags of SCTP associations, by flow: they show which packets may end a flow (RFC 9260 section 8.5).
//!
//! A tag is a random number that an endpoint chooses and that its peer repeats in every packet. So a sender that
//! doesn't see the packets of an association cannot forge its ABORT. Tags are read from the handshake: INIT and INIT
//! ACK offer a pair, and the client's COOKIE ECHO, which repeats the server's tag, confirms it. With DSR the gateway
//! sees only the client, so it reads the server's tag from the first COOKIE ECHO.
//!
//! They have their own table, because only packets that begin or end an association read them. When a set is full, an
//! entry is overwritten, an unconfirmed pair before a confirmed one and an old one before a new one. Without its tags,
//! a flow cannot be ended by packets and lasts until its idle timeout. So the loss of an entry, or a flood of INITs,
//! ends no flow.

use std::ops::Range;

use tidegate_spec::now::Now;
use tidegate_wire::sctp::Kind;

use super::key::FlowHash;

/// Entries in a set.
const ENTRIES_PER_SET: usize = 4;
/// Words of an entry: the flow's hash, the confirmed and the offered pair, the time, and one unused word.
const WORDS: usize = 8;
const SET: usize = ENTRIES_PER_SET * WORDS;

/// The direction of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// From the client to the VIP, and the server's packets are seen too.
    Client,
    /// From the client, and the server's packets are not seen (DSR).
    ClientAlone,
    /// From the backend.
    Server,
}

/// The tags that a packet contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketTags {
    /// The kind of its chunks.
    pub kind: Kind,
    /// Its verification tag.
    pub tag: u32,
    /// The initiate tag of its INIT or INIT ACK, otherwise 0.
    pub initiate: u32,
    /// Whether the verification tag is the sender's own (bit T).
    pub reflected: bool,
}

/// The tags that the two ends require in received packets; 0 for an unknown one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TagPair {
    /// The tag of packets to the client.
    pub client: u32,
    /// The tag of packets to the server.
    pub server: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct TagEntry {
    hash: u64,
    confirmed: TagPair,
    offered: TagPair,
    seen_ms: u32,
}

impl TagEntry {
    fn read(words: &[u32]) -> Self {
        Self {
            hash: u64::from(words[0]) | u64::from(words[1]) << 32,
            confirmed: TagPair { client: words[2], server: words[3] },
            offered: TagPair { client: words[4], server: words[5] },
            seen_ms: words[6],
        }
    }

    fn write(&self, words: &mut [u32]) {
        let hash = self.hash;
        let (confirmed, offered) = (self.confirmed, self.offered);
        let new = [
            hash as u32,
            (hash >> 32) as u32,
            confirmed.client,
            confirmed.server,
            offered.client,
            offered.server,
            self.seen_ms,
        ];
        words[..new.len()].copy_from_slice(&new);
    }

    fn is_confirmed(&self) -> bool {
        self.confirmed != TagPair::default()
    }

    /// The pair in force: the confirmed one, otherwise the offered one.
    fn pair(&self) -> TagPair {
        if self.is_confirmed() { self.confirmed } else { self.offered }
    }

    /// Whether a packet has the tag that its receiver requires, or the sender's own with bit T (RFC 9260 section
    /// 8.5.1).
    fn proves(&self, from: Side, shown: &PacketTags) -> bool {
        let pair = self.pair();
        let to_server = (from != Side::Server) != shown.reflected;
        let wanted = if to_server { pair.server } else { pair.client };
        wanted != 0 && shown.tag == wanted
    }

    /// The kind of the packet, if its tag proves it. Stores the tags of a handshake.
    fn take(&mut self, from: Side, shown: &PacketTags) -> Kind {
        match (shown.kind, from) {
            (Kind::Init, Side::Client | Side::ClientAlone) => {
                self.offered = TagPair { client: shown.initiate, server: 0 };
            }
            (Kind::InitAck, Side::Server) if self.offered.client == shown.tag => {
                self.offered.server = shown.initiate;
            }
            (Kind::CookieEcho, Side::Client) => return self.confirm(shown.tag),
            (Kind::CookieEcho, Side::ClientAlone) if !self.is_confirmed() => {
                self.offered.server = shown.tag;
                return self.confirm(shown.tag);
            }
            (Kind::CookieEcho, _) => return Kind::Plain,
            (Kind::Shutdown | Kind::End, _) if !self.proves(from, shown) => return Kind::Unproved,
            _ => {}
        }
        shown.kind
    }

    /// Confirms the offered pair with the client's COOKIE ECHO. The sender of a forged INIT cannot confirm it, because
    /// it doesn't see the tag and the cookie of the INIT ACK (RFC 9260 section 5.2.2).
    fn confirm(&mut self, tag: u32) -> Kind {
        if tag == 0 || tag != self.offered.server {
            return Kind::Plain;
        }
        self.confirmed = self.offered;
        self.offered = TagPair::default();
        Kind::CookieEcho
    }
}

/// The tags of the associations of one worker.
#[derive(Debug)]
pub struct Tags {
    words: Box<[u32]>,
    sets: u64,
    /// Whether any tags have been stored.
    is_used: bool,
}

impl Tags {
    /// A table for the tags of `flows` associations, 32 bytes each. Memory is used only once tags are stored.
    pub(super) fn new(flows: usize) -> Self {
        let sets = flows.div_ceil(ENTRIES_PER_SET).max(1);
        Self { words: vec![0; sets * SET].into_boxed_slice(), sets: sets as u64, is_used: false }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// Records the INIT that begins a flow. `hash` is the hash of the client's flow key.
    pub fn begin(&mut self, hash: FlowHash, initiate: u32, now: Now) {
        let offered = TagPair { client: initiate, server: 0 };
        self.store(
            &TagEntry { hash: hash.0, offered, seen_ms: now.millis(), ..TagEntry::default() },
            hash,
            now,
        );
    }

    /// Records the association's tags for a further path.
    pub fn adopt(&mut self, hash: FlowHash, tags: TagPair, confirmed: bool, now: Now) {
        let entry = TagEntry { hash: hash.0, seen_ms: now.millis(), ..TagEntry::default() };
        let entry = if confirmed {
            TagEntry { confirmed: tags, ..entry }
        } else {
            TagEntry { offered: tags, ..entry }
        };
        self.store(&entry, hash, now);
    }

    /// The tags of a flow: the confirmed pair, otherwise the offered one.
    #[must_use]
    pub fn pair(&self, hash: FlowHash) -> Option<TagPair> {
        self.entry(hash).map(|entry| entry.pair())
    }

    /// The pair of a flow that a COOKIE ECHO has confirmed.
    #[must_use]
    pub fn confirmed(&self, hash: FlowHash) -> Option<TagPair> {
        self.entry(hash).filter(TagEntry::is_confirmed).map(|entry| entry.confirmed)
    }

    /// The pair that INIT and INIT ACK have offered and that no COOKIE ECHO has confirmed.
    #[must_use]
    pub fn offered(&self, hash: FlowHash) -> Option<TagPair> {
        self.entry(hash).map(|entry| entry.offered)
    }

    /// Sets the offered pair of a flow. Returns whether the flow has an entry.
    pub fn offer(&mut self, hash: FlowHash, tags: TagPair) -> bool {
        let mut entries = self.set_mut(hash).chunks_exact_mut(WORDS);
        let Some((words, entry)) = entries.find_map(|words| {
            let entry = TagEntry::read(words);
            (entry.hash == hash.0).then_some((words, entry))
        }) else {
            return false;
        };
        TagEntry { offered: tags, ..entry }.write(words);
        true
    }

    fn entry(&self, hash: FlowHash) -> Option<TagEntry> {
        if !self.is_used {
            // This also leaves the memory of an unused table untouched.
            return None;
        }
        let mut entries = self.set(hash).chunks_exact(WORDS).map(TagEntry::read);
        entries.find(|entry| entry.hash == hash.0)
    }

    /// Overwrites the flow's own entry, or else the least valuable one of the set.
    fn store(&mut self, entry: &TagEntry, hash: FlowHash, now: Now) {
        self.is_used = true;
        let set = self.set_mut(hash);
        let least = (0..ENTRIES_PER_SET).min_by_key(|&n| {
            let known = TagEntry::read(&set[n * WORDS..]);
            let age = now.millis().wrapping_sub(known.seen_ms);
            let empty = known.hash == 0 && known.seen_ms == 0;
            (known.hash != hash.0, !empty, known.is_confirmed(), u32::MAX - age)
        });
        if let Some(n) = least {
            entry.write(&mut set[n * WORDS..(n + 1) * WORDS]);
        }
    }

    /// The kind of a packet of a flow, if its tag proves it. Stores the tags of a handshake. `hash` is the hash of the
    /// client's flow key.
    #[must_use]
    pub fn proved(&mut self, hash: FlowHash, from: Side, shown: &PacketTags, now: Now) -> Kind {
        for words in self.set_mut(hash).chunks_exact_mut(WORDS) {
            let mut entry = TagEntry::read(words);
            if entry.hash == hash.0 {
                let kind = entry.take(from, shown);
                if kind != Kind::Unproved {
                    entry.seen_ms = now.millis();
                    entry.write(words);
                }
                return kind;
            }
        }
        match shown.kind {
            Kind::Shutdown | Kind::End => Kind::Unproved,
            Kind::CookieEcho => Kind::Plain,
            kind => kind,
        }
    }

    fn set(&self, hash: FlowHash) -> &[u32] {
        &self.words[self.words_of(hash)]
    }

    fn set_mut(&mut self, hash: FlowHash) -> &mut [u32] {
        let words = self.words_of(hash);
        &mut self.words[words]
    }

    /// The words of the set in which a flow has its entry.
    fn words_of(&self, hash: FlowHash) -> Range<usize> {
        // Multiply-shift instead of a remainder (Lemire 2019).
        let set = (u128::from(hash.0) * u128::from(self.sets)) >> 64;
        let start = set as usize * SET;
        start..start + SET
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOW: FlowHash = FlowHash(0x1234_5678_9abc_def0);
    const NOW: Now = Now(5_000_000_000);

    fn shown(kind: Kind, tag: u32, initiate: u32) -> PacketTags {
        PacketTags { kind, tag, initiate, reflected: false }
    }

    /// The client requires tag 7, and the server tag 9.
    fn associated() -> Tags {
        let mut tags = Tags::new(16);
        tags.begin(FLOW, 7, NOW);
        assert_eq!(tags.proved(FLOW, Side::Server, &shown(Kind::InitAck, 7, 9), NOW), Kind::InitAck);
        assert_eq!(tags.proved(FLOW, Side::Client, &shown(Kind::CookieEcho, 9, 0), NOW), Kind::CookieEcho);
        tags
    }

    #[test]
    fn an_abort_needs_the_receivers_tag_or_bit_t_and_the_senders_own() {
        for (from, theirs, own) in [(Side::Client, 9, 7), (Side::Server, 7, 9)] {
            for kind in [Kind::End, Kind::Shutdown] {
                let mut tags = associated();
                for wrong in [0, own, 8] {
                    assert_eq!(tags.proved(FLOW, from, &shown(kind, wrong, 0), NOW), Kind::Unproved);
                }
                assert_eq!(tags.proved(FLOW, from, &shown(kind, theirs, 0), NOW), kind);
            }
            let mut tags = associated();
            let reflected = |tag| PacketTags { kind: Kind::End, tag, initiate: 0, reflected: true };
            assert_eq!(tags.proved(FLOW, from, &reflected(theirs), NOW), Kind::Unproved);
            assert_eq!(tags.proved(FLOW, from, &reflected(own), NOW), Kind::End);
        }
    }

    #[test]
    fn a_forged_init_does_not_change_the_tags_of_an_association() {
        let mut tags = associated();
        let _init = tags.proved(FLOW, Side::Client, &shown(Kind::Init, 0, 666), NOW);
        let _answer = tags.proved(FLOW, Side::Server, &shown(Kind::InitAck, 666, 10), NOW);
        let guess = shown(Kind::CookieEcho, 11, 0);
        assert_eq!(tags.proved(FLOW, Side::Client, &guess, NOW), Kind::Plain);
        for tag in [666, 10] {
            for reflected in [false, true] {
                let abort = PacketTags { kind: Kind::End, tag, initiate: 0, reflected };
                assert_eq!(tags.proved(FLOW, Side::Client, &abort, NOW), Kind::Unproved);
            }
        }
        assert_eq!(tags.proved(FLOW, Side::Client, &shown(Kind::End, 9, 0), NOW), Kind::End);
    }

    #[test]
    fn a_client_that_starts_again_has_its_new_tags_after_the_cookie() {
        let mut tags = associated();
        let _init = tags.proved(FLOW, Side::Client, &shown(Kind::Init, 0, 70), NOW);
        let _answer = tags.proved(FLOW, Side::Server, &shown(Kind::InitAck, 70, 90), NOW);
        assert_eq!(tags.proved(FLOW, Side::Client, &shown(Kind::CookieEcho, 90, 0), NOW), Kind::CookieEcho);
        assert_eq!(tags.proved(FLOW, Side::Client, &shown(Kind::End, 9, 0), NOW), Kind::Unproved);
        assert_eq!(tags.proved(FLOW, Side::Server, &shown(Kind::End, 70, 0), NOW), Kind::End);
    }

    #[test]
    fn a_server_that_has_no_association_refuses_the_init() {
        let mut tags = Tags::new(16);
        tags.begin(FLOW, 7, NOW);
        assert_eq!(tags.proved(FLOW, Side::Server, &shown(Kind::End, 8, 0), NOW), Kind::Unproved);
        assert_eq!(tags.proved(FLOW, Side::Server, &shown(Kind::End, 7, 0), NOW), Kind::End);
    }

    #[test]
    fn a_flood_of_inits_displaces_other_inits_before_an_association() {
        let mut tags = associated();
        for n in 0..2_u64 {
            // All of these are in one set, because the upper bits of the hash select it.
            tags.begin(FlowHash(FLOW.0 ^ (n + 1)), 1, NOW);
        }
        for n in 2..10_000_u64 {
            tags.begin(FlowHash(FLOW.0 ^ (n + 1)), 1, Now(NOW.0 + n * 1_000_000));
        }
        assert_eq!(tags.proved(FLOW, Side::Client, &shown(Kind::End, 9, 0), NOW), Kind::End);
        let unknown = FlowHash(FLOW.0 ^ 1 << 40);
        assert_eq!(tags.proved(unknown, Side::Client, &shown(Kind::End, 9, 0), NOW), Kind::Unproved);
        assert_eq!(tags.proved(unknown, Side::Client, &shown(Kind::CookieEcho, 9, 0), NOW), Kind::Plain);
    }

    #[test]
    fn with_one_side_seen_the_first_cookie_has_the_servers_tag() {
        let mut tags = Tags::new(16);
        tags.begin(FLOW, 7, NOW);
        let alone = Side::ClientAlone;
        assert_eq!(tags.proved(FLOW, alone, &shown(Kind::CookieEcho, 9, 0), NOW), Kind::CookieEcho);
        assert_eq!(tags.proved(FLOW, alone, &shown(Kind::CookieEcho, 666, 0), NOW), Kind::Plain);
        assert_eq!(tags.proved(FLOW, alone, &shown(Kind::End, 666, 0), NOW), Kind::Unproved);
        assert_eq!(tags.proved(FLOW, alone, &shown(Kind::Shutdown, 9, 0), NOW), Kind::Shutdown);
    }
}
