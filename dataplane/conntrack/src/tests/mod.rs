//! Tests of the flow tables. `oracle` compares them with `HashMap`s, `full` fills them, `restore` reads them like
//! another process.

mod full;
mod logging;
mod oracle;
mod restore;

use std::collections::HashSet;
use std::time::Duration;

use tidegate_spec::ids::{BackendId, EndpointId, ServiceId};
use tidegate_wire::Addr;
use tidegate_wire::tcp::flags::{ACK, FIN, PSH, RST, SYN};

use super::flow_state::{CLOSED_MS, CLOSING_MS, OPENING_MS, SideState};
use super::table::Table;
use super::*;
use crate::flow_copies::FlowCopies;

const MS: u64 = 1_000_000;

fn at(ms: u64) -> Now {
    Now(ms * MS)
}

fn idle(seconds: u64) -> IdleTimeout {
    IdleTimeout::new(Duration::from_secs(seconds))
}

fn service(n: usize) -> ServiceId {
    ServiceId::new(n, 0)
}

fn backend(n: usize) -> BackendId {
    BackendId::new(n, 0)
}

/// Address number `n` of a family.
fn addr(v4: bool, n: u32) -> Addr {
    let [a, b, c, d] = n.to_be_bytes();
    if v4 {
        Addr::v4([10 ^ a, b, c, d])
    } else {
        Addr::v6([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d])
    }
}

/// Pseudo-random numbers that are the same on every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// Keys of a NAT flow: client `n` to service 1, by SNAT port `port` to endpoint 2.
fn pair(v4: bool, n: u32, port: u16) -> (FlowKey, FlowKey) {
    let flow = FlowKey::flow(service(1), addr(v4, n), 40_000);
    (flow, FlowKey::reply(EndpointId::new(2, 0), addr(v4, 0xffff), port))
}

/// A flow to backend 3 with a timeout of 900 seconds.
fn new_flow(tables: &FlowTables, key: FlowKey, packet: Packet, now: Now) -> NewFlow {
    NewFlow { key, hash: tables.hash(&key), backend: backend(3), packet, idle: idle(900), now }
}

fn insert_pair(
    tables: &mut FlowTables,
    (flow, reply): (FlowKey, FlowKey),
    packet: Packet,
    now: Now,
) -> Result<(), InsertError> {
    let (flow, b) = (new_flow(tables, flow, packet, now), tables.hash(&reply));
    tables.nat.insert_pair(&flow, &reply, b)
}

fn insert(tables: &mut FlowTables, key: &FlowKey, packet: Packet, now: Now) -> Result<(), InsertError> {
    tables.dsr.insert(&new_flow(tables, *key, packet, now))
}

/// Ages every hash bucket of the four tables, which alternate.
fn age_all(tables: &mut FlowTables, now: Now) {
    for _ in 0..4 {
        tables.age(now, usize::MAX);
    }
}

/// The invariants of `table.rs` and `nat.rs`, over every entry.
fn assert_whole(tables: &FlowTables) {
    whole(&tables.dsr.v4);
    whole(&tables.dsr.v6);
    whole(&tables.nat.v4);
    whole(&tables.nat.v6);
}

