//! The accounts of logged flows: what is counted, and that each begin and end is reported once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tidegate_spec::ids::{BackendId, EndpointId, ServiceId};
use tidegate_spec::limits::FLOW_LOG_CLOSED_MS;
use tidegate_spec::now::Now;
use tidegate_wire::Addr;
use tidegate_wire::tcp::flags;

use crate::flow_log::{EndReason, FlowEvent, FlowLog, FlowLogLoss, LoggedFlow, LoggedPacket};
use crate::{FlowKey, FlowTables, FlowTraffic, IdleTimeout, NewFlow, Packet};

const IDLE: Duration = Duration::from_secs(100);

fn at(millis: u64) -> Now {
    Now(1_000_000_000 + millis * 1_000_000)
}

fn key(n: u32) -> FlowKey {
    let client = Addr::v4((0x0a00_0000 + n / 60_000).to_be_bytes());
    FlowKey::flow(ServiceId::new(3, 0), client, (n % 60_000) as u16 + 1)
}

fn reply_key(n: u32) -> FlowKey {
    FlowKey::reply(EndpointId::new(1, 0), key(n).addr(), key(n).port())
}

struct Logged {
    tables: FlowTables,
    log: Arc<FlowLog>,
}

impl Logged {
    fn new(entries: usize) -> Self {
        let mut tables = FlowTables::new(entries, 0x5eed);
        let log = Arc::new(FlowLog::new());
        tables.log_to(&log);
        Self { tables, log }
    }

    fn records(&self) -> Vec<LoggedFlow> {
        std::iter::from_fn(|| self.log.pop()).collect()
    }

