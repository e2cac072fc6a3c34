//! Every limit of the packet path in one place, with the reason for its value.
//!
//! Everything in the packet path that can grow has a limit here. Reaching a limit has a named outcome: a drop reason,
//! an eviction reason, or a compile error of the snapshot.

use std::time::Duration;

use crate::token_bucket::Rate;

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

/// Seat maps of one service port with `scheduler: rendezvous`. A new flow compares the times of all of them: 64 take
/// some 200 ns.
pub const RENDEZVOUS_SEAT_MAPS_MAX: usize = 64;

/// Seats of one service port, well below the capacity of its seat maps. If the sum of weights is larger, the weights
/// are divided, and a problem is reported for that service. Other services are not affected.
pub const RENDEZVOUS_SEATS_MAX: usize = 500_000;

/// Positions in the ring of one service port with `scheduler: wrr`: 256 KB. If the sum of the weights is larger, they
/// are divided, and a problem is reported for that service.
pub const WRR_RING_MAX: usize = 1 << 17;

/// The interval at which a worker publishes the loads of backends to the other workers, in milliseconds, if a service
/// with `scheduler: lc`, `sed` or `nq` needs them.
pub const LOADS_SHARED_MS: u32 = 10;

/// Backends whose loads a worker publishes in one loop iteration: this takes some microseconds.
pub const LOADS_SHARED_PER_ITERATION: usize = 256;

/// Service ports of one snapshot.
pub const SERVICES_MAX: usize = 1 << 20;

/// Backends of all service ports together.
pub const BACKENDS_MAX: usize = 1 << 22;

/// Largest share of new flows that a service port rejects, in parts per million: all of them.
pub const REJECTED_PPM_MAX: u32 = 1_000_000;

/// Prefixes of the source ranges of one service: more than an object of the Kubernetes API can contain.
pub const SOURCE_RANGES_MAX: usize = 1 << 17;

/// The burst of a bandwidth limit is its rate per second divided by this: 100 ms.
pub const BANDWIDTH_BURST_PER_SECOND: u64 = 10;

/// The smallest burst of a bandwidth limit, in bytes: two packets of the largest size.
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

/// Services whose counts for limits a worker reports at once. With tens of thousands of limited Services, a full round
/// takes some seconds.
pub const LIMIT_REPORTS_AT_ONCE: usize = 64;

/// Routes in addition to the connected prefixes. A look-up in that many reads four or five nodes of a tree.
pub const ROUTES_MAX: usize = 1 << 16;

/// Source addresses of FullNAT.
pub const SNAT_ADDRESSES_MAX: usize = 1 << 10;

/// Gateways whose tunnel packets are decapsulated.
pub const TUNNEL_PEERS_MAX: usize = 64;

/// Next hops of backends, routes and fixed neighbours together.
pub const NEXT_HOPS_MAX: usize = 65_535;

/// Next hops that only packets request: clients on a link. They have their own capacity in the neighbour table.
pub const NEIGHBORS_ON_DEMAND_MAX: usize = 16_384;

/// Groups of VIPs, and SNAT addresses of other gateways, that this gateway owns at the same time.
pub const OWNER_KEYS_MAX: usize = 8192;

/// Ports examined for a new FullNAT flow, over all SNAT addresses together, before it is dropped as
/// `snat_ports_exhausted`. Also the ports examined for a `nat` flow whose port is in use, before it is dropped as
/// `nat_conflict`.
pub const SNAT_PORT_PROBES: usize = 64;

/// Ports of one SNAT address that are examined together, so that their cache misses overlap.
pub const SNAT_PORT_BATCH: usize = 8;

/// With several workers, each caches copies of other workers' flows: at most the size of its flow table divided by
/// this.
pub const COPIES_TABLE_SHARE: usize = 4;

/// The capacity of a worker for masqueraded flows is the size of its flow tables divided by this number.
pub const MASQUERADE_TABLE_SHARE: usize = 8;

/// The minimum capacity of a worker for masqueraded flows.
pub const MASQUERADE_FLOWS_MIN: usize = 64;

/// One source (an IPv4 address, or a /64) may have at most a worker's masqueraded flows divided by this number.
pub const MASQUERADE_SHARE: usize = 4;

/// Counters of the masqueraded flows of sources. Sources that share a counter share its bound.
pub const MASQUERADE_SOURCES: usize = 1024;

/// Masqueraded flows that are examined for one that a new flow may replace.
pub const MASQUERADE_EVICTION_PROBES: usize = 32;

/// The idle timeout of an established masqueraded TCP connection. RFC 5382 REQ-5 requires 2 h 4 min or more.
pub const MASQUERADE_TCP_IDLE: Duration = Duration::from_secs(7_440);

/// The idle timeout of a masqueraded UDP flow with an answer. RFC 4787 REQ-5 recommends 5 minutes.
pub const MASQUERADE_UDP_IDLE: Duration = Duration::from_secs(300);

