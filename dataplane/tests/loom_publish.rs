//! The publish protocol under loom: every interleaving of small bodies, and every order that the memory model allows.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p tidegate-dataplane --test loom_publish --release`. Values count their
//! drops by thread: a worker drops none while the publisher lives.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use tidegate_dataplane::publish::Publisher;

/// A value that records where it was dropped.
struct Value {
    generation: u64,
    home: thread::ThreadId,
    away: Arc<AtomicUsize>,
    dropped: Arc<AtomicUsize>,
}

impl Drop for Value {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        if thread::current().id() != self.home {
            self.away.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn value(generation: u64, away: &Arc<AtomicUsize>, dropped: &Arc<AtomicUsize>) -> Value {
    Value { generation, home: thread::current().id(), away: away.clone(), dropped: dropped.clone() }
}

#[test]
fn worker_sees_only_whole_values_in_order_and_drops_none() {
    loom::model(|| {
        let (away, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut publisher = Publisher::new(1, value(1, &away, &dropped));
        let mut reader = publisher.reader();
        let worker = thread::spawn(move || {
            let mut last = reader.generation();
            for _ in 0..2 {
                reader.refresh();
                assert_eq!(
                    reader.get().generation,
                    reader.generation(),
                    "value and generation belong together"
                );
                assert!(reader.generation() >= last, "never backwards");
                last = reader.generation();
            }
        });
        publisher.publish(2, value(2, &away, &dropped));
        publisher.publish(3, value(3, &away, &dropped));
        worker.join().unwrap();
        publisher.reclaim();
        assert_eq!(publisher.readers(), 0);
        assert_eq!(dropped.load(Ordering::Relaxed), 2, "only the current value is left");
        assert_eq!(away.load(Ordering::Relaxed), 0, "nothing was dropped on the worker");
    });
}

#[test]
fn applied_generation_means_that_the_old_value_was_returned() {
    loom::model(|| {
        let (away, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut publisher = Publisher::new(1, value(1, &away, &dropped));
        let mut reader = publisher.reader();
        let worker = thread::spawn(move || {
            reader.refresh();
            reader
        });
        publisher.publish(2, value(2, &away, &dropped));
        if publisher.applied_generation() == 2 {
            publisher.reclaim();
            assert_eq!(dropped.load(Ordering::Relaxed), 1, "applied, so the first value is free");
        }
        let reader = worker.join().unwrap();
        assert!(reader.get().generation >= 1);
        drop(reader);
    });
}

#[test]
fn a_dead_worker_does_not_block_anything() {
    loom::model(|| {
        let (away, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut publisher = Publisher::new(1, value(1, &away, &dropped));
        let reader = publisher.reader();
        let worker = thread::spawn(move || drop(reader));
        publisher.publish(2, value(2, &away, &dropped));
        worker.join().unwrap();
        publisher.reclaim();
        assert_eq!(publisher.applied_generation(), 2);
        assert_eq!((dropped.load(Ordering::Relaxed), away.load(Ordering::Relaxed)), (1, 0));
    });
}