    /// Creates a flow and counts its first packet, of 60 bytes.
    fn open(&mut self, is_dsr: bool, n: u32, now: Now) {
        let (key, reply) = (key(n), reply_key(n));
        let packet = Packet::Tcp(flags::SYN);
        let hash = self.tables.hash(&key);
        let flow =
            NewFlow { key, hash, backend: BackendId::new(9, 0), packet, idle: IdleTimeout::new(IDLE), now };
        // A full table refuses some.
        if is_dsr {
            let _ = self.tables.dsr.insert(&flow);
        } else {
            let reply_hash = self.tables.hash(&reply);
            let _ = self.tables.nat.insert_pair(&flow, &reply, reply_hash);
        }
        self.count(is_dsr, n, true, false, flags::SYN, 60, now);
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a packet")]
    fn count(&mut self, dsr: bool, n: u32, is_first: bool, is_reply: bool, bits: u8, bytes: u32, now: Now) {
        let key = key(n);
        let hash = self.tables.hash(&key);
        let packet = LoggedPacket {
            is_reply,
            is_first,
            is_sent: true,
            bytes,
            tcp_flags: bits,
            ends_association: false,
        };
        self.tables.count_logged(dsr, &key, hash, &packet, now);
    }
}

fn ends(records: &[LoggedFlow]) -> Vec<(u16, EndReason)> {
    let end = |record: &LoggedFlow| match record.event {
        FlowEvent::Begin => None,
        FlowEvent::End(why) => Some((record.client.port, why)),
    };
    records.iter().filter_map(end).collect()
}

#[test]
fn a_closed_connection_is_reported_once_before_its_entry_expires() {
    for is_dsr in [true, false] {
        let mut logged = Logged::new(1000);
        logged.open(is_dsr, 7, at(0));
        let begin = logged.records();
        assert_eq!(begin.iter().map(|record| record.event).collect::<Vec<_>>(), [FlowEvent::Begin]);
        logged.count(is_dsr, 7, false, false, flags::ACK, 52, at(10));
        if !is_dsr {
            logged.count(is_dsr, 7, false, true, flags::ACK | flags::SYN, 1500, at(11));
            logged.count(is_dsr, 7, false, true, flags::ACK | flags::FIN, 60, at(1_500));
        }
        logged.tables.end_closed(at(60_000));
        assert_eq!(logged.records(), [], "one side is not enough");
        logged.count(is_dsr, 7, false, false, flags::ACK | flags::FIN, 52, at(61_000));
        // A later packet delays the report.
        logged.count(is_dsr, 7, false, false, flags::ACK, 52, at(63_000));
        logged.tables.end_closed(at(61_000 + u64::from(FLOW_LOG_CLOSED_MS)));
        assert_eq!(logged.records(), []);
        logged.tables.end_closed(at(63_000 + u64::from(FLOW_LOG_CLOSED_MS)));
        let records = logged.records();
        assert_eq!(ends(&records), [(8, EndReason::Closed)]);
        let [record] = records[..] else { panic!("one record") };
        assert_eq!((record.counts[0].packets, record.counts[0].bytes), (4, 60 + 3 * 52));
        let replies = if is_dsr { (0, 0) } else { (2, 1_560) };
        assert_eq!((record.counts[1].packets, record.counts[1].bytes), replies);
        assert_eq!((record.began, record.last, record.begin_seen), (at(0), at(63_000), true));
        assert_eq!(record.source.is_some(), !is_dsr);
        logged.tables.retain(at(64_000), |_| false);
        assert_eq!(logged.records(), [], "the removal of the entry is no second end");
    }
}

#[test]
fn a_view_has_what_was_counted_of_a_flow_that_is_logged_now() {
    for is_dsr in [true, false] {
        let mut logged = Logged::new(1000);
        (0..2).for_each(|n| logged.open(is_dsr, n, at(0)));
        logged.count(is_dsr, 1, false, false, flags::ACK, 1_500, at(1));
        if !is_dsr {
            logged.count(is_dsr, 1, false, true, flags::ACK, 40, at(2));
        }
        let viewed = |tables: &FlowTables| {
            let mut found = Vec::new();
            assert_eq!(
                tables.scan(0, u64::MAX, at(3), |flow| found.push((flow.client_port, flow.traffic))),
                None
            );
            found.sort_unstable_by_key(|(port, _)| *port);
            found
        };
        let traffic = |packets, bytes| Some(FlowTraffic { packets, bytes });
        let second = if is_dsr { traffic(2, 1_560) } else { traffic(3, 1_600) };
        assert_eq!(viewed(&logged.tables), [(1, traffic(1, 60)), (2, second)]);
        assert_eq!(logged.tables.end_all(0, u64::MAX), None);
        assert_eq!(
            viewed(&logged.tables),
            [(1, None), (2, None)],
            "they are in the table, but not in the log"
        );
    }
}

#[test]
fn the_reason_of_the_end_follows_from_packets_and_removal() {
    let mut logged = Logged::new(1000);
    (0..3).for_each(|n| logged.open(false, n, at(0)));
    logged.count(false, 1, false, true, flags::RST, 40, at(5));
    let key = key(2);
    let hash = logged.tables.hash(&key);
    logged.tables.nat.remove(&key, hash);
    logged.tables.age_each(at(3_600_000), usize::MAX);
    let mut found = ends(&logged.records());
    found.sort_unstable();
    assert_eq!(found, [(1, EndReason::Idle), (2, EndReason::Reset), (3, EndReason::Removed)]);
}

#[test]
fn a_flow_that_is_older_than_the_log_has_an_end_but_no_begin() {
    let mut logged = Logged::new(1000);
    let mut unlogged = FlowTables::new(1000, 0x5eed);
    std::mem::swap(&mut logged.tables, &mut unlogged);
    logged.open(true, 1, at(0));
    logged.tables.log_to(&logged.log);
    logged.count(true, 1, false, false, flags::ACK, 52, at(20));
    let mut cursor = Some(0);
    while let Some(next) = cursor {
        cursor = logged.tables.end_all(next, 64);
    }
    let records = logged.records();
    assert_eq!(ends(&records), [(2, EndReason::Stopped)]);
    assert_eq!((records[0].begin_seen, records[0].counts[0].packets), (false, 1));
}

#[test]
fn a_full_table_ends_accounts_and_counts_flows_without_entry() {
    for is_dsr in [true, false] {
        let mut logged = Logged::new(64);
        let (mut open, mut begins, mut evicted) = (HashMap::new(), 0_u64, 0_u64);
        for n in 0..2_000 {
            logged.open(is_dsr, n, at(u64::from(n)));
            for record in logged.records() {
                match record.event {
                    FlowEvent::Begin => {
                        begins += 1;
                        assert!(open.insert(record.client.port, ()).is_none(), "it begins once");
                    }
                    FlowEvent::End(why) => {
                        assert_eq!(why, EndReason::Evicted);
                        evicted += 1;
                        assert!(open.remove(&record.client.port).is_some(), "it ends once, after it began");
                    }
                }
            }
        }
        assert_eq!(begins + logged.log.lost(FlowLogLoss::NoEntry), 2_000);
        assert!(evicted > 1_000, "{evicted}");
        let live = if is_dsr { logged.tables.dsr.live() } else { logged.tables.nat.live() };
        assert_eq!(open.len(), live, "each flow in the table has an open account");
    }
}

proptest! {
    /// Whatever happens to the entries of flows (relocated, evicted, expired, removed, replaced), each begin has one
    /// end, and the counts of all ends together are the packets that were counted.
    #[test]
    fn no_end_and_no_packet_is_lost(
        is_dsr: bool,
        steps in proptest::collection::vec((0_u32..150, 0_u8..12, 20_u32..1500), 1..600),
    ) {
        let mut logged = Logged::new(96);
        let (mut now, mut counted, mut records) = (at(0), [0_u64; 2], Vec::new());
        for (n, step, bytes) in steps {
            now = now.plus(Duration::from_millis(700));
            let key = key(n);
            let hash = logged.tables.hash(&key);
            match step {
                0..5 => {
                    logged.open(is_dsr, n, now);
                    let has_entry = if is_dsr {
                        logged.tables.dsr.peek(&key, hash, now).is_some()
                    } else {
                        logged.tables.nat.peek(&key, hash, now).is_some()
                    };
                    if has_entry {
                        counted[0] += 60;
                    }
                }
                5..9 => {
                    let present = if is_dsr {
                        logged.tables.dsr.lookup(&key, hash, Packet::Tcp(flags::ACK), now).is_some()
                    } else {
                        logged.tables.nat.lookup(&key, hash, Packet::Tcp(flags::ACK), now).is_some()
                    };
                    let is_reply = !is_dsr && step % 2 == 0;
                    let bits = if bytes % 5 == 0 { flags::FIN | flags::ACK } else { flags::ACK };
                    logged.count(is_dsr, n, false, is_reply, bits, bytes, now);
                    if present {
                        counted[usize::from(is_reply)] += u64::from(bytes);
                    }
                }
                9 => {
                    if is_dsr {
                        logged.tables.dsr.remove(&key, hash);
                    } else {
                        logged.tables.nat.remove(&key, hash);
                    }
                }
                10 => drop(logged.tables.age(now, 8)),
                _ => logged.tables.end_closed(now),
            }
            records.extend(logged.records());
        }
        let mut cursor = Some(0);
        while let Some(next) = cursor {
            cursor = logged.tables.end_all(next, 16);
        }
        records.extend(logged.records());
        let mut open = std::collections::HashSet::new();
        let mut sums = [0_u64; 2];
        for record in &records {
            let flow = (record.client.addr, record.client.port);
            match record.event {
                FlowEvent::Begin => prop_assert!(open.insert(flow), "a begin while the flow is open"),
                FlowEvent::End(_) => {
                    prop_assert_eq!(open.remove(&flow), record.begin_seen);
                    sums[0] += record.counts[0].bytes;
                    sums[1] += record.counts[1].bytes;
                }
            }
        }
        prop_assert!(open.is_empty(), "{} flows have no end", open.len());
        prop_assert_eq!(sums, counted);
        prop_assert_eq!(logged.log.lost(FlowLogLoss::QueueFull), 0);
    }
}
