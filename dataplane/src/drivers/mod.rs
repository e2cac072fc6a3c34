//! The sources and destinations of frames behind one trait: DPDK ports, or queues in memory.
//!
//! A [`PortQueue`] is one receive and one transmit queue of one port, owned by one worker. The worker's loop is
//! generic over it, so that no call per packet goes through a pointer.
//!
//! Invariant: a frame has one owner; frames that a queue did not accept stay in the batch, in order.

use arrayvec::ArrayVec;
use tidegate_pipeline::frame::Frame;
use tidegate_spec::limits::BURST;

pub mod dpdk;
pub mod gate;
pub mod memory;

/// Frames that go through the worker together.
pub type FrameBatch<F> = ArrayVec<F, BURST>;

/// One receive and one transmit queue of a port, for one worker. Never waits, never allocates.
pub trait PortQueue: Send {
    /// The memory of a frame. Any thread may fill and free it.
    type Frame: Frame + Send + 'static;

    /// Appends waiting frames, as far as the batch has room. Frames that the pipeline cannot process (spread over
    /// several buffers that cannot be joined) are dropped here, and their number is returned.
    fn rx(&mut self, batch: &mut FrameBatch<Self::Frame>) -> usize;

    /// Sends frames from the front of the batch until the queue is full, and returns how many. The rest stays, in
    /// order.
    fn tx(&mut self, batch: &mut FrameBatch<Self::Frame>) -> usize;

    /// A frame of `len` bytes to be written and sent, for a fragment of one that does not fit its link. `None` if there
    /// is no memory, or not enough in one piece.
    fn spare(&mut self, len: usize) -> Option<Self::Frame>;

    /// Whether the port can send frames at all. It cannot while it has no link.
    fn can_send(&self) -> bool {
        true
    }
}

/// The source of frame memory for threads that are not workers.
pub trait FrameSource: Send + Sync {
    /// Memory of a frame.
    type Frame: Frame + Send + 'static;

    /// A frame with these bytes; `None` if there is no memory, or not enough in one piece.
    fn frame(&self, bytes: &[u8]) -> Option<Self::Frame>;
}