fn whole<const A: usize, const W: usize, const K: usize, const B: usize>(table: &Table<A, W, K, B>) {
    let mut keys = HashSet::new();
    for bucket in 0..table.buckets {
        for position in table.positions(bucket).into_iter().filter(|&position| !table.is_empty(position)) {
            let key = table.key(position);
            let hash = table.hash_of(&key);
            assert!(
                [table.primary(hash), table.secondary(hash)].contains(&bucket),
                "outside of its hash buckets"
            );
            assert_eq!(table.find(&key, hash), Some(position), "not found at its position");
            assert!(keys.insert((key.owner, key.tag, key.addr)), "a key is in the table twice");
            if Table::<A, W, K, B>::PAIRED {
                let peer = table.peer(position).expect("a pair has two entries");
                assert_eq!(table.peer(peer), Some(position), "the peer names another");
                assert_ne!(table.is_reply(peer), table.is_reply(position), "one entry for each direction");
                assert_eq!(table.value(peer), table.value(position));
            }
        }
    }
    assert_eq!(table.live, keys.len(), "live entries are counted");
    let counted = (0..16).map(|n| table.counts().flows(service(n).raw()) as usize).sum::<usize>();
    let paired = Table::<A, W, K, B>::PAIRED;
    assert_eq!(counted, if paired { keys.len() / 2 } else { keys.len() }, "flows are counted by service");
    let positions = (0..table.buckets).flat_map(|bucket| table.positions(bucket));
    let opening = positions.filter(|&position| {
        !table.is_affinity(position) && table.state(position).is_some_and(SideState::is_opening)
    });
    let opening = opening.count();
    let counted = (0..16).map(|n| table.counts().opening_of(service(n).raw()) as usize).sum::<usize>();
    assert_eq!(
        (counted, table.counts().opening() as usize),
        (opening, opening),
        "opening entries are counted"
    );
}

#[test]
fn flows_cost_the_documented_memory_at_the_bound() {
    let flows = 1 << 16;
    let tables = FlowTables::new(flows, 1);
    let per_flow = tables.regions().map(|region| size_of_val(region) / flows);
    assert_eq!(per_flow, [32, 48, 96, 192]);
    let words = tables.regions().map(<[u32]>::len);
    assert_eq!(StoredTables::words(flows), words, "known before there are any");
    for copies in [0, 1, 1000] {
        assert_eq!(FlowCopies::new(copies).memory_bytes(), FlowCopies::bytes_for(copies));
    }
    let masquerades = tables.masquerades.memory_bytes();
    assert!(
        masquerades < flows / 8 * 128 + 8192,
        "{masquerades} bytes for an eighth as many masqueraded flows"
    );
    assert!(tables.memory_bytes() - masquerades < flows * (32 + 48 + 96 + 192 + 32) + 5 * 128);
    for (region, align) in tables.regions().into_iter().zip([64, 64, 64, 128]) {
        assert_eq!(region.as_ptr().addr() % align, 0, "hash buckets are aligned to cache lines");
    }
}

#[test]
fn a_flow_is_found_by_its_own_key_only() {
    let mut tables = FlowTables::new(100, 1);
    for v4 in [true, false] {
        let key = FlowKey::flow(service(1), addr(v4, 1), 0);
        insert(&mut tables, &key, Packet::Tcp(SYN), at(0)).unwrap();
        let others = [
            FlowKey::affinity(service(1), addr(v4, 1)),
            FlowKey::flow(ServiceId::new(1, 1), addr(v4, 1), 0),
            FlowKey::flow(service(1), addr(v4, 2), 0),
            FlowKey::flow(service(1), addr(v4, 1), 1),
        ];
        assert!(tables.dsr.peek(&key, tables.hash(&key), at(1)).is_some());
        for other in others {
            assert!(tables.dsr.peek(&other, tables.hash(&other), at(1)).is_none());
        }
    }
    assert_eq!(tables.live(), 2);
}

