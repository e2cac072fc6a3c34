//! Workers: threads that register, pin themselves and pass frames on, and the pools that they share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use dpdk::testing::{self, Level};
use dpdk::{Burst, Lcore, LcoreError, PktPool, PoolConfig, PortConfig, cycles, lcore};

use super::bytes;

#[test]
fn a_thread_registers_once_and_pins_only_where_it_may() {
    let eal = testing::eal();
    let cpu = lcore::usable_cpus()[0];
    thread::spawn(move || {
        assert_eq!(lcore::current(), None);
        let own = Lcore::register_on(eal, cpu).unwrap();
        assert_eq!(lcore::current(), Some(own.id()));
        assert_eq!(lcore::usable_cpus(), [cpu]);
        assert!(matches!(Lcore::register(eal), Err(LcoreError::Registered(id)) if id == own.id()));
        drop(own);
        assert_eq!(lcore::current(), None);
        assert!(matches!(lcore::pin(1023), Err(LcoreError::Pin { cpu: 1023, .. })));
        assert!(matches!(lcore::pin(1 << 20), Err(LcoreError::Pin { .. })));
        assert_eq!(lcore::usable_cpus(), [cpu]);
    })
    .join()
    .unwrap();
}

/// One thread creates and sends frames, a second one returns them, and the first one receives them: 20,000 frames
/// through small rings, so that the rings are full and empty many times.
#[test]
fn frames_go_between_workers_and_none_is_lost() {
    const FRAMES: usize = 20_000;
    let eal = testing::eal();
    let pool = PktPool::new(eal, &PoolConfig { mbufs: 1023, cache: 64, ..PoolConfig::default() }).unwrap();
    let level = Level::of(&pool);
    let (mut left, mut right) = testing::port_pair(eal, 1, 100).unwrap();
    let mut near = left.start(&PortConfig::default(), &pool).unwrap();
    let mut far = right.start(&PortConfig::default(), &pool).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _lcore = Lcore::register(eal).unwrap();
            let mut burst = Burst::<32>::new();
            while !done.load(Ordering::Acquire) {
                far.rx[0].rx(&mut burst);
                for mbuf in burst.iter_mut() {
                    let seed = mbuf.data()[0];
                    mbuf.prepend(1).unwrap()[0] = seed;
                }
                while far.tx[0].tx(&mut burst) == 0 && !burst.is_empty() {
                    thread::yield_now();
                }
                // Frames that were not sent are already marked. Send them before receiving more.
                while !burst.is_empty() {
                    far.tx[0].tx(&mut burst);
                    thread::yield_now();
                }
                thread::yield_now();
            }
        });
        let _lcore = Lcore::register(eal).unwrap();
        let (mut sent, mut received) = (0, 0);
        let mut out = Burst::<32>::new();
        while received < FRAMES {
            while sent < FRAMES && !out.is_full() {
                let Ok(mut mbuf) = pool.alloc() else { break };
                mbuf.append(60).unwrap().copy_from_slice(&bytes(sent, 60));
                out.push(mbuf).unwrap();
                sent += 1;
            }
            near.tx[0].tx(&mut out);
            let mut back = Burst::<32>::new();
            near.rx[0].rx(&mut back);
            for mbuf in back.iter() {
                let expected = bytes(received, 60);
                assert_eq!((mbuf.data()[0], &mbuf.data()[1..]), (expected[0], &expected[..]));
                received += 1;
            }
            thread::yield_now();
        }
        done.store(true, Ordering::Release);
    });
    drop((near, far, left, right));
    level.assert_restored();
}

#[test]
fn cycles_advance_at_the_reported_rate() {
    let _eal = testing::eal();
    let (clock, start) = (std::time::Instant::now(), cycles::now());
    while clock.elapsed().as_millis() < 20 {}
    let measured = f64::from(u32::try_from(cycles::now() - start).unwrap()) / clock.elapsed().as_secs_f64();
    let reported = f64::from(u32::try_from(cycles::hz() / 1000).unwrap()) * 1000.0;
    assert!((measured / reported - 1.0).abs() < 0.2, "{measured} against {reported}");
}
