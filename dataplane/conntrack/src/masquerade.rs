//! Masqueraded flows: backends originate them, and they leave with a SNAT address of the gateway as their source
//! (`dataplane.gateway.masquerade`).
//!
//! They have their own table, because their key is the whole 5-tuple: no service or endpoint stands for a part of it.
//! The separate table also means that they never displace a Service's flow. They don't use the fast path: a packet
//! reads two or three cache lines without prefetching.
//!
//! Masqueraded flows have the states and timeouts of NAT flows ([`SideState::of_both`]). A table has a fixed capacity,
//! of which one source (an IPv4 address, or a /64) may use a quarter. Beyond either limit, a few entries are examined,
//! and a new flow replaces one that has ended or was never established. If its source has reached its share, only flows
//! of that source are replaced. An established flow is never replaced.
//!
//! Invariant: no two flows have the same replies, or the same packets of the source. Memory is reserved at the start,
//! and touched only when used.

use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_spec::limits::{
    MASQUERADE_EVICTION_PROBES, MASQUERADE_FLOWS_MIN, MASQUERADE_SHARE, MASQUERADE_SOURCES,
    MASQUERADE_TABLE_SHARE,
};
use tidegate_spec::now::Now;
use tidegate_wire::Addr;
use tidegate_wire::rewrite::Endpoint;

use super::flow_state::{EvictionClass, FlowStatus, IdleTimeout, Packet, SideState};
use super::insert_error::InsertError;
use super::key::{FlowHasher, FlowKey};
use super::nat::ReplyKey;
use super::view::{FlowKind, FlowView};

/// The addresses and ports of a masqueraded flow. With ICMP echo the port of `source` and `local` is the identifier,
/// and the port of `peer` is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Masquerade {
    /// The protocol number.
    pub proto: u8,
    /// The backend that originated it.
    pub source: Endpoint,
    /// The outside host.
    pub peer: Endpoint,
    /// The SNAT address and port that the outside host sees.
    pub local: Endpoint,
}

/// The direction of a packet, and the index that finds its flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// From the backend.
    Out,
    /// To the backend.
    In,
}

/// An entry of the table.
#[derive(Debug, Clone, Copy)]
struct Entry {
    flow: Masquerade,
    /// The states of the backend's and of the peer's packets.
    states: [SideState; 2],
    idle: IdleTimeout,
    /// The counter of its source.
    group: u16,
    is_used: bool,
    /// The time of the last packet ([`Now::millis`]).
    seen: u32,
    /// The number of the next entry with the same hash, for each [`Direction`]. The first one also links free entries.
    next: [u32; 2],
}

impl Entry {
    fn status(&self) -> FlowStatus {
        SideState::of_both(self.states[0], self.states[1], self.idle)
    }

    fn idle_ms(&self, now: Now) -> u32 {
        now.millis().wrapping_sub(self.seen)
    }

    fn is_expired(&self, now: Now) -> bool {
        self.idle_ms(now) >= self.status().timeout_ms
    }

    fn near(&self, direction: Direction) -> &Endpoint {
        match direction {
            Direction::Out => &self.flow.source,
            Direction::In => &self.flow.local,
        }
    }
}

/// The masqueraded flows of one worker, of both families.
#[derive(Debug)]
pub struct Masquerades {
    /// Entries have numbers from 1 on; 0 means none.
    entries: Vec<Entry>,
    /// The first entry of each hash, for each [`Direction`].
    heads: [Vec<u32>; 2],
    /// The first free entry among those used before.
    free: u32,
    /// The number of flows for each group of sources.
    of_group: Vec<u32>,
    capacity: usize,
    share: u32,
    live: usize,
    /// The next entry to examine for ageing, and for eviction.
    cursor: usize,
    hasher: FlowHasher,
}

impl Masquerades {
    /// A table for a share of `entries_per_core` flows.
    pub(super) fn new(entries_per_core: usize, hasher: &FlowHasher) -> Self {
        // The numbers of entries have 32 bits.
        let capacity = (entries_per_core / MASQUERADE_TABLE_SHARE).clamp(MASQUERADE_FLOWS_MIN, 1 << 30);
        let buckets = capacity.next_power_of_two();
        Self {
            entries: Vec::with_capacity(capacity),
            heads: [vec![0; buckets], vec![0; buckets]],
            free: 0,
            of_group: vec![0; MASQUERADE_SOURCES],
            capacity,
            // At most 2^28.
            share: (capacity / MASQUERADE_SHARE) as u32,
            live: 0,
            cursor: 0,
            hasher: hasher.clone(),
        }
    }