/// The idle timeout of a masqueraded ICMP echo with an answer: the least that RFC 5508 REQ-1 allows.
pub const MASQUERADE_ECHO_IDLE: Duration = Duration::from_secs(60);

/// Port cursors of a worker, shared by all pairs of a SNAT address and a backend: 128 KiB. Pairs that share a cursor
/// only rotate faster.
pub const SNAT_CURSORS: usize = 1 << 16;

/// The maximum number of other backends to try for a connection that a backend refuses.
pub const RETRIES_MAX: u8 = 3;

/// SYNs that a worker stores, so that it can offer a connection to another backend: 128 KiB, and at most as much for
/// their metadata. At 1,000,000 new connections a second a SYN stays for about a millisecond.
pub const STORED_SYNS: usize = 1024;

/// Slots of a Maglev table, or positions of a ring, that are examined to find a backend that was neither tried nor set
/// aside. If half of the backends are set aside, the search fails once in 2^64 times.
pub const MAGLEV_TRIES: u32 = 64;

/// Bytes of the longest frame of a stored SYN: the largest TCP header behind an IPv6 header and a tag, with bytes to
/// spare.
pub const STORED_SYN_LEN: usize = 128;

/// A SYN that its client repeats after this time, in milliseconds, was not answered. Hosts wait for a second (RFC 6298
/// section 2), and their timers are coarse.
pub const SYN_REPEATED_MS: u32 = 800;

/// Backends of which a worker counts failed connections. Failures of others are not counted.
pub const FAILING_BACKENDS_MAX: usize = 1024;

/// Failures of a backend that are further apart than this, in milliseconds, are not consecutive.
pub const FAILURES_WITHIN_MS: u32 = 60_000;

/// If the client (an IPv4 address or a /64) that failed last fails again with the same backend within this time, in
/// milliseconds, that failure isn't counted. So a client that a backend refuses, for example by a network policy, can't
/// get the backend set aside with a burst of connections.
pub const FAILURE_OF_SOURCE_MS: u32 = 1_000;

/// The idle time after which an unanswered opening flow releases its port to another `nat` flow. Before that, a genuine
/// handshake may be in progress, and the new flow can use another port.
pub const OPENING_IDLE_MIN_MS: u32 = 1_000;

/// With this many opening entries of a service in one table of a worker, its new connections are answered with SYN
/// cookies; the threshold is lower in small tables. A flow has two such entries until its backend answers, then one.
pub const COOKIES_FROM: usize = 16_384;

/// SYN cookies are also used when the opening flows of a service exceed the flow table's size divided by this.
pub const COOKIES_TABLE_SHARE: usize = 8;

/// SYN cookies stay in use for at least this long. By then, flows that were opening at the start are over or
/// established.
pub const COOKIES_MIN_MS: u32 = 10_000;

/// Services of one worker that use SYN cookies at the same time. Further Services continue without cookies.
pub const COOKIES_SERVICES_MAX: usize = 64;

/// Counters for the opening entries of clients' networks, for each table: 16 KiB.
pub const OPENING_NETWORKS: usize = 4096;

/// A network floods a table if it has more than `1 / OPENING_NETWORK_SHARE` of all opening entries. At most 64 networks
/// can have that many, so neither genuine clients of thousands of networks nor random sources reach it.
pub const OPENING_NETWORK_SHARE: u32 = 64;

/// A network with at most this many opening entries never counts as flooding a table.
pub const OPENING_NETWORK_MIN: u32 = 64;

/// A service floods a table if it has more than `1 / OPENING_SERVICE_SHARE` of all opening entries.
pub const OPENING_SERVICE_SHARE: u32 = 8;

/// A table above its bound uses free entries before it evicts an opening flow that has been idle for less than this. A
/// backend in the same data centre answers within this time.
pub const OPENING_FRESH_MS: u32 = 10;

/// Additional hash buckets that are searched for a flow to evict, if the two hash buckets of the new flow contain only
/// flows that are as valuable as the new one.
pub const EVICTION_SAMPLE: u32 = 8;

/// Additional hash buckets that are searched for a flow of a service that has its share of a full table. With the
/// default share, every third entry is such a flow; with a share of 5 %, 49 of 50 searches find one.
pub const SHARE_SAMPLE: u32 = 64;

/// A flow that only one side has closed or reset is evicted only after this idle time: a half-closed connection that
/// still carries data isn't idle for so long.
pub const HALF_CLOSED_IDLE_MIN_MS: u32 = 1_000;

/// An established flow is evicted for a new one only after this idle time, and only if no other flow can be evicted.
pub const ESTABLISHED_IDLE_MIN_MS: u32 = 10_000;

/// (percentage, divisor): from this percentage of its bound on, a flow table is under memory pressure and divides the
/// timeouts of opening flows by the divisor. The first matching entry applies.
pub const FLOW_PRESSURE: [(usize, u32); 2] = [(90, 12), (75, 4)];

/// Changes of flows that each kind of flow table records between two loop iterations of the worker, for other gateways.
/// An iteration changes at most some flows of its bursts, so changes are lost only in tests and when an operator
/// removes many flows at once.
pub const FLOW_JOURNAL_MAX: usize = 1024;

