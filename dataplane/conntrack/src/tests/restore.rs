//! Tests of restoring: all flows are restored, and damage never results in another flow.

use std::collections::HashSet;

use proptest::prelude::*;
use tidegate_wire::proxy_header::ProxyVersion;
use tidegate_wire::proxy_tlvs::ProxyTlvs;
use tidegate_wire::rewrite::Endpoint;

use super::*;
use crate::eviction_reason::EvictionReason;
use crate::flow_record::{LocalFlow, Translation};
use crate::{NotRestored, StoredTable, StoredTables};

const SEED: u64 = 7;
const ENTRIES: usize = 256;

/// A random flow: its number, family, mode and packets.
#[derive(Debug, Clone)]
struct TestFlow {
    n: u32,
    v4: bool,
    nat: bool,
    is_affinity: bool,
    answered: bool,
    streams: bool,
}

fn any_flow() -> impl Strategy<Value = TestFlow> {
    (0..400_u32, any::<[bool; 5]>()).prop_map(|(n, [v4, nat, is_affinity, answered, streams])| TestFlow {
        n,
        v4,
        nat,
        is_affinity,
        answered,
        streams,
    })
}

/// A flow without the ids that differ between processes.
type Seen = (bool, Addr, u16, BackendId, String, Phase, u32, bool);

fn seen(tables: &FlowTables, now: Now) -> HashSet<Seen> {
    let mut found = HashSet::new();
    let _end = tables.scan(0, u64::MAX, now, |flow| {
        let kind = format!("{:?}", flow.kind);
        let is_new = found.insert((
            flow.service == service(1),
            flow.client,
            flow.client_port,
            flow.backend,
            kind,
            flow.phase,
            flow.idle_ms,
            flow.expired,
        ));
        assert!(is_new, "no flow occurs twice");
    });
    found
}

fn keys(made: &TestFlow) -> (FlowKey, FlowKey) {
    pair(made.v4, made.n, 2000 + made.n as u16)
}

fn make(all: &[TestFlow]) -> FlowTables {
    let mut tables = FlowTables::new(ENTRIES, SEED);
    for made in all {
        let (flow, reply) = keys(made);
        let now = at(u64::from(made.n));
        let (hash, backend) = (tables.hash(&flow), backend(made.n as usize % 5));
        if made.nat {
            let reply_hash = tables.hash(&reply);
            let new = NewFlow { backend, ..new_flow(&tables, flow, Packet::Tcp(SYN), now) };
            let new = tables.nat.insert_pair(&new, &reply, reply_hash);
            if new.is_ok() && made.answered {
                let _hit = tables.nat.lookup_reply(&reply, reply_hash, Packet::Tcp(SYN | ACK), now);
                let _hit = tables.nat.lookup(&flow, hash, Packet::Tcp(ACK), now);
            }
            if made.streams {
                let stream = Stream::new(made.n, ProxyVersion::V2, ProxyTlvs::NONE, 28);
                tables.nat.set_stream(service(1), &flow, hash, stream);
                let splice =
                    Splice { cookie: made.n, isn: 5, window: 9, backend: made.answered.then_some(3) };
                tables.nat.set_splice(service(1), &flow, hash, splice);
            }
        } else {
            let key = if made.is_affinity { FlowKey::affinity(service(1), flow.addr()) } else { flow };
            let hash = tables.hash(&key);
            let new = NewFlow { backend, ..new_flow(&tables, key, Packet::Tcp(SYN), now) };
            let _new = tables.dsr.insert(&new);
            if made.answered {
                let _hit = tables.dsr.lookup(&key, hash, Packet::Tcp(ACK), now);
            }
        }
    }
    tables
}

