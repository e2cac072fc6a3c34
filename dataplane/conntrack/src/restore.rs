//! Restores the flows of an ended process from the memory of its tables.
//!
//! [`StoredTables::scan`] reads and validates the entries: the process may have ended in the middle of a change, and
//! the file may be damaged. [`FlowTables::restore`] inserts a flow into the tables of this process, as if its packets
//! had passed here. So nothing depends on the ids, the secret or the size of the stored tables: the caller maps
//! services and backends to the current snapshot.
//!
//! Invariant: nothing here panics, whatever the words. An entry counts only if it is in a hash bucket of its key and
//! its state exists. A NAT flow counts only if both entries refer to each other and to the same backend.

use tidegate_spec::ids::{BackendId, EndpointId, ServiceId};
use tidegate_spec::now::Now;
use tidegate_wire::Addr;

use super::FlowTables;
use super::dsr;
use super::flow_state::{IdleTimeout, State};
use super::key::{AFFINITY_BIT, FlowHash, FlowHasher, FlowKey, KEY_MASK, PackedKey, REPLY_BIT, addr_of};
use super::nat;
use super::splice::Splice;
use super::stream::{Stream, splice_at, stream_at};
use super::table::{ADDR, Entry, IDLE_MASK, OWNER, SEEN, STATE_MASK, STATE_SHIFT, TAG, Table, VALUE};

/// The format of the stored words. A change of the sizes of entries or of the meaning of their words requires a new
/// form.
pub const STORED_FORM: &str = "1: dsr-v4 5/3/16, dsr-v6 8/2/16, nat-v4 8/2/16, nat-v6 16/2/32";

/// The arrays of a stored table.
#[derive(Debug, Clone, Copy, Default)]
pub struct StoredTable<'a> {
    /// The entries.
    pub entries: &'a [u32],
    /// The streams of the entries, or nothing.
    pub streams: &'a [u32],
    /// The splices of the entries, or nothing.
    pub splices: &'a [u32],
}

/// The stored tables of one worker, in the order of [`TableKind::ALL`](super::TableKind::ALL).
#[derive(Debug, Clone, Copy)]
pub struct StoredTables<'a> {
    /// The four tables.
    pub tables: [StoredTable<'a>; 4],
    /// The number of flows that they were created for, which determines their number of hash buckets.
    pub entries_per_core: usize,
    /// The secret of their hash.
    pub seed: u64,
    /// The current time in milliseconds, by the clock of the other process.
    pub then_ms: u32,
}

/// The kind of a stored flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredKind {
    /// A flow of a DSR service.
    Dsr,
    /// Session affinity of a client.
    Affinity,
    /// A flow of `nat` or `fullnat`, with the address and port that the backend answers to.
    Nat {
        /// The destination of replies.
        to: Addr,
        /// Its port.
        to_port: u16,
    },
}

/// A flow of another process. Its ids are those of that process.
#[derive(Debug, Clone, Copy)]
pub struct StoredFlow {
    /// The service port.
    pub service: ServiceId,
    /// The client.
    pub client: Addr,
    /// The client's port; 0 for affinity.
    pub client_port: u16,
    /// The backend.
    pub backend: BackendId,
    /// Its kind.
    pub kind: StoredKind,
    states: [State; 2],
    idle: IdleTimeout,
    idle_ms: [u32; 2],
    stream: Option<Stream>,
    splice: Option<Splice>,
}

/// Why a stored flow is not restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotRestored {
    /// Its entries are inconsistent or incomplete, or the record of its service or backend is missing.
    Damaged,
    /// It has been idle for too long.
    Expired,
    /// Its service port is unknown or no longer exists.
    ServiceGone,
    /// Its backend is unknown or no longer exists.
    BackendGone,
    /// Its service port now has another forwarding mode.
    ModeChanged,
    /// Its client is no longer admitted.
    Denied,
    /// Another worker owns it.
    Elsewhere,
    /// The table already contains it, from a newer process.
    Known,
    /// No flow can be evicted for it.
    Full,
}

