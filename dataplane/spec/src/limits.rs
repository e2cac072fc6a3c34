//! Every limit of the packet path in one place, with the reason for its value.
//!
//! Nothing in the packet path grows without one of these. A limit that is reached has a named outcome: a drop
//! reason, an eviction reason, or a compile error of the snapshot.

use std::time::Duration;

use crate::now::Now;

/// Frames that pass through the pipeline at once. With 32, all metadata of a burst fits in the first-level cache;
/// DPDK's vector receive paths also return 32.
pub const BURST: usize = 32;

/// Workers of one gateway; indices fit in a byte.
pub const WORKERS_MAX: usize = 64;

/// Interfaces of one gateway.
pub const INTERFACES_MAX: usize = 16;

/// Largest Maglev table: 655,373 is prime and gives 10,000 backends 65 slots each.
pub const MAGLEV_SLOTS_MAX: u32 = 655_373;

/// Slots of a Maglev table without a configured size: the size of the paper, 131 KB for each table.
pub const MAGLEV_SLOTS_DEFAULT: u32 = 65_537;

/// Backends of one service port. Slots of a Maglev table are 16 bits wide, and one value means "none".
pub const BACKENDS_PER_SERVICE_MAX: usize = 65_535;

/// Decks of one service port with `scheduler: rendezvous`. A new flow compares the times of all decks: 64 cost it some
/// 200 ns.
pub const RENDEZVOUS_DECKS_MAX: usize = 64;

/// Seats of one service port: the sum of its backends' weights that the decks hold with room to spare. If the sum is
/// larger, the weights are divided, and a problem is reported for that service. Other services are not affected.
pub const RENDEZVOUS_SEATS_MAX: usize = 500_000;

/// Turns in the ring of one service port with `scheduler: wrr`: 256 KB. If the sum of the weights is larger, they are
/// divided, and a problem is reported for that service.
pub const WRR_TURNS_MAX: usize = 1 << 17;

/// How often a worker shares the loads of backends with the other workers, in milliseconds, if a service with
/// `scheduler: lc`, `sed` or `nq` needs them.
pub const LOADS_SHARED_MS: u32 = 10;

/// Backends whose loads a worker shares in one turn: this takes some microseconds.
pub const LOADS_SHARED_PER_TURN: usize = 256;

/// Service ports of one snapshot.
pub const SERVICES_MAX: usize = 1 << 20;

/// Backends of all service ports together.
pub const BACKENDS_MAX: usize = 1 << 22;

/// Prefixes of the source ranges of one service: more than an object of the Kubernetes API can hold.
pub const SOURCE_RANGES_MAX: usize = 1 << 17;

/// A bandwidth limit lets pass what its rate gives in a second divided by this, all at once: 100 ms.
pub const BANDWIDTH_BURST_PER_SECOND: u64 = 10;

/// Bytes that a bandwidth limit lets pass at once, at least: two packets of the largest size.
pub const BANDWIDTH_BURST_MIN: u64 = 1 << 17;

/// Prefixes in the gateway's own lists of sources, `protection.deny` and `protection.allow` together. A million IPv4
/// prefixes take 13 MB.
pub const LISTED_SOURCES_MAX: usize = 1_000_000;

/// Source prefixes whose rate of new flows is counted (`protection.newConnections`), for all workers together: 2 MiB.
pub const SOURCE_RATES_MAX: usize = 1 << 17;

/// Clients with `sessionAffinity: ClientIP` whose backends the workers share: 32 MiB.
pub const SHARED_AFFINITIES_MAX: usize = 1 << 20;

/// SCTP associations whose paths all workers can find, with four entries for each: 32 MiB.
pub const SHARED_ASSOCIATIONS_MAX: usize = 1 << 17;

/// Paths of one SCTP association: pairs of an address of the client and a VIP.
pub const ASSOCIATION_PATHS_MAX: u8 = 8;

/// Further VIPs of a Service that the gateway adds to an INIT ACK of SCTP.
pub const FURTHER_VIPS_MAX: usize = 7;

/// Services whose counts for limits a worker reports together. Tens of thousands of Services with limits take some seconds.
pub const LIMIT_REPORTS_AT_ONCE: usize = 64;

/// Routes in addition to the connected prefixes. A look-up in that many reads four or five nodes of a tree.
pub const ROUTES_MAX: usize = 1 << 16;