/// All flows of stored tables, restored into tables of another size and secret.
fn restored(stored: &StoredTables<'_>, entries: usize, now: Now) -> (FlowTables, usize) {
    let mut tables = FlowTables::new(entries, 99);
    let mut refused = 0;
    stored.scan(|flow| {
        let imported = flow.map(|flow| {
            let idle = flow.idle_timeout.expect("it was stored");
            tables.import(&flow, EndpointId::new(2, 0), idle, Origin::EarlierProcess, now)
        });
        refused += usize::from(imported != Ok(Imported::New));
    });
    (tables, refused)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn all_flows_are_restored_with_their_states_ages_and_streams(
        made in proptest::collection::vec(any_flow(), 0..200),
        later in 0..30_000_u64,
        entries in prop_oneof![Just(ENTRIES), Just(4 * ENTRIES)],
    ) {
        let before = make(&made);
        let then = at(1_000 + later);
        // The clock of the new process starts again.
        let now = at(5);
        let (mut after, refused) = restored(&before.as_stored(ENTRIES, SEED, then), entries, now);
        let alive: HashSet<Seen> = seen(&before, then).into_iter().filter(|flow| !flow.7).collect();
        prop_assert_eq!(refused, seen(&before, then).len() - alive.len(), "expired flows are refused");
        prop_assert_eq!(seen(&after, now), alive);
        prop_assert_eq!(after.live(), seen(&after, now).len());
        for made in made.iter().filter(|made| made.nat) {
            let (flow, reply) = keys(made);
            let (old, new) = (before.hash(&flow), after.hash(&flow));
            if after.nat.peek(&flow, new, now).is_none() {
                continue;
            }
            prop_assert_eq!(before.nat.stream(&flow, old), after.nat.stream(&flow, new));
            prop_assert_eq!(before.nat.splice(&flow, old), after.nat.splice(&flow, new));
            let reply_hash = after.hash(&reply);
            prop_assert!(after.nat.peek_reply(&reply, reply_hash, now).is_some());
            prop_assert!(after.nat.remove(&reply, reply_hash), "both entries are removed");
        }
    }

    #[test]
    fn damage_never_results_in_another_nat_flow(
        made in proptest::collection::vec(any_flow(), 1..200),
        flips in proptest::collection::vec((0_usize..4, any::<usize>(), 0..32_u32), 1..60),
        zeroed in proptest::collection::vec((0_usize..4, any::<usize>(), 1_usize..20), 0..20),
    ) {
        let before = make(&made);
        let then = at(1_000);
        let stored = before.as_stored(ENTRIES, SEED, then);
        let mut words = stored.tables.map(|table| table.entries.to_vec());
        // Flips bits only in used words, because most words are free. Flips each bit once: the same flip in both
        // entries of a flow could be a valid change of its backend.
        let mut flipped = 0_u32;
        for &(table, n, bit) in &flips {
            if flipped >> bit & 1 == 1 {
                continue;
            }
            flipped |= 1 << bit;
            let used: Vec<usize> = (0..words[table].len()).filter(|&at| words[table][at] != 0).collect();
            if !used.is_empty() {
                words[table][used[n % used.len()]] ^= 1 << bit;
            }
        }
        for &(table, at, len) in &zeroed {
            let start = at % words[table].len();
            let end = words[table].len().min(start + len);
            words[table][start..end].fill(0);
        }
        let mut tables = stored.tables;
        for (table, words) in tables.iter_mut().zip(&words) {
            *table = StoredTable { entries: words, ..*table };
        }
        let damaged = StoredTables { tables, ..stored };
        let identity = |flow: &LocalFlow| (flow.name, flow.backend, flow.translation.map(|one| one.local));
        let mut known = Vec::new();
        before.as_stored(ENTRIES, SEED, then).scan(|flow| known.extend(flow.ok().map(|flow| identity(&flow))));
        let mut strangers = Vec::new();
        damaged.scan(|flow| {
            if let Ok(flow) = flow && flow.translation.is_some() && !known.contains(&identity(&flow)) {
                strangers.push(flow);
            }
        });
        prop_assert!(strangers.is_empty(), "{strangers:?}");
        // All flows that are read can be inserted.
        let _ = restored(&damaged, ENTRIES, at(5));
    }

    #[test]
    fn words_of_any_kind_are_read_without_a_panic(words in proptest::collection::vec(any::<u32>(), 0..4096)) {
        let table = StoredTable { entries: &words, streams: &words, splices: &words };
        let stored = StoredTables { tables: [table; 4], entries_per_core: 7, seed: 1, then_ms: 0 };
        let _ = restored(&stored, ENTRIES, at(5));
    }
}

