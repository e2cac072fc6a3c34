//! Local ports of FullNAT flows: candidates in an order that a flow's hash gives, each of which brings the
//! reply home to the worker that holds the flow.
//!
//! No list of free ports is kept: a port is free towards a backend when the worker's table has no reply flow
//! with it, so 64,512 ports are there per SNAT address, backend and (where ports are split) share of a worker.
//! How replies find their worker is [`Steering`]: where the NIC hashes by RSS the port is chosen so that the
//! Toeplitz hash of the reply selects this worker's queue; where it does not, ports are split by remainder and
//! whoever receives a reply hands it over.

use crate::ids::WorkerIndex;
use crate::limits::{SNAT_PORT_MIN, SNAT_PORT_PROBES};
use crate::wire::Addr;

/// How packets of one flow find the worker that holds its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Steering {
    /// One worker: everything comes to it.
    Single,
    /// The port spreads packets in ways we do not know: ports are split by remainder, replies handed over.
    Partition,
    /// The port spreads packets by RSS over addresses and ports.
    Rss(Box<Rss>),
}

/// What a port's receive-side scaling does: RSS hash type "IP addresses and L4 ports".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rss {
    /// The Toeplitz key, 40 or 52 bytes.
    pub key: Vec<u8>,
    /// The redirection table: queue by the low bits of the hash; its length is a power of two.
    pub queues: Vec<WorkerIndex>,
}

impl Rss {
    /// The queue that a packet from `src` to `dst` arrives at.
    #[must_use]
    pub fn queue(&self, src: (&Addr, u16), dst: (&Addr, u16)) -> WorkerIndex {
        let hash = toeplitz(&self.key, src, dst);
        self.queues[hash as usize & (self.queues.len() - 1)]
    }
}

/// The worker that holds the state of the FullNAT flow with this local port, when ports are split.
#[inline]
#[must_use]
pub fn owner_of_port(port: u16, workers: u8) -> WorkerIndex {
    // The remainder of a division by a `u8` is below 256.
    (port % u16::from(workers.max(1))) as WorkerIndex
}

/// Candidate ports for one new flow.
#[derive(Debug)]
pub struct Candidates<'a> {
    steering: &'a Steering,
    worker: WorkerIndex,
    workers: u8,
    local: Addr,
    backend: (Addr, u16),
    next: u32,
    step: u32,
    left: usize,
}

/// Ports that there are.
const RANGE: u32 = 0x1_0000 - SNAT_PORT_MIN as u32;

impl<'a> Candidates<'a> {
    /// Candidates for the flow with this hash, from `local` to `backend`, on a worker.
    #[must_use]
    pub fn new(
        steering: &'a Steering,
        worker: WorkerIndex,
        workers: u8,
        hash: u64,
        local: Addr,
        backend: (Addr, u16),
    ) -> Self {
        // Double hashing: each flow walks with a step of its own, or full stretches of ports would grow as they
        // do in linear probing. The range is 2^10 * 63, so an odd step comes back after 1,024 ports or more.
        let next = ((hash >> 32) % u64::from(RANGE)) as u32;
        let step = (hash as u32 % RANGE) | 1;
        Self { steering, worker, workers: workers.max(1), local, backend, next, step, left: SNAT_PORT_PROBES }
    }

    /// Whether a reply to this port comes to this worker, directly or by hand-over.
    fn leads_home(&self, port: u16) -> bool {
        match self.steering {
            Steering::Single | Steering::Partition => true,
            Steering::Rss(rss) => {
                rss.queue((&self.backend.0, self.backend.1), (&self.local, port)) == self.worker
            }
        }
    }

    /// The port at a position of the walk, moved to this worker's share where ports are split.
    fn port_at(&self, position: u32) -> u16 {
        let port = u32::from(SNAT_PORT_MIN) + position;
        let port = match self.steering {
            Steering::Partition => {
                let workers = u32::from(self.workers);
                let shared = port - port % workers + u32::from(self.worker);
                // The first and last share may reach past the ends of the range.
                if shared > 0xffff {
                    shared - workers
                } else if shared < u32::from(SNAT_PORT_MIN) {
                    shared + workers
                } else {
                    shared
                }
            }
            Steering::Single | Steering::Rss(_) => port,
        };
        u16::try_from(port).expect("positions stay within the range of ports")
    }
}

impl Iterator for Candidates<'_> {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        // With RSS only one port in `workers` leads home: look at so many more.
        let mut looked = usize::from(self.workers);
        while self.left > 0 {
            let port = self.port_at(self.next);
            self.next = (self.next + self.step) % RANGE;
            if self.leads_home(port) {
                self.left -= 1;
                return Some(port);
            }
            looked -= usize::from(looked > 0);
            if looked == 0 {
                self.left -= 1;
            }
        }
        None
    }
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
    // The window: 32 bits of key under the current input bit, and 8 more to shift in.
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

    /// The key and the vectors of Microsoft's "Verifying the RSS hash calculation".
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

    #[test]
    fn candidates_are_distinct_and_in_range() {
        for hash in [0, 1 << 40, u64::MAX] {
            let ports: Vec<u16> =
                Candidates::new(&Steering::Single, 0, 1, hash, addr("10.0.0.1"), (addr("10.0.0.2"), 80))
                    .collect();
            let unique: std::collections::BTreeSet<_> = ports.iter().collect();
            assert_eq!(ports.len(), SNAT_PORT_PROBES);
            assert_eq!(unique.len(), ports.len());
            assert!(ports.iter().all(|port| *port >= SNAT_PORT_MIN));
        }
    }

    #[test]
    fn split_ports_belong_to_their_worker() {
        for workers in [2, 3, 7] {
            for worker in 0..workers {
                for hash in [0, 0x1234_5678_9abc_def0, u64::MAX, 0xfbff << 32] {
                    let local = addr("2001:db8::1");
                    let backend = (addr("2001:db8::2"), 80);
                    let candidates =
                        Candidates::new(&Steering::Partition, worker, workers, hash, local, backend);
                    for port in candidates {
                        assert!(port >= SNAT_PORT_MIN);
                        assert_eq!(owner_of_port(port, workers), worker);
                    }
                }
            }
        }
    }

    #[test]
    fn rss_candidates_bring_the_reply_to_the_queue_of_the_worker() {
        let rss = Rss { key: KEY.to_vec(), queues: (0..128).map(|n| n % 4).collect() };
        let steering = Steering::Rss(Box::new(rss.clone()));
        let (local, backend) = (addr("192.0.2.3"), (addr("10.1.2.3"), 8080));
        let mut found = 0;
        for port in Candidates::new(&steering, 2, 4, 99 << 32, local, backend) {
            assert_eq!(rss.queue((&backend.0, backend.1), (&local, port)), 2);
            found += 1;
        }
        assert!(found > 4, "{found} candidates");
    }
}
