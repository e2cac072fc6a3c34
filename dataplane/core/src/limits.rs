//! Every limit of the packet path in one place, with the reason for its value.
//!
//! Nothing in this crate grows without one of these. A limit that is reached has a named outcome: a drop
//! reason, an eviction reason, or a compile error of the snapshot.

/// Frames that go through the pipeline at once. 32 keeps all metadata of a burst in the first-level cache
/// and is what DPDK's vector receive paths return.
pub const BURST: usize = 32;

/// Workers of one gateway; indices fit in a byte.
pub const WORKERS_MAX: usize = 64;

/// Interfaces of one gateway.
pub const INTERFACES_MAX: usize = 16;

/// Largest Maglev table: 655,373 is prime and gives 10,000 backends 65 slots each.
pub const MAGLEV_SLOTS_MAX: u32 = 655_373;

/// Slots of a Maglev table without a configured size: the size of the paper, 131 KB for each table.
pub const MAGLEV_SLOTS_DEFAULT: u32 = 65_537;

/// Backends of one service port: slots of a Maglev table are 16 bits wide, one value means "none".
pub const BACKENDS_PER_SERVICE_MAX: usize = 65_535;

/// Decks of one service port with `scheduler: rendezvous`. A new flow asks each deck for a time: 64 cost it some 200 ns.
pub const RENDEZVOUS_DECKS_MAX: usize = 64;

/// Seats of one service port: the sum of its backends' weights that the decks hold with room to spare. Weights whose
/// sum is larger are divided, which is reported as a problem of that service; all others are as they were.
pub const RENDEZVOUS_SEATS_MAX: usize = 500_000;

/// Service ports of one snapshot.
pub const SERVICES_MAX: usize = 1 << 20;

/// Backends of all service ports together.
pub const BACKENDS_MAX: usize = 1 << 22;

/// Prefixes that one service may admit clients by: more than an object of the Kubernetes API can hold.
pub const SOURCE_RANGES_MAX: usize = 1 << 17;

/// Routes beside the connected prefixes: a look-up is four or five nodes of a tree then.
pub const ROUTES_MAX: usize = 1 << 16;

/// Source addresses of FullNAT.
pub const SNAT_ADDRESSES_MAX: usize = 1 << 10;

/// Next hops of backends, routes and fixed neighbours at once.
pub const NEXT_HOPS_MAX: usize = 65_535;

/// Next hops at once that only packets ask for: clients on a link. They have their own room in the neighbour table.
pub const NEIGHBORS_ON_DEMAND_MAX: usize = 16_384;

/// Ports looked at for a new FullNAT flow, over all SNAT addresses together, before it is dropped as
/// `snat_ports_exhausted`; and for a `nat` flow whose port another one has, before it is dropped as `nat_conflict`.
pub const SNAT_PORT_PROBES: usize = 64;

/// Ports of one SNAT address looked at together: their cache misses overlap.
pub const SNAT_PORT_BATCH: usize = 8;

/// Places in the rotation of ports that a worker keeps, for all pairs of a SNAT address and a backend: 128 KiB. Pairs
/// that share one only rotate faster.
pub const SNAT_CURSORS: usize = 1 << 16;

/// An unanswered opening flow releases its port to another `nat` flow only after this time: before it, a genuine
/// handshake may be in progress, and the new flow can use another port.
pub const OPENING_IDLE_MIN_MS: u32 = 1_000;

/// Counters for the opening entries of clients' networks, of each table: 16 KiB.
pub const OPENING_NETWORKS: usize = 4096;

/// A network is taken to flood a table when it has more than one of so many of all opening entries: what 64 networks
/// have at most, when genuine clients of thousands of networks or random sources share the rest.
pub const OPENING_NETWORK_SHARE: u32 = 64;

/// No network with at most so many opening entries is taken to flood a table.
pub const OPENING_NETWORK_MIN: u32 = 64;

/// A service is taken to flood a table when it has more than one of so many of all opening entries.
pub const OPENING_SERVICE_SHARE: u32 = 8;