#[test]
fn a_flow_expires_by_its_state_and_the_idle_timeout_of_its_service() {
    // (packets one ms apart, milliseconds that the flow may then be idle)
    let cases: [(&[u8], u64); 7] = [
        (&[SYN], u64::from(OPENING_MS)),
        (&[SYN, ACK], 900_000),
        (&[SYN, ACK, FIN | ACK], u64::from(CLOSING_MS)),
        (&[SYN, ACK, RST], u64::from(CLOSED_MS)),
        (&[ACK], u64::from(OPENING_MS)),
        (&[ACK, ACK], u64::from(OPENING_MS)),
        (&[SYN | ACK, SYN | ACK], u64::from(OPENING_MS)),
    ];
    for (packets, timeout) in cases {
        for early in [true, false] {
            let mut tables = FlowTables::new(100, 1);
            let key = FlowKey::flow(service(1), addr(true, 1), 1);
            let hash = tables.hash(&key);
            insert(&mut tables, &key, Packet::Tcp(packets[0]), at(0)).unwrap();
            for (n, &flags) in packets.iter().enumerate().skip(1) {
                tables.dsr.lookup(&key, hash, Packet::Tcp(flags), at(n as u64)).unwrap();
            }
            let end = at(packets.len() as u64 - 1 + timeout - u64::from(early));
            let mut aged = FlowTables::new(100, 1);
            std::mem::swap(&mut aged.dsr, &mut tables.dsr);
            assert_eq!(aged.dsr.peek(&key, hash, end).is_some(), early, "{packets:?}");
            assert_eq!(aged.age(end, 1000), usize::from(!early), "{packets:?}");
            assert_eq!(aged.counters().evictions(EvictionReason::Expired), u64::from(!early));
            assert_eq!(aged.live(), usize::from(early));
        }
    }
}

#[test]
fn an_expired_flow_is_no_hit_even_before_it_is_aged_out() {
    let mut tables = FlowTables::new(100, 1);
    let key = FlowKey::affinity(service(1), addr(true, 1));
    let hash = tables.hash(&key);
    let flow = new_flow(&tables, key, Packet::Datagram, at(0));
    tables.dsr.insert(&NewFlow { backend: backend(1), idle: idle(10), ..flow }).unwrap();
    assert!(tables.dsr.lookup(&key, hash, Packet::Datagram, at(9_999)).is_some());
    assert!(tables.dsr.lookup(&key, hash, Packet::Datagram, at(19_998)).is_some());
    assert!(tables.dsr.lookup(&key, hash, Packet::Datagram, at(29_998)).is_none());
    assert_eq!(tables.counters().evictions(EvictionReason::Expired), 1);
}

#[test]
fn a_syn_reopens_a_flow_that_was_over_and_no_other() {
    for (packets, reopens) in
        [(&[SYN][..], false), (&[SYN, ACK], false), (&[SYN, ACK, FIN | ACK], true), (&[SYN, ACK, RST], true)]
    {
        let mut tables = FlowTables::new(100, 1);
        let key = FlowKey::flow(service(1), addr(true, 1), 1);
        let hash = tables.hash(&key);
        insert(&mut tables, &key, Packet::Tcp(packets[0]), at(0)).unwrap();
        for &flags in &packets[1..] {
            assert!(!tables.dsr.lookup(&key, hash, Packet::Tcp(flags), at(1)).unwrap().reopened);
        }
        let hit = tables.dsr.lookup(&key, hash, Packet::Tcp(SYN), at(2)).unwrap();
        assert_eq!(hit.reopened, reopens, "{packets:?}");
        let expected = if packets.len() == 2 { Phase::Established } else { Phase::Opening };
        assert_eq!(hit.phase, expected);
    }
}

#[test]
fn a_syn_reopens_a_nat_flow_that_the_server_has_closed() {
    for flags in [FIN | ACK, RST] {
        let mut tables = FlowTables::new(100, 1);
        let (flow, reply) = pair(true, 1, 5000);
        let (a, b) = (tables.hash(&flow), tables.hash(&reply));
        insert_pair(&mut tables, (flow, reply), Packet::Tcp(SYN), at(0)).unwrap();
        tables.nat.lookup_reply(&reply, b, Packet::Tcp(SYN | ACK), at(1)).unwrap();
        assert!(!tables.nat.lookup(&flow, a, Packet::Tcp(ACK), at(2)).unwrap().reopened);
        tables.nat.lookup_reply(&reply, b, Packet::Tcp(flags), at(3)).unwrap();
        let hit = tables.nat.lookup(&flow, a, Packet::Tcp(SYN), at(4)).unwrap();
        assert!(hit.reopened);
        assert_eq!(tables.nat.peek_reply(&reply, b, at(4)).unwrap().phase, Phase::Opening);
        // The caller may choose another reply key for the flow.
        let (_, other) = pair(true, 1, 5001);
        insert_pair(&mut tables, (flow, other), Packet::Tcp(SYN), at(4)).unwrap();
        assert!(tables.nat.reply_key(&reply, b, &pair(true, 2, 1).0, at(4)) == ReplyKey::Free);
        assert_eq!(tables.nat.peek(&flow, a, at(4)).unwrap().source_port, 5001);
        assert_eq!(tables.nat.live(), 1);
        assert_whole(&tables);
    }
}

