//! Compares the tables with simple models based on `HashMap`, over random operations.

use std::collections::HashMap;

use proptest::prelude::*;
use tidegate_spec::limits::SYN_REPEATED_MS;

use super::super::flow_state::{EvictionClass, FlowStatus, SideState};
use super::*;

/// One step. Keys are from a small set, so that steps affect the same flows.
#[derive(Debug, Clone)]
enum Step {
    Client {
        flow: u8,
        packet: Packet,
    },
    Server {
        flow: u8,
        packet: Packet,
    },
    Insert {
        flow: u8,
        reply: u8,
        backend: usize,
        packet: Packet,
        idle: u64,
    },
    /// A new flow takes the reply key of another flow that can release it.
    Take {
        flow: u8,
        reply: u8,
    },
    Remove {
        flow: u8,
    },
    Wait {
        ms: u64,
    },
    Age {
        buckets: usize,
    },
}

fn packet() -> impl Strategy<Value = Packet> {
    let flags = prop_oneof![Just(SYN), Just(ACK), Just(SYN | ACK), Just(FIN | ACK), Just(RST)];
    prop_oneof![4 => flags.prop_map(Packet::Tcp), 1 => Just(Packet::Datagram)]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0u8..24;
    let step = prop_oneof![
        4 => (key.clone(), packet()).prop_map(|(flow, packet)| Step::Client { flow, packet }),
        3 => (key.clone(), packet()).prop_map(|(flow, packet)| Step::Server { flow, packet }),
        4 => (key.clone(), 0u8..24, 0usize..9, packet(), prop_oneof![1u64..30, 30u64..1000])
            .prop_map(|(flow, reply, backend, packet, idle)| Step::Insert { flow, reply, backend, packet, idle }),
        2 => (key.clone(), 0u8..24).prop_map(|(flow, reply)| Step::Take { flow, reply }),
        1 => key.prop_map(|flow| Step::Remove { flow }),
        2 => prop_oneof![0u64..50, 0u64..20_000, 0u64..200_000].prop_map(|ms| Step::Wait { ms }),
        1 => (0usize..20).prop_map(|buckets| Step::Age { buckets }),
    ];
    prop::collection::vec(step, 1..250)
}

/// Whether a flow consists of datagrams. A service has one protocol.
fn is_datagrams(n: u8) -> bool {
    n >= 20 || n % 4 >= 2
}

/// A packet with the protocol of a flow.
fn of_protocol(n: u8, packet: Packet) -> Packet {
    match packet {
        _ if is_datagrams(n) => Packet::Datagram,
        Packet::Datagram => Packet::Tcp(PSH | ACK),
        Packet::Tcp(_) | Packet::Sctp(_) => packet,
    }
}

/// The keys of every kind and family.
fn flow_key(n: u8) -> FlowKey {
    let client = addr(n.is_multiple_of(2), u32::from(n / 6));
    let of_datagrams = if is_datagrams(n) { 3 } else { 0 };
    FlowKey::flow(service(usize::from(n % 3) + of_datagrams), client, u16::from(n / 12))
}

fn dsr_key(n: u8) -> FlowKey {
    if n >= 20 { FlowKey::affinity(service(0), addr(n.is_multiple_of(2), 0)) } else { flow_key(n) }
}

/// A key in the family of the flow. There are few, so many flows use the same reply key.
fn reply_key(flow: u8, n: u8) -> FlowKey {
    let of_datagrams = if is_datagrams(flow) { 3 } else { 0 };
    FlowKey::reply(
        EndpointId::new(usize::from(n % 3) + of_datagrams, 0),
        addr(flow.is_multiple_of(2), 77),
        u16::from(n / 3),
    )
}

/// The model's state of one side.
#[derive(Debug, Clone, Copy)]
struct Side {
    state: SideState,
    seen_ms: u64,
}

#[derive(Debug, Clone, Copy)]
struct Flow {
    backend: BackendId,
    idle: IdleTimeout,
    client: Side,
    /// The reply key and the server's side, for NAT.
    server: Option<(FlowKey, Side)>,
}

impl Flow {
    fn status(&self) -> FlowStatus {
        match self.server {
            Some((_, server)) => SideState::of_both(self.client.state, server.state, self.idle),
            None => self.client.state.alone(self.idle),
        }
    }

    fn alive(&self, ms: u64) -> bool {
        let seen = self.server.map_or(0, |(_, side)| side.seen_ms).max(self.client.seen_ms);
        ms - seen < u64::from(self.status().timeout_ms)
    }

