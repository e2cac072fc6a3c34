//! Sleep and wake-up of a worker under loom: no interleaving loses an item that is added while the worker falls asleep.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p tidegate-dataplane --test loom_mailbox --release`. A lost wake-up is
//! a deadlock here, because a sleep under loom has no time limit; in reality it costs a millisecond. Loom doesn't
//! verify that the fences are necessary: its queues use a lock, which orders more than crossbeam's queues do.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

use loom::sync::Arc;
use loom::thread;
use std::time::Duration;
use tidegate_dataplane::worker::Mailbox;

#[test]
fn a_worker_that_falls_asleep_is_woken_by_a_new_item() {
    loom::model(|| {
        let mailbox = Arc::new(Mailbox::<u8>::with_capacity(2));
        let theirs = Arc::clone(&mailbox);
        let worker = thread::spawn(move || {
            theirs.belongs_to_this_thread();
            loop {
                if let Some((interface, frame)) = theirs.next_injected() {
                    return (interface, frame);
                }
                theirs.sleep(Duration::from_millis(1), || true);
            }
        });
        mailbox.inject(3, 7).unwrap();
        assert_eq!(worker.join().unwrap(), (3, 7));
    });
}