impl NotRestored {
    /// All reasons.
    pub const ALL: [Self; 9] = [
        Self::Damaged,
        Self::Expired,
        Self::ServiceGone,
        Self::BackendGone,
        Self::ModeChanged,
        Self::Denied,
        Self::Elsewhere,
        Self::Known,
        Self::Full,
    ];

    /// The name in metrics and logs (`backend_gone`).
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Damaged => "damaged",
            Self::Expired => "expired",
            Self::ServiceGone => "service_gone",
            Self::BackendGone => "backend_gone",
            Self::ModeChanged => "mode_changed",
            Self::Denied => "denied",
            Self::Elsewhere => "elsewhere",
            Self::Known => "known",
            Self::Full => "full",
        }
    }
}

/// The objects of the current snapshot that a stored flow belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Successor {
    /// Its service port.
    pub service: ServiceId,
    /// Its backend.
    pub backend: BackendId,
    /// The endpoint of the backend.
    pub endpoint: EndpointId,
}

impl StoredTables<'_> {
    /// The number of words of each of the four tables' entries for this number of flows.
    #[must_use]
    pub fn words(entries_per_core: usize) -> [usize; 4] {
        let pairs = entries_per_core.saturating_mul(2);
        [
            dsr::V4::buckets_for(entries_per_core) as usize * 16,
            dsr::V6::buckets_for(entries_per_core) as usize * 16,
            nat::V4::buckets_for(pairs) as usize * 16,
            nat::V6::buckets_for(pairs) as usize * 32,
        ]
    }

    /// Reads all flows. A flow of two entries is read once, at the client's entry.
    pub fn scan(&self, mut each: impl FnMut(Result<StoredFlow, NotRestored>)) {
        let hasher = FlowHasher::new(self.seed);
        let [dsr_v4, dsr_v6, nat_v4, nat_v6] = self.tables;
        scan::<1, 5, 3, 16>(dsr_v4, self.then_ms, &hasher, &mut each);
        scan::<4, 8, 2, 16>(dsr_v6, self.then_ms, &hasher, &mut each);
        scan::<1, 8, 2, 16>(nat_v4, self.then_ms, &hasher, &mut each);
        scan::<4, 16, 2, 32>(nat_v6, self.then_ms, &hasher, &mut each);
    }
}

fn scan<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: StoredTable<'_>,
    then_ms: u32,
    hasher: &FlowHasher,
    each: &mut impl FnMut(Result<StoredFlow, NotRestored>),
) {
    let (buckets, _) = table.entries.as_chunks::<B>();
    let Ok(count) = u32::try_from(buckets.len()) else { return };
    for (at, bucket) in (0..count).zip(buckets) {
        let (entries, _) = bucket.as_chunks::<W>();
        for (n, entry) in entries[..K].iter().enumerate() {
            if entry[TAG] & STATE_MASK == 0 || Table::<A, W, K, B>::PAIRED && entry[TAG] & REPLY_BIT != 0 {
                continue;
            }
            let entry_index = at as usize * (B / W) + n;
            each(read::<A, W, K, B>(&table, buckets, (at, entry), entry_index, then_ms, hasher));
        }
    }
}