/// Source addresses of FullNAT.
pub const SNAT_ADDRESSES_MAX: usize = 1 << 10;

/// Gateways whose tunnel packets are opened.
pub const TUNNEL_PEERS_MAX: usize = 64;

/// Next hops of backends, routes and fixed neighbours together.
pub const NEXT_HOPS_MAX: usize = 65_535;

/// Next hops that only packets request: clients on a link. They have their own room in the neighbour table.
pub const NEIGHBORS_ON_DEMAND_MAX: usize = 16_384;

/// Groups of VIPs, and SNAT addresses of other gateways, that this gateway owns at a time.
pub const OWNER_KEYS_MAX: usize = 8192;

/// Ports examined for a new FullNAT flow, over all SNAT addresses together, before it is dropped as
/// `snat_ports_exhausted`; and for a `nat` flow whose port another flow has, before it is dropped as `nat_conflict`.
pub const SNAT_PORT_PROBES: usize = 64;

/// Ports of one SNAT address that are examined together, so that their cache misses overlap.
pub const SNAT_PORT_BATCH: usize = 8;

/// With several workers, each has room for copies of as many flows of others as this part of its flow table.
pub const COPIES_TABLE_SHARE: usize = 4;

/// Masqueraded flows of a worker: the size of its flow tables divided by this number.
pub const MASQUERADE_TABLE_SHARE: usize = 8;

/// Masqueraded flows of a worker, at least.
pub const MASQUERADE_FLOWS_MIN: usize = 64;

/// The masqueraded flows of one source (an IPv4 address, or a /64) are at most those of a worker divided by this number.
pub const MASQUERADE_SHARE: usize = 4;

/// Counters of the masqueraded flows of sources. Sources that share a counter share its bound.
pub const MASQUERADE_SOURCES: usize = 1024;

/// Masqueraded flows that are examined for one that a new flow may replace.
pub const MASQUERADE_EVICTION_PROBES: usize = 32;

/// How long an established masqueraded TCP connection is kept while it is idle. RFC 5382 REQ-5 requires 2 h 4 min or more.
pub const MASQUERADE_TCP_IDLE: Duration = Duration::from_secs(7_440);

/// The same for UDP with an answer. RFC 4787 REQ-5 recommends 5 minutes.
pub const MASQUERADE_UDP_IDLE: Duration = Duration::from_secs(300);

/// The same for ICMP echo with an answer: the least that RFC 5508 REQ-1 allows.
pub const MASQUERADE_ECHO_IDLE: Duration = Duration::from_secs(60);

/// Positions in the rotation of ports that a worker stores, for all pairs of a SNAT address and a backend: 128 KiB.
/// Pairs that share a position only rotate faster.
pub const SNAT_CURSORS: usize = 1 << 16;

/// Other backends that are tried for a connection that a backend refuses, at most.
pub const RETRIES_MAX: u8 = 3;

/// SYNs that a worker stores, so that it can offer a connection to another backend: 128 KiB, and as much again at most
/// for notes. At 1,000,000 new connections a second a SYN stays for a millisecond or so.
pub const KEPT_SYNS: usize = 1024;

/// Slots of a Maglev table, or turns, that are examined for a backend that was not tried and is not set aside. If half
/// of the backends are set aside, none is found once in 2^64 times.
pub const MAGLEV_TRIES: u32 = 64;

/// Bytes of the longest frame of a stored SYN: the largest TCP header behind an IPv6 header and a tag, with room to spare.
pub const KEPT_SYN_LEN: usize = 128;

/// A SYN that its client repeats after this time, in milliseconds, was not answered. Hosts wait for a second (RFC 6298
/// section 2), and their timers are coarse.
pub const SYN_REPEATED_MS: u32 = 800;

/// Backends of which a worker counts failed connections. Failures of others are not counted.
pub const MARKED_MAX: usize = 1024;

/// Failures of a backend that are further apart than this, in milliseconds, are not in a row.
pub const FAILURES_WITHIN_MS: u32 = 60_000;

/// A client (an IPv4 address or a /64) whose flow failed last counts for the same backend again only after this time, in
/// milliseconds. So one client that a backend refuses, by a network policy for example, does not set it aside with a
/// burst of connections.
pub const FAILURE_OF_SOURCE_MS: u32 = 1_000;

/// The idle time after which an unanswered opening flow releases its port to another `nat` flow. Before that, a genuine
/// handshake may be in progress, and the new flow can use another port.
pub const OPENING_IDLE_MIN_MS: u32 = 1_000;