    /// Whether the table has no flow.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// The number of flows, including expired ones that have not been aged out yet.
    #[must_use]
    pub fn live(&self) -> usize {
        self.live
    }

    /// Bytes of address space.
    pub(super) fn memory_bytes(&self) -> usize {
        let indices = self.heads.iter().map(Vec::len).sum::<usize>() + self.of_group.len();
        self.entries.capacity() * size_of::<Entry>() + indices * size_of::<u32>()
    }

    /// Finds the flow of a packet from a backend and records the packet in it. Returns the local address and port.
    pub fn outward(
        &mut self,
        proto: u8,
        source: &Endpoint,
        peer: &Endpoint,
        packet: Packet,
        now: Now,
    ) -> Option<Endpoint> {
        let entry = self.alive(Direction::Out, proto, source, peer, now)?;
        let [own, other] = entry.states;
        // As with NAT flows, a SYN begins a new connection if the peer or both sides have ended the old one.
        entry.states = if packet.is_opening() && (other.is_ended() || entry.status().is_over()) {
            [SideState::first(packet), SideState::silent(packet)]
        } else {
            [own.next(packet), other]
        };
        entry.seen = now.millis();
        Some(entry.flow.local)
    }

    /// Finds the flow of a packet to a local address and port, and records the packet in it. Returns the backend's own
    /// address and port.
    pub fn inward(
        &mut self,
        proto: u8,
        local: &Endpoint,
        peer: &Endpoint,
        packet: Packet,
        now: Now,
    ) -> Option<Endpoint> {
        let entry = self.alive(Direction::In, proto, local, peer, now)?;
        entry.states[1] = entry.states[1].next(packet);
        entry.seen = now.millis();
        Some(entry.flow.source)
    }

    /// The local address and port of a backend's flow. Changes nothing.
    #[must_use]
    pub fn peek_outward(&self, proto: u8, source: &Endpoint, peer: &Endpoint, now: Now) -> Option<Endpoint> {
        let entry = self.entry(self.find(Direction::Out, proto, source, peer)?)?;
        (!entry.is_expired(now)).then_some(entry.flow.local)
    }

    /// The backend's address and port of the flow with this local address and port. Changes nothing.
    #[must_use]
    pub fn peek_inward(&self, proto: u8, local: &Endpoint, peer: &Endpoint, now: Now) -> Option<Endpoint> {
        let entry = self.entry(self.find(Direction::In, proto, local, peer)?)?;
        (!entry.is_expired(now)).then_some(entry.flow.source)
    }

    /// Whether a flow has this local address and port towards a peer.
    #[must_use]
    pub fn has_local(&self, proto: u8, local: &Endpoint, peer: &Endpoint) -> bool {
        self.find(Direction::In, proto, local, peer).is_some()
    }

    /// The state of a local address and port towards a peer, for a new flow that needs it.
    #[must_use]
    pub fn local_key(&self, proto: u8, local: &Endpoint, peer: &Endpoint, now: Now) -> ReplyKey {
        let Some(entry) = self.find(Direction::In, proto, local, peer).and_then(|at| self.entry(at)) else {
            return ReplyKey::Free;
        };
        match ReplyKey::of(entry.status(), entry.idle_ms(now)) {
            ReplyKey::Expired => ReplyKey::Free,
            found => found,
        }
    }

