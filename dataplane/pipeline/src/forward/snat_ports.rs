//! Local ports of FullNAT flows: the order in which they are assigned, and which of them make replies arrive at the
//! worker that owns the flow.
//!
//! There is no list of free ports: the worker's flow table shows which flow has a port. A port belongs to one flow per
//! SNAT address, backend and protocol. So each pair of a SNAT address and a backend has 64,512 ports, which workers
//! share if ports are split. [`SnatPorts`] assigns them in rotation, in an order that keeps consecutive ports far
//! apart. The next port is the one assigned longest ago: its last flow has had the most time to end, and the backend
//! the most time to forget it.
//!
//! [`Steering`] describes how replies reach their worker. If the NIC hashes by RSS, the port is
//! chosen so that the Toeplitz hash of the reply selects this worker's queue. Otherwise ports are
//! split by remainder, and a worker that receives a reply for another one hands it over.

use tidegate_spec::ids::WorkerIndex;
use tidegate_spec::limits::{SNAT_CURSORS, SNAT_PORT_MIN};
use tidegate_structures::hash::{key_hash, scale};
use tidegate_wire::Addr;

/// How packets of a flow reach the worker that owns its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Steering {
    /// One worker, which receives everything.
    Single,
    /// The distribution by the NIC is unknown: ports are split by remainder, and replies are handed over.
    Partition,
    /// The NIC distributes packets by RSS over addresses and ports.
    Rss(Box<Rss>),
}

/// The receive-side scaling of a NIC port, with the RSS hash type "IP addresses and L4 ports".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rss {
    /// The Toeplitz key, 40 or 52 bytes.
    pub key: Vec<u8>,
    /// The redirection table: the queue for each value of the low bits of the hash. Its length is a power of two.
    pub queues: Vec<WorkerIndex>,
    /// Whether the hash includes SCTP ports. Many NICs hash only the addresses of SCTP packets.
    pub sctp_ports: bool,
}

impl Rss {
    /// The queue at which a packet from `src` to `dst` arrives.
    #[must_use]
    pub fn queue(&self, src: (&Addr, u16), dst: (&Addr, u16)) -> WorkerIndex {
        let hash = toeplitz(&self.key, src, dst);
        self.queues[hash as usize & (self.queues.len() - 1)]
    }
}

/// The worker that owns the FullNAT flow with this local port, if ports are split.
#[inline]
#[must_use]
pub fn owner_of_port(port: u16, workers: u8) -> WorkerIndex {
    // The remainder of a division by a `u8` is below 256.
    (port % u16::from(workers.max(1))) as WorkerIndex
}

/// The rotation of ports of one worker.
#[derive(Debug)]
pub struct SnatPorts {
    steering: Steering,
    worker: WorkerIndex,
    workers: u8,
    /// The lowest port of this worker. Its other ports follow at intervals of `stride`.
    lowest: u16,
    stride: u16,
    /// The number of ports of this worker.
    count: u32,
    /// The index of port `n` of the rotation is `first + n * step` modulo `count`; `step` is coprime to `count`.
    first: u32,
    step: u32,
    /// The next index in the rotation of each pair of a SNAT address and a backend, by the pair's hash.
    cursors: Box<[u16]>,
    /// The contribution of each bit of a reply's destination port to its RSS hash, for IPv4 and IPv6. The contribution
    /// is constant because the Toeplitz hash is linear.
    of_bit: [[u32; 16]; 2],
}

/// A SNAT address and a backend, with their rotation.
#[derive(Debug, Clone, Copy)]
pub struct Pair {
    v4: bool,
    cursor: usize,
    /// The RSS hash of replies, without the contribution of their destination port.
    rss_hash: u32,
}

/// The position of a port in the rotation of its pair.
#[derive(Debug, Clone, Copy)]
pub struct RingPosition {
    cursor: usize,
    index: u16,
}

impl SnatPorts {
    /// The ports of a worker. `seed` makes their order unpredictable (RFC 6056).
    #[must_use]
    pub fn new(steering: Steering, worker: WorkerIndex, workers: u8, seed: u64) -> Self {
        let workers = workers.max(1);
        let stride = match steering {
            Steering::Partition => u16::from(workers),
            Steering::Single | Steering::Rss(_) => 1,
        };
        let short = (u16::from(worker) + stride - SNAT_PORT_MIN % stride) % stride;
        let lowest = SNAT_PORT_MIN + short;
        let count = u32::from(u16::MAX - lowest) / u32::from(stride) + 1;
        let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let first = scale(mixed, count);
        // A step between a quarter and three quarters of the count keeps consecutive ports far apart.
        let mut step = count / 4 + scale(mixed.wrapping_mul(0xd6e8_feb8_6659_fd93), count / 2).max(1);
        while gcd(step, count) != 1 {
            step += 1;
        }
        let cursors = vec![0; SNAT_CURSORS].into_boxed_slice();
        let of_bit = match &steering {
            Steering::Rss(rss) => [Addr::v4([0; 4]), Addr::v6([0; 16])]
                .map(|zero| std::array::from_fn(|bit| toeplitz(&rss.key, (&zero, 0), (&zero, 1 << bit)))),
            Steering::Single | Steering::Partition => [[0; 16]; 2],
        };
        Self { steering, worker, workers, lowest, stride, count, first, step, cursors, of_bit }
    }