/// Reads the flow of an entry with a state.
fn read<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &StoredTable<'_>,
    buckets: &[[u32; B]],
    (bucket, entry): (u32, &[u32; W]),
    entry_index: usize,
    then_ms: u32,
    hasher: &FlowHasher,
) -> Result<StoredFlow, NotRestored> {
    let paired = Table::<A, W, K, B>::PAIRED;
    let key = key_of::<A, W>(entry);
    // The number of hash buckets is below 2^32.
    let homes = Table::<A, W, K, B>::homes(hasher.hash_packed(&key), buckets.len() as u32);
    let state = state_of(entry).filter(|_| homes.contains(&bucket)).ok_or(NotRestored::Damaged)?;
    let idle = IdleTimeout::from_stored(entry[TAG] & IDLE_MASK).ok_or(NotRestored::Damaged)?;
    let age = |seen: u32| {
        let age = then_ms.wrapping_sub(seen);
        if age > u32::MAX / 2 { 0 } else { age }
    };
    let mut flow = StoredFlow {
        service: ServiceId::from_raw(key.owner),
        client: addr_of(key.addr),
        client_port: (key.tag >> 16) as u16,
        backend: BackendId::from_raw(entry[VALUE]),
        kind: if key.tag & AFFINITY_BIT == 0 { StoredKind::Dsr } else { StoredKind::Affinity },
        states: [state; 2],
        idle,
        idle_ms: [age(entry[SEEN]); 2],
        stream: None,
        splice: None,
    };
    if paired {
        let peer = PackedKey {
            owner: entry[ADDR + A],
            tag: entry[ADDR + A + 1],
            addr: std::array::from_fn(|n| entry[ADDR + A + 2 + n]),
        };
        let reply = find::<A, W, K, B>(buckets, &peer, hasher.hash_packed(&peer));
        let reply = reply.filter(|reply| {
            let back = &reply[ADDR + A..];
            let names_it = back[0] == key.owner && back[1] == key.tag && back[2..2 + A] == key.addr;
            names_it
                && reply[VALUE] == entry[VALUE]
                && reply[TAG] & IDLE_MASK == entry[TAG] & IDLE_MASK
                && peer.tag & (REPLY_BIT | !KEY_MASK) == REPLY_BIT
        });
        let reply = reply.ok_or(NotRestored::Damaged)?;
        let server = state_of(reply).ok_or(NotRestored::Damaged)?;
        if server.is_tcp() != state.is_tcp() {
            return Err(NotRestored::Damaged);
        }
        flow.kind = StoredKind::Nat { to: addr_of(peer.addr), to_port: (peer.tag >> 16) as u16 };
        flow.states[1] = server;
        flow.idle_ms[1] = age(reply[SEEN]);
        flow.stream = stream_at(table.streams, entry_index);
        flow.splice = splice_at(table.splices, entry_index);
    }
    if flow.is_expired() { Err(NotRestored::Expired) } else { Ok(flow) }
}

fn find<'a, const A: usize, const W: usize, const K: usize, const B: usize>(
    buckets: &'a [[u32; B]],
    key: &PackedKey<A>,
    hash: FlowHash,
) -> Option<&'a [u32; W]> {
    let homes = Table::<A, W, K, B>::homes(hash, buckets.len() as u32);
    let entries = homes.into_iter().filter_map(|bucket| buckets.get(bucket as usize));
    let mut entries = entries.flat_map(|bucket| bucket.as_chunks::<W>().0[..K].iter());
    entries.find(|entry| entry[TAG] & STATE_MASK != 0 && key_of::<A, W>(entry) == *key)
}

fn key_of<const A: usize, const W: usize>(entry: &[u32; W]) -> PackedKey<A> {
    PackedKey {
        owner: entry[OWNER],
        tag: entry[TAG] & KEY_MASK,
        addr: std::array::from_fn(|n| entry[ADDR + n]),
    }
}

fn state_of<const W: usize>(entry: &[u32; W]) -> Option<State> {
    State::from_bits((entry[TAG] & STATE_MASK) >> STATE_SHIFT)
}

impl StoredFlow {
    fn is_expired(&self) -> bool {
        let [client, server] = self.states;
        let idle_ms = self.idle_ms[0].min(self.idle_ms[1]);
        let status = match self.kind {
            StoredKind::Nat { .. } => State::of_both(client, server, self.idle),
            StoredKind::Dsr | StoredKind::Affinity => client.alone(self.idle),
        };
        idle_ms >= status.timeout_ms
    }
}

