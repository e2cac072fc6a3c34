//! Classes of frames for the kernel. Each has its own queue and rate, so a flood of one class doesn't delay the others.
//!
//! A worker determines the class only of frames that go to the kernel. The slow path reads the queues in the order of
//! [`PuntClass::ALL`], a bounded number of frames from each per loop iteration.
//!
//! Invariant: an attacker's frames are in the classes of unsolicited traffic ([`PuntClass::Neighbor`],
//! [`PuntClass::Other`] and [`PuntClass::Routing`]) unless they answer requests of the host ([`HostConnections`]).
//! Backends under health checks can send such answers at any rate. So sessions with routers have their own class, and a
//! sender that exceeds its quota of an answer class gets only what other senders leave ([`PuntRates`]).

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crossbeam::queue::ArrayQueue;
use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::now::Now;
use tidegate_spec::token_bucket::{Rate, TokenBucket};
use tidegate_structures::counter::Counter;
use tidegate_wire::ndp::{self, Ndp};
use tidegate_wire::{Addr, Headers, Parsed, proto, quote};

use super::host_connections::{HostConnections, is_bgp};

/// The class of a frame for the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum PuntClass {
    /// ARP and neighbour discovery packets that answer a request of the kernel.
    NeighborAnswer,
    /// Packets of the host's BGP and BFD sessions.
    Session,
    /// Packets of other connections that the host opened, including health checks.
    Answer,
    /// Packets of routing protocols from any sender: BGP, BFD, OSPF, VRRP.
    Routing,
    /// Other ARP and neighbour discovery packets.
    Neighbor,
    /// All other frames.
    Other,
}

/// The limits of one class.
struct Bounds {
    name: &'static str,
    /// Frames a second over all workers, and burst.
    rate: (u32, u32),
    /// Capacity of the queue to the slow path.
    queue: usize,
    /// Frames that the slow path takes per loop iteration.
    per_iteration: usize,
}

impl PuntClass {
    /// All classes, in the order in which the slow path serves them.
    pub const ALL: [Self; Self::COUNT] =
        [Self::NeighborAnswer, Self::Session, Self::Answer, Self::Routing, Self::Neighbor, Self::Other];
    /// The number of classes.
    pub const COUNT: usize = 6;
    /// Capacity of all queues together.
    pub const QUEUED_MAX: usize = {
        let (mut sum, mut n) = (0, 0);
        while n < Self::COUNT {
            sum += Self::ALL[n].bounds().queue;
            n += 1;
        }
        sum
    };

    /// The name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.bounds().name
    }

    /// Capacity of the class's queue.
    #[must_use]
    pub const fn queue_max(self) -> usize {
        self.bounds().queue
    }

    pub(crate) const fn per_iteration(self) -> usize {
        self.bounds().per_iteration
    }

    const fn bounds(self) -> Bounds {
        let (name, rate, queue, per_iteration) = match self {
            Self::NeighborAnswer => ("neighbor_answer", (5_000, 256), 256, 64),
            Self::Session => ("session", (40_000, 4_096), 512, 128),
            Self::Answer => ("answer", (100_000, 4_096), 1024, 256),
            Self::Routing => ("routing", (5_000, 512), 256, 64),
            Self::Neighbor => ("neighbor", (2_000, 256), 256, 32),
            Self::Other => ("other", (10_000, 1_024), 512, 64),
        };
        Bounds { name, rate, queue, per_iteration }
    }

    /// The class of a frame for the kernel.
    #[must_use]
    pub fn of(now: Now, frame: &[u8], own: &HostConnections) -> Self {
        match tidegate_wire::parse(frame) {
            Ok(Parsed::Arp(packet)) => Self::of_neighbor(now, packet.sender_ip.into(), own),
            Ok(Parsed::Ip(h)) => Self::of_packet(now, frame, &h, own),
            Ok(Parsed::Other) | Err(_) => Self::Other,
        }
    }

    fn of_packet(now: Now, frame: &[u8], h: &Headers, own: &HostConnections) -> Self {
        if h.proto == proto::ICMPV6 && (133..=137).contains(&h.icmp_type) {
            return match ndp::parse(frame, h) {
                Ok(Some(Ndp::Advertisement { target, .. })) => Self::of_neighbor(now, target.into(), own),
                _ => Self::Neighbor,
            };
        }
        match (own.has(now, frame, h), is_bgp(h) || is_routing(h)) {
            (true, true) => Self::Session,
            (true, false) => Self::Answer,
            (false, true) => Self::Routing,
            (false, false) => Self::Other,
        }
    }

    fn of_neighbor(now: Now, sender: Addr, own: &HostConnections) -> Self {
        if own.has_requested(now, sender) { Self::NeighborAnswer } else { Self::Neighbor }
    }
}

