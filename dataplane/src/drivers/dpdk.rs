//! DPDK ports: the queues of a started port as [`PortQueue`]s, mbufs as the pipeline's frames.
//!
//! Mbufs move between `dpdk`'s bursts and the worker's batches by pointer: 32 of them cost some 10 ns in each
//! direction.
//!
//! `net_af_packet` always joins its sockets to a fanout group with `PACKET_FANOUT_FLAG_DEFRAG`: the kernel reassembles
//! IPv4 datagrams first, and passes each on as one frame of up to 64 KiB. Such a port receives into a separate pool
//! with 64 KiB buffers ([`Large`]). Frames that exceed the MTU of the link are fragmented again at once, so that the
//! pipeline, taps and hand-overs see packets as on the wire. All other frames are copied to normal buffers. A large TCP
//! packet with DF stays as it is: it was never fragmented, but merged from segments by the kernel (GRO).
//!
//! Invariant: a frame passed to the pipeline is contiguous. A frame that arrives in several mbufs is linearized if the
//! first one has enough tailroom, and dropped otherwise.

use std::sync::Arc;

use dpdk::{Burst, Mbuf, PktPool, RxQueue, TxQueue};
use tidegate_pipeline::frame::Frame;
use tidegate_spec::limits::BURST;
use tidegate_wire::cut::Cut;
use tidegate_wire::{Family, Parsed, ethernet, parse, proto};

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
        self.0.trim_front(count).expect("the pipeline removes at most the length of the frame");
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
            tidegate_structures::prefetch::read(first);
        }
    }
}

/// The receive and the transmit queue that [`dpdk::Port::start`] returns for a queue number.
pub type QueuePair = (RxQueue, TxQueue);

/// The receive queue and the transmit queue of one port with the same number.
#[derive(Debug)]
pub struct DpdkQueue {
    /// `None` while the port is closed.
    queues: Option<QueuePair>,
    gate: Arc<Gate<QueuePair>>,
    received: Burst<BURST>,
    sending: Burst<BURST>,
    /// The pool for new frames.
    pool: PktPool,
    large: Option<Large>,
}

/// The receive side of a port whose frames may exceed the MTU of its link.
#[derive(Debug)]
struct Large {
    mtu: u16,
    /// The datagram that is being fragmented, and the number of its next fragment.
    cutting: Option<(Mbuf, Cut, usize)>,
}

impl DpdkQueue {
    /// A queue of a port that stays open.
    #[must_use]
    pub fn new(rx: RxQueue, tx: TxQueue, pool: PktPool) -> Self {
        Self::behind(Arc::default(), (rx, tx), pool)
    }

    /// A queue of a port that may be closed and reopened.
    #[must_use]
    pub fn behind(gate: Arc<Gate<QueuePair>>, queues: QueuePair, pool: PktPool) -> Self {
        Self { queues: Some(queues), gate, received: Burst::new(), sending: Burst::new(), pool, large: None }
    }

    /// Configures the queue for a port that receives into a pool of large buffers and has this MTU.
    #[must_use]
    pub fn with_large_frames(self, mtu: u16) -> Self {
        // Fragments must also fit normal buffers.
        let max = self.pool.data_room().saturating_sub(ethernet::HEADER_LEN_MAX as u16);
        Self { large: Some(Large { mtu: mtu.min(max), cutting: None }), ..self }
    }

    /// Receives frames of any size, and copies them to normal buffers if they fit.
    fn rx_large(&mut self, mtu: u16, batch: &mut FrameBatch<DpdkFrame>) -> usize {
        let mut cutting = self.large.as_mut().and_then(|large| large.cutting.take());
        if cutting.is_none()
            && self.received.is_empty()
            && let Some((rx, _)) = &mut self.queues
        {
            rx.rx(&mut self.received);
        }
        let mut unusable = 0;
        while !batch.is_full() {
            if let Some((whole, cut, n)) = &mut cutting {
                match filled(&self.pool, cut.frame_len(*n), |out| cut.write(whole.data(), *n, out)) {
                    Some(fragment) => batch.push(fragment),
                    // Without this fragment, the rest of the datagram is useless.
                    None => {
                        unusable += 1;
                        *n = cut.fragments();
                    }
                }
                *n += 1;
                if *n >= cut.fragments() {
                    cutting = None;
                }
                continue;
            }
            let Some(mbuf) = self.received.drain(..self.received.len().min(1)).next() else { break };
            if !mbuf.is_contiguous() {
                unusable += 1;
            } else if let Some(cut) = cut_again(mbuf.data(), mtu) {
                cutting = Some((mbuf, cut, 0));
            } else if mbuf.len() > usize::from(self.pool.data_room()) {
                batch.push(DpdkFrame(mbuf));
            } else {
                match filled(&self.pool, mbuf.len(), |out| out.copy_from_slice(mbuf.data())) {
                    Some(frame) => batch.push(frame),
                    None => unusable += 1,
                }
            }
        }
        if let Some(large) = &mut self.large {
            large.cutting = cutting;
        }
        unusable
    }
}

/// How to fragment a frame that the kernel has reassembled; `None` if it must not be fragmented.
fn cut_again(frame: &[u8], mtu: u16) -> Option<Cut> {
    if frame.len() <= usize::from(mtu) + ethernet::HEADER_LEN {
        return None;
    }
    let Ok(Parsed::Ip(h)) = parse(frame) else { return None };
    let merged = h.proto == proto::TCP && h.dont_fragment;
    let wanted = h.family == Family::V4 && h.ip_len() > mtu && !merged;
    wanted.then(|| Cut::new(frame, usize::from(h.l3), usize::from(mtu))).flatten()
}

/// A new frame from the pool, filled by `write`.
fn filled(pool: &PktPool, len: usize, write: impl FnOnce(&mut [u8])) -> Option<DpdkFrame> {
    let mut mbuf = pool.alloc().ok()?;
    write(mbuf.append(len).ok()?);
    Some(DpdkFrame(mbuf))
}

impl PortQueue for DpdkQueue {
    type Frame = DpdkFrame;

    #[inline]
    fn rx(&mut self, batch: &mut FrameBatch<DpdkFrame>) -> usize {
        if self.gate.has_request() {
            self.gate.respond(&mut self.queues);
        }
        if let Some(Large { mtu, .. }) = self.large {
            return self.rx_large(mtu, batch);
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
        // Without a link, a packet socket keeps frames to send them later, or blocks the driver.
        if !self.can_send() {
            return 0;
        }
        let Some((_, tx)) = &mut self.queues else { return 0 };
        for frame in batch.drain(..) {
            self.sending
                .push(frame.0)
                .expect("`sending` is empty between calls, and a batch has at most a burst");
        }
        let sent = tx.tx(&mut self.sending);
        batch.extend(self.sending.drain(..).map(DpdkFrame));
        sent
    }

    fn spare(&mut self, len: usize) -> Option<DpdkFrame> {
        filled(&self.pool, len, |_| {})
    }

    #[inline]
    fn can_send(&self) -> bool {
        self.gate.stage() == Stage::Open
    }
}

/// Mbufs for threads other than workers.
#[derive(Debug, Clone)]
pub struct DpdkSource(pub PktPool);

impl FrameSource for DpdkSource {
    type Frame = DpdkFrame;

    fn frame(&self, bytes: &[u8]) -> Option<DpdkFrame> {
        filled(&self.0, bytes.len(), |out| out.copy_from_slice(bytes))
    }
}