    /// How long the client of a pair has been waiting for an answer to its SYNs.
    fn waits(&self, ms: u64) -> u64 {
        let Some((_, server)) = self.server else { return 0 };
        let silent = [self.client, server].iter().all(|side| side.state == SideState::TcpOpening);
        if silent { ms - server.seen_ms.max(self.client.seen_ms) } else { 0 }
    }

    /// The state that determines whether another flow may take the reply key.
    fn reply_key(&self, ms: u64) -> ReplyKey {
        let seen = self.server.map_or(0, |(_, side)| side.seen_ms).max(self.client.seen_ms);
        let idle_ms = u32::try_from(ms - seen).unwrap();
        let status = self.status();
        match status.phase {
            _ if status.is_over() => ReplyKey::Over,
            Phase::Opening if status.eviction_class == EvictionClass::Answered => {
                ReplyKey::Answered { idle_ms }
            }
            Phase::Opening => ReplyKey::Opening { idle_ms },
            Phase::Closing | Phase::Closed if idle_ms >= 1000 => ReplyKey::HalfClosed { idle_ms },
            _ => ReplyKey::Taken,
        }
    }

    /// Records a packet of the client. Returns whether it reopens the flow.
    fn client_packet(&mut self, packet: Packet, ms: u64) -> bool {
        let ended = |side: Side| matches!(side.state, SideState::TcpClosing | SideState::TcpClosed);
        let over = self.status().is_over() || self.server.is_some_and(|(_, side)| ended(side));
        let reopened = over && packet == Packet::Tcp(SYN);
        let state = if reopened { SideState::TcpOpening } else { self.client.state.next(packet) };
        self.client = Side { state, seen_ms: ms };
        if let (true, Some((_, side))) = (reopened, &mut self.server) {
            *side = Side { state: SideState::TcpOpening, seen_ms: ms };
        }
        reopened
    }
}

/// The flows of the model by key.
type Model = HashMap<FlowKey, Flow>;

fn alive(model: &Model, key: &FlowKey, ms: u64) -> Option<Flow> {
    model.get(key).copied().filter(|flow| flow.alive(ms))
}

/// Tables of NAT flows and their model, which every step compares.
struct Pairs {
    tables: FlowTables,
    model: Model,
    ms: u64,
}

impl Pairs {
    fn client(&mut self, flow: u8, packet: Packet) -> Result<(), TestCaseError> {
        let ms = self.ms;
        let packet = of_protocol(flow, packet);
        let key = flow_key(flow);
        let expected = alive(&self.model, &key, ms).map(|mut flow| {
            let repeated = packet == Packet::Tcp(SYN) && flow.waits(ms) >= u64::from(SYN_REPEATED_MS);
            let reopened = flow.client_packet(packet, ms);
            self.model.insert(key, flow);
            let (reply, _) = flow.server.unwrap();
            let phase = flow.client.state.phase();
            let (source, source_port) = (reply.addr(), reply.port());
            NatHit { backend: flow.backend, source, source_port, phase, reopened, repeated, adopted: false }
        });
        let hash = self.tables.hash(&key);
        prop_assert_eq!(self.tables.nat.lookup(&key, hash, packet, at(ms)), expected);
        Ok(())
    }

    fn server(&mut self, flow: u8, packet: Packet) -> Result<(), TestCaseError> {
        let (ms, now) = (self.ms, at(self.ms));
        let packet = of_protocol(flow, packet);
        let reply = reply_key(flow, flow);
        let owner = self.model.iter().find(|(_, flow)| flow.server.unwrap().0 == reply && flow.alive(ms));
        let stranger = FlowKey::flow(service(9), addr(flow.is_multiple_of(2), 9), 9);
        let wanted = owner.map_or(ReplyKey::Free, |(_, flow)| flow.reply_key(ms));
        let expected = owner.map(|(&key, &flow)| (key, flow)).map(|(key, mut flow)| {
            let side = &mut flow.server.as_mut().unwrap().1;
            *side = Side { state: side.state.next(packet), seen_ms: ms };
            let phase = side.state.phase();
            self.model.insert(key, flow);
            let service = ServiceId::from_raw(key.owner);
            ReplyHit { service, client: key.addr(), client_port: key.port(), backend: flow.backend, phase }
        });
        let hash = self.tables.hash(&reply);
        let found = match self.tables.nat.reply_key(&reply, hash, &stranger, now) {
            // The model does not age.
            ReplyKey::Expired => ReplyKey::Free,
            found => found,
        };
        prop_assert_eq!(found, wanted);
        prop_assert_eq!(self.tables.nat.lookup_reply(&reply, hash, packet, now), expected);
        Ok(())
    }

