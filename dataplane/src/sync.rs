//! Synchronization primitives in two forms: the real ones, and ones that loom can model (`--cfg loom`).
//!
//! [`crate::publish`] and [`crate::worker::mailbox`] use them, and loom checks their protocols. Loom can't see inside
//! the queues, so under loom each queue operation is one step.

#[cfg(not(loom))]
pub(crate) use real::*;

#[cfg(loom)]
pub(crate) use modelled::*;

#[cfg(not(loom))]
mod real {
    pub(crate) use crossbeam::queue::ArrayQueue as Queue;
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
    pub(crate) use std::thread::{Thread, current, park_timeout};
}

#[cfg(loom)]
mod modelled {
    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
    pub(crate) use loom::thread::{Thread, current};
    use std::collections::VecDeque;

    /// Sleeps forever, so that a lost wake-up is a deadlock, which loom reports.
    pub(crate) fn park_timeout(_: std::time::Duration) {
        loom::thread::park();
    }

    #[derive(Debug)]
    pub(crate) struct Queue<T> {
        items: loom::sync::Mutex<VecDeque<T>>,
        capacity: usize,
    }

    impl<T> Queue<T> {
        pub(crate) fn new(capacity: usize) -> Self {
            Self { items: loom::sync::Mutex::new(VecDeque::new()), capacity }
        }

        pub(crate) fn push(&self, item: T) -> Result<(), T> {
            let mut items = self.items.lock().expect("no panic inside");
            if items.len() == self.capacity {
                return Err(item);
            }
            items.push_back(item);
            Ok(())
        }

        pub(crate) fn force_push(&self, item: T) -> Option<T> {
            let mut items = self.items.lock().expect("no panic inside");
            let oldest = if items.len() == self.capacity { items.pop_front() } else { None };
            items.push_back(item);
            oldest
        }

        pub(crate) fn pop(&self) -> Option<T> {
            self.items.lock().expect("no panic inside").pop_front()
        }

        pub(crate) fn is_full(&self) -> bool {
            self.items.lock().expect("no panic inside").len() == self.capacity
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.items.lock().expect("no panic inside").is_empty()
        }
    }
}
