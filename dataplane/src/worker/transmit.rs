//! Frames on their way to a transmit queue, and how each is counted once the queue has accepted or refused it.

use arrayvec::ArrayVec;
use tidegate_pipeline::frame::Frame;
use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::limits::BURST;
use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};

use super::exchange::Shared;
use crate::drivers::{FrameBatch, PortQueue};

/// Frames for one port, with how each is counted.
#[derive(Debug)]
pub(super) struct TxBatch<F> {
    pub(super) frames: FrameBatch<F>,
    pub(super) why: ArrayVec<Sending, BURST>,
}

/// How a frame is counted.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sending {
    /// A received frame, sent for this reason.
    Received(TransmitReason),
    /// A fragment. The whole frame is counted instead.
    Fragment,
    /// A frame of the kernel or the resolver, which has no verdict.
    Injected,
}

impl<F: Frame> TxBatch<F> {
    pub(super) fn new() -> Self {
        Self { frames: FrameBatch::new(), why: ArrayVec::new() }
    }

    /// Sends the frames through `port` and drops those that it refuses. Returns whether it accepted all of them.
    #[inline]
    pub(super) fn flush<Q: PortQueue<Frame = F>>(
        &mut self,
        port: &mut Q,
        interface: InterfaceIndex,
        shared: &Shared,
    ) -> bool {
        let lengths: ArrayVec<usize, BURST> = self.frames.iter().map(|frame| frame.bytes().len()).collect();
        let sent = port.tx(&mut self.frames);
        let counters = shared.counters.interface(interface);
        let refusal = match port.can_send() {
            true => Refusal::TxQueueFull,
            false => Refusal::LinkDown,
        };
        counters.tx_packets.add(sent as u64);
        counters.tx_bytes.add(lengths[..sent].iter().map(|&len| len as u64).sum());
        for (n, why) in self.why.drain(..).enumerate() {
            match why {
                Sending::Received(why) if n < sent => {
                    shared.counters.record(Verdict::Transmit { interface, why });
                }
                Sending::Received(_) => shared.counters.record(refusal.into()),
                Sending::Fragment => {}
                Sending::Injected if n < sent => shared.loop_counters.injected.add(1),
                Sending::Injected => shared.loop_counters.injected_dropped.add(1),
            }
        }
        self.frames.clear();
        sent == lengths.len()
    }
}