    fn insert(
        &mut self,
        (flow, reply): (u8, u8),
        backend: BackendId,
        packet: Packet,
        idle: IdleTimeout,
    ) -> Result<(), TestCaseError> {
        let ms = self.ms;
        let packet = of_protocol(flow, packet);
        let (key, reply) = (flow_key(flow), reply_key(flow, reply));
        let has_reply = |flow: &Flow| flow.server.unwrap().0 == reply;
        let taken = self.model.iter().any(|(k, flow)| *k != key && has_reply(flow) && flow.alive(ms));
        let got = self.insert_pair((key, reply), backend, packet, idle);
        prop_assert_eq!(got, if taken { Err(InsertError::Conflict) } else { Ok(()) });
        if !taken {
            self.model_pair((key, reply), backend, packet, idle);
        }
        Ok(())
    }

    fn take(&mut self, flow: u8, reply: u8) {
        let (key, reply) = (flow_key(flow), reply_key(flow, reply));
        let hash = self.tables.hash(&reply);
        let found = self.tables.nat.reply_key(&reply, hash, &key, at(self.ms));
        if !matches!(found, ReplyKey::Free | ReplyKey::Expired | ReplyKey::Taken) {
            self.tables.nat.take_reply_key(&reply, hash);
            let packet = of_protocol(flow, Packet::Tcp(SYN));
            self.insert_pair((key, reply), backend(1), packet, idle(9)).unwrap();
            self.model_pair((key, reply), backend(1), packet, idle(9));
        }
    }

    fn remove(&mut self, flow: u8) -> Result<(), TestCaseError> {
        let key = flow_key(flow);
        let hash = self.tables.hash(&key);
        let known = alive(&self.model, &key, self.ms).is_some();
        prop_assert!(self.tables.nat.remove(&key, hash) || !known);
        self.model.remove(&key);
        Ok(())
    }

    fn insert_pair(
        &mut self,
        (key, reply): (FlowKey, FlowKey),
        backend: BackendId,
        packet: Packet,
        idle: IdleTimeout,
    ) -> Result<(), InsertError> {
        let (hash, reply_hash) = (self.tables.hash(&key), self.tables.hash(&reply));
        let flow = NewFlow { key, hash, backend, packet, idle, now: at(self.ms) };
        self.tables.nat.insert_pair(&flow, &reply, reply_hash)
    }

