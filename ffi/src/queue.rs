//! The queues of a started port, which receive and send frames.
//!
//! [`crate::Port::start`] returns [`RxQueue`] and [`TxQueue`], one handle per queue. A handle moves to the worker that
//! uses it.
//!
//! Invariant: a queue has one handle, and `rx` and `tx` borrow it mutably, so two threads never poll one queue, which
//! DPDK's drivers forbid. The port can't stop while a handle exists.

use std::sync::Arc;

use dpdk_sys as sys;

use crate::burst::Burst;
use crate::port::Device;

/// A receive queue.
#[derive(Debug)]
pub struct RxQueue {
    device: Arc<Device>,
    queue: u16,
}

/// A transmit queue.
#[derive(Debug)]
pub struct TxQueue {
    device: Arc<Device>,
    queue: u16,
}

impl RxQueue {
    /// Creates the handle of a queue of a started device. Call it once per queue.
    pub(crate) fn new(device: Arc<Device>, queue: u16) -> Self {
        Self { device, queue }
    }

    /// Appends received frames while the burst has capacity, and returns their number. Never waits.
    #[inline]
    pub fn rx<const N: usize>(&mut self, burst: &mut Burst<N>) -> usize {
        let spare = burst.spare();
        let count = u16::try_from(spare.len()).unwrap_or(u16::MAX);
        // SAFETY: the port is started and has this queue while `device` lives; nobody else polls the queue (one handle,
        // borrowed mutably); `spare` has space for `count` pointers. The driver fills the first `received` with direct
        // mbufs of a PktPool that have one reference, which is now ours.
        unsafe {
            let received =
                sys::rte_eth_rx_burst(self.device.id(), self.queue, spare.as_mut_ptr().cast(), count);
            burst.assume_filled(usize::from(received));
            usize::from(received)
        }
    }

    /// Its number on the port.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.queue
    }

    /// The port's number.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.device.id()
    }
}

impl TxQueue {
    /// Creates the handle of a queue of a started device. Call it once per queue.
    pub(crate) fn new(device: Arc<Device>, queue: u16) -> Self {
        Self { device, queue }
    }

    /// Sends frames from the front of the burst until the queue is full, and returns their number. The rest stays in
    /// the burst, in order, to be sent again or dropped. Never waits.
    #[inline]
    pub fn tx<const N: usize>(&mut self, burst: &mut Burst<N>) -> usize {
        let count = u16::try_from(burst.len()).unwrap_or(u16::MAX);
        if count == 0 {
            return 0;
        }
        // SAFETY: the port is started and has this queue while `device` lives; nobody else uses the queue (one handle,
        // borrowed mutably); the burst contains `count` owned mbufs. From then on, the driver owns the first `sent` and
        // frees them once they are sent.
        unsafe {
            let sent = sys::rte_eth_tx_burst(self.device.id(), self.queue, burst.as_raw(), count);
            burst.assume_taken(usize::from(sent));
            usize::from(sent)
        }
    }

    /// Its number on the port.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.queue
    }

    /// The port's number.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.device.id()
    }
}