/// Opening entries of a service, in the table of one family of one worker, from which on its new connections are answered
/// with SYN cookies; less in a small table. A flow has two of them until its backend answers, then one.
pub const COOKIES_FROM: usize = 16_384;

/// The part of a flow table that the opening flows of a service may have before SYN cookies are used: one in this many.
pub const COOKIES_TABLE_SHARE: usize = 8;

/// SYN cookies stay in use for at least this long: the flows that were opening at the start are over or established by then.
pub const COOKIES_HOLD_MS: u32 = 10_000;

/// Services of one worker that use SYN cookies at the same time. The next ones go on without.
pub const COOKIES_SERVICES_MAX: usize = 64;

/// Counters for the opening entries of clients' networks, for each table: 16 KiB.
pub const OPENING_NETWORKS: usize = 4096;

/// A network floods a table if it has more than `1 / OPENING_NETWORK_SHARE` of all opening entries. At most 64 networks
/// can have that many, and genuine clients of thousands of networks, or random sources, share the rest.
pub const OPENING_NETWORK_SHARE: u32 = 64;

/// A network with at most this many opening entries never counts as flooding a table.
pub const OPENING_NETWORK_MIN: u32 = 64;

/// A service floods a table if it has more than `1 / OPENING_SERVICE_SHARE` of all opening entries.
pub const OPENING_SERVICE_SHARE: u32 = 8;

/// A table above its bound uses free slots before it evicts an opening flow that has been idle for less than this: a
/// backend in the same data centre answers within it.
pub const OPENING_FRESH_MS: u32 = 10;

/// Additional buckets that are searched for a flow to evict, if the flows in the two buckets of the new flow are as
/// valuable as the new one.
pub const EVICTION_SAMPLE: u32 = 8;

/// Additional buckets that are searched for a flow of a service that has its share of a full table. With the default share,
/// every third entry is one; with a share of 5 %, all but one of 50 such searches find one.
pub const SHARE_SAMPLE: u32 = 64;

/// A flow that only one side has closed or reset is evicted only after this idle time: a half-closed connection that
/// still carries data has more packets.
pub const DOUBTFUL_IDLE_MIN_MS: u32 = 1_000;

/// An established flow is evicted for a new one only after this idle time, and only if no other flow can be.
pub const ESTABLISHED_IDLE_MIN_MS: u32 = 10_000;

/// (percentage, divisor): from this percentage of its bound on, a flow table is under memory pressure and divides the
/// timeouts of opening flows by the divisor. The first matching entry applies.
pub const FLOW_PRESSURE: [(usize, u32); 2] = [(90, 12), (75, 4)];

/// Changes of flows that each kind of flow table notes between two turns of the worker, for other gateways. A turn changes
/// at most some of the flows of its bursts, so they are only lost in tests and when an operator removes many flows at once.
pub const FLOW_JOURNAL_MAX: usize = 1024;

/// A flow of another gateway is adopted only while the table is filled less than this, in percent of its bound: flows of
/// others never shorten the timeouts of the gateway's own ([`FLOW_PRESSURE`]).
pub const ADOPTED_FILL_PERCENT: usize = 75;

/// The same for flows that are not known to be established: a flood at another gateway takes no room from those that are.
pub const ADOPTED_OPENING_FILL_PERCENT: usize = 50;

/// Flows that a worker tells in a turn because another gateway has told of an earlier connection of the same client port.
pub const SHARING_CONTRADICTED_MAX: usize = 32;

/// Buckets of flow tables that a worker examines in a turn for flows that other gateways need.
pub const SHARING_BUCKETS_PER_TURN: u64 = 32;

/// The percentage of a flow table's bound that one service may use once the bound is reached, unless configured. The
/// table has room for half as many flows more, which the other services can use.
pub const FLOW_SHARE_PERCENT: u8 = 50;

/// Lowest local port used by FullNAT: the ports below are for services of the host (RFC 6335).
pub const SNAT_PORT_MIN: u16 = 1024;

/// Bytes that headers may add in front of a frame: the longest header of the PROXY protocol and a tag, an outer IPv6
/// header and a tag, or an ICMPv6 error with its own headers. DPDK's default headroom is 128.
pub const HEADROOM_MIN: usize = 112;

/// The fast path is worth its price if it takes one in this many frames of a burst.
pub const FAST_PATH_SHARE: usize = 4;