    /// Inserts a flow that begins with `packet` from the backend. An earlier flow with the same packets of the backend,
    /// or with the same replies, is removed.
    ///
    /// # Errors
    /// [`InsertError::Full`] if no flow can be evicted: all examined flows are established.
    pub fn insert(
        &mut self,
        flow: &Masquerade,
        packet: Packet,
        idle: IdleTimeout,
        now: Now,
    ) -> Result<(), InsertError> {
        self.take_local(flow.proto, &flow.local, &flow.peer);
        if let Some(at) = self.find(Direction::Out, flow.proto, &flow.source, &flow.peer) {
            self.remove(at);
        }
        let group = self.group(&flow.source.addr);
        let has_share = self.of_group.get(usize::from(group)).is_none_or(|&flows| flows >= self.share);
        if has_share || self.live >= self.capacity {
            let victim = self.victim(has_share.then_some(group), now).ok_or(InsertError::Full)?;
            self.remove(victim);
        }
        let entry = Entry {
            flow: *flow,
            states: [SideState::first(packet), SideState::silent(packet)],
            idle,
            group,
            is_used: true,
            seen: now.millis(),
            next: [0; 2],
        };
        let at = match self.entry(self.free).map(|free| free.next[0]) {
            Some(next) => std::mem::replace(&mut self.free, next),
            None => {
                debug_assert!(
                    self.entries.len() < self.entries.capacity(),
                    "there is an entry for each flow"
                );
                self.entries.push(entry);
                // The capacity is below 2^32.
                self.entries.len() as u32
            }
        };
        let next = [Direction::Out, Direction::In].map(|direction| {
            let head = self.head(direction, flow.proto, entry.near(direction), &flow.peer);
            std::mem::replace(&mut self.heads[direction as usize][head], at)
        });
        if let Some(new) = self.entry_mut(at) {
            *new = Entry { next, ..entry };
        }
        self.live += 1;
        self.of_group[usize::from(group)] += 1;
        Ok(())
    }

    /// Removes the flow with this local address and port, if there is one.
    pub fn take_local(&mut self, proto: u8, local: &Endpoint, peer: &Endpoint) {
        if let Some(at) = self.find(Direction::In, proto, local, peer) {
            self.remove(at);
        }
    }

    /// Removes expired flows among the next `entries` entries, each examined at most once. Returns how many.
    pub(super) fn age(&mut self, now: Now, entries: usize) -> usize {
        let before = self.live;
        for _ in 0..entries.min(self.entries.len()) {
            let at = self.advance();
            if self.entry(at).is_some_and(|entry| entry.is_used && entry.is_expired(now)) {
                self.remove(at);
            }
        }
        before - self.live
    }

    /// The number of entries that have been used.
    pub(super) fn entry_count(&self) -> usize {
        self.entries.len()
    }

    /// The flow of an entry below [`Self::entry_count`].
    pub(super) fn view(&self, index: usize, now: Now) -> Option<FlowView> {
        let entry = self.entries.get(index).filter(|entry| entry.is_used)?;
        let Masquerade { proto, source, peer, local } = entry.flow;
        Some(FlowView {
            service: ServiceId::from_raw(0),
            client: source.addr,
            client_port: source.port,
            backend: BackendId::from_raw(0),
            kind: FlowKind::Masquerade { proto, peer, local },
            phase: entry.status().phase,
            idle_ms: entry.idle_ms(now),
            expired: entry.is_expired(now),
            traffic: None,
        })
    }

    /// A flow that a new one may replace, among the next few entries: an expired one, or else the longest idle one of
    /// the lowest eviction class. If `group` is set, only flows of its sources are considered.
    fn victim(&mut self, group: Option<u16>, now: Now) -> Option<u32> {
        let mut best = None;
        for _ in 0..MASQUERADE_EVICTION_PROBES.min(self.entries.len()) {
            let at = self.advance();
            let Some(entry) = self.entry(at) else { continue };
            if !entry.is_used || group.is_some_and(|group| group != entry.group) {
                continue;
            }
            if entry.is_expired(now) {
                return Some(at);
            }
            let class = entry.status().eviction_class;
            let rank = (class, u32::MAX - entry.idle_ms(now), at);
            if class <= EvictionClass::Closing && best.is_none_or(|than| rank < than) {
                best = Some(rank);
            }
        }
        best.map(|(.., at)| at)
    }

    /// The number of the next entry to examine.
    fn advance(&mut self) -> u32 {
        self.cursor = if self.cursor >= self.entries.len() { 1 } else { self.cursor + 1 };
        // The capacity is below 2^32.
        self.cursor as u32
    }

    fn entry(&self, at: u32) -> Option<&Entry> {
        self.entries.get((at as usize).wrapping_sub(1))
    }

    fn entry_mut(&mut self, at: u32) -> Option<&mut Entry> {
        self.entries.get_mut((at as usize).wrapping_sub(1))
    }

