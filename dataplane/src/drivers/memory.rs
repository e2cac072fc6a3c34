//! Ports in memory: bounded queues of plain frames, to test and measure the real worker.
//!
//! [`port`] returns the worker's ends, one [`MemoryQueue`] per worker, and a [`MemoryPort`] for the test, which acts as
//! the wire: the worker receives what the test puts into a queue, and the test takes what the worker sends.
//!
//! Invariant: both directions are bounded, so full transmit queues and partial sends occur as on a NIC.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam::queue::ArrayQueue;
use tidegate_pipeline::frame::{Frame, MemoryFrame};

use super::{FrameBatch, FrameSource, PortQueue};

/// The wire's end of a port.
#[derive(Debug, Clone)]
pub struct MemoryPort {
    queues: Vec<Wires>,
}

/// A worker's end of one queue of a port.
#[derive(Debug)]
pub struct MemoryQueue(Wires);

#[derive(Debug, Clone)]
struct Wires {
    towards_worker: Arc<ArrayQueue<MemoryFrame>>,
    from_worker: Arc<ArrayQueue<MemoryFrame>>,
    link_lost: Arc<AtomicBool>,
    starved: Arc<AtomicBool>,
}

/// Creates a port with `queues` queues of `depth` frames in each direction.
#[must_use]
pub fn port(queues: usize, depth: usize) -> (MemoryPort, Vec<MemoryQueue>) {
    let queues: Vec<Wires> = (0..queues)
        .map(|_| Wires {
            towards_worker: Arc::new(ArrayQueue::new(depth)),
            from_worker: Arc::new(ArrayQueue::new(depth)),
            link_lost: Arc::default(),
            starved: Arc::default(),
        })
        .collect();
    let ends = queues.iter().cloned().map(MemoryQueue).collect();
    (MemoryPort { queues }, ends)
}

impl MemoryPort {
    /// Puts a frame on the wire towards a queue. Returns false if the queue is full.
    ///
    /// # Panics
    /// If there is no such queue.
    #[must_use]
    pub fn offer(&self, queue: usize, bytes: &[u8]) -> bool {
        self.queues[queue].towards_worker.push(MemoryFrame::new(bytes)).is_ok()
    }

    /// Takes the next frame that the worker sent through this queue.
    ///
    /// # Panics
    /// If there is no such queue.
    #[must_use]
    pub fn take(&self, queue: usize) -> Option<MemoryFrame> {
        self.queues[queue].from_worker.pop()
    }

    /// Takes the link of a queue down, or restores it.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn set_link(&self, queue: usize, up: bool) {
        self.queues[queue].link_lost.store(!up, Ordering::Relaxed);
    }

    /// Sets whether the worker lacks memory for fragments that it sends through this queue.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn starve(&self, queue: usize, starved: bool) {
        self.queues[queue].starved.store(starved, Ordering::Relaxed);
    }

    /// Frames that the worker has not received yet.
    ///
    /// # Panics
    /// If there is no such queue.
    #[must_use]
    pub fn waiting(&self, queue: usize) -> usize {
        self.queues[queue].towards_worker.len()
    }
}

impl PortQueue for MemoryQueue {
    type Frame = MemoryFrame;

    #[inline]
    fn rx(&mut self, batch: &mut FrameBatch<MemoryFrame>) -> usize {
        while !batch.is_full() {
            let Some(frame) = self.0.towards_worker.pop() else { break };
            batch.push(frame);
        }
        0
    }

    #[inline]
    fn tx(&mut self, batch: &mut FrameBatch<MemoryFrame>) -> usize {
        if !self.can_send() {
            return 0;
        }
        let free = self.0.from_worker.capacity() - self.0.from_worker.len();
        let count = free.min(batch.len());
        for frame in batch.drain(..count) {
            // Only this end pushes, so the queue can't have filled up.
            self.0.from_worker.push(frame).expect("only the worker fills its transmit queue");
        }
        count
    }

    fn spare(&mut self, len: usize) -> Option<MemoryFrame> {
        if self.0.starved.load(Ordering::Relaxed) {
            return None;
        }
        let mut frame = MemoryFrame::with_capacity(len);
        frame.resize(len).then_some(frame)
    }

    #[inline]
    fn can_send(&self) -> bool {
        !self.0.link_lost.load(Ordering::Relaxed)
    }
}

/// Allocates frames on the heap.
#[derive(Debug, Clone, Copy, Default)]
pub struct Heap;

impl FrameSource for Heap {
    type Frame = MemoryFrame;

    fn frame(&self, bytes: &[u8]) -> Option<MemoryFrame> {
        Some(MemoryFrame::new(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_transmit_queue_takes_the_first_frames_and_leaves_the_rest() {
        let (wire, mut ends) = port(1, 2);
        let mut batch: FrameBatch<MemoryFrame> =
            [b"1", b"2", b"3"].iter().map(|bytes| MemoryFrame::new(*bytes)).collect();
        assert_eq!(ends[0].tx(&mut batch), 2);
        assert_eq!(batch[0].bytes(), b"3");
        assert_eq!(ends[0].tx(&mut batch), 0);
        assert_eq!(wire.take(0).unwrap().bytes(), b"1");
        assert_eq!(ends[0].tx(&mut batch), 1);
    }

    #[test]
    fn receiving_stops_at_a_full_batch() {
        let (wire, mut ends) = port(1, 64);
        for _ in 0..40 {
            assert!(wire.offer(0, b"frame"));
        }
        let mut batch = FrameBatch::new();
        ends[0].rx(&mut batch);
        assert_eq!((batch.len(), wire.waiting(0)), (32, 8));
    }
}