/// BFD (RFC 5881, RFC 5883, RFC 7130), OSPF and VRRP.
fn is_routing(h: &Headers) -> bool {
    const OSPF: u8 = 89;
    const VRRP: u8 = 112;
    match h.proto {
        proto::UDP => matches!(h.dst_port, 3784 | 3785 | 4784 | 6784),
        OSPF | VRRP => true,
        _ => false,
    }
}

/// A frame for the kernel.
#[derive(Debug)]
pub struct Punted<F> {
    /// The interface that received it.
    pub interface: InterfaceIndex,
    /// The frame as received.
    pub frame: F,
    /// When it was queued.
    pub queued: Now,
}

/// The queues of all workers to the slow path.
#[derive(Debug)]
pub struct Punts<F> {
    queues: [ArrayQueue<Punted<F>>; PuntClass::COUNT],
}

impl<F> Default for Punts<F> {
    fn default() -> Self {
        Self { queues: PuntClass::ALL.map(|class| ArrayQueue::new(class.queue_max())) }
    }
}

impl<F> Punts<F> {
    /// Queues a frame for the slow path.
    ///
    /// # Errors
    /// The frame, if the queue is full.
    pub fn push(&self, class: PuntClass, punted: Punted<F>) -> Result<(), Punted<F>> {
        self.queues[class as usize].push(punted)
    }

    /// The next frame of a class.
    #[must_use]
    pub fn pop(&self, class: PuntClass) -> Option<Punted<F>> {
        self.queues[class as usize].pop()
    }

    /// The free capacity of a class's queue.
    fn free_capacity(&self, class: PuntClass) -> usize {
        class.queue_max().saturating_sub(self.queues[class as usize].len())
    }

    /// Whether a class's queue is at least half full.
    fn is_half_full(&self, class: PuntClass) -> bool {
        self.free_capacity(class) * 2 <= class.queue_max()
    }

    /// Whether no frame is waiting.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queues.iter().all(ArrayQueue::is_empty)
    }

    /// Frees all waiting frames.
    pub fn drain(&self) {
        for class in PuntClass::ALL {
            while self.pop(class).is_some() {}
        }
    }
}

/// The number of hash buckets for senders. The probability that a sender shares its hash bucket with a flooding one is
/// 1 in this number.
const SENDERS: usize = 4096;
/// A sender may use this fraction of the rate of [`PuntClass::Session`] regardless of others; less if many senders use
/// their quotas ([`Price`]).
const SENDER_QUOTA: u32 = 16;
/// How often the price of a class changes. A flood needs tens of milliseconds to use up the half of a class that is
/// reserved for quotas.
const PRICE_EVERY: Duration = Duration::from_millis(5);
/// The highest price. At this price, the quotas of all [`SENDERS`] add up to the rate of [`PuntClass::Session`].
const PRICE_MAX: u32 = SENDERS as u32 / SENDER_QUOTA;

/// The number of tokens that a sender pays for a frame of one class.
///
/// The price doubles while at most a quarter of the class is free and the free part doesn't grow: senders within their
/// quotas then send more than the class can take. It falls slowly while more is free and the free part doesn't shrink.
/// So all senders have equal quotas, whatever their number, and a sender that needs less loses nothing.
#[derive(Debug, Clone, Copy)]
struct Price {
    tokens: u32,
    /// The free supplies at the last change.
    free: [u64; 2],
    next_change: Now,
}

impl Price {
    const LOWEST: Self = Self { tokens: 1, free: [u64::MAX; 2], next_change: Now(0) };

