//! Publishing with real threads, for what loom can't test (crossbeam's queues, sleeping and panicking workers).
#![cfg(not(loom))]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidegate_dataplane::publish::Publisher;

/// A value whose parts must agree. It counts its drops, and those on the wrong thread.
struct Value {
    generation: u64,
    parts: Vec<u64>,
    home: thread::ThreadId,
    counts: Arc<[AtomicUsize; 2]>,
}

impl Value {
    fn new(generation: u64, counts: &Arc<[AtomicUsize; 2]>) -> Self {
        Self {
            generation,
            parts: vec![generation; 64],
            home: thread::current().id(),
            counts: Arc::clone(counts),
        }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.parts.fill(u64::MAX);
        self.counts[0].fetch_add(1, Ordering::Relaxed);
        if thread::current().id() != self.home {
            self.counts[1].fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn workers_follow_thousands_of_values_and_free_none() {
    let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let mut publisher = Publisher::new(0, Value::new(0, &counts));
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..2)
        .map(|n| {
            let (mut reader, stop) = (publisher.reader(), Arc::clone(&stop));
            thread::spawn(move || {
                let (mut last, mut seen) = (0, 0_u64);
                while !stop.load(Ordering::Relaxed) {
                    if reader.refresh() {
                        seen += 1;
                    }
                    let value = reader.get();
                    assert!(value.parts.iter().all(|&part| part == value.generation));
                    assert!(value.generation >= last);
                    last = value.generation;
                    if n == 1 {
                        thread::yield_now();
                    }
                }
                seen
            })
        })
        .collect();
    let last = 5_000;
    for generation in 1..=last {
        publisher.publish(generation, Value::new(generation, &counts));
        if generation % 16 == 0 {
            thread::yield_now();
        }
    }
    wait_until(|| publisher.applied_generation() == last);
    publisher.reclaim();
    assert_eq!(
        counts[0].load(Ordering::Relaxed),
        usize::try_from(last).unwrap(),
        "all but the current one are free"
    );
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        assert!(worker.join().unwrap() > 0);
    }
    publisher.reclaim();
    assert_eq!(publisher.readers(), 0);
    assert_eq!(counts[1].load(Ordering::Relaxed), 0, "no worker dropped a value");
}

#[test]
fn a_panicking_worker_is_forgotten_and_its_value_returns() {
    let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let mut publisher = Publisher::new(1, Value::new(1, &counts));
    let reader = publisher.reader();
    let healthy = publisher.reader();
    let worker = thread::spawn(move || {
        let _reader = reader;
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(worker.join().is_err());
    publisher.publish(2, Value::new(2, &counts));
    assert_eq!(publisher.readers(), 1);
    assert_eq!(publisher.applied_generation(), 1, "the live one has not refreshed yet");
    drop(healthy);
    publisher.reclaim();
    assert_eq!((counts[0].load(Ordering::Relaxed), counts[1].load(Ordering::Relaxed)), (1, 0));
}

#[test]
fn a_sleeping_worker_keeps_one_old_value_and_wakes_to_the_newest() {
    let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let mut publisher = Publisher::new(0, Value::new(0, &counts));
    let mut reader = publisher.reader();
    for generation in 1..=100 {
        publisher.publish(generation, Value::new(generation, &counts));
    }
    assert_eq!(
        counts[0].load(Ordering::Relaxed),
        99,
        "the oldest is in use, the newest waits, the rest is free"
    );
    assert!(reader.refresh());
    assert_eq!(reader.get().generation, 100);
    assert!(!reader.refresh());
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "not within 20 s");
        thread::yield_now();
    }
}