#[test]
fn both_directions_of_a_nat_flow_have_the_data_for_translation() {
    for v4 in [true, false] {
        let mut tables = FlowTables::new(100, 1);
        let (flow, reply) = pair(v4, 7, 5000);
        insert_pair(&mut tables, (flow, reply), Packet::Datagram, at(0)).unwrap();
        let hit = tables.nat.lookup(&flow, tables.hash(&flow), Packet::Datagram, at(1)).unwrap();
        assert_eq!((hit.backend, hit.source, hit.source_port), (backend(3), addr(v4, 0xffff), 5000));
        let hash = tables.hash(&reply);
        let hit = tables.nat.lookup_reply(&reply, hash, Packet::Datagram, at(1)).unwrap();
        assert_eq!((hit.service, hit.client, hit.client_port), (service(1), addr(v4, 7), 40_000));
        assert_eq!(hit.backend, backend(3));
    }
}

#[test]
fn packets_of_either_direction_keep_a_nat_flow() {
    let mut tables = FlowTables::new(100, 1);
    let (flow, reply) = pair(true, 1, 5000);
    let (a, b) = (tables.hash(&flow), tables.hash(&reply));
    let new = NewFlow { idle: idle(30), ..new_flow(&tables, flow, Packet::Datagram, at(0)) };
    tables.nat.insert_pair(&new, &reply, b).unwrap();
    for second in 1..100 {
        assert!(tables.nat.lookup_reply(&reply, b, Packet::Datagram, at(second * 20_000)).is_some());
        assert_eq!(tables.age(at(second * 20_000 + 19_999), 1000), 0);
    }
    assert!(tables.nat.lookup(&flow, a, Packet::Datagram, at(99 * 20_000 + 29_999)).is_some());
    assert_eq!(tables.age(at(99 * 20_000 + 2 * 29_999 + 1), 1000), 1);
    assert_eq!(tables.live(), 0);
    assert_whole(&tables);
}

#[test]
fn a_reply_key_in_use_is_a_conflict_until_its_flow_is_over() {
    let mut tables = FlowTables::new(100, 1);
    let (first, reply) = pair(true, 1, 5000);
    let (second, _) = pair(true, 2, 5000);
    let hash = tables.hash(&reply);
    assert!(tables.nat.reply_key(&reply, hash, &second, at(0)) == ReplyKey::Free);
    insert_pair(&mut tables, (first, reply), Packet::Tcp(SYN), at(0)).unwrap();
    assert!(tables.nat.reply_key(&reply, hash, &second, at(1)) == ReplyKey::Opening { idle_ms: 1 });
    let refused = insert_pair(&mut tables, (second, reply), Packet::Tcp(SYN), at(1));
    assert_eq!(refused, Err(InsertError::Conflict));
    assert_eq!(tables.nat.live(), 1);
    let later = at(u64::from(OPENING_MS));
    assert!(tables.nat.reply_key(&reply, hash, &second, later) == ReplyKey::Expired);
    insert_pair(&mut tables, (second, reply), Packet::Tcp(SYN), later).unwrap();
    assert_eq!(tables.nat.peek(&first, tables.hash(&first), later), None);
    assert_eq!(tables.nat.live(), 1);
    assert_eq!(tables.counters().evictions(EvictionReason::Expired), 1);
    assert_whole(&tables);
}