    /// The current price. `supplies` are the class's tokens and its queue entries, each as (free, total).
    fn at(&mut self, now: Now, supplies: [(u64, u64); 2]) -> u32 {
        if now < self.next_change {
            return self.tokens;
        }
        self.next_change = now.plus(PRICE_EVERY);
        let both = [(supplies[0], self.free[0]), (supplies[1], self.free[1])];
        if both.iter().any(|&((free, all), before)| free <= all / 4 && free <= before) {
            self.tokens = (self.tokens * 2).min(PRICE_MAX);
        } else if both.iter().all(|&((free, all), before)| free > all / 4 && free >= before) {
            self.tokens = (self.tokens - self.tokens.div_ceil(8)).max(1);
        }
        self.free = supplies.map(|(free, _)| free);
        self.tokens
    }
}

/// The share of one worker in the rate of each class.
///
/// Each sender of answers has a small rate that no other sender can use up. Beyond it, its frames pass while half of
/// the class is free: a long transfer gets the rate of the class, and a flood leaves the other half. If so many senders
/// flood that their small rates exceed the class, all small rates shrink.
#[derive(Debug)]
pub struct PuntRates {
    classes: [TokenBucket; PuntClass::COUNT],
    /// Only the prices of answer classes change.
    prices: [Price; PuntClass::COUNT],
    /// Indexed by a hash of class and sender.
    senders: Box<[TokenBucket]>,
    hasher: RandomState,
}

impl PuntRates {
    /// The rates of one worker out of `workers`.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        // At most `WORKERS_MAX` workers.
        let workers = workers.max(1) as u32;
        let share = |class: PuntClass, parts: u32| {
            let (rate, burst) = class.bounds().rate;
            TokenBucket::new(Rate { per_second: (rate / parts).max(1), burst: (burst / parts).max(1) })
        };
        Self {
            classes: PuntClass::ALL.map(|class| share(class, workers)),
            prices: [Price::LOWEST; PuntClass::COUNT],
            senders: vec![share(PuntClass::Session, workers * SENDER_QUOTA); SENDERS].into(),
            hasher: RandomState::new(),
        }
    }

    /// Whether this frame of the class may be queued in `punts` now.
    pub fn take<F>(&mut self, class: PuntClass, frame: &[u8], punts: &Punts<F>, now: Now) -> bool {
        if matches!(class, PuntClass::Session | PuntClass::Answer)
            && let Ok(Parsed::Ip(h)) = tidegate_wire::parse(frame)
        {
            // An ICMP error may come from any address, so it is charged to the host that it is about.
            let sender = match quote::parse(frame, &h) {
                Ok(Some(quoted)) => quoted.dst,
                _ => h.src,
            };
            let sender = self.bucket_of(class, sender);
            let of_class = &self.classes[class as usize];
            let tokens = (of_class.available(now), of_class.burst());
            let entries = (punts.free_capacity(class) as u64, class.queue_max() as u64);
            let price = self.prices[class as usize].at(now, [tokens, entries]);
            let is_within = self.senders[sender].take_many(now, price);
            if !is_within && (!of_class.is_half_full(now) || punts.is_half_full(class)) {
                return false;
            }
        }
        self.classes[class as usize].take(now)
    }

    /// The index of a sender's token bucket.
    fn bucket_of(&self, class: PuntClass, sender: Addr) -> usize {
        // The remainder is below `SENDERS`.
        self.hasher.hash_one((class as u8, sender.bytes())) as usize % SENDERS
    }
}

/// The counters of one class on one worker.
#[derive(Debug, Default)]
pub struct ClassCounters {
    /// Queued for the slow path.
    pub passed: Counter,
    /// Dropped because the rate was exceeded.
    pub rate_limited: Counter,
    /// Dropped because the queue was full.
    pub queue_full: Counter,
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_pipeline::testing::Builder;
    use tidegate_wire::tcp::flags;
    use tidegate_wire::{MacAddr, arp};

    fn class(own: &HostConnections, frame: &[u8]) -> PuntClass {
        PuntClass::of(Now(1_000_000_000), frame, own)
    }

