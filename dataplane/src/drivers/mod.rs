//! Sources and destinations of frames behind one trait: DPDK ports, or queues in memory.
//!
//! A [`PortQueue`] is one receive and one transmit queue of a port, owned by one worker. The worker's loop is generic
//! over it, so no per-packet call goes through a pointer.
//!
//! Invariant: a frame has one owner. Frames that a queue refuses stay in the batch, in order.

use arrayvec::ArrayVec;
use tidegate_pipeline::frame::Frame;
use tidegate_spec::limits::BURST;

pub mod dpdk;
pub mod gate;
pub mod memory;

/// Frames that a worker processes together.
pub type FrameBatch<F> = ArrayVec<F, BURST>;

/// One receive and one transmit queue of a port, for one worker. Never blocks or allocates.
pub trait PortQueue: Send {
    /// The memory of a frame. Any thread may fill and free it.
    type Frame: Frame + Send + 'static;

    /// Appends received frames while the batch has capacity. Frames that the pipeline can't process (spread over
    /// several buffers that can't be joined) are dropped here, and their number is returned.
    fn rx(&mut self, batch: &mut FrameBatch<Self::Frame>) -> usize;

    /// Sends frames from the front of the batch until the queue is full, and returns their number. The rest stays in
    /// order.
    fn tx(&mut self, batch: &mut FrameBatch<Self::Frame>) -> usize;

    /// A frame of `len` bytes to write and send, for a fragment. `None` if there is no memory, or not enough contiguous
    /// memory.
    fn spare(&mut self, len: usize) -> Option<Self::Frame>;

    /// Whether the port can send frames. It can't while it has no link.
    fn can_send(&self) -> bool {
        true
    }
}

/// Allocates frames for threads other than workers.
pub trait FrameSource: Send + Sync {
    /// The memory of a frame.
    type Frame: Frame + Send + 'static;

    /// A frame with these bytes; `None` if there is no memory, or not enough contiguous memory.
    fn frame(&self, bytes: &[u8]) -> Option<Self::Frame>;
}
