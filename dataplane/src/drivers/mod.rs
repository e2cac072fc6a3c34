//! The sources and destinations of frames behind one trait: DPDK ports, or queues in memory.
//!
//! A [`PortQueue`] is one receive and one transmit queue of one port, owned by one worker. The worker's loop is
//! generic over it, so that no call per packet goes through a pointer.
//!
//! Invariant: a frame has one owner; frames that a queue did not accept stay in the batch, in order.

use arrayvec::ArrayVec;
use tidegate_core::frame::Frame;
use tidegate_core::limits::BURST;

pub mod dpdk;
pub mod gate;
pub mod memory;

/// Frames that go through the worker together.
pub type FrameBatch<F> = ArrayVec<F, BURST>;

/// One receive and one transmit queue of a port, for one worker. Never waits, never allocates.
pub trait PortQueue: Send {
    /// Memory of a frame; may be freed and filled by any thread.
    type Frame: Frame + Send + 'static;

    /// Appends the frames that wait, as far as the batch has room. Frames that the pipeline cannot take (spread over
    /// several buffers, and not to be joined) are dropped here; their number is returned.
    fn rx(&mut self, batch: &mut FrameBatch<Self::Frame>) -> usize;

    /// Sends from the front of the batch what the queue takes, and returns how many. The rest stays, in order.
    fn tx(&mut self, batch: &mut FrameBatch<Self::Frame>) -> usize;

    /// A frame of `len` bytes to be written and sent, for a piece of one that does not fit its link; `None` when there
    /// is no memory, or not enough in one piece.
    fn spare(&mut self, len: usize) -> Option<Self::Frame>;

    /// Whether the port takes frames at all: not while it has no link.
    fn can_send(&self) -> bool {
        true
    }
}

/// Where threads that are no workers get memory for frames to be sent.
pub trait FrameSource: Send + Sync {
    /// Memory of a frame.
    type Frame: Frame + Send + 'static;

    /// A frame with these bytes; `None` when there is no memory, or not enough in one piece.
    fn frame(&self, bytes: &[u8]) -> Option<Self::Frame>;
}