    #[test]
    fn frames_are_classified_by_what_the_host_sent_before() {
        let own = HostConnections::default();
        let syn_ack = Builder::tcp("10.0.0.7:80", "192.0.2.2:40001").flags(flags::SYN | flags::ACK).build();
        assert_eq!(class(&own, &syn_ack), PuntClass::Other);
        own.note(Now(0), &Builder::tcp("192.0.2.2:40001", "10.0.0.7:80").flags(flags::SYN).build());
        assert_eq!(class(&own, &syn_ack), PuntClass::Answer);
        let bgp = Builder::tcp("192.0.2.1:4000", "192.0.2.2:179").flags(flags::SYN).build();
        assert_eq!(class(&own, &bgp), PuntClass::Routing);
        let bfd = Builder::udp("192.0.2.1:49152", "192.0.2.2:3784").ttl(255).build();
        assert_eq!(class(&own, &bfd), PuntClass::Routing);
        own.note(Now(0), &Builder::udp("192.0.2.2:49152", "192.0.2.1:3784").ttl(255).build());
        assert_eq!(class(&own, &bfd), PuntClass::Session);
        own.note(Now(0), &Builder::tcp("192.0.2.2:40002", "192.0.2.1:179").flags(flags::SYN).build());
        let accepted = Builder::tcp("192.0.2.1:179", "192.0.2.2:40002").flags(flags::SYN | flags::ACK);
        assert_eq!(class(&own, &accepted.build()), PuntClass::Session);
        let ssh = Builder::tcp("198.51.100.7:4000", "192.0.2.2:22").flags(flags::SYN).build();
        assert_eq!(class(&own, &ssh), PuntClass::Other);
        let (host, router) = ("192.0.2.2".parse().unwrap(), "192.0.2.1".parse().unwrap());
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let foreign = arp::request(mac, router, host, None, None);
        assert_eq!(class(&own, &foreign), PuntClass::Neighbor);
        own.note(Now(0), &arp::request(mac, host, router, None, None));
        assert_eq!(class(&own, &foreign), PuntClass::NeighborAnswer);
        assert_eq!(class(&own, &[0; 10]), PuntClass::Other);
    }

    #[test]
    fn a_flood_of_one_class_takes_no_rate_and_no_queue_of_the_others() {
        let (punts, mut rates) = (Punts::default(), PuntRates::new(2));
        let mut passed = 0;
        for n in 0..200_000 {
            let now = Now(n * 5_000);
            passed += u64::from(rates.take(PuntClass::Other, &[], &punts, now));
            let _ = punts.push(PuntClass::Other, Punted { interface: 0, frame: n, queued: now });
        }
        assert!((4_900..=5_600).contains(&passed), "{passed} of 200,000 in a second");
        assert!(rates.take(PuntClass::Answer, &[], &punts, Now(1_000_000_000)));
        assert!(punts.push(PuntClass::Answer, Punted { interface: 0, frame: 7, queued: Now(0) }).is_ok());
        assert_eq!(punts.pop(PuntClass::Answer).map(|punted| punted.frame), Some(7));
    }

    /// An answer of this backend to a health check.
    fn answer(host: [u8; 4]) -> Vec<u8> {
        let from = format!("{}:80", std::net::Ipv4Addr::from(host));
        Builder::tcp(from.as_str(), "192.0.2.2:40001").flags(flags::ACK).build()
    }

    #[test]
    fn a_sender_gets_the_whole_class_until_others_send() {
        let (punts, mut rates) = (Punts::<()>::default(), PuntRates::new(1));
        let flood = answer([10, 0, 0, 7]);
        let others: Vec<_> = (1..=20).map(|n| answer([10, 1, 0, n])).collect();
        let (mut of_flood, mut of_others) = (0, 0);
        for micro in 0..1_000_000 {
            let now = Now(1_000_000_000 + micro * 1_000);
            of_flood += u64::from(rates.take(PuntClass::Answer, &flood, &punts, now));
            if micro % 10_000 == 0 {
                let passed = others.iter().filter(|one| rates.take(PuntClass::Answer, one, &punts, now));
                of_others += passed.count();
            }
        }
        assert!((90_000..=105_000).contains(&of_flood), "{of_flood}");
        // Another sender may collide with the flood by chance.
        assert!(of_others >= 1_800, "{of_others} of 2,000");
    }