    /// How replies reach their worker.
    #[inline]
    #[must_use]
    pub fn steering(&self) -> &Steering {
        &self.steering
    }

    /// The rotation of ports of a SNAT address for a backend of this protocol.
    #[must_use]
    pub fn pair(&self, local: Addr, backend: (Addr, u16), proto: u8) -> Pair {
        let hash = key_hash(&local, proto, backend.1) ^ key_hash(&backend.0, proto, 0).rotate_left(17);
        let cursor = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let rss_hash = match &self.steering {
            Steering::Rss(rss) => toeplitz(&rss.key, (&backend.0, backend.1), (&local, 0)),
            Steering::Single | Steering::Partition => 0,
        };
        Pair { v4: local.is_v4(), cursor: cursor as usize % SNAT_CURSORS, rss_hash }
    }

    /// The port of a pair that was assigned longest ago and whose replies reach this worker, with its position. `None`
    /// if no examined port fits; the next call continues the search.
    pub fn next(&mut self, pair: &Pair) -> Option<(u16, RingPosition)> {
        // With RSS, on average one in `workers` ports returns to this worker. Four times as many ports include such a
        // port in 98 % of the cases.
        (0..4 * u32::from(self.workers)).find_map(|_| {
            let position = self.position(pair);
            self.resume_after(position);
            let port = self.port_at(position.index);
            self.reaches_this_worker(pair, port).then_some((port, position))
        })
    }

    /// The position that the next search of a pair examines first.
    #[inline]
    #[must_use]
    pub fn position(&self, pair: &Pair) -> RingPosition {
        RingPosition { cursor: pair.cursor, index: self.cursors[pair.cursor] }
    }

    /// Sets the rotation of the pair to this position.
    pub fn resume_at(&mut self, position: RingPosition) {
        self.cursors[position.cursor] = position.index;
    }

    /// Sets the rotation of the pair to the port after this one.
    #[inline]
    pub fn resume_after(&mut self, position: RingPosition) {
        // The index is below the count, which is at most 64,512.
        let next = position.index + 1;
        self.cursors[position.cursor] = if u32::from(next) == self.count { 0 } else { next };
    }

    /// Whether a reply to this port reaches this worker, directly or by hand-over.
    fn reaches_this_worker(&self, pair: &Pair, port: u16) -> bool {
        let Steering::Rss(rss) = &self.steering else { return true };
        let of_bit = &self.of_bit[usize::from(!pair.v4)];
        let bits = (0..16).filter(|bit| port >> bit & 1 == 1);
        let hash = bits.fold(pair.rss_hash, |hash, bit| hash ^ of_bit[bit]);
        rss.queues[hash as usize & (rss.queues.len() - 1)] == self.worker
    }

