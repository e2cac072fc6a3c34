//! DPDK ports: the queues of a started port as [`PortQueue`]s, mbufs as the pipeline's frames.
//!
//! Mbufs move between `dpdk`'s bursts and the worker's batches by pointer: 32 of them cost some 10 ns each way.
//!
//! Invariant: a frame handed to the pipeline is contiguous. One that came spread over several mbufs is joined where
//! the first has room for all of it, and dropped otherwise.

use std::sync::Arc;

use dpdk::{Burst, Mbuf, PktPool, RxQueue, TxQueue};
use tidegate_core::frame::Frame;
use tidegate_core::limits::BURST;

use super::gate::{Gate, Stage};
use super::{FrameBatch, FrameSource, PortQueue};

/// An mbuf, as the pipeline sees it.
#[derive(Debug)]
pub struct DpdkFrame(pub Mbuf);

impl Frame for DpdkFrame {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self.0.data()
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.data_mut()
    }

    #[inline]
    fn grow_front(&mut self, count: usize) -> bool {
        self.0.prepend(count).is_ok()
    }

    #[inline]
    fn shrink_front(&mut self, count: usize) {
        self.0.trim_front(count).expect("no more is taken off than there is");
    }

    #[inline]
    fn resize(&mut self, len: usize) -> bool {
        match len.checked_sub(self.0.len()) {
            Some(more) => self.0.append(more).is_ok(),
            None => self.0.truncate(len).is_ok(),
        }
    }

    #[inline]
    fn prefetch(&self) {
        if let Some(first) = self.0.data().first() {
            tidegate_core::prefetch::read(first);
        }
    }
}

/// The two handles that [`dpdk::Port::start`] gave for a number.
pub type QueuePair = (RxQueue, TxQueue);

/// Receive and transmit queue of the same number of one port.
#[derive(Debug)]
pub struct DpdkQueue {
    /// None while the port is closed.
    queues: Option<QueuePair>,
    gate: Arc<Gate<QueuePair>>,
    received: Burst<BURST>,
    sending: Burst<BURST>,
}

impl DpdkQueue {
    /// Of a port that stays.
    #[must_use]
    pub fn new(rx: RxQueue, tx: TxQueue) -> Self {
        Self::behind(Arc::default(), (rx, tx))
    }

    /// Of a port that may be closed and opened again.
    #[must_use]
    pub fn behind(gate: Arc<Gate<QueuePair>>, queues: QueuePair) -> Self {
        Self { queues: Some(queues), gate, received: Burst::new(), sending: Burst::new() }
    }
}

impl PortQueue for DpdkQueue {
    type Frame = DpdkFrame;

    #[inline]
    fn rx(&mut self, batch: &mut FrameBatch<DpdkFrame>) -> usize {
        if self.gate.asks() {
            self.gate.answer(&mut self.queues);
        }
        let Some((rx, _)) = &mut self.queues else { return 0 };
        rx.rx(&mut self.received);
        let count = self.received.len().min(batch.remaining_capacity());
        let mut unusable = 0;
        for mut mbuf in self.received.drain(..count) {
            if mbuf.is_contiguous() || mbuf.linearize().is_ok() {
                batch.push(DpdkFrame(mbuf));
            } else {
                unusable += 1;
            }
        }
        unusable
    }

    #[inline]
    fn tx(&mut self, batch: &mut FrameBatch<DpdkFrame>) -> usize {
        // A packet socket without a link keeps frames and sends them later, or makes the driver wait.
        if !self.can_send() {
            return 0;
        }
        let Some((_, tx)) = &mut self.queues else { return 0 };
        for frame in batch.drain(..) {
            self.sending.push(frame.0).expect("a batch is as long as a burst, which is empty between calls");
        }
        let sent = tx.tx(&mut self.sending);
        batch.extend(self.sending.drain(..).map(DpdkFrame));
        sent
    }

    #[inline]
    fn can_send(&self) -> bool {
        self.gate.stage() == Stage::Open
    }
}

/// Mbufs for threads that are no workers.
#[derive(Debug, Clone)]
pub struct DpdkSource(pub PktPool);

impl FrameSource for DpdkSource {
    type Frame = DpdkFrame;

    fn frame(&self, bytes: &[u8]) -> Option<DpdkFrame> {
        let mut mbuf = self.0.alloc().ok()?;
        mbuf.append(bytes.len()).ok()?.copy_from_slice(bytes);
        Some(DpdkFrame(mbuf))
    }
}