    #[test]
    fn any_number_of_flooding_senders_leave_each_other_sender_its_quota() {
        let punts = Punts::<()>::default();
        for (class, floods) in [(PuntClass::Session, 17), (PuntClass::Session, 200), (PuntClass::Answer, 200)]
        {
            let mut rates = PuntRates::new(1);
            let floods: Vec<_> = (1..=floods).map(|n| [10, 0, 0, n]).collect();
            let bucket = |host| rates.bucket_of(class, Addr::v4(host));
            let taken: Vec<_> = floods.iter().map(|&host| bucket(host)).collect();
            // Some may collide with a flood by chance.
            let others = (1..=20).map(|n| [10, 1, 0, n]).filter(|&host| !taken.contains(&bucket(host)));
            let others: Vec<_> = others.map(answer).collect();
            let floods: Vec<_> = floods.into_iter().map(answer).collect();
            let (mut of_floods, mut lost) = (0, 0);
            for micro in 0..1_000_000 {
                let now = Now(1_000_000_000 + micro as u64 * 1_000);
                of_floods += u32::from(rates.take(class, &floods[micro % floods.len()], &punts, now));
                // Quotas shrink during the first tenth of a second. Then each of the others has 50 frames a second.
                if micro >= 100_000 && micro % 20_000 == 0 {
                    lost += others.iter().filter(|one| !rates.take(class, one, &punts, now)).count();
                }
            }
            let (rate, burst) = class.bounds().rate;
            assert!(of_floods <= rate + burst && of_floods > rate / 2, "{class:?}: {of_floods}");
            assert_eq!(lost, 0, "{class:?}, {} floods", floods.len());
        }
    }

    #[test]
    fn quotas_shrink_while_the_queue_is_nearly_full_and_grow_again_later() {
        let (punts, mut rates) = (Punts::default(), PuntRates::new(1));
        let class = PuntClass::Session;
        for frame in 0..class.queue_max() * 3 / 4 {
            let queued = Punted { interface: 0, frame, queued: Now(0) };
            punts.push(class, queued).expect("the queue is not full");
        }
        let price = |rates: &PuntRates| rates.prices[class as usize].tokens;
        let frame = answer([10, 0, 0, 7]);
        let mut now = Now(1_000_000_000);
        for _ in 0..20 {
            rates.take(class, &frame, &punts, now);
            now = now.plus(PRICE_EVERY);
        }
        assert_eq!(price(&rates), PRICE_MAX);
        punts.drain();
        for _ in 0..100 {
            rates.take(class, &frame, &punts, now);
            now = now.plus(PRICE_EVERY);
        }
        assert_eq!(price(&rates), 1);
    }

    #[test]
    fn a_half_full_queue_accepts_only_senders_within_their_quota() {
        let (punts, mut rates) = (Punts::default(), PuntRates::new(1));
        let (class, now) = (PuntClass::Answer, Now(1_000_000_000));
        for frame in 0..class.queue_max() / 2 {
            punts.push(class, Punted { interface: 0, frame, queued: now }).expect("the queue is not full");
        }
        let flood = answer([10, 0, 0, 7]);
        let passed = (0..1_000).filter(|_| rates.take(class, &flood, &punts, now)).count();
        assert_eq!(passed, 256, "the quota of one sender");
        let quoted = Builder::tcp("192.0.2.2:40001", "10.0.0.7:80").packet();
        let errors = (1..=20_u8).map(|n| {
            let [router, host] = [[10, 2, 0, n], [192, 0, 2, 2]].map(std::net::IpAddr::from);
            Builder::icmp(router, host, 3, 1, [0; 4]).payload(&quoted).build()
        });
        let passed = errors.filter(|one| rates.take(class, one, &punts, now)).count();
        assert_eq!(passed, 0, "errors about it count as its flood");
        let others = (1..=20).map(|n| answer([10, 1, 0, n]));
        let passed = others.filter(|one| rates.take(class, one, &punts, now)).count();
        assert!(passed >= 18, "{passed} of 20");
    }
}