impl FlowTables {
    /// These tables as the next process reads them.
    #[cfg(any(test, feature = "testing"))]
    pub fn as_stored(&self, entries_per_core: usize, seed: u64, now: Now) -> StoredTables<'_> {
        fn of<const A: usize, const W: usize, const K: usize, const B: usize>(
            table: &Table<A, W, K, B>,
        ) -> StoredTable<'_> {
            let [streams, splices] = table.streams().words();
            StoredTable { entries: table.words(), streams, splices }
        }
        let tables = [of(&self.dsr.v4), of(&self.dsr.v6), of(&self.nat.v4), of(&self.nat.v6)];
        StoredTables { tables, entries_per_core, seed, then_ms: now.millis() }
    }

    /// Inserts a flow of another process, with the states and ages that it had there.
    ///
    /// # Errors
    /// [`NotRestored::Known`] if another flow already has its key or reply key; [`NotRestored::Full`] if no flow can be
    /// evicted for it.
    pub fn restore(&mut self, flow: &StoredFlow, to: &Successor, now: Now) -> Result<(), NotRestored> {
        let (service, client) = (to.service, flow.client);
        let key = match flow.kind {
            StoredKind::Affinity => FlowKey::affinity(service, client),
            StoredKind::Dsr | StoredKind::Nat { .. } => FlowKey::flow(service, client, flow.client_port),
        };
        let hash = self.hash(&key);
        let StoredKind::Nat { to: reply_to, to_port } = flow.kind else {
            let key_and_hash = (&key, hash);
            return match client.is_v4() {
                true => restore_one(&mut self.dsr.v4, key_and_hash, flow, to, now),
                false => restore_one(&mut self.dsr.v6, key_and_hash, flow, to, now),
            };
        };
        let reply = FlowKey::reply(to.endpoint, reply_to, to_port);
        let keys = [(&key, hash), (&reply, self.hash(&reply))];
        match client.is_v4() {
            true => restore_pair(&mut self.nat.v4, keys, flow, to, now)?,
            false => restore_pair(&mut self.nat.v6, keys, flow, to, now)?,
        }
        if let Some(stream) = flow.stream {
            self.nat.set_stream(service, &key, hash, stream);
        }
        if let Some(splice) = flow.splice {
            self.nat.set_splice(service, &key, hash, splice);
        }
        Ok(())
    }
}

fn restore_one<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    (key, hash): (&FlowKey, FlowHash),
    flow: &StoredFlow,
    to: &Successor,
    now: Now,
) -> Result<(), NotRestored> {
    let key = PackedKey::from(key);
    if table.find(&key, hash).is_some() {
        return Err(NotRestored::Known);
    }
    let position = table.admit(&key, hash, now).map_err(|_| NotRestored::Full)?;
    table.write(position, &entry(key, 0, flow, to, now, None));
    Ok(())
}

fn restore_pair<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    [(key, hash), (reply, reply_hash)]: [(&FlowKey, FlowHash); 2],
    flow: &StoredFlow,
    to: &Successor,
    now: Now,
) -> Result<(), NotRestored> {
    let (key, reply) = (PackedKey::from(key), PackedKey::from(reply));
    if table.find(&key, hash).is_some() || table.find(&reply, reply_hash).is_some() {
        return Err(NotRestored::Known);
    }
    let position = table.admit(&key, hash, now).map_err(|_| NotRestored::Full)?;
    table.write(position, &entry(key, 0, flow, to, now, Some(reply)));
    table.forget_streams(position);
    let Some(position) = table.allocate(&key, reply_hash, now) else {
        // The second insertion may have moved the first entry.
        if let Some(position) = table.find(&key, hash) {
            table.clear(position);
        }
        return Err(NotRestored::Full);
    };
    table.write(position, &entry(reply, 1, flow, to, now, Some(key)));
    Ok(())
}

fn entry<const A: usize>(
    key: PackedKey<A>,
    side: usize,
    flow: &StoredFlow,
    to: &Successor,
    now: Now,
    peer: Option<PackedKey<A>>,
) -> Entry<A> {
    let seen = now.millis().wrapping_sub(flow.idle_ms[side]);
    Entry { key, state: flow.states[side], idle: flow.idle, seen, value: to.backend.raw(), peer }
}