    /// The port at an index of the rotation.
    fn port_at(&self, index: u16) -> u16 {
        // All three are below `count`, which is at most 64,512, so the sum is below 2^32.
        let at = (self.first + u32::from(index) * self.step) % self.count;
        // The position is below the count, so the port is at most 65,535.
        self.lowest + at as u16 * self.stride
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The Toeplitz hash over addresses and ports, as NICs compute it for RSS (Microsoft, "RSS hashing functions").
#[must_use]
pub fn toeplitz(key: &[u8], src: (&Addr, u16), dst: (&Addr, u16)) -> u32 {
    let mut input = [0; 36];
    let len = if src.0.is_v4() {
        input[..4].copy_from_slice(&src.0.v4_bytes());
        input[4..8].copy_from_slice(&dst.0.v4_bytes());
        8
    } else {
        input[..16].copy_from_slice(src.0.bytes());
        input[16..32].copy_from_slice(dst.0.bytes());
        32
    };
    input[len..len + 2].copy_from_slice(&src.1.to_be_bytes());
    input[len + 2..len + 4].copy_from_slice(&dst.1.to_be_bytes());
    let byte = |at: usize| u64::from(key.get(at).copied().unwrap_or(0));
    // A window of 32 bits of the key at the current input bit, and 8 more bits to shift in.
    let mut window = byte(0) << 32 | byte(1) << 24 | byte(2) << 16 | byte(3) << 8 | byte(4);
    let mut hash = 0;
    for (at, input) in input[..len + 4].iter().enumerate() {
        for bit in 0..8 {
            if input & (0x80 >> bit) != 0 {
                // The upper 32 of the 40 bits, after `bit` shifts.
                hash ^= (window >> (8 - bit)) as u32;
            }
        }
        window = (window << 8 | byte(at + 5)) & 0xff_ffff_ffff;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    /// The key and the test vectors of Microsoft's "Verifying the RSS hash calculation".
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    fn addr(text: &str) -> Addr {
        text.parse::<IpAddr>().expect("an address in a test").into()
    }

    #[test]
    fn toeplitz_gives_the_published_values() {
        for (dst, dst_port, src, src_port, expected) in [
            ("161.142.100.80", 1766, "66.9.149.187", 2794, 0x51cc_c178),
            ("65.69.140.83", 4739, "199.92.111.2", 14230, 0xc626_b0ea),
            ("3ffe:2501:200:3::1", 1766, "3ffe:2501:200:1fff::7", 2794, 0x4020_7d3d),
            ("ff02::1", 4739, "3ffe:501:8::260:97ff:fe40:efab", 14230, 0xdde5_1bbf),
        ] {
            let hash = toeplitz(&KEY, (&addr(src), src_port), (&addr(dst), dst_port));
            assert_eq!(hash, expected, "{src} -> {dst}");
        }
    }

    fn backend(n: u8) -> (Addr, u16) {
        (addr(&format!("10.1.2.{n}")), 8080)
    }

    fn next_ports(ports: &mut SnatPorts, pair: &Pair, count: usize) -> Vec<u16> {
        (0..count).filter_map(|_| ports.next(pair)).map(|(port, _)| port).collect()
    }

    #[test]
    fn every_port_is_assigned_once_before_any_repeats() {
        for (steering, workers) in [(Steering::Single, 1), (Steering::Partition, 2), (Steering::Partition, 7)]
        {
            for seed in [0, 1, u64::MAX] {
                let mut all = std::collections::BTreeSet::new();
                for worker in 0..workers {
                    let mut ports = SnatPorts::new(steering.clone(), worker, workers, seed);
                    let pair = ports.pair(addr("192.0.2.3"), backend(1), 6);
                    let count = ports.count as usize;
                    let first = next_ports(&mut ports, &pair, count);
                    assert!(first.iter().all(|&port| all.insert(port) && port >= SNAT_PORT_MIN));
                    assert_eq!(next_ports(&mut ports, &pair, count), first, "in the same order again");
                }
                assert_eq!(
                    all.len(),
                    0x1_0000 - usize::from(SNAT_PORT_MIN),
                    "seed {seed}, {workers} workers"
                );
            }
        }
    }

    #[test]
    fn consecutive_ports_are_far_apart_and_the_order_depends_on_the_seed() {
        let mut ports = SnatPorts::new(Steering::Single, 0, 1, 7);
        let pair = ports.pair(addr("192.0.2.3"), backend(1), 6);
        let first = next_ports(&mut ports, &pair, 64);
        assert!(first.windows(2).all(|two| two[0].abs_diff(two[1]) > 10_000), "{first:?}");
        let mut other = SnatPorts::new(Steering::Single, 0, 1, 8);
        let pair = other.pair(addr("192.0.2.3"), backend(1), 6);
        assert_ne!(next_ports(&mut other, &pair, 64), first);
    }

    #[test]
    fn each_pair_has_a_rotation_of_its_own() {
        let mut ports = SnatPorts::new(Steering::Single, 0, 1, 7);
        let pairs: Vec<Pair> = (0..=9).map(|n| ports.pair(addr("192.0.2.3"), backend(n), 6)).collect();
        let first = next_ports(&mut ports, &pairs[0], 100);
        assert!(pairs[1..].iter().all(|pair| next_ports(&mut ports, pair, 100) == first));
    }

    #[test]
    fn split_ports_belong_to_their_worker() {
        for workers in [2, 3, 7, 64] {
            for worker in 0..workers {
                let mut ports = SnatPorts::new(Steering::Partition, worker, workers, 7);
                let pair = ports.pair(addr("2001:db8::1"), (addr("2001:db8::2"), 80), 17);
                for port in next_ports(&mut ports, &pair, 2000) {
                    assert!(port >= SNAT_PORT_MIN);
                    assert_eq!(owner_of_port(port, workers), worker);
                }
            }
        }
    }

    #[test]
    fn rss_ports_return_replies_to_the_queue_of_the_worker() {
        let queues = (0..128).map(|n| n % 4).collect();
        let rss = Rss { key: KEY.to_vec(), queues, sctp_ports: true };
        for (local, backend) in [("192.0.2.3", ("10.1.2.3", 8080)), ("2001:db8::1", ("2001:db8::2", 80))] {
            let (local, backend) = (addr(local), (addr(backend.0), backend.1));
            let mut ports = SnatPorts::new(Steering::Rss(Box::new(rss.clone())), 2, 4, 99);
            let pair = ports.pair(local, backend, 6);
            let found = next_ports(&mut ports, &pair, 1000);
            assert!(found.len() > 900, "{} of 1000", found.len());
            for port in found {
                assert_eq!(rss.queue((&backend.0, backend.1), (&local, port)), 2);
            }
        }
    }
}
