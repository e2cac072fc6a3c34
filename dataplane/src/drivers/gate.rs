//! Makes a worker release a port's queue and accept a new one, lock-free and without waiting.
//!
//! A device can disappear and return while the gateway runs. Its port is then closed and reopened, while no worker may
//! own one of its queues. Each queue of each port has one [`Gate`]: the watching thread sets a request, and the worker
//! sees it at its next burst and responds. The stage is an atomic byte, so neither side takes a lock.
//!
//! Invariant: each stage is ended by one side only. The watching thread ends `Open`, `Mute` and `Released`; the worker
//! ends `Release` and `Offered`.

use std::sync::atomic::{AtomicU8, Ordering};

use crossbeam::queue::ArrayQueue;

/// The stage of the exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// The worker receives and sends.
    Open = 0,
    /// No link: the worker receives remaining frames and sends nothing.
    Mute = 1,
    /// The worker must release its queue.
    Release = 2,
    /// The worker owns no queue.
    Released = 3,
    /// A new queue is ready for the worker.
    Offered = 4,
}

/// The gate of one queue. `Q` is the queue of a port that a worker owns.
#[derive(Debug)]
pub struct Gate<Q> {
    stage: AtomicU8,
    offered: ArrayQueue<Q>,
}

impl<Q> Default for Gate<Q> {
    /// The worker owns its queue, and the link is up.
    fn default() -> Self {
        Self { stage: AtomicU8::new(Stage::Open as u8), offered: ArrayQueue::new(1) }
    }
}

impl<Q> Gate<Q> {
    /// The current stage.
    #[inline]
    #[must_use]
    pub fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::Open,
            1 => Stage::Mute,
            2 => Stage::Release,
            3 => Stage::Released,
            _ => Stage::Offered,
        }
    }

    /// Whether the worker must respond. One load per burst.
    #[inline]
    #[must_use]
    pub fn has_request(&self) -> bool {
        matches!(self.stage(), Stage::Release | Stage::Offered)
    }

    /// Sets whether the link is up. Does nothing while a queue is being handed over. Called by the watching thread.
    pub fn set_link(&self, up: bool) {
        if matches!(self.stage(), Stage::Open | Stage::Mute) {
            self.set(if up { Stage::Open } else { Stage::Mute });
        }
    }

    /// Requests the queue from the worker. Called by the watching thread while the worker owns one.
    pub fn release(&self) {
        debug_assert!(self.is_owned(), "a queue that is being handed over can't be requested");
        self.set(Stage::Release);
    }

    /// Hands the worker a new queue. The worker sends once [`Self::set_link`] allows it. Called by the watching thread
    /// while the worker owns none.
    pub fn offer(&self, queue: Q) {
        debug_assert_eq!(self.stage(), Stage::Released, "a worker has one queue of a port");
        drop(self.offered.force_push(queue));
        self.set(Stage::Offered);
    }

    /// Whether the worker owns a queue and no request is pending.
    #[must_use]
    pub fn is_owned(&self) -> bool {
        matches!(self.stage(), Stage::Open | Stage::Mute)
    }

    /// Whether the worker owns no queue.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.stage() == Stage::Released
    }

    /// Carries out the pending request. Called by the worker.
    #[cold]
    pub fn respond(&self, queue: &mut Option<Q>) {
        match self.stage() {
            Stage::Release => {
                // The queue is dropped before the other side can see the new stage.
                drop(queue.take());
                self.set(Stage::Released);
            }
            Stage::Offered => {
                *queue = self.offered.pop();
                self.set(Stage::Mute);
            }
            Stage::Open | Stage::Mute | Stage::Released => {}
        }
    }

    fn set(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_queue_is_released_before_the_next_is_offered_and_mute_until_link_up() {
        let (gate, queue) = (Gate::default(), Arc::new(()));
        let mut owned = Some(Arc::clone(&queue));
        assert!(!gate.has_request() && gate.is_owned());
        gate.release();
        assert!(gate.has_request() && !gate.is_released());
        gate.set_link(true);
        assert_eq!(gate.stage(), Stage::Release, "the link of a port that closes does not matter");
        gate.respond(&mut owned);
        assert_eq!((owned.is_none(), Arc::strong_count(&queue), gate.is_released()), (true, 1, true));
        gate.offer(queue);
        assert!(!gate.is_owned());
        gate.respond(&mut owned);
        assert_eq!((owned.is_some(), gate.stage()), (true, Stage::Mute));
        gate.set_link(true);
        assert_eq!(gate.stage(), Stage::Open);
    }

    #[test]
    fn two_threads_exchange_queues_and_none_is_owned_twice() {
        let (gate, queue) = (Arc::new(Gate::<Arc<()>>::default()), Arc::new(()));
        let worker = {
            let (gate, mut queue) = (Arc::clone(&gate), Some(Arc::clone(&queue)));
            std::thread::spawn(move || {
                while Arc::strong_count(&gate) > 1 {
                    if gate.has_request() {
                        gate.respond(&mut queue);
                    }
                }
            })
        };
        for _ in 0..1000 {
            gate.release();
            while !gate.is_released() {
                std::hint::spin_loop();
            }
            assert_eq!(Arc::strong_count(&queue), 1, "the worker has released it");
            gate.offer(Arc::clone(&queue));
            while !gate.is_owned() {
                std::hint::spin_loop();
            }
        }
        drop(gate);
        worker.join().expect("the worker ends");
    }
}