    /// Inserts a pair into the model, and removes a flow that has its reply key.
    fn model_pair(
        &mut self,
        (key, reply): (FlowKey, FlowKey),
        backend: BackendId,
        packet: Packet,
        idle: IdleTimeout,
    ) {
        self.model.retain(|_, flow| flow.server.unwrap().0 != reply);
        let client = Side { state: SideState::first(packet), seen_ms: self.ms };
        let server = Some((reply, Side { state: SideState::silent(packet), seen_ms: self.ms }));
        self.model.insert(key, Flow { backend, idle, client, server });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_dsr_table_below_its_bound_is_a_hash_map(steps in steps(), seed: u64, start in prop_oneof![Just(0), Just((1u64 << 32) - 50_000)]) {
        let mut tables = FlowTables::new(200, seed);
        let (mut model, mut ms) = (Model::new(), start);
        for step in steps {
            let now = at(ms);
            match step {
                Step::Client { flow, packet } | Step::Server { flow, packet } => {
                    let packet = of_protocol(flow, packet);
                    let key = dsr_key(flow);
                    let hash = tables.hash(&key);
                    let peeked = tables.dsr.peek(&key, hash, now);
                    let expected = alive(&model, &key, ms).map(|mut flow| {
                        let reopened = flow.client_packet(packet, ms);
                        model.insert(key, flow);
                        DsrHit { backend: flow.backend, phase: flow.client.state.phase(), reopened }
                    });
                    prop_assert_eq!(peeked.map(|hit| hit.backend), expected.map(|hit| hit.backend));
                    prop_assert_eq!(tables.dsr.lookup(&key, hash, packet, now), expected);
                }
                Step::Insert { flow, backend: n, packet, idle: seconds, .. } => {
                    let packet = of_protocol(flow, packet);
                    let key = dsr_key(flow);
                    let hash = tables.hash(&key);
                    let (backend, idle) = (backend(n), idle(seconds));
                    tables.dsr.insert(&NewFlow { key, hash, backend, packet, idle, now }).unwrap();
                    let client = Side { state: SideState::first(packet), seen_ms: ms };
                    model.insert(key, Flow { backend, idle, client, server: None });
                }
                Step::Remove { flow } => {
                    let key = dsr_key(flow);
                    let hash = tables.hash(&key);
                    let known = alive(&model, &key, ms).is_some();
                    // A flow that is over may have been aged out or not.
                    prop_assert!(tables.dsr.remove(&key, hash) || !known);
                    model.remove(&key);
                }
                Step::Take { .. } => {}
                Step::Wait { ms: wait } => ms += wait,
                Step::Age { buckets } => {
                    tables.age(now, buckets);
                }
            }
            assert_whole(&tables);
        }
        age_all(&mut tables, at(ms));
        prop_assert_eq!(tables.live(), model.values().filter(|flow| flow.alive(ms)).count());
        let counters = tables.counters();
        prop_assert_eq!(counters.refused, 0);
        prop_assert_eq!(counters.evictions(EvictionReason::BucketFull), 0);
        prop_assert_eq!(counters.evictions(EvictionReason::TableFull), 0);
    }

    #[test]
    fn a_nat_table_below_its_bound_is_a_hash_map_of_pairs(steps in steps(), seed: u64, start in prop_oneof![Just(0), Just((1u64 << 32) - 50_000)]) {
        let mut pairs = Pairs { tables: FlowTables::new(200, seed), model: Model::new(), ms: start };
        for step in steps {
            match step {
                Step::Client { flow, packet } => pairs.client(flow, packet)?,
                Step::Server { flow, packet } => pairs.server(flow, packet)?,
                Step::Insert { flow, reply, backend: n, packet, idle: seconds } => {
                    pairs.insert((flow, reply), backend(n), packet, idle(seconds))?;
                }
                Step::Take { flow, reply } => pairs.take(flow, reply),
                Step::Remove { flow } => pairs.remove(flow)?,
                Step::Wait { ms: wait } => pairs.ms += wait,
                Step::Age { buckets } => {
                    pairs.tables.age(at(pairs.ms), buckets);
                }
            }
            assert_whole(&pairs.tables);
        }
        let Pairs { mut tables, model, ms } = pairs;
        age_all(&mut tables, at(ms));
        prop_assert_eq!(tables.live(), model.values().filter(|flow| flow.alive(ms)).count());
        let counters = tables.counters();
        prop_assert_eq!(counters.refused, 0);
        prop_assert_eq!(counters.evictions(EvictionReason::BucketFull), 0);
        prop_assert_eq!(counters.evictions(EvictionReason::TableFull), 0);
    }

    /// A table that is too small for its flows: every accepted flow is present or counted as removed.
    #[test]
    fn flows_that_a_small_table_evicts_are_counted(steps in steps(), seed: u64, bound in 1usize..8) {
        let mut tables = FlowTables::new(bound, seed);
        let (mut inserted, mut refused, mut now) = (0, 0, at(0));
        for step in steps {
            match step {
                Step::Insert { flow, reply, packet, .. } => {
                    let (key, reply) = (flow_key(flow), reply_key(flow, reply));
                    match insert(&mut tables, &key, packet, now) {
                        Ok(()) => inserted += 1,
                        Err(_) => refused += 1,
                    }
                    match insert_pair(&mut tables, (key, reply), packet, now) {
                        Ok(()) => inserted += 1,
                        Err(InsertError::Full | InsertError::Share) => refused += 1,
                        Err(InsertError::Conflict) => {}
                    }
                }
                Step::Client { flow, packet } => {
                    let key = flow_key(flow);
                    let hash = tables.hash(&key);
                    tables.dsr.lookup(&key, hash, packet, now);
                    tables.nat.lookup(&key, hash, packet, now);
                }
                Step::Server { flow, packet } => {
                    let reply = reply_key(flow, flow);
                    let hash = tables.hash(&reply);
                    tables.nat.lookup_reply(&reply, hash, packet, now);
                }
                Step::Wait { ms } => now = Now(now.0 + ms * MS),
                Step::Take { .. } | Step::Remove { .. } | Step::Age { .. } => { tables.age(now, 2); }
            }
            assert_whole(&tables);
        }
        let counters = tables.counters();
        let gone: u64 = counters.evictions.iter().sum();
        prop_assert_eq!(counters.refused, refused);
        prop_assert_eq!(tables.live() as u64 + gone, inserted);
    }
}