/// The number of bursts after one for which it was not that do not try it.
pub const FAST_PATH_RESTS: u8 = 31;

/// Buckets of flows that are examined for ageing with each burst: at 30,000 bursts a second, a whole table for a
/// million flows in 3 seconds. Eight buckets would cost 4 % more time per packet.
pub const AGEING_BUCKETS_PER_BURST: usize = 4;

/// Buckets of each table of flows that a replay examines for each second of its capture: as a worker with 30,000 bursts
/// a second. At most one walk of the whole table follows a gap, whatever its length.
pub const AGEING_BUCKETS_PER_SECOND: u64 = 30_000 * AGEING_BUCKETS_PER_BURST as u64;

/// The gap of a capture from which flows are also examined as of this time after its beginning, because the timestamps
/// of flows wrap. It is longer than any idle timeout that can be configured.
pub const AGEING_GAP_MAX: Duration = Duration::from_secs(10 * 86_400);

/// Buckets of flows whose source ranges are checked in each turn after a change of ranges: this takes some 10 µs, and a
/// whole table for a million flows takes a second at 10,000 turns.
pub const RECHECK_BUCKETS_PER_TURN: u64 = 256;

/// A limit on how often an event may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Events per second.
    pub per_second: u32,
    /// Events at once.
    pub burst: u32,
}

impl Rate {
    /// The moment up to which the tokens of a bucket are spent after one more token, in nanoseconds. `spent` is the
    /// moment before. `None` if the rate does not allow a token now. A rate or burst of 0 counts as 1.
    pub fn spend(self, spent: u64, now: Now) -> Option<u64> {
        let cost = 1_000_000_000 / u64::from(self.per_second.max(1));
        let saved_max = cost.saturating_mul(u64::from(self.burst.max(1)));
        // The timestamps of a capture may be any value, including the largest.
        let after = spent.max(now.0.saturating_sub(saved_max)).checked_add(cost)?;
        (after <= now.0.max(saved_max)).then_some(after)
    }
}

/// How many answers of one kind a worker may send: to one source prefix, and to all prefixes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerLimits {
    /// The limit for one source prefix (/24 or /56).
    pub prefix: Rate,
    /// The limit for all prefixes together.
    pub total: Rate,
}

/// Limits for answers that are no longer than the request: resets, and "packet too big". They amplify nothing, so the
/// limits only bound the work. A site behind one address may open hundreds of connections at once.
pub const ANSWERS_SMALL: AnswerLimits = AnswerLimits {
    prefix: Rate { per_second: 1_000, burst: 200 },
    total: Rate { per_second: 10_000, burst: 2_000 },
};

/// Limits for answers that quote the request and so are longer: time exceeded, and unreachable.
pub const ANSWERS_WITH_QUOTE: AnswerLimits = AnswerLimits {
    prefix: Rate { per_second: 100, burst: 50 },
    total: Rate { per_second: 1_000, burst: 200 },
};

/// Token buckets for source prefixes, for each kind of answer: 32 KiB per worker. A sender needs addresses in at least
/// as many prefixes to use up the buckets of all others.
pub const ANSWER_PREFIXES: usize = 1024;

/// Fragmented datagrams whose decision a worker remembers: 6 MB of address space; memory is used only as needed. At
/// 100,000 fragmented datagrams a second, each is remembered for at least half a second.
pub const FRAGMENTS_MAX: usize = 1 << 16;

/// The number of places at which the decision for a fragmented datagram can be stored. With 16 of them, first fragments
/// without later ones must fill most of the table before one evicts another recent one.
pub const FRAGMENT_WAYS: usize = 16;

/// Path MTUs of tunnels that are remembered, for all workers together: 512 KiB. When a bucket is full, the entry that
/// ends first is replaced.
pub const PATH_MTUS_MAX: usize = 16_384;

/// How many IPv4 packets a worker fragments because they do not fit their link. A packet in pieces costs about as much
/// as ten others, so a flood of such packets takes at most a tenth of a worker's time. The others are answered with
/// "fragmentation needed", as if they had DF.
pub const FRAGMENTED: Rate = Rate { per_second: 100_000, burst: 10_000 };

/// How often a worker lets an ICMP error change a path MTU. This bounds the cost of a flood of forged errors.
pub const PATH_MTU_UPDATES: Rate = Rate { per_second: 100, burst: 100 };
