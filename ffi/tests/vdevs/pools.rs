//! Pools: their limits, their lifetime, and rings between threads.

use dpdk::testing::{self, Level};
use dpdk::{Burst, PktPool, PoolConfig, PoolExhausted, ring};

use super::{bytes, frames, pool};

#[test]
fn empty_pool_is_an_error_and_recovers() {
    let pool = pool();
    let mut all: Vec<_> = (0..511).map(|_| pool.alloc().unwrap()).collect();
    assert_eq!(pool.available(), 0);
    assert_eq!(pool.alloc().unwrap_err(), PoolExhausted);
    let mut burst: Burst = Burst::new();
    assert_eq!(pool.fill(&mut burst), Err(PoolExhausted));
    assert!(burst.is_empty());
    all.truncate(511 - 31);
    assert_eq!(pool.fill(&mut burst), Err(PoolExhausted), "32 or none");
    assert_eq!(pool.available(), 31);
    all.pop();
    pool.fill(&mut burst).unwrap();
    assert_eq!((burst.len(), pool.available()), (32, 0));
    drop((all, burst));
    assert_eq!(pool.available(), pool.capacity());
}

#[test]
fn configuration_errors_list_what_is_accepted() {
    let make = |config: &PoolConfig| PktPool::new(testing::eal(), config).unwrap_err().to_string();
    let base = PoolConfig::default();
    assert_eq!(
        make(&PoolConfig { mbufs: 0, ..base.clone() }),
        "mbuf pool: mbufs is 0; accepted: 1 to 16777216"
    );
    assert_eq!(
        make(&PoolConfig { cache: 513, ..base.clone() }),
        "mbuf pool: cache is 513; accepted: 0 to 512"
    );
    assert_eq!(
        make(&PoolConfig { data_room: 0, ..base }),
        "mbuf pool: data_room is 0; accepted: 1 to 65407 bytes"
    );
}

#[test]
fn small_pools_and_odd_data_rooms_work() {
    let pool = PktPool::new(
        testing::eal(),
        &PoolConfig { mbufs: 1, cache: 512, data_room: 100, ..PoolConfig::default() },
    )
    .unwrap();
    let mut mbuf = pool.alloc().unwrap();
    assert_eq!((mbuf.tailroom(), pool.data_room()), (100, 100));
    mbuf.append(100).unwrap();
    assert!(pool.alloc().is_err());
    drop(mbuf);
    assert!(pool.alloc().is_ok());
}

#[test]
fn pools_give_their_memory_back() {
    let _serial = testing::serial();
    // About 19 MiB each: 512 MiB would be exhausted after 27.
    for _ in 0..100 {
        let pool =
            PktPool::new(testing::eal(), &PoolConfig { mbufs: 8191, ..PoolConfig::default() }).unwrap();
        drop(pool.alloc().unwrap());
    }
}

#[test]
fn an_mbuf_may_outlive_its_pool() {
    let pool = pool();
    let mut mbuf = pool.alloc().unwrap();
    let burst: Burst = frames(&pool, 5);
    drop(pool);
    mbuf.append(60).unwrap().copy_from_slice(&bytes(1, 60));
    // Another pool never allocates the memory of this one.
    let other = super::pool();
    let mut all = Burst::<256>::new();
    other.fill(&mut all).unwrap();
    for other in all.iter_mut() {
        other.append(2048).unwrap().fill(0xff);
    }
    assert_eq!(mbuf.data(), bytes(1, 60));
    assert_eq!(burst[4].data(), bytes(4, 64));
}

#[test]
fn ring_hands_over_as_much_as_fits() {
    let pool = pool();
    let level = Level::of(&pool);
    let (mut sender, mut receiver) = ring::channel(testing::eal(), 10, None).unwrap();
    let mut burst: Burst = frames(&pool, 12);
    assert_eq!(sender.send(&mut burst), 10);
    assert_eq!(burst[0].data(), bytes(10, 70));
    assert_eq!(sender.send(&mut burst), 0);
    let mut received = Burst::<4>::new();
    assert_eq!(receiver.receive(&mut received), 4);
    assert_eq!(received[3].data(), bytes(3, 63));
    assert_eq!(receiver.receive(&mut received), 0, "the burst is full");
    assert_eq!(sender.send(&mut burst), 2);
    drop((sender, received));
    assert_eq!(level.missing(), 8);
    drop(receiver);
    level.assert_restored();
    assert_eq!(ring::channel(testing::eal(), 0, None).unwrap_err().capacity, 0);
    assert!(ring::channel(testing::eal(), u32::MAX, None).is_err());
}