#[test]
fn removing_either_entry_removes_the_pair() {
    for by_reply in [false, true] {
        let mut tables = FlowTables::new(100, 1);
        let (flow, reply) = pair(false, 1, 5000);
        insert_pair(&mut tables, (flow, reply), Packet::Tcp(SYN), at(0)).unwrap();
        let key = if by_reply { reply } else { flow };
        let hash = tables.hash(&key);
        assert!(tables.nat.remove(&key, hash));
        assert!(!tables.nat.remove(&key, hash));
        assert_eq!(tables.nat.live(), 0);
        assert_eq!(tables.counters().evictions(EvictionReason::Removed), 1);
        assert_whole(&tables);
    }
}

#[test]
fn the_wrap_of_the_clock_neither_ends_a_flow_nor_keeps_one() {
    let wrap = 1u64 << 32;
    let mut tables = FlowTables::new(100, 1);
    let key = FlowKey::flow(service(1), addr(true, 1), 1);
    let hash = tables.hash(&key);
    insert(&mut tables, &key, Packet::Tcp(SYN), at(wrap - 10)).unwrap();
    tables.dsr.lookup(&key, hash, Packet::Tcp(ACK), at(wrap - 5)).unwrap();
    assert_eq!(tables.age(at(wrap + 899_994), 1000), 0);
    assert!(tables.dsr.peek(&key, hash, at(wrap + 899_994)).is_some());
    assert_eq!(tables.age(at(wrap + 899_995), 1000), 1);
}

#[test]
fn a_packet_stamped_before_the_last_one_does_not_end_its_flow() {
    let mut tables = FlowTables::new(100, 1);
    let key = FlowKey::flow(service(1), addr(true, 1), 1);
    insert(&mut tables, &key, Packet::Tcp(SYN), at(1000)).unwrap();
    assert!(tables.dsr.lookup(&key, tables.hash(&key), Packet::Tcp(ACK), at(999)).is_some());
}

#[test]
fn scan_shows_every_flow_once_with_any_step() {
    let mut tables = FlowTables::new(300, 1);
    for n in 0..100 {
        let v4 = n % 2 == 0;
        insert(&mut tables, &FlowKey::flow(service(1), addr(v4, n), 9), Packet::Tcp(SYN), at(0)).unwrap();
        insert_pair(&mut tables, pair(v4, n, 5000 + n as u16), Packet::Tcp(SYN), at(0)).unwrap();
    }
    for step in [1, 7, 1 << 40] {
        let (mut cursor, mut seen) = (Some(0), Vec::new());
        while let Some(at_cursor) = cursor {
            cursor = tables.scan(at_cursor, step, at(5), |flow| seen.push(flow));
        }
        assert_eq!(seen.len(), 200);
        assert!(seen.iter().all(|flow| flow.idle_ms == 5 && flow.phase == Phase::Opening && !flow.expired));
        let distinct: HashSet<_> =
            seen.iter().map(|flow| (flow.client, matches!(flow.kind, FlowKind::Nat { .. }))).collect();
        assert_eq!(distinct.len(), 200);
    }
}

#[test]
fn retain_removes_whole_flows() {
    let mut tables = FlowTables::new(300, 1);
    for n in 0..100 {
        insert(&mut tables, &FlowKey::flow(service(1), addr(true, n), 9), Packet::Tcp(SYN), at(0)).unwrap();
        insert_pair(&mut tables, pair(false, n, 5000 + n as u16), Packet::Tcp(SYN), at(0)).unwrap();
    }
    let kept = addr(false, 5);
    tables.retain(at(1), |flow| flow.client == kept);
    assert_eq!(tables.live(), 1);
    assert_eq!(tables.counters().evictions(EvictionReason::Removed), 199);
    assert_whole(&tables);
}

#[test]
fn names_of_reasons_are_unique_and_snake_case() {
    let names: HashSet<_> = EvictionReason::ALL.iter().map(|why| why.as_str()).collect();
    assert_eq!(names.len(), EvictionReason::COUNT);
    assert!(names.iter().all(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_')));
    assert!(EvictionReason::ALL.iter().enumerate().all(|(n, &why)| why as usize == n));
}