/// A table above its bound uses free slots before it evicts an opening flow that has been idle for less than this: a
/// backend in the same data centre answers within it.
pub const OPENING_FRESH_MS: u32 = 10;

/// Further buckets that are searched for a flow to evict, if those in the two buckets of the new flow are as valuable
/// as the new one.
pub const EVICTION_SAMPLE: u32 = 8;

/// A flow that only one side has closed or reset is evicted only after this idle time: a half-closed connection that
/// still carries data has more packets.
pub const DOUBTFUL_IDLE_MIN_MS: u32 = 1_000;

/// An established flow is evicted for a new one only after this idle time, and only if no other flow can be.
pub const ESTABLISHED_IDLE_MIN_MS: u32 = 10_000;

/// From which percentage of its bound a flow table is short of room, and by what it divides the timeouts of opening
/// flows then; the first that applies.
pub const FLOW_PRESSURE: [(usize, u32); 2] = [(90, 12), (75, 4)];

/// Percentage of a flow table's bound that one service may have once the bound is reached, unless configured. The
/// table has room for half as many flows more, which are then for the other services.
pub const FLOW_SHARE_PERCENT: u8 = 50;

/// Lowest local port used by FullNAT: the ports below are for services of the host (RFC 6335).
pub const SNAT_PORT_MIN: u16 = 1024;

/// Bytes that headers may add in front of a frame: outer IPv6 and a tag, or an ICMPv6 error with its own
/// headers. DPDK's default headroom is 128.
pub const HEADROOM_MIN: usize = 96;

/// Buckets of flows looked at for ageing with each burst: at 30,000 bursts a second all of a table for a million
/// flows in 3 seconds. Eight cost 4 % of the time of a packet more.
pub const AGEING_BUCKETS_PER_BURST: usize = 4;

/// Buckets of flows whose source ranges are checked in each turn after a change of ranges: this takes some 10 µs, and
/// a whole table for a million flows takes a second at 10,000 turns.
pub const RECHECK_BUCKETS_PER_TURN: u64 = 256;

/// How often something may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// How often in a second.
    pub per_second: u32,
    /// How often at once.
    pub burst: u32,
}

/// How many answers of one kind a worker makes itself: to one source prefix, and to all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerLimits {
    /// To one source prefix (/24 or /56).
    pub prefix: Rate,
    /// To all.
    pub total: Rate,
}

/// Answers that are no longer than the question: resets, and "packet too big". They amplify nothing, so the limits
/// bound only the work. A site behind one address may open hundreds of connections at once.
pub const ANSWERS_SMALL: AnswerLimits = AnswerLimits {
    prefix: Rate { per_second: 1_000, burst: 200 },
    total: Rate { per_second: 10_000, burst: 2_000 },
};

/// Answers that quote the question and so are longer: time exceeded, and unreachable.
pub const ANSWERS_WITH_QUOTE: AnswerLimits = AnswerLimits {
    prefix: Rate { per_second: 100, burst: 50 },
    total: Rate { per_second: 1_000, burst: 200 },
};

/// Token buckets for source prefixes, of each kind of answer. A sender needs the addresses of as many prefixes to
/// use up the buckets of all others: 32 KiB per worker.
pub const ANSWER_PREFIXES: usize = 1024;

/// Fragmented datagrams whose decision a worker remembers: 6 MB, of which only what is used is touched. At 100,000
/// fragmented datagrams a second each is remembered for half a second at least.
pub const FRAGMENTS_MAX: usize = 1 << 16;

/// The number of possible places of a fragmented datagram. With 16 of them, first fragments without later ones must
/// fill most of the table before one evicts another recent one.
pub const FRAGMENT_WAYS: usize = 16;

/// Path MTUs of tunnels that are remembered, for all workers together: 512 KiB. Beyond that the ones that end first
/// are replaced, bucket by bucket.
pub const PATH_MTUS_MAX: usize = 16_384;

/// How often a worker lets an ICMP error change a path MTU: a forged flood of them costs no more than that.
pub const PATH_MTU_UPDATES: Rate = Rate { per_second: 100, burst: 100 };