    fn find(&self, direction: Direction, proto: u8, near: &Endpoint, peer: &Endpoint) -> Option<u32> {
        if self.live == 0 {
            return None;
        }
        let mut at = self.heads[direction as usize][self.head(direction, proto, near, peer)];
        while let Some(entry) = self.entry(at) {
            if entry.flow.proto == proto && entry.near(direction) == near && entry.flow.peer == *peer {
                return Some(at);
            }
            at = entry.next[direction as usize];
        }
        None
    }

    /// The entry of a flow, which is removed if it has expired.
    fn alive(
        &mut self,
        direction: Direction,
        proto: u8,
        near: &Endpoint,
        peer: &Endpoint,
        now: Now,
    ) -> Option<&mut Entry> {
        let at = self.find(direction, proto, near, peer)?;
        if self.entry(at)?.is_expired(now) {
            self.remove(at);
            return None;
        }
        self.entry_mut(at)
    }

    /// The position among the heads. The key of the far end includes the secret hash of the near end, so that a sender
    /// cannot choose packets with the same hash.
    fn head(&self, direction: Direction, proto: u8, near: &Endpoint, peer: &Endpoint) -> usize {
        let owner = u32::from(proto) | (direction as u32) << 8;
        let first = FlowKey { owner, tag: u32::from(near.port) << 16, addr: near.addr };
        let first = self.hasher.hash(&first).bits();
        let tag = u32::from(peer.port) << 16 | (first >> 48) as u32;
        let both = FlowKey { owner: first as u32, tag, addr: peer.addr };
        // The number of heads is a power of two.
        self.hasher.hash(&both).bits() as usize & (self.heads[direction as usize].len() - 1)
    }