/// Records of the flow log that wait in the queue of one worker: 1 MB. They are taken every 100 ms, so a worker can begin
/// and end 40,000 logged flows per second. Further records are counted as lost.
pub const FLOW_LOG_QUEUED_MAX: usize = 8_192;

/// How long a closed or reset connection may still send packets, such as repeated FINs, before the flow log reports its
/// end, in milliseconds.
pub const FLOW_LOG_CLOSED_MS: u32 = 5_000;

/// Closed or reset connections of one table whose end is reported after [`FLOW_LOG_CLOSED_MS`]. Further ones are
/// reported when their entry is removed.
pub const FLOW_LOG_CLOSING_MAX: usize = 65_536;

/// A flow of another gateway is adopted only while the table is filled less than this, in percent of its bound. So
/// flows of others never shorten the timeouts of the gateway's own ([`FLOW_PRESSURE`]).
pub const ADOPTED_FILL_PERCENT: usize = 75;

/// The fill limit, in percent, for adopting flows that are not known to be established: a flood at another gateway must
/// not displace established flows.
pub const ADOPTED_OPENING_FILL_PERCENT: usize = 50;

/// Corrections that a worker sends per loop iteration: if another gateway reports an earlier connection of a client
/// port that has since been reused, the worker replies with the newer one.
pub const SHARING_CORRECTIONS_MAX: usize = 32;

/// Hash buckets that a worker examines per loop iteration for flows that other gateways need.
pub const SHARING_BUCKETS_PER_ITERATION: u64 = 32;

/// The percentage of a flow table's bound that one service may use once the bound is reached, unless configured. The
/// capacity of the table is 1.5 times its bound, so other services can still add flows.
pub const FLOW_SHARE_PERCENT: u8 = 50;

/// Lowest local port used by FullNAT: the ports below are for services of the host (RFC 6335).
pub const SNAT_PORT_MIN: u16 = 1024;

/// Bytes that may be added in front of a frame: the longest header of the PROXY protocol and a tag, an outer IPv6
/// header and a tag, or an ICMPv6 error with its own headers. DPDK's default headroom is 128.
pub const HEADROOM_MIN: usize = 112;

/// The fast path pays off if it handles at least one in this many frames of a burst.
pub const FAST_PATH_SHARE: usize = 4;

/// After a burst in which the fast path did not pay off, this many bursts skip it.
pub const FAST_PATH_SKIPPED_BURSTS: u8 = 31;

/// Hash buckets examined for ageing with each burst: at 30,000 bursts a second, a table for a million flows takes 3
/// seconds. Eight hash buckets would cost 4 % more time per packet.
pub const AGEING_BUCKETS_PER_BURST: usize = 4;

/// Hash buckets of each flow table that a replay examines for each second of its capture, like a worker with 30,000
/// bursts a second. A gap of any length causes at most one walk of the whole table.
pub const AGEING_BUCKETS_PER_SECOND: u64 = 30_000 * AGEING_BUCKETS_PER_BURST as u64;

/// In a longer gap of a capture, flows are also examined this long after the start of the gap, because the timestamps
/// of flows wrap. It is longer than any idle timeout that can be configured.
pub const AGEING_GAP_MAX: Duration = Duration::from_secs(10 * 86_400);

/// Hash buckets whose flows are checked per loop iteration after a change of source ranges: this takes some 10 µs. At
/// 10,000 iterations a second, a table for a million flows takes a second.
pub const RECHECK_BUCKETS_PER_ITERATION: u64 = 256;

/// Rate limits of a worker for one kind of answer: per source prefix, and for all prefixes together.
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
/// as many prefixes to exhaust the tokens of all others.
pub const ANSWER_PREFIXES: usize = 1024;

/// Fragmented datagrams whose verdict a worker remembers: 6 MB of address space; memory is used only as needed. At
/// 100,000 fragmented datagrams a second, each is remembered for at least half a second.
pub const FRAGMENTS_MAX: usize = 1 << 16;

/// The associativity of the fragment table. With 16 entries in a set, first fragments without later ones must fill most
/// of the table before one evicts another recent one.
pub const FRAGMENTS_PER_SET: usize = 16;

/// Path MTUs of tunnels that are remembered, for all workers together: 512 KiB. When a hash bucket is full, the entry
/// that expires first is replaced.
pub const PATH_MTUS_MAX: usize = 16_384;

/// The rate at which a worker fragments IPv4 packets that don't fit their link. Fragmenting costs about as much as ten
/// other packets, so a flood of such packets takes at most a tenth of a worker's time. Packets beyond the rate are
/// answered with "fragmentation needed", as if they had DF.
pub const FRAGMENTED: Rate = Rate { per_second: 100_000, burst: 10_000 };

/// How often a worker lets an ICMP error change a path MTU. This bounds the cost of a flood of forged errors.
pub const PATH_MTU_UPDATES: Rate = Rate { per_second: 100, burst: 100 };
