//! Flow tables allocate all their memory at construction. No operation of a worker on them allocates, at the limit,
//! beyond it, or during ageing.

use std::time::Duration;

use tidegate_conntrack::{FlowKey, FlowTables, IdleTimeout, NewFlow, Packet};
use tidegate_spec::ids::{BackendId, EndpointId, ServiceId};
use tidegate_spec::now::Now;
use tidegate_wire::Addr;
use tidegate_wire::tcp::flags::{ACK, FIN, SYN};

/// Processes three times as many flows as the limit, half of them established, with hits, ends of connections and
/// ageing.
fn work(tables: &mut FlowTables, bound: u32) {
    let idle = IdleTimeout::new(Duration::from_secs(30));
    for n in 0..3 * bound {
        let now = Now(u64::from(n) * 10_000_000);
        let [_, b, c, d] = n.to_be_bytes();
        let client = if n % 2 == 0 {
            Addr::v4([10, b, c, d])
        } else {
            Addr::v6([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, b, c, d])
        };
        let key = FlowKey::flow(ServiceId::new(1, 0), client, 40_000);
        let reply = FlowKey::reply(EndpointId::new(1, 0), client, 40_000);
        let (hash, reply_hash) = (tables.hash(&key), tables.hash(&reply));
        let (syn, ack) = (Packet::Tcp(SYN), Packet::Tcp(ACK));
        let backend = BackendId::new(1, 0);
        let flow = NewFlow { key, hash, backend, packet: syn, idle, now };
        let _ = tables.dsr.insert(&flow);
        let _ = tables.nat.insert_pair(&flow, &reply, reply_hash);
        tables.dsr.prefetch(&key, hash);
        tables.nat.prefetch(&key, hash);
        if n % 4 < 2 {
            tables.dsr.lookup(&key, hash, ack, now);
            tables.nat.lookup_reply(&reply, reply_hash, Packet::Tcp(SYN | ACK), now);
            tables.nat.lookup(&key, hash, ack, now);
        }
        if n % 16 == 0 {
            tables.nat.lookup(&key, hash, Packet::Tcp(FIN | ACK), now);
            tables.dsr.remove(&key, hash);
        }
        tables.age(now, 1);
    }
    let end = Now(u64::from(3 * bound) * 10_000_000);
    tables.scan(0, u64::MAX, end, |flow| assert_eq!(flow.client_port, 40_000));
    tables.retain(end, |flow| flow.client.is_v4());
}

#[test]
fn flow_tables_allocate_nothing_after_construction() {
    let bound = 2000;
    let mut tables = None;
    let made = allocation_counter::measure(|| tables = Some(FlowTables::new(bound as usize, 7)));
    assert!(made.count_total > 0, "the allocator counts");
    let mut tables = tables.expect("the closure ran");
    let worked = allocation_counter::measure(|| work(&mut tables, bound));
    assert_eq!(worked.count_total, 0);
    let counters = tables.counters();
    assert!(counters.evictions.iter().sum::<u64>() > 0, "there were more flows than the limit: {counters:?}");
}