    /// The counter of a source: an IPv4 address, or a /64.
    fn group(&self, source: &Addr) -> u16 {
        let mut addr = *source;
        if !addr.is_v4() {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&source.bytes()[..8]);
            addr = Addr::v6(bytes);
        }
        let hash = self.hasher.hash(&FlowKey { owner: u32::MAX, tag: 0, addr }).bits();
        (hash % MASQUERADE_SOURCES as u64) as u16
    }

    fn remove(&mut self, at: u32) {
        let Some(&entry) = self.entry(at).filter(|entry| entry.is_used) else { return };
        for direction in [Direction::Out, Direction::In] {
            let index = direction as usize;
            let head = self.head(direction, entry.flow.proto, entry.near(direction), &entry.flow.peer);
            let mut link = self.heads[index][head];
            if link == at {
                self.heads[index][head] = entry.next[index];
                continue;
            }
            while let Some(before) = self.entry_mut(link) {
                link = before.next[index];
                if link == at {
                    before.next[index] = entry.next[index];
                    break;
                }
            }
        }
        let free = self.free;
        if let Some(entry) = self.entry_mut(at) {
            (entry.is_used, entry.next) = (false, [free, 0]);
        }
        self.free = at;
        self.live -= 1;
        self.of_group[usize::from(entry.group)] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::Duration;

    use super::*;
    use tidegate_wire::proto;
    use tidegate_wire::tcp::flags::{ACK, FIN, RST, SYN};

    const HOUR: Duration = Duration::from_secs(3600);

    fn table(entries: usize) -> Masquerades {
        Masquerades::new(entries, &FlowHasher::new(7))
    }

    fn at(address: [u8; 4], port: u16) -> Endpoint {
        Endpoint { addr: Addr::v4(address), port }
    }

    fn flow(source: u8, port: u16) -> Masquerade {
        Masquerade {
            proto: proto::UDP,
            source: at([10, 0, 0, source], port),
            peer: at([198, 51, 100, 9], 53),
            local: at([192, 0, 2, source], port),
        }
    }

    fn begin(table: &mut Masquerades, flow: &Masquerade, now: Now) -> Result<(), InsertError> {
        table.insert(flow, Packet::Datagram, IdleTimeout::new(HOUR), now)
    }

    fn seconds(n: u64) -> Now {
        Now(n * 1_000_000_000)
    }

    #[test]
    fn it_agrees_with_a_map_over_random_operations() {
        let mut table = table(8 * 4096);
        let mut model = HashMap::new();
        let mut random = 1_u64;
        for n in 0..20_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(n | 1);
            let one = flow((random >> 60) as u8, (random >> 40) as u16 % 100);
            if random >> 33 & 3 == 0 {
                table.take_local(one.proto, &one.local, &one.peer);
                model.remove(&(one.source.addr, one.source.port));
            } else {
                begin(&mut table, &one, Now(0)).expect("the table is not full");
                model.insert((one.source.addr, one.source.port), one);
            }
            assert_eq!(table.live(), model.len());
        }
        for one in (0..16).flat_map(|source| (0..100).map(move |port| flow(source, port))) {
            let known = model.get(&(one.source.addr, one.source.port));
            let out = table.peek_outward(one.proto, &one.source, &one.peer, Now(0));
            assert_eq!(out, known.map(|known| known.local));
            let back = table.peek_inward(one.proto, &one.local, &one.peer, Now(0));
            assert_eq!(back, known.map(|known| known.source));
        }
        assert_eq!(
            (0..table.entry_count()).filter_map(|index| table.view(index, Now(0))).count(),
            model.len()
        );
        table.age(seconds(31), usize::MAX);
        assert!(table.is_empty() && table.of_group.iter().all(|&flows| flows == 0));
    }

    #[test]
    fn a_source_has_at_most_a_quarter_and_replaces_its_own_flows() {
        let mut table = table(8 * 256);
        let other = flow(2, 1);
        begin(&mut table, &other, Now(0)).expect("the table is not full");
        for port in 0..1000 {
            begin(&mut table, &flow(1, port), Now(0)).expect("it replaces its own flow");
            assert!(table.live() <= 65);
        }
        assert!(table.peek_outward(other.proto, &other.source, &other.peer, Now(0)).is_some());
    }

    #[test]
    fn established_flows_are_never_replaced() {
        let mut table = table(8 * 64);
        for (source, port) in (1..=8).flat_map(|source| (0..16).map(move |port| (source, port))) {
            let one = flow(source, port);
            if begin(&mut table, &one, Now(0)).is_ok() {
                let back = table.inward(one.proto, &one.local, &one.peer, Packet::Datagram, Now(0));
                assert_eq!(back, Some(one.source));
            }
        }
        assert_eq!(table.live(), 64, "the table is full");
        assert_eq!(begin(&mut table, &flow(9, 1), Now(0)), Err(InsertError::Full));
        table.age(seconds(3600), usize::MAX);
        assert!(begin(&mut table, &flow(9, 1), seconds(3600)).is_ok());
    }

    #[test]
    fn flows_have_the_states_and_timeouts_of_nat() {
        let one = Masquerade { proto: proto::TCP, ..flow(1, 1) };
        let mut table = table(8 * 64);
        let idle = IdleTimeout::new(HOUR);
        let send = |table: &mut Masquerades, bits, now| {
            table.outward(one.proto, &one.source, &one.peer, Packet::Tcp(bits), now)
        };
        let answer = |table: &mut Masquerades, bits, now| {
            table.inward(one.proto, &one.local, &one.peer, Packet::Tcp(bits), now)
        };
        table.insert(&one, Packet::Tcp(SYN), idle, Now(0)).expect("the table is not full");
        assert_eq!(send(&mut table, SYN, seconds(60)), None, "an opening flow lasts for 60 s");
        table.insert(&one, Packet::Tcp(SYN), idle, Now(0)).expect("the table is not full");
        assert_eq!(answer(&mut table, SYN | ACK, Now(0)), Some(one.source));
        assert_eq!(send(&mut table, ACK, Now(0)), Some(one.local));
        assert_eq!(table.local_key(one.proto, &one.local, &one.peer, Now(0)), ReplyKey::Taken);
        assert_eq!(send(&mut table, RST, Now(0)), Some(one.local), "one side alone ends nothing");
        assert_eq!(send(&mut table, ACK, seconds(3000)), Some(one.local));
        send(&mut table, FIN | ACK, seconds(3000));
        answer(&mut table, FIN | ACK, seconds(3000));
        assert_eq!(table.local_key(one.proto, &one.local, &one.peer, seconds(3000)), ReplyKey::Over);
        assert_eq!(send(&mut table, SYN, seconds(3001)), Some(one.local), "a new connection from this port");
        let key = table.local_key(one.proto, &one.local, &one.peer, seconds(3001));
        assert_eq!(key, ReplyKey::Opening { idle_ms: 0 });
    }
}