#[test]
fn an_entry_of_one_side_without_the_other_is_damaged() {
    let made = TestFlow { n: 1, v4: true, nat: true, is_affinity: false, answered: true, streams: false };
    let mut before = make(std::slice::from_ref(&made));
    let (_, reply) = keys(&made);
    let hash = before.hash(&reply);
    let packed = super::super::key::PackedKey::from(&reply);
    let position = before.nat.v4.find(&packed, hash).expect("it was made");
    before.nat.v4.clear(position, EvictionReason::Removed);
    let mut found = Vec::new();
    before.as_stored(ENTRIES, SEED, at(10)).scan(|flow| found.push(flow.map(|flow| flow.name)));
    assert_eq!(found, [Err(NotRestored::Damaged)]);
}

#[test]
fn the_words_of_entries_match_the_stored_form() {
    let form = "1: dsr-v4 5/3/16, dsr-v6 8/2/16, nat-v4 8/2/16, nat-v6 16/2/32";
    assert_eq!(crate::STORED_FORM, form, "describe the words of the new format here");
    let mut tables = FlowTables::new(ENTRIES, SEED);
    let (flow, reply) = pair(true, 5, 2005);
    insert(&mut tables, &flow, Packet::Tcp(SYN), at(77)).expect("the table is not full");
    insert_pair(&mut tables, (flow, reply), Packet::Tcp(SYN), at(77)).expect("the table is not full");
    let (client, local) = (u32::from_le_bytes([10, 0, 0, 5]), u32::from_le_bytes([10, 0, 0xff, 0xff]));
    // The port, the state (a SYN was seen), and 225 * 2^2 seconds.
    let tag = 40_000 << 16 | 1 << 12 | 2 << 8 | 225;
    let reply_tag = 2_005 << 16 | 1 << 15;
    let [dsr, _, nat, _] = tables.regions();
    let has = |words: &[u32], entry: &[u32]| words.windows(entry.len()).any(|window| window == entry);
    assert!(has(dsr, &[1, tag, 77, 3, client]));
    assert!(has(nat, &[1, tag, 77, 3, client, 2, reply_tag, local]));
    let answer = reply_tag | (tag & 0x7fff);
    assert!(has(nat, &[2, answer, 77, 3, local, 1, 40_000 << 16, client]));
}

#[test]
fn a_flow_that_one_side_has_ended_is_imported_whole_or_not_at_all() {
    for (from, seed) in
        [Origin::Peer, Origin::EarlierProcess].into_iter().flat_map(|from| (0..500).map(move |n| (from, n)))
    {
        let mut tables = FlowTables::new(8, seed);
        for n in 0..8 {
            let (name, reply) = pair(true, n, 5000 + n as u16);
            let translation = Some(Translation {
                local: Endpoint { addr: reply.addr(), port: reply.port() },
                server: SideState::TcpEstablished,
                stream: None,
                splice: None,
                has_replies: false,
            });
            let (client, idle_ms, idle_timeout) = (SideState::TcpClosed, 20_000, Some(idle(900)));
            let (backend, tags, is_relayed) = (backend(3), None, true);
            let flow =
                LocalFlow { name, backend, client, translation, tags, idle_ms, idle_timeout, is_relayed };
            let _ = tables.import(&flow, EndpointId::new(2, 0), idle(900), from, at(1_000_000));
            assert_whole(&tables);
        }
    }
}
