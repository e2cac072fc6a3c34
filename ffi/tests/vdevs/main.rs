//! The wrappers on real DPDK drivers that need no NIC: net_ring, net_null and net_pcap, on plain pages.
//!
//! One process, many threads, one EAL. Each test has its own ports and pool. Most tests are about ownership: after each
//! operation, the pool's fill level must be as before.
#![expect(clippy::unwrap_used, reason = "in tests a panic is the report")]

mod bursts;
mod mbufs;
mod pools;
mod ports;
mod threads;

use dpdk::{Burst, PktPool, PoolConfig, testing};

/// A pool of 511 mbufs, enough for any test here.
fn pool() -> PktPool {
    PktPool::new(testing::eal(), &PoolConfig { mbufs: 511, ..PoolConfig::default() }).unwrap()
}

/// A distinct frame: `length` bytes that count up from `seed`.
fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|index| u8::try_from((seed + index) % 251).unwrap()).collect()
}

/// A burst of `count` frames of at least 60 bytes, with contents from `bytes`.
fn frames<const N: usize>(pool: &PktPool, count: usize) -> Burst<N> {
    let mut burst = Burst::new();
    for seed in 0..count {
        let mut mbuf = pool.alloc().unwrap();
        mbuf.append(60 + seed).unwrap().copy_from_slice(&bytes(seed, 60 + seed));
        burst.push(mbuf).unwrap();
    }
    burst
}
