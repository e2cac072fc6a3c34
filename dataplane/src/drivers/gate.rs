//! Lets a worker release a port's queue and get a new one, without a lock and without waiting.
//!
//! A device can disappear and return while the gateway runs: its port is closed and opened again, which is allowed
//! only while no worker holds a queue of it. Each queue of each port has one [`Gate`]: the thread that watches links
//! sends a request, and the worker sees it at its next burst and answers. Both sides only store and load a byte.
//!
//! Invariant: only one side leaves each stage. The watching thread leaves `Open`, `Mute` and `Released`; the worker
//! leaves `Release` and `Offered`.

use std::sync::atomic::{AtomicU8, Ordering};

use crossbeam::queue::ArrayQueue;

/// The stage of the exchange between the two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// The worker receives and sends.
    Open = 0,
    /// There is no link: the worker receives the remaining frames, and sends nothing.
    Mute = 1,
    /// The worker is asked to release its queue.
    Release = 2,
    /// The worker holds no queue.
    Released = 3,
    /// A new queue is ready for the worker.
    Offered = 4,
}

/// The gate of one queue. `Q` is the queue of a port that a worker holds.
#[derive(Debug)]
pub struct Gate<Q> {
    stage: AtomicU8,
    offered: ArrayQueue<Q>,
}

impl<Q> Default for Gate<Q> {
    /// The worker has its queue, and the link is up.
    fn default() -> Self {
        Self { stage: AtomicU8::new(Stage::Open as u8), offered: ArrayQueue::new(1) }
    }
}

impl<Q> Gate<Q> {
    /// The stage now.
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

    /// Whether the worker must act. One load; called once per burst.
    #[inline]
    #[must_use]
    pub fn asks(&self) -> bool {
        matches!(self.stage(), Stage::Release | Stage::Offered)
    }

    /// Sets whether the link is up. Does nothing while the worker holds no queue. Called by the watching thread.
    pub fn set_link(&self, up: bool) {
        if matches!(self.stage(), Stage::Open | Stage::Mute) {
            self.set(if up { Stage::Open } else { Stage::Mute });
        }
    }

    /// Asks the worker to release its queue. Called by the watching thread, while the worker holds one.
    pub fn release(&self) {
        debug_assert!(self.is_held(), "a queue that is on its way is not asked back");
        self.set(Stage::Release);
    }

    /// Hands the worker a new queue. The worker sends once [`Self::set_link`] allows it. Called by the watching thread,
    /// while the worker holds none.
    pub fn offer(&self, queue: Q) {
        debug_assert_eq!(self.stage(), Stage::Released, "a worker has one queue of a port");
        drop(self.offered.force_push(queue));
        self.set(Stage::Offered);
    }

    /// Whether the worker holds a queue and has no request pending.
    #[must_use]
    pub fn is_held(&self) -> bool {
        matches!(self.stage(), Stage::Open | Stage::Mute)
    }

    /// Whether the worker holds no queue.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.stage() == Stage::Released
    }

    /// Carries out the pending request. Called by the worker.
    #[cold]
    pub fn answer(&self, held: &mut Option<Q>) {
        match self.stage() {
            Stage::Release => {
                // The queue is dropped before the other side can see the new stage.
                drop(held.take());
                self.set(Stage::Released);
            }
            Stage::Offered => {
                *held = self.offered.pop();
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
    fn a_queue_goes_back_before_the_next_one_comes_and_sends_only_when_the_link_is_up() {
        let (gate, queue) = (Gate::default(), Arc::new(()));
        let mut held = Some(Arc::clone(&queue));
        assert!(!gate.asks() && gate.is_held());
        gate.release();
        assert!(gate.asks() && !gate.is_released());
        gate.set_link(true);
        assert_eq!(gate.stage(), Stage::Release, "the link of a port that closes does not matter");
        gate.answer(&mut held);
        assert_eq!((held.is_none(), Arc::strong_count(&queue), gate.is_released()), (true, 1, true));
        gate.offer(queue);
        assert!(!gate.is_held());
        gate.answer(&mut held);
        assert_eq!((held.is_some(), gate.stage()), (true, Stage::Mute));
        gate.set_link(true);
        assert_eq!(gate.stage(), Stage::Open);
    }

    #[test]
    fn two_threads_pass_queues_to_and_fro_and_none_is_held_twice() {
        let (gate, queue) = (Arc::new(Gate::<Arc<()>>::default()), Arc::new(()));
        let worker = {
            let (gate, mut held) = (Arc::clone(&gate), Some(Arc::clone(&queue)));
            std::thread::spawn(move || {
                while Arc::strong_count(&gate) > 1 {
                    if gate.asks() {
                        gate.answer(&mut held);
                    }
                }
            })
        };
        for _ in 0..1000 {
            gate.release();
            while !gate.is_released() {
                std::hint::spin_loop();
            }
            assert_eq!(Arc::strong_count(&queue), 1, "the worker has let go");
            gate.offer(Arc::clone(&queue));
            while !gate.is_held() {
                std::hint::spin_loop();
            }
        }
        drop(gate);
        worker.join().expect("the worker ends");
    }
}
